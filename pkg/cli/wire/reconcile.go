package wire

import (
	"context"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/stock"
)

// ReconcileStock is Redis as reconcile sees it.
func ReconcileStock(s *stock.Stock) reconcile.Stock { return reconcileStock{s} }

type reconcileStock struct{ *stock.Stock }

func (s reconcileStock) Users(ctx context.Context, lot drop.LotID, fn func([]reconcile.UserCount) error) error {
	return s.Stock.Users(ctx, lot, func(page []stock.UserCount) error {
		out := make([]reconcile.UserCount, len(page))
		for i, u := range page {
			out[i] = reconcile.UserCount(u)
		}
		return fn(out)
	})
}

func (s reconcileStock) DueEntries(ctx context.Context, lot drop.LotID, fn func([]reconcile.DueEntry) error) error {
	return s.Stock.DueEntries(ctx, lot, func(page []stock.DueEntry) error {
		out := make([]reconcile.DueEntry, len(page))
		for i, d := range page {
			out[i] = reconcile.DueEntry(d)
		}
		return fn(out)
	})
}

// ReconcileLedger is PostgreSQL as reconcile sees it.
func ReconcileLedger(l *ledger.Ledger) reconcile.Ledger { return reconcileLedger{l} }

type reconcileLedger struct{ *ledger.Ledger }

func (l reconcileLedger) Lots(ctx context.Context, ids []drop.LotID) ([]reconcile.LedgerLot, error) {
	lots, err := l.Ledger.Lots(ctx, ids)
	out := make([]reconcile.LedgerLot, len(lots))
	for i, lot := range lots {
		out[i] = reconcile.LedgerLot{Definition: lot.Definition, Watermark: lot.Watermark, Held: lot.Held, Sold: lot.Sold,
			OpenEpoch: lot.OpenEpoch, Stopped: string(lot.Stopped), Seen: lot.Seen}
	}
	return out, err
}

// LiveReservations leaves out holds that the ledger rejected: they count nowhere.
func (l reconcileLedger) LiveReservations(ctx context.Context, lot drop.LotID, fn func([]drop.Reservation) error) error {
	f := ledger.ReservationFilter{Lot: lot, States: []drop.State{drop.Held, drop.Confirmed}}
	return l.EachReservation(ctx, f, func(page []ledger.Reservation) error {
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

func (l reconcileLedger) StartRun(ctx context.Context, start reconcile.Start) (func(reconcile.Report, error) error, error) {
	run, err := l.Ledger.StartRun(ctx, start.Actor, start)
	if err != nil {
		return nil, err
	}
	return func(report reconcile.Report, err error) error {
		if err != nil {
			return run.Finish(ctx, fault.CodeOf(err), map[string]string{"error": fault.As(err).Error()})
		}
		return run.Finish(ctx, report.Verdict, report)
	}, nil
}
