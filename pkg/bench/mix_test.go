package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// notebookShop notes who wants what.
type notebookShop struct {
	mu                  sync.Mutex
	lots                map[drop.LotID]int
	users               map[string]bool
	confirmed, released map[drop.ReservationID]bool
}

func (s *notebookShop) Reserve(_ context.Context, lot drop.LotID, user string, qty int64) (drop.ReservationID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if qty != 3 || s.users[user] {
		return drop.ReservationID{}, fmt.Errorf("%s wants %d", user, qty)
	}
	s.lots[lot]++
	s.users[user] = true
	return drop.ReservationID{Lot: lot, Attempt: user, N: 1}, nil
}

func (s *notebookShop) Confirm(_ context.Context, id drop.ReservationID, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed[id] = true
	return nil
}

func (s *notebookShop) Release(_ context.Context, id drop.ReservationID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released[id] = true
	return nil
}

func TestMixesDoWhatTheySay(t *testing.T) {
	for mix, want := range map[string]struct{ confirmed, released int }{Accept: {}, SoldOut: {}, Churn: {0, 60}, Full: {120, 0}} {
		p := Plan{Mix: mix, Lots: 4, Stock: AsNeeded, Qty: 3}
		s := &notebookShop{lots: map[drop.LotID]int{}, users: map[string]bool{}, confirmed: map[drop.ReservationID]bool{}, released: map[drop.ReservationID]bool{}}
		target := p.Target(s)
		for n := range int64(120) {
			if err := target.Do(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range p.Definitions() {
			if s.lots[d.Lot] != 30 {
				t.Errorf("%s: %d came to %s", mix, s.lots[d.Lot], d.Lot)
			}
			if d.Limit != 3 || (d.Stock == 0) != (mix == SoldOut) || (d.Hold == time.Second) != (mix == Churn) {
				t.Errorf("%s: %+v", mix, d)
			}
			if err := d.Check(); err != nil {
				t.Errorf("%s: %v", mix, err)
			}
		}
		if len(s.confirmed) != want.confirmed || len(s.released) != want.released {
			t.Errorf("%s: %d confirmed, %d released", mix, len(s.confirmed), len(s.released))
		}
	}
}

func TestPlansAreChecked(t *testing.T) {
	good := Plan{Mix: Accept, Lots: 1, Stock: 10, Qty: 1}
	if err := good.Check(); err != nil || good.Definitions()[0].Stock != 10 {
		t.Error(err)
	}
	for field, spoil := range map[string]func(*Plan){
		"mix": func(p *Plan) { p.Mix = "buy" }, "lots": func(p *Plan) { p.Lots = 0 }, "stock": func(p *Plan) { p.Stock = drop.MaxUnits + 1 }, "qty": func(p *Plan) { p.Qty = 0 },
	} {
		p := good
		spoil(&p)
		if err := p.Check(); fault.CodeOf(err) != fault.Usage || fault.As(err).Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// slowLedger has recorded what it is asked for at the second look.
type slowLedger struct{ looks int }

func (l *slowLedger) ReservationsByID(_ context.Context, ids []drop.ReservationID) (map[drop.ReservationID]drop.Recorded, error) {
	if l.looks++; l.looks == 1 {
		return nil, fault.New(fault.Unavailable, "gone for a moment")
	}
	found := map[drop.ReservationID]drop.Recorded{}
	for _, id := range ids {
		state := drop.Held // the confirmation is on its way
		if l.looks > 2 {
			state = drop.Confirmed
		}
		if id.N != 3 {
			found[id] = drop.Recorded{Reservation: drop.Reservation{ID: id, State: state}, Rejected: id.N == 2}
		}
	}
	return found, nil
}

func TestASaleIsWaitedForUntilItIsRecorded(t *testing.T) {
	l := &slowLedger{}
	r := &recorded{ledger: l, waiting: map[drop.ReservationID]chan error{}}
	id := func(n int64) drop.ReservationID { return drop.ReservationID{Lot: "hat", Attempt: "a", N: n} }
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if err := r.await(t.Context(), id(2)); !fault.Is(err, fault.LedgerRejected) {
			t.Errorf("a sale that the ledger has no unit for: %v", err)
		}
	})
	if err := r.await(t.Context(), id(1)); err != nil || l.looks < 3 {
		t.Errorf("%v after %d looks", err, l.looks)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := r.await(ctx, id(3)); !fault.Is(err, fault.OutcomeUnknown) {
		t.Errorf("a sale that is never recorded: %v", err)
	}
	waiting.Wait()
}

func TestBatchesAreCounted(t *testing.T) {
	b := NewBatches()
	if b.Sizes() != nil {
		t.Error("sizes of no call")
	}
	for range 98 {
		b.Metrics.BatchSize.WithLabelValues("reserve").Observe(3)
	}
	b.Metrics.BatchSize.WithLabelValues("settle").Observe(41)
	b.Metrics.BatchSize.WithLabelValues("settle").Observe(511)
	if got := *b.Sizes(); got != (Batch{P50: 3, P99: 41, Max: 511, Mean: got.Mean}) || got.Mean < 8.4 || got.Mean > 8.5 {
		t.Errorf("%+v", got)
	}
}
