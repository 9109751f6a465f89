package ledger

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func claim(t testing.TB, l *Ledger, worker string, lease time.Duration) []drop.Pending {
	t.Helper()
	claimed, err := l.ClaimPending(t.Context(), worker, lease, 100)
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

func finish(t testing.TB, l *Ledger, worker string, claimed []drop.Pending) int {
	t.Helper()
	n, err := l.FinishPending(t.Context(), worker, claimed)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A refund may be folded before a worker begins, while it has the lease, and after the sale.
func TestARefundMeetsItsSaleAtAnyStage(t *testing.T) {
	l, db := newLedger(t)
	for name, c := range map[string]struct {
		refunds []int64 // of 5 units bought
		stage   string
		entries string
	}{
		"part before":       {[]int64{2}, "before", "1|sale|3"},
		"all before":        {[]int64{5}, "before", ""},
		"all in two before": {[]int64{2, 3}, "before", ""},
		"part during":       {[]int64{2}, "during", "1|sale|5\n2|refund|-2"},
		"two during":        {[]int64{2, 1}, "during", "1|sale|5\n2|refund|-3"},
		"all during":        {[]int64{5}, "during", "1|sale|5\n2|refund|-5"},
		"part after":        {[]int64{2}, "after", "1|sale|5\n2|refund|-2"},
		"all after":         {[]int64{1, 4}, "after", "1|sale|5\n2|refund|-1\n3|refund|-4"},
	} {
		t.Run(name, func(t *testing.T) {
			lot := newLot()
			r := seeded(t, l, lot, 10)
			res := r.hold("ann", 5)
			r.confirm(res, 5, "pay")
			apply(t, l, r.take()...)
			refund := func() {
				for _, units := range c.refunds {
					r.refund(res, units, true)
				}
				apply(t, l, r.take()...)
			}
			if c.stage == "before" {
				refund()
			}
			claimed := claim(t, l, "one", time.Minute)
			if c.stage == "during" {
				refund()
			}
			finish(t, l, "one", claimed)
			if c.stage == "after" {
				refund()
			}
			if got := db.SQL(t, fmt.Sprintf("SELECT entry, kind, units FROM order_ledger WHERE lot = '%s' ORDER BY entry", lot)); got != c.entries {
				t.Errorf("entries %q, want %q", got, c.entries)
			}
			if s := salesOf(t, l, lot); s.Open != 0 || s.Net != s.Sold || s.Sold != r.sold {
				t.Errorf("sales %+v, want %d", s, r.sold)
			}
			if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" {
				t.Errorf("verify: %+v, %v", v, err)
			}
		})
	}
}

func TestALeaseRunsOut(t *testing.T) {
	l, _ := newLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	r.confirm(r.hold("ann", 1), 1, "pay")
	apply(t, l, r.take()...)
	first := claim(t, l, "one", time.Millisecond)
	if len(first) != 1 || first[0].Units != 1 || first[0].Ref != "pay" || first[0].Reservation.Lot != lot {
		t.Fatalf("claimed %+v", first)
	}
	time.Sleep(2 * time.Millisecond)
	second := claim(t, l, "two", time.Minute)
	if len(second) != 1 || len(claim(t, l, "three", time.Minute)) != 0 {
		t.Fatalf("claimed %+v", second)
	}
	if n := finish(t, l, "one", first); n != 0 {
		t.Errorf("a worker without a lease finished %d", n)
	}
	if n := finish(t, l, "two", second); n != 1 {
		t.Errorf("finished %d", n)
	}
	if n := finish(t, l, "two", second); n != 0 {
		t.Errorf("finished %d again", n)
	}
	if s := salesOf(t, l, lot); s.Net != 1 {
		t.Errorf("sales %+v", s)
	}
}

// Several workers finalise while refunds are folded: every sale ends once and the sums agree.
func TestFinalisingRacesWithRefunds(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10_000)
	var bought []*drop.Reservation
	for i := range 300 {
		res := r.hold(fmt.Sprint("user-", i), 3)
		r.confirm(res, 3, fmt.Sprint("pay-", i))
		bought = append(bought, res)
	}
	apply(t, l, r.take()...)
	for i, res := range bought {
		r.refund(res, 1+int64(i%3), i%2 == 0)
	}
	refunds := r.take()

	var all sync.WaitGroup
	for w := range 3 {
		all.Go(func() {
			name := fmt.Sprint("worker-", w)
			for {
				claimed, err := l.ClaimPending(t.Context(), name, time.Minute, 7)
				if err != nil || len(claimed) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if _, err := l.FinishPending(t.Context(), name, claimed); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Go(func() {
		for batch := range slices.Chunk(refunds, 5) {
			if _, err := l.Apply(t.Context(), batch, nil); err != nil {
				t.Error(err)
				return
			}
		}
	})
	all.Wait()
	finalise(t, l)
	if s := salesOf(t, l, lot); s.Net != r.sold || s.Sold != r.sold || s.Open != 0 {
		t.Errorf("sales %+v, want %d", s, r.sold)
	}
	if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" {
		t.Errorf("verify: %+v, %v", v, err)
	}
	entries, err := l.Entries(t.Context(), lot, 0, 10)
	if err != nil || len(entries) != 10 || entries[0].Entry != 1 || entries[0].Reservation.Lot != lot {
		t.Errorf("entries %+v, %v", entries, err)
	}
}

// However an allocation came to be open although its sale is recorded: the sale is not recorded again, and the
// allocation ends.
func TestARecordedSaleIsNotRecordedAgain(t *testing.T) {
	l, db := newLedger(t)
	reopen := func(lot drop.LotID) {
		db.SQL(t, fmt.Sprintf("UPDATE pending_allocations SET state = 'PENDING', due_at = now() WHERE lot = '%s'", lot))
	}
	for name, refund := range map[string]int64{"without a refund": 0, "refunded meanwhile": 2} {
		t.Run(name, func(t *testing.T) {
			lot := newLot()
			r := seeded(t, l, lot, 10)
			res := r.hold("ann", 5)
			r.confirm(res, 5, "pay")
			other := r.hold("bob", 1)
			r.confirm(other, 1, "pay-bob")
			apply(t, l, r.take()...)
			claimed := claim(t, l, "one", time.Minute)
			if refund > 0 {
				r.refund(res, refund, true)
				apply(t, l, r.take()...)
			}
			finish(t, l, "one", claimed)
			before := db.SQL(t, "SELECT * FROM order_ledger ORDER BY lot, n, entry")
			reopen(lot)
			again := claim(t, l, "two", time.Minute)
			if len(again) != 2 || finish(t, l, "two", again) != 2 {
				t.Errorf("claimed %+v", again)
			}
			if after := db.SQL(t, "SELECT * FROM order_ledger ORDER BY lot, n, entry"); after != before {
				t.Errorf("the order ledger was\n%s\nand is\n%s", before, after)
			}
			if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" {
				t.Errorf("verify: %+v, %v", v, err)
			}
		})
	}
}

// A sale that contradicts its allocation is never taken for done, and does not hold up the others.
func TestAnotherSaleOfTheSameReservationIsAnError(t *testing.T) {
	l, db := newLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	first, second := r.hold("ann", 5), r.hold("bob", 1)
	r.confirm(first, 5, "pay")
	r.confirm(second, 1, "pay-bob")
	apply(t, l, r.take()...)
	db.SQL(t, fmt.Sprintf("INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref) VALUES ('%s', %d, 1, 'sale', 4, '%s', 'ann', 'pay')",
		lot, first.ID.N, first.ID.Attempt))
	for range 2 {
		claimed := claim(t, l, "one", time.Millisecond)
		n, err := l.FinishPending(t.Context(), "one", claimed)
		if n != len(claimed)-1 || !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), first.ID.String()) {
			t.Errorf("finished %d of %d, %v", n, len(claimed), err)
		}
		time.Sleep(2 * time.Millisecond) // the lease
	}
	if s := salesOf(t, l, lot); s.Net != 4+1 || s.Open != 1 {
		t.Errorf("sales %+v", s)
	}
}

// A worker is so slow that others take over again and again, while refunds are folded.
func TestLeasesRunOutWhileRefundsAreFolded(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10_000)
	var bought []*drop.Reservation
	for i := range 300 {
		res := r.hold(fmt.Sprint("user-", i), 3)
		r.confirm(res, 3, fmt.Sprint("pay-", i))
		bought = append(bought, res)
	}
	apply(t, l, r.take()...)
	for i, res := range bought {
		r.refund(res, 1+int64(i%3), i%2 == 0)
	}
	refunds := r.take()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for {
				claimed, err := l.ClaimPending(t.Context(), fmt.Sprint("slow-", w), time.Duration(1+2*w)*time.Millisecond, 40)
				if err == nil && len(claimed) > 0 {
					_, err = l.FinishPending(t.Context(), fmt.Sprint("slow-", w), claimed)
				}
				if err != nil || len(claimed) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	all.Go(func() {
		for batch := range slices.Chunk(refunds, 5) {
			if _, err := l.Apply(t.Context(), batch, nil); err != nil {
				t.Error(err)
				return
			}
		}
	})
	all.Wait()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		finalise(t, l)
		s := salesOf(t, l, lot)
		return s.Open == 0, fmt.Sprintf("%d are open", s.Open)
	})
	if s := salesOf(t, l, lot); s.Net != r.sold || s.Sold != r.sold {
		t.Errorf("sales %+v, want %d", s, r.sold)
	}
	if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" {
		t.Errorf("verify: %+v, %v", v, err)
	}
}

// Workers whose leases are far too short take sales from each other, while their connections are cut, commits among them, and
// refunds are folded. Whatever happens, no sale is recorded whose allocation is still open, at any moment that can be seen.
func TestASaleAndItsAllocationChangeTogether(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	superuser := openPool(t, db.URL(lab.Superuser))
	lot := newLot()
	r := seeded(t, l, lot, 10_000)
	var bought []*drop.Reservation
	for i := range 600 {
		res := r.hold(fmt.Sprint("user-", i), 3)
		r.confirm(res, 3, fmt.Sprint("pay-", i))
		bought = append(bought, res)
	}
	apply(t, l, r.take()...)
	for i, res := range bought {
		r.refund(res, 1+int64(i%3), i%2 == 0)
	}
	refunds := r.take()

	var work, watch sync.WaitGroup
	for w := range 4 {
		work.Go(func() {
			for idle := 0; idle < 3; { // an error may hide that there is more
				claimed, err := l.ClaimPending(t.Context(), fmt.Sprint("worker-", w), time.Duration(20+60*w)*time.Millisecond, 20)
				if err == nil && len(claimed) == 0 {
					idle++
					time.Sleep(5 * time.Millisecond)
				}
				if err == nil && len(claimed) > 0 {
					_, err = l.FinishPending(t.Context(), fmt.Sprint("worker-", w), claimed)
				}
				if fault.Is(err, fault.Failed) {
					t.Error(err)
				}
			}
		})
	}
	work.Go(func() {
		for batch := range slices.Chunk(refunds, 5) {
			for { // until it is known to be done
				if _, err := l.Apply(t.Context(), batch, nil); err == nil {
					break
				}
			}
		}
	})
	done := make(chan struct{})
	cuts := 0
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(15 * time.Millisecond):
			}
			var odd, cut int
			err := superuser.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pending_allocations p JOIN order_ledger o ON o.lot = p.lot AND o.n = p.n AND o.entry = 1
				WHERE p.state IN ('PENDING', 'PROCESSING')), (SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'dropctl-test' AND state <> 'idle' AND $1 ORDER BY random() LIMIT 1) AS one)`, cuts < 50).Scan(&odd, &cut)
			if err != nil || odd > 0 {
				t.Errorf("%d sales are recorded whose allocations are open, %v", odd, err)
				return
			}
			cuts += cut
		}
	})
	work.Wait()
	close(done)
	watch.Wait()
	if cuts == 0 {
		t.Error("no connection was cut: the test tested nothing")
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		finalise(t, l)
		s := salesOf(t, l, lot)
		return s.Open == 0, fmt.Sprintf("%d are open", s.Open)
	})
	if s := salesOf(t, l, lot); s.Net != r.sold || s.Sold != r.sold {
		t.Errorf("sales %+v, want %d", s, r.sold)
	}
	if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" {
		t.Errorf("verify: %+v, %v", v, err)
	}
}
