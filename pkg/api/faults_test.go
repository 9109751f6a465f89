package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// An answer that Redis gave and nobody got: the caller is told that nobody knows, and asking again acts once.
func TestLostRepliesOfRedisActOnce(t *testing.T) {
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
		testkit.Eventually(t, 10*time.Second, func() (bool, string) { // the breaker may be open for a moment
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

// While Redis hangs, callers are refused fast; afterwards everybody who asks on has exactly one hold.
func TestAHangingRedisIsTold(t *testing.T) {
	testkit.Long(t)
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 1000})
	const callers = 40
	var refusals, slow atomic.Int64
	var hanging atomic.Bool
	held := make([]string, callers)
	var crowd sync.WaitGroup
	start := make(chan struct{})
	for i := range callers {
		crowd.Go(func() {
			<-start
			for {
				began, during := time.Now(), hanging.Load()
				ans, err := s.try(t.Context(), "POST", "/v1/lots/truffle/reservations", fmt.Sprintf(`{"user":"user-%d"}`, i), headers{"Idempotency-Key": "k"})
				if err != nil {
					t.Error(err)
					return
				}
				documented(t, "POST", "/v1/lots/truffle/reservations", ans)
				if ans.status < 300 {
					held[i] = into[client.Reservation](t, ans.status, ans).ID
					return
				}
				if ans.status != http.StatusServiceUnavailable || ans.header.Get("Retry-After") == "" {
					t.Errorf("refused with %d: %s", ans.status, ans.body)
					return
				}
				refusals.Add(1)
				if during && time.Since(began) > 500*time.Millisecond {
					slow.Add(1)
				}
			}
		})
	}
	if err := s.redis.Pause(); err != nil {
		t.Fatal(err)
	}
	close(start)
	testkit.Eventually(t, 10*time.Second, func() (bool, string) { return refusals.Load() >= callers, "nobody is refused while Redis hangs" })
	hanging.Store(true)
	before := refusals.Load()
	testkit.Eventually(t, 10*time.Second, func() (bool, string) { return refusals.Load() >= before+20*callers, "refusals come slowly" })
	if n := slow.Load(); n > callers {
		t.Errorf("%d refusals took long while the trouble was known", n)
	}
	hanging.Store(false)
	if err := s.redis.Resume(); err != nil {
		t.Fatal(err)
	}
	crowd.Wait()
	distinct := map[string]bool{}
	for _, id := range held {
		distinct[id] = true
	}
	if st := s.lot(t, "truffle"); len(distinct) != callers || st.Held != callers || !st.Balanced() {
		t.Errorf("%d callers have %d reservations, %d units are held", callers, len(distinct), st.Held)
	}
}
