package ledger

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// standing opens a session with the limits of ours that locks a lot and then stands still, as that of a stopped process does, in
// the middle of what still does.
func standing(t *testing.T, db testkit.Database, lot drop.LotID, still func(context.Context, *pgx.Conn) error) {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.URL(lab.App))
	if err != nil {
		t.Fatal("the URL cannot be read")
	}
	for _, limit := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		cfg.RuntimeParams[limit] = "1s"
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.PgConn().Conn().Close() }) // in the middle of something
	if _, err := conn.Exec(t.Context(), `BEGIN`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT FROM lots WHERE lot = $1 FOR UPDATE`, string(lot)); err != nil {
		t.Fatal(err)
	}
	if err := still(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
}

// A worker that stands still in the middle of a write, stopped or on a machine that is gone, keeps its lots from the others only until
// one of them shows that it lives: PostgreSQL itself would wait as long as the connection lasts.
func TestAProcessThatStandsStillInAWriteIsPassed(t *testing.T) {
	testkit.Long(t)
	for name, still := range map[string]func(context.Context, *pgx.Conn) error{
		"in a COPY": func(ctx context.Context, conn *pgx.Conn) error {
			nothing, never := io.Pipe()
			go func() { // ends with the connection
				_, _ = conn.PgConn().CopyFrom(ctx, nothing, `COPY reservation_events (lot) FROM STDIN`)
				_ = never.Close()
			}()
			return nil
		},
		"in a batch": func(ctx context.Context, conn *pgx.Conn) error {
			p := conn.PgConn().StartPipeline(ctx)
			p.SendQueryParams(`SELECT 1`, nil, nil, nil, nil)
			p.SendFlushRequest()
			return p.Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, db := newLedger(t)
			l, err := Open(t.Context(), Options{URL: db.URL(lab.App), Timeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(l.Close)
			r := seeded(t, direct, "lot", 10)
			r.hold("ann", 3)
			events := r.take()
			standing(t, db, "lot", still)
			testkit.Eventually(t, 20*time.Second, func() (bool, string) {
				if _, err := l.Heartbeat(t.Context(), Worker{Name: "w", Parts: []string{"relay"}}); err != nil {
					return false, err.Error()
				}
				if _, err := l.Apply(t.Context(), events, nil); err != nil {
					return false, err.Error()
				}
				return true, ""
			})
			wantTotals(t, direct, "lot", 10, 3, 0)
		})
	}
}

// Who only reads may take as long as it likes, and a session of somebody else's is none of our business.
func TestAReaderThatStandsStillIsLeftAlone(t *testing.T) {
	direct, db := newLedger(t)
	l, err := Open(t.Context(), Options{URL: db.URL(lab.App), Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	seeded(t, direct, "lot", 10)
	conn, err := pgx.Connect(t.Context(), db.URL(lab.App))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.PgConn().Conn().Close() }) // in the middle of something
	p := conn.PgConn().StartPipeline(t.Context())
	p.SendQueryParams(`SELECT lot FROM lots`, nil, nil, nil, nil)
	p.SendFlushRequest()
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 10*time.Second, func() (bool, string) {
		var old bool
		err := direct.pool.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND state = 'active' AND wait_event_type = 'Client'
			AND query_start < clock_timestamp() - interval '100 ms'`, conn.PgConn().PID()).Scan(&old)
		return err == nil && old, "the session does not stand still yet"
	})
	if _, err := l.Heartbeat(t.Context(), Worker{Name: "w", Parts: []string{"relay"}}); err != nil {
		t.Fatal(err)
	}
	// A session that is being ended may still be listed, but answers no more.
	if err := errors.Join(p.Sync(), p.Close(), conn.Ping(t.Context())); err != nil {
		t.Errorf("it was ended: %v", err)
	}
}

// A database may forbid everybody to end sessions. Its workers live nevertheless.
func TestAWorkerLivesThatMayEndNoSessions(t *testing.T) {
	l, db := newLedger(t)
	db.SQL(t, `REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM PUBLIC;
		INSERT INTO workers (worker, host, pid, parts, version, started_at, rate, seen_at) VALUES ('old', '', 1, '{}', '', now(), 0, now() - interval '2 days')`)
	forgotten, err := l.Heartbeat(t.Context(), Worker{Name: "w", Parts: []string{"relay"}})
	if err != nil || len(forgotten) != 1 {
		t.Errorf("forgotten are %v: %v", forgotten, err)
	}
}
