package worker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// receipts is what buyers were told.
type receipts struct {
	mu        sync.Mutex
	held      map[string]drop.ReservationID // by user
	confirmed map[drop.ReservationID]string // payment reference
}

// A sell-out during which workers and Redis are killed again and again. Afterwards no unit is missing or sold
// twice, and every answer that a buyer was given holds.
func TestASellOutSurvivesKills(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	const lot = drop.LotID("truffle")
	units, kills := 400, 4
	if testing.Short() {
		units, kills = 100, 2
	}
	s.load(t, lot, int64(units))
	crowd := &receipts{held: map[string]drop.ReservationID{}, confirmed: map[drop.ReservationID]string{}}

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var buyers, chaos sync.WaitGroup
	for b := range 16 {
		buyers.Go(func() {
			for u := b; u < units+units/2; u += 16 {
				sleepUntil(ctx, rand.N(100*time.Millisecond)) // so that the sale outlasts the kills
				crowd.buy(ctx, t, s, lot, "user-"+strconv.Itoa(u))
			}
		})
	}
	sold := make(chan struct{})
	chaos.Go(func() { s.killWorkers(t, sold) })
	var killed int
	chaos.Go(func() { killed = s.killRedis(t, kills, sold) })
	buyers.Wait()
	close(sold)
	chaos.Wait()
	if killed < kills/2 {
		t.Errorf("Redis was killed %d times only before all was sold", killed)
	}
	if t.Failed() {
		return
	}

	if _, err := s.drain(t, worker.Options{Takeover: time.Second}); err != nil {
		t.Fatal(err)
	}
	s.mustAgree(t)
	st, err := s.stock.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	if !st.Balanced() || st.Capacity != int64(units) || st.Available != 0 {
		t.Errorf("more buyers than units, and yet %+v", st.Totals)
	}
	crowd.check(t, s, lot, st)
}

// buy reserves with one key until it gets an answer, then confirms, as often as it takes.
func (r *receipts) buy(ctx context.Context, t *testing.T, s *shop, lot drop.LotID, user string) {
	var id drop.ReservationID
	err := retry(ctx, func() (err error) { id, err = s.hold(ctx, lot, user, time.Hour); return err })
	if fault.Is(err, fault.SoldOut) {
		return
	}
	if err != nil {
		t.Errorf("%s: %v", user, err)
		return
	}
	r.mu.Lock()
	r.held[user] = id
	r.mu.Unlock()
	if rand.N(4) == 0 {
		return // holds on without paying
	}
	ref := "pay-" + user
	err = retry(ctx, func() error {
		_, err := s.stock.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: ref})
		return err
	})
	if err != nil {
		t.Errorf("%s confirms %s: %v", user, id, err)
		return
	}
	r.mu.Lock()
	r.confirmed[id] = ref
	r.mu.Unlock()
}

// retry repeats a call for as long as its answer is that Redis is away, shut, or did not say.
func retry(ctx context.Context, call func() error) error {
	for {
		err := call()
		if err == nil || fault.ExitOf(err) != fault.ExitUnavailable || ctx.Err() != nil {
			return err
		}
		sleepUntil(ctx, rand.N(20*time.Millisecond))
	}
}

// killWorkers keeps a worker process running and kills it every now and then, until the lot is sold.
func (s *shop) killWorkers(t *testing.T, sold <-chan struct{}) {
	for over := false; !over; {
		victim := exec.Command(os.Args[0])
		victim.Env = append(os.Environ(), envRedis+"="+s.redisURL, envDatabase+"="+s.databaseURL)
		if err := victim.Start(); err != nil {
			t.Error(err)
			return
		}
		select {
		case <-sold:
			over = true
		case <-time.After(3*time.Second + rand.N(2*time.Second)):
		}
		_ = victim.Process.Kill()
		_ = victim.Wait()
	}
}

// killRedis kills Redis and starts it again, each time the guardian has let buyers in, and returns how often.
func (s *shop) killRedis(t *testing.T, times int, sold <-chan struct{}) int {
	for n := range times {
		select {
		case <-sold:
			return n
		case <-time.After(rand.N(200 * time.Millisecond)):
		}
		if err := s.redis.Kill(); err != nil {
			t.Error(err)
		}
		if err := s.redis.Start(context.Background()); err != nil {
			t.Error(err)
			return n
		}
		s.awaitOpen(t, sold)
	}
	return times
}

func (s *shop) awaitOpen(t *testing.T, sold <-chan struct{}) {
	for {
		st, err := s.stock.Lot(t.Context(), "truffle")
		if err == nil && st.Sells() {
			return
		}
		select {
		case <-sold:
			return
		case <-t.Context().Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// check compares what buyers were told with what both stores know.
func (r *receipts) check(t *testing.T, s *shop, lot drop.LotID, st drop.LotState) {
	t.Helper()
	recorded := map[drop.ReservationID]drop.Recorded{}
	var units int64
	err := s.ledger.EachReservation(t.Context(), drop.ReservationFilter{Lot: lot}, func(page []drop.Recorded) error {
		for _, known := range page {
			recorded[known.ID] = known
			units += known.Qty
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if units != st.Held+st.Sold {
		t.Errorf("reservations add up to %d units, Redis has %d held and %d sold", units, st.Held, st.Sold)
	}
	for user, id := range r.held {
		known, ok := recorded[id]
		if !ok || known.User != user {
			t.Errorf("%s was given %s, the ledger says %+v", user, id, known)
		}
		again, err := s.hold(t.Context(), lot, user, time.Hour)
		if err != nil || again != id {
			t.Errorf("%s asks again and gets %s, not %s: %v", user, again, id, err)
		}
	}
	finalised := s.sql(t, `SELECT count(*), count(DISTINCT n), coalesce(sum(units), 0) FROM order_ledger`)
	if want := fmt.Sprintf("%d|%d|%d", st.Sold, st.Sold, st.Sold); finalised != want {
		t.Errorf("finalised %s, want %s", finalised, want)
	}
	if int64(len(r.confirmed)) != st.Sold {
		t.Errorf("%d buyers were told they bought, %d units are sold", len(r.confirmed), st.Sold)
	}
	for id, ref := range r.confirmed {
		if known := recorded[id]; known.State != drop.Confirmed || known.Ref != ref {
			t.Errorf("%s was confirmed with %s, the ledger says %+v", id, ref, known)
		}
	}
}
