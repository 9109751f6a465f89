package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Run is a reconcile run under way. While it lasts no other can start.
type Run struct {
	ID     int64
	ledger *Ledger
	unlock func()
}

// StartRun records that a run begins, alone: fault.Busy while another one runs, on any machine. request is
// what is to be compared; it is stored as JSON. The run must be ended with Finish.
func (l *Ledger) StartRun(ctx context.Context, actor string, request any) (*Run, error) {
	asked, err := json.Marshal(request)
	if err != nil {
		return nil, fault.Wrap(fault.Failed, err, "a run's request is no JSON")
	}
	unlock, err := l.lock(ctx, "another reconcile run is under way", func(ctx context.Context, conn *pgxpool.Conn) (locked bool, err error) {
		err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, lockClass, lockReconcile).Scan(&locked)
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

// Finish records how the run ended and lets the next one in, even if the recording fails. It works with a
// context that is cancelled, so that an interrupted run is recorded too. report is stored as JSON; it may be nil.
func (r *Run) Finish(ctx context.Context, verdict fault.Code, report any) error {
	defer r.unlock()
	found, err := json.Marshal(report)
	if err != nil {
		return fault.Wrap(fault.Failed, err, "a run's report is no JSON")
	}
	ctx, cancel := r.ledger.within(context.WithoutCancel(ctx))
	defer cancel()
	_, err = r.ledger.pool.Exec(ctx, `UPDATE reconcile_runs SET finished_at = now(), verdict = $2, report = $3 WHERE id = $1`, r.ID, string(verdict), found)
	return r.ledger.fail(err, "recording the end of a run")
}

// RunRecord is a run as it was recorded.
type RunRecord struct {
	ID       int64
	Actor    string
	Started  time.Time
	Finished time.Time // zero: under way, or ended with its process
	Verdict  fault.Code
	Request  json.RawMessage
	Report   json.RawMessage
}

// LastRun returns the newest finished run; fault.NotFound if there was none.
func (l *Ledger) LastRun(ctx context.Context) (RunRecord, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var r RunRecord
	err := l.pool.QueryRow(ctx, `SELECT id, actor, started_at, finished_at, verdict, request, report FROM reconcile_runs
		WHERE finished_at IS NOT NULL ORDER BY id DESC LIMIT 1`).Scan(&r.ID, &r.Actor, &r.Started, &r.Finished, &r.Verdict, &r.Request, &r.Report)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, fault.New(fault.NotFound, "no reconcile run was finished yet").WithHint("run: dropctl reconcile")
	}
	r.Started, r.Finished = r.Started.UTC(), r.Finished.UTC()
	return r, l.fail(err, "reading runs")
}
