package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/recovery"
)

const guardEvery = time.Second

// guard lets the guardian look at every shard once a second, and says what it finds when that changes.
func (w *Worker) guard(ctx context.Context) error {
	g := &recovery.Guardian{Stock: w.stock, Ledger: w.ledger, Installation: w.opt.Installation, Shards: w.opt.Shards}
	said := map[int]string{}
	for {
		findings, err := g.Pass(ctx)
		w.say(said, findings)
		w.pass(findings, err == nil)
		switch {
		case fatal(err):
			return err
		case err == nil:
			w.health.fine("guardian")
		case ctx.Err() == nil: // it goes on with what it knows of the shards that do answer
			w.health.failed("guardian", err)
		}
		if !sleep(ctx, guardEvery, nil) {
			return nil
		}
	}
}

// pass keeps what the guardian found, for until-idle.
func (w *Worker) pass(findings []recovery.Finding, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.findings, w.passed = findings, complete
}

func (w *Worker) say(said map[int]string, findings []recovery.Finding) {
	now := map[int]string{}
	for _, f := range findings {
		now[f.Shard] = fmt.Sprint(f.Action, f.Reason, f.Lots)
		if said[f.Shard] == now[f.Shard] {
			continue
		}
		switch f.Action {
		case recovery.Draining:
			w.log.Warn("a shard's door is closed; waiting until the ledger has every event", "shard", f.Shard, "entries", f.Pending)
		case recovery.Settling:
			w.log.Info("a closed shard equals the ledger; looking once more", "shard", f.Shard, "lots", f.Equal)
		case recovery.Waiting:
			w.log.Warn("the clock of a shard's server is behind its last change; waiting until it has caught up", "shard", f.Shard, "lots", drop.JoinLots(f.Lots), "next", f.Next())
		case recovery.Reopened:
			w.done.reopened.Add(1)
			w.log.Info("a shard equals the ledger and sells again", "shard", f.Shard, "lots", f.Equal)
		default:
			w.log.Error("a shard is frozen", "shard", f.Shard, "reason", f.Reason, "lots", drop.JoinLots(f.Lots), "next", f.Next())
		}
	}
	clear(said)
	for shard, what := range now {
		said[shard] = what
	}
}
