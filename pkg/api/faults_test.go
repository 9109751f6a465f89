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

// An answer that Redis gave and nobody got: the caller is told that nobody knows, and asking again acts once.
func TestLostRepliesOfRedisActOnce(t *testing.T) {
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
	s.load(t, drop.Definition{Lot: "truffle", Stock: 20, MaxHold: time.Hour})
	lost := func(path, body string) answer {
		t.Helper()
		key := headers{"Idempotency-Key": "k"}
		proxy.DropReplies()
		ans := s.call(t, "POST", path, body, key)
		p := into[client.Problem](t, http.StatusServiceUnavailable, ans)
		if p.Code != "outcome_unknown" && p.Code != "unavailable" || ans.header.Get("Retry-After") == "" {
			t.Errorf("%s: %s", path, ans.body)
		}
		proxy.Heal()
		var again answer
		testkit.Eventually(t, 30*time.Second, func() (bool, string) { // the breaker may be open for a moment
			again = s.call(t, "POST", path, body, key)
			return again.status < 300, string(again.body)
		})
		return again
	}
	ans := lost("/v1/lots/truffle/reservations", `{"user":"ada","qty":5}`)
	var r client.Reservation
	if err := json.Unmarshal(ans.body, &r); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		call, body string
		want       drop.Totals
	}{
		{"extend", `{"by_seconds":1800}`, drop.Totals{Capacity: 20, Available: 15, Held: 5}},
		{"release", `{"keep":3}`, drop.Totals{Capacity: 20, Available: 17, Held: 3}},
		{"confirm", `{"payment":"pay","ack":"stock"}`, drop.Totals{Capacity: 20, Available: 17, Sold: 3}},
		{"refund", `{"total":2}`, drop.Totals{Capacity: 20, Available: 19, Sold: 1}},
	} {
		lost("/v1/reservations/"+r.ID+"/"+c.call, c.body)
		if st := s.lot(t, "truffle"); st.Totals != c.want {
			t.Errorf("after %s the lot has %+v", c.call, st.Totals)
		}
	}
	lost("/v1/lots/truffle/adjust", `{"by":5,"expect":20}`)
	if st := s.lot(t, "truffle"); st.Capacity != 25 {
		t.Errorf("the lot has %+v", st.Totals)
	}
}

// shopper asks for one hold after another, each for another user, and keeps what the answers were.
type shopper struct {
	site *site
	name string

	mu     sync.Mutex
	got    map[string]string // user → reservation id
	unsure []string          // users whose outcome is not known
	down   int               // answers that the shop cannot sell now
	last   string            // of these
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
		p.last = problem.Code + " " + problem.Detail + fmt.Sprint(problem.Facts)
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

func (p *shopper) lastRefusal() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
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
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			got, _ := p.counts()
			return got > before[p], "nobody gets anything any more: " + p.lastRefusal()
		})
	}
	stop()
	all.Wait()
	s.nothingTwice(t, shoppers, false)
}

// TestAPromotedReplicaSellsOnAndGivesNobodyTwo kills the primary under load; what only it had is asked for again.
func TestAPromotedReplicaSellsOnAndGivesNobodyTwo(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	w := testkit.Watched(t, 1)
	s := newAPI(t, func(o *setup) { o.redisURL = func(*lab.Redis) string { return w.URL() } })
	s.load(t, drop.Definition{Lot: "hat", Stock: 1_000_000})
	if err := w.Servers[1].AwaitCopy(t.Context(), w.Servers[0]); err != nil { // a replica that never had the lot cannot sell it
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	shoppers := make([]*shopper, 5)
	for i := range shoppers {
		shoppers[i] = &shopper{site: s, name: fmt.Sprint("p", i), got: map[string]string{}}
		all.Go(func() { shoppers[i].run(ctx) })
	}
	t.Cleanup(func() { stop(); all.Wait() })
	for _, p := range shoppers {
		testkit.Eventually(t, 30*time.Second, func() (bool, string) { got, _ := p.counts(); return got >= 3, "nobody gets anything" })
	}
	if err := w.Servers[0].Kill(); err != nil {
		t.Fatal(err)
	}
	w.AwaitFailover(t, w.Servers[0])
	for _, p := range shoppers {
		before, _ := p.counts()
		testkit.Eventually(t, 60*time.Second, func() (bool, string) {
			got, _ := p.counts()
			return got > before+3, "nobody gets anything any more: " + p.lastRefusal()
		})
	}
	stop()
	all.Wait()
	s.nothingTwice(t, shoppers, true)
}

// nothingTwice asks again for everything that was answered or is unsure: everybody has one reservation, the same one as
// before unless a failover may have lost it, and no unit more is held.
func (s *site) nothingTwice(t testing.TB, shoppers []*shopper, mayBeLost bool) {
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
			holds++
			if mayBeLost && ans.status == http.StatusCreated {
				continue
			}
			if again := into[client.Reservation](t, http.StatusOK, ans); again.ID != id && !mayBeLost || !again.Replayed {
				t.Fatalf("%s had %s and now has %+v", user, id, again)
			}
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
