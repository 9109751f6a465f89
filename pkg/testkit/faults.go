package testkit

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/lab"
)

// Faulty is what a server has to run under (lab.RedisOptions and lab.PostgresOptions have a field Under) for
// StepClock and LosePower to work on it. It needs Linux and a C compiler.
func Faulty(t testing.TB) []string {
	t.Helper()
	s, err := shim.get()
	if err != nil {
		t.Fatalf("building the fault shim: %v", err)
	}
	return s.Under()
}

// StepClock sets a server's wall clock forward, or back if by is negative. Its monotonic clock goes on as before.
// The server has to run under Faulty; the step outlasts its restart.
func StepClock(t testing.TB, server interface{ StepClock(by time.Duration) error }, by time.Duration) {
	t.Helper()
	if err := server.StepClock(by); err != nil {
		t.Fatal(err)
	}
}

// LosePower ends a Redis as a power failure would: at once, and everything is lost that was not synced to the disk. It
// returns how many bytes of the append-only file were lost. The server has to run under Faulty; Start starts it again.
func LosePower(t testing.TB, r *lab.Redis) (lost int64) {
	t.Helper()
	lost, err := r.LosePower()
	if err != nil {
		t.Fatal(err)
	}
	return lost
}

// shim is the library of the process: built for the first test that wants it, removed by Main.
var shim sharedShim

type sharedShim struct {
	mu   sync.Mutex
	shim *lab.Shim
}

func (s *sharedShim) get() (*lab.Shim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shim != nil {
		return s.shim, nil
	}
	// Not a test's context: the library outlives the test that happens to be the first.
	built, err := lab.BuildShim(context.Background())
	s.shim = built
	return built, err
}

func (s *sharedShim) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shim != nil {
		s.shim.Remove()
		s.shim = nil
	}
}
