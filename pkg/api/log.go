package api

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// answer is a ResponseWriter that remembers what was answered.
type answer struct {
	http.ResponseWriter
	status int // 0: nothing yet
	bytes  int64
}

func (w *answer) WriteHeader(status int) {
	if w.status == 0 || w.status < 200 { // after an interim answer comes another
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *answer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *answer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Headers of every answer: no answer is a page, and none may be kept, since the next moment it is another.
var safeHeaders = map[string][]string{
	"Cache-Control":           {"no-store"},
	"Content-Security-Policy": {"default-src 'none'; frame-ancestors 'none'"},
	"Referrer-Policy":         {"no-referrer"},
	"X-Content-Type-Options":  {"nosniff"},
}

// observed gives every request its call, and logs and counts what became of it. A panic becomes a 500 for its own
// request.
func (a *API) observed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		c := &call{id: requestID(r.Header.Get("X-Request-Id")), traceparent: traceparent(r.Header.Get("Traceparent"))}
		out := &answer{ResponseWriter: w}
		header := w.Header()
		for name, value := range safeHeaders {
			header[name] = value
		}
		if r.TLS != nil {
			header["Strict-Transport-Security"] = []string{"max-age=31536000"}
		}
		header["X-Request-Id"] = []string{c.id}
		ctx, cancel := c.within(r)
		defer cancel()
		r = r.WithContext(ctx) // a copy: with another body than its own in r, net/http answers no refusal before the rest of it has come
		r.Body = http.MaxBytesReader(w, r.Body, a.longest(r))
		a.metrics.InFlight.Inc()
		defer func() {
			a.metrics.InFlight.Dec()
			if p := recover(); p != nil {
				a.survive(out, r, p)
			}
			a.account(r, c, out, time.Since(began))
		}()
		next.ServeHTTP(out, r)
	})
}

// survive answers for a handler that panicked.
func (a *API) survive(w *answer, r *http.Request, p any) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p) //nolint:forbidigo // net/http's own way to cut a connection
	}
	c := callOf(r.Context())
	a.opt.Log.Error("a request met a mistake in dropctl", "request", c.id, "panic", p, "stack", string(debug.Stack()))
	if w.status == 0 {
		a.fail(w, r, fault.New(fault.Failed, "dropctl met a mistake of its own"))
	}
	c.outcome = fault.Failed
}

// account writes the access log and the metrics of a request.
func (a *API) account(r *http.Request, c *call, w *answer, took time.Duration) {
	route := r.Pattern
	if route == "" {
		route = "none"
	}
	outcome := "ok"
	if c.outcome != "" {
		outcome = string(c.outcome)
	}
	a.metrics.Requests.WithLabelValues(route, outcome).Inc()
	a.metrics.Seconds.WithLabelValues(route, classOf(c.outcome)).Observe(took.Seconds())
	if w.status == 0 { // nothing was written: that is net/http's answer
		w.status = http.StatusOK
	}
	level := slog.LevelInfo
	if w.status >= 500 {
		level = slog.LevelWarn
	}
	if !a.opt.Log.Enabled(context.Background(), level) {
		return
	}
	// By way of the handler: a logger would look for the place in the source that this line comes from.
	line := slog.NewRecord(time.Now(), level, "request", 0)
	line.AddAttrs(slog.String("method", r.Method), slog.String("path", r.URL.EscapedPath()), slog.Int("status", w.status), slog.String("outcome", outcome),
		slog.Float64("seconds", took.Seconds()), slog.Int64("bytes", w.bytes), slog.String("request", c.id), slog.String("address", c.address.String()))
	for _, more := range [...]struct{ name, value string }{{"key", c.key.ID}, {"lot", string(c.lot)}, {"traceparent", c.traceparent}} {
		if more.value != "" {
			line.AddAttrs(slog.String(more.name, more.value))
		}
	}
	if c.replayed {
		line.AddAttrs(slog.Bool("replayed", true))
	}
	_ = a.opt.Log.Handler().Handle(context.Background(), line) // a log that cannot be written must not stop a sale
}

// classOf tells answers apart whose latencies mean different things.
func classOf(code fault.Code) string {
	switch {
	case code == "":
		return "accept"
	case fault.Lookup(code).HTTP < 500:
		return "refuse"
	}
	return "error"
}

// requestID returns the caller's id of a request if it is a plain word, else a new one.
func requestID(asked string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	if asked == "" || len(asked) > 64 || strings.ContainsFunc(asked, func(r rune) bool { return !plain(r) }) {
		return rand.Text()
	}
	return asked
}

// traceparent returns a W3C trace context if it has its shape (version-trace-parent-flags in hexadecimal digits), else "".
func traceparent(text string) string {
	if len(text) != 55 {
		return ""
	}
	for i, r := range text {
		dash := i == 2 || i == 35 || i == 52
		if dash != (r == '-') || !dash && !strings.ContainsRune("0123456789abcdef", r) {
			return ""
		}
	}
	return text
}
