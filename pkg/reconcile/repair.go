package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// A repair puts right what Redis derives from its records: due entries, user counters, batches. It may, because the
// records of the lot are proven to be the ledger's; where one is not, or a total is not, only a rebuild of the lot helps,
// and nothing is touched here. Each fix is carried out by a script that acts only if what it follows from is as it was
// seen. After every repair the lot is looked at again, and what that look says is the verdict.

// Repaired is one difference that was repaired, or not.
type Repaired struct {
	What    drop.FixKind `json:"what"`
	Subject string       `json:"subject"` // as in the evidence
	Before  string       `json:"before"`  // the evidence, for people
	Result  string       `json:"result"`  // repaired, planned (dry run), unneeded, changed (no longer as it was seen) or refused
}

// repairRounds is how often a lot is repaired and looked at again: a repair may show what only then can be repaired, as a
// batch does once its holds are filed by themselves, and traffic may change what a fix follows from.
const repairRounds = 5

// derivedOnly reports whether all that is wrong with a lot can be repaired.
func (row *Row) derivedOnly() bool {
	return len(row.Evidence) > 0 && !slices.ContainsFunc(row.Evidence, func(e Evidence) bool { return e.fix == nil })
}

// repairAll repairs the lots one after the other, up to the number of differences that is allowed.
func (r *run) repairAll(ctx context.Context, lots []drop.LotID, rows map[drop.LotID]Row) error {
	for _, lot := range lots {
		row, err := r.repairLot(ctx, rows[lot])
		if err != nil {
			return err
		}
		rows[lot] = row
	}
	return nil
}

// repairLot repairs one lot until nothing is left, or what is left does not get better.
func (r *run) repairLot(ctx context.Context, row Row) (Row, error) {
	for range repairRounds {
		if !row.derivedOnly() {
			return row, nil
		}
		if r.o.DryRun {
			row.plan(min(len(row.Evidence), r.mayRepair))
			r.mayRepair -= row.planned
			row.left = len(row.Evidence) - row.planned
			return row, nil
		}
		found := row.Evidence[:min(len(row.Evidence), r.mayRepair)]
		if len(found) == 0 {
			row.left = len(row.Evidence)
			return row, nil
		}
		was := row
		refused, err := r.repair(ctx, &was, found)
		if err != nil || refused {
			return was, err
		}
		if row, err = r.lookAgain(ctx, was); err != nil {
			return row, err
		}
	}
	return row, nil
}

// plan notes what would be repaired.
func (row *Row) plan(n int) {
	for _, e := range row.Evidence[:n] {
		row.note(e, "planned")
	}
	row.planned = n
}

// note adds to the row what became of a difference; like evidence, not more than anybody reads.
func (row *Row) note(e Evidence, result string) {
	if len(row.Repairs) < maxEvidence {
		row.Repairs = append(row.Repairs, Repaired{What: e.fix.Kind, Subject: e.Subject, Before: e.String(), Result: result})
	}
}

// lookAgain judges a lot anew and keeps the account of its repairs.
func (r *run) lookAgain(ctx context.Context, was Row) (Row, error) {
	rows, err := r.settled(ctx, []drop.LotID{was.Lot})
	if err != nil {
		return was, err
	}
	row, err := r.prove(ctx, rows[was.Lot])
	row.Repairs, row.repaired = was.Repairs, was.repaired
	return row, err
}

// fixOrder is the order of the repairs of a lot: a hold gets its due entry before a useless one is taken away.
var fixOrder = []drop.FixKind{drop.FixDue, drop.FixStray, drop.FixNext, drop.FixUser, drop.FixBatch}

// account is what is written down of a repair before it is done.
type account struct {
	Server      string         `json:"server_run"` // run id
	At          drop.Watermark `json:"at"`
	Differences []Evidence     `json:"differences"`
}

// repair carries out the fixes of the differences, each kind of them as one repair in the account. It is refused where
// the lot takes no calls.
func (r *run) repair(ctx context.Context, row *Row, found []Evidence) (refused bool, err error) {
	for _, kind := range fixOrder {
		var differences []Evidence
		var fixes []drop.Fix
		for _, e := range found {
			if e.fix.Kind == kind {
				differences, fixes = append(differences, e), append(fixes, *e.fix)
			}
		}
		if len(fixes) == 0 {
			continue
		}
		var outcomes []drop.FixOutcome
		journal := drop.Repair{Run: r.id, Lot: row.Lot, What: string(kind), Actor: r.o.Actor, Reason: r.o.Reason,
			Evidence: account{row.seen.Run, row.seen.Watermark, differences}}
		err := r.ledger.Repair(ctx, journal, func(ctx context.Context) (bool, string, error) {
			var err error
			outcomes, err = r.stock.Repair(ctx, row.seen, fixes)
			return slices.Contains(outcomes, drop.FixDone), outcomeText(differences, outcomes), err
		})
		r.mayRepair -= row.take(differences, outcomes)
		if code := fault.CodeOf(err); code == fault.LotFrozen || code == fault.LotNotLoaded {
			row.refuse(differences[len(outcomes):], err)
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// take notes how the fixes went and returns how many changed something.
func (row *Row) take(differences []Evidence, outcomes []drop.FixOutcome) (done int) {
	for i, outcome := range outcomes {
		switch outcome {
		case drop.FixDone:
			done++
			row.note(differences[i], "repaired")
		case drop.FixSame:
			row.note(differences[i], "unneeded")
		default:
			row.note(differences[i], "changed")
		}
	}
	row.repaired += done
	return done
}

// refuse notes that the lot took no repair.
func (row *Row) refuse(differences []Evidence, why error) {
	for _, e := range differences {
		row.note(e, "refused")
	}
	row.Message, row.Next = why.Error(), "dropctl reconcile --deep "+string(row.Lot)
	if hint := fault.HintOf(why); hint != "" {
		row.Next = hint
	}
}

// outcomeText says in the account how many of the differences are repaired, and names those that are not.
func outcomeText(differences []Evidence, outcomes []drop.FixOutcome) string {
	const named = 10
	done, right, changed := 0, 0, []string{}
	for i, o := range outcomes {
		switch o {
		case drop.FixDone:
			done++
		case drop.FixSame:
			right++
		default:
			changed = append(changed, differences[i].Subject)
		}
	}
	text := fmt.Sprintf("%d of %d repaired", done, len(differences))
	if right > 0 {
		text += fmt.Sprintf(", %d right already", right)
	}
	if n := len(changed); n > 0 {
		text += fmt.Sprintf(", %d no longer as seen: %s", n, strings.Join(changed[:min(n, named)], ", "))
	}
	return text
}
