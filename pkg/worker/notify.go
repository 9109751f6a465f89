package worker

import (
	"context"
	"maps"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/notify"
	"github.com/dropctl/dropctl/pkg/recovery"
)

// Notices is what notify needs of PostgreSQL.
type Notices interface {
	notify.Queue

	// NoteFrozen queues a notice for each of these lots that hooks do not know to be frozen.
	NoteFrozen(ctx context.Context, frozen map[drop.LotID]fault.Code) error
	// NoticesToSend returns how many notices there are that a worker can do something about.
	NoticesToSend(ctx context.Context) (int64, error)
}

// notify tells receivers what happens, as soon as relay has recorded it.
func (w *Worker) notify(ctx context.Context) error {
	sender := notify.NewSender(w.opt.Version)
	defer sender.Close()
	n := notify.Notifier{Queue: w.ledger, Sender: sender, Worker: w.me.Name, Log: w.log,
		Fine:   func() { w.health.fine("notify") },
		Count:  func(o drop.SendOutcome) { w.metrics.Notices.WithLabelValues(string(o)).Inc() },
		Parked: func(n int64) { w.metrics.Notices.WithLabelValues("parked").Add(float64(n)) },
	}
	return n.Run(ctx, w.noticed)
}

// noteFrozen tells of lots that do not sell until somebody acts, and returns those that this pass found so. It tells of those
// that the pass before found, too: a single look may meet a lot half loaded. What the guardian mends by itself, within
// seconds mostly, is told to nobody.
func (w *Worker) noteFrozen(ctx context.Context, findings []recovery.Finding, before map[drop.LotID]fault.Code) (map[drop.LotID]fault.Code, error) {
	frozen := map[drop.LotID]fault.Code{}
	whole := map[int]fault.Code{} // shards
	for _, f := range findings {
		switch {
		case f.Action != recovery.Frozen && f.Action != recovery.Waiting && f.Action != recovery.Left && !f.Late:
		case len(f.Lots) == 0:
			whole[f.Shard] = f.Reason
		default:
			for _, lot := range f.Lots {
				frozen[lot] = f.Reason
			}
		}
	}
	if len(whole) > 0 {
		lots, err := w.ledger.Lots(ctx)
		if err != nil {
			return nil, err
		}
		for _, l := range lots {
			if reason, shut := whole[l.Lot.Shard(w.opt.Shards)]; shut && l.Seen && frozen[l.Lot] == "" {
				frozen[l.Lot] = reason
			}
		}
	}
	lasting := maps.Clone(frozen)
	maps.DeleteFunc(lasting, func(lot drop.LotID, _ fault.Code) bool { return before[lot] == "" })
	return frozen, w.ledger.NoteFrozen(ctx, lasting)
}
