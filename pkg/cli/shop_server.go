package cli

import (
	"context"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// serverShop is the shop behind an HTTP API: no store is opened, and the server says what is allowed.
type serverShop struct {
	app    *app
	client *client.Client
}

// openServer gets ready to call the server; it dials nothing.
func (a *app) openServer() (shop, error) {
	s, err := a.newServerShop()
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (a *app) newServerShop() (serverShop, error) {
	target, err := a.cfg.API(a.getenv)
	if err != nil {
		return serverShop{}, err
	}
	// Half of the time for an attempt: an answer that is lost can be asked for once more.
	c, err := client.New(client.Options{URL: target.URL.Reveal(), Key: target.Key.Reveal(), UserAgent: "dropctl/" + thisVersion().Version,
		Retries: 2, Timeout: max(a.cfg.Timeout/2, time.Millisecond)})
	if err != nil {
		return serverShop{}, err
	}
	if target.Key.IsSet() && canBeOverheard(c.URL()) {
		a.note("warning: the API key travels to %s unencrypted; use https://", c.URL())
	}
	if strings.HasPrefix(a.cfg.Origin("actor"), "flag") {
		a.note("warning: --actor is not used: the server writes the API key's id into its journal")
	}
	return serverShop{a, c}, nil
}

// canBeOverheard reports whether what is sent to a server leaves this machine in the clear.
func canBeOverheard(server string) bool {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" || u.Hostname() == "localhost" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return ip == nil || !ip.IsLoopback()
}

func (s serverShop) Target() string { return s.client.URL() }
func (s serverShop) Close()         { s.client.Close() }

func (s serverShop) Lots(ctx context.Context, group string) ([]lotView, error) {
	views := []lotView{}
	for l, err := range s.client.AllLots(ctx) {
		if err != nil {
			return nil, err
		}
		if v := viewServedLot(l); group == "" || v.Lot.Group() == group {
			views = append(views, v)
		}
	}
	return views, nil
}

func (s serverShop) LotIDs(ctx context.Context, group string) ([]drop.LotID, error) {
	views, err := s.Lots(ctx, group)
	lots := make([]drop.LotID, len(views))
	for i, v := range views {
		lots[i] = v.Lot
	}
	return lots, err
}

func (s serverShop) Lot(ctx context.Context, lot drop.LotID) (lotView, error) {
	l, err := s.client.Lot(ctx, string(lot))
	if err != nil {
		return lotView{}, named(err, "LOT", string(lot))
	}
	return viewServedLot(l), nil
}

func (s serverShop) Adjust(ctx context.Context, q drop.AdjustRequest) (lotView, bool, error) {
	if q.DryRun {
		return lotView{}, false, s.cannotPlan()
	}
	l, changed, err := s.client.AdjustLot(ctx, string(q.Lot), client.AdjustBody{By: q.By, To: q.To, Expect: q.Expect, Reason: q.Reason})
	if err != nil {
		return lotView{}, false, named(err, "LOT", string(q.Lot))
	}
	return viewServedLot(l), !changed, nil
}

// SetStatus with a dry run looks at the lot.
func (s serverShop) SetStatus(ctx context.Context, q statusRequest) (same bool, err error) {
	call := s.client.OpenLot
	switch q.status {
	case drop.Paused:
		call = s.client.PauseLot
	case drop.Closed:
		call = s.client.CloseLot
	}
	if q.dryRun {
		l, err := s.Lot(ctx, q.lot)
		return l.Status == q.status, err
	}
	_, changed, err := call(ctx, string(q.lot), client.StatusBody{Reason: q.reason})
	if err != nil {
		return false, named(err, "LOT", string(q.lot))
	}
	return !changed, nil
}

// Blocked is left to the server, which looks before it opens a lot.
func (s serverShop) Blocked(context.Context, []drop.LotID) map[drop.LotID]error { return nil }

func (s serverShop) Reserve(ctx context.Context, q drop.ReserveRequest) (reservationView, error) {
	r, err := s.client.Reserve(ctx, string(q.Lot), q.Key, client.ReserveBody{User: q.User, Qty: q.Qty, Hold: q.Hold.Seconds(), Replace: q.Replace})
	if err != nil {
		return reservationView{}, named(flagged(err), "LOT", string(q.Lot))
	}
	return s.view(r)
}

func (s serverShop) PlanReserve(context.Context, drop.ReserveRequest) (reservationView, error) {
	return reservationView{}, s.cannotPlan()
}

func (s serverShop) Reservation(ctx context.Context, id drop.ReservationID) (reservationView, error) {
	r, err := s.client.Reservation(ctx, id.String())
	if err != nil {
		return reservationView{}, about(id, err)
	}
	return s.view(r)
}

func (s serverShop) Settle(ctx context.Context, q drop.SettleRequest) (reservationView, error) {
	r, err := s.settle(ctx, q, "stock")
	if err != nil {
		return reservationView{}, about(q.ID, err)
	}
	return s.view(r)
}

// MeansDue is left to the server, unless the command says it.
func (s serverShop) MeansDue(_ context.Context, q drop.SettleRequest) (bool, error) {
	return q.Due, nil
}

func (s serverShop) settle(ctx context.Context, q drop.SettleRequest, ack string) (client.Reservation, error) {
	id := q.ID.String()
	switch q.Action {
	case drop.ActConfirm:
		return s.client.Confirm(ctx, id, client.ConfirmBody{Qty: q.Qty, Payment: q.Ref, Late: string(q.Late), Ack: ack, Reason: q.Reason})
	case drop.ActRelease:
		return s.client.Release(ctx, id, client.ReleaseBody{Keep: q.Keep, Reason: q.Reason})
	case drop.ActExtend:
		return s.client.Extend(ctx, id, client.ExtendBody{By: q.By.Seconds(), Reason: q.Reason})
	}
	body := client.RefundBody{NoRestock: q.NoRestock, Due: q.Due, Reason: q.Reason}
	if q.Total >= 0 {
		body.Total = &q.Total
	}
	return s.client.Refund(ctx, id, body)
}

func (s serverShop) PlanSettle(context.Context, drop.SettleRequest) (reservationView, error) {
	return reservationView{}, s.cannotPlan()
}

// AwaitRecorded confirms again, which changes nothing, and lets the server wait; as often as there is time.
func (s serverShop) AwaitRecorded(ctx context.Context, q drop.SettleRequest, confirmed reservationView) error {
	q.ID = confirmed.ID // a late confirm may have taken it anew
	for {
		r, err := s.settle(ctx, q, "ledger")
		switch {
		case fault.ExitOf(err) == fault.ExitUnavailable:
			return s.app.undecided(confirmed, err)
		case err != nil, r.Ledger != "pending":
			return about(q.ID, err)
		}
		wait := 50 * time.Millisecond // the server may have waited long already, or knows that it takes longer
		if r.LedgerLag != nil {
			wait = max(wait, min(time.Second, client.Duration(*r.LedgerLag)))
		}
		select {
		case <-ctx.Done():
			return s.app.undecided(confirmed, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

func (s serverShop) Offer(ctx context.Context, prefix string, states []drop.State) ([]candidate, error) {
	lots, err := s.LotIDs(ctx, "")
	if err != nil {
		return nil, err
	}
	var list []candidate
	for _, lot := range lots {
		if !mayHold(lot, prefix) {
			continue
		}
		for r, err := range s.client.AllReservations(ctx, client.Filter{Lot: string(lot), States: texts(states), Limit: completionLimit}) {
			if err != nil {
				return nil, err
			}
			if strings.HasPrefix(r.ID, prefix) {
				list = append(list, candidate{r.ID, r.State + " " + r.User})
			}
			if len(list) >= completionLimit {
				return list, nil
			}
		}
	}
	return list, nil
}

// cannotPlan answers a dry run that the stores alone can answer.
func (s serverShop) cannotPlan() error {
	return fault.New(fault.Usage, "a server does not say what it would do: this --dry-run needs the stores").WithField("dry-run").
		WithHint("leave --dry-run out, or name the stores with --redis-url instead of the server")
}

// about says more about an error that concerns a reservation.
func about(id drop.ReservationID, err error) error {
	if err == nil {
		return nil
	}
	return named(named(flagged(err), "ID", id.String()), "LOT", string(id.Lot))
}

// flagged names the flag that filled the field at fault, where the API calls it something else.
func flagged(err error) error {
	f := fault.As(err)
	flag := map[string]string{"Idempotency-Key": "key", "hold_seconds": "hold", "by_seconds": "by"}[f.Field]
	if flag == "" {
		return err
	}
	return f.WithField(flag)
}

// view is a served reservation as commands print it.
func (s serverShop) view(r client.Reservation) (reservationView, error) {
	id, err := drop.ParseReservationID(r.ID)
	if err != nil {
		return reservationView{}, fault.Wrap(fault.Unavailable, err, "the answer of %s cannot be understood", s.client.URL()).
			WithHint("see that its version is that of this dropctl: dropctl version")
	}
	v := reservationView{ID: id, Lot: id.Lot, User: r.User, State: drop.State(r.State), Qty: r.Qty, Refunded: r.Refunded, DueClosed: r.DueClosed, Deadline: moment(r.Deadline),
		Payment: r.Payment, Key: r.Key, Created: moment(r.Created), Seq: r.Seq, Replayed: r.Replayed, Remaining: r.Remaining}
	if r.Left != nil {
		left := client.Duration(*r.Left)
		v.Left = &left
	}
	return v, nil
}

func viewServedLot(l client.Lot) lotView {
	return lotView{Lot: drop.LotID(l.Lot), Name: l.Name, Status: drop.Status(l.Status), Selling: l.Selling,
		Capacity: l.Capacity, Available: l.Available, Held: l.Held, Sold: l.Sold, Due: l.Due, Limit: unitLimit(l.Limit),
		Hold: client.Duration(l.Hold), MaxHold: client.Duration(l.MaxHold), Opens: moment(l.Opens), Closes: moment(l.Closes), Late: drop.Late(l.Late),
		Epoch: l.Epoch, Seq: l.Seq, Frozen: fault.Code(l.Frozen)}
}

func moment(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func texts(states []drop.State) []string {
	list := make([]string, len(states))
	for i, s := range states {
		list[i] = string(s)
	}
	return list
}
