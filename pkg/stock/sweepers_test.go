package stock

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestManySweepersEndAsOne lets sweepers of several processes take back the same holds at once. One more has seen what is due
// and then stands still, for as long as it takes to sell all units to others: what it sends afterwards changes nothing.
func TestManySweepersEndAsOne(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s, rdb, r := newShop(t)
	const lots, each, sweepers = 4, 100, 4
	var all []drop.LotID
	sell := func(who string) {
		inParallel(lots*each, func(i int) { reserve(t, s, all[i%lots], who+strconv.Itoa(i), "k", 1) })
	}
	for i := range lots {
		all = append(all, newLot(t, s, drop.Definition{Lot: drop.LotID("g:" + strconv.Itoa(i)), Stock: each, Hold: time.Minute}))
	}
	sell("old-")
	passTime(t, s, rdb, 2*time.Minute, all...)
	sh := s.shardOf(all[0])
	seen, err := rdb.ZRange(t.Context(), sh.keys.next, 0, -1).Result()
	if err != nil || len(seen) != lots {
		t.Fatalf("due are %v, %v", seen, err)
	}

	var expired atomic.Int64
	inParallel(sweepers, func(int) {
		other := openStock(t, r.URL())
		for more := true; more; {
			did, err := other.Sweep(t.Context(), sh.number, 7) // a little at a time, so that they meet
			if err != nil {
				t.Error(err)
				return
			}
			expired.Add(int64(did.Expired))
			more = did.More
		}
	})
	if n := expired.Load(); n != lots*each {
		t.Errorf("%d holds were taken back, of %d", n, lots*each)
	}
	sell("new-")
	late, err := s.script(t.Context(), sh, "sweep", sh.keys.gated(all...), append([]string{"1000"}, seen...))
	if err != nil || late.status != "ok" || late.text(0) != "0" {
		t.Errorf("who comes late does %+v, %v", late, err)
	}
	for _, lot := range all {
		wantTotals(t, s, lot, 0, each, 0)
		if events := wantHistory(t, s, rdb, lot); len(events) != 1+3*each {
			t.Errorf("%s has %d events", lot, len(events))
		}
	}
}
