package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Deliveries takes what a queue delivers.
type Deliveries interface {
	// Trusts is an error unless a bearer token is that of the queue.
	Trusts(ctx context.Context, token string) error
	// Take records the body of a delivery. wait above zero: not all of it was; it is to be delivered again then. What no
	// repetition makes better is an error of code invalid.
	Take(ctx context.Context, body []byte) (wait time.Duration, err error)
}

const (
	deliveryPath  = "/internal/outbox"
	deliveryRoute = http.MethodPost + " " + deliveryPath
	maxDelivery   = 1 << 20 // bytes; no task of a queue is larger
)

// delivered answers deliveries and leaves everything else to next. A queue is no caller of the API: keys do not count for
// it, nor do the limits of callers, and the document of the API does not name it.
func (a *API) delivered(next http.Handler) http.Handler {
	if a.opt.Deliveries == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != deliveryPath {
			next.ServeHTTP(w, r)
			return
		}
		r.Pattern = deliveryRoute
		callOf(r.Context()).address = a.limits.proxies.caller(r)
		if err := a.takeDelivery(w, r); err != nil {
			a.fail(w, r, asPassing(err))
		}
	})
}

// longest is how long the body of a request may be.
func (a *API) longest(r *http.Request) int64 {
	if a.opt.Deliveries != nil && r.URL.Path == deliveryPath {
		return maxDelivery
	}
	return maxBody
}

// takeDelivery asks who delivers before it reads what.
func (a *API) takeDelivery(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		w.Header()["Allow"] = []string{http.MethodPost}
		return fault.New(fault.MethodNotAllowed, "this path has no call %s", printable(r.Method))
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(r.Header["Authorization"]) != 1 {
		w.Header()["Www-Authenticate"] = askForKey
		return fault.New(fault.Unauthorized, "the delivery has no token").WithHint("send one, as Authorization: Bearer TOKEN")
	}
	if err := a.opt.Deliveries.Trusts(r.Context(), strings.Trim(token, " ")); err != nil {
		if fault.Is(err, fault.Unauthorized) {
			w.Header()["Www-Authenticate"] = askForOther
		}
		return err
	}
	body, err := readDelivery(r)
	if err != nil {
		return err
	}
	wait, err := a.opt.Deliveries.Take(r.Context(), body)
	if err != nil {
		return err
	}
	if wait > 0 {
		return fault.New(fault.RateLimited, "the ledger has taken all the events that it may at present").
			WithHint("deliver it again when Retry-After says; the rate is --max-events-per-second").With("retry_after_seconds", wait.Seconds())
	}
	return answerJSON(w, http.StatusOK, map[string]bool{"recorded": true})
}

func readDelivery(r *http.Request) ([]byte, error) {
	if err := checkJSON(r); err != nil {
		return nil, err
	}
	if r.ContentLength > maxDelivery {
		return nil, deliveryTooLarge
	}
	var body bytes.Buffer
	if _, err := body.ReadFrom(io.LimitReader(r.Body, maxDelivery+1)); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, deliveryTooLarge
		}
		return nil, fault.Wrap(fault.Unavailable, err, "the delivery did not arrive whole")
	}
	return body.Bytes(), nil
}

var deliveryTooLarge = fault.New(fault.TooLarge, "the delivery is longer than %d bytes", maxDelivery).WithHint("see what delivers: dropctl sends none as large")

// asPassing makes 503 of every error but those that no repetition cures: some queues throw away what is answered with any
// other status.
func asPassing(err error) error {
	switch fault.CodeOf(err) {
	case fault.Invalid, fault.TooLarge, fault.UnsupportedMedia, fault.Unauthorized, fault.Forbidden, fault.MethodNotAllowed, fault.RateLimited:
		return err
	}
	if fault.Lookup(fault.CodeOf(err)).HTTP == http.StatusServiceUnavailable {
		return err
	}
	return fault.Wrap(fault.Unavailable, err, "the delivery could not be recorded")
}
