package api_test

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
)

func TestALotIsReservedConfirmedAndRefundedOverHTTP(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 10, Limit: 3})
	ans := s.call(t, "POST", "/v1/lots/truffle/reservations", client.ReserveBody{User: "ada", Qty: 2, Hold: 60}, headers{"Idempotency-Key": "k1"})
	r := into[client.Reservation](t, http.StatusCreated, ans)
	if r.State != "held" || r.Qty != 2 || r.User != "ada" || r.Key != "k1" || r.Remaining == nil || *r.Remaining != 1 || r.Left == nil || *r.Left < 59 || *r.Left > 60 {
		t.Fatalf("the hold is %s", ans.body)
	}
	if at := ans.header.Get("Location"); at != "/v1/reservations/"+r.ID {
		t.Errorf("Location is %q", at)
	}
	again := s.call(t, "POST", "/v1/lots/truffle/reservations", client.ReserveBody{User: "ada", Qty: 2, Hold: 60}, headers{"Idempotency-Key": "k1"})
	if same := into[client.Reservation](t, http.StatusOK, again); same.ID != r.ID || !same.Replayed || again.header.Get("Idempotency-Replayed") != "true" {
		t.Fatalf("asked again: %s", again.body)
	}
	path := "/v1/reservations/" + r.ID
	c := into[client.Reservation](t, http.StatusOK, s.call(t, "POST", path+"/confirm", client.ConfirmBody{Payment: "pay-1"}))
	if c.State != "confirmed" || c.Ledger != "recorded" || c.Payment != "pay-1" {
		t.Fatalf("confirmed: %+v", c)
	}
	shown := into[client.Reservation](t, http.StatusOK, s.call(t, "GET", path, nil))
	if shown.State != "confirmed" || shown.Key != "k1" || shown.Source != "redis" || shown.Recorded == nil || shown.Recorded.State != "confirmed" || *shown.Remaining != 1 {
		t.Fatalf("shown: %+v", shown)
	}
	b := into[client.Reservation](t, http.StatusOK, s.call(t, "POST", path+"/refund", client.RefundBody{Total: new(int64(1))}))
	if b.Qty != 1 || b.Refunded != 1 {
		t.Fatalf("refunded: %+v", b)
	}
	if st := s.lot(t, "truffle"); st.Sold != 1 || st.Available != 9 {
		t.Fatalf("the lot has %+v", st.Totals)
	}
}

func TestManyIdenticalRequestsTakeOneHold(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 50})
	const callers = 100
	answers := make([]answer, callers)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			answers[i], err = s.try(t.Context(), "POST", "/v1/lots/truffle/reservations", `{"user":"ada","qty":2}`, headers{"Idempotency-Key": "once"})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ids, replays := map[string]bool{}, 0
	for _, ans := range answers {
		documented(t, "POST", "/v1/lots/truffle/reservations", ans)
		if ans.header.Get("Idempotency-Replayed") == "true" && ans.status == http.StatusOK {
			replays++
		} else if ans.status != http.StatusCreated {
			t.Fatalf("answered %d: %s", ans.status, ans.body)
		}
		ids[into[client.Reservation](t, ans.status, ans).ID] = true
	}
	if st := s.lot(t, "truffle"); len(ids) != 1 || replays != callers-1 || st.Held != 2 {
		t.Fatalf("%d reservations, %d replays, %d units held", len(ids), replays, st.Held)
	}
}

// A cart must not get past the limit by being two carts.
func TestALimitCountsAcrossCartsAndPurchases(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 50, Limit: 2})
	held := make(chan client.Reservation, 8)
	var all sync.WaitGroup
	for i := range cap(held) {
		all.Go(func() {
			ans, err := s.try(t.Context(), "POST", "/v1/lots/truffle/reservations", `{"user":"ada","qty":2}`, headers{"Idempotency-Key": "cart-" + strconv.Itoa(i)})
			if err != nil {
				t.Error(err)
				return
			}
			if ans.status == http.StatusCreated {
				held <- into[client.Reservation](t, http.StatusCreated, ans)
				return
			}
			p := refused(t, http.StatusConflict, "hold_exists", ans)
			left, ok := p.Facts["remaining_seconds"].(float64)
			if p.Remaining == nil || *p.Remaining != 0 || p.Facts["reservation"] == "" || !ok || left <= 0 || left > 300 {
				t.Errorf("the refusal says %s", ans.body)
			}
		})
	}
	all.Wait()
	close(held)
	if len(held) != 1 {
		t.Fatalf("%d carts hold", len(held))
	}
	r := <-held
	into[client.Reservation](t, http.StatusOK, s.call(t, "POST", "/v1/reservations/"+r.ID+"/confirm", client.ConfirmBody{Ack: "stock"}))
	again := s.call(t, "POST", "/v1/lots/truffle/reservations", client.ReserveBody{User: "ada", Qty: 1}, headers{"Idempotency-Key": "more"})
	if p := refused(t, http.StatusForbidden, "customer_limit", again); p.Remaining == nil || *p.Remaining != 0 {
		t.Errorf("the refusal says %s", again.body)
	}
}

func TestOneHoldReplacesAnother(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 3, Limit: 3})
	first := s.reserve(t, "truffle", "ada", "k1", 2)
	ans := s.call(t, "POST", "/v1/lots/truffle/reservations", client.ReserveBody{User: "ada", Qty: 3, Replace: true}, headers{"Idempotency-Key": "k2"})
	second := into[client.Reservation](t, http.StatusCreated, ans)
	if st := s.lot(t, "truffle"); second.ID == first.ID || st.Held != 3 {
		t.Fatalf("%d units held", st.Held)
	}
	refused(t, http.StatusConflict, "already_released", s.call(t, "POST", "/v1/reservations/"+first.ID+"/confirm", nil))
}

func TestEveryRefusalSaysWhatTheUserMayStillTake(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 10, Limit: 5})
	s.load(t, drop.Definition{Lot: "later", Stock: 10, Limit: 5, Opens: time.Now().Add(time.Hour)})
	s.load(t, drop.Definition{Lot: "closed", Stock: 10, Limit: 5, Status: drop.Closed})
	s.load(t, drop.Definition{Lot: "paused", Stock: 10, Limit: 5, Status: drop.Paused})
	s.load(t, drop.Definition{Lot: "small", Stock: 1, Limit: 5})
	r := s.reserve(t, "truffle", "ada", "k", 2)
	says := func(status int, code string, left int64, path string, body any) {
		t.Helper()
		ans := s.call(t, "POST", path, body, headers{"Idempotency-Key": "k"})
		if p := refused(t, status, code, ans); p.Remaining == nil || *p.Remaining != left {
			t.Errorf("%s: the user may still take %d, the refusal says %s", code, left, ans.body)
		}
	}
	ada, bob := client.ReserveBody{User: "ada", Qty: 3}, client.ReserveBody{User: "bob", Qty: 3}
	says(http.StatusUnprocessableEntity, "key_reused", 3, "/v1/lots/truffle/reservations", ada)
	says(http.StatusBadRequest, "invalid", 5, "/v1/lots/truffle/reservations", client.ReserveBody{User: "bob", Qty: 1, Hold: 7200})
	says(http.StatusForbidden, "sale_not_open", 5, "/v1/lots/later/reservations", bob)
	says(http.StatusForbidden, "sale_closed", 5, "/v1/lots/closed/reservations", bob)
	says(http.StatusForbidden, "lot_paused", 5, "/v1/lots/paused/reservations", bob)
	says(http.StatusConflict, "sold_out", 5, "/v1/lots/small/reservations", bob)
	says(http.StatusForbidden, "customer_limit", 5, "/v1/lots/truffle/reservations", client.ReserveBody{User: "bob", Qty: 6})
	path := "/v1/reservations/" + r.ID
	says(http.StatusConflict, "conflict", 3, path+"/release", client.ReleaseBody{Keep: 4})
	says(http.StatusConflict, "not_confirmed", 3, path+"/refund", nil)
	into[client.Reservation](t, http.StatusOK, s.call(t, "POST", path+"/confirm", client.ConfirmBody{Ack: "stock", Payment: "a"}))
	says(http.StatusConflict, "already_confirmed", 3, path+"/confirm", client.ConfirmBody{Ack: "stock", Payment: "b"})
	says(http.StatusConflict, "already_confirmed", 3, path+"/extend", client.ExtendBody{By: 60})
}

// A Redis that lost the scripts gets them again in the middle of a sale, and no call is lost or carried out twice.
func TestScriptsThatVanishAreLoadedAgain(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 1000})
	const callers, each = 8, 20
	var crowd sync.WaitGroup
	for i := range callers {
		crowd.Go(func() {
			for j := range each {
				ans, err := s.try(t.Context(), "POST", "/v1/lots/truffle/reservations", client.ReserveBody{User: strconv.Itoa(i) + "-" + strconv.Itoa(j)}, headers{"Idempotency-Key": "k"})
				if err != nil || ans.status != http.StatusCreated {
					t.Errorf("%v, %d %s", err, ans.status, ans.body)
				}
				if i == 0 && j%5 == 0 {
					if _, err := s.redis.Do(t.Context(), "FUNCTION", "FLUSH"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	crowd.Wait()
	if st := s.lot(t, "truffle"); st.Held != callers*each {
		t.Errorf("%d units held, not %d", st.Held, callers*each)
	}
}
