package recovery

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// rebuild puts the lots that need it into Redis anew. It reports whether none is left that may still come right by itself:
// one whose rebuild failed for good is frozen.
func (p *pass) rebuild(ctx context.Context, v view, verdicts map[drop.LotID]verdict) (done bool, err error) {
	done = true
	for reason, lots := range byReason(verdicts, cureRebuild) {
		outcomes := p.rebuildLots(ctx, lots, reason)
		var rebuilt, left []drop.LotID
		for i, id := range lots {
			switch {
			case outcomes[i] == nil:
				rebuilt = append(rebuilt, id)
			case passing(outcomes[i]):
				left = append(left, id)
				err = outcomes[i]
			default:
				p.say(v, Finding{Action: Frozen, Reason: reason, Lots: []drop.LotID{id}, Err: outcomes[i]})
				if r, present := p.sides.redis[id]; present && r.LotFrozen == "" {
					if err := p.Stock.FreezeLot(ctx, r, reason); err != nil {
						left = append(left, id)
					}
				}
			}
		}
		if len(rebuilt) > 0 {
			p.say(v, Finding{Action: Restored, Reason: reason, Lots: rebuilt})
		}
		if len(left) > 0 {
			done = false
			p.say(v, Finding{Action: Rebuilding, Reason: reason, Lots: left, Err: err})
		}
	}
	if fault.Is(err, fault.Busy) || fault.Is(err, fault.Conflict) || fault.Is(err, fault.Overloaded) {
		err = nil // somebody else works on it, or the next pass will
	}
	return done, err
}

// errLater says that a rebuild was not begun in this pass.
var errLater = fault.New(fault.Overloaded, "other lots come first")

// passing reports whether a rebuild that failed may come right when it is tried again at once.
func passing(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Busy, fault.Conflict, fault.Overloaded, fault.Unavailable, fault.OutcomeUnknown, fault.LotFrozen, fault.LotNotLoaded, fault.Interrupted:
		return true
	}
	return false
}

// rebuildLots returns how the rebuild of each lot ended, now or, if that was not long ago, the last time.
func (p *pass) rebuildLots(ctx context.Context, lots []drop.LotID, reason fault.Code) []error {
	outcomes := make([]error, len(lots))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, id := range lots {
		if last := p.failed[id]; time.Now().Before(last.until) {
			outcomes[i] = last.err
			continue
		}
		g.Go(func() error {
			outcomes[i] = errLater
			if time.Now().Before(p.rebuildsUntil) {
				outcomes[i] = p.Rebuild(ctx, id, actor, string(reason))
			}
			return nil
		})
	}
	_ = g.Wait()
	for i, id := range lots {
		switch err := outcomes[i]; {
		case err == nil:
			delete(p.failed, id)
		case time.Now().Before(p.failed[id].until):
		case !passing(err):
			p.failed[id] = failure{err, time.Now().Add(retryAfter)}
		case fault.Is(err, fault.Busy):
			p.failed[id] = failure{err, time.Now().Add(retryBusy)}
		}
	}
	return outcomes
}
