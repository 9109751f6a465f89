package api

import (
	"net/http"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/sign"
)

const paymentPath = "/v1/payments/callback"

// takePayment records what a payment gateway says of a charge. Nothing of the body is looked at before its signature.
func (a *API) takePayment(w http.ResponseWriter, r *http.Request) error {
	if a.opt.PaymentSecret == "" {
		return fault.New(fault.NotFound, "this server listens to no payment gateway").WithHint("set --payment webhook, for it and for the workers")
	}
	buf, err := readBody(r)
	if err != nil {
		return err
	}
	defer putBack(buf)
	signature := strings.Join(r.Header.Values(sign.HeaderName), ",")
	if err := sign.Verify(a.opt.PaymentSecret, signature, buf.Bytes(), time.Now(), sign.Tolerance); err != nil {
		return err
	}
	body, id, p, err := readPayment(buf.Bytes())
	if err != nil {
		return err
	}
	c := callOf(r.Context())
	c.lot = id.Lot
	if c.replayed, err = a.opt.Payments.TakePayment(r.Context(), id, int(body.Attempt), p); err != nil {
		return err
	}
	if c.replayed {
		w.Header()["Idempotency-Replayed"] = replayed
	}
	return answerJSON(w, http.StatusOK, client.PaymentTaken{Reservation: body.Reservation, Attempt: body.Attempt, Status: body.Status, Replayed: c.replayed})
}

// readPayment reads and checks the body of a gateway's call.
func readPayment(data []byte) (client.PaymentBody, drop.ReservationID, drop.Payment, error) {
	o := &object{data: data}
	body := parsePayment(o)
	if o.err != nil {
		return body, drop.ReservationID{}, drop.Payment{}, o.err
	}
	p := drop.Payment{Decision: drop.Decision(body.Status), Ref: body.Reference, Reason: body.Reason}
	id, err := drop.ParseReservationID(body.Reservation)
	if err == nil {
		err = p.Check()
	}
	return body, id, p, err
}

func parsePayment(o *object) (b client.PaymentBody) {
	for o.next() {
		switch o.name {
		case "reservation":
			b.Reservation = o.string()
		case "attempt":
			b.Attempt = o.units(1)
		case "status":
			b.Status = o.oneOf(string(drop.PaymentApproved), string(drop.PaymentDeclined), string(drop.PaymentPending))
		case "reference":
			b.Reference = o.line()
		case "reason":
			b.Reason = drop.TidyText(o.string()) // a decline stays one, however it is worded
		default:
			o.skip("reservation", "attempt", "status", "reference", "reason") // a gateway says more over the years
		}
	}
	for _, f := range []struct {
		name    string
		missing bool
	}{{"reservation", b.Reservation == ""}, {"attempt", b.Attempt == 0}, {"status", b.Status == ""}} {
		if f.missing {
			o.missing(f.name)
		}
	}
	return b
}
