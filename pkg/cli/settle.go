package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/stock"
)

// settling is what confirm, release, extend and refund have in common.
type settling struct {
	reason    string
	dryRun    bool
	ackLedger bool // confirm: wait until the ledger has decided
}

// settleCommand finishes the command of one action. states are those whose reservations completion offers.
func (a *app) settleCommand(cmd *cobra.Command, st *settling, states ...drop.State) {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = firstOnly(a.completeFrom(a.reservationIDs(states...)))
	reasonFlag(cmd, &st.reason)
	dryRunFlag(cmd, &st.dryRun)
	a.settings(cmd, cmd.Flags(), config.Redis, config.API, config.Stock, config.Durable)
}

func reasonFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "reason", "", "why, for the journal")
	completeNothing(cmd, "reason")
}

// settle checks the request, carries it out and prints the reservation as it then is.
func (a *app) settle(ctx context.Context, id string, q drop.SettleRequest, st settling) (err error) {
	if q.ID, err = drop.ParseReservationID(id); err != nil {
		return err
	}
	q.Actor, q.Reason = a.cfg.Actor, st.reason
	if err := q.Check(); err != nil {
		return err
	}
	s, err := a.openShop(ctx, st.ackLedger || a.refundNeedsLedger(q))
	if err != nil {
		return err
	}
	defer s.Close()
	a.note("target: reservation %s on %s", q.ID, s.Target())
	if q.Action == drop.ActRefund && !st.dryRun && !a.cfg.Yes {
		if err := a.confirmRefund(ctx, s, q); err != nil {
			return err
		}
	}
	ctx, cancel := a.bounded(ctx) // from here on: whoever is asked may take his time
	defer cancel()
	v, err := a.carryOut(ctx, s, q, st)
	if err != nil {
		return err
	}
	a.noteCut(q, v)
	return a.print(v)
}

// refundNeedsLedger reports whether the ledger has to say what a refund is about. Who names the sale's total can do without,
// and so can who has named no PostgreSQL.
func (a *app) refundNeedsLedger(q drop.SettleRequest) bool {
	return q.Action == drop.ActRefund && q.Total < 0 && !q.NoRestock && (q.Due || a.cfg.DatabaseURL.IsSet())
}

func (a *app) carryOut(ctx context.Context, s shop, q drop.SettleRequest, st settling) (reservationView, error) {
	if st.dryRun {
		return s.PlanSettle(ctx, q)
	}
	v, err := askTwice(ctx, a.again(), func() (reservationView, error) { return s.Settle(ctx, q) })
	if err == nil && st.ackLedger {
		err = s.AwaitRecorded(ctx, q, v)
	}
	return v, err
}

// confirmRefund asks whether to take a sale back, and says whose and how much it is.
func (a *app) confirmRefund(ctx context.Context, s shop, q drop.SettleRequest) error {
	within, cancel := a.bounded(ctx)
	defer cancel()
	due, err := s.MeansDue(within, q)
	if err != nil {
		return err
	}
	if due {
		return a.confirm(ctx, fmt.Sprintf("record that all payments due for refund of %[1]s (dropctl ledger show --refund-due --reservation %[1]s) were given back? this cannot be undone", q.ID))
	}
	r, err := s.Reservation(within, q.ID)
	if err != nil {
		return err
	}
	units := r.Qty
	if q.Total >= 0 {
		units = max(0, q.Total-r.Refunded)
	}
	who := ""
	if r.User != "" {
		who = " (" + r.User + ")"
	}
	return a.confirm(ctx, fmt.Sprintf("refund %s of %s%s? this cannot be undone", drop.CountUnits(units), q.ID, who))
}

// noteCut says that the lot's max_hold allowed less than was asked for.
func (a *app) noteCut(q drop.SettleRequest, v reservationView) {
	if q.Action == drop.ActExtend && v.Left != nil && *v.Left < q.By.Truncate(time.Millisecond) {
		a.note("the hold lasts %s from now, not %s: the lot's max_hold allows no more", fault.Duration(*v.Left), fault.Duration(q.By))
	}
}

// planSettle returns the reservation as it would be, or says which rule stands against the action.
func planSettle(ctx context.Context, s *stock.Stock, q drop.SettleRequest) (reservationView, error) {
	r, lot, err := reservationNow(ctx, s, q.ID)
	if err != nil {
		return reservationView{}, err
	}
	if !lot.Sells() {
		return reservationView{}, fault.New(fault.LotFrozen, "lot %s is frozen: %s", q.ID.Lot, lot.FreezeReason()).
			WithHint("what it means: dropctl explain %s", lot.FreezeReason())
	}
	if q.Late == "" {
		q.Late = lot.Late
	}
	planned, err := plan(r, q, lot)
	if err != nil {
		return reservationView{}, err
	}
	v := viewAt(planned, lot.Now)
	v.Replayed, v.DryRun = planned == r, true
	return v, nil
}

// plan returns the reservation as it would be after the action: unchanged if it already is so. It follows the
// rules of the script; a late confirm may yet meet the user's limit or another hold.
func plan(r drop.Reservation, q drop.SettleRequest, lot drop.LotState) (drop.Reservation, error) {
	if q.Action == drop.ActRelease && r.State == drop.Confirmed && q.Keep > 0 && q.Keep == r.Qty+r.Refunded {
		return r, nil // what it keeps was bought meanwhile
	}
	if code := unfit(r.State, q); code != "" {
		return r, otherState(code, r)
	}
	switch q.Action {
	case drop.ActConfirm:
		return planConfirm(r, q, lot)
	case drop.ActRelease:
		return planRelease(r, q)
	case drop.ActExtend:
		longest := r.Created.Add(lot.MaxHold)
		wanted := lot.Now.Add(q.By)
		if wanted.After(longest) {
			wanted = longest
		}
		if wanted.After(r.Deadline) {
			r.Deadline = wanted
		}
		return r, nil
	}
	return planRefund(r, q)
}

func planConfirm(r drop.Reservation, q drop.SettleRequest, lot drop.LotState) (drop.Reservation, error) {
	if r.State == drop.Confirmed {
		sold := r.Qty + r.Refunded
		if (q.Qty == sold || q.Qty == 0 && r.Rest == 0) && (q.Ref == "" || q.Ref == r.Ref) {
			return r, nil
		}
		return r, otherState(fault.AlreadyConfirmed, r)
	}
	if q.Qty > r.Qty {
		return r, tooMany("qty", q, r)
	}
	if q.Qty > 0 {
		r.Rest, r.Qty = r.Qty-q.Qty, q.Qty
	}
	if r.State == drop.Expired { // a new taking
		if r.Qty > lot.Available+lot.Due {
			return r, fault.New(fault.SoldOut, "lot %s has %d of %d units left", q.ID.Lot, lot.Available+lot.Due, r.Qty)
		}
		r.From, r.ID.N = r.ID.N, lot.Seq+1
	}
	r.State, r.Ref, r.Deadline = drop.Confirmed, q.Ref, time.Time{}
	return r, nil
}

func planRelease(r drop.Reservation, q drop.SettleRequest) (drop.Reservation, error) {
	switch {
	case r.State == drop.Released && q.Keep == 0:
	case r.State == drop.Released:
		return r, otherState(fault.AlreadyReleased, r)
	case q.Keep > r.Qty:
		return r, tooMany("keep", q, r)
	case q.Keep == 0: // an ended reservation shows what was given back
		r.State, r.Deadline = drop.Released, time.Time{}
	default:
		r.Qty = q.Keep
	}
	return r, nil
}

func planRefund(r drop.Reservation, q drop.SettleRequest) (drop.Reservation, error) {
	bought := r.Qty + r.Refunded
	total := q.Total
	if total < 0 {
		total = bought
	}
	switch {
	case total < r.Refunded, r.State == drop.Refunded && total != r.Refunded:
		return r, otherState(fault.AlreadyRefunded, r)
	case total > bought:
		return r, tooMany("total", q, r)
	}
	r.Qty, r.Refunded = bought-total, total
	if r.Qty == 0 {
		r.State, r.Ref = drop.Refunded, "" // an ended reservation no longer carries it
	}
	return r, nil
}

func otherState(code fault.Code, r drop.Reservation) error {
	return fault.New(code, "the reservation is %s (%s)", r.State, drop.CountUnits(r.Qty))
}

// tooMany names the field that asks for more than the reservation has.
func tooMany(field string, q drop.SettleRequest, r drop.Reservation) error {
	return fault.New(fault.Conflict, "%s is more than the reservation has: it is %s (%s)", field, r.State, drop.CountUnits(r.Qty)).
		WithField(field).WithHint("see its units: dropctl reservation show %s", q.ID)
}

// unfit says which rule a reservation's state alone breaks, or "". A call for what may already be fits.
func unfit(state drop.State, q drop.SettleRequest) fault.Code {
	switch {
	case q.Action == drop.ActRefund && state != drop.Confirmed && state != drop.Refunded:
		return fault.NotConfirmed
	case q.Action == drop.ActRefund, state == drop.Held:
		return ""
	case state == drop.Confirmed && q.Action != drop.ActConfirm:
		return fault.AlreadyConfirmed
	case state == drop.Released && q.Action != drop.ActRelease:
		return fault.AlreadyReleased
	case state == drop.Refunded:
		return fault.AlreadyRefunded
	case state == drop.Expired && (q.Action != drop.ActConfirm || q.Late != drop.Reclaim):
		return fault.HoldExpired
	}
	return ""
}

// undecided says that the ledger's word is missing; the confirmation stays done.
func (a *app) undecided(r reservationView, why error) error {
	return fault.Wrap(fault.OutcomeUnknown, why, "reservation %s is confirmed in Redis, but the ledger has not decided yet", r.ID).
		With("reservation", r.ID.String()).With("state", string(r.State)).
		WithHint("see that a worker runs: dropctl status; then wait again: %s", a.again())
}
