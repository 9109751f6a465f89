package cli

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

// paymentsView is what a payment gateway still has to decide; all zero if the shop is paid before it confirms.
type paymentsView struct {
	Open     int64 `json:"charges_open"`
	Pending  int64 `json:"charges_pending"`  // of those: the gateway said that it needs longer
	Declined int64 `json:"charges_declined"` // tried again until the reservation's deadline
	Returns  int64 `json:"refunds_open"`
	Refused  int64 `json:"refunds_refused"` // of those
	Stuck    int64 `json:"stuck"`           // without a clear answer for five minutes
}

// refusedView is money that the gateway will not give back.
type refusedView struct {
	Reservation string    `json:"reservation" table:"RESERVATION,name"`
	Attempt     int       `json:"attempt" table:"ATTEMPT"`
	User        string    `json:"user" table:"USER"`
	Units       int64     `json:"units" table:"UNITS"`
	Charge      string    `json:"charge" table:"CHARGE"` // the gateway's reference
	Reason      string    `json:"reason" table:"REASON"`
	Since       time.Time `json:"since" table:"SINCE"`
}

func (f *statusFacts) readRefused(ctx context.Context, l *ledger.Ledger) error {
	refused, err := l.RefusedRefunds(ctx, newest)
	for _, r := range refused {
		f.refused = append(f.refused, refusedView{r.Reservation.String(), r.Number, r.User, r.Units, r.Charged, r.Reason, r.Since})
	}
	return err
}

func (f statusFacts) sayPayments(say sayFunc) {
	p := f.payments
	if p.Stuck > 0 {
		say(levelBad, fault.Unavailable, "dropctl worker --payment webhook", "charges and refunds without a clear answer of the payment gateway for five minutes: %d", p.Stuck)
	}
	if p.Refused > 0 {
		say(levelWarn, "", "dropctl status -o json --jq .refused_refunds", "refunds that the payment gateway will not make: %d", p.Refused)
	}
	if n := p.Open - p.Pending; n > 0 {
		say(levelOK, "", "dropctl status --watch", "charges that the payment gateway is asked for: %d", n)
	}
	if p.Pending > 0 {
		say(levelOK, "", "dropctl status --watch", "charges that the payment gateway has not decided: %d", p.Pending)
	}
	if p.Declined > 0 {
		say(levelOK, "", "dropctl status --watch", "declined payments, tried again until the deadline: %d", p.Declined)
	}
	if n := p.Returns - p.Refused; n > 0 {
		say(levelOK, "", "dropctl status --watch", "refunds on their way through the payment gateway: %d", n)
	}
}
