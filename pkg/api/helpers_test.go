package api_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// site is a listening server of the API on private stores.
type site struct {
	t        testing.TB
	redis    *lab.Redis
	db       testkit.Database
	shop     *wire.Shop
	stock    *stock.Stock
	ledger   *ledger.Ledger
	access   *api.Access
	metrics  *telemetry.Metrics
	log      *lines
	url      string
	token    string // sent with every call; "" for none
	shutDown func() // stops the server as a signal does, and waits
}

// setup is what a test may have otherwise.
type setup struct {
	options    api.Options // its stores, access, metrics and log are filled in
	access     api.AccessOptions
	limits     api.LimitOptions
	server     api.ServerOptions
	redis      lab.RedisOptions
	redisURL   func(*lab.Redis) string // the engine's way to Redis; nil: its socket
	noWorker   bool
	noFinalise bool
	outbox     config.Bytes // of a shard; 0: 64 MiB
	keyed      bool         // callers without a key are not let in
}

// newAPI starts a server, a worker and their stores, which end with the test.
func newAPI(t testing.TB, change ...func(*setup)) *site {
	t.Helper()
	o := setup{redisURL: (*lab.Redis).SocketURL}
	for _, c := range change {
		c(&o)
	}
	s := &site{t: t, redis: testkit.Redis(t, o.redis), db: stores.Database(t, 4), metrics: telemetry.New(), log: &lines{}}
	cfg := &config.Config{RedisURL: config.NewURL(o.redisURL(s.redis)), DatabaseURL: config.NewURL(s.db.URL(lab.App)), Timeout: 10 * time.Second,
		KeyRetention: 24 * time.Hour, OutboxMaxBytes: cmp.Or(o.outbox, 64<<20), Durability: "memory", Shards: 4}
	log := slog.New(slog.NewJSONHandler(s.log, nil))
	var err error
	if s.shop, err = wire.OpenShop(t.Context(), cfg, os.Getenv, s.metrics, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.shop.Close)
	s.stock = s.shop.Stock
	if s.ledger, err = s.shop.Ledger(); err != nil {
		t.Fatal(err)
	}
	if !o.noWorker {
		s.work(t, o.noFinalise)
	}
	s.serve(t, o, log)
	return s
}

func (s *site) serve(t testing.TB, o setup, log *slog.Logger) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.access.Source, o.access.Log, o.access.Loopback = s.ledger, log, !o.keyed
	s.access = api.NewAccess(o.access)
	if err := s.access.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.options.Stock, o.options.Ledger, o.options.Lots, o.options.Payments = s.stock, s.shop, s.shop, s.shop
	o.options.Access, o.options.Limits = s.access, api.NewLimits(o.limits)
	o.options.Metrics, o.options.Log = s.metrics, log
	server := api.New(o.options)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.access.Run(ctx) })
	running.Go(func() {
		if err := server.Serve(ctx, ln, o.server); err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	s.shutDown = func() { cancel(); running.Wait() }
	t.Cleanup(s.shutDown)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	s.url = "http://" + ln.Addr().String()
}

// work runs a worker until the test ends.
func (s *site) work(t testing.TB, noFinalise bool) {
	in := s.ledger.Installation()
	parts := worker.Parts()
	if noFinalise {
		parts = slices.DeleteFunc(parts, func(p worker.Part) bool { return p == worker.Finalise })
	}
	w := worker.New(s.stock, wire.WorkerLedger(s.ledger), worker.Options{Only: parts, Installation: in.ID, Shards: in.Shards, Rebuild: wire.RebuildLot(s.stock, s.ledger), Rate: 1e6})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if _, err := w.Run(ctx); err != nil {
			t.Errorf("the worker: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

// load makes a lot that sells.
func (s *site) load(t testing.TB, def drop.Definition) {
	t.Helper()
	stores.Load(t, s.stock, s.ledger, def)
}

func (s *site) lot(t testing.TB, lot drop.LotID) drop.LotState {
	t.Helper()
	state, err := s.stock.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// answer is what a call brought.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// headers of a request; a name that starts with - is left out though it is sent by default.
type headers map[string]string

// call makes a request, whose answer is checked against the document. body is text, or a value that is sent as JSON; nil
// for none.
func (s *site) call(t testing.TB, method, path string, body any, more ...headers) answer {
	t.Helper()
	ans, err := s.try(t.Context(), method, path, body, more...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return ans
}

// try is a call that may fail on its way.
func (s *site) try(ctx context.Context, method, path string, body any, more ...headers) (answer, error) {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return answer{}, err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, reader)
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	for _, h := range more {
		for name, value := range h {
			if left, ok := strings.CutPrefix(name, "-"); ok {
				req.Header.Del(left)
			} else {
				req.Header.Set(name, value)
			}
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	ans := answer{resp.StatusCode, resp.Header, text}
	if err == nil {
		documented(s.t, method, path, ans)
	}
	return ans, err
}

// into reads an answer that must have a status.
func into[T any](t testing.TB, status int, ans answer) (v T) {
	t.Helper()
	if ans.status != status {
		t.Fatalf("status %d, not %d: %s", ans.status, status, ans.body)
	}
	if err := json.Unmarshal(ans.body, &v); err != nil {
		t.Fatalf("%v: %s", err, ans.body)
	}
	return v
}

// refused checks that an answer is a problem of a code, and returns it.
func refused(t testing.TB, status int, code string, ans answer) client.Problem {
	t.Helper()
	p := into[client.Problem](t, status, ans)
	if p.Code != code || p.Status != status || ans.header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("not the problem %s: %s", code, ans.body)
	}
	return p
}

func (s *site) reserve(t testing.TB, lot drop.LotID, user, key string, qty int64) client.Reservation {
	t.Helper()
	ans := s.call(t, "POST", "/v1/lots/"+string(lot)+"/reservations", client.ReserveBody{User: user, Qty: qty}, headers{"Idempotency-Key": key})
	return into[client.Reservation](t, http.StatusCreated, ans)
}

// lines is a log that tests read.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// tenant makes an API key of a tenant with every scope and returns the header that names it.
func (s *site) tenant(t testing.TB, tenant string, scopes ...drop.Scope) headers {
	t.Helper()
	token, _ := s.key(t, func(k *drop.APIKey) {
		k.Tenant = tenant
		if scopes != nil {
			k.Scopes = scopes
		}
	})
	if err := s.access.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return bearer(token)
}
