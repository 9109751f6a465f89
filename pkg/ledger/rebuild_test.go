package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// rebuilt issues the lot's next epoch and reads what a rebuild loads.
func rebuilt(t testing.TB, l *Ledger, lot drop.LotID, endedSince time.Time) (Issued, map[int64]drop.Record, map[string]drop.UserCount) {
	t.Helper()
	issued := issue(t, l, lot)
	records, users := sourceOf(t, l, RebuildSource{Lot: lot, Epoch: issued.Epoch, EndedSince: endedSince})
	return issued, records, users
}

func sourceOf(t testing.TB, l *Ledger, s RebuildSource) (map[int64]drop.Record, map[string]drop.UserCount) {
	t.Helper()
	records, users := map[int64]drop.Record{}, map[string]drop.UserCount{}
	last := int64(0)
	err := l.EachRecord(t.Context(), s, func(page []drop.Record) error {
		for _, r := range page {
			if r.ID.N <= last {
				t.Errorf("%s comes behind %d", r.ID, last)
			}
			last = r.ID.N
			records[r.ID.N] = r
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = l.EachUser(t.Context(), s, func(page []drop.UserCount) error {
		for _, u := range page {
			users[u.User] = u
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records, users
}

// Whatever a lot has been through: its rebuild loads each reservation as Redis had it, and counters that add up.
func TestARebuildLoadsWhatRedisHad(t *testing.T) {
	l := sharedLedger(t)
	for seed := range uint64(5) {
		lot := newLot()
		r := seeded(t, l, lot, 60)
		randomHistory(r, rand.New(rand.NewPCG(seed, 7)).IntN, 300)
		apply(t, l, r.take()...)
		plan, err := l.PlanRebuild(t.Context(), lot, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		issued, records, users := rebuilt(t, l, lot, time.Time{})
		if plan.Watermark != issued.Closing || plan.Totals() != issued.Lot.Totals() || !plan.EventAt.Equal(r.now) || plan.Records() != int64(len(records)) || len(records) != len(r.live) {
			t.Errorf("planned %+v, issued %+v, %d records of %d", plan, issued, len(records), len(r.live))
		}
		want := map[string]drop.UserCount{}
		counts := map[drop.State]int64{}
		for n, had := range r.live {
			got := records[n]
			same := got.ID == had.ID && got.User == had.User && got.State == had.State && got.Refunded == had.Refunded && got.Ref == had.Ref &&
				got.Deadline.Equal(had.Deadline) && got.Created.Equal(had.Created)
			if live := had.State == drop.Held || had.State == drop.Confirmed; !same || live && got.Qty != had.Qty || got.Ended.IsZero() != live {
				t.Errorf("got %+v, want %+v", got, had)
			}
			u := want[had.User]
			u.User = had.User
			switch had.State {
			case drop.Held:
				u.Held += had.Qty
				u.Live = max(u.Live, had.ID.Attempt)
			case drop.Confirmed:
				u.Bought += had.Qty
			}
			want[had.User] = u
			counts[had.State]++
		}
		if plan.Live != counts[drop.Held] || plan.Confirmed != counts[drop.Confirmed] {
			t.Errorf("planned %+v, there are %v", plan, counts)
		}
		for user, u := range want {
			if got := users[user]; got != u && (u.Held > 0 || u.Bought > 0) {
				t.Errorf("counters %+v, want %+v", got, u)
			}
		}
	}
}

func TestARecordHasItsTimesAndItsLatePayment(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 20)
	part := r.hold("ann", 3)
	confirmed := r.confirm(part, 3, "pay")
	r.refund(part, 1, true)
	gone := r.hold("bob", 1)
	expired := r.expire(gone)
	gone.Qty = 1
	r.paidLate(gone, "late-1")
	r.paidLate(gone, "late-2")
	back := r.hold("cid", 2)
	backAll := r.confirm(back, 2, "pay-cid")
	refunded := r.refund(back, 2, true)
	apply(t, l, r.take()...)
	_, records, _ := rebuilt(t, l, lot, time.Time{})
	if got := records[part.ID.N]; got.Asked != "3/0" || !got.ConfirmedAt.Equal(confirmed.Time) || got.LastSeq != confirmed.Seq+1 || got.Qty != 2 || !got.Ended.IsZero() || got.LateRef != "" {
		t.Errorf("confirmed: %+v", got)
	}
	if got := records[gone.ID.N]; !got.Ended.Equal(expired.Time) || got.LateRef != "late-2" || got.LastSeq != expired.Seq+2 || !got.ConfirmedAt.IsZero() {
		t.Errorf("expired: %+v", got)
	}
	if got := records[back.ID.N]; !got.Ended.Equal(refunded.Time) || !got.ConfirmedAt.Equal(backAll.Time) || got.Ref != "pay-cid" || got.Refunded != 2 {
		t.Errorf("refunded: %+v", got)
	}
}

// A tombstone is loaded while its key must be remembered; a hold that was taken anew has no record of its own.
func TestARebuildLeavesOutWhatRedisHasForgotten(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 20)
	live, sold := r.hold("ann", 1), r.hold("bob", 1)
	r.confirm(sold, 1, "pay")
	old := r.hold("cid", 1)
	r.release(old, 0)
	since := r.now.Add(time.Millisecond)
	lapsed := r.hold("dan", 1)
	r.expire(lapsed)
	anew := r.emit(drop.Event{Kind: drop.KindHeld, Reservation: drop.ReservationID{Lot: lot, Attempt: lapsed.ID.Attempt, N: r.seq + 1}, User: "dan", Asked: "1/0", Qty: 1, Deadline: r.now, From: lapsed.ID.N})
	r.held++
	r.confirm(&drop.Reservation{ID: anew.Reservation, User: "dan", State: drop.Held, Qty: 1}, 1, "pay-dan")
	young := r.hold("eve", 1)
	r.release(young, 0)
	apply(t, l, r.take()...)
	plan, err := l.PlanRebuild(t.Context(), lot, since)
	if err != nil || plan.Live != 1 || plan.Confirmed != 2 || plan.Tombstones != 1 {
		t.Errorf("planned %+v, %v", plan, err)
	}
	_, records, _ := rebuilt(t, l, lot, since)
	if _, ok := records[live.ID.N]; len(records) != 4 || !ok || records[anew.Seq].From != lapsed.ID.N || records[young.ID.N].State != drop.Released || records[sold.ID.N].State != drop.Confirmed {
		t.Errorf("records %+v", records)
	}
}

// A hold that Redis counted twice ends with the rebuild, and its key stays known.
func TestARejectedHoldIsLoadedAsExpired(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 1)
	r.hold("ann", 1)
	twice := r.hold("bob", 1)
	apply(t, l, r.take()...)
	issued, before, users := rebuilt(t, l, lot, time.Time{})
	if got := before[twice.ID.N]; got.State != drop.Expired || got.Ended.IsZero() || users["bob"] != (drop.UserCount{}) || issued.Lot.Held != 1 {
		t.Errorf("record %+v, users %+v, issued %+v", got, users, issued)
	}
	r.load(issued)
	apply(t, l, r.take()...)
	after, _ := sourceOf(t, l, RebuildSource{Lot: lot, Epoch: issued.Epoch})
	if after[twice.ID.N] != before[twice.ID.N] {
		t.Errorf("before the load was folded %+v, afterwards %+v", before[twice.ID.N], after[twice.ID.N])
	}
}

// What is read must be what the epoch was closed with.
func TestARebuildOfALotThatWentOnIsRefused(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	if _, err := l.PlanRebuild(t.Context(), lot, time.Time{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	r := seeded(t, l, lot, 5)
	r.hold("ann", 1)
	apply(t, l, r.take()...)
	first := issue(t, l, lot)
	second := issue(t, l, lot)
	nobody := func([]drop.Record) error { t.Error("a page came"); return nil }
	if err := l.EachRecord(t.Context(), RebuildSource{Lot: lot, Epoch: first.Epoch}, nobody); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
	r.load(second)
	apply(t, l, r.take()...)
	if records, _ := sourceOf(t, l, RebuildSource{Lot: lot, Epoch: second.Epoch}); len(records) != 1 {
		t.Errorf("after the load: %+v", records)
	}
	r.hold("bob", 1)
	apply(t, l, r.take()...)
	if err := l.EachRecord(t.Context(), RebuildSource{Lot: lot, Epoch: second.Epoch}, nobody); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
}

// A reservation that the totals do not have is found before anything is loaded.
func TestARebuildOfWhatDoesNotAddUpIsRefused(t *testing.T) {
	l, db := newLedger(t)
	r := seeded(t, l, "lot", 5)
	r.hold("ann", 1)
	apply(t, l, r.take()...)
	db.SQL(t, "UPDATE reservations SET qty = 2")
	if _, err := l.PlanRebuild(t.Context(), "lot", time.Time{}); !fault.Is(err, fault.Broken) {
		t.Errorf("got %v", err)
	}
}

// plantReservations makes n reservations in a lot the short way: four in ten live holds, four confirmed, two ended.
func plantReservations(t testing.TB, sql func(testing.TB, string) string, lot drop.LotID, n int) {
	t.Helper()
	sql(t, fmt.Sprintf(`INSERT INTO reservations (lot, n, attempt, user_id, state, qty, refunded, rest, deadline, created_at, changed_at, last_seq, ref, taken_from, key, asked, rejected)
		SELECT '%[1]s', i, substr(md5(i::text), 1, 26), 'user-' || i, (ARRAY['held','confirmed','held','confirmed','released','held','confirmed','held','confirmed','expired'])[1 + i %% 10],
			1, 0, 0, now() + interval '5 min', now(), now(), i, 'pay', 0, 'key', '1/0', false FROM generate_series(2, %[2]d + 1) AS i;
		INSERT INTO pending_allocations (lot, n, attempt, user_id, units, ref, epoch, seq, confirmed_at, state)
		SELECT lot, n, attempt, user_id, 1, ref, 1, n, now(), 'PROCESSED' FROM reservations WHERE lot = '%[1]s' AND state = 'confirmed';
		UPDATE lots SET (held, sold) = (SELECT count(*) FILTER (WHERE state = 'held'), count(*) FILTER (WHERE state = 'confirmed') FROM reservations WHERE lot = '%[1]s') WHERE lot = '%[1]s'`, lot, n))
}

// Many pages, read while statistics know nothing of the lot yet.
func TestALargeLotIsReadInPages(t *testing.T) {
	l, db := newLedger(t)
	r := seeded(t, l, "lot", 1_000_000)
	apply(t, l, r.take()...)
	const n = 2*rebuildPage + 10
	plantReservations(t, db.SQL, "lot", n)
	issued := issue(t, l, "lot")
	sizes := []int{}
	err := l.EachRecord(t.Context(), RebuildSource{Lot: "lot", Epoch: issued.Epoch}, func(page []drop.Record) error {
		sizes = append(sizes, len(page))
		if !slices.IsSortedFunc(page, func(a, b drop.Record) int { return cmp.Compare(a.ID.N, b.ID.N) }) {
			t.Error("a page is not in order")
		}
		return nil
	})
	if err != nil || !slices.Equal(sizes, []int{rebuildPage, rebuildPage, 10}) {
		t.Errorf("pages of %v, %v", sizes, err)
	}
	enough := fault.New(fault.Conflict, "enough")
	if err := l.EachUser(t.Context(), RebuildSource{Lot: "lot", Epoch: issued.Epoch}, func([]drop.UserCount) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
}

// BenchmarkRebuild reads a lot of a million records, as a restore does.
func BenchmarkRebuild(b *testing.B) {
	l, db := newLedger(b)
	r := seeded(b, l, "lot", 1_000_000)
	apply(b, l, r.take()...)
	const n = 1_000_000
	plantReservations(b, db.SQL, "lot", n)
	for b.Loop() {
		began := time.Now()
		if _, err := l.PlanRebuild(b.Context(), "lot", time.Time{}); err != nil {
			b.Fatal(err)
		}
		planned := time.Now()
		s := RebuildSource{Lot: "lot", Epoch: issue(b, l, "lot").Epoch}
		records, users := 0, 0
		if err := l.EachRecord(b.Context(), s, func(page []drop.Record) error { records += len(page); return nil }); err != nil {
			b.Fatal(err)
		}
		read := time.Now()
		if err := l.EachUser(b.Context(), s, func(page []drop.UserCount) error { users += len(page); return nil }); err != nil {
			b.Fatal(err)
		}
		if records != n || users != n*8/10 {
			b.Fatalf("%d records, %d users", records, users)
		}
		b.ReportMetric(planned.Sub(began).Seconds(), "s-plan")
		b.ReportMetric(read.Sub(planned).Seconds(), "s-records")
		b.ReportMetric(time.Since(read).Seconds(), "s-users")
	}
}
