package worker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// apart returns two lots of different shards.
func apart(t *testing.T, s *shop, units int64) (one, other drop.LotID) {
	t.Helper()
	one = "lot-0"
	for i := 1; other == "" || other.Shard(shards) == one.Shard(shards); i++ {
		other = drop.LotID(fmt.Sprint("lot-", i))
	}
	s.load(t, one, units)
	s.load(t, other, units)
	return one, other
}

// catchesUp waits until the ledger has all that Redis has of a lot.
func (s *shop) catchesUp(t testing.TB, lot drop.LotID) {
	t.Helper()
	testkit.Eventually(t, 60*time.Second, func() (bool, string) {
		lots, err := s.ledger.Lots(t.Context(), []drop.LotID{lot})
		st, stockErr := s.stock.LotStates(t.Context(), []drop.LotID{lot})
		if err != nil || stockErr != nil || len(lots) != 1 {
			return false, fmt.Sprint(err, stockErr)
		}
		return lots[0].Watermark == st[lot].Watermark, fmt.Sprintf("the ledger is at %+v, Redis at %+v", lots[0].Watermark, st[lot].Watermark)
	})
}

// TestAStrangeShardIsLeftAlone puts another installation's mark on a shard, and then something else under each of its keys.
// The other shards go on, and so does this one as soon as it is as it was.
func TestAStrangeShardIsLeftAlone(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	strange, other := apart(t, s, 1000)
	s.mustDrain(t)
	stop := s.start(t, worker.Options{Keep: time.Millisecond})
	sold := 0
	goesOn := func(lot drop.LotID) {
		t.Helper()
		s.sell(t, lot, sold, 10)
		sold += 10
		s.catchesUp(t, lot)
	}

	meta := keyOf(t, s, "drop:{*}:lot:"+string(strange), ":lot:"+string(strange), ":meta")
	owner := s.do(t, "HGET", meta, "owner")
	s.sell(t, strange, 0, 10)
	s.do(t, "HSET", meta, "owner", "somebody-else/4")
	if _, err := s.hold(t.Context(), strange, "ann", time.Hour); !fault.Is(err, fault.Foreign) {
		t.Errorf("reserving there is answered %v", err)
	}
	goesOn(other)
	if _, err := s.drain(t, worker.Options{}); !fault.Is(err, fault.Finding) || !strings.Contains(err.Error(), "foreign_installation") {
		t.Errorf("until idle it ended with %v", err)
	}
	for _, parts := range [][]worker.Part{{worker.Relay}, {worker.Sweep}} {
		if _, err := s.drain(t, worker.Options{Only: parts}); err != nil {
			t.Errorf("%v until idle ended with %v", parts, err)
		}
	}
	s.do(t, "HSET", meta, "owner", owner)
	goesOn(strange)

	base := strings.TrimSuffix(meta, "meta")
	for _, key := range []string{"meta", "outbox", "due", "next", "unfiled", "lot:" + string(strange)} {
		there := s.do(t, "EXISTS", base+key) == "1"
		if there {
			s.do(t, "RENAME", base+key, "aside")
		}
		s.do(t, "SET", base+key, "x")
		goesOn(other)
		s.do(t, "DEL", base+key)
		if there {
			s.do(t, "RENAME", "aside", base+key)
		}
		goesOn(strange)
	}
	if sum, err := stop(); err != nil || sum.Parked > 0 {
		t.Errorf("the worker ended with %+v, %v", sum, err)
	}
	s.mustDrain(t)
	s.mustAgree(t)
}

// TestAStrangeShardIsSentAgainLaterEvenIfItHasNoLots: what a shard with another installation's data lacks of ours, nobody can
// see before it is ours again.
func TestAStrangeShardIsSentAgainLaterEvenIfItHasNoLots(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	strange, _ := apart(t, s, 10)
	s.mustDrain(t)
	key := keyOfLot(t, s, string(strange))
	s.do(t, "DEL", key)
	s.do(t, "HSET", strings.TrimSuffix(key, "lot:"+string(strange))+"meta", "owner", "somebody-else/4")
	s.sql(t, fmt.Sprintf(`UPDATE lots SET archive = 'done' WHERE lot = '%s'`, strange)) // so that the ledger does not name it either
	s.sql(t, `UPDATE settings SET server = 'the one before'`)
	if _, err := s.drain(t, worker.Options{Only: []worker.Part{worker.Relay}}); err != nil {
		t.Fatal(err)
	}
	if left := s.sql(t, `SELECT unsent FROM settings`); left != fmt.Sprintf("{%d}", strange.Shard(shards)) {
		t.Errorf("to be sent again are %s", left)
	}
}
