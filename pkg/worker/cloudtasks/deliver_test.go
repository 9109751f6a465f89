package cloudtasks_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

const shards = 4

// shop is an installation whose events travel through the service: a server that takes deliveries, a worker that sends, on
// real stores.
type shop struct {
	*wire.Shop
	cfg    *config.Config
	ledger *ledger.Ledger
	db     testkit.Database
	url    string
}

// newShop starts the server of a shop on a PostgreSQL; nil: the one that tests share.
func newShop(t testing.TB, s *service, own *lab.Postgres, change func(*config.Config)) *shop {
	t.Helper()
	sh := &shop{}
	if own == nil {
		sh.db = stores.Database(t, shards)
	} else {
		sh.db = stores.On(t, own, shards)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sh.url = "http://" + ln.Addr().String() + "/internal/outbox"
	sh.cfg = &config.Config{RedisURL: config.NewURL(testkit.Redis(t).SocketURL()), DatabaseURL: config.NewURL(sh.db.URL(lab.App)), Timeout: 5 * time.Second,
		KeyRetention: 24 * time.Hour, OutboxMaxBytes: 64 << 20, Durability: "memory", Shards: shards, MaxEventsPerSecond: 1_000_000,
		Transport: config.CloudTasks, TasksQueue: queueName, TasksEndpoint: s.url, TasksTarget: sh.url, TasksServiceAccount: account, TasksKeysURL: s.keys, TasksPerSecond: 500}
	if change != nil {
		change(sh.cfg)
	}
	log := slog.New(slog.DiscardHandler)
	m := telemetry.New()
	if sh.Shop, err = wire.OpenShop(t.Context(), sh.cfg, os.Getenv, m, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sh.Close)
	if sh.ledger, err = sh.Ledger(); err != nil {
		t.Fatal(err)
	}
	taken, err := sh.Deliveries(m.Worker)
	if err != nil {
		t.Fatal(err)
	}
	access := api.NewAccess(api.AccessOptions{Source: sh, Loopback: true})
	if err := access.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	face := api.New(api.Options{Stock: sh.Stock, Ledger: sh, Lots: sh, Access: access, Metrics: m, Deliveries: taken, Log: log})
	inBackground(t, func(ctx context.Context) error { return face.Serve(ctx, ln, api.ServerOptions{}) })
	return sh
}

// work runs a worker until the test ends.
func (sh *shop) work(t testing.TB) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	m := telemetry.New()
	q, err := wire.OpenQueue(t.Context(), sh.cfg, os.Getenv, sh.ledger, m.Worker, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	in := sh.ledger.Installation()
	w := worker.New(sh.Stock, wire.WorkerLedger(sh.ledger), worker.Options{Installation: in.ID, Shards: in.Shards, Rebuild: wire.RebuildLot(sh.Stock, sh.ledger),
		Rate: float64(sh.cfg.MaxEventsPerSecond), Queue: q.Queue, Resend: time.Second, Log: log, Metrics: m.Worker})
	inBackground(t, func(ctx context.Context) error { _, err := w.Run(ctx); return err })
	// A worker that sees a PostgreSQL for the first time sends it everything straight from the outbox.
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		now, remembered, _, err := sh.ledger.Server(t.Context())
		return err == nil && now == remembered, fmt.Sprintf("PostgreSQL is not known yet (%v)", err)
	})
}

func inBackground(t testing.TB, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// load makes a lot that sells.
func (sh *shop) load(t testing.TB, lot drop.LotID, units int64) {
	t.Helper()
	stores.Load(t, sh.Stock, sh.ledger, drop.Definition{Lot: lot, Stock: units})
}

// sell lets n users hold one unit each of every lot, and confirms every second hold.
func (sh *shop) sell(t testing.TB, n int, lots ...drop.LotID) {
	t.Helper()
	var all sync.WaitGroup
	for _, lot := range lots {
		for i := range n {
			all.Go(func() {
				user := "user-" + strconv.Itoa(i)
				out, err := sh.Stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: "key-" + user, Qty: 1, Actor: "test"})
				if err == nil && i%2 == 0 {
					_, err = sh.Stock.Settle(t.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActConfirm, Ref: "pay-" + user})
				}
				if err != nil {
					t.Errorf("%s of %s: %v", user, lot, err)
				}
			})
		}
	}
	all.Wait()
}

// agrees waits until the ledger has everything that Redis has, exactly once, sold is finalised, and nothing is left in the
// outbox; n is how many users bought of each lot.
func (sh *shop) agrees(t testing.TB, n int, lots ...drop.LotID) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, func() (bool, string) {
		d := sh.difference(t.Context(), lots)
		return d == "", d
	})
	want := fmt.Sprintf("%d|%d", len(lots)*(1+n+(n+1)/2), len(lots)*((n+1)/2)) // a load, holds and confirmations; sales
	got := sh.db.SQL(t, `SELECT (SELECT count(*) FROM reservation_events) || '|' || (SELECT count(*) FROM order_ledger)`)
	if strings.TrimSpace(got) != want {
		t.Errorf("events and sales: %s, want %s", got, want)
	}
}

func (sh *shop) difference(ctx context.Context, lots []drop.LotID) string {
	recorded, err := sh.ledger.Lots(ctx, lots)
	if err != nil {
		return err.Error()
	}
	states, err := sh.Stock.LotStates(ctx, lots)
	if err != nil {
		return err.Error()
	}
	sales, err := sh.ledger.SalesOf(ctx, lots)
	if err != nil {
		return err.Error()
	}
	for _, l := range recorded {
		if st := states[l.Lot]; l.Watermark != st.Watermark || l.Totals() != st.Totals || sales[l.Lot].Net != st.Sold || l.Stopped != "" || l.Waiting != 0 {
			return fmt.Sprintf("%s: ledger %+v %+v, net sales %d, stopped %q, waiting %d; redis %+v %+v", l.Lot, l.Watermark, l.Totals(), sales[l.Lot].Net, l.Stopped, l.Waiting, st.Watermark, st.Totals)
		}
	}
	for shard := range shards {
		if out, err := sh.Stock.OutboxState(ctx, shard); err != nil || out.Pending > 0 {
			return fmt.Sprintf("%d entries of shard %d are not acknowledged (%v)", out.Pending, shard, err)
		}
	}
	return ""
}

var threeLots = []drop.LotID{"truffle", "wine", "oil"}

func TestWhateverTheQueueDoesEachEventIsRecordedOnce(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	s := newService(t)
	sh := newShop(t, s, nil, nil)
	for _, lot := range threeLots {
		sh.load(t, lot, 100)
	}
	s.set(func(s *service) {
		s.twice, s.late, s.cut, s.refuse = true, 6*time.Second, 3, []int{503, 429, 500} // later than the relay's patience, so it also sends again
	})
	sh.work(t)
	sh.sell(t, 100, threeLots...)
	sh.agrees(t, 100, threeLots...)
	testkit.Eventually(t, time.Minute, func() (bool, string) { // and what comes after all of that changes nothing
		n := s.count(http.StatusOK)
		return n >= 2*len(threeLots), fmt.Sprintf("only %d tasks were taken", n)
	})
	sh.agrees(t, 100, threeLots...)
	s.set(func(s *service) {
		sendings := 0
		for _, body := range s.log.bodies {
			if bytes.Contains(body, []byte(`"sending":2`)) {
				sendings++
			}
		}
		if sendings == 0 || s.log.doubles == 0 {
			t.Errorf("the queue was too good: %d tasks sent again, %d doubles, answers %v", sendings, s.log.doubles, s.log.answers)
		}
	})
}

func TestAPurgedQueueLosesNothing(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	s := newService(t)
	sh := newShop(t, s, nil, nil)
	s.pause(true)
	sh.work(t)
	for _, lot := range threeLots {
		sh.load(t, lot, 50)
	}
	sh.sell(t, 50, threeLots...)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		tasks := 0
		s.set(func(s *service) { tasks = len(s.waiting) })
		return tasks >= len(threeLots), fmt.Sprintf("the queue has %d tasks", tasks)
	})
	if s.purge() == 0 {
		t.Error("nothing was lost")
	}
	s.pause(false)
	sh.agrees(t, 50, threeLots...)
}

func TestWithoutTokensDeliveriesComeLater(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	s := newService(t)
	sh := newShop(t, s, nil, func(c *config.Config) { c.MaxEventsPerSecond = 60 })
	for _, lot := range threeLots { // they are on three shards, and so in three tasks at least
		sh.load(t, lot, 40)
	}
	sh.work(t)
	sh.sell(t, 40, threeLots...)
	sh.agrees(t, 40, threeLots...)
	if s.count(http.StatusTooManyRequests) == 0 {
		t.Errorf("no delivery was put off: %v", s.log.answers)
	}
}

func TestWhileTheLedgerIsDownDeliveriesComeAgain(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	s := newService(t)
	postgres := testkit.PostgresServer(t)
	sh := newShop(t, s, postgres, func(c *config.Config) { c.Timeout = 2 * time.Second })
	sh.load(t, "truffle", 40)
	s.pause(true)
	sh.work(t)
	sh.sell(t, 40, "truffle")
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		tasks := 0
		s.set(func(s *service) { tasks = len(s.waiting) })
		return tasks > 0, "nothing was sent"
	})
	if err := postgres.Kill(); err != nil {
		t.Fatal(err)
	}
	s.pause(false)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		return s.count(http.StatusServiceUnavailable) > 0, "no delivery was put off"
	})
	if err := postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	sh.agrees(t, 40, "truffle")
	s.set(func(s *service) {
		for status := range s.log.answers {
			if status != http.StatusOK && status != http.StatusServiceUnavailable {
				t.Errorf("answers %v: %s", s.log.answers, s.log.lastBody)
			}
		}
	})
}

func TestASecretDoesWithoutTokens(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("a-secret-for-deliveries\nand-the-one-before-it\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newService(t)
	sh := newShop(t, s, nil, func(c *config.Config) { c.TasksServiceAccount, c.TasksKeysURL, c.TasksSecretFile = "", "", file })
	sh.load(t, "truffle", 20)
	sh.work(t)
	sh.sell(t, 20, "truffle")
	sh.agrees(t, 20, "truffle")
	if status, _ := sh.deliver(t, "and-the-one-before-it", sh.task(t, "hats")); status != http.StatusOK {
		t.Errorf("with the secret of before: %d", status)
	}
	if status, _ := sh.deliver(t, signed(account, sh.url, nil), sh.task(t, "hats")); status != http.StatusUnauthorized {
		t.Errorf("with a token that nobody asked for: %d", status)
	}
}

// task is the body of a task that could have been sent. No lot is meant, so that its events become dead letters.
func (sh *shop) task(t testing.TB, lot string) string {
	t.Helper()
	return fmt.Sprintf(`{"installation":%q,"schema":"1","shard":0,"sending":1,"entries":[{"id":"1-0","time":1700000000000,"body":"@\t%s\t1\nnonsense\n"}]}`, sh.ledger.Installation().ID, lot)
}

// deliver makes one delivery; without a token none is sent.
func (sh *shop) deliver(t testing.TB, token, body string, change ...func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, sh.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for _, c := range change {
		c(r)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestOnlyTheQueueMayDeliverAndOnlyTasks(t *testing.T) {
	t.Parallel()
	s := newService(t)
	sh := newShop(t, s, nil, nil)
	good, body := signed(account, sh.url, nil), sh.task(t, "hats")
	secret, id := drop.NewToken()
	_, hash, _ := drop.ReadToken(secret)
	if _, err := sh.ledger.CreateKey(t.Context(), drop.APIKey{ID: id, Tenant: "shop", Scopes: drop.Scopes(), Hash: hash, CreatedBy: "test"}); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		token, body string
		want        int
		change      func(*http.Request)
	}{
		"no token":         {"", body, 401, nil},
		"an API key":       {secret, body, 401, nil},
		"an API key aside": {"", body, 401, func(r *http.Request) { r.Header.Set("X-Api-Key", secret) }},
		"two tokens":       {good, body, 401, func(r *http.Request) { r.Header.Add("Authorization", "Bearer x") }},
		"another word":     {"", body, 401, func(r *http.Request) { r.Header.Set("Authorization", "Basic "+good) }},
		"expired":          {signed(account, sh.url, func(c map[string]any) { c["exp"] = 1 }), body, 401, nil},
		"another audience": {signed(account, "https://elsewhere.example", nil), body, 401, nil},
		"another account":  {signed("x@y.example", sh.url, nil), body, 403, nil},
		"looking":          {good, "", 405, func(r *http.Request) { r.Method = http.MethodGet }},
		"garbage":          {good, "{}", 400, nil},
		"nothing":          {good, "", 400, nil},
		"not JSON":         {good, body, 415, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }},
		"compressed":       {good, body, 415, func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }},
		"too large":        {good, strings.Repeat(" ", 1<<20) + body, 413, nil},
		"too large, unsaid": {good, strings.Repeat(" ", 1<<20) + body, 413, func(r *http.Request) {
			r.ContentLength = -1
		}},
		"of another installation": {good, strings.Replace(body, sh.ledger.Installation().ID, "another", 1), 503, nil},
		"of a newer version":      {good, strings.Replace(body, `"schema":"1"`, `"schema":"2"`, 1), 503, nil},
	} {
		var change []func(*http.Request)
		if c.change != nil {
			change = append(change, c.change)
		}
		if status, text := sh.deliver(t, c.token, c.body, change...); status != c.want || !strings.Contains(text, `"code"`) || len(c.token) > 0 && strings.Contains(text, c.token) {
			t.Errorf("%s: %d %s", what, status, text)
		}
	}
	if dead, err := sh.ledger.DeadLetters(t.Context(), "hats", 0, 10); err != nil || len(dead) != 0 {
		t.Fatalf("something was recorded: %+v (%v)", dead, err)
	}
	if status, text := sh.deliver(t, good, body); status != http.StatusOK {
		t.Errorf("a good one: %d %s", status, text)
	}
	if dead, err := sh.ledger.DeadLetters(t.Context(), "hats", 0, 10); err != nil || len(dead) != 1 {
		t.Errorf("the good one left %+v (%v)", dead, err)
	}
	if document, err := api.New(api.Options{}).Document(); err != nil || bytes.Contains(document, []byte("internal")) {
		t.Errorf("the document of the API tells of it (%v)", err)
	}
}

func TestWithoutAQueueThereIsNoRoute(t *testing.T) {
	t.Parallel()
	s := newService(t)
	sh := newShop(t, s, nil, func(c *config.Config) { c.Transport = config.Direct })
	if status, text := sh.deliver(t, "", sh.task(t, "hats")); status != http.StatusNotFound {
		t.Errorf("%d %s", status, text)
	}
}

// The keys of tokens are away: that is no reason to throw anything away.
func TestWithoutKeysDeliveriesComeAgain(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newService(t)
	sh := newShop(t, s, nil, func(c *config.Config) { c.TasksKeysURL = "http://127.0.0.1:1/keys" })
	if status, text := sh.deliver(t, signed(account, sh.url, nil), sh.task(t, "hats")); status != http.StatusServiceUnavailable || strings.Contains(text, "127.0.0.1:1/") {
		t.Errorf("%d %s", status, text)
	}
}

// BenchmarkThroughCloudTasks measures how fast events come through a queue that delivers 500 tasks a second into the ledger,
// and fails below the bar; see `make bench`.
func BenchmarkThroughCloudTasks(b *testing.B) {
	own := testkit.PostgresServer(b) // it syncs
	sh := newShop(b, newService(b), own, func(c *config.Config) { c.OutboxMaxBytes = 1 << 30 })
	var lots []drop.LotID
	for i := range 20 {
		lots = append(lots, drop.LotID("lot-"+strconv.Itoa(i)))
		sh.load(b, lots[i], 1_000_000)
	}
	sh.work(b)
	folded := func() (n int64) {
		list, err := sh.ledger.Lots(b.Context(), lots)
		if err != nil {
			b.Fatal(err)
		}
		for _, l := range list {
			n += l.Seq
		}
		return n
	}
	const users = 1000
	for _, lot := range lots {
		sh.sell(b, users, lot)
	}
	pace := testkit.Pace(b, int64(len(lots)*(1+users+users/2)), folded)
	b.ResetTimer()
	testkit.FastEnough(b, sh.db, pace)
}
