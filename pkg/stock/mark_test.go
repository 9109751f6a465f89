package stock

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func TestANewHoldIsOneField(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9, Limit: 3})
	key := s.shardOf(lot).keys.lot(lot)
	empty := rdb.HLen(t.Context(), key).Val()
	wantFields := func(more int64) {
		t.Helper()
		if n := rdb.HLen(t.Context(), key).Val() - empty; n != more {
			t.Errorf("%d fields more than without a hold, not %d: %q", n, more, rdb.HKeys(t.Context(), key).Val())
		}
		wantHistory(t, s, rdb, lot)
	}
	hold := reserve(t, s, lot, "ann", "k", 2).Reservation
	wantFields(1)
	if again := reserve(t, s, lot, "ann", "k", 2); !again.Replayed || again.Reservation != hold {
		t.Errorf("the key again: %+v", again)
	}
	wantFields(1)
	if _, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "other", Qty: 1}); !fault.Is(err, fault.HoldExists) {
		t.Errorf("another key: %v", err)
	}
	hold = settle(t, s, drop.SettleRequest{ID: hold.ID, Action: drop.ActExtend, By: 20 * time.Minute}).Reservation
	wantFields(2) // its record, and the user's counters
	settle(t, s, drop.SettleRequest{ID: hold.ID, Action: drop.ActRelease})
	wantFields(1) // what is kept of it
	reserve(t, s, lot, "ann", "new", 1)
	wantFields(2)
	replaced, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "newer", Qty: 3, Replace: true})
	if err != nil || replaced.Reservation.Qty != 3 {
		t.Fatal(replaced, err)
	}
	wantFields(3) // two released, one held
	settle(t, s, drop.SettleRequest{ID: replaced.Reservation.ID, Action: drop.ActConfirm, Qty: 2, Ref: "p"})
	wantFields(4) // counters again
	reserve(t, s, lot, "ann", "last", 1)
	wantFields(5)
}

// TestARefusalChangesNothingOfAHold: others of the same call change, and users are written with their lot.
func TestARefusalChangesNothingOfAHold(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	ann, bob := reserve(t, s, lot, "ann", "k", 2).Reservation, reserve(t, s, lot, "bob", "k", 2).Reservation
	sh := s.shardOf(lot)
	row := func(id drop.ReservationID, action, number string) []string {
		return []string{id.Attempt, itoa(id.N), action, number, "", "", "op\twhy"}
	}
	args := slices.Concat([]string{"100", "1", string(lot), "2"}, row(ann.ID, "f", "-1"), row(bob.ID, "r", "0"))
	r, err := s.script(t.Context(), sh, "settle", sh.keys.gated(lot), args)
	if err != nil || !strings.HasPrefix(r.text(1), "!\tnot_confirmed") {
		t.Fatalf("%q, %v", r.text(1), err)
	}
	wantHistory(t, s, rdb, lot)
	if got, err := s.Reservation(t.Context(), ann.ID); err != nil || got != ann {
		t.Errorf("%+v, %v", got, err)
	}
	passTime(t, s, rdb, time.Hour, lot)
	reserve(t, s, lot, "cy", "k", 9)
	wantHistory(t, s, rdb, lot)
}

// TestUsersOfOneMarkAreNotMixedUp: nobody finds two such names by accident, and who looks for them gains nothing.
func TestUsersOfOneMarkAreNotMixedUp(t *testing.T) {
	for _, bought := range []bool{false, true} {
		s, rdb, _ := newShop(t)
		lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9, Late: drop.Reclaim})
		key := s.shardOf(lot).keys.lot(lot)
		ann := reserve(t, s, lot, "ann", "k", 2).Reservation
		if bought {
			settle(t, s, drop.SettleRequest{ID: ann.ID, Action: drop.ActConfirm, Ref: "p"})
		}
		mark := drop.MarkOf(lot, "bob")
		if err := rdb.HSet(t.Context(), key, mark, strings.ReplaceAll(rdb.HGet(t.Context(), key, drop.MarkOf(lot, "ann")).Val(), ann.ID.Attempt[:drop.MarkLen], mark)).Err(); err != nil {
			t.Fatal(err)
		}
		before := contents(t, rdb)
		if _, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "bob", Key: "k2", Qty: 1}); !fault.Is(err, fault.Conflict) {
			t.Errorf("bob is told %v", err)
		}
		if after := contents(t, rdb); after[key] != before[key] {
			t.Errorf("was %s\nis %s", before[key], after[key])
		}
	}
}

// TestHoldsOfManyLotsAreToldAsOneGroup: in one call, with lots among them that answer something else.
func TestHoldsOfManyLotsAreToldAsOneGroup(t *testing.T) {
	s, rdb, _ := newShop(t)
	g := &group{kind: reserveKind}
	g.reset()
	var lots []drop.LotID
	var sh *shard
	for i := range 12 {
		lot := newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprintf("g:%02d", i)), Stock: 2, Hold: time.Duration(1+i/4) * time.Minute})
		lots, sh = append(lots, lot), s.shardOf(lot)
		r := newRequest(reserveKind, lot)
		r.reserve = drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 1, Actor: "shop"}
		r.attempt = drop.AttemptOf(lot, "ann", "k")
		g.add(r)
	}
	want := map[drop.LotID]string{}
	for _, lot := range lots {
		want[lot] = ""
	}
	for _, i := range []int{0, 5, 6, 11} { // the first, two in a row, the last
		want[lots[i]] = "!\tsold_out"
		reserve(t, s, lots[i], "bob", "k", 2)
	}
	want[lots[3]] = "=\t"
	reserve(t, s, lots[3], "ann", "k", 1)
	inv := g.invocation(sh, reserveKind)
	// A rule is known to a server from its first call on; the second says how it is from then on.
	for call := range 2 {
		r, err := s.script(t.Context(), sh, "reserve", inv.keys, inv.args)
		if err != nil || r.status != "ok" {
			t.Fatal(r, err)
		}
		for i, l := range g.lots {
			_, line := g.part(r, i)
			switch {
			case want[l.lot] != "" && !strings.HasPrefix(line, want[l.lot]), call == 1 && want[l.lot] == "" && !strings.HasPrefix(line, "=\t"):
				t.Errorf("call %d: %s is answered %q", call, l.lot, line)
			}
			wantHistory(t, s, rdb, l.lot)
		}
	}
	for _, lot := range lots {
		attempts, _ := dueAttempts(t, s, lot)
		if len(slices.Compact(attempts)) != 1 {
			t.Errorf("of %s are to be looked at %q", lot, attempts)
		}
	}
	entries, err := rdb.XRevRangeN(t.Context(), sh.keys.outbox, "+", "-", 1).Result()
	if body := fmt.Sprint(entries[0].Values[drop.FieldBody]); err != nil || strings.Count(body, "\n-\t7\t")+strings.Count(body[:4], "-\t7\t") != 1 {
		t.Errorf("seven lots are no group: %q, %v", body, err)
	}
	passTime(t, s, rdb, time.Hour, lots...)
	if out, err := s.Sweep(t.Context(), sh.number, 1000); err != nil || out.Expired != 12 {
		t.Errorf("%d holds are ended, %v", out.Expired, err)
	}
}

// TestNoRecordIsMissedThatMovesWhileAllAreRead: a hold that is stored with its user gets a field of its own, which may be
// among those that were read already.
func TestNoRecordIsMissedThatMovesWhileAllAreRead(t *testing.T) {
	s, rdb, _ := newShop(t)
	const n = 3 * scanPage
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: n, Hold: time.Hour})
	ids := make([]drop.ReservationID, n)
	inParallel(50, func(i int) {
		for ; i < n; i += 50 {
			out, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprint("user-", i), Key: "k", Qty: 1})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = out.Reservation.ID
		}
	})
	seen := map[string]bool{}
	confirmed := false
	err := s.Records(t.Context(), lot, func(page []drop.Reservation) error {
		for _, r := range page {
			seen[r.ID.Attempt] = true
		}
		if !confirmed {
			confirmed = true
			inParallel(50, func(i int) {
				for ; i < n; i += 50 {
					if _, err := s.Settle(t.Context(), drop.SettleRequest{ID: ids[i], Action: drop.ActConfirm, Ref: "p"}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	missed := 0
	for _, id := range ids {
		if !seen[id.Attempt] {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d of %d records were missed", missed, n)
	}
	wantHistory(t, s, rdb, lot)
}

// batchOf reserves one unit for each of some users in one call, which makes a batch of them.
func batchOf(t *testing.T, s *Stock, lot drop.LotID, users ...string) []string {
	t.Helper()
	g := &group{kind: reserveKind}
	g.reset()
	var attempts []string
	for _, user := range users {
		r := newRequest(reserveKind, lot)
		r.reserve = drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 1, Actor: "shop"}
		r.attempt = drop.AttemptOf(lot, user, "k")
		attempts = append(attempts, r.attempt)
		g.add(r)
	}
	sh := s.shardOf(lot)
	inv := g.invocation(sh, reserveKind)
	if r, err := s.script(t.Context(), sh, "reserve", inv.keys, inv.args); err != nil || r.status != "ok" {
		t.Fatal(r, err)
	}
	return attempts
}

// TestAHoldThatNobodyCanReadIsNotOverwritten: its batch is lost, and its user takes another one.
func TestAHoldThatNobodyCanReadIsNotOverwritten(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	key := s.shardOf(lot).keys.lot(lot)
	lost := batchOf(t, s, lot, "ann", "bob", "cy", "dan")[0]
	var batch string
	for _, name := range rdb.HKeys(t.Context(), key).Val() {
		if strings.HasPrefix(name, "#") {
			batch = name
		}
	}
	rdb.HDel(t.Context(), key, batch)
	reserve(t, s, lot, "ann", "another", 1)
	if record := rdb.HGet(t.Context(), key, lost).Val(); !strings.HasPrefix(record, "b\tann\t") {
		t.Errorf("of the hold is left %q", record)
	}
}

// TestTwoHoldsOfOneUserEndOnce: what counts for the user was lost, so there are two holds. Each ends once.
func TestTwoHoldsOfOneUserEndOnce(t *testing.T) {
	for _, order := range []string{"old first", "new first"} {
		t.Run(order, func(t *testing.T) {
			s, rdb, _ := newShop(t)
			lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9, Hold: time.Minute})
			keys := s.shardOf(lot).keys
			old := reserve(t, s, lot, "ann", "k", 1).Reservation
			old.Asked = "1/0"
			rdb.HSet(t.Context(), keys.lot(lot), old.ID.Attempt, recordText(drop.Record{Reservation: old}))
			rdb.HDel(t.Context(), keys.lot(lot), drop.MarkOf(lot, "ann"))
			other := reserve(t, s, lot, "ann", "k2", 3).Reservation
			rdb.Del(t.Context(), keys.unfiled)
			attempts := old.ID.Attempt + other.ID.Attempt
			if order == "new first" {
				attempts = other.ID.Attempt + old.ID.Attempt
			}
			rdb.Do(t.Context(), "ZADD", keys.due, 0, dueMember(lot, old.Deadline.UnixMilli(), attempts))
			passTime(t, s, rdb, time.Hour, lot)
			out, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 100)
			if err != nil || out.Expired != 2 {
				t.Errorf("%+v, %v", out, err)
			}
			wantTotals(t, s, lot, 9, 0, 0)
			wantHistory(t, s, rdb, lot)
		})
	}
}

// TestDamagedCountersNameNoAttempt: whoever asks for the record gets none.
func TestDamagedCountersNameNoAttempt(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	for _, live := range []string{"", "x", strings.Repeat("x", 40)} {
		if found, err := s.RecordsOf(t.Context(), lot, []string{live}); err != nil || len(found) > 0 {
			t.Errorf("of %q: %v, %v", live, found, err)
		}
	}
}
