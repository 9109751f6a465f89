package drop

import (
	"strconv"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Charge is one attempt to be paid for a confirmed reservation: what a payment gateway is asked for.
type Charge struct {
	Reservation ReservationID
	Number      int // 1, and one more after each definite decline
	User        string
	Units       int64
	Ref         string // payment reference given at the confirmation
	Confirmed   time.Time
	Asked       int // how often the gateway was asked for it, this time included
}

// Key is the idempotency key: a gateway that is asked twice under it charges once.
func (c Charge) Key() string { return c.Reservation.String() + "." + strconv.Itoa(c.Number) }

// ChargeRefund is money of a charge that goes back to the buyer.
type ChargeRefund struct {
	Reservation ReservationID
	Number      int    // of the charge
	Entry       int    // the refund's row in the order ledger; 0: the charge paid for no sale
	Charged     string // the gateway's reference of the charge
	User        string
	Units       int64 // that are paid back
	Of          int64 // units that the charge was for
	Ref         string
	Asked       int // how often the gateway was asked for it, this time included
}

// Key is the idempotency key: a gateway that is asked twice under it pays back once.
func (r ChargeRefund) Key() string {
	return r.Reservation.String() + "." + strconv.Itoa(r.Number) + ".refund." + strconv.Itoa(r.Entry)
}

// Decision is what a payment gateway says of a charge or a refund.
type Decision string

// The decisions. Approved and declined are definite; pending says to ask again.
const (
	PaymentApproved Decision = "approved"
	PaymentDeclined Decision = "declined"
	PaymentPending  Decision = "pending"
)

// Payment is a payment gateway's answer.
type Payment struct {
	Decision Decision
	Ref      string // approved: the gateway's own reference
	Reason   string // declined: why
}

// Check validates every field.
func (p Payment) Check() error {
	switch p.Decision {
	case PaymentApproved, PaymentDeclined, PaymentPending:
	default:
		return fault.New(fault.Invalid, "status %s is none of a payment", quote(string(p.Decision))).WithField("status").WithHint("use approved, declined or pending")
	}
	if err := CheckText("reference", p.Ref, p.Decision == PaymentApproved); err != nil {
		return err
	}
	return CheckText("reason", p.Reason, false)
}

// Payments counts what a payment gateway still has to decide.
type Payments struct {
	Asking   int64 // charges and refunds that a worker can do something about
	Open     int64 // charges without a definite answer
	Pending  int64 // of those: the gateway said that it needs longer
	Declined int64 // reservations that nobody has paid for yet, tried again until their deadline
	Returns  int64 // refunds that are not through
	Refused  int64 // of those: the gateway will not make them
	Stuck    int64 // charges and refunds that had no clear answer for five minutes
}

// Due is what the ledger has of payments for a reservation that paid for no unit.
type Due struct {
	User   string
	Open   int   // payments that are due for refund
	Closed int   // payments whose money somebody has given back before
	Units  int64 // of both
	Sale   bool  // the reservation also has a sale, or is about to
}

// Meant reports whether a refund is about payments that are due, rather than about the sale. Where there are both and the
// request names neither, it is fault.Conflict: one of them cannot be undone, the other must not be forgotten.
func (d Due) Meant(q SettleRequest) (bool, error) {
	switch {
	case q.Due && d.Open+d.Closed == 0:
		return false, fault.New(fault.NotFound, "no payment for the reservation %s is due for refund", q.ID).
			WithHint("see what is due: dropctl ledger show --refund-due")
	case q.Due:
		return true, nil
	case q.Total >= 0 || q.NoRestock:
		return false, nil
	case d.Open > 0 && d.Sale:
		return false, fault.New(fault.Conflict, "the reservation %s has both a sale and a payment that paid for no unit", q.ID).
			WithHint("say which: --due (\"due\": true) for that payment, or --total N (\"total\") for units of the sale")
	}
	return d.Open > 0 || d.Closed > 0 && !d.Sale, nil
}
