// Package wire joins the use cases with the stores they run on: the small translations between what a use
// case asks for and what Redis' and PostgreSQL's packages offer.
package wire

import (
	"context"
	"slices"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/recovery"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/worker"
)

// WorkerLedger is PostgreSQL as the worker and its guardian see it.
func WorkerLedger(l *ledger.Ledger) worker.Ledger { return workerLedger{l} }

type workerLedger struct{ *ledger.Ledger }

// Lots returns every lot.
func (l workerLedger) Lots(ctx context.Context) ([]drop.LedgerLot, error) {
	return ledgerLots(ctx, l.Ledger, nil)
}

// NextEpoch issues the next epoch of a lot that still is as it was seen.
func (l workerLedger) NextEpoch(ctx context.Context, seen drop.LedgerLot, actor, reason string) (int64, error) {
	issued, err := l.IssueEpoch(ctx, seen.Lot, ledger.IssueRequest{Expect: &seen, Actor: actor, Reason: reason})
	return issued.Epoch, err
}

// RebuildLot is how the guardian rebuilds lots.
func RebuildLot(s *stock.Stock, l *ledger.Ledger) recovery.Rebuild {
	r := Rebuilder(s, l)
	return func(ctx context.Context, lot drop.LotID, actor, reason string) error {
		_, err := r.Rebuild(ctx, lot, actor, reason)
		return err
	}
}

func ledgerLots(ctx context.Context, l *ledger.Ledger, ids []drop.LotID) ([]drop.LedgerLot, error) {
	lots, err := l.Lots(ctx, ids)
	out := make([]drop.LedgerLot, len(lots))
	for i, lot := range lots {
		out[i] = lot.LedgerLot
	}
	return out, err
}

func (l workerLedger) Unpaid(ctx context.Context) (int64, error) {
	p, err := l.Payments(ctx)
	return p.Asking, err
}

func (l workerLedger) Heartbeat(ctx context.Context, p worker.Presence) ([]string, error) {
	w := ledger.Worker{Name: p.Name, Host: p.Host, PID: p.PID, Rate: p.Rate, Version: p.Version, Started: p.Started}
	for _, part := range p.Parts {
		w.Parts = append(w.Parts, string(part))
	}
	return l.Ledger.Heartbeat(ctx, w)
}

// Relaying returns the living workers that relay.
func (l workerLedger) Relaying(ctx context.Context) (names []string, err error) {
	workers, err := l.Workers(ctx)
	for _, w := range workers {
		if w.Alive && slices.Contains(w.Parts, string(worker.Relay)) {
			names = append(names, w.Name)
		}
	}
	return names, err
}
