package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// settling is what confirm, release, extend and refund have in common.
type settling struct {
	reason    string
	dryRun    bool
	ackLedger bool // confirm: wait until the ledger has decided
}

// settleCommand finishes the command of one action. states are those whose reservations completion offers.
func (a *app) settleCommand(cmd *cobra.Command, st *settling, states ...drop.State) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = firstOnly(a.completeFrom(a.reservationIDs(states...)))
	reasonFlag(cmd, &st.reason)
	dryRunFlag(cmd, &st.dryRun)
	a.settings(cmd, cmd.Flags(), config.Redis, config.Stock)
	return cmd
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
	s, l, err := a.openToSettle(ctx, st)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if l != nil {
		defer l.Close()
	}
	if st.dryRun {
		return a.planSettle(ctx, s, q)
	}
	a.note("target: reservation %s on %s", q.ID, s.Target())
	if q.Action == drop.ActRefund {
		if err := a.confirm(ctx, "refund "+q.ID.String()+", which cannot be undone"); err != nil {
			return err
		}
	}
	ctx, cancel := a.bounded(ctx) // from here on: whoever is asked may take his time
	defer cancel()
	out, err := askTwice(ctx, a.again(), func() (drop.Outcome, error) { return s.Settle(ctx, q) })
	if err != nil {
		return a.aboutLot(ctx, q.ID.Lot, named(err, "ID", id))
	}
	if l != nil {
		if err := awaitRecorded(ctx, l, out.Reservation, a.again()); err != nil {
			return err
		}
	}
	return a.print(viewOutcome(out))
}

// openToSettle opens Redis and, only where its answer is waited for, PostgreSQL: before anything is changed.
func (a *app) openToSettle(ctx context.Context, st settling) (*stock.Stock, *ledger.Ledger, error) {
	if !st.ackLedger {
		s, err := a.openStock(ctx)
		return s, nil, err
	}
	l, s, err := a.openStores(ctx)
	return s, l, err
}

// planSettle shows the reservation as it is, or says why its state stands against the action.
func (a *app) planSettle(ctx context.Context, s *stock.Stock, q drop.SettleRequest) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	r, lot, err := reservationNow(ctx, s, q.ID)
	if err != nil {
		return a.aboutLot(ctx, q.ID.Lot, err)
	}
	if !lot.Sells() {
		return fault.New(fault.LotFrozen, "lot %s is frozen: %s", q.ID.Lot, lot.FreezeReason()).WithHint("what it means: dropctl explain %s", lot.FreezeReason())
	}
	if q.Late == "" {
		q.Late = lot.Late
	}
	if code := unfit(r.State, q); code != "" {
		return named(fault.New(code, "the reservation is %s (%d units)", r.State, r.Qty), "ID", q.ID.String())
	}
	v := viewAt(r, lot.Now)
	v.DryRun = true
	return a.print(v)
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

// awaitRecorded waits until the ledger has decided about a confirmed reservation. What Redis did stays done: when the
// time is over, only the ledger's word is missing.
func awaitRecorded(ctx context.Context, l *ledger.Ledger, r drop.Reservation, again string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := l.ReservationsByID(ctx, []drop.ReservationID{r.ID})
		if err != nil && ctx.Err() == nil {
			return undecided(r, again, err)
		}
		recorded, ok := found[r.ID]
		switch {
		case ok && recorded.Rejected:
			return fault.New(fault.LedgerRejected, "the ledger has no unit for reservation %s", r.ID).With("reservation", r.ID.String())
		case ok && recorded.LastSeq >= r.LastSeq:
			return nil
		}
		select {
		case <-ctx.Done():
			return undecided(r, again, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func undecided(r drop.Reservation, again string, why error) error {
	return fault.Wrap(fault.OutcomeUnknown, why, "reservation %s is confirmed in Redis, but the ledger has not decided yet", r.ID).
		With("reservation", r.ID.String()).With("state", string(r.State)).
		WithHint("see that a worker runs: dropctl status; then wait again: %s", again)
}
