// Package testkit gives tests private real servers (from pkg/lab) and the faults to break them with.
// Only tests import it.
package testkit

import (
	"context"
	"fmt"
	"os"
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

// Main runs a package's tests and fails them if they leave goroutines behind. Call it from TestMain and
// give its result to os.Exit.
func Main(m *testing.M) int {
	code := m.Run()
	shim.remove()
	shared.stop()
	if code == 0 {
		// go-redis lets a dial go on for its time limit though its client is closed: towards a host that was cut off this is seconds.
		for deadline := time.Now().Add(15 * time.Second); ; {
			err := goleak.Find()
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
				return 1
			}
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
