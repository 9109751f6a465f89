package payment_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/payment"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

var (
	charge = drop.Charge{Reservation: drop.ReservationID{Lot: "truffle", Attempt: strings.Repeat("a", drop.AttemptLen), N: 7}, Number: 2, User: "ann", Units: 3, Ref: "card-1",
		Confirmed: time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC), Asked: 1}
	refund = drop.ChargeRefund{Reservation: charge.Reservation, Number: 2, Entry: 3, Charged: "g-1", User: "ann", Units: 1, Of: 3, Asked: 1}
)

func webhook(t *testing.T, g *testkit.Gateway, timeout time.Duration) *payment.Webhook {
	t.Helper()
	w, err := payment.NewWebhook(payment.Options{URL: g.URL, Secret: g.Secret, Timeout: timeout, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// The gateway itself checks signature and key of every call.
func TestAGatewayIsAsked(t *testing.T) {
	t.Parallel()
	var got []testkit.GatewayCall
	status := ""
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		got = append(got, c)
		return testkit.GatewayAnswer{Status: status}
	})
	w := webhook(t, g, 20*time.Second)
	for _, status = range []string{"declined", "pending", ""} {
		p, err := w.Charge(t.Context(), charge)
		if want := drop.Decision(status); err != nil || p.Decision != want && status != "" {
			t.Errorf("%q: %+v, %v", status, p, err)
		}
	}
	if p, err := w.Refund(t.Context(), refund); err != nil || p.Decision != drop.PaymentApproved || p.Ref == "" {
		t.Errorf("%+v, %v", p, err)
	}
	id := charge.Reservation.String()
	if want := (testkit.GatewayCall{Key: id + ".2", Times: 1, Action: "charge", Reservation: id, Attempt: 2, User: "ann", Units: 3}); got[0] != want {
		t.Errorf("asked %+v", got[0])
	}
	if want := (testkit.GatewayCall{Key: id + ".2.refund.3", Times: 1, Action: "refund", Reservation: id, Attempt: 2, User: "ann", Units: 1, Charge: "g-1"}); got[3] != want {
		t.Errorf("asked %+v", got[3])
	}
}

// Whatever is not clear is an error, which never says what the URL or the secret is.
func TestWhatIsNotClearIsAnError(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	answers := map[string]testkit.GatewayAnswer{
		"HTTP status 500":      {HTTP: 500},
		"HTTP status 307":      {HTTP: http.StatusTemporaryRedirect},
		"HTTP status 302":      {HTTP: http.StatusFound},
		"HTTP status 204":      {HTTP: http.StatusNoContent},
		"HTTP status 402":      {HTTP: http.StatusPaymentRequired},
		"not one JSON object":  {Raw: "<html>approved</html>"},
		"none of a payment":    {Raw: `{"status":"APPROVED","reference":"x"}`},
		"reference is empty":   {Raw: `{"status":"approved"}`},
		"another reservation":  {Raw: `{"status":"approved","reference":"x","reservation":"other"}`},
		"another attempt":      {Raw: `{"status":"approved","reference":"x","attempt":1}`},
		"twice":                {Raw: `{"status":"declined","status":"approved","reference":"x"}`},
		"longer than":          {Raw: `{"status":"approved","reference":"x","more":"` + strings.Repeat("x", 70<<10) + `"}`},
		"no clear answer: EOF": {Break: true},
		"it took too long":     {Wait: func() { <-release }},
	}
	for want, answer := range answers {
		t.Run(want, func(t *testing.T) {
			g := testkit.NewGateway(t, func(testkit.GatewayCall) testkit.GatewayAnswer { return answer })
			g.URL += "?token=hidden"
			timeout := 20 * time.Second
			if answer.Wait != nil {
				timeout = 50 * time.Millisecond
				defer close(release)
			}
			p, err := webhook(t, g, timeout).Charge(t.Context(), charge)
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want) || p != (drop.Payment{}) {
				t.Errorf("%+v, %v", p, err)
			}
			if err != nil && (strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), g.Secret)) {
				t.Errorf("it tells a secret: %v", err)
			}
		})
	}
}

func TestAGatewayThatCannotBe(t *testing.T) {
	for _, o := range []payment.Options{{URL: "ftp://host/", Secret: "s"}, {URL: "pay.example", Secret: "s"}, {URL: "https://", Secret: "s"}, {URL: "https://pay.example:99999", Secret: "s"}, {URL: "https://pay.example"}} {
		if _, err := payment.NewWebhook(o); !fault.Is(err, fault.InvalidConfig) || fault.As(err).Field == "" {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
