package stock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// What concurrent callers are told must be explainable by one order of their calls, in which each takes effect at one
// moment between its start and its answer. porcupine looks for such an order; where there is none, a promise was broken.

const (
	shelfUnits = 6
	shelfLimit = 3
	shelfUsers = 4
	shelfKeys  = 3
)

// shelf is one lot as the callers may see it. Every change has its seq, and the answers tell it.
type shelf struct {
	available, seq int64
	users          [shelfUsers]struct{ held, bought, live int64 } // live: key+1 of the live hold
	records        [shelfUsers][shelfKeys]struct {
		state              drop.State
		asked, qty, n, seq int64
	}
}

// wish is a call, told what came of it.
type wish struct {
	action    drop.Action // "" reserves
	user, key int
	qty       int64 // reserve: units; release: units to keep
	n         int64 // of the reservation that is settled
}

type told struct {
	code        fault.Code
	replayed    bool
	reservation drop.Reservation
}

// shelfModel is the specification. keepReleased makes it wrong on purpose: it loses the units of a release.
func shelfModel(keepReleased bool) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{shelf{available: shelfUnits, seq: 1}} },
		Step: func(state, input, output any) []any {
			before, answer := state.(shelf), output.(told)
			after := before
			var want told
			if w := input.(wish); w.action == "" {
				want = after.reserve(w)
			} else {
				want = after.settle(w, keepReleased)
			}
			switch {
			case answer.code == fault.Unavailable: // it was not carried out
				return []any{before}
			case answer.code == fault.OutcomeUnknown && answer.reservation.LastSeq == 0:
				return []any{before, after}
			case answer.code == fault.OutcomeUnknown: // an event shows that it was
				if want.code != "" || want.replayed || after.seq != answer.reservation.LastSeq {
					return nil
				}
			case answer != want:
				return nil
			}
			return []any{after}
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
	return m.ToModel()
}

func (s *shelf) told(w wish, replayed bool) told {
	r := s.records[w.user][w.key]
	return told{replayed: replayed, reservation: drop.Reservation{ID: drop.ReservationID{N: r.n}, State: r.state, Qty: r.qty, LastSeq: r.seq}}
}

func (s *shelf) reserve(w wish) told {
	r, u := &s.records[w.user][w.key], &s.users[w.user]
	switch {
	case r.n > 0 && r.asked != w.qty:
		return told{code: fault.KeyReused}
	case r.n > 0:
		return s.told(w, true)
	case u.live > 0:
		return told{code: fault.HoldExists}
	case u.held+u.bought+w.qty > shelfLimit:
		return told{code: fault.CustomerLimit}
	case w.qty > s.available:
		return told{code: fault.SoldOut}
	}
	s.seq++
	s.available -= w.qty
	r.state, r.asked, r.qty, r.n, r.seq = drop.Held, w.qty, w.qty, s.seq, s.seq
	u.held, u.live = u.held+w.qty, int64(w.key+1)
	return s.told(w, false)
}

func (s *shelf) settle(w wish, keepReleased bool) told {
	r, u := &s.records[w.user][w.key], &s.users[w.user]
	if r.n != w.n {
		return told{code: fault.NotFound}
	}
	confirms := w.action == drop.ActConfirm
	switch {
	case r.state == drop.Confirmed && (confirms || w.qty > 0 && w.qty == r.qty), r.state == drop.Released && !confirms && w.qty == 0, r.state == drop.Held && !confirms && w.qty == r.qty:
		return s.told(w, true)
	case r.state == drop.Confirmed:
		return told{code: fault.AlreadyConfirmed}
	case r.state == drop.Released:
		return told{code: fault.AlreadyReleased}
	case w.qty > r.qty:
		return told{code: fault.Conflict}
	}
	s.seq++
	r.seq = s.seq
	if confirms {
		r.state, u.held, u.bought, u.live = drop.Confirmed, u.held-r.qty, u.bought+r.qty, 0
		return s.told(w, false)
	}
	back := r.qty - w.qty
	u.held -= back
	if !keepReleased {
		s.available += back
	}
	r.qty = w.qty
	if w.qty == 0 {
		r.state, r.qty, u.live = drop.Released, back, 0
	}
	return s.told(w, false)
}

// recorder makes calls and notes when they were made and what was answered.
type recorder struct {
	stock *Stock
	lot   drop.LotID
	start time.Time

	mu      sync.Mutex
	history []porcupine.Operation
	ids     map[[2]int]int64 // n by user and key
}

func newRecorder(s *Stock, lot drop.LotID) *recorder {
	return &recorder{stock: s, lot: lot, start: time.Now(), ids: make(map[[2]int]int64)}
}

func (r *recorder) call(ctx context.Context, client int, w wish) told {
	user, key := fmt.Sprintf("user-%d", w.user), fmt.Sprintf("key-%d", w.key)
	id := drop.ReservationID{Lot: r.lot, Attempt: drop.AttemptOf(r.lot, user, key), N: w.n}
	began := time.Since(r.start)
	var out drop.Outcome
	var err error
	switch w.action {
	case "":
		out, err = r.stock.Reserve(ctx, drop.ReserveRequest{Lot: r.lot, User: user, Key: key, Qty: w.qty})
	case drop.ActConfirm:
		out, err = r.stock.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActConfirm})
	default:
		out, err = r.stock.Settle(ctx, drop.SettleRequest{ID: id, Action: w.action, Keep: w.qty})
	}
	ended := time.Since(r.start)
	answer := told{code: fault.CodeOf(err), replayed: out.Replayed}
	if err == nil {
		got := out.Reservation
		answer.reservation = drop.Reservation{ID: drop.ReservationID{N: got.ID.N}, State: got.State, Qty: got.Qty, LastSeq: got.LastSeq}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, porcupine.Operation{ClientId: client, Input: w, Call: int64(began), Output: answer, Return: int64(ended)})
	if err == nil {
		r.ids[[2]int{w.user, w.key}] = out.Reservation.ID.N
	}
	return answer
}

// wish draws what a client does next.
func (r *recorder) wish(rng *rand.Rand) wish {
	w := wish{user: rng.IntN(shelfUsers), key: rng.IntN(shelfKeys), qty: 1 + rng.Int64N(2)}
	r.mu.Lock()
	n := r.ids[[2]int{w.user, w.key}]
	r.mu.Unlock()
	if n == 0 || rng.IntN(3) == 0 {
		return w
	}
	w.n, w.action, w.qty = n, drop.ActRelease, rng.Int64N(2)
	if rng.IntN(3) == 0 {
		w.action, w.qty = drop.ActConfirm, 0
	}
	return w
}

// check looks for the order. A call whose outcome its caller does not know may have taken effect at any time after it
// began, or never. The lot's events tell which changes nobody was told of; a call that none of them fits did nothing.
func (r *recorder) check(model porcupine.Model, events []drop.Event) porcupine.CheckResult {
	untold := make(map[wish][]int64) // seqs, by kind of call
	attempts := make(map[string]wish)
	for user := range shelfUsers {
		for key := range shelfKeys {
			attempts[drop.AttemptOf(r.lot, fmt.Sprintf("user-%d", user), fmt.Sprintf("key-%d", key))] = wish{user: user, key: key}
		}
	}
	for _, e := range events {
		if w, ok := attempts[e.Reservation.Attempt]; ok {
			w.action = map[drop.Kind]drop.Action{drop.KindConfirmed: drop.ActConfirm, drop.KindReleased: drop.ActRelease}[e.Kind]
			untold[w] = append(untold[w], e.Seq)
		}
	}
	kind := func(op porcupine.Operation) wish {
		w := op.Input.(wish)
		return wish{action: w.action, user: w.user, key: w.key}
	}
	unknown := make(map[wish]int)
	for _, op := range r.history {
		answer := op.Output.(told)
		if answer.code == "" && !answer.replayed {
			untold[kind(op)] = slices.DeleteFunc(untold[kind(op)], func(seq int64) bool { return seq == answer.reservation.LastSeq })
		}
		if answer.code == fault.OutcomeUnknown {
			unknown[kind(op)]++
		}
	}
	end := int64(time.Since(r.start))
	var history []porcupine.Operation
	for _, op := range r.history {
		answer := op.Output.(told)
		if answer.code == fault.OutcomeUnknown {
			seqs := untold[kind(op)]
			if len(seqs) == 0 {
				continue
			}
			if unknown[kind(op)] == 1 {
				answer.reservation.LastSeq = seqs[0]
			}
			op.Output, op.Return = answer, end
		}
		history = append(history, op)
	}
	return porcupine.CheckOperationsTimeout(model, history, time.Minute)
}

func TestConcurrentCallsHaveOneOrder(t *testing.T) {
	server := testkit.Redis(t)
	direct, rdb := openStock(t, server.URL()), rawClient(t, server)
	proxy := testkit.Proxy(t, server.Addr())
	faulty := openStock(t, proxy.URL(t, server.URL()))
	codes := make(map[fault.Code]int)
	n := rounds(30, 6)
	for round := 0; round < n || codes[fault.OutcomeUnknown] == 0 && round < 20*n; round++ {
		lot := newLot(t, direct, drop.Definition{Lot: drop.LotID(fmt.Sprintf("shelf-%d", round)), Stock: shelfUnits, Limit: shelfLimit})
		// Every unknown outcome doubles the orders to try, so the rounds with lost replies are short, and lose few: a reply that
		// is lost is that of a whole batch.
		r, calls, faults := newRecorder(direct, lot), 12, func() {}
		if round%2 == 1 {
			r, calls, faults = newRecorder(faulty, lot), 6, loseReplies(proxy, 2)
		}
		inParallel(12, func(client int) {
			rng := rand.New(rand.NewPCG(uint64(round), uint64(client)))
			for range calls {
				r.call(t.Context(), client, r.wish(rng))
			}
		})
		faults()
		if got := r.check(shelfModel(false), wantHistory(t, direct, rdb, lot)); got != porcupine.Ok {
			for _, op := range r.history {
				t.Logf("%d..%d client %d: %+v -> %+v", op.Call, op.Return, op.ClientId, op.Input, op.Output)
			}
			t.Fatalf("round %d: no order explains the answers (%s)", round, got)
		}
		for _, op := range r.history {
			codes[op.Output.(told).code]++
		}
	}
	for _, code := range []fault.Code{"", fault.SoldOut, fault.HoldExists, fault.KeyReused, fault.CustomerLimit, fault.AlreadyConfirmed, fault.AlreadyReleased, fault.OutcomeUnknown} {
		if codes[code] == 0 {
			t.Errorf("the histories have no answer %q: %v", code, codes)
		}
	}
}

// loseReplies makes the proxy swallow a reply every other millisecond, a number of times or until the returned function is
// called.
func loseReplies(proxy *testkit.FaultyProxy, most int) (heal func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for range most {
			before := proxy.Dropped()
			proxy.DropReplies()
			for proxy.Dropped() == before {
				select {
				case <-stop:
					proxy.Heal()
					return
				case <-time.After(200 * time.Microsecond):
				}
			}
			proxy.Heal()
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return func() { close(stop); <-done }
}

// TestAWrongModelIsFound proves that the check above can fail: a model that loses released units cannot explain that
// they were sold again.
func TestAWrongModelIsFound(t *testing.T) {
	s := openStock(t, testkit.Redis(t).URL())
	r := newRecorder(s, newLot(t, s, drop.Definition{Lot: "shelf", Stock: shelfUnits, Limit: shelfLimit}))
	for user := range 2 {
		r.call(t.Context(), 0, wish{user: user, qty: 3})
	}
	r.call(t.Context(), 0, wish{user: 2, qty: 3})
	r.call(t.Context(), 0, wish{user: 0, action: drop.ActRelease, n: r.ids[[2]int{0, 0}]})
	r.call(t.Context(), 0, wish{user: 2, qty: 3})
	if got := r.check(shelfModel(false), nil); got != porcupine.Ok {
		t.Fatalf("the right model: %s", got)
	}
	if got := r.check(shelfModel(true), nil); got != porcupine.Illegal {
		t.Fatalf("the wrong model: %s", got)
	}
}
