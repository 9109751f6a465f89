package stock

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
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

// See MANY_UNFILED and MOST_UNFILED in lua/common.lua.
const (
	enoughToFile = 640
	mostUnfiled  = 2560
)

func newLots(t *testing.T, s *Stock, n int) (lots []drop.LotID) {
	t.Helper()
	for i := range n {
		lots = append(lots, newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprintf("g:lot-%02d", i)), Stock: 100, Hold: time.Minute}))
	}
	return lots
}

func TestHoldsTakenOneByOneAreFiledTogether(t *testing.T) {
	s, rdb, _ := newShop(t)
	const holdsEach = 14
	lots := newLots(t, s, 50)
	keys := s.shardOf(lots[0]).keys
	want := map[drop.LotID][]string{}
	for i := range holdsEach {
		for _, lot := range lots {
			want[lot] = append(want[lot], reserve(t, s, lot, fmt.Sprint("user-", i), "k", 1).Reservation.ID.Attempt)
		}
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		n := rdb.LLen(t.Context(), keys.unfiled).Val() / 2
		return n < enoughToFile, fmt.Sprintf("%d holds wait to be filed", n)
	})
	if n := rdb.ZCard(t.Context(), keys.due).Val(); n < int64(len(lots)) || n > 2*int64(len(lots)) {
		t.Errorf("%d entries for %d lots", n, len(lots))
	}
	wantToBeLookedAt(t, s, want)
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

// wantToBeLookedAt checks which attempts of lots are filed, or will be, and that each is once.
func wantToBeLookedAt(t *testing.T, s *Stock, want map[drop.LotID][]string) {
	t.Helper()
	for lot, attempts := range want {
		slices.Sort(attempts)
		if got, _ := dueAttempts(t, s, lot); !slices.Equal(got, attempts) {
			t.Fatalf("of %s are to be looked at %v, held %v", lot, got, attempts)
		}
	}
}

// holdEach holds a unit of each lot in one call, past the engine, which so does not learn that much is unfiled.
func holdEach(t *testing.T, s *Stock, lots []drop.LotID, user string, want map[drop.LotID][]string) {
	t.Helper()
	g := &group{kind: reserveKind}
	g.reset()
	for _, lot := range lots {
		r := newRequest(reserveKind, lot)
		r.reserve = drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 1, Actor: "shop"}
		r.attempt = drop.AttemptOf(lot, user, "k")
		g.add(r)
		if want != nil {
			want[lot] = append(want[lot], r.attempt)
		}
	}
	sh := s.shardOf(lots[0])
	inv := g.invocation(sh, reserveKind)
	if r, err := s.script(t.Context(), sh, "reserve", inv.keys, inv.args); err != nil || r.status != "ok" {
		t.Fatal(r, err)
	}
}

func TestWhatNoEngineFilesAScriptDoes(t *testing.T) {
	s, rdb, _ := newShop(t)
	lots, want := newLots(t, s, 50), map[drop.LotID][]string{}
	keys := s.shardOf(lots[0]).keys
	for i := range 60 {
		holdEach(t, s, lots, fmt.Sprint("user-", i), want)
		if n := rdb.LLen(t.Context(), keys.unfiled).Val() / 2; n*int64(len(lots)) > mostUnfiled {
			t.Fatalf("%d calls wait to be filed", n)
		}
	}
	if n := rdb.ZCard(t.Context(), keys.due).Val(); n != int64(len(lots)) {
		t.Errorf("%d entries for %d lots", n, len(lots))
	}
	wantToBeLookedAt(t, s, want)
}

// TestHoldsOfManyLengthsAreGatheredToo: each of a call's takes elements of its own then.
func TestHoldsOfManyLengthsAreGatheredToo(t *testing.T) {
	s, rdb, _ := newShop(t)
	var lots []drop.LotID
	want := map[drop.LotID][]string{}
	for i := range 60 {
		lots = append(lots, newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprint("g:", i)), Stock: 9, Hold: time.Duration(1+i) * time.Minute, MaxHold: 2 * time.Hour}))
	}
	for _, user := range []string{"ann", "bob"} { // a rule is known to a server from its first call on
		holdEach(t, s, lots, user, want)
	}
	if n := rdb.LLen(t.Context(), s.shardOf(lots[0]).keys.unfiled).Val(); n < int64(2*len(lots)) {
		t.Errorf("%d elements wait, for %d lots", n, len(lots))
	}
	wantToBeLookedAt(t, s, want)
}

// TestSeveralEnginesFileWhatIsUnfiledOnce: each has read another part of it, some before holds came that the others read, some before
// all was filed.
func TestSeveralEnginesFileWhatIsUnfiledOnce(t *testing.T) {
	s, rdb, _ := newShop(t)
	lots, want := newLots(t, s, 5), map[drop.LotID][]string{}
	sh := s.shardOf(lots[0])
	var read [][]string
	for i := range 4 {
		holdEach(t, s, lots, fmt.Sprint("user-", i), want)
		read = append(read, rdb.LRange(t.Context(), sh.keys.unfiled, 0, -1).Val())
		if i == 2 {
			if r, err := s.script(t.Context(), sh, "sweep", sh.keys.gated(lots[0]), []string{"100", string(lots[0])}); err != nil || r.status != "ok" { // files them all
				t.Fatal(r, err)
			}
		}
	}
	for i := 5; i < 7; i++ {
		holdEach(t, s, lots, fmt.Sprint("user-", i), want)
		read = append(read, rdb.LRange(t.Context(), sh.keys.unfiled, 0, -1).Val())
	}
	file := func(elements []string, outcomes ...string) {
		t.Helper()
		r, err := s.script(t.Context(), sh, "file", sh.keys.gated(), argsToFile(t, elements))
		if err != nil || !slices.Contains(outcomes, r.status) {
			t.Fatal(r, err)
		}
		wantToBeLookedAt(t, s, want)
	}
	// A failover has lost the end of what was read, and as much has come since.
	at, lines := read[5][4], read[5][5]
	if err := rdb.LTrim(t.Context(), sh.keys.unfiled, 0, -3).Err(); err != nil {
		t.Fatal(err)
	}
	for _, lot := range lots {
		want[lot] = want[lot][:len(want[lot])-1]
	}
	holdEach(t, s, lots, "user-8", want)
	file(read[5], "conflict")
	if err := rdb.RPush(t.Context(), sh.keys.unfiled, at, lines).Err(); err != nil {
		t.Fatal(err)
	}
	for _, lot := range lots {
		want[lot] = append(want[lot], drop.AttemptOf(lot, "user-6", "k"))
	}
	for _, i := range []int{0, 1, 2, 5, 4, 3, 4, 5, 5, 0} {
		file(read[i], "ok", "conflict")
	}
	if n := rdb.LLen(t.Context(), sh.keys.unfiled).Val(); n != 4 {
		t.Errorf("%d elements wait: those that nobody had read are four", n)
	}
	for _, lot := range lots {
		wantHistory(t, s, rdb, lot)
	}
}

// unfiledLine is the line of a hold that waits to be filed.
func unfiledLine(lot, attempt string) string { return lot + "\t" + attempt + "\tann\tk\tshop\n" }

// TestDamageIsNotFiledByTheEngine, which could lose what a script can still read.
func TestDamageIsNotFiledByTheEngine(t *testing.T) {
	attempt := drop.AttemptOf("l", "ann", "k")
	const at = "1790000000000"
	sound := unfiledLine("l", attempt)
	if entries, holds := fileByLot([]string{at, sound, "1780000000000", unfiledLine("l", attempt) + unfiledLine("m", attempt)}); holds != 3 || len(entries) != 4 {
		t.Fatal(entries, holds)
	}
	for _, elements := range [][]string{nil, {at}, {sound}, {at, ""}, {at, sound, at}, {"", sound}, {"0", sound}, {"-1", sound}, {strings.Repeat("9", 40), sound}, {at, sound + "\xc1"}, {at, "\n" + sound},
		{at, sound[:len(sound)-1]}, {at, sound + "l\n"}, {at, unfiledLine("l", "short")}, {at, unfiledLine("", attempt)}, {at, "l" + sound[strings.LastIndex(sound, "\t"):]}} {
		if entries, holds := fileByLot(elements); holds > 0 {
			t.Errorf("of %q comes %q", elements, entries)
		}
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
	const at = "1790000000000"
	line := unfiledLine(string(lot), attempt)
	for i, damage := range [][]string{{"stray"}, {""}, {"\xc1", line}, {"\n"}, {at}, {at, at, at}, {at, string(lot)}, {at, unfiledLine(string(lot), "short")}, {at, unfiledLine("7", attempt)}, {at, unfiledLine("\xff", attempt)}, {at, unfiledLine("", attempt)},
		{at, "\xc1"}, {at, line[:len(line)-1]}, {at, line + "\xc1"}, {line}, {line, line}, {"-1", line}, {"1e999", line}, {at, line, line}, {strings.Repeat("9", 400), line}, {at, "\n" + line}, {at, "1e300\n" + line},
		{at, strings.Repeat("\t", 9) + line}, {at, unfiledLine(string(lot), "short") + line}, {at, "a\tb\tc\td\te\tf\n" + line}} {
		elements := make([]any, len(damage))
		for j, element := range damage {
			elements[j] = element
		}
		if err := rdb.RPush(t.Context(), keys.unfiled, elements...).Err(); err != nil {
			t.Fatal(err)
		}
		user := fmt.Sprint("user-", i)
		hold := reserve(t, s, lot, user, "k", 3)
		if got, _ := dueAttempts(t, s, lot); !slices.Contains(got, hold.Reservation.ID.Attempt) {
			t.Fatalf("with %q nobody will look at the hold", damage)
		}
		if err := rdb.LTrim(t.Context(), keys.unfiled, int64(len(damage)), -1).Err(); err != nil { // the passing of time cannot read it
			t.Fatal(err)
		}
		passTime(t, s, rdb, time.Hour, lot)
		slices.Reverse(elements)
		if err := rdb.LPush(t.Context(), keys.unfiled, elements...).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 100); err != nil {
			t.Fatalf("with %q: %v", damage, err)
		}
		wantTotals(t, s, lot, 3, 0, 0)
	}
	wantHistory(t, s, rdb, lot)
}

// TestADamagedDueEntryHidesNoOther: it comes before every time.
func TestADamagedDueEntryHidesNoOther(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 2, Hold: time.Minute})
	reserve(t, s, lot, "ann", "k", 2)
	passTime(t, s, rdb, time.Hour, lot)
	rdb.ZAdd(t.Context(), s.shardOf(lot).keys.due, redis.Z{Member: "l\t!"})
	if st, err := s.Lot(t.Context(), lot); err != nil || st.Due != 2 {
		t.Errorf("%d units are due, %v", st.Due, err)
	}
}

func FuzzParseUnfiled(f *testing.F) {
	attempt := drop.AttemptOf("l", "ann", "k")
	f.Add("1790000000000", unfiledLine("l", attempt))
	f.Add("-1", unfiledLine(strings.Repeat("long", 20), attempt))
	f.Fuzz(func(t *testing.T, at, element string) {
		for _, e := range parseUnfiled([]string{at, element}, "l") {
			if len(e.Attempts) == 0 || e.At.IsZero() {
				t.Errorf("of %q comes %+v", element, e)
			}
			for _, a := range e.Attempts {
				if len(a) != drop.AttemptLen || !strings.Contains(element, a) {
					t.Errorf("of %q comes %q", element, a)
				}
			}
		}
	})
}

// TestNoLotIsFiledForATimeBeforeItsNextLook: holds of several lots were taken in one call, and the first of them ends long before
// the others.
func TestNoLotIsFiledForATimeBeforeItsNextLook(t *testing.T) {
	s, rdb, _ := newShop(t)
	var lots []drop.LotID
	for i, hold := range []time.Duration{time.Hour, time.Minute, 2 * time.Hour} {
		lots = append(lots, newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprint("g:", i)), Stock: 9, Hold: hold, MaxHold: 2 * time.Hour}))
	}
	sh := s.shardOf(lots[0])
	for _, user := range []string{"ann", "bob"} { // a rule is known to a server from its first call on
		holdEach(t, s, lots, user, nil)
	}
	if n := rdb.LLen(t.Context(), sh.keys.unfiled).Val(); n == 0 {
		t.Fatal("nothing is unfiled: the test tests nothing")
	}
	passTime(t, s, rdb, time.Hour+time.Minute, lots[1])
	if _, err := s.Sweep(t.Context(), sh.number, 100); err != nil {
		t.Fatal(err)
	}
	for _, lot := range lots {
		if filed, first, err := s.NextLook(t.Context(), lot); err != nil || !first.IsZero() && filed.After(first) {
			t.Errorf("%s will be looked at %s, its first entry is of %s, %v", lot, filed, first, err)
		}
	}
}
