package recovery

import (
	"context"
	"errors"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Reopen opens the shut ones of these shards whose lots are all equal to the ledger, twice in a row with a pause between:
// a batch that some worker read from the lost server may still be on its way. It returns a finding for each that was
// shut. What an operator has frozen, and what waits for a clock, stays shut. Other than a pass it does not wait
// until every outbox entry is acknowledged, and changes no lot that differs: it is for where no worker runs.
func (g *Guardian) Reopen(ctx context.Context, shards []int, pause time.Duration) ([]Finding, error) {
	var findings []Finding
	var errs []error
	first := map[int]string{}
	for look := 1; look <= 2; look++ {
		findings, errs = nil, nil
		for _, shard := range shards {
			f, equal, err := g.reopen(ctx, shard, first[shard])
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if f.Action != "" {
				findings = append(findings, f)
			}
			first[shard] = equal
		}
		if len(findings) == 0 || look == 2 {
			break
		}
		select {
		case <-ctx.Done():
			return findings, ctx.Err()
		case <-time.After(pause):
		}
	}
	return findings, errors.Join(errs...)
}

// reopen looks at one shard, and opens it if it is what an earlier look found equal. It returns what this one found.
func (g *Guardian) reopen(ctx context.Context, shard int, before string) (f Finding, equal string, err error) {
	clock := reading{from: time.Now()}
	st, err := g.Stock.ShardState(ctx, shard)
	clock.to, clock.server = time.Now(), st.Now
	if err != nil || !st.Exists || st.Frozen == "" && !st.Closed() {
		return f, "", err
	}
	f = Finding{Shard: shard, Action: Left, Reason: fault.Code(st.Frozen)}
	if st.Frozen == string(fault.FreezeOperator) {
		return f, "", nil
	}
	if st.Frozen == string(fault.FreezeClock) && !clock.right(reading{}) {
		f.Action = Waiting
		return f, "", nil
	}
	p := pass{Guardian: g, shut: []view{{ShardState: st}}}
	if err := p.compare(ctx); err != nil {
		return f, "", err
	}
	lots := p.sides.of(shard)
	if reason, unequal := p.sides.gravest(shard); reason != "" {
		return Finding{Shard: shard, Action: Frozen, Reason: reason, Lots: unequal, Evidence: p.sides.evidence(unequal)}, "", nil
	}
	f = Finding{Shard: shard, Action: Settling, Equal: len(lots)}
	if p.sides.elsewhere(st) {
		return f, "", nil
	}
	if equal = st.Run + p.sides.evidence(lots); equal != before {
		return f, equal, nil
	}
	err = p.renew(ctx, lots)
	if err == nil {
		err = g.Stock.Reopen(ctx, st)
	}
	if err == nil {
		f.Action = Reopened
	}
	return f, equal, ignoreConflict(err)
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
