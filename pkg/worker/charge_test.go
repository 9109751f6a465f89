package worker_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/payment"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// charging are the options of a worker that charges through a gateway, and asks again soon.
func charging(t testing.TB, g *testkit.Gateway) worker.Options {
	t.Helper()
	w, err := payment.NewWebhook(payment.Options{URL: g.URL, Secret: g.Secret, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return worker.Options{Gateway: w, ChargePause: 20 * time.Millisecond}
}

// buy holds a unit of a lot for a user and confirms it.
func (s *shop) buy(t testing.TB, lot drop.LotID, user string, hold time.Duration) drop.ReservationID {
	t.Helper()
	id, err := s.hold(t.Context(), lot, user, hold)
	if err == nil {
		_, err = s.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: "card-" + user})
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (s *shop) refund(t testing.TB, id drop.ReservationID) {
	t.Helper()
	if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: drop.ActRefund, Total: -1, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
}

// recorded are the units that stay sold by the order ledger, by reservation.
func (s *shop) recorded(t testing.TB) map[string]int64 {
	t.Helper()
	units := map[string]int64{}
	rows := s.sql(t, `SELECT lot || '~' || attempt || '~' || n, sum(units) FROM order_ledger GROUP BY lot, attempt, n HAVING sum(units) <> 0`)
	for row := range strings.FieldsSeq(rows) {
		id, n, _ := strings.Cut(row, "|")
		units[id], _ = strconv.ParseInt(n, 10, 64)
	}
	return units
}

// settlesWith waits until everything is decided, and the order ledger and the gateway's own book say the same.
func (s *shop) settlesWith(t testing.TB, g *testkit.Gateway, sold int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (bool, string) {
		p, err := s.ledger.Payments(t.Context())
		if err != nil || p.Open+p.Declined+p.Returns > 0 || s.pending(t) > 0 {
			return false, fmt.Sprintf("payments %+v: %s", p, errorText(err))
		}
		recorded, kept := s.recorded(t), g.Kept()
		return len(recorded) == sold && maps.Equal(recorded, kept), fmt.Sprintf("recorded %v, the gateway keeps %v, want %d", recorded, kept, sold)
	})
	s.agreesWithin(t, 20*time.Second)
}

// A gateway does everything that goes wrong between two machines: errors, garbage, redirects, answers that come twice or
// break off after the money has moved, and decisions that take their time. Every sale is charged once.
func TestEverySaleIsChargedOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		switch moods := (int(c.Reservation[len(c.Reservation)-1]) + c.Times) % 8; {
		case c.Times > 5:
			return testkit.GatewayAnswer{}
		case moods == 0:
			return testkit.GatewayAnswer{HTTP: 500, Status: "unsure"}
		case moods == 1:
			return testkit.GatewayAnswer{Break: true} // after it was charged
		case moods == 2:
			return testkit.GatewayAnswer{Raw: "<html>"} // too
		case moods == 3:
			return testkit.GatewayAnswer{HTTP: 302, Status: "unsure"}
		case moods == 4:
			return testkit.GatewayAnswer{Status: "pending"}
		}
		return testkit.GatewayAnswer{}
	})
	s.load(t, "truffle", 60)
	s.sell(t, "truffle", 0, 60)
	s.start(t, charging(t, g))
	s.start(t, charging(t, g)) // a second worker, which does nothing twice
	s.settlesWith(t, g, 30)
	for id := range s.recorded(t) {
		if n := g.Charges(id); n != 1 {
			t.Errorf("%s was charged %d times", id, n)
		}
	}
	if got := s.sql(t, `SELECT max(number), count(*) FILTER (WHERE asked > 1) > 0 FROM charges`); got != "1|t" {
		t.Errorf("attempts, and whether some were asked for again: %s", got)
	}
}

// Scenario 24: while the gateway takes its time, no transaction and no script is open, buyers and relay go on, and a stop
// does not wait for it. Whoever takes over asks the same.
func TestNothingIsHeldUpByASlowGateway(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	arrived, release := make(chan string, 100), make(chan struct{})
	var once sync.Once
	defer once.Do(func() { close(release) })
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		return testkit.GatewayAnswer{Wait: func() { arrived <- c.Key; <-release }}
	})
	s.load(t, "truffle", 40)
	first := s.buy(t, "truffle", "ann", time.Hour)
	second := s.buy(t, "truffle", "bob", time.Hour)
	stop := s.start(t, charging(t, g))
	var since time.Time
	for range 2 { // both at a time
		select {
		case <-arrived:
			since = time.Now()
		case <-time.After(30 * time.Second):
			t.Fatal("the gateway was not asked for both")
		}
	}
	s.sell(t, "truffle", 0, 20) // buyers do not notice
	testkit.Eventually(t, 20*time.Second, func() (bool, string) { return s.pending(t) == 0, "the relay waits for the gateway" })
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		return time.Since(since) > 1500*time.Millisecond, "the gateway answers too soon"
	})
	if n := s.sql(t, fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity WHERE datname = '%s' AND application_name = 'worker-test' AND state <> 'idle'
			AND xact_start < now() - interval '1 second'`, s.databaseName())); n != "0" {
		t.Errorf("%s transactions are open since the gateway was asked", n)
	}
	began := time.Now()
	if _, err := stop(); err != nil || time.Since(began) > 20*time.Second {
		t.Errorf("it stopped after %v: %v", time.Since(began), err)
	}
	if got := s.sql(t, `SELECT count(*) FROM order_ledger`); got != "0" {
		t.Errorf("%s rows are recorded without an answer", got)
	}
	once.Do(func() { close(release) })
	s.start(t, charging(t, g))
	s.settlesWith(t, g, 12)
	for _, id := range []drop.ReservationID{first, second} {
		if asked, charged := g.Asked(id.String()+".1"), g.Charges(id.String()); asked < 2 || charged != 1 {
			t.Errorf("%s: asked %d times, charged %d times", id, asked, charged)
		}
	}
}

// A worker is killed when the buyer is charged and nobody knows it but the gateway.
func TestAWorkerKilledAfterTheChargeChargesOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	charged, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		if c.Times > 1 {
			return testkit.GatewayAnswer{}
		}
		return testkit.GatewayAnswer{Wait: func() { close(charged); <-release }}
	})
	s.load(t, "truffle", 10)
	id := s.buy(t, "truffle", "ann", time.Hour)
	victim := exec.Command(os.Args[0])
	victim.Env = append(os.Environ(), envRedis+"="+s.redisURL, envDatabase+"="+s.databaseURL, envGateway+"="+g.URL+" "+g.Secret)
	victim.Stderr = os.Stderr
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-charged:
	case <-time.After(30 * time.Second):
		t.Error("the gateway was not asked")
	}
	_ = victim.Process.Kill()
	_ = victim.Wait()
	if got := s.sql(t, `SELECT state, asked, worker <> '' FROM charges`); got != "open|1|t" || s.sql(t, `SELECT count(*) FROM order_ledger`) != "0" {
		t.Errorf("it was not killed in between: %s", got)
	}
	s.sql(t, `UPDATE charges SET due_at = now()`) // the lease ends
	s.start(t, charging(t, g))
	s.settlesWith(t, g, 1)
	if asked, n := g.Asked(id.String()+".1"), g.Charges(id.String()); asked != 2 || n != 1 {
		t.Errorf("asked %d times, charged %d times", asked, n)
	}
}

// Declined is definite: the next attempt has the next number. Before the deadline the buyer can still pay.
func TestADeclinedPaymentIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		if c.Attempt < 3 {
			return testkit.GatewayAnswer{Status: "declined"}
		}
		return testkit.GatewayAnswer{}
	})
	s.load(t, "truffle", 10)
	id := s.buy(t, "truffle", "ann", time.Hour)
	s.start(t, charging(t, g))
	s.settlesWith(t, g, 1)
	if got := s.sql(t, `SELECT string_agg(number || state || asked, ' ' ORDER BY number) FROM charges`); got != "1declined1 2declined1 3approved1" || g.Charges(id.String()) != 1 {
		t.Errorf("charges: %s", got)
	}
	if st, err := s.stock.Reservation(t.Context(), id); err != nil || st.State != drop.Confirmed {
		t.Errorf("it is %+v, %v", st, err)
	}
}

// Nobody pays until the deadline: the units are sold again. A payment that is approved after that goes back.
func TestWhatNobodyPaysForIsGivenUp(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		if c.Action == "refund" {
			return testkit.GatewayAnswer{Status: map[int]string{1: "declined", 2: "pending"}[c.Times]}
		}
		return testkit.GatewayAnswer{Status: "declined"}
	})
	s.load(t, "truffle", 10)
	id := s.buy(t, "truffle", "ann", time.Hour)
	s.start(t, charging(t, g))
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		s.sql(t, `UPDATE pending_allocations SET given_up_at = now(), due_at = now() WHERE state = 'PENDING' AND charge > 1`) // the hour is over
		state := s.sql(t, `SELECT state || reason FROM pending_allocations`)
		return state == "REJECTEDrefunded", "it is " + state
	})
	s.settlesWith(t, g, 0)
	if lot, err := s.stock.Lot(t.Context(), "truffle"); err != nil || lot.Available != 10 || lot.Sold != 0 {
		t.Errorf("the lot has %+v, %v", lot.Totals, err)
	}
	if got := s.sql(t, `SELECT count(*) FROM reservation_events WHERE kind = 'refunded' AND line LIKE '%payment declined%'`); got != "1" {
		t.Errorf("%s refunds are in the journal", got)
	}

	// The gateway thinks better of its first answer, and calls back.
	g.Approve(testkit.GatewayCall{Key: id.String() + ".1", Reservation: id.String(), Attempt: 1, Units: 1})
	if replayed, err := s.ledger.RecordPayment(t.Context(), id, 1, drop.Payment{Decision: drop.PaymentApproved, Ref: "late"}, 0); replayed || err != nil {
		t.Errorf("late: %v, %v", replayed, err)
	}
	s.settlesWith(t, g, 0)
	if got := s.sql(t, `SELECT string_agg(kind || units, ' ' ORDER BY entry) FROM order_ledger`); got != "sale1 refund-1" || g.Asked(id.String()+".1.refund.2") != 3 {
		t.Errorf("order ledger: %s", got)
	}
}

// A refund of what was charged goes back through the gateway, however often that fails at first.
func TestARefundGoesBackThroughTheGateway(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		if c.Action == "refund" && c.Times < 3 {
			return testkit.GatewayAnswer{HTTP: 503, Status: "unsure"}
		}
		return testkit.GatewayAnswer{}
	})
	s.load(t, "truffle", 10)
	before, after, kept := s.buy(t, "truffle", "ann", time.Hour), s.buy(t, "truffle", "bob", time.Hour), s.buy(t, "truffle", "cat", time.Hour)
	s.refund(t, before) // before anybody is asked to pay
	if _, err := s.drain(t, worker.Options{Only: []worker.Part{worker.Guardian, worker.Relay}}); err != nil {
		t.Fatal(err)
	}
	s.start(t, charging(t, g))
	s.settlesWith(t, g, 2)
	s.refund(t, after)
	s.settlesWith(t, g, 1)
	if g.Asked(before.String()+".1") != 0 || g.Asked(after.String()+".1.refund.2") != 3 || g.Charges(kept.String()) != 1 {
		t.Errorf("asked %d, %d, charged %d", g.Asked(before.String()+".1"), g.Asked(after.String()+".1.refund.2"), g.Charges(kept.String()))
	}
}

// A gateway that makes no refunds, however many are due, still charges.
func TestRefundsInTroubleHoldNoChargeUp(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		if c.Action == "refund" {
			return testkit.GatewayAnswer{HTTP: 501, Status: "unsure"}
		}
		return testkit.GatewayAnswer{}
	})
	s.load(t, "truffle", 80)
	s.start(t, charging(t, g))
	var sold []drop.ReservationID
	for i := range 40 { // more than are asked for at a time
		sold = append(sold, s.buy(t, "truffle", fmt.Sprint("early-", i), time.Hour))
	}
	s.settlesWith(t, g, 40)
	for _, id := range sold {
		s.refund(t, id)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		p, err := s.ledger.Payments(t.Context())
		return p.Returns == 40, fmt.Sprintf("payments %+v: %s", p, errorText(err))
	})
	late := s.buy(t, "truffle", "late", time.Hour)
	testkit.Eventually(t, time.Minute, func() (bool, string) { return s.recorded(t)[late.String()] == 1, "the late buyer is not charged" })
}

// Until-idle ends when only others can go on, and says so if it is the gateway that does not answer.
func TestUntilIdleWithAGateway(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	status, trouble := "pending", 0
	var mu sync.Mutex
	g := testkit.NewGateway(t, func(testkit.GatewayCall) testkit.GatewayAnswer {
		mu.Lock()
		defer mu.Unlock()
		return testkit.GatewayAnswer{Status: status, HTTP: trouble}
	})
	s.load(t, "truffle", 10)
	s.buy(t, "truffle", "ann", time.Hour)
	o := charging(t, g)
	o.ChargePause = 10 * time.Minute // what waits, waits for longer than the test
	if _, err := s.drain(t, o); err != nil {
		t.Errorf("pending: %v", err)
	}
	if p, err := s.ledger.Payments(t.Context()); err != nil || p.Pending != 1 || p.Asking != 0 {
		t.Errorf("payments %+v, %v", p, err)
	}
	mu.Lock()
	status, trouble = "unsure", 500
	mu.Unlock()
	s.buy(t, "truffle", "bob", time.Hour)
	o.Patience = time.Second
	_, err := s.drain(t, o)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "HTTP status 500") {
		t.Errorf("a gateway in trouble: %v", err)
	}
	// Without the gateway nothing of it is finalised.
	if sum, err := s.drain(t, worker.Options{}); err != nil || sum.Finalised != 0 {
		t.Errorf("%+v, %v", sum, err)
	}
}
