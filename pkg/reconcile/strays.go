package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Due entries that belong to no lot are told of in a row of their shard, since there is no lot to tell of. No sweep ever
// comes to them, so that they only take room; but they were written by somebody who should not.

// strays looks, when every lot is compared, for due entries of lots that neither side knows, and takes them away if it is to
// repair. What looks like one is looked at again: its lot may just have been made.
func (r *run) strays(ctx context.Context, known []drop.LotID) ([]Row, error) {
	if len(r.o.Lots) > 0 || r.o.Group != "" {
		return nil, nil
	}
	found, err := r.strayDues(ctx, known)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if known, err = r.choose(ctx); err == nil {
		found, err = r.strayDues(ctx, known)
	}
	var rows []Row
	for shard := range r.stock.Shards() {
		if err != nil || len(found[shard]) == 0 {
			continue
		}
		row := strayRow(shard, found[shard])
		if r.o.Repair {
			err = r.dropStrays(ctx, shard, &row)
		}
		rows = append(rows, row)
	}
	return rows, err
}

func (r *run) strayDues(ctx context.Context, known []drop.LotID) (map[int][]string, error) {
	is := map[drop.LotID]bool{}
	for _, lot := range known {
		is[lot] = true
	}
	found := map[int][]string{}
	for shard := range r.stock.Shards() {
		err := r.stock.StrayDues(ctx, shard, func(lot drop.LotID) bool { return is[lot] }, func(entry string) { found[shard] = append(found[shard], entry) })
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func strayRow(shard int, entries []string) Row {
	// No lot has such a name.
	row := Row{Lot: drop.LotID(fmt.Sprintf("(shard %d)", shard)), Verdict: fault.VerdictDrift, Finding: true, Next: "dropctl reconcile --deep --repair"}
	for _, entry := range entries {
		row.Evidence = append(row.Evidence, Evidence{Check: "stray_due", Subject: shortened(entry), Note: "the due entry is of no lot that Redis or the ledger has",
			fix: &drop.Fix{Kind: drop.FixStray, Subject: entry}})
	}
	row.Message = row.Evidence[0].String()
	return row
}

// dropStrays takes the entries of a shard away, as many as are allowed, and notes in the row what became of them.
func (r *run) dropStrays(ctx context.Context, shard int, row *Row) error {
	found := row.Evidence[:min(len(row.Evidence), r.mayRepair)]
	row.left = len(row.Evidence) - len(found)
	if r.o.DryRun {
		row.plan(len(found))
		r.mayRepair -= row.planned
		return nil
	}
	if len(found) == 0 {
		return nil
	}
	entries := make([]string, len(found))
	for i, e := range found {
		entries[i] = e.fix.Subject
	}
	var outcomes []drop.FixOutcome
	journal := drop.Repair{Run: r.id, Lot: row.Lot, What: string(drop.FixStray), Actor: r.o.Actor, Reason: r.o.Reason, Evidence: account{Differences: found}}
	err := r.ledger.Repair(ctx, journal, func(ctx context.Context) (bool, string, error) {
		var err error
		outcomes, err = r.stock.DropDues(ctx, shard, entries)
		return slices.Contains(outcomes, drop.FixDone), outcomeText(found, outcomes), err
	})
	r.mayRepair -= row.take(found, outcomes)
	if code := fault.CodeOf(err); code == fault.LotFrozen || code == fault.LotNotLoaded {
		row.refuse(found, err)
		return nil
	}
	if err != nil {
		return err
	}
	if row.Evidence = row.Evidence[len(found):]; len(row.Evidence) == 0 {
		row.Verdict, row.Finding, row.Message, row.Next = fault.VerdictOK, false, "", ""
	}
	return nil
}

// shortened is a due entry for people.
func shortened(entry string) string {
	const shown = 80
	return strings.ToValidUTF8(entry[:min(len(entry), shown)], "?")
}
