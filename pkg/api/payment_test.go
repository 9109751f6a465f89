package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/sign"
	"github.com/dropctl/dropctl/pkg/testkit"
)

const (
	paymentPath   = "/v1/payments/callback"
	paymentSecret = "between shop and gateway"
)

func signed(at time.Time, body string) headers {
	return headers{sign.HeaderName: sign.Header(paymentSecret, at, []byte(body))}
}

// confirmedSale is a sale that a gateway was asked for once.
func confirmedSale(t *testing.T, s *site) client.Reservation {
	t.Helper()
	s.load(t, drop.Definition{Lot: "truffle", Stock: 5})
	r := s.reserve(t, "truffle", "ada", "k", 2)
	into[client.Reservation](t, http.StatusOK, s.call(t, "POST", "/v1/reservations/"+r.ID+"/confirm", client.ConfirmBody{}))
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		claimed, err := s.ledger.ClaimCharges(t.Context(), "test", time.Hour, 10)
		return err == nil && len(claimed) == 1, "the confirmation is not recorded"
	})
	return r
}

func TestAGatewayCallsBack(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noFinalise, o.keyed, o.options.PaymentSecret = true, true, paymentSecret })
	s.token, _ = s.key(t, func(*drop.APIKey) {})
	if err := s.access.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := confirmedSale(t, s).ID
	s.token = "" // a gateway has no key
	now := time.Now()
	body := func(id, rest string) string { return `{"reservation":"` + id + `",` + rest + `}` }
	says := func(status int, code string, text string, h headers) {
		t.Helper()
		refused(t, status, code, s.call(t, "POST", paymentPath, text, h))
	}
	approved := body(id, `"attempt":1,"status":"approved","reference":"ch_1"`)
	says(http.StatusUnauthorized, "unauthorized", approved, nil)
	says(http.StatusUnauthorized, "unauthorized", approved+" ", signed(now, approved))
	says(http.StatusUnauthorized, "unauthorized", approved, signed(now.Add(-time.Hour), approved))
	says(http.StatusRequestEntityTooLarge, "too_large", strings.Repeat(" ", 70_000), nil)
	for text, field := range map[string]string{body(id, `"attempt":1,"status":"approved"`): "reference", body(id, `"attempt":1,"status":"paid"`): "status", body(id, `"status":"declined"`): "attempt",
		body("nonsense", `"attempt":1,"status":"declined"`): "reservation", body(id, `"attempt":1,"attempt":2,"status":"declined"`): "attempt", `[]`: "body",
		body(id, `"attempt":1,"status":"declined","Status":"approved"`): "Status", body(id, `"attempt":1,"status":"declined","new":1,"new":1`): "new", body(id, `"attempt":1,"status":"declined","new":[1`): "new"} {
		if p := refused(t, http.StatusBadRequest, "invalid", s.call(t, "POST", paymentPath, text, signed(now, text))); p.Field != field {
			t.Errorf("%s is a fault of %q", text, p.Field)
		}
	}
	for _, text := range []string{body(id, `"attempt":2,"status":"declined"`), body("truffle~"+strings.Repeat("a", 26)+"~1", `"attempt":1,"status":"declined"`)} {
		says(http.StatusNotFound, "not_found", text, signed(now, text))
	}

	// Declined, and then paid after all; as often as the gateway likes.
	for i, step := range []struct {
		text     string
		replayed bool
	}{{body(id, `"attempt":1,"fee":{"parts":[1,"\u20ac"]},"live":true,"status":"pending","net":-1.5e2`), false}, {body(id, `"attempt":1,"status":"declined","reason":"no\nfunds, `+strings.Repeat("sorry ", 50)+`"`), false}, {body(id, `"attempt":1,"status":"declined"`), true},
		{approved, false}, {approved, true}, {body(id, `"attempt":1,"status":"pending"`), true}} {
		ans := s.call(t, "POST", paymentPath, step.text, signed(now, step.text))
		if v := into[client.PaymentTaken](t, http.StatusOK, ans); v.Replayed != step.replayed || (ans.header.Get("Idempotency-Replayed") == "true") != step.replayed || v.Reservation != id {
			t.Errorf("step %d: %+v", i, v)
		}
	}
	again := body(id, `"attempt":1,"status":"declined"`)
	says(http.StatusConflict, "conflict", again, signed(now, again))
	if got := strings.TrimSpace(s.db.SQL(t, `SELECT kind, units FROM order_ledger`)); got != "sale|2" {
		t.Errorf("recorded %q", got)
	}
}

func TestWithoutAGatewayNobodyCallsBack(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	refused(t, http.StatusNotFound, "not_found", s.call(t, "POST", paymentPath, `{}`, signed(time.Now(), `{}`)))
}

// What is due is closed by a refund, once; where there is a sale too, the call has to say which is meant.
func TestARefundClosesWhatIsDue(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 5})
	red, blue := s.tenant(t, "red"), s.tenant(t, "blue")
	settle := func(id, action string, body any) answer {
		return s.call(t, "POST", "/v1/reservations/"+id+"/"+action, body, red)
	}
	reserve := func(user string) string {
		ans := s.call(t, "POST", "/v1/lots/truffle/reservations", client.ReserveBody{User: user, Qty: 1}, headers{"Idempotency-Key": user}, red)
		return into[client.Reservation](t, http.StatusCreated, ans).ID
	}
	late, both := reserve("ada"), reserve("bob")
	settle(late, "release", client.ReleaseBody{})
	refused(t, http.StatusConflict, "already_released", settle(late, "confirm", client.ConfirmBody{Payment: "pay-late"}))
	settle(both, "confirm", client.ConfirmBody{Payment: "pay-1"})
	refused(t, http.StatusConflict, "already_confirmed", settle(both, "confirm", client.ConfirmBody{Payment: "pay-2"}))
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		due, err := s.ledger.RefundsDue(t.Context(), "truffle", 0)
		return err == nil && len(due) == 2, "what is due is not recorded"
	})

	refused(t, http.StatusNotFound, "not_found", s.call(t, "POST", "/v1/reservations/"+late+"/refund", client.RefundBody{}, blue))
	for _, replayed := range []bool{false, true} {
		v := into[client.Reservation](t, http.StatusOK, settle(late, "refund", client.RefundBody{Reason: "bank transfer"}))
		if v.DueClosed != 1 || v.State != "released" || v.User != "ada" || v.Replayed != replayed {
			t.Errorf("%+v", v)
		}
	}
	refused(t, http.StatusConflict, "conflict", settle(both, "refund", client.RefundBody{}))
	refused(t, http.StatusBadRequest, "invalid", settle(both, "refund", client.RefundBody{Due: true, Total: new(int64(1))}))
	if v := into[client.Reservation](t, http.StatusOK, settle(both, "refund", client.RefundBody{Due: true})); v.DueClosed != 1 || v.State != "confirmed" || v.Qty != 1 {
		t.Errorf("%+v", v)
	}
	if v := into[client.Reservation](t, http.StatusOK, settle(both, "refund", client.RefundBody{})); v.DueClosed != 0 || v.State != "refunded" {
		t.Errorf("%+v", v)
	}
	refused(t, http.StatusNotFound, "not_found", settle(reserve("cat"), "refund", client.RefundBody{Due: true}))
	if got := s.db.SQL(t, `SELECT settled_why, settled_by LIKE 'api:%', settled_reason FROM refunds_due WHERE ref = 'pay-late'`); strings.TrimSpace(got) != "refunded|t|bank transfer" {
		t.Errorf("recorded %s", got)
	}
}
