package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// storeShop is the shop whose stores a command opens itself.
type storeShop struct {
	app    *app
	stock  *stock.Stock
	ledger *ledger.Ledger // nil where nobody waits for its word
}

func (s storeShop) Target() string { return s.stock.Target() }

func (s storeShop) Close() {
	_ = s.stock.Close()
	if s.ledger != nil {
		s.ledger.Close()
	}
}

func (s storeShop) Lots(ctx context.Context, group string) ([]lotView, error) {
	lots, err := s.LotIDs(ctx, group)
	if err != nil {
		return nil, err
	}
	states, err := s.stock.LotStates(ctx, lots)
	if err != nil {
		return nil, err
	}
	views := []lotView{}
	for _, lot := range lots {
		if st, ok := states[lot]; ok {
			views = append(views, viewLot(st))
		}
	}
	return views, nil
}

func (s storeShop) LotIDs(ctx context.Context, group string) ([]drop.LotID, error) {
	all, err := s.stock.Lots(ctx)
	if err != nil || group == "" {
		return all, err
	}
	return slices.DeleteFunc(all, func(lot drop.LotID) bool { return lot.Group() != group }), nil
}

func (s storeShop) Lot(ctx context.Context, lot drop.LotID) (lotView, error) {
	state, err := s.stock.Lot(ctx, lot)
	if err != nil {
		return lotView{}, s.app.aboutLot(ctx, lot, err)
	}
	return viewLot(state), nil
}

func (s storeShop) Adjust(ctx context.Context, q drop.AdjustRequest) (lotView, bool, error) {
	state, same, err := s.stock.Adjust(ctx, q)
	if err != nil {
		return lotView{}, false, s.app.aboutLot(ctx, q.Lot, err)
	}
	return viewLot(state), same, nil
}

func (s storeShop) SetStatus(ctx context.Context, q statusRequest) (bool, error) {
	_, same, err := s.stock.Change(ctx, drop.ChangeRequest{Lot: q.lot, Status: &q.status, DryRun: q.dryRun, Actor: s.app.cfg.Actor, Reason: q.reason})
	if err != nil {
		return false, s.app.aboutLot(ctx, q.lot, err)
	}
	return same, nil
}

func (s storeShop) Reserve(ctx context.Context, q drop.ReserveRequest) (reservationView, error) {
	out, err := s.stock.Reserve(ctx, q)
	if err != nil {
		return reservationView{}, s.app.aboutLot(ctx, q.Lot, err)
	}
	return viewOutcome(out), nil
}

func (s storeShop) PlanReserve(ctx context.Context, q drop.ReserveRequest) (reservationView, error) {
	v, err := planReserve(ctx, s.stock, q)
	if err != nil {
		return v, s.app.aboutLot(ctx, q.Lot, err)
	}
	return v, nil
}

func (s storeShop) Reservation(ctx context.Context, id drop.ReservationID) (reservationView, error) {
	r, lot, err := reservationNow(ctx, s.stock, id)
	if err != nil {
		return reservationView{}, s.about(ctx, id, err)
	}
	return viewAt(r, lot.Now), nil
}

func (s storeShop) MeansDue(ctx context.Context, q drop.SettleRequest) (bool, error) {
	_, meant, err := s.due(ctx, q)
	return meant, err
}

// due asks the ledger what is due of the reservation of a refund, and whether that is what the refund is about.
func (s storeShop) due(ctx context.Context, q drop.SettleRequest) (d drop.Due, meant bool, err error) {
	if q.Action != drop.ActRefund || s.ledger == nil {
		return d, false, nil
	}
	if d, err = s.ledger.DueOf(ctx, q.ID); err != nil {
		return d, false, err
	}
	meant, err = d.Meant(q)
	return d, meant, err
}

// closeDue records that the money of what is due was given back.
func (s storeShop) closeDue(ctx context.Context, q drop.SettleRequest, d drop.Due, dryRun bool) (reservationView, error) {
	v := reservationView{ID: q.ID, Lot: q.ID.Lot, State: drop.Refunded}
	found, err := s.ledger.ReservationsByID(ctx, []drop.ReservationID{q.ID})
	if err != nil {
		return v, err
	}
	if r, ok := found[q.ID]; ok {
		v = viewRecorded(r)
	}
	v.User, v.DueClosed, v.Replayed, v.DryRun = d.User, d.Units, d.Open == 0, dryRun
	if !dryRun {
		closed, err := s.ledger.CloseDue(ctx, q.ID, q.Actor, q.Reason)
		if err != nil {
			return v, err
		}
		v.Replayed = closed == 0
	}
	return v, nil
}

func (s storeShop) Settle(ctx context.Context, q drop.SettleRequest) (reservationView, error) {
	if d, meant, err := s.due(ctx, q); meant || err != nil {
		if err != nil {
			return reservationView{}, err
		}
		return s.closeDue(ctx, q, d, false)
	}
	out, err := s.stock.Settle(ctx, q)
	if err != nil {
		return reservationView{}, s.about(ctx, q.ID, err)
	}
	return viewOutcome(out), nil
}

func (s storeShop) PlanSettle(ctx context.Context, q drop.SettleRequest) (reservationView, error) {
	if d, meant, err := s.due(ctx, q); meant || err != nil {
		if err != nil {
			return reservationView{}, err
		}
		return s.closeDue(ctx, q, d, true)
	}
	v, err := planSettle(ctx, s.stock, q)
	if err != nil {
		return v, s.about(ctx, q.ID, err)
	}
	return v, nil
}

// about says more about an error that concerns a reservation.
func (s storeShop) about(ctx context.Context, id drop.ReservationID, err error) error {
	return s.app.aboutLot(ctx, id.Lot, named(err, "ID", id.String()))
}

// AwaitRecorded asks the ledger again and again. What Redis did stays done: when the time is over, only the ledger's word
// is missing.
func (s storeShop) AwaitRecorded(ctx context.Context, _ drop.SettleRequest, r reservationView) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := s.ledger.ReservationsByID(ctx, []drop.ReservationID{r.ID})
		if err != nil && ctx.Err() == nil {
			return s.app.undecided(r, err)
		}
		recorded, ok := found[r.ID]
		switch {
		case ok && recorded.Rejected:
			return fault.New(fault.LedgerRejected, "the ledger has no unit for reservation %s", r.ID).With("reservation", r.ID.String())
		case ok && recorded.LastSeq >= r.Seq:
			return nil
		}
		select {
		case <-ctx.Done():
			return s.app.undecided(r, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (s storeShop) Offer(ctx context.Context, prefix string, states []drop.State) ([]candidate, error) {
	lots, err := s.stock.Lots(ctx)
	if err != nil {
		return nil, err
	}
	var list []candidate
	enough := errors.New("enough")
	for _, lot := range lots {
		if !mayHold(lot, prefix) {
			continue
		}
		err := s.stock.Records(ctx, lot, func(page []drop.Reservation) error {
			for _, r := range page {
				if strings.HasPrefix(r.ID.String(), prefix) && isOneOf(r.State, states) {
					list = append(list, candidate{r.ID.String(), string(r.State) + " " + r.User})
				}
			}
			if len(list) >= completionLimit {
				return enough
			}
			return nil
		})
		if errors.Is(err, enough) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// mayHold reports whether a lot's reservations may have ids that begin so.
func mayHold(lot drop.LotID, prefix string) bool {
	start := string(lot) + "~"
	return strings.HasPrefix(start, prefix) || strings.HasPrefix(prefix, start)
}
