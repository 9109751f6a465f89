package wire_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// server is a server's shop that was opened while PostgreSQL was down.
type server struct {
	*wire.Shop
	postgres *testkit.FaultyProxy
	log      *safeText
	ended    chan error // what waiting for PostgreSQL ended with
}

func (s shop) openLate(t *testing.T, shards int) server {
	t.Helper()
	proxy := testkit.Proxy(t, s.db.Server.Addr())
	proxy.Cut()
	log := &safeText{}
	cfg := &config.Config{RedisURL: config.NewURL(s.redis.URL()), DatabaseURL: config.NewURL(proxy.URL(t, s.db.Server.URL(lab.App, s.db.Name))),
		Timeout: 2 * time.Second, KeyRetention: 24 * time.Hour, OutboxMaxBytes: 64 << 20, Durability: "memory", Shards: shards}
	opened, err := wire.OpenShop(t.Context(), cfg, os.Getenv, telemetry.New(), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	l := server{opened, proxy, log, make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.ended <- l.AwaitLedger(ctx) }()
	t.Cleanup(func() { stop(); <-done; opened.Close() })
	return l
}

// safeText is a log that is read while it is written.
type safeText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *safeText) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(line)
}

// tells waits until the log has a text.
func (s *safeText) tells(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.text.String(), text), "the log is " + s.text.String()
	})
}

// answers waits until the server has taken PostgreSQL up.
func (l server) answers(t *testing.T) {
	t.Helper()
	select {
	case err := <-l.ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("PostgreSQL is not taken up")
	}
}

// Nothing tells a server whose Redis it has that begins with an empty one and without PostgreSQL. What it loads later must
// be the installation's all the same.
func TestAServerThatBeganWithNothingLearnsWhoseItIs(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	l := s.openLate(t, s.ledger.Installation().Shards)
	if _, err := l.Stock.Lot(t.Context(), "hat"); !fault.Is(err, fault.LotNotLoaded) { // its connections are open
		t.Fatal(err)
	}
	l.postgres.Heal()
	l.answers(t)
	if _, done, err := l.Put(t.Context(), "hat", client.LotBody{Stock: new(int64(3))}, "test"); err != nil || done != api.PutCreated {
		t.Fatalf("%v, %v", done, err)
	}
	if _, err := l.Stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: "ada", Key: "k", Qty: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: "bob", Key: "k", Qty: 1}); err != nil {
		t.Errorf("whoever knows the installation is told %v", err)
	}
}

func TestAServerThatBeganWithTheWrongNumberOfShardsEnds(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	l := s.openLate(t, s.ledger.Installation().Shards+1)
	l.postgres.Heal()
	if err := <-l.ended; !fault.Is(err, fault.Foreign) {
		t.Errorf("it goes on: %v", err)
	}
}

// A server that began without PostgreSQL goes on whatever keeps the two stores from being compared, and notices once it
// can be done.
func TestAServerWithoutPostgreSQLGoesOn(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,5\n", seed.Options{})
	l := s.openLate(t, 1)
	s.db.SQL(t, "ALTER TABLE settings RENAME TO elsewhere")
	l.postgres.Heal()
	l.log.tells(t, "does not have the schema")
	if err := s.redis.Pause(); err != nil {
		t.Fatal(err)
	}
	s.db.SQL(t, "ALTER TABLE elsewhere RENAME TO settings")
	l.log.tells(t, "Redis at")
	if err := s.redis.Resume(); err != nil {
		t.Fatal(err)
	}
	l.answers(t)
	testkit.Eventually(t, 20*time.Second, func() (bool, string) { // the breaker may be open for a moment
		_, err := l.Stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: "ada", Key: "k", Qty: 1})
		return err == nil, fmt.Sprint(err)
	})
}

// Data of somebody else that comes into Redis while PostgreSQL is down is not sold.
func TestAServerWithoutPostgreSQLSellsNobodyElsesLots(t *testing.T) {
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,5\n", seed.Options{})
	l := s.openLate(t, s.ledger.Installation().Shards)
	q := drop.ReserveRequest{Lot: "hat", User: "ada", Key: "k", Qty: 1}
	if _, err := l.Stock.Reserve(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if _, err := s.redis.Do(t.Context(), "EVAL", `for _, k in ipairs(redis.call('KEYS', 'drop:*:meta')) do redis.call('HSET', k, 'owner', 'somebody/4') end`, "0"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.redis.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal"); err != nil { // whoever connects again looks again
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) { // a call may have been on a connection that was killed
		_, err := l.Stock.Reserve(t.Context(), q)
		return fault.Is(err, fault.Foreign), fmt.Sprintf("of another installation: %v", err)
	})
}

// A unit that a refund took out of a lot is not sold again because somebody changed the lot's name meanwhile.
func TestAPutWithoutStockForgetsNoAdjustment(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,5\n", seed.Options{})
	id := s.sell(t, "hat", 1)
	if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: drop.ActRefund, Total: -1, NoRestock: true, Actor: "bob"}); err != nil {
		t.Fatal(err)
	}
	s.drain(t)
	l := s.openLate(t, 4)
	l.postgres.Heal()
	l.answers(t)
	if state, done, err := l.Put(t.Context(), "hat", client.LotBody{Name: new("Hat")}, "test"); err != nil || done != api.PutChanged || state.Capacity != 4 {
		t.Fatalf("%+v, %v, %v", state, done, err)
	}
	if _, err := s.seed(t.Context(), t, "lot,stock\nhat,5\n", seed.Options{}); !fault.Is(err, fault.Conflict) {
		t.Errorf("the seed puts it back: %v", err)
	}
}
