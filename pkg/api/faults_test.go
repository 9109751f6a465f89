package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// shopper asks for one hold after another, each for another user, and keeps what the answers were.
type shopper struct {
	site *site
	name string

	mu     sync.Mutex
	got    map[string]string // user → reservation id
	unsure []string          // users whose outcome is not known
	down   int               // answers that the shop cannot sell now
	wrong  []string
}

func (p *shopper) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		user := fmt.Sprintf("%s-%d", p.name, n)
		ans, err := p.site.try(context.WithoutCancel(ctx), "POST", "/v1/lots/hat/reservations", client.ReserveBody{User: user}, headers{"Idempotency-Key": "k"})
		p.note(user, ans, err)
	}
}

func (p *shopper) note(user string, ans answer, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var problem client.Problem
	var r client.Reservation
	switch {
	case err != nil:
		p.wrong = append(p.wrong, err.Error())
	case ans.status == http.StatusCreated && json.Unmarshal(ans.body, &r) == nil:
		p.got[user] = r.ID
	case ans.status == http.StatusServiceUnavailable && json.Unmarshal(ans.body, &problem) == nil && ans.header.Get("Retry-After") != "":
		p.down++
		if problem.Code == "outcome_unknown" {
			p.unsure = append(p.unsure, user)
		}
	default:
		p.wrong = append(p.wrong, fmt.Sprintf("%d %s", ans.status, ans.body))
	}
}

func (p *shopper) counts() (got, down int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got), p.down
}

// TestARedisThatHangsIsRefusedAtOnceAndLosesNothing stops Redis under load, which then goes on as if nothing had been.
func TestARedisThatHangsIsRefusedAtOnceAndLosesNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t)
	s.load(t, drop.Definition{Lot: "hat", Stock: 1_000_000})
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	shoppers := make([]*shopper, 20)
	for i := range shoppers {
		shoppers[i] = &shopper{site: s, name: fmt.Sprint("p", i), got: map[string]string{}}
		all.Go(func() { shoppers[i].run(ctx) })
	}
	t.Cleanup(func() { stop(); all.Wait() })
	each := func(what string, enough func(got, down int) bool) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			for _, p := range shoppers {
				if got, down := p.counts(); !enough(got, down) {
					return false, fmt.Sprintf("%s: %s has %d holds and met %d refusals", what, p.name, got, down)
				}
			}
			return true, ""
		})
	}
	each("before", func(got, _ int) bool { return got >= 3 })
	if err := s.redis.Pause(); err != nil {
		t.Fatal(err)
	}
	// A call on the wire may wait for two seconds; this many answers to each of them in the time that Eventually gives
	// are those of an open breaker.
	each("while Redis hangs", func(_, down int) bool { return down >= 50 })
	if err := s.redis.Resume(); err != nil {
		t.Fatal(err)
	}
	before := map[*shopper]int{}
	for _, p := range shoppers {
		before[p], _ = p.counts()
	}
	for _, p := range shoppers {
		testkit.Eventually(t, 30*time.Second, func() (bool, string) { got, _ := p.counts(); return got > before[p], "nobody gets anything any more" })
	}
	stop()
	all.Wait()
	s.nothingLost(t, shoppers)
}

// nothingLost asks again for everything that was answered or is unsure: the same reservations, and no unit more.
func (s *site) nothingLost(t testing.TB, shoppers []*shopper) {
	t.Helper()
	holds := 0
	for _, p := range shoppers {
		for _, wrong := range p.wrong {
			t.Errorf("somebody was answered %s", wrong)
		}
		for _, user := range p.unsure {
			ans := s.call(t, "POST", "/v1/lots/hat/reservations", client.ReserveBody{User: user}, headers{"Idempotency-Key": "k"})
			if ans.status != http.StatusOK && ans.status != http.StatusCreated {
				t.Fatalf("%s asks again: %d %s", user, ans.status, ans.body)
			}
			holds++
		}
		for user, id := range p.got {
			ans := s.call(t, "POST", "/v1/lots/hat/reservations", client.ReserveBody{User: user}, headers{"Idempotency-Key": "k"})
			if again := into[client.Reservation](t, http.StatusOK, ans); again.ID != id || !again.Replayed {
				t.Fatalf("%s had %s and now has %+v", user, id, again)
			}
			holds++
		}
	}
	state := s.lot(t, "hat")
	if int(state.Held) != holds || !state.Balanced() {
		t.Errorf("%d users hold something, and Redis has %+v", holds, state.Totals)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		lots, err := s.ledger.Lots(t.Context(), []drop.LotID{"hat"})
		if err != nil || len(lots) != 1 {
			return false, fmt.Sprint(err)
		}
		return int(lots[0].Held) == holds, fmt.Sprintf("the ledger has %d held of %d", lots[0].Held, holds)
	})
}

// TestWhatIsRepeatedAfterALostReplyActsOnce loses the reply of every kind of call once.
func TestWhatIsRepeatedAfterALostReplyActsOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	var proxy *testkit.FaultyProxy
	s := newAPI(t, func(o *setup) {
		o.noWorker = true
		o.redisURL = func(r *lab.Redis) string {
			proxy = testkit.Proxy(t, r.Addr())
			return proxy.URL(t, r.URL())
		}
	})
	s.load(t, drop.Definition{Lot: "hat", Stock: 100, MaxHold: time.Hour})
	// lossy makes a call whose reply is lost, and then makes it again until it is answered.
	lossy := func(method, path string, body any, key string) answer {
		t.Helper()
		proxy.DropReplies()
		first := s.call(t, method, path, body, headers{"Idempotency-Key": key})
		proxy.Heal()
		refused(t, http.StatusServiceUnavailable, "outcome_unknown", first)
		var again answer
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			again = s.call(t, method, path, body, headers{"Idempotency-Key": key})
			return again.status != http.StatusServiceUnavailable, string(again.body)
		})
		if again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s %s: repeated, it is no replay: %d %s", method, path, again.status, again.body)
		}
		return again
	}
	total := func(n int64) *int64 { return &n }
	held := into[client.Reservation](t, http.StatusOK, lossy("POST", "/v1/lots/hat/reservations", client.ReserveBody{User: "ada", Qty: 10}, "k"))
	at := "/v1/reservations/" + held.ID
	if r := into[client.Reservation](t, http.StatusOK, lossy("POST", at+"/release", client.ReleaseBody{Keep: 7}, "")); r.Qty != 7 {
		t.Errorf("after a part release: %+v", r)
	}
	if r := into[client.Reservation](t, http.StatusOK, lossy("POST", at+"/confirm", client.ConfirmBody{Payment: "pay", Ack: "stock"}, "")); r.State != "confirmed" {
		t.Errorf("after a confirm: %+v", r)
	}
	if r := into[client.Reservation](t, http.StatusOK, lossy("POST", at+"/refund", client.RefundBody{Total: total(3)}, "")); r.Qty != 4 || r.Refunded != 3 {
		t.Errorf("after a refund: %+v", r)
	}
	if l := into[client.Lot](t, http.StatusOK, lossy("POST", "/v1/lots/hat/adjust", client.AdjustBody{By: total(-5), Expect: 100}, "")); l.Capacity != 95 {
		t.Errorf("after an adjustment: %+v", l)
	}
	if state := s.lot(t, "hat"); state.Held != 0 || state.Sold != 4 || state.Available != 91 || state.Seq != 6 {
		t.Errorf("five calls made %+v at seq %d", state.Totals, state.Seq)
	}
}

// TestASoldOutLotIsRefusedFromMemoryOnlyWhereNothingElseIsTrue: who holds, asks again or asks for too much gets the
// answer that is his, and what is given back is sold.
func TestASoldOutLotIsRefusedFromMemoryOnlyWhereNothingElseIsTrue(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "hat", Stock: 1, Limit: 2})
	held := s.reserve(t, "hat", "ada", "k", 1)
	ask := func(user, key string, body client.ReserveBody) answer {
		body.User = user
		return s.call(t, "POST", "/v1/lots/hat/reservations", body, headers{"Idempotency-Key": key})
	}
	n := 0
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		n++
		p := refused(t, http.StatusConflict, "sold_out", ask(fmt.Sprint("late-", n), "k", client.ReserveBody{Qty: 1}))
		if p.Remaining == nil || *p.Remaining != 2 {
			t.Fatalf("whom the lot does not know may take %v more", p.Remaining)
		}
		return s.counted(t, "dropctl_api_refused_from_memory_total") > 0, "the script is asked every time"
	})
	for range 20 { // whether it is remembered at that moment or not
		refused(t, http.StatusConflict, "sold_out", ask("eve", "k", client.ReserveBody{Qty: 1}))
		if again := into[client.Reservation](t, http.StatusOK, ask("ada", "k", client.ReserveBody{Qty: 1})); again.ID != held.ID {
			t.Fatalf("asked again, ada has %s", again.ID)
		}
		refused(t, http.StatusUnprocessableEntity, "key_reused", ask("ada", "k", client.ReserveBody{Qty: 2}))
		refused(t, http.StatusConflict, "hold_exists", ask("ada", "another", client.ReserveBody{Qty: 1}))
		refused(t, http.StatusForbidden, "customer_limit", ask("bob", "k", client.ReserveBody{Qty: 3}))
		refused(t, http.StatusBadRequest, "invalid", ask("bob", "k", client.ReserveBody{Qty: 1, Hold: 86400}))
	}
	s.call(t, "POST", "/v1/reservations/"+held.ID+"/release", client.ReleaseBody{})
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		ans := ask("eve", "k", client.ReserveBody{Qty: 1})
		return ans.status == http.StatusCreated, string(ans.body)
	})
	refused(t, http.StatusConflict, "hold_exists", ask("eve", "another", client.ReserveBody{Qty: 1}))
}

// counted is what a counter of the server shows.
func (s *site) counted(t testing.TB, name string) float64 {
	t.Helper()
	families, err := s.metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
