package bars

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// rowByRow is the database of a shop that records each event for itself, in the path of the request.
type rowByRow struct {
	conns []*pgx.Conn
}

const maxConns = 16

// The tables are as plain as they can be: no partitions, no triggers, no hashes, and the one index that makes an event
// unique. So they are faster to write than the ledger's.
const rowByRowTables = `
CREATE SCHEMA plain;
CREATE TABLE plain.events (lot text, epoch bigint, seq bigint, kind text, reservation bigint, event_at timestamptz, line text,
	PRIMARY KEY (lot, epoch, seq));
CREATE TABLE plain.reservations (lot text, n bigint, user_id text, state text, qty bigint, deadline timestamptz, last_seq bigint,
	PRIMARY KEY (lot, n));
CREATE TABLE plain.lots (lot text PRIMARY KEY, held bigint, sold bigint);
`

func openRowByRow(ctx context.Context, url string) (*rowByRow, error) {
	r := &rowByRow{}
	for range maxConns {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			r.close()
			return nil, fault.Wrap(fault.Unavailable, err, "connecting the baseline to the private PostgreSQL")
		}
		r.conns = append(r.conns, conn)
	}
	if _, err := r.conns[0].Exec(ctx, rowByRowTables); err != nil {
		r.close()
		return nil, fault.Wrap(fault.Unavailable, err, "creating the baseline's tables")
	}
	return r, nil
}

func (r *rowByRow) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, c := range r.conns {
		_ = c.Close(ctx)
	}
}

// insertEvent inserts one row and commits: one statement is a transaction of its own.
func insertEvent(ctx context.Context, conn *pgx.Conn, e drop.Event) error {
	_, err := conn.Exec(ctx, insertEventSQL, insertEventArgs(e)...)
	return err
}

const insertEventSQL = `INSERT INTO plain.events (lot, epoch, seq, kind, reservation, event_at, line) VALUES ($1, $2, $3, $4, $5, $6, $7)`

func insertEventArgs(e drop.Event) []any {
	return []any{string(e.Lot), e.Epoch, e.Seq, string(e.Kind), e.Reservation.N, e.Time, e.Line()}
}

// recordEvent does the whole work in one transaction: the event, the reservation as it now is, the lot's totals. The
// statements go to the server together and are committed together.
func recordEvent(ctx context.Context, conn *pgx.Conn, e drop.Event) error {
	state := drop.Held
	if e.Kind == drop.KindConfirmed {
		state = drop.Confirmed
	}
	held, sold, _ := e.Delta()
	var b pgx.Batch
	b.Queue(insertEventSQL, insertEventArgs(e)...)
	b.Queue(`INSERT INTO plain.reservations AS r (lot, n, user_id, state, qty, deadline, last_seq) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (lot, n) DO UPDATE SET state = excluded.state, qty = excluded.qty, last_seq = excluded.last_seq WHERE r.last_seq < excluded.last_seq`,
		string(e.Lot), e.Reservation.N, e.User, string(state), e.Qty, e.Deadline, e.Seq)
	b.Queue(`UPDATE plain.lots SET held = held + $2, sold = sold + $3 WHERE lot = $1`, string(e.Lot), held, sold)
	return conn.SendBatch(ctx, &b).Close()
}

// baseline is one way of recording row by row, and what it did in the rounds so far.
type baseline struct {
	name, detail string
	conns        int
	write        func(ctx context.Context, conn *pgx.Conn, e drop.Event) error
	perSecond    []float64
}

// rowByRowBaselines lists them; the first is the one that the bar compares with, the others explain.
func rowByRowBaselines() []*baseline {
	var list []*baseline
	for _, n := range []int{1, 4, maxConns} {
		detail := "the event's row; a transaction each"
		list = append(list, &baseline{name: fmt.Sprintf("insert-on-%d", n), detail: detail, conns: n, write: insertEvent})
	}
	for _, n := range []int{1, 4, maxConns} {
		detail := "event, reservation and lot in one round trip; a transaction each"
		list = append(list, &baseline{name: fmt.Sprintf("record-on-%d", n), detail: detail, conns: n, write: recordEvent})
	}
	return list
}

// play writes the events of the batches into emptied tables until the time or the events are over.
func (b *baseline) play(ctx context.Context, r *rowByRow, batches [][]drop.Event, span time.Duration) error {
	var events []drop.Event
	for _, batch := range batches {
		events = append(events, batch...)
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	var next, done atomic.Int64
	begun := time.Now()
	g, work := errgroup.WithContext(ctx)
	for _, conn := range r.conns[:b.conns] {
		g.Go(func() error {
			for time.Since(begun) < span {
				i := next.Add(1) - 1
				if i >= int64(len(events)) {
					return nil
				}
				if err := b.write(work, conn, events[i]); err != nil {
					return fault.Wrap(fault.Unavailable, err, "the baseline %s", b.name)
				}
				done.Add(1)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	b.perSecond = append(b.perSecond, float64(done.Load())/time.Since(begun).Seconds())
	return nil
}

// prepare empties the tables and enters the lots.
func (r *rowByRow) prepare(ctx context.Context) error {
	_, err := r.conns[0].Exec(ctx, `TRUNCATE plain.events, plain.reservations, plain.lots`)
	for _, lot := range lotNames(applyLots) {
		if err == nil {
			_, err = r.conns[0].Exec(ctx, `INSERT INTO plain.lots (lot, held, sold) VALUES ($1, 0, 0)`, string(lot))
		}
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "emptying the baseline's tables")
	}
	return nil
}
