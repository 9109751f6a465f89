package simulate

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestTheSameSeedMakesTheSamePlans(t *testing.T) {
	for _, name := range Shipped() {
		s := shipped(t, name, 200)
		again, other := s, s
		other.Seed++
		differs, endings := false, map[ending]bool{}
		for c := range s.Crowds {
			for n := range s.Crowds[c].Users {
				w := who{int32(c), int32(n)}
				at, visits := s.comes(w)
				if at2, visits2 := again.comes(w); at != at2 || visits != visits2 {
					t.Fatalf("%s: %v comes otherwise the second time", name, w)
				}
				for v := 1; v <= visits; v++ {
					p := s.plan(w, v)
					if p != again.plan(w, v) {
						t.Fatalf("%s: %v decides otherwise the second time", name, w)
					}
					differs = differs || p != other.plan(w, v)
					endings[p.ending] = true
				}
			}
		}
		if !differs {
			t.Errorf("%s: another seed makes the same decisions", name)
		}
		if name == Demo && len(endings) != 6 {
			t.Errorf("%s: only %d kinds of endings occur", name, len(endings))
		}
	}
}

// oracle is an engine whose answer to a request depends on the request alone, while how long it takes does not. Every
// seventh answer to a fresh request gets lost the first time.
type oracle struct {
	pace *rand.Rand

	mu    sync.Mutex
	asked []string
	lost  map[string]bool
}

func (o *oracle) answer(text string, out drop.Outcome) (drop.Outcome, error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	verdict := h.Sum64()
	o.mu.Lock()
	wait := time.Duration(o.pace.IntN(40)) * time.Millisecond
	lose := verdict%7 == 0 && !o.lost[text]
	o.lost[text] = true
	o.asked = append(o.asked, text)
	o.mu.Unlock()
	time.Sleep(wait)
	switch {
	case lose:
		return drop.Outcome{}, fault.New(fault.OutcomeUnknown, "")
	case verdict%3 == 0:
		return drop.Outcome{}, fault.New(fault.SoldOut, "")
	}
	return out, nil
}

func (o *oracle) Reserve(_ context.Context, q drop.ReserveRequest) (drop.Outcome, error) {
	now := time.Now()
	id := drop.ReservationID{Lot: q.Lot, Attempt: drop.AttemptOf(q.Lot, q.User, q.Key), N: 1}
	return o.answer(q.User+" "+q.Key+" "+string(q.Lot)+time.Duration(q.Qty).String()+q.Hold.String(),
		drop.Outcome{Now: now, Reservation: drop.Reservation{ID: id, State: drop.Held, Qty: q.Qty, Created: now, Deadline: now.Add(time.Minute)}})
}

func (o *oracle) Settle(_ context.Context, q drop.SettleRequest) (drop.Outcome, error) {
	return o.answer(q.ID.String()+string(q.Action)+time.Duration(q.Qty+q.Keep+q.Total).String(),
		drop.Outcome{Reservation: drop.Reservation{ID: q.ID, State: drop.Confirmed, Qty: max(q.Qty, 2), Ref: q.Ref, Refunded: max(q.Total, 0)}})
}

// play runs a scenario in a time that passes only while everybody waits, and returns what was asked for, in order.
func play(t *testing.T, s Scenario, pace uint64) (asked []string) {
	synctest.Test(t, func(t *testing.T) {
		o := &oracle{pace: rand.New(rand.NewPCG(pace, 0)), lost: map[string]bool{}}
		book, err := Run(t.Context(), o, s, Options{})
		if err != nil {
			t.Error(err)
		}
		if n := book.Counts().Requests; n != int64(len(o.asked)) {
			t.Errorf("%d requests are counted, %d were made", n, len(o.asked))
		}
		asked = o.asked
	})
	return asked
}

func TestTheSameSeedAsksForTheSameWhateverTheAnswersTiming(t *testing.T) {
	s := shipped(t, "sneaker-raid", 400)
	for i := range s.Crowds {
		s.Crowds[i].DoubleClick, s.Crowds[i].PayTwice = 0, 0 // of two calls at once, either may lose its answer
		s.Crowds[i].Patience = Range[time.Duration]{time.Hour, time.Hour}
	}
	first, second := play(t, s, 1), play(t, s, 2)
	if slices.Equal(first, second) {
		t.Error("the timing did not differ: nothing is tested")
	}
	slices.Sort(first)
	slices.Sort(second)
	if len(first) < 1000 || !slices.Equal(first, second) {
		t.Errorf("%d requests once, %d the other time, or others", len(first), len(second))
	}
	s.Seed++
	if third := play(t, s, 1); reflect.DeepEqual(first, slices.Sorted(slices.Values(third))) {
		t.Error("another seed asks for the same")
	}
}

func TestUsersInsistDoubleClickAndLosePatience(t *testing.T) {
	s, err := parse(little+"    arrive: {spike: 0s}\n    insist: 5\n    pause: 1s\n    patience: 3500ms\n    double_click: 100%\n    wants: {hat: 1}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer error
		calls  int // of a user
		took   time.Duration
	}{
		"refused":          {fault.New(fault.SoldOut, ""), 2 + 4, 4 * time.Second}, // the double click, and a second apart until patience is over
		"refused for good": {fault.New(fault.CustomerLimit, ""), 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &refusing{answer: c.answer}
				book, err := Run(t.Context(), e, s, Options{})
				if err != nil || int(book.Counts().Requests) != 10*c.calls || book.Took != c.took {
					t.Errorf("%d requests in %s, %v; want %d in %s", book.Counts().Requests, book.Took, err, 10*c.calls, c.took)
				}
			})
		})
	}
	s.Crowds[0].Fresh = true
	synctest.Test(t, func(t *testing.T) {
		e := &refusing{answer: fault.New(fault.CustomerLimit, "")}
		_, _ = Run(t.Context(), e, s, Options{})
		if len(e.keys) != 5 { // cart-1, cart-1.1, …
			t.Errorf("a bot asked under the keys %v", e.keys)
		}
	})
}

// Users wait from their click on, and for one of the callers too: an engine that cannot keep up must not look quick.
func TestLatencyCountsFromTheClick(t *testing.T) {
	s, err := parse(little+"    arrive: {spike: 0s}\n    insist: 0\n    wants: {hat: 1}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Crowds[0].Users = 3 * callers
	synctest.Test(t, func(t *testing.T) {
		book, err := Run(t.Context(), &refusing{answer: fault.New(fault.SoldOut, ""), takes: time.Second}, s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		// All click at once, and are answered in three turns and a bit.
		if _, refuse := book.Latencies(); refuse.P50 < 1.9 || refuse.Max < 2.9 {
			t.Errorf("%+v", refuse)
		}
	})
}

// Where more come than are served, those whose call nobody took within their patience leave, and a run comes to its end.
func TestWhoseCallNobodyTakesLeaves(t *testing.T) {
	s, err := parse(little+"    arrive: {spike: 0s}\n    insist: 0\n    visits: 4\n    satisfied: 0%\n    patience: 7s\n    wants: {hat: 1}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Crowds[0].Users = 10 * callers
	synctest.Test(t, func(t *testing.T) {
		book, err := Run(t.Context(), &refusing{answer: fault.New(fault.SoldOut, ""), takes: 4 * time.Second}, s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		// In two turns some are served; at the third, 8 s after the click, only those are left who were served and came again.
		n := book.Counts()
		if served := int64(10*callers) - n.GaveUp; served < callers || served > 3*callers || n.Requests < 2*served || book.Took < 8*time.Second || book.Took > time.Minute {
			t.Errorf("%d of %d users gave up, %d requests, it took %s", n.GaveUp, 10*callers, n.Requests, book.Took)
		}
	})
}

// refusing is an engine that refuses everything.
type refusing struct {
	answer error
	takes  time.Duration // until it answers

	mu   sync.Mutex
	keys map[string]bool
}

func (r *refusing) Reserve(_ context.Context, q drop.ReserveRequest) (drop.Outcome, error) {
	time.Sleep(r.takes)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys == nil {
		r.keys = map[string]bool{}
	}
	r.keys[q.Key] = true
	return drop.Outcome{}, r.answer
}

func (r *refusing) Settle(context.Context, drop.SettleRequest) (drop.Outcome, error) {
	return drop.Outcome{}, r.answer
}

// Every user has arrived and waits for one of the callers, all of which are stuck: nothing takes more memory.
func TestAMillionUsersFitIntoMemory(t *testing.T) {
	testkit.Long(t)
	s := shipped(t, "sneaker-raid", MaxUsers)
	for i := range s.Crowds {
		s.Crowds[i].Arrive = Arrival{Curve: Spike}
		s.Crowds[i].Tabs = 1
	}
	before := heap()
	r := newRun(deaf{}, s)
	planned := heap() - before
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { r.crowd(ctx) })
	testkit.Eventually(t, time.Minute, func() (bool, string) { return r.arrived.Load() == MaxUsers, "not all have arrived" })
	all := heap() - before
	stop()
	done.Wait()
	t.Logf("%d bytes a user before the start, %d once all have arrived", planned/MaxUsers, all/MaxUsers)
	if planned > 40*MaxUsers || all > 250*MaxUsers {
		t.Errorf("%d MB before the start, %d MB once all have arrived", planned>>20, all>>20)
	}
	runtime.KeepAlive(r)
}

// heap is how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
