package wire

import (
	"context"
	"log/slog"
	"time"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/recovery"
	"github.com/dropctl/dropctl/pkg/stock"
)

// Rebuilder joins both stores for the rebuild of lots.
func Rebuilder(s *stock.Stock, l *ledger.Ledger) *recovery.Rebuilder {
	return &recovery.Rebuilder{Stock: rebuildStock{s}, Ledger: rebuildLedger{l}}
}

// Reopener joins both stores for opening shards that were shut.
func Reopener(s *stock.Stock, l *ledger.Ledger) *recovery.Guardian {
	return &recovery.Guardian{Stock: s, Ledger: workerLedger{l}, Installation: l.Installation().ID, Shards: s.Shards()}
}

// OpenBarrier opens the queue that the settings name, to be asked what of it has come through. The barrier is nil where there
// is no queue, or one that cannot tell. end is to be called in any case but an error.
func OpenBarrier(ctx context.Context, cfg *config.Config, getenv func(string) string, l *ledger.Ledger, log *slog.Logger) (b recovery.Barrier, end func(), err error) {
	if cfg.Transport != config.Kafka {
		return nil, func() {}, nil
	}
	q, err := openKafka(ctx, cfg, getenv, l.Installation(), log)
	if err != nil {
		return nil, nil, err
	}
	return q.Queue.Barrier, q.Close, nil
}

type rebuildStock struct{ *stock.Stock }

func (s rebuildStock) Rebuild(ctx context.Context, r recovery.LoadRequest) (run string, err error) {
	q := stock.RebuildRequest{LoadRequest: stock.LoadRequest{Definition: r.Lot.Definition, Epoch: r.Epoch, Closing: r.Closing, Held: r.Lot.Held, Sold: r.Lot.Sold,
		Mark: r.Mark, Actor: r.Actor, Reason: r.Reason}, Records: r.Records, Users: r.Users}
	if r.Seen != nil {
		q.Planned = stock.PlanOf(*r.Seen)
	}
	return s.Stock.Rebuild(ctx, q)
}

type rebuildLedger struct{ *ledger.Ledger }

func (l rebuildLedger) LotsOf(ctx context.Context, lots []drop.LotID) ([]drop.LedgerLot, error) {
	return ledgerLots(ctx, l.Ledger, lots)
}

// applyPage is how many events are applied in one transaction.
const applyPage = 5000

func (l rebuildLedger) Record(ctx context.Context, events []drop.Event) error {
	for len(events) > 0 {
		n := min(len(events), applyPage)
		if _, err := l.Apply(ctx, events[:n], nil); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

func (l rebuildLedger) IssueEpoch(ctx context.Context, lot drop.LotID, actor, reason string) (recovery.Issued, error) {
	issued, err := l.Ledger.IssueEpoch(ctx, lot, ledger.IssueRequest{Actor: actor, Reason: reason})
	return recovery.Issued{Epoch: issued.Epoch, Closing: issued.Closing, Lot: issued.Lot.LedgerLot, EventAt: issued.Lot.EventAt}, err
}

func (l rebuildLedger) EachRecord(ctx context.Context, lot drop.LotID, epoch int64, endedSince time.Time, fn func([]drop.Record) error) error {
	return l.Ledger.EachRecord(ctx, ledger.RebuildSource{Lot: lot, Epoch: epoch, EndedSince: endedSince}, fn)
}

func (l rebuildLedger) EachUser(ctx context.Context, lot drop.LotID, epoch int64, endedSince time.Time, fn func([]drop.UserCount) error) error {
	return l.Ledger.EachUser(ctx, ledger.RebuildSource{Lot: lot, Epoch: epoch, EndedSince: endedSince}, fn)
}
