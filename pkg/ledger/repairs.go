package ledger

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// RepairOutcome says how a repair ended.
type RepairOutcome string

// The outcomes of a repair.
const (
	RepairOpen    RepairOutcome = ""        // under way, or ended with its process: look whether it was done
	RepairDone    RepairOutcome = "done"    // it changed what it was about
	RepairNothing RepairOutcome = "nothing" // Redis was no longer as in the evidence, and nothing was changed
	RepairFailed  RepairOutcome = "failed"
)

// Repair writes down what is going to be repaired, lets act do it, and writes down how it ended; act says whether it
// changed anything, and in a sentence what. What cannot be written down is not done. The end is recorded also where
// the context is cancelled meanwhile. The error is act's or, if that has none, that of the recording.
func (l *Ledger) Repair(ctx context.Context, r drop.Repair, act func(ctx context.Context) (did bool, detail string, err error)) error {
	id, err := l.beginRepair(ctx, r)
	if err != nil {
		return err
	}
	did, detail, err := act(ctx)
	outcome := RepairNothing
	switch {
	case err != nil:
		outcome, detail = RepairFailed, fault.As(err).Error()
	case did:
		outcome = RepairDone
	}
	if recorded := l.endRepair(context.WithoutCancel(ctx), id, outcome, detail); err == nil {
		err = recorded
	}
	return err
}

func (l *Ledger) beginRepair(ctx context.Context, r drop.Repair) (id int64, err error) {
	if r.Actor == "" || r.Reason == "" || r.What == "" {
		return 0, fault.New(fault.Invalid, "a repair needs an actor and a reason").WithField("reason").WithHint("say why: --reason TEXT")
	}
	evidence, err := json.Marshal(r.Evidence)
	if err != nil {
		return 0, fault.Wrap(fault.Failed, err, "a repair's evidence is no JSON")
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	err = l.pool.QueryRow(ctx, `INSERT INTO repairs (run, lot, what, actor, reason, evidence) VALUES (nullif($1::bigint, 0), $2, $3, $4, $5, $6) RETURNING id`,
		r.Run, string(r.Lot), r.What, r.Actor, r.Reason, evidence).Scan(&id)
	return id, l.fail(err, "recording a repair")
}

func (l *Ledger) endRepair(ctx context.Context, id int64, outcome RepairOutcome, detail string) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `UPDATE repairs SET ended_at = now(), outcome = $2, detail = $3 WHERE id = $1`, id, string(outcome), detail)
	return l.fail(err, "recording the end of a repair")
}

// RepairRecord is a repair as it was recorded.
type RepairRecord struct {
	Run      int64 // of the reconcile run; 0: of none
	Lot      drop.LotID
	What     string
	Actor    string
	Reason   string
	Evidence json.RawMessage
	Begun    time.Time
	Ended    time.Time // zero: under way, or ended with its process
	Outcome  RepairOutcome
	Detail   string
}

// RepairsOfRuns lists the repairs of reconcile runs, newest first.
func (l *Ledger) RepairsOfRuns(ctx context.Context, runs []int64) ([]RepairRecord, error) {
	return l.repairs(ctx, `WHERE run = ANY($1) ORDER BY id DESC`, runs)
}

// RepairsOutsideRuns lists repairs that belong to no reconcile run, as rebuilds by hand and by the guardian do, newest
// first.
func (l *Ledger) RepairsOutsideRuns(ctx context.Context, limit int) ([]RepairRecord, error) {
	return l.repairs(ctx, `WHERE run IS NULL ORDER BY id DESC LIMIT $1`, limit)
}

func (l *Ledger) repairs(ctx context.Context, which string, arg any) ([]RepairRecord, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT coalesce(run, 0), lot, what, actor, reason, evidence, begun_at, ended_at, outcome, detail FROM repairs `+which, arg)
	if err != nil {
		return nil, l.fail(err, "listing repairs")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (RepairRecord, error) {
		var r RepairRecord
		var ended *time.Time
		err := row.Scan(&r.Run, &r.Lot, &r.What, &r.Actor, &r.Reason, &r.Evidence, &r.Begun, &ended, &r.Outcome, &r.Detail)
		r.Begun, r.Ended = r.Begun.UTC(), timeOf(ended)
		return r, err
	})
	return list, l.fail(err, "listing repairs")
}
