package client

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	secret = "drk_abcdefgh_do-not-show-me"
	held   = `{"id":"hat~mfrggzdfmztwq2lknnwg23tpoa~17","lot":"hat","user":"ada","state":"held","qty":2,"seq":17,"remaining":1,"remaining_seconds":299.5}`
	holdID = "hat~mfrggzdfmztwq2lknnwg23tpoa~17"
)

// seen is a request as the server read it.
type seen struct {
	method, path, query, body string
	header                    http.Header
}

// server is a server of which every answer is scripted; the last one is given to all further requests.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	answers []http.HandlerFunc
	seen    []seen
}

func script(t *testing.T, answers ...http.HandlerFunc) *server {
	t.Helper()
	s := &server{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.seen = append(s.seen, seen{r.Method, r.URL.Path, r.URL.RawQuery, string(body), r.Header})
		next := s.answers[0]
		if len(s.answers) > 1 {
			s.answers = s.answers[1:]
		}
		s.mu.Unlock()
		next(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// requests returns what came so far.
func (s *server) requests() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// client calls the server, with a key that no error may show.
func (s *server) client(t *testing.T, o Options) *Client {
	t.Helper()
	o.URL, o.Key = s.URL, secret
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func says(status int, kind, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func ok(body string, header ...string) http.HandlerFunc {
	return says(200, "application/json", body, header...)
}

func refuses(status int, code fault.Code, header ...string) http.HandlerFunc {
	return says(status, "application/problem+json", fmt.Sprintf(`{"code":%q,"detail":"no","status":%d}`, code, status), header...)
}

// loses reads the request and closes the connection.
func loses(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// cuts begins an answer and closes the connection.
func cuts(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, `{"id":"hat~`)
	_ = http.NewResponseController(w).Flush()
	loses(w, r)
}

// hangs answers when the caller has gone.
func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func reserve(c *Client) error {
	_, err := c.Reserve(context.Background(), "hat", "order-1", ReserveBody{User: "ada", Qty: 2})
	return err
}

func look(c *Client) error {
	_, err := c.Reservation(context.Background(), holdID)
	return err
}

// mustBe checks an error's code and that it shows no key.
func mustBe(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Errorf("got %v (%s), want %s", err, fault.CodeOf(err), code)
	}
	f := fault.As(err)
	if f == nil {
		return
	}
	if text := fmt.Sprintf("%v %#v %s %v", f, f, f.Hint, f.Details); strings.Contains(text, "do-not-show-me") {
		t.Errorf("the error shows the key: %s", text)
	}
}

func TestACallSendsWhatTheAPITakes(t *testing.T) {
	s := script(t, ok(held))
	c := s.client(t, Options{UserAgent: "shop/1"})
	ctx := t.Context()
	five, one := int64(5), int64(1)
	for _, do := range []struct {
		call func() error
		want string
	}{
		{func() error { return reserve(c) }, `POST /v1/lots/hat/reservations {"user":"ada","qty":2}`},
		{func() error { return look(c) }, `GET /v1/reservations/` + holdID + ` `},
		{func() error { _, err := c.Confirm(ctx, holdID, ConfirmBody{Payment: "p", Ack: "stock"}); return err },
			`POST /v1/reservations/` + holdID + `/confirm {"payment":"p","ack":"stock"}`},
		{func() error { _, err := c.Release(ctx, holdID, ReleaseBody{Keep: 1}); return err }, `POST /v1/reservations/` + holdID + `/release {"keep":1}`},
		{func() error { _, err := c.Extend(ctx, holdID, ExtendBody{By: 1.5}); return err }, `POST /v1/reservations/` + holdID + `/extend {"by_seconds":1.5}`},
		{func() error { _, err := c.Refund(ctx, holdID, RefundBody{Total: &one}); return err }, `POST /v1/reservations/` + holdID + `/refund {"total":1}`},
		{func() error { _, err := c.Lot(ctx, "shop:hat"); return err }, `GET /v1/lots/shop:hat `},
		{func() error { _, _, err := c.PutLot(ctx, "hat", LotBody{Stock: &five}); return err }, `PUT /v1/lots/hat {"stock":5}`},
		{func() error { _, _, err := c.OpenLot(ctx, "hat", StatusBody{}); return err }, `POST /v1/lots/hat/open {}`},
		{func() error { _, _, err := c.PauseLot(ctx, "hat", StatusBody{Reason: "r"}); return err }, `POST /v1/lots/hat/pause {"reason":"r"}`},
		{func() error { _, _, err := c.CloseLot(ctx, "hat", StatusBody{}); return err }, `POST /v1/lots/hat/close {}`},
		{func() error { _, _, err := c.AdjustLot(ctx, "hat", AdjustBody{By: &five, Expect: 10}); return err }, `POST /v1/lots/hat/adjust {"by":5,"expect":10}`},
	} {
		if err := do.call(); err != nil {
			t.Errorf("%s: %v", do.want, err)
		}
		all := s.requests()
		got := all[len(all)-1]
		if line := got.method + " " + got.path + " " + got.body; line != do.want {
			t.Errorf("got %s\nwant %s", line, do.want)
		}
		if got.header.Get("Authorization") != "Bearer "+secret || got.header.Get("User-Agent") != "shop/1" {
			t.Errorf("%s: headers %v", do.want, got.header)
		}
		if kind := got.header.Get("Content-Type"); (kind == "application/json") != (got.method != "GET") {
			t.Errorf("%s: content type %q", do.want, kind)
		}
	}
	if key := s.requests()[0].header.Get("Idempotency-Key"); key != "order-1" {
		t.Errorf("key %q", key)
	}
}

func TestAnAnswerIsReadWhole(t *testing.T) {
	s := script(t, ok(`{"id":"`+holdID+`","lot":"hat","user":"ada","state":"confirmed","qty":2,"deadline":"2026-12-01T10:00:00Z","remaining":null,"replayed":true,
		"ledger":"pending","ledger_lag_seconds":3.5,"new_field":{"a":1}}`), ok(held), says(201, "application/json", `{"lot":"hat"}`), ok(`{"lot":"hat","status":"open"}`, "Idempotency-Replayed", "true"))
	c := s.client(t, Options{})
	r, err := c.Confirm(t.Context(), holdID, ConfirmBody{})
	if err != nil || !r.Replayed || r.Ledger != "pending" || *r.LedgerLag != 3.5 || r.Remaining != nil || r.Deadline.Year() != 2026 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := c.Reservation(t.Context(), holdID); err != nil || *r.Remaining != 1 || *r.Left != 299.5 || r.Ledger != "" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, created, err := c.PutLot(t.Context(), "hat", LotBody{}); err != nil || !created {
		t.Errorf("%v, %v", created, err)
	}
	if l, changed, err := c.PauseLot(t.Context(), "hat", StatusBody{}); err != nil || changed || l.Status != "open" {
		t.Errorf("%+v, %v, %v", l, changed, err)
	}
}

func TestALostAnswerIsAskedForAgain(t *testing.T) {
	for name, lose := range map[string]http.HandlerFunc{"lost": loses, "cut": cuts, "a proxy's 502": says(502, "text/html", "<html>"), "a proxy's 200": says(200, "text/html", "<html>")} {
		s := script(t, lose, ok(held))
		err := reserve(s.client(t, Options{}))
		if name == "a proxy's 200" { // would be the same again
			mustBe(t, err, fault.OutcomeUnknown)
			continue
		}
		got := s.requests()
		if err != nil || len(got) != 2 || got[0].body != got[1].body || got[1].header.Get("Idempotency-Key") != "order-1" {
			t.Errorf("%s: %v, %d requests", name, err, len(got))
		}
	}
}

func TestAnAnswerLostForGoodIsAnUnknownOutcome(t *testing.T) {
	s := script(t, loses)
	mustBe(t, reserve(s.client(t, Options{Retries: 2})), fault.OutcomeUnknown)
	if n := len(s.requests()); n != 3 {
		t.Errorf("%d requests", n)
	}
	s = script(t, loses)
	mustBe(t, reserve(s.client(t, Options{Retries: -1})), fault.OutcomeUnknown)
	if n := len(s.requests()); n != 2 {
		t.Errorf("%d requests without retries", n)
	}
	for _, odd := range []string{`{"id":"hat~\u001b[31m~1","lot":"hat"}`, `{"id":"` + holdID + `","lot":"cap"}`} {
		mustBe(t, reserve(script(t, says(201, "application/json", odd)).client(t, Options{Retries: -1})), fault.OutcomeUnknown)
	}
	s = script(t, loses)
	mustBe(t, look(s.client(t, Options{Retries: -1})), fault.Unavailable) // nothing was to be changed
	if n := len(s.requests()); n != 1 {
		t.Errorf("%d requests of a look", n)
	}
}

// What a second answer tells of a first one that was lost.
func TestTheAnswerAfterALostOne(t *testing.T) {
	for _, c := range []struct {
		then http.HandlerFunc
		want fault.Code
	}{
		{refuses(409, fault.SoldOut), fault.SoldOut},
		{refuses(404, fault.NotFound), fault.NotFound},
		{refuses(401, fault.Unauthorized), fault.OutcomeUnknown}, // the key is gone; the hold may be there
		{refuses(429, fault.RateLimited), fault.OutcomeUnknown},
		{refuses(503, fault.LotFrozen), fault.OutcomeUnknown},
		{refuses(500, fault.Failed), fault.OutcomeUnknown},
	} {
		mustBe(t, reserve(script(t, loses, c.then).client(t, Options{Retries: -1})), c.want)
	}
}

func TestWhatMayPassIsRepeated(t *testing.T) {
	for name, first := range map[string]http.HandlerFunc{
		"overloaded": refuses(503, fault.Overloaded), "limited": refuses(429, fault.RateLimited), "backpressure": refuses(503, fault.Backpressure),
		"a proxy": says(503, "text/plain", "no upstream"),
	} {
		s := script(t, first, first, ok(held))
		if err := reserve(s.client(t, Options{})); err != nil || len(s.requests()) != 3 {
			t.Errorf("%s: %v, %d requests", name, err, len(s.requests()))
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"sold out": refuses(409, fault.SoldOut), "frozen": refuses(503, fault.LotFrozen), "not loaded": refuses(503, fault.LotNotLoaded),
		"failed": refuses(500, fault.Failed), "another program": says(404, "text/html", "<html>"),
	} {
		s := script(t, answer)
		if err := reserve(s.client(t, Options{})); err == nil || len(s.requests()) != 1 {
			t.Errorf("%s: %v, %d requests", name, err, len(s.requests()))
		}
	}
}

func TestRetryAfterIsHeeded(t *testing.T) {
	s := script(t, refuses(503, fault.Overloaded, "Retry-After", "1"), ok(held))
	began := time.Now()
	if err := reserve(s.client(t, Options{})); err != nil || time.Since(began) < time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}

	// Nobody waits for what his own time or patience does not reach.
	s = script(t, refuses(503, fault.Overloaded, "Retry-After", "20"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began = time.Now()
	_, err := s.client(t, Options{}).Reserve(ctx, "hat", "k", ReserveBody{User: "ada"})
	mustBe(t, err, fault.Overloaded)
	if time.Since(began) > 5*time.Second || fault.As(err).Details["retry_after_seconds"] != 20.0 {
		t.Errorf("after %s: %v", time.Since(began), fault.As(err).Details)
	}
	s = script(t, refuses(429, fault.RateLimited, "Retry-After", "3600"))
	mustBe(t, reserve(s.client(t, Options{})), fault.RateLimited)
}

func TestASilentServerIsGivenUp(t *testing.T) {
	s := script(t, hangs)
	began := time.Now()
	mustBe(t, reserve(s.client(t, Options{Retries: -1, Timeout: 100 * time.Millisecond})), fault.OutcomeUnknown)
	mustBe(t, look(s.client(t, Options{Retries: -1, Timeout: 100 * time.Millisecond})), fault.Unavailable)
	if time.Since(began) > 5*time.Second || len(s.requests()) != 3 {
		t.Errorf("%d requests, %s", len(s.requests()), time.Since(began))
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	s := script(t, hangs)
	c := s.client(t, Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for len(s.requests()) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel(errors.New("no more"))
	}()
	_, err := c.Reserve(ctx, "hat", "k", ReserveBody{User: "ada"})
	mustBe(t, err, fault.OutcomeUnknown) // it was on its way
	_, err = c.Reservation(ctx, holdID)
	mustBe(t, err, fault.Interrupted)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not wrap the context's error", err)
	}
	short, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("no answer within --timeout"))
	defer stop()
	_, err = c.Reservation(short, holdID)
	mustBe(t, err, fault.Unavailable)
	if !strings.Contains(err.Error(), "within --timeout") {
		t.Errorf("%v does not name the caller's reason", err)
	}
}

func TestAServerThatIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	_ = l.Close()
	c, err := New(Options{URL: url, Key: secret})
	if err != nil {
		t.Fatal(err)
	}
	mustBe(t, reserve(c), fault.Unavailable) // nothing was sent, so nothing is unknown
	if err := reserve(c); !strings.Contains(err.Error(), url) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}

func TestAnUntrustedCertificateIsNotTriedAgain(t *testing.T) {
	s := httptest.NewUnstartedServer(ok(held))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it is going to complain
	s.StartTLS()
	defer s.Close()
	c, err := New(Options{URL: s.URL, Key: secret})
	if err != nil {
		t.Fatal(err)
	}
	err = reserve(c)
	mustBe(t, err, fault.Unavailable)
	if !strings.Contains(fault.HintOf(err), "certificate") {
		t.Errorf("the hint is %q", fault.HintOf(err))
	}
	trusting, err := New(Options{URL: s.URL, HTTPClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	if err := reserve(trusting); err != nil {
		t.Error(err)
	}
}

func TestAProblemBecomesTheErrorOfTheTable(t *testing.T) {
	s := script(t, says(409, "application/problem+json; charset=utf-8", `{"type":"urn:dropctl:error:hold_exists","title":"Hold exists","status":409,
		"detail":"the user already holds 2 of lot hat","instance":"req-1","code":"hold_exists","hint":"confirm or release it first","field":"user","remaining":0,
		"facts":{"reservation":"`+holdID+`","remaining_seconds":12.5}}`))
	err := reserve(s.client(t, Options{}))
	mustBe(t, err, fault.HoldExists)
	f := fault.As(err)
	if f.Message != "the user already holds 2 of lot hat" || f.Hint != "confirm or release it first" || f.Field != "user" || fault.ExitOf(f) != fault.ExitRefused {
		t.Errorf("%#v", f)
	}
	if d := f.Details; d["reservation"] != holdID || d["remaining"] != int64(0) || d["request"] != "req-1" || d["remaining_seconds"] != 12.5 {
		t.Errorf("%v", d)
	}

	// A newer server may know codes that this client does not: the status still tells what kind of answer it is.
	for status, want := range map[int]fault.Code{400: fault.Invalid, 404: fault.NotFound, 409: fault.Conflict, 403: fault.Conflict, 429: fault.Unavailable, 500: fault.Failed, 503: fault.Unavailable} {
		err := reserve(script(t, refuses(status, "brand_new")).client(t, Options{Retries: -1}))
		mustBe(t, err, want)
		if fault.As(err).Details["code"] != "brand_new" {
			t.Errorf("%d: %v", status, fault.As(err).Details)
		}
	}
}

func TestAnswersOfSomebodyElse(t *testing.T) {
	huge := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"`+strings.Repeat("x", maxAnswer)+`","lot":"hat"}`)
	}
	bomb := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		for range 16 {
			_, _ = z.Write(make([]byte, 1<<20))
		}
		_ = z.Close()
	}
	for name, answer := range map[string]http.HandlerFunc{
		"a page": says(404, "text/html", "<html>"+secret), "a login": says(401, "text/html", "<html>"), "no JSON": ok("hello"), "JSON of another kind": ok(`{"hello":1}`),
		"a list": ok(`[1,2]`), "an empty answer": ok(""), "null": ok("null"), "half a problem": says(503, "application/problem+json", `{"code":`),
		"a problem without a code": says(400, "application/problem+json", `{"title":"Bad Request"}`), "huge": huge, "a bomb": bomb,
	} {
		t.Run(name, func(t *testing.T) {
			err := look(script(t, answer).client(t, Options{Retries: -1}))
			mustBe(t, err, fault.Unavailable)
			if err == nil || len(err.Error()) > 300 {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAnAnswerWithoutAnEndIsNotReadForEver(t *testing.T) {
	sent := make(chan int, 1)
	s := script(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		n, piece := 0, []byte(strings.Repeat(" ", 1<<16))
		for n < 64<<20 {
			more, err := w.Write(piece)
			if n += more; err != nil {
				break
			}
		}
		sent <- n
	})
	mustBe(t, look(s.client(t, Options{Retries: -1})), fault.Unavailable)
	if n := <-sent; n > 4*maxAnswer { // what is on its way fills buffers
		t.Errorf("%d MiB were taken", n>>20)
	}
}

func TestTheKeyGoesToNoOtherServer(t *testing.T) {
	thief := script(t, ok(held))
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := script(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL+"/v1/x?token=1", status) })
		err := reserve(s.client(t, Options{}))
		mustBe(t, err, fault.Unavailable)
		if hint := fault.HintOf(err); !strings.Contains(hint, thief.URL) || strings.Contains(hint, "token") || len(s.requests()) != 1 {
			t.Errorf("%d: %d requests, %s", status, len(s.requests()), hint)
		}
	}
	follows := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return nil }}
	s := script(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
	})
	mustBe(t, reserve(s.client(t, Options{HTTPClient: follows})), fault.Unavailable)
	if n := len(thief.requests()); n > 0 {
		t.Errorf("%d requests reached the other server", n)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, url := range []string{"", "nowhere", "127.0.0.1:8080", "ftp://host", "http://", "http://:80", "http://u:do-not-show-me@host", "http://host?key=do-not-show-me", "http://host#x", "https://host/v1", "https://host/shop/v1/", "http://ho st/do-not-show-me"} {
		_, err := New(Options{URL: url})
		mustBe(t, err, fault.Usage)
		if url != "" && strings.Contains(err.Error(), url) {
			t.Errorf("the error shows the URL: %v", err)
		}
	}
	for _, key := range []string{"two words", "drk_\n_do-not-show-me", "drk_é", "a\x00b"} {
		_, err := New(Options{URL: "http://host", Key: key})
		mustBe(t, err, fault.Usage)
	}
}

func TestAPathInTheURLIsKept(t *testing.T) {
	s := script(t, ok(held))
	c, err := New(Options{URL: s.URL + "/shop/"})
	if err != nil {
		t.Fatal(err)
	}
	if err := look(c); err != nil {
		t.Fatal(err)
	}
	if got := s.requests()[0]; got.path != "/shop/v1/reservations/"+holdID || got.header.Get("Authorization") != "" {
		t.Errorf("%+v", got)
	}
}

func TestWhatCannotBeAskedIsNotSent(t *testing.T) {
	s := script(t, ok(held))
	c := s.client(t, Options{})
	ctx := t.Context()
	for _, lot := range []string{"", "..", "a/b", "a/../b", "a%2Fb", "a?b", "hat\n"} {
		_, err := c.Reserve(ctx, lot, "k", ReserveBody{User: "ada"})
		mustBe(t, err, fault.Invalid)
		_, _, err = c.OpenLot(ctx, lot, StatusBody{})
		mustBe(t, err, fault.Invalid)
		_, err = c.Lot(ctx, lot)
		mustBe(t, err, fault.Invalid)
		for _, err := range c.Watch(ctx, lot) {
			mustBe(t, err, fault.Invalid)
		}
	}
	for _, key := range []string{"", " k", "k ", "a\nb", strings.Repeat("k", 300)} {
		_, err := c.Reserve(ctx, "hat", key, ReserveBody{User: "ada"})
		mustBe(t, err, fault.Invalid)
	}
	_, err := c.Confirm(ctx, "../lots", ConfirmBody{})
	mustBe(t, err, fault.Invalid)
	if n := len(s.requests()); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
	if _, err := c.Reserve(ctx, "hat", "größe 42 🎩", ReserveBody{User: "ada"}); err != nil || s.requests()[0].header.Get("Idempotency-Key") != "größe 42 🎩" {
		t.Errorf("%v, %v", err, s.requests())
	}
}

func TestListsGoFromPageToPage(t *testing.T) {
	pages := func(w http.ResponseWriter, r *http.Request) {
		next := map[string]string{"": "b", "b": "c", "c": ""}[r.URL.Query().Get("cursor")]
		ok(fmt.Sprintf(`{"items":[{"lot":"%s1","id":"x"},{"lot":"%s2","id":"x"}],"next":%q}`, next, next, next))(w, r)
	}
	s := script(t, pages)
	c := s.client(t, Options{})
	var lots []string
	for l, err := range c.AllLots(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		lots = append(lots, l.Lot)
	}
	if got := strings.Join(lots, " "); got != "b1 b2 c1 c2 1 2" {
		t.Errorf("got %s", got)
	}
	for _, err := range c.AllReservations(t.Context(), Filter{Lot: "hat", User: "ada & bob", States: []string{"held", "confirmed"}, Limit: 7}) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	all := s.requests()
	if len(all) != 4 || all[3].query != "limit=7&lot=hat&state=held%2Cconfirmed&user=ada+%26+bob" {
		t.Errorf("%d requests, the last asks %s", len(all), all[len(all)-1].query)
	}

	// A server that names the same page again, or none, does not hold anybody for ever.
	s = script(t, ok(`{"items":[],"next":"b"}`))
	for l, err := range s.client(t, Options{}).AllLots(t.Context()) {
		t.Errorf("an empty page has %+v, %v", l, err)
	}
	if n := len(s.requests()); n != 2 {
		t.Errorf("%d requests", n)
	}
	s = script(t, ok(`{"items":[{"lot":"a"}],"next":"b"}`), refuses(403, fault.Forbidden))
	var failed error
	for _, err := range s.client(t, Options{}).AllLots(t.Context()) {
		failed = err
	}
	mustBe(t, failed, fault.Forbidden)
}

func TestManyCallsShareAClient(t *testing.T) {
	s := script(t, func(w http.ResponseWriter, r *http.Request) {
		ok(strings.Replace(held, `"user":"ada"`, `"user":"`+r.Header.Get("Idempotency-Key")+`"`, 1))(w, r)
	})
	c := s.client(t, Options{})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			key := fmt.Sprint("k", i)
			if r, err := c.Reserve(t.Context(), "hat", key, ReserveBody{User: "ada"}); err != nil || r.User != key {
				t.Errorf("%s: %+v, %v", key, r, err)
			}
		})
	}
	wg.Wait()
}

func TestABodyThatJSONCannotSayIsNotSent(t *testing.T) {
	s := script(t, ok(held))
	_, err := s.client(t, Options{}).Extend(t.Context(), holdID, ExtendBody{By: nan()})
	mustBe(t, err, fault.Invalid)
	if _, ok := errors.AsType[*json.UnsupportedValueError](err); !ok || len(s.requests()) > 0 {
		t.Errorf("%v, %d requests", err, len(s.requests()))
	}
}

func nan() float64 { var zero float64; return zero / zero }
