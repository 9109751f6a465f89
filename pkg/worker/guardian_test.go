package worker_test

import (
	"os"
	"path/filepath"
	"strconv"
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
	for i := range 6 {
		lot := drop.LotID("lot-" + strconv.Itoa(i))
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			_, err := s.hold(t.Context(), lot, "late", time.Hour)
			return err == nil, "still shut: " + errorText(err)
		})
	}
	s.agreesWithin(t, 20*time.Second)
}

// A restart after which Redis is not what the ledger knows. Each case plants its fault while Redis is up or
// down; the shard must stay shut with the reason, and nothing may be sold.
func TestARestartedRedisThatDiffersStaysShut(t *testing.T) {
	tests := map[string]struct {
		fault func(t *testing.T, s *shop)
		want  fault.Code
	}{
		"lost its tail":               {loseTail, fault.FreezeBehind},
		"lost a lot":                  {func(t *testing.T, s *shop) { s.do(t, "DEL", lotKey(t, s)) }, fault.FreezeEmptied},
		"has an event nobody can see": {loseEvent, fault.FreezeAhead},
		"a unit moved": {func(t *testing.T, s *shop) {
			testkit.Plant(t, s.redis, lotKey(t, s), "available", 1)
			testkit.Plant(t, s.redis, lotKey(t, s), "held", -1)
		}, fault.FreezeDiffers},
		"the limit changed": {func(t *testing.T, s *shop) { testkit.Plant(t, s.redis, lotKey(t, s), "limit", 7) }, fault.FreezeDiffers},
		"stopped lot": {func(t *testing.T, s *shop) {
			s.sql(t, `UPDATE lots SET stopped = 'fork', stopped_at = now()`)
		}, fault.StopFork},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.load(t, "truffle", 40)
			s.sell(t, "truffle", 0, 20)
			if _, err := s.drain(t, worker.Options{}); err != nil {
				t.Fatal(err)
			}
			tt.fault(t, s)
			if err := s.redis.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.start(t, worker.Options{Log: testLog(t)})
			testkit.Eventually(t, 20*time.Second, func() (bool, string) {
				st := s.door(t, "truffle")
				return st.Frozen == string(tt.want), "frozen for " + strconv.Quote(st.Frozen)
			})
			if _, err := s.hold(t.Context(), "truffle", "late", time.Hour); err == nil {
				t.Error("it still sells")
			}
		})
	}
}

func TestAFreezeIsLiftedOnceBothSidesAreEqual(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.sell(t, "truffle", 0, 20)
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
	testkit.Plant(t, s.redis, lotKey(t, s), "limit", 7)
	if err := s.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
	if st := s.door(t, "truffle"); st.Frozen != string(fault.FreezeDiffers) {
		t.Fatalf("frozen for %q", st.Frozen)
	}
	testkit.Plant(t, s.redis, lotKey(t, s), "limit", -7)
	if sum, err := s.drain(t, worker.Options{}); err != nil || sum.Reopened != 1 {
		t.Fatalf("did %+v: %v", sum, err)
	}
	if _, err := s.hold(t.Context(), "truffle", "late", time.Hour); err != nil {
		t.Error(err)
	}
}

func TestAnOperatorsFreezeIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
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
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
	testkit.Plant(t, s.redis, lotKey(t, s), "mark", 5000)
	if _, err := s.hold(t.Context(), "truffle", "early", time.Hour); !fault.Is(err, fault.LotFrozen) {
		t.Fatalf("reserving answers %v", err)
	}
	if sum, err := s.drain(t, worker.Options{}); err != nil || sum.Reopened != 0 || s.door(t, "truffle").Frozen != string(fault.FreezeClock) {
		t.Errorf("did %+v: %v; %+v", sum, err, s.door(t, "truffle"))
	}
	s.start(t, worker.Options{})
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := s.hold(t.Context(), "truffle", "late", time.Hour)
		return err == nil, "still shut: " + errorText(err)
	})
	s.agreesWithin(t, 20*time.Second)
}

func TestAnEmptiedRedisSellsNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.sell(t, "truffle", 0, 20)
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
	s.do(t, "FLUSHALL")
	if sum, err := s.drain(t, worker.Options{}); err != nil || sum.Reopened != 0 {
		t.Errorf("did %+v: %v", sum, err)
	}
	if _, err := s.hold(t.Context(), "truffle", "late", time.Hour); !fault.Is(err, fault.LotNotLoaded) {
		t.Errorf("reserving answers %v", err)
	}
}

// loseTail puts the server back to the files it had before the newest ten holds, which the ledger has.
func loseTail(t *testing.T, s *shop) {
	saved := t.TempDir()
	files := filepath.Join(s.redis.Dir(), "appendonlydir")
	if err := os.CopyFS(saved, os.DirFS(files)); err != nil {
		t.Fatal(err)
	}
	s.sell(t, "truffle", 100, 10)
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
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
	s.sell(t, "truffle", 101, 1)
	s.do(t, "XTRIM", outboxKey(t, s, "truffle"), "MAXLEN", "0")
}

func lotKey(t testing.TB, s *shop) string {
	t.Helper()
	return keyOf(t, s, "drop:{*}:lot:truffle", ":lot:truffle", ":lot:truffle")
}

func (s *shop) do(t testing.TB, command ...string) {
	t.Helper()
	if _, err := s.redis.Do(t.Context(), command...); err != nil {
		t.Fatal(err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
