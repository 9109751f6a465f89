package api_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// watcher reads a stream.
type watcher struct {
	id     string
	body   *bufio.Reader
	hangUp context.CancelFunc
}

func (s *site) watch(t *testing.T, lot, lastID string, more ...headers) *watcher {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", s.url+"/v1/lots/"+lot+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	for _, h := range more {
		for name, value := range h {
			req.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		t.Fatalf("status %d, %s", resp.StatusCode, kind)
	}
	return &watcher{body: bufio.NewReader(resp.Body), hangUp: cancel}
}

// next returns what comes next: an event, or a comment, which has no lot.
func (w *watcher) next(t *testing.T) (v client.Availability, comment string) {
	t.Helper()
	data := ""
	for {
		line, err := w.body.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			w.id = value
		case "data":
			data = value
		case "event":
			if value != "availability" {
				t.Fatalf("an event %q", value)
			}
		case "":
			if value != "" {
				return v, value
			}
			if data == "" {
				continue // behind a comment or the retry
			}
			if err := json.Unmarshal([]byte(data), &v); err != nil {
				t.Fatal(err)
			}
			return v, ""
		}
	}
}

// event returns the next event.
func (w *watcher) event(t *testing.T) client.Availability {
	t.Helper()
	for {
		if v, comment := w.next(t); comment == "" {
			return v
		}
	}
}

func TestAStreamTellsChangesTogetherAndResumes(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.options.Heartbeat = true, 50*time.Millisecond })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 100})
	w := s.watch(t, "truffle", "")
	if v := w.event(t); v.Available != 100 || !v.Selling || v.Status != "open" || v.Capacity != 100 {
		t.Fatalf("at first %+v", v)
	}
	first := w.id
	var crowd sync.WaitGroup
	for i := range 60 {
		crowd.Go(func() {
			_, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "truffle", User: fmt.Sprint("user-", i), Key: "k", Qty: 1})
			if err != nil {
				t.Error(err)
			}
		})
	}
	crowd.Wait()
	events := 0
	for v := (client.Availability{Available: 100}); v.Available != 40; events++ {
		if v = w.event(t); v.Held != 100-v.Available {
			t.Fatalf("told %+v", v)
		}
	}
	if events > 15 {
		t.Errorf("60 changes were told one by one: %d events", events)
	}
	known := s.watch(t, "truffle", w.id)
	if v, comment := known.next(t); comment == "" {
		t.Errorf("what was known is told again: %+v", v)
	}
	if v := s.watch(t, "truffle", first).event(t); v.Available != 40 {
		t.Errorf("whoever missed it is told %+v", v)
	}
	if err := s.pause(t, "truffle"); err != nil {
		t.Fatal(err)
	}
	for _, each := range []*watcher{w, known} {
		if v := each.event(t); v.Selling || v.Status != "paused" {
			t.Errorf("after the pause %+v", v)
		}
	}
}

func (s *site) pause(t *testing.T, lot drop.LotID) error {
	paused := drop.Paused
	_, _, err := s.stock.Change(t.Context(), drop.ChangeRequest{Lot: lot, Status: &paused})
	return err
}

// Units come back when a hold runs out, though nothing has happened in the lot.
func TestAStreamTellsOfHoldsThatRanOut(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 3})
	if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "truffle", User: "ada", Key: "k", Qty: 2, Hold: time.Second}); err != nil {
		t.Fatal(err)
	}
	w := s.watch(t, "truffle", "")
	if v := w.event(t); v.Available != 1 {
		t.Fatalf("at first %+v", v)
	}
	id := w.id
	if v := w.event(t); v.Available != 3 || v.Held != 0 || w.id == id {
		t.Errorf("afterwards %+v, id %s after %s", v, w.id, id)
	}
}

// halfSilent is an engine one of whose servers does not answer.
type halfSilent struct {
	*stock.Stock
	silent drop.LotID
}

func (s halfSilent) LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error) {
	if at := slices.Index(lots, s.silent); at >= 0 {
		states, _ := s.Stock.LotStates(ctx, slices.Delete(slices.Clone(lots), at, at+1))
		return states, fault.New(fault.Unavailable, "its server does not answer")
	}
	return s.Stock.LotStates(ctx, lots)
}

func TestASilentServerKeepsNoNewsOfOthersBack(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 3})
	s.load(t, drop.Definition{Lot: "hat", Stock: 3})
	server := httptest.NewServer(api.New(api.Options{Stock: halfSilent{s.stock, "hat"}, Ledger: s.shop, Lots: s.shop, Access: s.access}).Handler())
	defer server.Close()
	s.url = server.URL
	quiet, w := s.watch(t, "hat", ""), s.watch(t, "truffle", "")
	quiet.event(t)
	w.event(t)
	if err := s.pause(t, "truffle"); err != nil {
		t.Fatal(err)
	}
	if v := w.event(t); v.Status != "paused" {
		t.Errorf("told %+v", v)
	}
	quiet.hangUp()
	w.hangUp()
}

func TestStreamsAreBoundedAndEndWithTheServer(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.options.MaxStreams = true, 2 })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 3})
	one, two := s.watch(t, "truffle", ""), s.watch(t, "truffle", "")
	one.event(t)
	two.event(t)
	third := s.call(t, "GET", "/v1/lots/truffle/events", nil)
	if refused(t, http.StatusServiceUnavailable, "overloaded", third); third.header.Get("Retry-After") == "" {
		t.Error("nothing says when to ask again")
	}
	one.hangUp()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "GET", s.url+"/v1/lots/truffle/events", nil)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode == http.StatusOK, "the place of a caller who left stays taken"
	})
	began := time.Now()
	s.shutDown()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the server waited %v for a stream", took)
	}
	if _, err := two.body.ReadString('\x00'); err == nil {
		t.Error("the stream goes on")
	}
}

// HTTP/2 ends a stream at its deadline even if nothing is written then.
func TestAStreamOverHTTP2OutlivesItsSilence(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key, "shop")
	s := newAPI(t, func(o *setup) {
		o.noWorker, o.options.Heartbeat, o.server = true, 6*time.Second, api.ServerOptions{CertFile: cert, KeyFile: key}
	})
	s.load(t, drop.Definition{Lot: "truffle", Stock: 3})
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the certificate is the test's own
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("https://" + strings.TrimPrefix(s.url, "http://") + "/v1/lots/truffle/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.ProtoMajor != 2 {
		t.Fatalf("spoken is %s", resp.Proto)
	}
	w := &watcher{body: bufio.NewReader(resp.Body)}
	w.event(t)
	if v, comment := w.next(t); comment == "" {
		t.Errorf("instead of a heartbeat %+v", v)
	}
}

func TestAStreamEndsWithItsKey(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.keyed, o.access.Every = true, true, often })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 3})
	token, id := s.key(t, nil)
	if err := s.access.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := s.watch(t, "truffle", "", bearer(token))
	w.event(t)
	if err := s.pause(t, "truffle"); err != nil {
		t.Fatal(err)
	}
	w.event(t)
	if n := s.counted(t, "dropctl_api_in_flight_requests"); n != 0 {
		t.Errorf("%v requests are being worked on, the stream among them", n)
	}
	if _, _, err := s.ledger.RevokeKey(t.Context(), id, "test"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := w.body.ReadString('\x00'); !errors.Is(err, io.EOF) || time.Since(began) > 5*time.Second {
		t.Errorf("it went on for %v: %v", time.Since(began), err)
	}
}

// pipes is a listener whose connections have no buffers: a write waits until somebody reads.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.conns) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func TestWhoDoesNotReadLosesTheStream(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 3})
	ln := &pipes{conns: make(chan net.Conn)}
	server := api.New(api.Options{Stock: s.stock, Ledger: s.shop, Lots: s.shop, Access: s.access, Metrics: s.metrics})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(ctx, ln, api.ServerOptions{}) })
	defer running.Wait()
	defer stop()
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	ln.conns <- theirs
	if _, err := fmt.Fprint(ours, "GET /v1/lots/truffle/events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		_ = ours.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := ours.Write([]byte("x")) // nothing reads it as long as the connection lives
		return err != nil && strings.Contains(err.Error(), "closed"), "the connection of somebody who does not read stays open"
	})
}
