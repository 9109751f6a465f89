package stock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
)

// TestAFixActsOnlyOnWhatWasSeen changes every part of the evidence in turn: nothing is written until all of it is right,
// and then once.
func TestAFixActsOnlyOnWhatWasSeen(t *testing.T) {
	s, rdb, _ := newShop(t)
	const lot = drop.LotID("hat")
	newLot(t, s, drop.Definition{Lot: lot, Stock: 9})
	ann := reserve(t, s, lot, "ann", "k", 2).Reservation
	bob := reserve(t, s, lot, "bob", "k", 1).Reservation
	sound := dueMember(lot, bob.Deadline.UnixMilli(), bob.ID.Attempt)
	bob = settle(t, s, drop.SettleRequest{ID: bob.ID, Action: drop.ActConfirm, Ref: "p"}).Reservation
	ann.Asked = "2/0"
	k := s.shardOf(lot).keys
	rdb.Del(t.Context(), k.due, k.next, k.unfiled)
	rdb.ZAdd(t.Context(), k.due, redis.Z{Member: sound}, redis.Z{Member: "hat\t!"})
	rdb.HSet(t.Context(), k.lot(lot), ann.ID.Attempt, recordText(drop.Record{Reservation: ann}), drop.MarkOf(lot, "ann"), "5\t0\t\tann", "#left", "1\t1\t1\t")
	ended := ann
	ended.ID.Attempt = drop.AttemptOf(lot, "nobody", "k")
	seen, err := s.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	later := func(r drop.Reservation) drop.Reservation { r.LastSeq++; return r }
	due := func(r drop.Reservation) drop.Fix {
		return drop.Fix{Kind: drop.FixDue, Subject: r.ID.Attempt, Records: []drop.Reservation{r}}
	}
	user := func(held int64, records ...drop.Reservation) drop.Fix {
		return drop.Fix{Kind: drop.FixUser, Subject: "ann", Seen: drop.UserCount{Mark: drop.MarkOf(lot, "ann"), User: "ann", Held: held}, Records: records}
	}
	stray := func(member string) drop.Fix { return drop.Fix{Kind: drop.FixStray, Subject: member} }
	fixes := []drop.Fix{due(ann), user(5, ann), stray("hat\t!"), {Kind: drop.FixBatch, Subject: "left"}, {Kind: drop.FixNext}}
	otherRun, otherEpoch, fromAhead := seen, seen, seen
	otherRun.Run, otherEpoch.Epoch, fromAhead.Seq = "another", seen.Epoch+1, seen.Seq+1
	for name, c := range map[string]struct {
		seen  drop.LotState
		fixes []drop.Fix
	}{
		"another server":           {otherRun, fixes},
		"another epoch":            {otherEpoch, fixes},
		"a seq not reached":        {fromAhead, fixes},
		"a hold that went on":      {seen, []drop.Fix{due(later(ann)), user(5, later(ann))}},
		"no hold":                  {seen, []drop.Fix{due(bob), due(ended)}},
		"another user's record":    {seen, []drop.Fix{user(5, ann, bob)}},
		"a record that is no more": {seen, []drop.Fix{user(5, ann, ended)}},
		"other counters":           {seen, []drop.Fix{user(4, ann)}},
		"damaged counters":         {seen, []drop.Fix{{Kind: drop.FixUser, Subject: "ann", Seen: drop.UserCount{Mark: drop.MarkOf(lot, "ann"), Damaged: true}, Records: []drop.Reservation{ann}}}},
		"a sound due entry":        {seen, []drop.Fix{stray(sound)}},
	} {
		before := contents(t, rdb)
		outcomes, err := s.Repair(t.Context(), c.seen, c.fixes)
		if err != nil || len(outcomes) != len(c.fixes) || slices.ContainsFunc(outcomes, func(o drop.FixOutcome) bool { return o != drop.FixConflict }) {
			t.Errorf("%s: %v, %v", name, outcomes, err)
		}
		if !maps.Equal(before, contents(t, rdb)) {
			t.Errorf("%s: something was written", name)
		}
	}
	for _, want := range []drop.FixOutcome{drop.FixDone, drop.FixSame} {
		outcomes, err := s.Repair(t.Context(), seen, fixes)
		if err != nil || fmt.Sprint(outcomes) != fmt.Sprint(slices.Repeat([]drop.FixOutcome{want}, len(fixes))) {
			t.Errorf("%v, %v; want each %s", outcomes, err, want)
		}
	}
	if now, err := s.Lot(t.Context(), lot); err != nil || now.Watermark != seen.Watermark || now.Totals != seen.Totals {
		t.Errorf("the lot is %+v, %v", now, err)
	}
	if u, err := s.UsersOf(t.Context(), lot, []string{"ann"}); err != nil || u["ann"] != (drop.UserCount{Mark: drop.MarkOf(lot, "ann"), User: "ann", Held: 2, Live: ann.ID.Attempt}) {
		t.Errorf("ann has %+v, %v", u, err)
	}
	if filed, first, err := s.NextLook(t.Context(), lot); err != nil || !filed.Equal(first) || first.After(ann.Deadline) {
		t.Errorf("looked at %s, first due %s, %v", filed, first, err)
	}
	if err := rdb.HGet(t.Context(), k.lot(lot), "#left").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("the batch is still there: %v", err)
	}
	passTime(t, s, rdb, time.Hour, lot)
	if out, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 100); err != nil || out.Expired != 1 {
		t.Errorf("swept %+v, %v", out, err)
	}
	wantHistory(t, s, rdb, lot)
}

// TestAFixedHoldNoLongerNeedsItsBatch: a batch goes with its own due entry; a hold that was missing in it must not be
// lost with it.
func TestAFixedHoldNoLongerNeedsItsBatch(t *testing.T) {
	s, rdb, _ := newShop(t)
	const lot = drop.LotID("hat")
	newLot(t, s, drop.Definition{Lot: lot, Stock: 100, Hold: time.Minute})
	k := s.shardOf(lot).keys
	var batch drop.DueEntry
	for n := 0; len(batch.Attempts) < 2; n++ {
		if n > 20 {
			t.Fatal("no batch was made")
		}
		inParallel(64/(n+1)+8, func(i int) {
			_, _ = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprint(n, "-", i), Key: "k", Qty: 1})
		})
		err := s.DueEntries(t.Context(), lot, func(page []drop.DueEntry) error {
			for _, e := range page {
				if e.Batch != "" && len(e.Attempts) > 1 {
					batch = e
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	lost := batch.Attempts[0]
	without := batch.Text[:len(batch.Text)-len(batch.Attempts)*drop.AttemptLen] + batch.Text[len(batch.Text)-(len(batch.Attempts)-1)*drop.AttemptLen:]
	rdb.ZRem(t.Context(), k.due, batch.Text)
	rdb.ZAdd(t.Context(), k.due, redis.Z{Member: without})
	found, err := s.RecordsOf(t.Context(), lot, []string{lost})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := s.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	outcomes, err := s.Repair(t.Context(), seen, []drop.Fix{{Kind: drop.FixDue, Subject: lost, Records: []drop.Reservation{found[lost]}}})
	if err != nil || outcomes[0] != drop.FixDone {
		t.Fatal(outcomes, err)
	}
	if again, err := s.RecordsOf(t.Context(), lot, []string{lost}); err != nil || again[lost] != found[lost] {
		t.Errorf("the record was %+v, is %+v, %v", found[lost], again[lost], err)
	}
	if record := rdb.HGet(t.Context(), k.lot(lot), lost[:drop.MarkLen]).Val(); !strings.HasPrefix(record, "h"+lost[drop.MarkLen:]) {
		t.Errorf("the record still needs its batch: %q", record)
	}
	passTime(t, s, rdb, time.Hour, lot)
	for more := true; more; {
		out, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 3)
		if err != nil {
			t.Fatal(err)
		}
		more = out.More
	}
	wantTotals(t, s, lot, 100, 0, 0)
	wantHistory(t, s, rdb, lot)
}
