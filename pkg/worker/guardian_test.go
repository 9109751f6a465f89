package worker_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

func TestARestartedRedisThatEqualsTheLedgerIsReopened(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	for i := range 6 {
		lot := drop.LotID("lot-" + strconv.Itoa(i))
		s.load(t, lot, 40)
		s.sell(t, lot, 0, 20)
	}
	// Two workers, so that two guardians look at the same doors. Part of the events is still to be drained.
	s.start(t, worker.Options{})
	s.start(t, worker.Options{})
	if err := s.redis.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	for i := range 6 {
		lot := drop.LotID("lot-" + strconv.Itoa(i))
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			_, err := s.hold(t.Context(), lot, "late", time.Hour)
			return err == nil, "still shut: " + errorText(err)
		})
	}
	t.Logf("every lot sells %v after Redis answered again", time.Since(started).Round(10*time.Millisecond))
	s.agreesWithin(t, 20*time.Second)
}

// A worker that died with entries in hand, and Redis that was restarted: the shard stays shut until the ledger has them, and
// nothing that is sold later can show that they are missing.
func TestAShutShardDoesNotWaitForADeadWorker(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	const lot = drop.LotID("truffle")
	s := newShop(t)
	s.load(t, lot, 40)
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
	s.sell(t, lot, 0, 10)
	if read, err := s.stock.ReadNew(t.Context(), lot.Shard(shards), "dead", 100, -1); err != nil || len(read) == 0 {
		t.Fatalf("the dead worker has %d entries in hand, %v", len(read), err)
	}
	if err := s.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.start(t, worker.Options{Takeover: time.Hour})
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		_, err := s.hold(t.Context(), lot, "late", time.Hour)
		return err == nil, "still shut: " + errorText(err)
	})
	s.agreesWithin(t, 20*time.Second)
}

// A restart after which Redis is not what the ledger knows, though the ledger has all that counts. It sells nothing before
// the ledger has been put in its place.
func TestARestartedRedisThatLostSomethingIsRebuilt(t *testing.T) {
	testkit.Long(t)
	tests := map[string]func(t *testing.T, s *shop){
		"an old snapshot":   loseTail,
		"lost a lot":        func(t *testing.T, s *shop) { s.do(t, "DEL", lotKey(t, s)) },
		"a unit moved":      moveUnit,
		"the limit changed": func(t *testing.T, s *shop) { testkit.Plant(t, s.redis, lotKey(t, s), "limit", 7) },
	}
	for name, breakIt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.load(t, "truffle", 1000)
			s.sell(t, "truffle", 0, 20)
			s.mustDrain(t)
			breakIt(t, s)
			if err := s.redis.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			closed := s.watermark(t, "truffle")
			buyers := s.buyers(t, "truffle")
			buyers.awaitRefused(t, 20)
			s.start(t, worker.Options{})
			buyers.awaitAccepted(t, 20, 20*time.Second)
			buyers.stop()
			for _, id := range buyers.accepted() {
				if id.N <= closed.Seq {
					t.Errorf("%s was sold from what Redis had", id)
				}
			}
			s.agreesWithin(t, 20*time.Second)
			if epoch := s.watermark(t, "truffle").Epoch; epoch <= closed.Epoch {
				t.Errorf("the epoch is still %d", epoch)
			}
		})
	}
}

// A restart after which no machine can know what is right. The lot stays shut with the reason; its neighbour sells.
func TestALotThatNeedsSomebodyStaysShutAlone(t *testing.T) {
	testkit.Long(t)
	tests := map[string]struct {
		fault func(t *testing.T, s *shop)
		want  fault.Code
	}{
		"has an event nobody can see": {loseEvent, fault.FreezeAhead},
		"stopped lot": {func(t *testing.T, s *shop) {
			s.sql(t, `UPDATE lots SET stopped = 'fork', stopped_at = now() WHERE lot = 'drop:truffle'`)
		}, fault.StopFork},
		"damaged": {func(t *testing.T, s *shop) { s.do(t, "HSET", keyOfLot(t, s, "drop:truffle"), "totals", "?") }, fault.FreezeDiffers},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.load(t, "drop:truffle", 40)
			s.load(t, "drop:neighbour", 40)
			s.sell(t, "drop:truffle", 0, 20)
			s.mustDrain(t)
			tt.fault(t, s)
			if err := s.redis.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.start(t, worker.Options{})
			s.sellsWithin(t, "drop:neighbour", 20*time.Second)
			states, err := s.stock.LotStates(t.Context(), []drop.LotID{"drop:truffle"})
			if err != nil || states["drop:truffle"].FreezeReason() != tt.want && states["drop:truffle"].Damaged == "" {
				t.Errorf("%+v, %v", states["drop:truffle"], err)
			}
			if _, err := s.hold(t.Context(), "drop:truffle", "late", time.Hour); !fault.Is(err, fault.LotFrozen) {
				t.Errorf("reserving answers %v", err)
			}
		})
	}
}

func TestALotThatTheLedgerStopsIsFrozenWhileItsShardSells(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "drop:truffle", 40)
	s.load(t, "drop:neighbour", 40)
	s.start(t, worker.Options{})
	s.sellsWithin(t, "drop:truffle", 10*time.Second)
	s.agreesWithin(t, 10*time.Second)
	s.sql(t, `UPDATE lots SET stopped = 'fork', stopped_at = now() WHERE lot = 'drop:truffle'`)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		_, err := s.hold(t.Context(), "drop:truffle", rand.Text(), time.Hour)
		return fault.Is(err, fault.LotFrozen), "still open: " + errorText(err)
	})
	if _, err := s.hold(t.Context(), "drop:neighbour", "late", time.Hour); err != nil {
		t.Error(err)
	}
}

func TestAnOperatorsFreezeIsLeftAlone(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.mustDrain(t)
	seen, err := s.stock.ShardState(t.Context(), drop.LotID("truffle").Shard(shards))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stock.Freeze(t.Context(), seen, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	if err := s.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sum, err := s.drain(t, worker.Options{}); err != nil || sum.Reopened != 0 {
		t.Errorf("did %+v: %v", sum, err)
	}
	if st := s.door(t, "truffle"); st.Frozen != string(fault.FreezeOperator) {
		t.Errorf("frozen for %q", st.Frozen)
	}
}

func TestAClockFreezeIsLiftedOnceTheClockHasCaughtUp(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.mustDrain(t)
	planted := time.Now()
	testkit.Plant(t, s.redis, lotKey(t, s), "mark", 5000)
	if _, err := s.hold(t.Context(), "truffle", "early", time.Hour); !fault.Is(err, fault.LotFrozen) {
		t.Fatalf("reserving answers %v", err)
	}
	if _, err := s.drain(t, worker.Options{}); err != nil && !fault.Is(err, fault.Finding) {
		t.Error(err)
	}
	_, err := s.hold(t.Context(), "truffle", "early", time.Hour)
	if early := time.Since(planted) < 3*time.Second; early && !fault.Is(err, fault.LotFrozen) { // it may catch up while a busy machine drains
		t.Errorf("reserving answers %v", err)
	}
	s.start(t, worker.Options{})
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := s.hold(t.Context(), "truffle", "late", time.Hour)
		return err == nil, "still shut: " + errorText(err)
	})
	s.agreesWithin(t, 20*time.Second)
}

// A worker that starts with an empty Redis cannot know whether it is the right one.
func TestAnEmptiedRedisSellsNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.sell(t, "truffle", 0, 20)
	s.mustDrain(t)
	s.do(t, "FLUSHALL")
	if sum, err := s.drain(t, worker.Options{}); !fault.Is(err, fault.Finding) || sum.Reopened != 0 {
		t.Errorf("did %+v: %v", sum, err)
	}
	if _, err := s.hold(t.Context(), "truffle", "late", time.Hour); !fault.Is(err, fault.LotNotLoaded) {
		t.Errorf("reserving answers %v", err)
	}
}

func TestALossInMidDropIsMadeGoodByAWorkerThatSawIt(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	for name, lose := range map[string][]string{
		"everything":      {"FLUSHALL"},
		"the doors alone": {"EVAL", "return redis.call('DEL', unpack(redis.call('KEYS', '*:meta')))", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.load(t, "truffle", 100_000)
			first, err := s.hold(t.Context(), "truffle", "early", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			s.start(t, worker.Options{})
			s.agreesWithin(t, 10*time.Second) // so that the ledger has the early hold, and the guardian has seen Redis
			buyers := s.buyers(t, "truffle")
			buyers.awaitAccepted(t, 50, 10*time.Second)
			s.do(t, lose...)
			s.awaitEpoch(t, "truffle", 2, 30*time.Second)
			buyers.awaitAccepted(t, 50, 10*time.Second)
			buyers.stop()
			s.agreesWithin(t, 20*time.Second)
			if again, err := s.hold(t.Context(), "truffle", "early", time.Hour); err != nil || again != first {
				t.Errorf("with the old key: %s, %v; want %s", again, err, first)
			}
		})
	}
}

func moveUnit(t *testing.T, s *shop) {
	testkit.Plant(t, s.redis, lotKey(t, s), "available", 1)
	testkit.Plant(t, s.redis, lotKey(t, s), "held", -1)
}

// loseTail puts the server back to the files it had before the newest ten holds, which the ledger has.
func loseTail(t *testing.T, s *shop) {
	saved := t.TempDir()
	files := filepath.Join(s.redis.Dir(), "appendonlydir")
	if err := os.CopyFS(saved, os.DirFS(files)); err != nil {
		t.Fatal(err)
	}
	s.sell(t, "truffle", 100, 10)
	s.mustDrain(t)
	if err := s.redis.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(files); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(files, os.DirFS(saved)); err != nil {
		t.Fatal(err)
	}
	if err := s.redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// loseEvent deletes an entry before the ledger has had it.
func loseEvent(t *testing.T, s *shop) {
	s.sell(t, "drop:truffle", 101, 1)
	s.do(t, "XTRIM", outboxKey(t, s, "drop:truffle"), "MAXLEN", "0")
}

func lotKey(t testing.TB, s *shop) string {
	t.Helper()
	return keyOfLot(t, s, "truffle")
}

func keyOfLot(t testing.TB, s *shop, lot string) string {
	t.Helper()
	return keyOf(t, s, "drop:{*}:lot:"+lot, ":lot:"+lot, ":lot:"+lot)
}

func (s *shop) do(t testing.TB, command ...string) string {
	t.Helper()
	reply, err := s.redis.Do(t.Context(), command...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(reply)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
