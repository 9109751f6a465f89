// Package wire joins the use cases with the stores they run on: the small translations between what a use
// case asks for and what Redis' and PostgreSQL's packages offer.
package wire

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/recovery"
	"github.com/dropctl/dropctl/pkg/worker"
)

// WorkerLedger is PostgreSQL as the worker and its guardian see it.
func WorkerLedger(l *ledger.Ledger) worker.Ledger { return workerLedger{l} }

type workerLedger struct{ *ledger.Ledger }

// Lots returns every lot.
func (l workerLedger) Lots(ctx context.Context) ([]recovery.LedgerLot, error) {
	lots, err := l.Ledger.Lots(ctx, nil)
	out := make([]recovery.LedgerLot, len(lots))
	for i, lot := range lots {
		out[i] = recovery.LedgerLot{Definition: lot.Definition, Held: lot.Held, Sold: lot.Sold, Watermark: lot.Watermark,
			OpenEpoch: lot.OpenEpoch, Stopped: lot.Stopped, Seen: lot.Seen}
	}
	return out, err
}

func (l workerLedger) Apply(ctx context.Context, events []drop.Event, poison []drop.Poison) (worker.Applied, error) {
	did, err := l.Ledger.Apply(ctx, events, poison)
	out := worker.Applied{Folded: did.Folded, Duplicates: did.Duplicates, Dead: did.Dead, Stopped: map[drop.LotID]fault.Code{}}
	for _, lot := range did.Stopped {
		out.Stopped[lot.Lot] = lot.Code
	}
	return out, err
}

func (l workerLedger) Gaps(ctx context.Context, open time.Duration) ([]worker.Gap, error) {
	gaps, err := l.Ledger.Gaps(ctx, open)
	out := make([]worker.Gap, len(gaps))
	for i, gap := range gaps {
		out[i] = worker.Gap(gap)
	}
	return out, err
}

func (l workerLedger) ClaimPending(ctx context.Context, name string, lease time.Duration, limit int) ([]worker.Pending, error) {
	claimed, err := l.Ledger.ClaimPending(ctx, name, lease, limit)
	out := make([]worker.Pending, len(claimed))
	for i, p := range claimed {
		out[i] = worker.Pending(p)
	}
	return out, err
}

func (l workerLedger) FinishPending(ctx context.Context, name string, claimed []worker.Pending) (int, error) {
	list := make([]ledger.Pending, len(claimed))
	for i, p := range claimed {
		list[i] = ledger.Pending(p)
	}
	return l.Ledger.FinishPending(ctx, name, list)
}

func (l workerLedger) Unbooked(ctx context.Context) (int64, error) {
	st, err := l.Status(ctx)
	return st.Pending, err
}

func (l workerLedger) Heartbeat(ctx context.Context, p worker.Presence) error {
	w := ledger.Worker{Name: p.Name, Host: p.Host, PID: p.PID, Version: p.Version, Started: p.Started}
	for _, part := range p.Parts {
		w.Parts = append(w.Parts, string(part))
	}
	return l.Ledger.Heartbeat(ctx, w)
}
