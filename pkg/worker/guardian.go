package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/recovery"
)

const (
	guardEvery = time.Second
	guardSoon  = 200 * time.Millisecond // while a shard stays shut only until the ledger has its last events
)

// guard lets the guardian look at every shard once a second, and says what it finds.
func (w *Worker) guard(ctx context.Context) error {
	g := &recovery.Guardian{Stock: w.stock, Ledger: w.ledger, Rebuild: w.opt.Rebuild, Installation: w.opt.Installation, Shards: w.opt.Shards}
	if w.opt.Queue != nil {
		g.Barrier = w.opt.Queue.Barrier
	}
	said := spoken{}
	var frozen map[drop.LotID]fault.Code
	away := false
	for {
		findings, err := g.Pass(ctx)
		if away && err == nil {
			w.tryAgain()
		}
		away = err != nil
		for _, f := range said.news(findings, err == nil, time.Now()) {
			w.sayFinding(f)
		}
		w.pass(findings, err == nil)
		switch {
		case fatal(err):
			return err
		case err == nil:
			if frozen, err = w.noteFrozen(ctx, findings, frozen); err != nil {
				return err
			}
			w.health.fine("guardian")
		case ctx.Err() == nil: // it goes on with what it knows of the shards that do answer
			w.health.failed("guardian", err)
		}
		pause := guardEvery
		if slices.ContainsFunc(findings, func(f recovery.Finding) bool { return f.Action == recovery.Draining }) {
			pause = guardSoon
		}
		if !sleep(ctx, pause, nil) {
			return nil
		}
	}
}

// pass keeps what the guardian found, for until-idle and silence.
func (w *Worker) pass(findings []recovery.Finding, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.findings, w.passed = findings, complete
}

// silence is how long entries may stay with a worker that says nothing before this one records them, too. A shard that is
// shut until the ledger has its last entries sells nothing meanwhile, and no later event shows that one is missing: there
// they are taken soon, since it does no harm if their reader lives after all.
func (w *Worker) silence(shard int) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	waited := func(f recovery.Finding) bool { return f.Shard == shard && f.Action == recovery.Draining }
	if slices.ContainsFunc(w.findings, waited) {
		return min(gapPatience, w.opt.Takeover)
	}
	return w.opt.Takeover
}

// spoken is when a finding was logged last.
type spoken map[string]time.Time

// news returns the findings to log: those that the pass before did not have, and once a minute those that somebody has to act
// on, since nobody else may tell of them, as in a worker with no other part. A pass that could not look everywhere takes
// nothing back.
func (s spoken) news(findings []recovery.Finding, complete bool, now time.Time) (news []recovery.Finding) {
	found := map[string]bool{}
	for _, f := range findings {
		key := fmt.Sprint(f.Shard, f.Action, f.Reason, f.Lots, f.Late, f.Err)
		found[key] = true
		if last, known := s[key]; !known || (f.Action == recovery.Frozen || f.Late) && now.Sub(last) >= sayAgain {
			s[key] = now
			news = append(news, f)
		}
	}
	if complete {
		maps.DeleteFunc(s, func(key string, _ time.Time) bool { return !found[key] })
	}
	return news
}

func (w *Worker) sayFinding(f recovery.Finding) {
	log := w.log.With("shard", f.Shard, "run", f.Run, "open_run", f.OpenRun)
	add := func(key, value string) {
		if value != "" {
			log = log.With(key, value)
		}
	}
	add("reason", string(f.Reason))
	add("lots", drop.SomeLots(f.Lots))
	add("stand", f.Evidence)
	if f.Err != nil {
		add("error", f.Err.Error())
	}
	switch f.Action {
	case recovery.Draining:
		if f.Late {
			log.Error("a shard is shut and the ledger does not get its events", "entries", f.Pending, "next", "dropctl worker")
			return
		}
		log.Warn("a shard is shut; waiting until the ledger has every event, also those in a queue", "entries", f.Pending)
	case recovery.Settling:
		log.Info("both sides are compared; looking once more", "equal", f.Equal)
	case recovery.Waiting:
		log.Warn("the clock of a shard's server is not right; waiting until it is", "next", f.Next())
	case recovery.Rebuilding:
		log.Warn("lots are still to be rebuilt from the ledger")
	case recovery.Restored:
		log.Warn("lots were rebuilt from the ledger")
	case recovery.Thawed:
		log.Info("lots equal the ledger again and sell")
	case recovery.Reopened:
		w.done.reopened.Add(1)
		w.metrics.Reopened.Inc()
		log.Info("a shard sells again under new epochs", "equal", f.Equal)
	case recovery.Left:
		log.Warn("a shard was frozen by an operator", "next", f.Next())
	default:
		log.Error("frozen: somebody has to act", "next", f.Next())
	}
}
