package api_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

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
	s.refusesFromMemory(t, func() {
		n++
		p := refused(t, http.StatusConflict, "sold_out", ask(fmt.Sprint("late-", n), "k", client.ReserveBody{Qty: 1}))
		if p.Remaining == nil || *p.Remaining != 2 {
			t.Fatalf("whom the lot does not know may take %v more", p.Remaining)
		}
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

// TestWhatComesBackIsSoldAtOnce: a lot is taken for sold out for 50 ms, so whoever asks that long after a unit came back
// gets it.
func TestWhatComesBackIsSoldAtOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	const remembered = 50 * time.Millisecond
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "hat", Stock: 1})
	n := 0
	ask := func(hold float64) answer {
		n++
		return s.call(t, "POST", "/v1/lots/hat/reservations", client.ReserveBody{User: fmt.Sprint("user-", n), Hold: hold}, headers{"Idempotency-Key": "k"})
	}
	held := into[client.Reservation](t, http.StatusCreated, ask(0))
	back := func(way string, come func()) {
		t.Helper()
		s.refusesFromMemory(t, func() { refused(t, http.StatusConflict, "sold_out", ask(0)) })
		come()
		time.Sleep(remembered)
		if ans := ask(1); ans.status != http.StatusCreated {
			t.Errorf("%s: %d %s", way, ans.status, ans.body)
		} else {
			held = into[client.Reservation](t, http.StatusCreated, ans)
		}
	}
	settle := func(call string, body any) {
		t.Helper()
		into[client.Reservation](t, http.StatusOK, s.call(t, "POST", "/v1/reservations/"+held.ID+"/"+call, body))
	}
	back("released", func() { settle("release", client.ReleaseBody{}) })
	back("expired", func() { time.Sleep(time.Until(*held.Deadline)) })
	settle("confirm", client.ConfirmBody{Ack: "stock"})
	back("refunded", func() { settle("refund", client.RefundBody{}) })
	settle("confirm", client.ConfirmBody{Ack: "stock"})
	back("restocked", func() {
		into[client.Lot](t, http.StatusOK, s.call(t, "POST", "/v1/lots/hat/adjust", client.AdjustBody{By: new(int64(1)), Expect: 1}))
	})
}

// refusesFromMemory asks until an answer comes from memory. It asks several times in a row between two looks at the counter:
// what is remembered for 50 ms would be forgotten during each of them.
func (s *site) refusesFromMemory(t testing.TB, ask func()) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		before := s.counted(t, "dropctl_api_refused_from_memory_total")
		for range 10 {
			ask()
		}
		return s.counted(t, "dropctl_api_refused_from_memory_total") > before, "the script is asked every time"
	})
}

// counted is what a counter or a gauge of the server shows.
func (s *site) counted(t testing.TB, name string) float64 {
	t.Helper()
	families, err := s.metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
