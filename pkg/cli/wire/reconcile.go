package wire

import (
	"context"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
)

// ReconcileLedger is PostgreSQL as reconcile sees it.
func ReconcileLedger(l *ledger.Ledger) reconcile.Ledger { return reconcileLedger{l} }

type reconcileLedger struct{ *ledger.Ledger }

func (l reconcileLedger) Lots(ctx context.Context, ids []drop.LotID) ([]drop.LedgerLot, error) {
	return ledgerLots(ctx, l.Ledger, ids)
}

// LiveReservations leaves out holds that the ledger rejected: they count nowhere.
func (l reconcileLedger) LiveReservations(ctx context.Context, lot drop.LotID, fn func([]drop.Reservation) error) error {
	f := drop.ReservationFilter{Lot: lot, States: []drop.State{drop.Held, drop.Confirmed}}
	return l.EachReservation(ctx, f, func(page []drop.Recorded) error {
		out := make([]drop.Reservation, 0, len(page))
		for _, r := range page {
			if !r.Rejected {
				out = append(out, r.Reservation)
			}
		}
		return fn(out)
	})
}

func (l reconcileLedger) ReservationsByID(ctx context.Context, ids []drop.ReservationID) (map[drop.ReservationID]drop.Reservation, error) {
	found, err := l.Ledger.ReservationsByID(ctx, ids)
	out := make(map[drop.ReservationID]drop.Reservation, len(found))
	for id, r := range found {
		out[id] = r.Reservation
	}
	return out, err
}

func (l reconcileLedger) Sales(ctx context.Context, lot drop.LotID) (reconcile.Sales, error) {
	sales, err := l.SalesOf(ctx, []drop.LotID{lot})
	s := sales[lot]
	return reconcile.Sales{Sold: s.Sold, Net: s.Net, Pending: s.Open}, err
}

func (l reconcileLedger) WorkersAlive(ctx context.Context) (int, error) {
	workers, err := l.Workers(ctx)
	alive := 0
	for _, w := range workers {
		if w.Alive {
			alive++
		}
	}
	return alive, err
}

func (l reconcileLedger) StartRun(ctx context.Context, start reconcile.Start) (int64, func(reconcile.Report, error) error, error) {
	run, err := l.Ledger.StartRun(ctx, start.Actor, start)
	if err != nil {
		return 0, nil, err
	}
	return run.ID, func(report reconcile.Report, err error) error {
		if err != nil {
			return run.Abandon(ctx, fault.As(err).Error())
		}
		o := ledger.Outcome{Verdict: report.Verdict, Report: report, Whole: len(start.Lots) == 0 && start.Group == ""}
		for _, row := range report.Rows {
			o.Lots = append(o.Lots, ledger.LotVerdict{Lot: row.Lot, Verdict: row.Verdict, Finding: row.Finding})
		}
		return run.Finish(ctx, o)
	}, nil
}
