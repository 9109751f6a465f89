package stock

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
)

// dueAttempts are the attempts of a lot that are filed to be looked at, or will be.
func dueAttempts(t testing.TB, s *Stock, lot drop.LotID) (attempts []string, entries int) {
	t.Helper()
	err := s.DueEntries(t.Context(), lot, func(page []drop.DueEntry) error {
		for _, e := range page {
			attempts = append(attempts, e.Attempts...)
			entries++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(attempts)
	return attempts, entries
}

func TestHoldsTakenOneByOneAreFiledTogether(t *testing.T) {
	s, rdb, _ := newShop(t)
	const holdsEach, most = 14, 640 // see MOST_UNFILED in lua/common.lua
	var lots []drop.LotID
	for i := range 50 {
		lots = append(lots, newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprintf("g:lot-%02d", i)), Stock: 100, Hold: time.Minute}))
	}
	keys := s.shardOf(lots[0]).keys
	want := map[drop.LotID][]string{}
	for i := range holdsEach {
		for _, lot := range lots {
			want[lot] = append(want[lot], reserve(t, s, lot, fmt.Sprint("user-", i), "k", 1).Reservation.ID.Attempt)
		}
	}
	if n := rdb.LLen(t.Context(), keys.unfiled).Val(); n == 0 || n >= most {
		t.Errorf("%d calls wait to be filed", n)
	}
	if n := rdb.ZCard(t.Context(), keys.due).Val(); n != int64(len(lots)) {
		t.Errorf("%d entries for %d lots", n, len(lots))
	}
	for lot, attempts := range want {
		slices.Sort(attempts)
		if got, _ := dueAttempts(t, s, lot); !slices.Equal(got, attempts) {
			t.Fatalf("of %s are to be looked at %v, held %v", lot, got, attempts)
		}
	}
	passTime(t, s, rdb, time.Hour, lots...)
	for more := true; more; {
		out, err := s.Sweep(t.Context(), lots[0].Shard(s.Shards()), 100)
		if err != nil {
			t.Fatal(err)
		}
		more = out.More || out.Expired > 0
	}
	for _, lot := range lots {
		wantTotals(t, s, lot, 100, 0, 0)
		wantHistory(t, s, rdb, lot)
	}
}

// TestADueHoldThatIsUnfiledBlocksNobody: with no worker alive nothing is swept.
func TestADueHoldThatIsUnfiledBlocksNobody(t *testing.T) {
	s, rdb, _ := newShop(t)
	other := newLot(t, s, drop.Definition{Lot: "g:other", Stock: 1, Hold: time.Hour})
	reserve(t, s, other, "olga", "k", 1)
	for name, take := range map[string]func(t *testing.T, lot drop.LotID){
		"a buyer": func(t *testing.T, lot drop.LotID) { reserve(t, s, lot, "bob", "k", 2) },
		"the same buyer": func(t *testing.T, lot drop.LotID) {
			reserve(t, s, lot, "ann", "another", 2)
		},
		"a smaller capacity": func(t *testing.T, lot drop.LotID) {
			q := drop.AdjustRequest{Lot: lot, To: ptr[int64](0), Expect: 2, Actor: "op", Reason: "why"}
			for _, trial := range []bool{true, false} {
				q.DryRun = trial
				if _, _, err := s.Adjust(t.Context(), q); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			lot := newLot(t, s, drop.Definition{Lot: drop.LotID("g:" + name[:1] + fmt.Sprint(len(name))), Stock: 2, Hold: time.Minute})
			reserve(t, s, lot, "ann", "k", 2)
			passTime(t, s, rdb, time.Hour, lot)
			if st, err := s.Lot(t.Context(), lot); err != nil || st.Due != 2 {
				t.Fatalf("%d units are due, %v", st.Due, err)
			}
			if n := rdb.LLen(t.Context(), s.shardOf(lot).keys.unfiled).Val(); n == 0 {
				t.Fatal("nothing is unfiled: the test tests nothing")
			}
			take(t, lot)
			wantHistory(t, s, rdb, lot)
			if got, _ := dueAttempts(t, s, other); len(got) != 1 {
				t.Errorf("of another lot are to be looked at %v", got)
			}
		})
	}
}

// TestALotThatGoesTakesWhatIsUnfiledOfItAlong: or its due entries would come back after it.
func TestALotThatGoesTakesWhatIsUnfiledOfItAlong(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "g:l", Stock: 3})
	stays := newLot(t, s, drop.Definition{Lot: "g:stays", Stock: 3})
	reserve(t, s, lot, "ann", "k", 1)
	reserve(t, s, stays, "ann", "k", 1)
	seen, err := s.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if got, _ := dueAttempts(t, s, lot); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
	if got, _ := dueAttempts(t, s, stays); len(got) != 1 {
		t.Errorf("of the lot that stays: %v", got)
	}
}

func TestDamageInWhatIsUnfiledHarmsNobody(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "g:l", Stock: 3, Hold: time.Minute})
	keys := s.shardOf(lot).keys
	attempt := drop.AttemptOf(lot, "nobody", "k")
	const at = "1790000000000\n"
	for i, damage := range []string{"stray", "", "\xc1", "\n", "\t", at, at + string(lot), at + string(lot) + "\tshort\n", at + string(lot) + "\t" + attempt[:25] + "!\n", at + "\t" + attempt + "\n", at + "\xff\t" + attempt + "\n",
		string(lot) + "\t" + attempt + "\n", "-1\n" + string(lot) + "\t" + attempt + "\n", "1e999\n" + string(lot) + "\t" + attempt + "\n", at + at + string(lot) + "\t" + attempt + "x\n",
		at + string(lot) + "\t" + attempt, strings.Repeat("9", 400) + "\n" + string(lot) + "\t" + attempt + "\n"} {
		if err := rdb.RPush(t.Context(), keys.unfiled, damage).Err(); err != nil {
			t.Fatal(err)
		}
		user := fmt.Sprint("user-", i)
		hold := reserve(t, s, lot, user, "k", 3)
		if got, _ := dueAttempts(t, s, lot); !slices.Contains(got, hold.Reservation.ID.Attempt) {
			t.Fatalf("with %q nobody will look at the hold", damage)
		}
		passTime(t, s, redisWithout(t, rdb, keys.unfiled, damage), time.Hour, lot)
		if err := rdb.LPush(t.Context(), keys.unfiled, damage).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 100); err != nil {
			t.Fatalf("with %q: %v", damage, err)
		}
		wantTotals(t, s, lot, 3, 0, 0)
	}
	wantHistory(t, s, rdb, lot)
}

// redisWithout takes an element out of a list that the passing of time cannot read.
func redisWithout(t testing.TB, rdb *redis.Client, key, element string) *redis.Client {
	t.Helper()
	if err := rdb.LRem(t.Context(), key, 0, element).Err(); err != nil {
		t.Fatal(err)
	}
	return rdb
}

func FuzzParseUnfiled(f *testing.F) {
	attempt := drop.AttemptOf("l", "ann", "k")
	f.Add("1790000000000\nl\t" + attempt + "\tann\tk\tshop\n")
	f.Add("-1\nl\t" + attempt)
	f.Fuzz(func(t *testing.T, element string) {
		for _, e := range parseUnfiled(element, "l") {
			if len(e.Attempts) == 0 {
				t.Errorf("of %q comes an entry without attempts", element)
			}
			for _, a := range e.Attempts {
				if len(a) != drop.AttemptLen || !strings.Contains(element, "\nl\t"+a) {
					t.Errorf("of %q comes %q", element, a)
				}
			}
		}
	})
}
