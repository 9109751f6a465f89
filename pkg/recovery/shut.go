package recovery

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// freezeDoors freezes the shards whose door alone is shut, and those whose clock jumped.
func (p *pass) freezeDoors(ctx context.Context) error {
	var errs []error
	p.shut = slices.DeleteFunc(p.shut, func(v view) bool {
		if v.freeze == "" {
			return false
		}
		err := p.Stock.Freeze(ctx, v.ShardState, v.freeze)
		if err != nil {
			p.forget(v.Shard)
			if fault.Is(err, fault.Conflict) { // somebody else was faster
				p.say(v, Finding{Action: Settling})
			} else {
				errs = append(errs, err)
			}
		}
		return err != nil
	})
	for i, v := range p.shut {
		if v.freeze != "" {
			p.shut[i].Frozen = string(v.freeze)
		}
		p.shut[i].clockOK = v.clockOK && v.freeze != fault.FreezeClock
	}
	return errors.Join(errs...)
}

// drain leaves only those shut shards whose every event the ledger has got.
func (p *pass) drain(ctx context.Context) error {
	var errs []error
	p.shut = slices.DeleteFunc(p.shut, func(v view) bool {
		out, err := p.Stock.OutboxState(ctx, v.Shard)
		switch {
		case err != nil:
			errs = append(errs, err)
		case out.Pending > 0:
			m := p.memories[v.Shard]
			if m.draining.IsZero() {
				m.draining = time.Now()
				p.memories[v.Shard] = m
			}
			p.say(v, Finding{Action: Draining, Reason: fault.Code(v.Frozen), Pending: out.Pending, Late: time.Since(m.draining) > drainLimit})
		case !p.cameThrough(ctx, v):
			p.say(v, Finding{Action: Draining, Reason: fault.Code(v.Frozen)})
		default:
			m := p.memories[v.Shard]
			m.draining = time.Time{}
			p.memories[v.Shard] = m
			return false
		}
		p.forget(v.Shard)
		return true
	})
	return errors.Join(errs...)
}

// barrier is a question to the queue, asked once a freeze: has it brought the ledger everything it was given before?
type barrier struct {
	run    string // of the server that the shard was on when it was asked
	mark   string
	since  time.Time
	passed bool
}

// cameThrough reports whether nothing of a shard is left in the queue. A lost server may have sent what its successor never
// saw, and a rebuild must not miss that. The wait is bounded: what comes after it is of a closed epoch, a ghost.
func (p *pass) cameThrough(ctx context.Context, v view) bool {
	if p.Barrier == nil {
		return true
	}
	m := p.memories[v.Shard]
	b := &m.barrier
	if b.mark == "" || b.run != v.Run {
		*b = barrier{run: v.Run, mark: rand.Text(), since: time.Now()}
	}
	if !b.passed {
		ctx, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		passed, _ := p.Barrier(ctx, v.Shard, b.mark) // a queue that does not answer has not brought anything
		b.passed = passed || time.Since(b.since) > drainLimit
	}
	p.memories[v.Shard] = m
	return b.passed
}

// settle deals with a shard that is frozen and drained. It acts only on what two passes have seen: a guardian that reopens the
// shard just now makes every lot look ahead of the ledger. Lots that need somebody are frozen on their own, so that the
// others can sell.
func (p *pass) settle(ctx context.Context, v view) error {
	if p.sides.elsewhere(v.ShardState) {
		p.forget(v.Shard)
		p.say(v, Finding{Action: Settling})
		return nil
	}
	if v.Frozen == string(fault.FreezeClock) && !v.clockOK {
		p.forget(v.Shard)
		p.say(v, Finding{Action: Waiting, Reason: fault.FreezeClock})
		return nil
	}
	verdicts := p.sides.verdicts(v.Shard)
	lots := p.sides.of(v.Shard)
	equal := slices.Concat(with(verdicts, cureNone), with(verdicts, cureThaw))
	if look := v.Run + p.sides.evidence(lots); !p.sameAgain(v.Shard, look) {
		p.say(v, Finding{Action: Settling, Reason: fault.Code(v.Frozen), Equal: len(equal)})
		return nil
	}
	if err := p.hold(ctx, v, verdicts); err != nil {
		return p.unsettled(v, err)
	}
	if done, err := p.rebuild(ctx, v, verdicts); !done {
		return err
	}
	for _, id := range with(verdicts, cureThaw) {
		if err := p.Stock.ThawLot(ctx, p.sides.redis[id], verdicts[id].reason); err != nil {
			return p.unsettled(v, err)
		}
	}
	if err := p.renew(ctx, equal); err != nil {
		return p.unsettled(v, err)
	}
	if err := p.Stock.Reopen(ctx, v.ShardState); err != nil {
		return p.unsettled(v, err)
	}
	m := p.memories[v.Shard]
	m.frozenClock = false // its clock was judged here
	p.memories[v.Shard] = m
	p.say(v, Finding{Action: Reopened, Reason: fault.Code(v.Frozen), Equal: len(equal), Evidence: p.sides.evidence(lots[:min(len(lots), 5)])})
	return nil
}

// unsettled keeps an error, unless it only says that somebody else has acted meanwhile: the next pass sees what came of it.
func (p *pass) unsettled(v view, err error) error {
	p.forget(v.Shard)
	p.say(v, Finding{Action: Settling, Reason: fault.Code(v.Frozen)})
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	return err
}

// hold freezes the lots that nobody but an operator may let sell again.
func (p *pass) hold(ctx context.Context, v view, verdicts map[drop.LotID]verdict) error {
	for reason, lots := range byReason(verdicts, cureByHand) {
		for _, id := range lots {
			r, present := p.sides.redis[id]
			if !present || r.LotFrozen != "" {
				continue
			}
			if err := p.Stock.FreezeLot(ctx, r, reason); err != nil {
				return err
			}
		}
		p.say(v, Finding{Action: Frozen, Reason: reason, Lots: lots})
	}
	return nil
}

// renew begins a new epoch of lots that equal the ledger. What a worker still has in hand of a server that was lost, and might
// bring to the ledger after the sale has gone on, is of the old epoch then: a ghost, and no fork. The first lot goes alone:
// of several guardians only one gets past it. A lot that is being put away sells no more and needs none.
func (p *pass) renew(ctx context.Context, lots []drop.LotID) error {
	lots = slices.DeleteFunc(slices.Clone(lots), p.sides.puttingAway)
	if len(lots) == 0 {
		return nil
	}
	if _, err := p.renewLot(ctx, lots[0]); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, id := range lots[1:] {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			_, err := p.renewLot(ctx, id)
			return err
		})
	}
	return g.Wait()
}

// renewLot begins a new epoch of one lot, and returns the lot as it is then, if it does not sell.
func (p *pass) renewLot(ctx context.Context, id drop.LotID) (drop.LotState, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), epochLimit)
	defer cancel()
	const reason = "reopened by the guardian"
	seen := p.sides.redis[id]
	epoch, err := p.Ledger.NextEpoch(ctx, p.sides.ledger[id], actor, reason)
	if err == nil {
		err = p.Stock.Renew(ctx, seen, epoch, actor, reason)
	}
	seen.Watermark = drop.Watermark{Epoch: epoch, Seq: seen.Seq + 1} // of the event that tells of it
	return seen, err
}
