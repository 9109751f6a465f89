package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Run is a reconcile run under way. While it lasts no other can start.
type Run struct {
	ID     int64
	ledger *Ledger
	unlock func()
}

// StartRun records that a run begins, alone: fault.Busy while another one runs, on any machine. request is
// what is to be compared; it is stored as JSON. The run must be ended
// with Finish or Abandon.
func (l *Ledger) StartRun(ctx context.Context, actor string, request any) (*Run, error) {
	asked, err := json.Marshal(request)
	if err != nil {
		return nil, fault.Wrap(fault.Failed, err, "a run's request is no JSON")
	}
	unlock, err := l.lock(ctx, "another reconcile run is under way", func(ctx context.Context, conn *pgxpool.Conn) (locked bool, err error) {
		err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, l.class, lockReconcile).Scan(&locked)
		return locked, err
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	r := &Run{ledger: l, unlock: unlock}
	err = l.pool.QueryRow(ctx, `INSERT INTO reconcile_runs (actor, request) VALUES ($1, $2) RETURNING id`, actor, asked).Scan(&r.ID)
	if err != nil {
		unlock()
		return nil, l.fail(err, "recording a run")
	}
	return r, nil
}

// LotVerdict is what the newest run that looked at a lot found.
type LotVerdict struct {
	Lot     drop.LotID
	Verdict fault.Code
	Finding bool
	Checked time.Time // set by the ledger
}

// Outcome is what a run that came to its end found.
type Outcome struct {
	Verdict fault.Code
	Report  any // stored as JSON; may be nil
	Lots    []LotVerdict
	Whole   bool // every lot there is was looked at: what is known of any other lot is forgotten
}

// Finish records what the run found and lets the next one in, even if the recording fails. What earlier runs found
// of lots that this one did not look at stays. It works with a context that is cancelled.
func (r *Run) Finish(ctx context.Context, o Outcome) error {
	defer r.unlock()
	found, err := json.Marshal(o.Report)
	if err != nil {
		return fault.Wrap(fault.Failed, err, "a run's report is no JSON")
	}
	ids, verdicts, findings := make([]string, len(o.Lots)), make([]string, len(o.Lots)), make([]bool, len(o.Lots))
	for i, l := range o.Lots {
		ids[i], verdicts[i], findings[i] = string(l.Lot), string(l.Verdict), l.Finding
	}
	ctx, cancel := r.ledger.within(context.WithoutCancel(ctx))
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE reconcile_runs SET finished_at = now(), verdict = $2, report = $3 WHERE id = $1`, r.ID, string(o.Verdict), found)
	batch.Queue(`INSERT INTO lot_verdicts (lot, verdict, finding, run) SELECT t.*, $4 FROM unnest($1::text[], $2::text[], $3::boolean[]) AS t
		ON CONFLICT (lot) DO UPDATE SET verdict = EXCLUDED.verdict, finding = EXCLUDED.finding, run = EXCLUDED.run, checked_at = EXCLUDED.checked_at`,
		ids, verdicts, findings, r.ID)
	if o.Whole {
		batch.Queue(`DELETE FROM lot_verdicts WHERE run <> $1`, r.ID)
	}
	return r.ledger.fail(r.ledger.pool.SendBatch(ctx, batch).Close(), "recording the end of a run")
}

// Abandon records why the run came to no verdict and lets the next one in. What earlier runs found stays. It works
// with a context that is cancelled, so that an interrupted run is recorded too.
func (r *Run) Abandon(ctx context.Context, why string) error {
	defer r.unlock()
	ctx, cancel := r.ledger.within(context.WithoutCancel(ctx))
	defer cancel()
	_, err := r.ledger.pool.Exec(ctx, `UPDATE reconcile_runs SET finished_at = now(), report = jsonb_build_object('error', $2::text) WHERE id = $1`, r.ID, why)
	return r.ledger.fail(err, "recording the end of a run")
}

// RunRecord is a run as it was recorded.
type RunRecord struct {
	ID       int64
	Actor    string
	Started  time.Time
	Finished time.Time // zero: under way, or ended with its process
	Running  bool
	Verdict  fault.Code // "" if it came to none; then the report's `error` says why
	Request  json.RawMessage
	Report   json.RawMessage
}

// Runs lists the newest runs, newest first, those without a verdict too. Their reports are without the lots' rows,
// which may be many.
func (l *Ledger) Runs(ctx context.Context, limit int) ([]RunRecord, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	// The newest run is under way while somebody holds its lock.
	rows, err := l.pool.Query(ctx, `SELECT id, actor, started_at, finished_at, verdict, request, CASE jsonb_typeof(report) WHEN 'object' THEN report - 'lots' ELSE report END,
		finished_at IS NULL AND id = (SELECT max(id) FROM reconcile_runs) AND EXISTS (SELECT FROM pg_locks JOIN pg_database d ON d.oid = database
			WHERE d.datname = current_database() AND locktype = 'advisory' AND classid = $2::bigint::oid AND objid = $3 AND objsubid = 2 AND granted)
		FROM reconcile_runs ORDER BY id DESC LIMIT $1`, limit, uint32(l.class), lockReconcile)
	if err != nil {
		return nil, l.fail(err, "reading runs")
	}
	runs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (RunRecord, error) {
		var r RunRecord
		var finished *time.Time
		err := row.Scan(&r.ID, &r.Actor, &r.Started, &finished, &r.Verdict, &r.Request, &r.Report, &r.Running)
		r.Started, r.Finished = r.Started.UTC(), timeOf(finished)
		return r, err
	})
	return runs, l.fail(err, "reading runs")
}

// LastRun returns the newest run that came to a verdict; fault.NotFound if there was none.
func (l *Ledger) LastRun(ctx context.Context) (RunRecord, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var r RunRecord
	err := l.pool.QueryRow(ctx, `SELECT id, actor, started_at, finished_at, verdict, request, report FROM reconcile_runs
		WHERE finished_at IS NOT NULL AND verdict <> '' ORDER BY id DESC LIMIT 1`).Scan(&r.ID, &r.Actor, &r.Started, &r.Finished, &r.Verdict, &r.Request, &r.Report)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, fault.New(fault.NotFound, "no reconcile run came to a verdict yet").WithHint("run: dropctl reconcile")
	}
	r.Started, r.Finished = r.Started.UTC(), r.Finished.UTC()
	return r, l.fail(err, "reading runs")
}

// FoundLots returns the lots whose newest look ended in a finding, sorted by id.
func (l *Ledger) FoundLots(ctx context.Context) ([]LotVerdict, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT lot, verdict, finding, checked_at FROM lot_verdicts WHERE finding ORDER BY lot`)
	if err != nil {
		return nil, l.fail(err, "reading verdicts")
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (LotVerdict, error) {
		var v LotVerdict
		err := row.Scan(&v.Lot, &v.Verdict, &v.Finding, &v.Checked)
		v.Checked = v.Checked.UTC()
		return v, err
	})
	return found, l.fail(err, "reading verdicts")
}

// VerdictCounts counts the lots by the verdict of the newest run that looked at each, and returns when a run last came to
// a verdict; zero if none did.
func (l *Ledger) VerdictCounts(ctx context.Context) (counts map[fault.Code]int64, last time.Time, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var ended *time.Time
	if err := l.pool.QueryRow(ctx, `SELECT max(finished_at) FROM reconcile_runs WHERE verdict <> ''`).Scan(&ended); err != nil {
		return nil, last, l.fail(err, "reading runs")
	}
	rows, err := l.pool.Query(ctx, `SELECT verdict, count(*) FROM lot_verdicts GROUP BY verdict`)
	if err != nil {
		return nil, last, l.fail(err, "counting verdicts")
	}
	counts = map[fault.Code]int64{}
	var verdict fault.Code
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&verdict, &n}, func() error { counts[verdict] = n; return nil })
	return counts, timeOf(ended), l.fail(err, "counting verdicts")
}
