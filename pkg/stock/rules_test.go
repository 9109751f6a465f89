package stock

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestEveryLotSellsByItsOwnRules: a call knows rules that it has seen by their print. Each lot's change while others sell, and so many
// are tried meanwhile that Redis forgets all it keeps, in the middle of calls.
func TestEveryLotSellsByItsOwnRules(t *testing.T) {
	testkit.Long(t)
	s, rdb, _ := newShop(t)
	const lots, kept = 100, 1000 // see MOST_RULES in lua/common.lua
	ids, holds := make([]drop.LotID, lots), make([]time.Duration, lots)
	for i := range ids {
		holds[i] = time.Duration(i+1) * time.Minute
		ids[i] = newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprintf("r-%d", i)), Stock: 9, Hold: holds[i], MaxHold: 24 * time.Hour})
	}
	for round := range 3 {
		inParallel(lots+kept, func(i int) {
			if i >= lots { // a rule that nobody has had
				hold := 10*time.Hour + time.Duration(round*kept+i)*time.Second
				if _, _, err := s.Change(t.Context(), drop.ChangeRequest{Lot: ids[i%lots], Hold: &hold, DryRun: true}); err != nil {
					t.Error(err)
				}
				return
			}
			r, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: ids[i], User: fmt.Sprint("user-", round), Key: "k", Qty: 1})
			if err != nil {
				t.Errorf("%s: %v", ids[i], err)
				return
			}
			if got := r.Reservation.Deadline.Sub(r.Reservation.Created); got != holds[i] {
				t.Errorf("%s holds for %s, not %s", ids[i], got, holds[i])
			}
		})
		for i := range ids {
			if i%3 != round {
				continue
			}
			holds[i] += time.Second
			if _, _, err := s.Change(t.Context(), drop.ChangeRequest{Lot: ids[i], Hold: &holds[i]}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range ids[:9] {
		wantHistory(t, s, rdb, id)
	}
}

// TestNumbersThatAreNoneAreDamage: no comparison with one holds, so none would ever refuse a hold.
func TestNumbersThatAreNoneAreDamage(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	key := s.shardOf(lot).keys.lot(lot)
	live := rdb.HGet(t.Context(), key, "live").Val()
	for i := range 5 {
		for _, number := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0.5} {
			damaged := binary.LittleEndian.AppendUint64([]byte(live[:8*i]), math.Float64bits(number))
			damaged = append(damaged, live[8*i+8:]...)
			rdb.HSet(t.Context(), key, "live", damaged)
			before := contents(t, rdb)
			for name, try := range map[string]func() error{
				"a hold": func() error {
					_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 10, Replace: true})
					return err
				},
				"an adjustment": func() error {
					_, _, err := s.Adjust(t.Context(), drop.AdjustRequest{Lot: lot, To: ptr[int64](8), Expect: 9, Actor: "op", Reason: "why"})
					return err
				},
				"a look": func() error { _, err := s.Lot(t.Context(), lot); return err },
			} {
				if err := try(); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "damaged") {
					t.Errorf("%s where number %d is %v: %v", name, i, number, err)
				}
			}
			if !maps.Equal(before, contents(t, rdb)) {
				t.Errorf("where number %d is %v something was written", i, number)
			}
		}
	}
}

// TestRulesThatAreNotALotsOwnAreDamage: whoever reads them refuses the lot.
func TestRulesThatAreNotALotsOwnAreDamage(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot, other := newLot(t, s, drop.Definition{Lot: "l", Stock: 9}), newLot(t, s, drop.Definition{Lot: "m", Stock: 9, Limit: 3})
	key := s.shardOf(lot).keys.lot(lot)
	hold := reserve(t, s, lot, "ann", "k", 1).Reservation
	if err := rdb.HSet(t.Context(), key, "rule", rdb.HGet(t.Context(), s.shardOf(other).keys.lot(other), "rule").Val()).Err(); err != nil {
		t.Fatal(err)
	}
	before := contents(t, rdb)
	if _, err := s.Settle(t.Context(), drop.SettleRequest{ID: hold.ID, Action: drop.ActRelease}); err == nil {
		t.Error("a hold of the lot is settled")
	}
	if _, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k2", Qty: 1}); err == nil {
		t.Error("a user's second hold is taken")
	}
	if got, err := s.Lot(t.Context(), lot); err == nil {
		t.Errorf("the lot is shown: %+v", got)
	}
	if after := contents(t, rdb); after[key] != before[key] {
		t.Errorf("was %s\nis %s", before[key], after[key])
	}
}
