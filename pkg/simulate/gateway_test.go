package simulate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/payment"
)

// bank starts a gateway, and what a worker asks it through.
func bank(t *testing.T, g Gateway) (*Bank, *payment.Webhook) {
	t.Helper()
	if g.Answers == nil {
		g.Answers = always(Range[time.Duration]{})
	}
	b, err := OpenBank(Scenario{Seed: 5, Gateway: &g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	w, err := payment.NewWebhook(payment.Options{URL: b.URL(), Secret: b.Secret(), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return b, w
}

func reservation(user string) drop.ReservationID {
	return drop.ReservationID{Lot: "hat", Attempt: drop.AttemptOf("hat", user, "k"), N: 3}
}

func charge(user string, number int) drop.Charge {
	return drop.Charge{Reservation: reservation(user), Number: number, User: user, Units: 2}
}

func mustAsk(t *testing.T, w *payment.Webhook, c drop.Charge) drop.Decision {
	t.Helper()
	p, err := w.Charge(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p.Decision
}

func TestAGatewayKeepsToWhatItHasDecided(t *testing.T) {
	t.Parallel()
	b, w := bank(t, Gateway{Declined: 0.5, Undecided: 0.3, Decides: Range[time.Duration]{20 * time.Millisecond, 40 * time.Millisecond}})
	again, wAgain := bank(t, Gateway{Declined: 0.5, Undecided: 0.3, Decides: Range[time.Duration]{20 * time.Millisecond, 40 * time.Millisecond}})
	decided := map[drop.Decision]int{}
	for n := range 60 {
		c := charge(fmt.Sprint("user-", n), 1)
		first := mustAsk(t, w, c)
		if second := mustAsk(t, w, c); second != first && first != drop.PaymentPending {
			t.Errorf("%s: first %s, then %s", c.Key(), first, second)
		}
		other := c
		other.Reservation.N = 99 // who came first may differ
		if again := mustAsk(t, wAgain, other); again != first {
			t.Errorf("%s: %s once, %s the other time", c.Key(), first, again)
		}
		decided[first]++
	}
	if len(decided) != 3 || b.Payments().Declined != again.Payments().Declined {
		t.Errorf("decided %v, %+v and %+v", decided, b.Payments(), again.Payments())
	}
}

func TestASilentGatewayHasMovedTheMoney(t *testing.T) {
	t.Parallel()
	b, _ := bank(t, Gateway{Silent: 0.9})
	impatient, err := payment.NewWebhook(payment.Options{URL: b.URL(), Secret: b.Secret(), Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(impatient.Close)
	for b.Payments().Unanswered == 0 { // nine of ten are
		_, _ = impatient.Charge(t.Context(), charge("ann", 1))
	}
	if p := b.Payments(); p.PaidUnits != 2 || p.Approved != 1 {
		t.Errorf("%+v", p)
	}
}

func TestTheMoneyIsHeldAgainstTheSales(t *testing.T) {
	t.Parallel()
	ann := reservation("ann")
	for name, c := range map[string]struct {
		asks []drop.Charge
		sold []drop.Reservation
		want string // "": nothing is wrong
	}{
		"paid and sold":         {[]drop.Charge{charge("ann", 1)}, []drop.Reservation{{ID: ann, State: drop.Confirmed, Qty: 2}}, ""},
		"charged twice":         {[]drop.Charge{charge("ann", 1), charge("ann", 2)}, []drop.Reservation{{ID: ann, State: drop.Confirmed, Qty: 2}}, "the money for 4 units, recorded are 2"},
		"paid and not sold":     {[]drop.Charge{charge("ann", 1)}, nil, "the money for 2 units, recorded are 0"},
		"sold and not paid":     {nil, []drop.Reservation{{ID: ann, State: drop.Confirmed, Qty: 2}}, "nobody paid"},
		"another sum, same key": {[]drop.Charge{charge("ann", 1), {Reservation: ann, Number: 1, User: "ann", Units: 1}}, []drop.Reservation{{ID: ann, State: drop.Confirmed, Qty: 2}}, "before it was 2"},
	} {
		t.Run(name, func(t *testing.T) {
			b, w := bank(t, Gateway{})
			for _, ask := range c.asks {
				_, _ = w.Charge(t.Context(), ask)
			}
			book := newBook([]drop.Definition{{Lot: "hat", Stock: 9}})
			book.attempts[ann.Attempt] = &attempt{id: ann, unknown: true}
			wrong, err := book.Audit(t.Context(), recorded(c.sold), b)
			if text := strings.Join(wrong, "\n"); err != nil || (text == "") != (c.want == "") || !strings.Contains(text, c.want) {
				t.Errorf("%v: %q, want %q", err, text, c.want)
			}
		})
	}
}

func TestWhoseChargeIsDeclinedHasBoughtNothing(t *testing.T) {
	t.Parallel()
	b, w := bank(t, Gateway{Declined: 1})
	if got := mustAsk(t, w, charge("ann", 1)); got != drop.PaymentDeclined {
		t.Fatal(got)
	}
	book := newBook([]drop.Definition{{Lot: "hat", Stock: 9}})
	for _, user := range []string{"ann", "bob"} {
		id := reservation(user)
		book.attempts[id.Attempt] = &attempt{request: drop.ReserveRequest{Lot: "hat", User: user}, id: id,
			confirmed: &drop.Reservation{ID: id, Qty: 2, State: drop.Confirmed}}
	}
	wrong, err := book.Audit(context.Background(), recorded(nil), b)
	if err != nil || len(wrong) != 1 || !strings.Contains(wrong[0], "told bob") {
		t.Errorf("%v: %q", err, wrong)
	}
}
