package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

const (
	maxAnswer  = 4 << 20 // bytes of an answer; the longest page is far below
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
	maxAfter   = 30 * time.Second // a server that wants to be left alone for longer is not waited for
)

// failure is why an attempt brought no answer that counts.
type failure struct {
	err   error
	lost  bool          // the call may have been carried out
	again bool          // asking again may help
	after time.Duration // but not before
}

// head is what the head of an answer tells beyond its body.
type head struct{ created, replayed bool }

// answer is what a call brings if all went well. One that is not complete is another program's.
type answer interface{ complete() bool }

func (r *Reservation) complete() bool {
	id, err := drop.ParseReservationID(r.ID)
	return err == nil && string(id.Lot) == r.Lot
}
func (l *Lot) complete() bool     { return l.Lot != "" }
func (p *Page[T]) complete() bool { return p.Items != nil }

// call carries out an exchange, repeats it where that helps, and reads the answer. It also returns what the answer's head tells.
func call[T any, P interface {
	*T
	answer
}](ctx context.Context, c *Client, x exchange) (T, head, error) {
	var none T
	if x.err != nil {
		return none, head{}, x.err
	}
	lost := false // an attempt may have been carried out
	for n := 0; ; n++ {
		var v T // a new one: what an attempt read must not show in the next
		told, fail := c.attempt(ctx, x, P(&v))
		if fail == nil {
			return v, told, nil
		}
		tries := c.retries
		if fail.lost && x.changes {
			lost, tries = true, max(tries, 1)
		}
		if fail.again && n < tries && pause(ctx, n, fail.after) {
			continue
		}
		if lost && !decides(fail.err) {
			return none, head{}, unknown(fail.err)
		}
		return none, head{}, fail.err
	}
}

// decides reports whether an error also tells what became of the same call before: whoever asks again for what already
// is gets it confirmed, so a rule that says no was not met by the call before either.
func decides(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Unauthorized, fault.Forbidden: // the key is asked first
		return false
	}
	exit := fault.ExitOf(err)
	return exit == fault.ExitRefused || exit == fault.ExitNotFound || exit == fault.ExitUsage
}

// unknown says of a call that it may have been carried out.
func unknown(why error) error {
	if fault.Is(why, fault.OutcomeUnknown) {
		return why
	}
	return fault.Wrap(fault.OutcomeUnknown, why, "nobody knows whether the call was carried out")
}

// attempt makes one request and reads its answer.
func (c *Client) attempt(ctx context.Context, x exchange, into answer) (head, *failure) {
	within, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, fail := c.send(ctx, within, x)
	if fail != nil {
		return head{}, fail
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return head{}, c.broken(ctx, true, err)
	}
	told := head{created: resp.StatusCode == http.StatusCreated, replayed: resp.Header.Get("Idempotency-Replayed") == "true"}
	return told, c.judge(resp, body, into)
}

// send makes a request and waits for the head of its answer. outer tells the caller's own end from that of the attempt.
func (c *Client) send(outer, ctx context.Context, x exchange) (*http.Response, *failure) {
	var sent atomic.Bool // bytes of the request may have left
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	req, err := c.request(ctx, x)
	if err != nil {
		return nil, &failure{err: err}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.broken(outer, sent.Load(), err)
	}
	return resp, nil
}

// broken words a call that was cut off before its answer was there.
func (c *Client) broken(ctx context.Context, sent bool, err error) *failure {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the URL is said in fewer words below
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return &failure{err: fault.Wrap(fault.Interrupted, ctx.Err(), "the call to %s was given up", c.URL()), lost: sent}
	case ctx.Err() != nil:
		return &failure{err: fault.Wrap(fault.Unavailable, context.Cause(ctx), "no answer from %s", c.URL()), lost: sent}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{err: fault.New(fault.Unavailable, "no answer from %s within %s", c.URL(), c.timeout), lost: sent, again: true}
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	fail := fault.Wrap(fault.Unavailable, err, "no answer from %s", c.URL())
	switch {
	case untrusted:
		fail = fail.WithHint("call the server by a name that its certificate holds; if it is one of your own making, let this machine trust it (SSL_CERT_FILE=shop.crt, except on macOS and Windows)")
	case !sent:
		fail = fail.WithHint("see that the server runs and that its URL is right")
	}
	return &failure{err: fail, lost: sent, again: !untrusted}
}

// judge reads an answer: nil if it is what was asked for.
func (c *Client) judge(resp *http.Response, body []byte, into answer) *failure {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case len(body) > maxAnswer:
		return c.foreign(resp, "it is larger than "+strconv.Itoa(maxAnswer>>20)+" MiB")
	case resp.StatusCode/100 == 2 && kind == "application/json" && json.Unmarshal(body, into) == nil && into.complete():
		return nil
	case resp.StatusCode >= 400 && kind == "application/problem+json":
		if fail := problem(resp, body); fail != nil {
			return fail
		}
	case resp.StatusCode/100 == 3:
		return c.redirected(resp)
	}
	return c.foreign(resp, "")
}

// redirected says where a server sends its callers. Nobody goes there unasked: the key would go along.
func (c *Client) redirected(resp *http.Response) *failure {
	f := c.foreign(resp, "redirects are not followed")
	if to, err := resp.Location(); err == nil && to.Host != "" {
		f.err = fault.As(f.err).WithHint("if you trust it, name the server it sends to: %s://%s", to.Scheme, to.Host)
	}
	return f
}

// foreign words an answer that is none of dropctl's, such as a proxy's page. Its text is not shown.
func (c *Client) foreign(resp *http.Response, why string) *failure {
	text := "the answer of " + c.URL() + " (HTTP " + strconv.Itoa(resp.StatusCode) + ") is not one of a dropctl server"
	if why != "" {
		text += ": " + why
	}
	err := fault.New(fault.Unavailable, "%s", text).With("status", resp.StatusCode).
		WithHint("check the URL of the server (http or https?), and what stands between it and you")
	return &failure{err: err, again: passing(resp.StatusCode), after: retry.After(resp.Header),
		lost: resp.StatusCode < 300 || resp.StatusCode >= 500} // it may have come from behind the one who did it
}

// passing reports whether a status is one that may be gone a moment later.
func passing(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// problem reads a problem document; nil if it is none.
func problem(resp *http.Response, body []byte) *failure {
	var p Problem
	if json.Unmarshal(body, &p) != nil || p.Code == "" {
		return nil
	}
	p.Status = resp.StatusCode
	err := p.fault()
	after := retry.After(resp.Header)
	if after > 0 {
		err = err.With("retry_after_seconds", after.Seconds())
	}
	return &failure{err: err, lost: err.Code == fault.OutcomeUnknown, again: passing(p.Status) && !lasting(err.Code), after: after}
}

// lasting reports whether a code names trouble that somebody has to end: it is there a moment later too.
func lasting(code fault.Code) bool {
	switch code {
	case fault.LotFrozen, fault.LotNotLoaded, fault.Foreign, fault.NotMigrated, fault.OutOfMemory:
		return true
	}
	return false
}

// fault is the error that a problem document tells of.
func (p Problem) fault() *fault.Error {
	err := &fault.Error{Code: fault.Code(p.Code), Message: p.Detail, Hint: p.Hint, Field: p.Field, Details: p.Facts}
	if err.Message == "" {
		err.Message = p.Title
	}
	if !fault.Known(err.Code) { // of a newer server
		err = err.With("code", p.Code)
		err.Code = nearest(p.Status)
	}
	if p.Remaining != nil {
		err = err.With("remaining", *p.Remaining)
	}
	if p.Instance != "" {
		err = err.With("request", p.Instance)
	}
	return err
}

// nearest is the code that says most of what a status says.
func nearest(status int) fault.Code {
	switch {
	case status == http.StatusBadRequest:
		return fault.Invalid
	case status == http.StatusNotFound:
		return fault.NotFound
	case status == http.StatusTooManyRequests, status > http.StatusInternalServerError:
		return fault.Unavailable
	case status == http.StatusInternalServerError:
		return fault.Failed
	}
	return fault.Conflict
}

// pause waits before attempt n+1: at random up to a bound that doubles each time, so that many callers do not come back
// at once. It returns false, at once, where the wait is longer than the context or anybody's patience.
func pause(ctx context.Context, n int, after time.Duration) bool {
	wait := after + retry.Pause(n+1, firstPause, maxPause)
	if deadline, ok := ctx.Deadline(); after > maxAfter || ok && time.Until(deadline) <= wait {
		return false
	}
	return retry.Sleep(ctx, wait) == nil
}
