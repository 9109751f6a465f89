// Package testkit gives tests private real servers (from pkg/lab) and the faults to break them with.
// Only tests import it.
package testkit

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dropctl/dropctl/pkg/lab"
)

// Redis starts a Redis server of the test's own and stops it when the test ends.
func Redis(t testing.TB, options ...lab.RedisOptions) *lab.Redis {
	t.Helper()
	r, err := lab.StartRedis(t.Context(), first(options))
	if err != nil {
		t.Fatalf("starting Redis: %v", err)
	}
	stopAtEnd(t, r.Stop)
	return r
}

// Cluster starts a Redis Cluster of n nodes of the test's own and stops it when the test ends.
func Cluster(t testing.TB, n int, options ...lab.RedisOptions) *lab.Cluster {
	t.Helper()
	return ReplicatedCluster(t, n, 0, options...)
}

// ReplicatedCluster is a Cluster whose nodes have that many replicas each, which take over when a node dies.
func ReplicatedCluster(t testing.TB, n, replicas int, options ...lab.RedisOptions) *lab.Cluster {
	t.Helper()
	c, err := lab.StartCluster(t.Context(), n, replicas, first(options))
	if err != nil {
		t.Fatalf("starting a Redis Cluster: %v", err)
	}
	stopAtEnd(t, c.Stop)
	return c
}

// PostgresServer starts a PostgreSQL server of the test's own, for tests that kill it, and stops it when
// the test ends. It syncs as a production server does. Every other test uses Postgres, which is faster.
func PostgresServer(t testing.TB, options ...lab.PostgresOptions) *lab.Postgres {
	t.Helper()
	p, err := lab.StartPostgres(t.Context(), first(options))
	if err != nil {
		t.Fatalf("starting PostgreSQL: %v", err)
	}
	stopAtEnd(t, p.Stop)
	return p
}

// Database is one database on a private PostgreSQL server.
type Database struct {
	Server *lab.Postgres
	Name   string
}

// Postgres makes an empty database for the test, on a server that all tests of the process share, and
// drops it when the test ends. The server does not sync: kill one from PostgresServer instead.
func Postgres(t testing.TB) Database {
	t.Helper()
	server, err := shared.get()
	if err != nil {
		t.Fatalf("starting PostgreSQL: %v", err)
	}
	d := Database{Server: server, Name: fmt.Sprintf("test_%d", shared.databases.Add(1))}
	if err := server.CreateDatabase(t.Context(), d.Name); err != nil {
		t.Fatalf("making a database: %v", err)
	}
	stopAtEnd(t, func(ctx context.Context) error { return server.DropDatabase(ctx, d.Name) })
	return d
}

// URL returns the database's address for a role (lab.Owner, lab.App or lab.Superuser), with its password.
func (d Database) URL(role lab.Role) string { return d.Server.SocketURL(role, d.Name) }

// SQL runs statements in the database as the superuser and returns the rows as text.
func (d Database) SQL(t testing.TB, statements string) string {
	t.Helper()
	out, err := d.Server.SQL(t.Context(), d.Name, statements)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// shared is the PostgreSQL server of the process. Its watchdog ends it with the process.
var shared sharedPostgres

type sharedPostgres struct {
	mu        sync.Mutex
	server    *lab.Postgres
	databases atomic.Int64
}

func (s *sharedPostgres) get() (*lab.Postgres, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return s.server, nil
	}
	// Not a test's context: the server outlives the test that happens to be the first.
	p, err := lab.StartPostgres(context.Background(), lab.PostgresOptions{NoFsync: true})
	s.server = p
	return p, err
}

// Main runs a package's tests and fails them if they leave goroutines behind. Call it from TestMain and
// give its result to os.Exit.
func Main(m *testing.M) int {
	code := m.Run()
	shim.remove()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		_ = shared.server.Stop(context.Background())
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
			return 1
		}
	}
	return code
}

// Eventually waits until the condition holds. The condition's text says what is still wrong; it is the
// failure's message when the timeout ends.
func Eventually(t testing.TB, timeout time.Duration, condition func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		ok, problem := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", timeout, problem)
		}
		time.Sleep(wait)
	}
}

// first returns the options if there are any.
func first[T any](options []T) T {
	var none T
	if len(options) > 0 {
		return options[0]
	}
	return none
}

func stopAtEnd(t testing.TB, stop func(context.Context) error) {
	t.Cleanup(func() {
		if err := stop(context.Background()); err != nil { // the test's context has ended
			t.Errorf("stopping a private server: %v", err)
		}
	})
}

// Long marks a test that takes several seconds: `make test` runs it, `make test-fast` does not.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes several seconds; make test runs it")
	}
}
