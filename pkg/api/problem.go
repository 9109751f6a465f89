package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Content types as header values: a shared slice spares an allocation for each answer.
var (
	typeJSON    = []string{"application/json"}
	typeProblem = []string{"application/problem+json"}
)

// fail answers a request with what went wrong, as RFC 9457 writes it. What may name a host or comes from a driver goes
// to the log only.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r.Context())
	f := fault.As(err)
	entry := fault.Lookup(f.Code)
	if entry.HTTP == 0 { // a code of the command line
		f = &fault.Error{Code: fault.Failed, Err: err}
		entry = fault.Lookup(fault.Failed)
	}
	c.outcome = entry.Code
	if entry.HTTP >= 500 {
		a.tell(c, entry.Code, f)
	}
	p := problemOf(f, entry)
	p.Instance = c.id
	header := w.Header()
	if entry.HTTP == http.StatusServiceUnavailable || entry.HTTP == http.StatusTooManyRequests {
		after := retryAfter(f)
		header["Retry-After"] = []string{strconv.FormatInt(after, 10)}
		if p.Facts == nil {
			p.Facts = map[string]any{}
		}
		p.Facts["retry_after_seconds"] = after
	}
	writeJSON(w, entry.HTTP, typeProblem, func(b []byte) []byte { return appendProblem(b, p) })
}

// tell logs the whole of what callers are told only the kind of: each mistake of our own, and of trouble with the stores,
// which thousands meet at once, one of each kind a second.
func (a *API) tell(c *call, code fault.Code, f *fault.Error) {
	log := func() {
		a.opt.Log.LogAttrs(context.Background(), slog.LevelError, "a request could not be answered", slog.String("request", c.id),
			slog.String("code", string(code)), slog.String("error", f.Error()))
	}
	if code == fault.Failed {
		log()
		return
	}
	often, _ := a.told.LoadOrStore(code, &rate.Sometimes{Interval: time.Second})
	often.(*rate.Sometimes).Do(log)
}

// opaque are the codes whose own text may name a host or carry a driver's words. Callers get the table's text instead.
var opaque = map[fault.Code]bool{
	fault.Failed: true, fault.InvalidConfig: true, fault.Unavailable: true, fault.OutcomeUnknown: true, fault.Foreign: true,
	fault.NotMigrated: true, fault.OutOfMemory: true,
}

// names are fields that the domain calls otherwise than the API.
var names = map[string]string{"key": "Idempotency-Key", "hold": "hold_seconds", "max_hold": "max_hold_seconds"}

// problemOf words an error for callers. The cause inside it is not for them.
func problemOf(f *fault.Error, entry fault.Entry) client.Problem {
	p := client.Problem{Type: "urn:dropctl:error:" + string(entry.Code), Title: entry.Title, Status: entry.HTTP, Code: string(entry.Code),
		Detail: f.Message, Hint: entry.Hint, Field: cmp.Or(names[f.Field], f.Field)}
	if opaque[entry.Code] {
		p.Detail = entry.Meaning
	} else if f.Hint != "" {
		p.Hint = f.Hint
	}
	for name, value := range f.Details {
		if name != "remaining" {
			if p.Facts == nil {
				p.Facts = make(map[string]any, len(f.Details))
			}
			p.Facts[name] = value
			continue
		}
		if left, ok := value.(int64); ok {
			p.Remaining = &left
		}
	}
	return p
}

// retryAfter is when to ask again, in whole seconds: at random around the time that the error names, or a second, so that
// those who were refused together do not come back together. Of a rate limit it is exact, as everybody has his own.
func retryAfter(f *fault.Error) int64 {
	wait := 1.0
	switch n := f.Details["retry_after_seconds"].(type) {
	case float64:
		wait = n
	case int64:
		wait = float64(n)
	case int:
		wait = float64(n)
	}
	if f.Code != fault.RateLimited {
		wait += rand.Float64() * max(wait, 2)
	}
	return int64(math.Ceil(min(max(wait, 1), 3600)))
}

// writeJSON answers with what write appends to a buffer.
func writeJSON(w http.ResponseWriter, status int, kind []string, write func([]byte) []byte) {
	buf := buffers.Get().(*bytes.Buffer)
	defer putBack(buf)
	buf.Grow(1024)
	_, _ = buf.Write(write(buf.AvailableBuffer()))
	w.Header()["Content-Type"] = kind
	w.WriteHeader(status)
	_, _ = w.Write(buf.Bytes()) // if this fails the caller is gone, and the connection with it
}

// answerJSON answers with a value that is not worth writing by hand.
func answerJSON(w http.ResponseWriter, status int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fault.Wrap(fault.Failed, err, "an answer could not be written")
	}
	w.Header()["Content-Type"] = typeJSON
	w.WriteHeader(status)
	_, _ = w.Write(body)
	return nil
}

// appendProblem writes a problem as encoding/json does, but for the order of its facts, several times faster: most of
// the answers of a drop are refusals.
func appendProblem(b []byte, p client.Problem) []byte {
	b = appendField(append(b, '{'), "type", p.Type)
	b = appendField(append(b, ','), "title", p.Title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(p.Status), 10)
	b = appendField(append(b, ','), "code", p.Code)
	for _, f := range [...]struct{ name, value string }{{"detail", p.Detail}, {"instance", p.Instance}, {"hint", p.Hint}, {"field", p.Field}} {
		if f.value != "" {
			b = appendField(append(b, ','), f.name, f.value)
		}
	}
	if p.Remaining != nil {
		b = append(b, `,"remaining":`...)
		b = strconv.AppendInt(b, *p.Remaining, 10)
	}
	if len(p.Facts) > 0 {
		b = appendFacts(append(b, `,"facts":`...), p.Facts)
	}
	return append(b, '}')
}

func appendFacts(b []byte, facts map[string]any) []byte {
	separator := byte('{')
	for _, name := range slices.Sorted(maps.Keys(facts)) {
		b = appendText(append(b, separator), name)
		b = append(b, ':')
		separator = ','
		switch v := facts[name].(type) {
		case string:
			b = appendText(b, v)
		case int64:
			b = strconv.AppendInt(b, v, 10)
		default:
			text, err := json.Marshal(v)
			if err != nil {
				text = []byte("null")
			}
			b = append(b, text...)
		}
	}
	return append(b, '}')
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, '"')
	b = append(b, name...)
	return appendText(append(b, `":`...), value)
}

// appendText writes a text as JSON.
func appendText(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(append(b, s[start:i]...), `\ufffd`...)
				start = i + 1
			}
			i += size
			continue
		}
		if c < ' ' || c == '"' || c == '\\' {
			b = append(b, s[start:i]...)
			if c < ' ' {
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			} else {
				b = append(b, '\\', c)
			}
			start = i + 1
		}
		i++
	}
	return append(append(b, s[start:]...), '"')
}
