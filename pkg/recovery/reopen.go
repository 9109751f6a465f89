package recovery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Reopen opens the shut ones of these shards whose lots are all equal to the ledger, twice in a row with a pause between:
// a batch that some worker read from the lost server may still be on its way. It returns a finding for each that was
// shut. What an operator has frozen, and what waits for a clock, stays shut. Other than a pass it does not wait
// until every outbox entry is acknowledged, and changes no lot that differs: it is for where no worker runs.
// A lot that was loaded just now, on the server that is still there, keeps the epoch of that load: nobody has sold under it.
func (g *Guardian) Reopen(ctx context.Context, shards []int, pause time.Duration, loaded map[drop.LotID]Rebuilt) ([]Finding, error) {
	equal := map[int]string{}
	for look := 1; ; look++ {
		p := pass{Guardian: g}
		errs := []error{p.shutDoors(ctx, shards), p.compare(ctx)}
		for _, v := range p.shut {
			before := equal[v.Shard]
			var f Finding
			if f, equal[v.Shard] = p.judgeShut(v); f.Action == Settling && before != "" && equal[v.Shard] == before {
				opened, err := p.reopen(ctx, v, loaded)
				errs = append(errs, err)
				if opened {
					f.Action = Reopened
				}
			}
			p.findings = append(p.findings, f)
		}
		if len(p.findings) == 0 || look == 2 {
			return p.findings, errors.Join(errs...)
		}
		select {
		case <-ctx.Done():
			return p.findings, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// shutDoors finds the shut ones of the shards. Those that are to stay so are findings, the others are to be compared.
func (p *pass) shutDoors(ctx context.Context, shards []int) error {
	var errs []error
	for _, shard := range shards {
		clock := reading{from: time.Now()}
		st, err := p.Stock.ShardState(ctx, shard)
		clock.to, clock.server = time.Now(), st.Now
		switch {
		case err != nil:
			errs = append(errs, err)
		case !st.Exists || st.Frozen == "" && !st.Closed():
		case st.Frozen == string(fault.FreezeOperator):
			p.findings = append(p.findings, Finding{Shard: shard, Action: Left, Reason: fault.FreezeOperator})
		case st.Frozen == string(fault.FreezeClock) && !clock.right(reading{}):
			p.findings = append(p.findings, Finding{Shard: shard, Action: Waiting, Reason: fault.FreezeClock})
		default:
			p.shut = append(p.shut, view{ShardState: st})
		}
	}
	return errors.Join(errs...)
}

// judgeShut says whether the lots of a shard are equal to the ledger, and what was seen of them if they are.
func (p *pass) judgeShut(v view) (f Finding, equal string) {
	lots := p.sides.of(v.Shard)
	if reason, unequal := p.sides.gravest(v.Shard); reason != "" {
		return Finding{Shard: v.Shard, Action: Frozen, Reason: reason, Lots: unequal, Evidence: p.sides.evidence(unequal)}, ""
	}
	f = Finding{Shard: v.Shard, Action: Settling, Equal: len(lots)}
	if p.sides.elsewhere(v.ShardState) {
		return f, ""
	}
	return f, v.Run + p.sides.evidence(lots)
}

// reopen opens a shard whose lots are equal.
func (p *pass) reopen(ctx context.Context, v view, loaded map[drop.LotID]Rebuilt) (opened bool, err error) {
	lots := slices.DeleteFunc(p.sides.of(v.Shard), func(id drop.LotID) bool {
		l, fresh := loaded[id]
		return fresh && l.Run == v.Run && l.Epoch == p.sides.redis[id].Epoch
	})
	if err = p.renew(ctx, lots); err == nil {
		err = p.Stock.Reopen(ctx, v.ShardState)
	}
	return err == nil, ignoreConflict(err)
}

// gravity orders the reasons: the first needs the most care and names the shard's reason.
var gravity = []fault.Code{fault.FreezeAhead, fault.FreezeDiffers, fault.FreezeBehind, fault.FreezeEmptied, fault.FreezeClock}

// gravest returns the worst reason why lots of a shard do not equal the ledger and the lots that say so, or "" if all are
// equal. A stopped lot comes before every other reason.
func (b bothSides) gravest(shard int) (fault.Code, []drop.LotID) {
	unequal := map[fault.Code][]drop.LotID{}
	for _, id := range b.of(shard) {
		reason, stopped := b.compareLot(id)
		if stopped {
			return reason, []drop.LotID{id}
		}
		if b.judge(id).reason == fault.FreezeClock {
			reason = fault.FreezeClock
		}
		unequal[reason] = append(unequal[reason], id)
	}
	for _, reason := range gravity {
		if len(unequal[reason]) > 0 {
			return reason, unequal[reason]
		}
	}
	return "", nil
}
