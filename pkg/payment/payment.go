// Package payment asks a payment gateway for money, and to give it back.
//
// There are two ways to be paid. With `none` the shop moves the money itself, before it confirms a reservation, and nothing
// of this package is used. With `webhook` dropctl charges for each confirmed reservation, through an HTTP endpoint of the
// shop or of a payment provider.
package payment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/sign"
)

// Options say how to reach a gateway.
type Options struct {
	URL       string // http or https
	Secret    string // that both sides sign with
	Timeout   time.Duration
	UserAgent string
}

// mostAnswer is how long an answer may be, in bytes.
const mostAnswer = 64 << 10

// Webhook is a gateway behind one HTTP endpoint. It is safe for concurrent use.
type Webhook struct {
	opt    Options
	client *http.Client
}

// NewWebhook returns a gateway; it dials nothing. Errors have code invalid_config.
func NewWebhook(o Options) (*Webhook, error) {
	u, err := url.Parse(o.URL)
	if err == nil {
		_, err = net.LookupPort("tcp", u.Port()) // 99999 is none
	}
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Fragment != "":
		return nil, fault.New(fault.InvalidConfig, "the URL of the payment gateway cannot be used").WithField("payment-url").
			WithHint("use https://HOST/PATH, or http:// for one on this machine")
	case o.Secret == "":
		return nil, fault.New(fault.InvalidConfig, "there is no secret to sign with").WithField("payment-secret").
			WithHint("set DROPCTL_PAYMENT_SECRET, or payment-secret in the config file, also as env:NAME or file:/path")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64 // one for each that a worker asks at a time
	client := &http.Client{Transport: transport, Timeout: o.Timeout,
		// Whoever answers for the gateway must be the one that was named: nothing signed goes elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Webhook{o, client}, nil
}

// Timeout is how long one question may take.
func (w *Webhook) Timeout() time.Duration { return w.opt.Timeout }

// Close ends the connections that nobody uses.
func (w *Webhook) Close() { w.client.CloseIdleConnections() }

// chargeBody and refundBody are what the gateway gets.
type chargeBody struct {
	Action      string     `json:"action"` // charge
	Reservation string     `json:"reservation"`
	Attempt     int        `json:"attempt"`
	Lot         drop.LotID `json:"lot"`
	User        string     `json:"user"`
	Units       int64      `json:"units"`
	Payment     string     `json:"payment"` // reference given at the confirmation; may be empty
	Confirmed   time.Time  `json:"confirmed"`
}

type refundBody struct {
	Action      string     `json:"action"` // refund
	Reservation string     `json:"reservation"`
	Attempt     int        `json:"attempt"` // that was charged
	Lot         drop.LotID `json:"lot"`
	User        string     `json:"user"`
	Units       int64      `json:"units"`  // to pay back
	Of          int64      `json:"of"`     // units that were charged
	Charge      string     `json:"charge"` // the gateway's reference
	Payment     string     `json:"payment"`
}

// Charge asks for the money of a reservation. An error says that nothing certain is known: the buyer may have paid. Asked
// again under the same number, a gateway that keeps its word charges once.
func (w *Webhook) Charge(ctx context.Context, c drop.Charge) (drop.Payment, error) {
	id := c.Reservation
	return w.ask(ctx, c.Key(), id.String(), c.Number, chargeBody{"charge", id.String(), c.Number, id.Lot, c.User, c.Units, c.Ref, c.Confirmed})
}

// Refund asks to give money back. An error says that nothing certain is known.
func (w *Webhook) Refund(ctx context.Context, r drop.ChargeRefund) (drop.Payment, error) {
	id := r.Reservation
	return w.ask(ctx, r.Key(), id.String(), r.Number, refundBody{"refund", id.String(), r.Number, id.Lot, r.User, r.Units, r.Of, r.Charged, r.Ref})
}

func (w *Webhook) ask(ctx context.Context, key, reservation string, number int, body any) (drop.Payment, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return drop.Payment{}, fault.Wrap(fault.Failed, err, "writing to the payment gateway")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.opt.URL, bytes.NewReader(text))
	if err != nil {
		return drop.Payment{}, unclear("the call could not be made")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("User-Agent", w.opt.UserAgent)
	req.Header.Set(sign.HeaderName, sign.Header(w.opt.Secret, time.Now(), text))
	resp, err := w.client.Do(req)
	if err != nil {
		return drop.Payment{}, unclear("%s", why(err))
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer+1))
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 202:
		return drop.Payment{}, unclear("it answered with HTTP status %d", resp.StatusCode)
	case err != nil:
		return drop.Payment{}, unclear("its answer did not arrive whole: %s", why(err))
	case len(answer) > mostAnswer:
		return drop.Payment{}, unclear("its answer is longer than %d bytes", mostAnswer)
	}
	p, err := parseAnswer(answer, reservation, number)
	if err != nil {
		return drop.Payment{}, unclear("%s", err)
	}
	return p, nil
}

func unclear(format string, args ...any) error {
	return fault.New(fault.Unavailable, "the payment gateway gave no clear answer: "+format, args...).
		WithHint("it is asked again under the same key; see --payment-url and the gateway's own log")
}

// why words an error of the HTTP client without the URL, which may hold a secret.
func why(err error) string {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "it took too long"
	}
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}
