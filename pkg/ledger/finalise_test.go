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

func finaliseOnce(t testing.TB, l *Ledger) int {
	t.Helper()
	n, err := l.Finalise(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// lease claims a lot's open allocations as workers did that finalised what they had claimed before; it ends after that long.
func lease(t testing.TB, db testkit.Database, lot drop.LotID, term time.Duration) {
	t.Helper()
	db.SQL(t, fmt.Sprintf("UPDATE pending_allocations SET state = 'PROCESSING', worker = 'old', due_at = now() + interval '%d microseconds' WHERE lot = '%s' AND state IN ('PENDING', 'PROCESSING')",
		term.Microseconds(), lot))
}

// A refund may be folded before a worker begins, while one of an older version has a lease, and after the sale.
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
			if c.stage == "during" {
				lease(t, db, lot, time.Minute)
				refund()
				lease(t, db, lot, 0)
			}
			finaliseOnce(t, l)
			if c.stage == "after" {
				refund()
			}
			if got := db.SQL(t, fmt.Sprintf("SELECT entry, kind, units FROM order_ledger WHERE lot = '%s' ORDER BY entry", lot)); got != c.entries {
				t.Errorf("entries %q, want %q", got, c.entries)
			}
			if s := salesOf(t, l, lot); s.Open != 0 || s.Net != s.Sold || s.Sold != r.sold {
				t.Errorf("sales %+v, want %d", s, r.sold)
			}
			wantVerified(t, l, lot)
		})
	}
}

func TestALeaseRunsOut(t *testing.T) {
	l, db := newLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	r.confirm(r.hold("ann", 1), 1, "pay")
	apply(t, l, r.take()...)
	lease(t, db, lot, time.Minute)
	if n := finaliseOnce(t, l); n != 0 {
		t.Errorf("finalised %d of what another worker has", n)
	}
	if n, err := l.Unfinalised(t.Context()); n != 1 || err != nil {
		t.Errorf("%d are not finalised, %v", n, err)
	}
	lease(t, db, lot, 0)
	if n := finaliseOnce(t, l); n != 1 {
		t.Errorf("finalised %d", n)
	}
	if n := finaliseOnce(t, l); n != 0 {
		t.Errorf("finalised %d again", n)
	}
	if s := salesOf(t, l, lot); s.Net != 1 {
		t.Errorf("sales %+v", s)
	}
}

func TestNoMoreIsFinalisedThanAskedFor(t *testing.T) {
	l, _ := newLedger(t)
	r := seeded(t, l, newLot(), 10)
	for i := range 5 {
		r.confirm(r.hold(fmt.Sprint("user-", i), 1), 1, "pay")
	}
	apply(t, l, r.take()...)
	for _, want := range []int{2, 2, 1, 0} {
		if n, err := l.Finalise(t.Context(), 2); n != want || err != nil {
			t.Errorf("finalised %d, want %d: %v", n, want, err)
		}
	}
}

// soldAndRefunded records three units for each of so many users, and returns the refunds of one, two or all of them.
func soldAndRefunded(t *testing.T, l *Ledger, r *redis, users int) []drop.Event {
	t.Helper()
	var bought []*drop.Reservation
	for i := range users {
		res := r.hold(fmt.Sprint("user-", i), 3)
		r.confirm(res, 3, fmt.Sprint("pay-", i))
		bought = append(bought, res)
	}
	apply(t, l, r.take()...)
	for i, res := range bought {
		r.refund(res, 1+int64(i%3), i%2 == 0)
	}
	return r.take()
}

// Several workers finalise while refunds are folded: every sale ends once and the sums agree.
func TestFinalisingRacesWithRefunds(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10_000)
	refunds := soldAndRefunded(t, l, r, 300)

	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for {
				n, err := l.Finalise(t.Context(), 7)
				if err != nil {
					t.Error(err)
				}
				if err != nil || n == 0 {
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
	wantVerified(t, l, lot)
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
			if refund > 0 {
				lease(t, db, lot, time.Minute)
				r.refund(res, refund, true)
				apply(t, l, r.take()...)
				lease(t, db, lot, 0)
			}
			finaliseOnce(t, l)
			const recorded = "SELECT * FROM order_ledger WHERE user_id <> 'cy' ORDER BY lot, n, entry"
			before := db.SQL(t, recorded)
			reopen(lot)
			r.confirm(r.hold("cy", 1), 1, "pay-cy") // which is not recorded yet
			apply(t, l, r.take()...)
			if n := finaliseOnce(t, l); n != 3 {
				t.Errorf("finalised %d", n)
			}
			if after := db.SQL(t, recorded); after != before {
				t.Errorf("the order ledger was\n%s\nand is\n%s", before, after)
			}
			wantVerified(t, l, lot)
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
	refused := func(others int) {
		t.Helper()
		n, err := l.Finalise(t.Context(), 100)
		if n != others || !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), first.ID.String()) {
			t.Errorf("finalised %d, %v", n, err)
		}
	}
	refused(1)
	if n := finaliseOnce(t, l); n != 0 { // it is left alone for a while
		t.Errorf("finalised %d", n)
	}
	db.SQL(t, "UPDATE pending_allocations SET due_at = now()")
	refused(0)
	if s := salesOf(t, l, lot); s.Net != 4+1 || s.Open != 1 {
		t.Errorf("sales %+v", s)
	}
}

// Workers finalise while their connections are cut, commits among them, leases of older workers run out, and refunds are folded. Whatever happens, no sale is recorded whose allocation is still open, at any moment that can be seen.
func TestASaleAndItsAllocationChangeTogether(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	superuser := openPool(t, db.URL(lab.Superuser))
	lot := newLot()
	r := seeded(t, l, lot, 10_000)
	refunds := soldAndRefunded(t, l, r, 600)

	var work, watch sync.WaitGroup
	db.SQL(t, "UPDATE pending_allocations SET state = 'PROCESSING', worker = 'old', due_at = now() + random() * interval '200 ms' WHERE n % 2 = 0")
	for range 4 {
		work.Go(func() {
			for idle := 0; idle < 3; { // an error may hide that there is more
				n, err := l.Finalise(t.Context(), 5)
				if err == nil && n == 0 {
					idle++
					time.Sleep(5 * time.Millisecond)
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
	wantVerified(t, l, lot)
}
