package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// A target that stands still for a second keeps everybody waiting who wanted something meanwhile. A generator that counted from
// the moment at which it got round to asking would see a handful of slow answers.
func TestAStallShowsInThePercentiles(t *testing.T) {
	t.Parallel()
	var stalled sync.Once
	var gate sync.RWMutex
	target := TargetFunc(func(_ context.Context, n int64) error {
		if n >= 500 {
			stalled.Do(func() {
				gate.Lock()
				time.Sleep(time.Second)
				gate.Unlock()
			})
		}
		gate.RLock()
		defer gate.RUnlock()
		return nil
	})
	r := Load{Rate: 1000, Users: 5000, Duration: 3 * time.Second}.Run(t.Context(), target)
	// A third of the operations fell into that second, spread evenly over it.
	if p999 := time.Duration(*r.Accepted.P999); p999 < 900*time.Millisecond {
		t.Errorf("p99.9 is %s", p999)
	}
	if p90 := time.Duration(*r.Accepted.P90); p90 < 500*time.Millisecond {
		t.Errorf("p90 is %s", p90)
	}
	if r.Dropped != 0 || r.Accepted.Count < 2990 || r.Accepted.Count > 3000 {
		t.Errorf("%d accepted, %d dropped", r.Accepted.Count, r.Dropped)
	}
}

// dozing is a context that keeps whoever asks it for an error waiting once, for a second. Only the pacer of an open loop does.
type dozing struct {
	context.Context
	asked atomic.Int64
}

func (d *dozing) Err() error {
	if d.asked.Add(1) == 300 {
		time.Sleep(time.Second)
	}
	return d.Context.Err()
}

// A generator that is late itself must not make the target look quick: those who had to wait for it wanted something before.
func TestWhoIsStartedLateHasWaitedFromWhenTheyWereDue(t *testing.T) {
	t.Parallel()
	r := Load{Rate: 1000, Users: 5000, Duration: 2 * time.Second}.Run(&dozing{Context: t.Context()}, Noop)
	for what, l := range map[string]Latency{"answers": r.Accepted, "lateness": r.Lateness} {
		if l.Count < 1500 || time.Duration(*l.P90) < 500*time.Millisecond {
			t.Errorf("%s: %s", what, l.Cell())
		}
	}
}

func TestAMissedRateSaysSo(t *testing.T) {
	t.Parallel()
	slow := TargetFunc(func(context.Context, int64) error {
		time.Sleep(20 * time.Millisecond)
		return nil
	})
	// Two at once, 20 ms each: a hundred a second at most.
	r := Load{Rate: 400, Users: 2, Duration: time.Second}.Run(t.Context(), slow)
	if !r.Behind || r.Offered != 400 || r.Achieved > 105 || r.Achieved < 5 || r.Dropped < 290 {
		t.Errorf("behind %v, offered %v, achieved %v, dropped %d", r.Behind, r.Offered, r.Achieved, r.Dropped)
	}
	if got := r.Accepted.Count + r.Dropped; got < 395 || got > 400 {
		t.Errorf("of 400 operations %d are accounted for", got)
	}
	if r := (Load{Rate: 50, Users: 1000, Duration: time.Second}).Run(t.Context(), Noop); r.Behind || r.Dropped != 0 {
		t.Errorf("behind %v at %v of %v/s", r.Behind, r.Achieved, r.Offered)
	}
}

func TestAnswersAreCountedApart(t *testing.T) {
	t.Parallel()
	target := TargetFunc(func(_ context.Context, n int64) error {
		switch n % 4 {
		case 1:
			return fault.New(fault.SoldOut, "nothing is left")
		case 2:
			return fault.New(fault.Unavailable, "gone")
		case 3:
			return errors.New("odd")
		}
		return nil
	})
	r := Load{Rate: 400, Users: 100, Duration: time.Second}.Run(t.Context(), target)
	if r.Accepted.Count != 100 || r.Refused.Count != 100 || r.Errors[fault.Unavailable] != 100 || r.Errors[fault.Failed] != 100 {
		t.Errorf("%d accepted, %d refused, errors %v", r.Accepted.Count, r.Refused.Count, r.Errors)
	}
	if !r.Behind || r.Achieved > 205 { // an error is no answer
		t.Errorf("behind %v with %v/s", r.Behind, r.Achieved)
	}
	if share := r.AcceptedRate / r.Achieved; share < 0.4 || share > 0.6 {
		t.Errorf("of %v answers a second %v were accepts", r.Achieved, r.AcceptedRate)
	}
	if code, n, first := r.MostFrequent(); n != 100 || code != fault.Failed || first == nil || first.Error() != "odd" || r.Examples[fault.Unavailable] == nil {
		t.Errorf("of what failed most often is told: %s, %d, %v", code, n, first)
	}
}

// Where everything has to be accepted, the first error is the end, and a good while before the time is over.
func TestADemandEndsWithTheFirstError(t *testing.T) {
	t.Parallel()
	soldOut := fault.New(fault.SoldOut, "nothing is left")
	target := TargetFunc(func(_ context.Context, n int64) error {
		if n >= 5 {
			return soldOut
		}
		return nil
	})
	begun := time.Now()
	_, err := Load{Users: 2, Duration: 10 * time.Minute}.Demand(t.Context(), target)
	if !errors.Is(err, soldOut) || time.Since(begun) > time.Minute {
		t.Errorf("after %s: %v", time.Since(begun), err)
	}
	if _, err := (Load{Rate: 100, Users: 10, Duration: 100 * time.Millisecond}).Demand(t.Context(), Noop); err != nil {
		t.Errorf("all was accepted, and yet: %v", err)
	}
}

// What the seconds say adds up to what the whole says, and the warm-up is in neither.
func TestSecondsAddUp(t *testing.T) {
	t.Parallel()
	var told []Second
	r := Load{Rate: 500, Users: 100, Warmup: 300 * time.Millisecond, Duration: 2500 * time.Millisecond, Live: func(s Second) { told = append(told, s) }}.Run(t.Context(), Noop)
	var offered, accepted int64
	for i, s := range r.Seconds {
		if s.Second != i+1 {
			t.Errorf("second %d is numbered %d", i+1, s.Second)
		}
		offered += s.Offered
		accepted += s.Accepted.Count
	}
	if len(r.Seconds) != 3 || len(told) != 3 {
		t.Errorf("%d seconds, %d told", len(r.Seconds), len(told))
	}
	if accepted != r.Accepted.Count || accepted < 1150 || accepted > 1300 || offered < 1150 || offered > 1300 {
		t.Errorf("seconds: %d accepted of %d; in all %d", accepted, offered, r.Accepted.Count)
	}
}

func TestAClosedLoopKeepsItsUsersBusy(t *testing.T) {
	t.Parallel()
	var at, most atomic.Int64
	var mu sync.Mutex
	var numbers []int64
	target := TargetFunc(func(_ context.Context, n int64) error {
		most.Store(max(most.Load(), at.Add(1)))
		defer at.Add(-1)
		time.Sleep(10 * time.Millisecond)
		mu.Lock()
		numbers = append(numbers, n)
		mu.Unlock()
		return nil
	})
	r := Load{Users: 4, Duration: 300 * time.Millisecond}.Run(t.Context(), target)
	// Four users who wait 10 ms each time get 400 answers a second at most, on a busy machine fewer.
	if r.Loop != ClosedLoop || r.Achieved > 420 || r.Achieved < 20 || r.Offered != r.Achieved || r.Behind || most.Load() > 4 {
		t.Errorf("%s loop: %v/s, %d at once", r.Loop, r.Achieved, most.Load())
	}
	if p50 := time.Duration(*r.Accepted.P50); p50 < 10*time.Millisecond {
		t.Errorf("p50 is %s", p50)
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != int64(i) {
			t.Fatalf("operation %d came as number %d", i, n)
		}
	}
}

// Whoever is interrupted gets what there is, and nothing is cut off in its middle.
func TestAnInterruptedRunReturnsWhatItHas(t *testing.T) {
	t.Parallel()
	for _, l := range []Load{{Rate: 200, Users: 50, Duration: time.Hour}, {Users: 2, Duration: time.Hour}} {
		ctx, cancel := context.WithCancel(t.Context())
		var begun, ended atomic.Int64
		target := TargetFunc(func(within context.Context, n int64) error {
			begun.Add(1)
			time.Sleep(30 * time.Millisecond)
			if n == 20 {
				cancel()
			}
			if within.Err() == nil {
				ended.Add(1)
			}
			return within.Err()
		})
		r := l.Run(ctx, target)
		if !r.Interrupted || r.Accepted.Count < 20 || len(r.Errors) != 0 || begun.Load() != ended.Load() {
			t.Errorf("interrupted %v, %d accepted, %d of %d ended, errors %v", r.Interrupted, r.Accepted.Count, ended.Load(), begun.Load(), r.Errors)
		}
	}
}

// Those who wanted something in time have waited, however late they are answered: left out, the slowest would count nowhere.
// To what was achieved they add nothing. Who is not answered at all is given up, and is an error.
func TestWhoIsInFlightAtTheEndIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 5 * time.Second
		r := Load{Users: 3, Duration: time.Second}.Run(t.Context(), TargetFunc(func(within context.Context, n int64) error {
			if n == 0 {
				<-within.Done() // never answered
				return fault.Wrap(fault.OutcomeUnknown, within.Err(), "gone")
			}
			time.Sleep(long)
			return nil
		}))
		if r.Accepted.Count != 2 || time.Duration(*r.Accepted.P50) < long || r.Seconds[0].Accepted.Count != 2 || r.Achieved != 0 || r.Interrupted {
			t.Errorf("%s, of which %v a second", r.Accepted.Cell(), r.Achieved)
		}
		if r.Errors[fault.OutcomeUnknown] != 1 || r.Examples[fault.OutcomeUnknown] == nil {
			t.Errorf("errors %v", r.Errors)
		}
	})
}

// Who is interrupted in the warm-up has measured nothing, and no rate that the few answers of a few microseconds would make.
func TestAnInterruptedWarmUpHasNoRate(t *testing.T) {
	t.Parallel()
	for _, l := range []Load{{Users: 2, Warmup: time.Hour, Duration: time.Second}, {Rate: 5000, Users: 2, Warmup: time.Hour, Duration: time.Second}} {
		ctx, cancel := context.WithCancel(t.Context())
		r := l.Run(ctx, TargetFunc(func(_ context.Context, n int64) error {
			if n >= 200 { // any of them may be dropped
				cancel()
			}
			return nil
		}))
		if !r.Interrupted || r.Achieved != 0 {
			t.Errorf("interrupted %v, %v/s", r.Interrupted, r.Achieved)
		}
	}
}

func TestLoadsAreChecked(t *testing.T) {
	t.Parallel()
	good := Load{Rate: 10, Users: 1, Duration: time.Second}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for field, spoil := range map[string]func(*Load){
		"rate": func(l *Load) { l.Rate = -1 }, "users": func(l *Load) { l.Users = 0 },
		"warmup": func(l *Load) { l.Warmup = -1 }, "duration": func(l *Load) { l.Duration = 0 },
	} {
		l := good
		spoil(&l)
		if err := l.Check(); fault.CodeOf(err) != fault.Usage || fault.As(err).Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
