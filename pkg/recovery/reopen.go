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
// shut. What an operator has frozen, and what waits for its clock, stays shut. Other than the guardian it does not wait
// until every outbox entry is acknowledged: it is for where no worker runs.
func (g *Guardian) Reopen(ctx context.Context, shards []int, pause time.Duration) ([]Finding, error) {
	var findings []Finding
	var errs []error
	first := map[int]string{}
	for look := 1; look <= 2; look++ {
		findings = nil
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
	st, err := g.Stock.ShardState(ctx, shard)
	if err != nil || !st.Exists || st.Frozen == "" && !st.Closed() {
		return f, "", err
	}
	f = Finding{Shard: shard, Action: Left, Reason: fault.Code(st.Frozen)}
	if st.Frozen == string(fault.FreezeOperator) {
		return f, "", nil
	}
	lots, err := g.lots(ctx, []drop.ShardState{st})
	if err != nil {
		return f, "", err
	}
	reason, unequal := lots.compare(shard)
	early := lots.early(shard)
	switch {
	case reason != "":
		return Finding{Shard: shard, Action: Frozen, Reason: reason, Lots: unequal}, "", nil
	case st.Frozen == string(fault.FreezeClock) && len(early) > 0:
		return Finding{Shard: shard, Action: Waiting, Reason: fault.FreezeClock, Lots: early}, "", nil
	case lots.elsewhere(st):
		return Finding{Shard: shard, Action: Settling}, "", nil
	}
	f = Finding{Shard: shard, Action: Settling, Equal: len(lots.of(shard))}
	equal = st.Run + lots.signature(shard)
	if equal != before {
		return f, equal, nil
	}
	switch err := g.Stock.Reopen(ctx, st); {
	case err == nil:
		f.Action = Reopened
	case !fault.Is(err, fault.Conflict):
		return f, "", err
	}
	return f, equal, nil
}
