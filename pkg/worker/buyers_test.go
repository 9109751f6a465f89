package worker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// buyers buy one lot without a pause, each hold by another user, whatever the answers are.
type buyers struct {
	stop func() // waits for the last answer; may be called more than once

	mu      sync.Mutex
	got     []drop.ReservationID
	newest  time.Time   // when the newest call that was accepted began
	refused []time.Time // when each call that was refused began
	last    error
	wrong   error // an answer that nobody should ever see
}

func (s *shop) buyers(t testing.TB, lot drop.LotID) *buyers {
	t.Helper()
	b := &buyers{}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	b.stop = func() {
		cancel()
		all.Wait()
	}
	t.Cleanup(b.stop)
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				id, err := s.hold(context.WithoutCancel(ctx), lot, rand.Text(), time.Hour)
				b.note(began, id, err)
				sleepUntil(ctx, 5*time.Millisecond)
			}
		})
	}
	return b
}

func (b *buyers) note(began time.Time, id drop.ReservationID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch fault.CodeOf(err) {
	case "":
		b.got = append(b.got, id)
		if began.After(b.newest) {
			b.newest = began
		}
		return
	case fault.Unavailable, fault.OutcomeUnknown, fault.LotFrozen, fault.LotNotLoaded, fault.Overloaded:
	default:
		b.wrong = err
	}
	b.refused = append(b.refused, began)
	b.last = err
}

func (b *buyers) count() (accepted, refused int, last string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got), len(b.refused), errorText(b.last)
}

func (b *buyers) accepted() []drop.ReservationID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

// awaitAccepted waits for n more reservations.
func (b *buyers) awaitAccepted(t testing.TB, n int, limit time.Duration) {
	t.Helper()
	before, _, _ := b.count()
	testkit.Eventually(t, limit, func() (bool, string) {
		now, refused, last := b.count()
		return now >= before+n, fmt.Sprintf("%d reservations accepted, %d refused: %s", now-before, refused, last)
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wrong != nil {
		t.Errorf("somebody was answered %v", b.wrong)
	}
}

// awaitRefused waits until n calls that begin from now on were refused, and fails if a single one of those was accepted.
// What is on its way now may still be told of its success.
func (b *buyers) awaitRefused(t testing.TB, n int) {
	t.Helper()
	from := time.Now()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		refused := 0
		for _, began := range b.refused {
			if began.After(from) {
				refused++
			}
		}
		return refused >= n, "nobody is refused"
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.newest.After(from) {
		t.Errorf("a reservation that was asked for %v later was accepted", b.newest.Sub(from))
	}
}

// sellsWithin waits until the lot sells.
func (s *shop) sellsWithin(t testing.TB, lot drop.LotID, limit time.Duration) {
	t.Helper()
	testkit.Eventually(t, limit, func() (bool, string) {
		_, err := s.hold(t.Context(), lot, rand.Text(), time.Hour)
		return err == nil, "still shut: " + errorText(err)
	})
}

// watermark is where the ledger stands with a lot.
func (s *shop) watermark(t testing.TB, lot drop.LotID) drop.Watermark {
	t.Helper()
	lots, err := s.ledger.Lots(t.Context(), []drop.LotID{lot})
	if err != nil || len(lots) != 1 {
		t.Fatalf("%d lots, %v", len(lots), err)
	}
	return lots[0].Watermark
}

func (s *shop) awaitEpoch(t testing.TB, lot drop.LotID, epoch int64, limit time.Duration) {
	t.Helper()
	testkit.Eventually(t, limit, func() (bool, string) {
		at := s.watermark(t, lot)
		return at.Epoch >= epoch, fmt.Sprintf("the lot is at epoch %d", at.Epoch)
	})
}
