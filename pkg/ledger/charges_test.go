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
	"github.com/dropctl/dropctl/pkg/testkit"
)

func claimCharges(t testing.TB, l *Ledger, worker string, lease time.Duration) []drop.Charge {
	t.Helper()
	claimed, err := l.ClaimCharges(t.Context(), worker, lease, 100)
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

// buyer is one sale of five units on its way. Its statements see its own rows alone: %s in them says so.
type buyer struct {
	*testing.T
	l     *Ledger
	sql   func(string) string
	redis *redis
	res   *drop.Reservation
}

func newBuyer(t *testing.T) *buyer {
	l, db := newLedger(t)
	return newBuyerOn(t, l, db)
}

func newBuyerOn(t *testing.T, l *Ledger, db testkit.Database) *buyer {
	r := seeded(t, l, newLot(), 10)
	r.now = time.Now().UTC().Truncate(time.Millisecond) // the hold lasts
	res := r.hold("ann", 5)
	r.confirm(res, 5, "pay")
	apply(t, l, r.take()...)
	return &buyer{t, l, func(q string) string { return db.SQL(t, strings.ReplaceAll(q, "%s", "lot = '"+string(res.ID.Lot)+"'")) }, r, res}
}

// do carries out one step: "ask", "approve N", "decline N", "pending N", "refund UNITS".
func (b *buyer) do(step string) {
	b.Helper()
	word, rest, _ := strings.Cut(step, " ")
	var n int
	_, _ = fmt.Sscan(rest, &n)
	switch word {
	case "ask":
		b.sql(`UPDATE pending_allocations SET due_at = now() WHERE state = 'PENDING' AND %s; UPDATE charges SET due_at = now() WHERE state = 'open' AND %s`)
		claimCharges(b, b.l, "one", time.Minute)
	case "refund":
		b.redis.refund(b.res, int64(n), true)
		apply(b, b.l, b.redis.take()...)
	default:
		p := map[string]drop.Payment{"approve": {Decision: drop.PaymentApproved, Ref: "g" + rest}, "decline": {Decision: drop.PaymentDeclined, Reason: "no funds"},
			"pending": {Decision: drop.PaymentPending}}[word]
		if _, err := b.l.RecordPayment(b.Context(), b.res.ID, n, p, time.Hour); err != nil {
			b.Fatalf("%s: %v", step, err)
		}
	}
}

// Whatever the gateway says, in whatever order with refunds: units sold, the order ledger and the money agree in the end.
func TestAPaymentMeetsRefundsAndOtherAttempts(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	l, db := newLedger(t)
	for steps, want := range map[string]struct{ entries, back string }{ // back: number/entry/units that go back through the gateway
		"ask, approve 1":                                       {"sale 5", ""},
		"ask, ask, approve 1, approve 1":                       {"sale 5", ""},
		"ask, pending 1, ask, approve 1":                       {"sale 5", ""},
		"ask, decline 1, decline 1, ask, approve 2":            {"sale 5", ""},
		"ask, refund 2, approve 1":                             {"sale 5, refund -2", "1/2/2"},
		"ask, refund 5, approve 1":                             {"sale 5, refund -5", "1/2/5"},
		"ask, approve 1, refund 2, refund 3":                   {"sale 5, refund -2, refund -3", "1/2/2, 1/3/3"},
		"refund 5, ask":                                        {"", ""},
		"ask, decline 1, refund 5, ask":                        {"", ""},
		"ask, refund 5, decline 1, ask":                        {"", ""},
		"ask, decline 1, refund 2, ask, approve 2":             {"sale 3", ""},
		"ask, refund 2, decline 1, ask, approve 2, refund 1":   {"sale 3, refund -1", "2/2/1"},
		"ask, decline 1, approve 1, ask":                       {"sale 5", ""},
		"ask, decline 1, refund 5, approve 1":                  {"sale 5, refund -5", "1/2/5"},
		"ask, decline 1, refund 2, approve 1":                  {"sale 5, refund -2", "1/2/2"},
		"ask, decline 1, ask, approve 1, approve 2":            {"sale 5", "2/0/5"},
		"ask, decline 1, ask, approve 1, pending 2, approve 2": {"sale 5", "2/0/5"},
		"ask, decline 1, ask, approve 1, decline 2":            {"sale 5", ""},
		"ask, decline 1, ask, approve 2, approve 1, refund 1":  {"sale 5, refund -1", "1/0/5, 2/2/1"},
		"ask, decline 1, ask, decline 2, ask, approve 1, ask":  {"sale 5", ""},
		"ask, decline 1, refund 1, ask, refund 2, approve 1":   {"sale 5, refund -3", "1/2/3"},
		"ask, decline 1, ask, refund 5, approve 1, decline 2":  {"sale 5, refund -5", "1/2/5"},
	} {
		t.Run(steps, func(t *testing.T) {
			b := newBuyerOn(t, l, db)
			for step := range strings.SplitSeq(steps, ", ") {
				b.do(step)
			}
			if got := strings.ReplaceAll(b.sql(`SELECT kind || ' ' || units FROM order_ledger WHERE %s ORDER BY entry`), "\n", ", "); got != want.entries {
				t.Errorf("order ledger: %q, want %q", got, want.entries)
			}
			if got := strings.ReplaceAll(b.sql(`SELECT number || '/' || entry || '/' || units FROM charge_refunds WHERE %s ORDER BY number, entry`), "\n", ", "); got != want.back {
				t.Errorf("goes back: %q, want %q", got, want.back)
			}
			// What the gateway keeps is what stays sold, as soon as nothing is open.
			kept := b.sql(`SELECT coalesce((SELECT sum(units) FROM charges WHERE state = 'approved' AND %s), 0) - coalesce((SELECT sum(units) FROM charge_refunds WHERE %s), 0)`)
			sales := salesOf(t, b.l, b.res.ID.Lot)
			if kept != fmt.Sprint(sales.Net) || sales.Net+sales.Pending != sales.Sold {
				t.Errorf("the gateway keeps %s units; sales %+v", kept, sales)
			}
			wantVerified(t, b.l, b.res.ID.Lot)
		})
	}
}

// Contradictions and strangers change nothing.
func TestAnAnswerThatCannotBeIsRefused(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	b := newBuyer(t)
	approved := drop.Payment{Decision: drop.PaymentApproved, Ref: "g1"}
	says := func(code fault.Code, id drop.ReservationID, number int, p drop.Payment) {
		t.Helper()
		if _, err := b.l.RecordPayment(t.Context(), id, number, p, time.Hour); !fault.Is(err, code) {
			t.Errorf("%v: %v, want %s", p, err, code)
		}
	}
	stranger := b.res.ID
	stranger.Attempt = strings.Repeat("a", drop.AttemptLen)
	says(fault.NotFound, b.res.ID, 1, approved) // nobody was asked yet
	b.do("ask")
	says(fault.NotFound, stranger, 1, approved)
	says(fault.NotFound, b.res.ID, 2, approved)
	says(fault.NotFound, b.res.ID, 0, approved)
	b.do("approve 1")
	before := b.sql(`SELECT * FROM charges, order_ledger, pending_allocations`)
	says(fault.Conflict, b.res.ID, 1, drop.Payment{Decision: drop.PaymentApproved, Ref: "another"})
	says(fault.Conflict, b.res.ID, 1, drop.Payment{Decision: drop.PaymentDeclined})
	if replayed, err := b.l.RecordPayment(t.Context(), b.res.ID, 1, drop.Payment{Decision: drop.PaymentPending}, 0); err != nil || !replayed {
		t.Errorf("pending after approved: %v, %v", replayed, err)
	}
	if after := b.sql(`SELECT * FROM charges, order_ledger, pending_allocations`); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
}

// Leases and pauses: a charge is with one worker at a time, keeps its number when another takes over, and is finalised by
// nobody without the gateway.
func TestAChargeIsAskedForByOneAtATime(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	b := newBuyer(t)
	first := claimCharges(t, b.l, "one", time.Minute)
	if len(first) != 1 || first[0].Number != 1 || first[0].Units != 5 || first[0].Ref != "pay" || first[0].Asked != 1 || first[0].Key() != b.res.ID.String()+".1" {
		t.Fatalf("claimed %+v", first)
	}
	if again := claimCharges(t, b.l, "two", time.Minute); len(again) != 0 {
		t.Fatalf("claimed %+v too", again)
	}
	b.sql(`UPDATE charges SET due_at = now()`) // the lease ends
	second := claimCharges(t, b.l, "two", time.Minute)
	if len(second) != 1 || second[0].Number != 1 || second[0].Asked != 2 || second[0].Key() != first[0].Key() {
		t.Fatalf("claimed %+v", second)
	}
	// The first worker's give-back comes late and frees nothing.
	if err := b.l.PostponeCharge(t.Context(), "one", first[0], 0); err != nil || len(claimCharges(t, b.l, "three", time.Minute)) != 0 {
		t.Errorf("a claim of another was given back: %v", err)
	}
	if err := b.l.PostponeCharge(t.Context(), "two", second[0], 0); err != nil || len(claimCharges(t, b.l, "three", time.Minute)) != 1 {
		t.Errorf("a claim was not given back: %v", err)
	}
	if p, err := b.l.Payments(t.Context()); err != nil || p != (drop.Payments{Asking: 1, Open: 1}) {
		t.Errorf("payments %+v, %v", p, err)
	}
	b.do("decline 1")
	b.sql(`UPDATE pending_allocations SET due_at = now(), given_up_at = now()`)
	if finalised := finaliseOnce(t, b.l); finalised != 0 {
		t.Errorf("without the gateway %d would be finalised", finalised)
	}
	if third := claimCharges(t, b.l, "one", time.Minute); len(third) != 0 {
		t.Errorf("the hold's deadline is long past, but the gateway would be asked for %+v", third)
	}
}

// A declined reservation is tried again until its deadline, then given up; the refund in Redis ends it.
func TestADeclinedReservationIsGivenUpAtItsDeadline(t *testing.T) {
	t.Parallel()
	b := newBuyer(t)
	givenUp := func() []drop.ReservationID {
		ids, err := b.l.ClaimGivenUp(t.Context(), time.Minute, 10)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	b.do("ask")
	b.do("decline 1")
	if ids := givenUp(); len(ids) != 0 {
		t.Errorf("given up before its deadline: %v", ids)
	}
	if p, err := b.l.Payments(t.Context()); err != nil || p != (drop.Payments{Declined: 1}) {
		t.Errorf("payments %+v, %v", p, err)
	}
	b.do("ask")
	b.sql(`UPDATE reservations SET deadline = now() - interval '1 second'`)
	if ids := givenUp(); len(ids) != 0 {
		t.Errorf("given up while the gateway is asked: %v", ids)
	}
	b.do("decline 2")
	if p, err := b.l.Payments(t.Context()); err != nil || p != (drop.Payments{Asking: 1, Declined: 1}) {
		t.Errorf("payments %+v, %v", p, err)
	}
	if ids := givenUp(); !slices.Equal(ids, []drop.ReservationID{b.res.ID}) || len(givenUp()) != 0 {
		t.Errorf("given up: %v", ids)
	}
	b.do("refund 5")
	if s := b.sql(`SELECT state, reason FROM pending_allocations`); s != "REJECTED|refunded" {
		t.Errorf("it is %s", s)
	}
}

// Money that goes back is asked for until it has, also if the gateway will not.
func TestRefundsAtTheGatewayAreKeptUntilTheyAreThrough(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	b := newBuyer(t)
	for _, step := range []string{"ask", "approve 1", "refund 2"} {
		b.do(step)
	}
	claimRefund := func(asked int) drop.ChargeRefund {
		t.Helper()
		list, err := b.l.ClaimChargeRefunds(t.Context(), "one", time.Minute, 10)
		want := drop.ChargeRefund{Reservation: b.res.ID, Number: 1, Entry: 2, Charged: "g1", User: "ann", Units: 2, Of: 5, Ref: "pay", Asked: asked}
		if err != nil || len(list) != 1 || list[0] != want || list[0].Key() != b.res.ID.String()+".1.refund.2" {
			t.Fatalf("claimed %+v, %v", list, err)
		}
		return list[0]
	}
	say := func(r drop.ChargeRefund, p drop.Payment) drop.Payments {
		t.Helper()
		if err := b.l.RecordRefund(t.Context(), r, p, 0); err != nil {
			t.Fatal(err)
		}
		now, err := b.l.Payments(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	if err := b.l.PostponeRefund(t.Context(), "one", claimRefund(1), 0); err != nil {
		t.Fatal(err)
	}
	if p := say(claimRefund(2), drop.Payment{Decision: drop.PaymentDeclined}); p != (drop.Payments{Returns: 1, Refused: 1}) {
		t.Errorf("%+v", p)
	}
	if list, err := b.l.RefusedRefunds(t.Context(), 10); err != nil || len(list) != 1 || list[0].Charged != "g1" || list[0].Reason != "no reason was given" {
		t.Errorf("refused: %+v, %v", list, err)
	}
	if p := say(claimRefund(3), drop.Payment{Decision: drop.PaymentPending}); p != (drop.Payments{Returns: 1}) {
		t.Errorf("%+v", p)
	}
	last := claimRefund(4)
	if p := say(last, drop.Payment{Decision: drop.PaymentApproved, Ref: "back"}); p != (drop.Payments{}) {
		t.Errorf("%+v", p)
	}
	if p := say(last, drop.Payment{Decision: drop.PaymentDeclined}); p != (drop.Payments{}) { // an old answer
		t.Errorf("%+v", p)
	}
}

// Two workers and callbacks settle a hundred sales at once while refunds are folded: each is charged once.
func TestAnswersRaceWithRefunds(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	l, db := newLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10_000)
	r.now = time.Now().UTC().Truncate(time.Millisecond)
	var bought []*drop.Reservation
	for i := range 100 {
		res := r.hold(fmt.Sprint("user-", i), 3)
		r.confirm(res, 3, "")
		bought = append(bought, res)
	}
	apply(t, l, r.take()...)
	for i, res := range bought {
		r.refund(res, 1+int64(i%3), true)
	}
	refunds := r.take()
	var all sync.WaitGroup
	for w := range 2 {
		all.Go(func() {
			for range 60 {
				claimed, err := l.ClaimCharges(t.Context(), fmt.Sprint("worker-", w), time.Minute, 7)
				for _, c := range claimed {
					p := drop.Payment{Decision: drop.PaymentApproved, Ref: c.Key()}
					if c.Number < 3 && c.Reservation.N%2 == 0 {
						p = drop.Payment{Decision: drop.PaymentDeclined, Reason: "no"}
					}
					for range 2 { // the gateway answers, and calls back
						if _, e := l.RecordPayment(t.Context(), c.Reservation, c.Number, p, 0); e != nil {
							err = e
						}
					}
				}
				if err != nil {
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
	for range 10 {
		for _, c := range claimCharges(t, l, "last", time.Minute) {
			if _, err := l.RecordPayment(t.Context(), c.Reservation, c.Number, drop.Payment{Decision: drop.PaymentApproved, Ref: c.Key()}, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	kept := db.SQL(t, `SELECT (SELECT sum(units) FROM charges WHERE state = 'approved') - (SELECT coalesce(sum(units), 0) FROM charge_refunds)`)
	if s := salesOf(t, l, lot); s.Open != 0 || s.Net != r.sold || kept != fmt.Sprint(r.sold) {
		t.Errorf("the gateway keeps %s units; sales %+v, want %d", kept, s, r.sold)
	}
	wantVerified(t, l, lot)
}

// What is due is closed once, by somebody, and told from the sale of the same reservation.
func TestWhatIsDueIsClosedOnce(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	late, both := r.hold("ann", 2), r.hold("bob", 1)
	r.expire(late)
	r.paidLate(late, "pay-late")
	r.confirm(both, 1, "pay-1")
	r.paidLate(both, "pay-2")
	apply(t, l, r.take()...)
	dueOf := func(id drop.ReservationID) drop.Due {
		t.Helper()
		d, err := l.DueOf(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := dueOf(late.ID); d != (drop.Due{User: "ann", Open: 1, Units: 2}) {
		t.Errorf("due %+v", d)
	}
	if d := dueOf(both.ID); d != (drop.Due{User: "bob", Open: 1, Units: 1, Sale: true}) {
		t.Errorf("due %+v", d)
	}
	for _, want := range []int64{1, 0} {
		if n, err := l.CloseDue(t.Context(), late.ID, "olga", "bank transfer 7"); err != nil || n != want {
			t.Errorf("closed %d: %v", n, err)
		}
	}
	if d := dueOf(late.ID); d != (drop.Due{User: "ann", Closed: 1, Units: 2}) {
		t.Errorf("due %+v", d)
	}
	if got := db.SQL(t, `SELECT settled_why, settled_by, settled_reason, settled_at IS NOT NULL FROM refunds_due WHERE user_id = 'ann'`); got != "refunded|olga|bank transfer 7|t" {
		t.Errorf("recorded %s", got)
	}
	if list, err := l.RefundsDue(t.Context(), lot, 0); err != nil || len(list) != 1 || list[0].User != "bob" {
		t.Errorf("still due %+v, %v", list, err)
	}
}
