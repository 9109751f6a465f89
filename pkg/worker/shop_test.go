package worker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/payment"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

// The environment of a worker that runs as a process of its own, so that it can be killed.
const (
	envRedis    = "DROPCTL_TEST_WORKER_REDIS"
	envDatabase = "DROPCTL_TEST_WORKER_DATABASE"
	envGateway  = "DROPCTL_TEST_WORKER_GATEWAY"  // URL and secret of a payment gateway, with a space between them
	envDefaults = "DROPCTL_TEST_WORKER_DEFAULTS" // set: it takes over from dead workers as late as it does by default
)

func TestMain(m *testing.M) {
	if os.Getenv(envRedis) != "" {
		os.Exit(workerProcess())
	}
	os.Exit(testkit.Main(m))
}

func workerProcess() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s := &shop{redisURL: os.Getenv(envRedis), databaseURL: os.Getenv(envDatabase)}
	if err := s.open(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer s.close()
	o := worker.Options{Takeover: time.Second}
	if os.Getenv(envDefaults) != "" {
		o = worker.Options{}
	}
	if at, secret, ok := strings.Cut(os.Getenv(envGateway), " "); ok {
		g, err := payment.NewWebhook(payment.Options{URL: at, Secret: secret, Timeout: time.Minute})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		o.Gateway = g
	}
	if _, err := s.worker(o).Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const shards = 4

// shop is one installation on private servers.
type shop struct {
	redis    *lab.Redis
	postgres *lab.Postgres

	redisURL, databaseURL string
	stock                 *stock.Stock
	ledger                *ledger.Ledger
	running               *exec.Cmd // the worker process that startProcess began last
}

// newShop opens a shop on a Redis of its own and a database of the shared PostgreSQL.
func newShop(t testing.TB) *shop {
	t.Helper()
	return newShopOn(t, testkit.Redis(t, lab.RedisOptions{Fsync: "always"}), stores.Database(t, shards))
}

func newShopOn(t testing.TB, redis *lab.Redis, db testkit.Database) *shop {
	t.Helper()
	return newShopAt(t, redis, redis.SocketURL(), db)
}

// newShopAt is a shop whose engine finds Redis at another address than that of the server it starts with.
func newShopAt(t testing.TB, redis *lab.Redis, redisURL string, db testkit.Database) *shop {
	t.Helper()
	s := &shop{redis: redis, postgres: db.Server, redisURL: redisURL, databaseURL: db.URL(lab.App)}
	if err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func (s *shop) open(ctx context.Context) (err error) {
	if s.ledger, err = ledger.Open(ctx, ledger.Options{URL: s.databaseURL, Application: "worker-test", MaxConns: 8}); err != nil {
		return err
	}
	in := s.ledger.Installation()
	s.stock, err = stock.Open(stock.Options{URL: s.redisURL, Installation: in.ID, Shards: in.Shards})
	return err
}

func (s *shop) close() {
	_ = s.stock.Close()
	s.ledger.Close()
}

func (s *shop) worker(o worker.Options) *worker.Worker {
	return s.workerOn(wire.WorkerLedger(s.ledger), o)
}

func (s *shop) workerOn(l worker.Ledger, o worker.Options) *worker.Worker {
	in := s.ledger.Installation()
	o.Installation, o.Shards, o.Rebuild = in.ID, in.Shards, wire.RebuildLot(s.stock, s.ledger)
	return worker.New(s.stock, l, o)
}

// start runs a worker until the test ends or stop is called, which returns what Run returned.
func (s *shop) start(t testing.TB, o worker.Options) (stop func() (worker.Summary, error)) {
	t.Helper()
	return s.startOn(t, wire.WorkerLedger(s.ledger), o)
}

func (s *shop) startOn(t testing.TB, l worker.Ledger, o worker.Options) (stop func() (worker.Summary, error)) {
	t.Helper()
	return startWorker(t, s.workerOn(l, o))
}

func startWorker(t testing.TB, w *worker.Worker) (stop func() (worker.Summary, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var sum worker.Summary
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		sum, err = w.Run(ctx)
	}()
	stop = func() (worker.Summary, error) {
		cancel()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Error("the worker did not stop")
		}
		return sum, err
	}
	t.Cleanup(func() { _, _ = stop() })
	return stop
}

// drain runs a worker until nothing is left to do.
func (s *shop) drain(t testing.TB, o worker.Options) (worker.Summary, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o.UntilIdle = true
	return s.worker(o).Run(ctx)
}

// mustDrain lets a worker do all there is to do.
func (s *shop) mustDrain(t testing.TB) {
	t.Helper()
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
}

// load creates a lot in the ledger and loads it into Redis.
func (s *shop) load(t testing.TB, id drop.LotID, units int64) {
	t.Helper()
	stores.Load(t, s.stock, s.ledger, drop.Definition{Lot: id, Stock: units, MaxHold: 2 * time.Hour})
}

func (s *shop) hold(ctx context.Context, lot drop.LotID, user string, d time.Duration) (drop.ReservationID, error) {
	out, err := s.stock.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: user, Key: "key-" + user, Qty: 1, Hold: d, Actor: "test"})
	return out.Reservation.ID, err
}

// sell lets n users hold one unit each and confirms every second hold; n must not exceed the lot.
func (s *shop) sell(t testing.TB, lot drop.LotID, from, n int) {
	t.Helper()
	var all sync.WaitGroup
	for i := from; i < from+n; i++ {
		all.Go(func() {
			id, err := s.hold(t.Context(), lot, "user-"+strconv.Itoa(i), time.Hour)
			if err == nil && i%2 == 0 {
				_, err = s.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: "pay-" + strconv.Itoa(i)})
			}
			if err != nil {
				t.Errorf("user %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// differences says where the ledger and Redis differ; "" if every lot is equal in every number.
func (s *shop) differences(ctx context.Context) string {
	lots, err := s.ledger.Lots(ctx, nil)
	if err != nil {
		return err.Error()
	}
	var ids []drop.LotID
	for _, l := range lots {
		ids = append(ids, l.Lot)
	}
	states, err := s.stock.LotStates(ctx, ids)
	if err != nil {
		return err.Error()
	}
	sales, err := s.ledger.SalesOf(ctx, ids)
	if err != nil {
		return err.Error()
	}
	var bad []string
	for _, l := range lots {
		st := states[l.Lot]
		if l.Watermark != st.Watermark || l.Totals() != st.Totals || sales[l.Lot].Net != st.Sold || l.Stopped != "" || l.Waiting != 0 {
			bad = append(bad, fmt.Sprintf("%s: ledger %+v %+v net sales %d stopped %q waiting %d, redis %+v %+v",
				l.Lot, l.Watermark, l.Totals(), sales[l.Lot].Net, l.Stopped, l.Waiting, st.Watermark, st.Totals))
		}
	}
	return strings.Join(bad, "\n")
}

func (s *shop) mustAgree(t testing.TB) {
	t.Helper()
	if d := s.differences(t.Context()); d != "" {
		t.Fatal(d)
	}
}

func (s *shop) agreesWithin(t testing.TB, limit time.Duration) {
	t.Helper()
	testkit.Eventually(t, limit, func() (bool, string) {
		d := s.differences(t.Context())
		return d == "", d
	})
}

// pending counts entries that nobody has acknowledged.
func (s *shop) pending(t testing.TB) (n int64) {
	t.Helper()
	for shard := range shards {
		out, err := s.stock.OutboxState(t.Context(), shard)
		if err != nil {
			t.Fatal(err)
		}
		n += out.Pending
	}
	return n
}

// door looks at the door of the lot's shard. A first look after a restart may find its connection dead.
func (s *shop) door(t testing.TB, lot drop.LotID) (st drop.ShardState) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		var err error
		st, err = s.stock.ShardState(t.Context(), lot.Shard(shards))
		return err == nil, errorText(err)
	})
	return st
}

// crew starts workers in this process, each with connections of its own. stop ends them all and returns what each did.
func (s *shop) crew(t testing.TB, size int, o worker.Options) (stop func() []worker.Summary) {
	t.Helper()
	var stops []func() (worker.Summary, error)
	for range size {
		one := &shop{redis: s.redis, postgres: s.postgres, redisURL: s.redisURL, databaseURL: s.databaseURL}
		if err := one.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(one.close)
		stops = append(stops, one.start(t, o))
	}
	return func() (did []worker.Summary) {
		for _, stop := range stops {
			sum, err := stop()
			if err != nil {
				t.Error(err)
			}
			did = append(did, sum)
		}
		return did
	}
}
