package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// randomHistory lets a lot live through n random changes, as Redis could.
func randomHistory(r *redis, pick func(n int) int, n int) {
	for range n {
		var held, sold, over []*drop.Reservation
		for _, k := range slices.Sorted(mapKeys(r.live)) {
			switch r.live[k].State {
			case drop.Held:
				held = append(held, r.live[k])
			case drop.Confirmed:
				sold = append(sold, r.live[k])
			default:
				over = append(over, r.live[k])
			}
		}
		available := r.def.Stock - r.held - r.sold
		switch c := pick(11); {
		case c < 4 && available > 0:
			r.hold(fmt.Sprint("user-", pick(5)), 1+int64(pick(int(min(available, 3)))))
		case c < 6 && len(held) > 0:
			res := held[pick(len(held))]
			r.confirm(res, 1+int64(pick(int(res.Qty))), fmt.Sprint("pay-", r.seq))
		case c == 6 && len(held) > 0:
			res := held[pick(len(held))]
			r.release(res, int64(pick(int(res.Qty))))
		case c == 7 && len(held) > 0:
			r.expire(held[pick(len(held))])
		case c == 8 && len(sold) > 0:
			res := sold[pick(len(sold))]
			r.refund(res, 1+int64(pick(int(res.Qty))), pick(2) == 0)
		case c == 9 && len(held) > 0:
			r.extend(held[pick(len(held))])
		case c == 10 && len(over) > 0:
			r.paidLate(over[pick(len(over))], fmt.Sprint("late-", r.seq))
		default:
			r.adjust(r.def.Stock + int64(pick(3)))
		}
	}
}

func mapKeys(m map[int64]*drop.Reservation) func(yield func(int64) bool) {
	return func(yield func(int64) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// folded is all that is recorded of lots, times of recording, numbers of rows and sales apart.
var folded = []string{
	`lot, capacity, held, sold, epoch, seq, hash, open_epoch, waiting, stopped, stopped_reason, event_at, adjust_actor FROM lots`,
	`lot, epoch, seq, kind, reservation, event_at, line, hash FROM reservation_events`,
	`* FROM reservations`,
	`lot, epoch, seq, n, units, ref, why FROM refunds_due`,
	`lot, epoch, seq, code, line FROM dead_letters`,
	`lot, epoch, seq, line FROM waiting_events`,
}

// dump returns what was recorded of the lots.
func dump(t testing.TB, pool *pgxpool.Pool, lots []string, tables ...string) string {
	t.Helper()
	var queries []string
	for i, q := range slices.Concat(folded, tables) {
		queries = append(queries, fmt.Sprintf("SELECT %d || t::text FROM (SELECT * FROM (SELECT %s) q WHERE lot = ANY($1)) t", i, q))
	}
	rows, err := pool.Query(t.Context(), strings.Join(queries, " UNION ALL "), lots)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// twins opens two ledgers of one installation, to compare two ways to the same end.
func twins(t testing.TB) (a, b *Ledger, dbA, dbB testkit.Database) {
	t.Helper()
	dbA, dbB = migrated(t), migrated(t)
	dbB.SQL(t, "UPDATE settings SET installation = '"+dbA.SQL(t, "SELECT installation FROM settings")+"'")
	return open(t, dbA), open(t, dbB), dbA, dbB
}

// historyOfLots draws the life of a few new lots, which both ledgers know, each of so many changes.
func historyOfLots(t *testing.T, rt *rapid.T, a, b *Ledger, changes *rapid.Generator[int]) (lots []string, history []drop.Event) {
	for range rapid.IntRange(1, 3).Draw(rt, "lots") {
		lot := newLot()
		lots = append(lots, string(lot))
		seeded(t, b, lot, 8)
		r := seeded(t, a, lot, 8)
		randomHistory(r, func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "pick") }, changes.Draw(rt, "changes"))
		history = append(history, r.take()...)
	}
	return lots, history
}

// However events arrive (in any order, repeated, in batches, by two workers at once), the end is that of
// applying them in order, and nobody waits in a circle.
func TestAnyArrivalEndsAsInOrder(t *testing.T) {
	testkit.Long(t)
	inOrder, shuffled, dbA, dbB := twins(t)
	poolA, poolB := openPool(t, dbA.URL(lab.Owner)), openPool(t, dbB.URL(lab.Owner))
	rapid.Check(t, func(rt *rapid.T) {
		lots, history := historyOfLots(t, rt, inOrder, shuffled, rapid.IntRange(1, 25))
		apply(t, inOrder, history...)
		seed := rapid.Uint64().Draw(rt, "shuffle")
		var both sync.WaitGroup
		for worker := range uint64(2) {
			both.Go(func() { applyShuffled(t, shuffled, history, rand.New(rand.NewPCG(seed, worker))) })
		}
		both.Wait()
		if _, err := shuffled.FoldWaiting(t.Context()); err != nil {
			rt.Fatal(err)
		}
		sales := []string{`lot, n, units, refunded, ref, state, reason, entries FROM pending_allocations`, `lot, n, entry, kind, units, ref FROM order_ledger`}
		if want, got := dump(t, poolA, lots, sales...), dump(t, poolB, lots, sales...); want != got {
			rt.Fatalf("in order:\n%s\nshuffled:\n%s", want, got)
		}
		for _, lot := range lots {
			if v, err := shuffled.Verify(t.Context(), drop.LotID(lot), nil); err != nil || v.Bad != "" {
				rt.Fatalf("verify: %+v, %v", v, err)
			}
		}
	})
}

// Some events come an hour late, the others backwards, each twice, by two transports at once, while sales are finalised; then
// all come once more, old ones last. In the end the ledger is as if they had come in order: a sale may have been recorded
// before its refund was known, but what stays sold is the same.
func TestEventsThatComeLateTwiceAndBackwardsEndAsInOrder(t *testing.T) {
	testkit.Long(t)
	inOrder, disorderly, dbA, dbB := twins(t)
	poolA, poolB := openPool(t, dbA.URL(lab.Owner)), openPool(t, dbB.URL(lab.Owner))
	rapid.Check(t, func(rt *rapid.T) {
		lots, history := historyOfLots(t, rt, inOrder, disorderly, rapid.IntRange(5, 40))
		apply(t, inOrder, history...)
		finalise(t, inOrder)

		var late, prompt []drop.Event
		for _, ev := range history {
			if rapid.IntRange(0, 4).Draw(rt, "late") == 0 {
				late = append(late, ev)
			} else {
				prompt = append(prompt, ev)
			}
		}
		size := rapid.IntRange(1, 12).Draw(rt, "batch")
		applyBackwardsTwice(t, disorderly, prompt, size)
		if _, err := poolB.Exec(t.Context(), `UPDATE waiting_events SET recorded_at = recorded_at - interval '1 hour'`); err != nil {
			rt.Fatal(err)
		}
		applyBackwardsTwice(t, disorderly, late, size)
		for batch := range slices.Chunk(history, size) {
			if did := apply(t, disorderly, batch...); did.Duplicates != len(batch) {
				rt.Fatalf("of %d known events %d were duplicates: %+v", len(batch), did.Duplicates, did)
			}
		}
		finalise(t, disorderly)
		net := `lot, n, sum(units) FROM order_ledger GROUP BY lot, n HAVING sum(units) <> 0`
		if want, got := dump(t, poolA, lots, net), dump(t, poolB, lots, net); want != got {
			rt.Fatalf("in order:\n%s\nin disorder:\n%s", want, got)
		}
		for _, lot := range lots {
			if v, err := disorderly.Verify(t.Context(), drop.LotID(lot), nil); err != nil || v.Bad != "" {
				rt.Fatalf("verify: %+v, %v", v, err)
			}
		}
	})
}

// applyBackwardsTwice applies events as two transports at once do that both turn everything round and repeat every batch.
// Meanwhile somebody finalises what there is.
func applyBackwardsTwice(t testing.TB, l *Ledger, events []drop.Event, size int) {
	t.Helper()
	backwards := slices.Clone(events)
	slices.Reverse(backwards)
	var both sync.WaitGroup
	for transport := range 2 {
		both.Go(func() {
			for batch := range slices.Chunk(backwards, size+transport) {
				for range 2 {
					if _, err := l.Apply(t.Context(), batch, nil); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	both.Go(func() {
		if _, err := l.Finalise(t.Context(), 3); err != nil {
			t.Error(err)
		}
	})
	both.Wait()
	finalise(t, l)
}

// applyShuffled applies all events, some of them twice, in batches of random size and order.
func applyShuffled(t testing.TB, l *Ledger, events []drop.Event, r *rand.Rand) {
	all := append(slices.Clone(events), events[:r.IntN(len(events)+1)]...)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for len(all) > 0 {
		n := 1 + r.IntN(min(len(all), 10))
		if _, err := l.Apply(t.Context(), all[:n], nil); err != nil {
			t.Error(err)
			return
		}
		all = all[n:]
	}
}

// Workers that apply events of the same lots at once, in whatever order, take turns and never wait in a circle.
func TestWorkersNeverWaitInACircle(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	var events []drop.Event
	for range 20 {
		r := seeded(t, l, newLot(), 10)
		r.hold("ann", 1)
		events = append(events, r.take()...)
	}
	var all sync.WaitGroup
	for worker := range uint64(4) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(worker, 1))
			for range 25 {
				batch := slices.Clone(events)
				r.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
				if _, err := l.Apply(t.Context(), batch, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) { // statistics arrive a little later
		got := db.SQL(t, "SELECT xact_commit >= 100, deadlocks FROM pg_stat_database WHERE datname = current_database()")
		return got == "t|0", "commits, deadlocks: " + got
	})
}

// Every order of a short history, each event alone.
func TestEveryPermutationEndsAsInOrder(t *testing.T) {
	l, db := newLedger(t)
	tried := 0
	permute([]int{0, 1, 2, 3, 4}, func(order []int) {
		if tried++; testing.Short() && tried%5 != 0 {
			return
		}
		lot := newLot()
		r := seeded(t, l, lot, 5)
		a := r.hold("ann", 2)
		r.confirm(a, 1, "pay")
		r.refund(a, 1, false)
		r.hold("bob", 1)
		events := r.take()
		for _, i := range order {
			apply(t, l, events[i])
		}
		wantTotals(t, l, lot, 4, 1, 0)
	})
	if got := db.SQL(t, "SELECT count(*) FROM waiting_events"); got != "0" {
		t.Errorf("%s events wait", got)
	}
}

func permute(order []int, fn func([]int)) {
	var rec func(k int)
	rec = func(k int) {
		if k == len(order) {
			fn(order)
			return
		}
		for i := k; i < len(order); i++ {
			order[k], order[i] = order[i], order[k]
			rec(k + 1)
			order[k], order[i] = order[i], order[k]
		}
	}
	rec(0)
}

// The connection is cut again and again while events are applied; repeating the call applies each exactly once.
func TestACutConnectionAppliesNothingTwice(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	superuser := openPool(t, db.URL(lab.Superuser))
	lot := newLot()
	r := seeded(t, l, lot, 1000)
	randomHistory(r, rand.New(rand.NewPCG(1, 2)).IntN, 1500)
	events := r.take()

	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cuts := 0
	cutter.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			var n int
			err := superuser.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'dropctl-test' AND state = 'active'`).Scan(&n)
			if err != nil {
				t.Error(err)
				return
			}
			cuts += n
		}
	})
	failed := 0
	for batch := range slices.Chunk(events, 50) {
		for {
			_, err := l.Apply(t.Context(), batch, nil)
			if err == nil {
				break
			}
			if failed++; failed == 20 {
				close(stop)
				cutter.Wait()
			}
		}
	}
	if failed < 20 {
		close(stop)
		cutter.Wait()
	}
	if cuts == 0 || failed == 0 {
		t.Errorf("%d connections were cut and %d calls failed: the test tested nothing", cuts, failed)
	}
	wantTotals(t, l, lot, r.def.Stock, r.held, r.sold)
	if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" || v.Events != int64(len(events)) {
		t.Errorf("verify: %+v, %v", v, err)
	}
}
