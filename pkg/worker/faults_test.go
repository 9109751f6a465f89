package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// An entry that was acknowledged although the ledger has lost it, as by a failover of PostgreSQL.
func (s *shop) acknowledgeUnrecorded(t testing.TB, lot drop.LotID) {
	t.Helper()
	key := outboxKey(t, s, lot)
	reply, err := s.redis.Do(t.Context(), "XREADGROUP", "GROUP", "ledger", "lost", "COUNT", "1", "STREAMS", key, ">")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(reply)
	if len(fields) < 2 || !strings.Contains(fields[1], "-") {
		t.Fatalf("no entry: %q", reply)
	}
	s.do(t, "XACK", key, "ledger", fields[1])
}

func TestAMissingEventIsSentAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
	s.sell(t, "truffle", 1, 1)
	s.acknowledgeUnrecorded(t, "truffle")
	s.sell(t, "truffle", 3, 9)
	if _, err := s.drain(t, worker.Options{Only: []worker.Part{worker.Relay, worker.Finalise}}); err != nil {
		t.Fatal(err)
	}
	s.mustAgree(t)
}

// otherServer is a ledger that names another server from some moment on.
type otherServer struct {
	worker.Ledger
	asked   atomic.Bool
	changed atomic.Bool
}

func (l *otherServer) Server(ctx context.Context) (now, remembered string, err error) {
	now, remembered, err = l.Ledger.Server(ctx)
	if l.changed.Load() {
		now += "/promoted"
	}
	l.asked.Store(err == nil)
	return now, remembered, err
}

func TestANewPostgreSQLServerGetsEverythingThatIsKept(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
	s.sell(t, "truffle", 1, 1)
	s.acknowledgeUnrecorded(t, "truffle") // nothing follows it, so that no gap shows
	l := &otherServer{Ledger: wire.WorkerLedger(s.ledger)}
	s.startOn(t, l, worker.Options{})
	testkit.Eventually(t, 10*time.Second, func() (bool, string) {
		return l.asked.Load(), "the worker has not asked which server it is"
	})
	l.changed.Store(true)
	s.agreesWithin(t, 15*time.Second)
}

// panicky is a ledger that makes one part of the worker panic, three times.
type panicky struct {
	worker.Ledger
	times atomic.Int32
}

func (l *panicky) FoldWaiting(ctx context.Context) (int, error) {
	if l.times.Add(1) <= 3 {
		panic("a mistake")
	}
	return l.Ledger.FoldWaiting(ctx)
}

func TestAPanicInOnePartStopsNoOther(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.sell(t, "truffle", 0, 20)
	l := &panicky{Ledger: wire.WorkerLedger(s.ledger)}
	stop := s.startOn(t, l, worker.Options{})
	s.agreesWithin(t, 15*time.Second)
	testkit.Eventually(t, 15*time.Second, func() (bool, string) {
		return l.times.Load() > 3, "the part was not started again"
	})
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}

// Twenty lots of one shard lose all their holds within a second while others go on buying.
func TestAMassExpiryHoldsNobodyUp(t *testing.T) {
	s := newShop(t)
	const lots = 20
	each, hold := 1000, 5*time.Second
	if testing.Short() {
		each, hold = 100, 2*time.Second
	}
	lot := func(i int) drop.LotID { return drop.LotID(fmt.Sprintf("drop:lot-%d", i)) }
	for i := range lots {
		s.load(t, lot(i), int64(each))
	}
	s.load(t, "drop:busy", 1_000_000)
	s.start(t, worker.Options{})
	var all sync.WaitGroup
	for i := range lots {
		for part := range 8 {
			all.Go(func() {
				for u := part; u < each; u += 8 {
					if _, err := s.hold(t.Context(), lot(i), fmt.Sprintf("user-%d", u), hold); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()

	buying, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var took []time.Duration
	for b := range 8 {
		all.Go(func() {
			for u := 0; buying.Err() == nil; u++ {
				start := time.Now()
				_, err := s.hold(t.Context(), "drop:busy", fmt.Sprintf("buyer-%d-%d", b, u), time.Hour)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
				sleepUntil(buying, 2*time.Millisecond)
			}
		})
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		for i := range lots {
			st, err := s.stock.Lot(t.Context(), lot(i))
			if err != nil || st.Available != int64(each) {
				return false, fmt.Sprintf("lot %d: %+v %v", i, st.Totals, err)
			}
		}
		return true, ""
	})
	stop()
	all.Wait()
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d holds while %d expired: p50 %s, p99 %s, max %s", len(took), lots*each, took[len(took)/2], p99, took[len(took)-1])
	if p99 > time.Second {
		t.Errorf("p99 of buyers is %s", p99)
	}
}

// sleepUntil pauses a buyer for a moment, or until buying ends.
func sleepUntil(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
