package ledger

import (
	"context"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Status is one look at what needs somebody's attention.
type Status struct {
	Lots         int64
	Stopped      []drop.StoppedLot
	DeadLetters  map[fault.Code]int64
	RefundsDue   int64 // number
	RefundsUnits int64
	Waiting      int64      // events behind a gap or of stopped lots
	Gaps         []drop.Gap // longest first, at most 100
	Pending      int64      // allocations not finalised, without those that a payment gateway was asked about
	PendingSince time.Time
	Payments     drop.Payments
	Workers      []Worker
	Pace         drop.Pace
	Hooks        []drop.HookState
	Now          time.Time // PostgreSQL's time of the look
}

//go:embed sql/status.sql
var statusSQL string

// Status looks at everything; its parts are read one after the other.
func (l *Ledger) Status(ctx context.Context) (Status, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	s, err := l.readStatus(ctx)
	return s, l.fail(err, "reading the status")
}

func (l *Ledger) readStatus(ctx context.Context) (Status, error) {
	var s Status
	var pendingSince *time.Time
	err := l.pool.QueryRow(ctx, statusSQL).Scan(&s.Lots, &s.Waiting, &s.RefundsDue, &s.RefundsUnits, &s.Pending, &pendingSince, &s.Now)
	if err != nil {
		return s, err
	}
	s.PendingSince, s.Now = timeOf(pendingSince), s.Now.UTC()
	if s.Stopped, err = readStopped(ctx, l.pool); err != nil {
		return s, err
	}
	if s.DeadLetters, err = countDead(ctx, l.pool); err != nil {
		return s, err
	}
	if s.Gaps, err = l.Gaps(ctx, 0); err != nil {
		return s, err
	}
	if s.Payments, err = readPayments(ctx, l.pool); err != nil {
		return s, err
	}
	if s.Workers, err = l.Workers(ctx); err != nil {
		return s, err
	}
	if s.Hooks, err = readHooks(ctx, l.pool); err != nil {
		return s, err
	}
	s.Pace, err = readPace(ctx, l.pool)
	return s, err
}

// Progress is how far the ledger has come with these lots, to compare with Redis.
func (s Status) Progress(lots []drop.LedgerLot) *drop.Progress {
	p := &drop.Progress{Lots: lots, Waiting: s.Waiting, Pace: s.Pace}
	if len(s.Gaps) > 0 {
		p.Gap = s.Gaps[0].Since
	}
	return p
}

// StoppedLots returns the lots of which nothing more is folded, in the order in which they were stopped.
func (l *Ledger) StoppedLots(ctx context.Context) ([]drop.StoppedLot, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	stopped, err := readStopped(ctx, l.pool)
	return stopped, l.fail(err, "looking for stopped lots")
}

func readStopped(ctx context.Context, q querier) ([]drop.StoppedLot, error) {
	rows, err := q.Query(ctx, `SELECT lot, stopped, stopped_reason FROM lots WHERE stopped <> '' ORDER BY stopped_at, lot`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[drop.StoppedLot])
}

func countDead(ctx context.Context, q querier) (map[fault.Code]int64, error) {
	rows, err := q.Query(ctx, `SELECT code, count(*) FROM dead_letters WHERE settled_at IS NULL GROUP BY code`)
	if err != nil {
		return nil, err
	}
	counts := map[fault.Code]int64{}
	var code fault.Code
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&code, &n}, func() error { counts[code] = n; return nil })
	return counts, err
}

// Gaps returns the gaps that have been open for at least this long, the longest first, at most 100. The relay
// sends again what the ledger has not got; a gap that stays means that an event was lost.
func (l *Ledger) Gaps(ctx context.Context, open time.Duration) ([]drop.Gap, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT l.lot, l.open_epoch, l.seq + 1, w.seq - 1, w.recorded_at
		FROM lots l CROSS JOIN LATERAL (SELECT seq, recorded_at FROM waiting_events w WHERE w.lot = l.lot AND w.epoch = l.open_epoch ORDER BY seq LIMIT 1) w
		WHERE l.waiting > 0 AND l.stopped = '' AND w.seq > l.seq + 1 AND w.recorded_at <= now() - $1::interval
		ORDER BY w.recorded_at, l.lot LIMIT 100`, open)
	if err != nil {
		return nil, l.fail(err, "looking for gaps")
	}
	gaps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (drop.Gap, error) {
		var g drop.Gap
		err := row.Scan(&g.Lot, &g.Epoch, &g.From, &g.To, &g.Since)
		g.Since = g.Since.UTC()
		return g, err
	})
	return gaps, l.fail(err, "looking for gaps")
}

// Worker is a process that works behind the sale.
type Worker struct {
	Name    string // unique among all workers
	Host    string
	PID     int
	Parts   []string // what it runs
	Rate    float64  // events a second that it may write at most; 0: it writes none
	Version string
	Started time.Time
	Seen    time.Time // its last heartbeat, in PostgreSQL's time
	Alive   bool      // seen within WorkerLife
}

// WorkerLife is how long a worker counts as alive after its last heartbeat.
const WorkerLife = 30 * time.Second

//go:embed sql/end_stalled.sql
var endStalledSQL string

// Heartbeat records that a worker lives; Seen and Alive are not read. It forgets those not seen for a day and
// returns their names, each to one caller only. Sessions in which a process stands still, holding locks that others need, it ends.
func (l *Ledger) Heartbeat(ctx context.Context, w Worker) (forgotten []string, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err = l.pool.Exec(ctx, `INSERT INTO workers (worker, host, pid, parts, version, started_at, rate, seen_at) VALUES ($1, $2, $3, $4, $5, $6, $7, now())
		ON CONFLICT (worker) DO UPDATE SET parts = EXCLUDED.parts, rate = EXCLUDED.rate, seen_at = EXCLUDED.seen_at`, w.Name, w.Host, w.PID, w.Parts, w.Version, w.Started, w.Rate)
	if err != nil {
		return nil, l.fail(err, "recording a heartbeat")
	}
	// Where a database forbids to end sessions, they keep their locks for longer, and all else goes on.
	if _, err := l.pool.Exec(ctx, endStalledSQL, l.timeout); err != nil && !hasState(err, stateNoRight) {
		return nil, l.fail(err, "ending sessions that stand still")
	}
	rows, err := l.pool.Query(ctx, `DELETE FROM workers WHERE seen_at < now() - interval '1 day' RETURNING worker`)
	if err != nil {
		return nil, l.fail(err, "forgetting silent workers")
	}
	forgotten, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return forgotten, l.fail(err, "forgetting silent workers")
}

// Farewell forgets a worker that ends gracefully.
func (l *Ledger) Farewell(ctx context.Context, name string) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `DELETE FROM workers WHERE worker = $1`, name)
	return l.fail(err, "taking leave")
}

// Workers lists the workers, those seen last first.
func (l *Ledger) Workers(ctx context.Context) ([]Worker, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT worker, host, pid, parts, rate, version, started_at, seen_at, seen_at >= now() - $1::interval FROM workers ORDER BY seen_at DESC, worker`, WorkerLife)
	if err != nil {
		return nil, l.fail(err, "listing workers")
	}
	workers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Worker, error) {
		var w Worker
		err := row.Scan(&w.Name, &w.Host, &w.PID, &w.Parts, &w.Rate, &w.Version, &w.Started, &w.Seen, &w.Alive)
		w.Started, w.Seen = w.Started.UTC(), w.Seen.UTC()
		return w, err
	})
	return workers, l.fail(err, "listing workers")
}
