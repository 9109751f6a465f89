package recovery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// replace fills a shard that Redis no longer has from the ledger. It does so only where Redis was seen to have our data:
// an empty server may as well be the wrong one.
func (p *pass) replace(ctx context.Context, v view) {
	lots := p.sides.of(v.Shard)
	if len(lots) == 0 {
		return
	}
	if !p.ours {
		p.say(v, Finding{Action: Frozen, Reason: fault.FreezeEmptied, Lots: lots})
		return
	}
	if !p.cameThrough(ctx, v) {
		p.forget(v.Shard)
		p.say(v, Finding{Action: Draining, Reason: fault.FreezeEmptied, Lots: lots})
		return
	}
	if !p.sameAgain(v.Shard, v.Run+p.sides.evidence(lots)) {
		p.say(v, Finding{Action: Settling, Reason: fault.FreezeEmptied, Lots: lots})
		return
	}
	verdicts := p.sides.verdicts(v.Shard)
	_ = p.hold(ctx, v, verdicts)       // nothing is there to be frozen
	_, _ = p.rebuild(ctx, v, verdicts) // its findings tell
}

// tend deals with the lots of a shard that sells which must not sell, or could sell again.
func (p *pass) tend(ctx context.Context, v view) error {
	if p.sides.elsewhere(v.ShardState) {
		p.forget(v.Shard)
		return nil
	}
	before := len(p.findings)
	verdicts := map[drop.LotID]verdict{}
	var lost []drop.LotID
	for _, id := range p.sides.of(v.Shard) {
		verdict, behind := p.sides.judgeOpen(id)
		if verdicts[id] = verdict; behind {
			lost = append(lost, id)
		}
	}
	if len(lost) > 0 {
		p.forget(v.Shard)
		p.say(v, Finding{Action: Settling, Reason: fault.FreezeBehind, Lots: lost})
		return ignoreConflict(p.Stock.Freeze(ctx, v.ShardState, fault.FreezeBehind))
	}
	err := errors.Join(p.hold(ctx, v, verdicts), p.heal(ctx, v, verdicts))

	m := p.memories[v.Shard]
	m.found = slices.DeleteFunc(slices.Clone(p.findings[before:]), func(f Finding) bool { return f.Action != Frozen })
	m.lookAt = time.Now().Add(lookEvery)
	switch {
	case slices.ContainsFunc(p.findings[before:], Finding.Passing) || err != nil:
		m.lookAt = time.Time{}
	case len(m.found) > 0:
		m.lookAt = time.Now().Add(lookSooner)
	}
	p.memories[v.Shard] = m
	return ignoreConflict(err)
}

// heal thaws, rebuilds and freezes lots of a shard that sells, once two passes have seen the same.
func (p *pass) heal(ctx context.Context, v view, verdicts map[drop.LotID]verdict) error {
	still, unknown := slices.Concat(with(verdicts, cureThaw), with(verdicts, cureRebuild)), with(verdicts, cureDoubt)
	sick := slices.Concat(still, unknown)
	if len(sick) == 0 {
		p.forget(v.Shard)
		return nil
	}
	if !p.sameAgain(v.Shard, "open "+v.Run+p.sides.evidence(still)+drop.JoinLots(unknown)) { // unknown ones may sell on
		p.say(v, Finding{Action: Settling, Reason: verdicts[sick[0]].reason, Lots: sick})
		return nil
	}
	for _, id := range unknown {
		if err := p.Stock.FreezeLot(ctx, p.sides.redis[id], verdicts[id].reason); err != nil {
			return err
		}
		p.say(v, Finding{Action: Frozen, Reason: verdicts[id].reason, Lots: []drop.LotID{id}})
	}
	for reason, lots := range byReason(verdicts, cureThaw) {
		for _, id := range lots {
			if err := p.thaw(ctx, id, reason); err != nil {
				return err
			}
		}
		p.say(v, Finding{Action: Thawed, Reason: reason, Lots: lots})
	}
	_, err := p.rebuild(ctx, v, verdicts)
	return err
}

// thaw lets a lot sell again, under a new epoch: since it was frozen, its shard may have come to another server, and somebody
// may still have events in hand of the one before. What is being put away only stops being frozen.
func (p *pass) thaw(ctx context.Context, id drop.LotID, reason fault.Code) (err error) {
	seen := p.sides.redis[id]
	if !p.sides.puttingAway(id) {
		if seen, err = p.renewLot(ctx, id); err != nil {
			return err
		}
	}
	return p.Stock.ThawLot(ctx, seen, reason)
}

func ignoreConflict(err error) error {
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	return err
}
