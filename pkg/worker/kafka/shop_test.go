package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/broker"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
	"github.com/dropctl/dropctl/pkg/worker/kafka"
)

func TestMain(m *testing.M) {
	if broker.Main() {
		return
	}
	os.Exit(testkit.Main(m))
}

const shards = 4

// shop is one installation on private servers, with Kafka between relay and ledger.
type shop struct {
	redis    *lab.Redis
	stock    *stock.Stock
	ledger   *ledger.Ledger
	broker   *broker.Broker
	owner    ledger.Options
	database string // URL of the runtime role
}

func newShop(t testing.TB) *shop {
	t.Helper()
	db := stores.Database(t, shards)
	s := &shop{redis: testkit.Redis(t), broker: broker.Start(t), database: db.URL(lab.App), owner: ledger.Options{URL: db.URL(lab.Owner)}}
	s.ledger = stores.Ledger(t, db)
	s.stock = stores.Stock(t, s.redis.SocketURL(), s.ledger)
	return s
}

func (s *shop) options() kafka.Options {
	return kafka.Options{Brokers: s.broker.Addrs(), Topic: "events", Group: "workers", Installation: s.ledger.Installation().ID, Shards: shards, Timeout: 5 * time.Second}
}

// queue opens the shop's topic.
func queue(t testing.TB, o kafka.Options) *kafka.Kafka {
	t.Helper()
	k, err := kafka.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// worker is one with connections of its own.
func (s *shop) worker(t testing.TB, o worker.Options) *worker.Worker {
	t.Helper()
	in := s.ledger.Installation()
	k := queue(t, s.options())
	o.Installation, o.Shards, o.Rebuild, o.Queue, o.Source = in.ID, in.Shards, wire.RebuildLot(s.stock, s.ledger), k, k
	o.Log = slog.New(slog.NewTextHandler(logWriter{t}, nil))
	return worker.New(s.stock, wire.WorkerLedger(s.ledger), o)
}

// start runs a worker until the test ends or stop is called.
func (s *shop) start(t testing.TB, o worker.Options) (stop func() worker.Summary) {
	t.Helper()
	w := s.worker(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	var sum worker.Summary
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		sum, err = w.Run(ctx)
	}()
	stop = sync.OnceValue(func() worker.Summary {
		cancel()
		<-done
		if err != nil {
			t.Errorf("the worker ended with %v", err)
		}
		return sum
	})
	t.Cleanup(func() { stop() })
	return stop
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(line)))
	return len(line), nil
}

func (s *shop) load(t testing.TB, id drop.LotID, units int64) {
	t.Helper()
	stores.Load(t, s.stock, s.ledger, drop.Definition{Lot: id, Stock: units, MaxHold: 2 * time.Hour})
}

// lots loads a lot into every shard.
func (s *shop) lots(t testing.TB, units int64) (ids []drop.LotID) {
	t.Helper()
	taken := map[int]bool{}
	for i := 0; len(ids) < shards; i++ {
		id := drop.LotID("lot-" + strconv.Itoa(i))
		if shard := id.Shard(shards); !taken[shard] {
			taken[shard] = true
			ids = append(ids, id)
			s.load(t, id, units)
		}
	}
	return ids
}

// sell lets users from to to-1 hold one unit each, and confirms every second.
func (s *shop) sell(t testing.TB, lot drop.LotID, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		user := "user-" + strconv.Itoa(i)
		out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: "key-" + user, Qty: 1, Hold: time.Hour, Actor: "test"})
		if err == nil && i%2 == 0 {
			_, err = s.stock.Settle(t.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActConfirm, Ref: "pay-" + user})
		}
		if err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
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

// arrives waits until every entry is acknowledged, and proves that both sides agree on every record.
func (s *shop) arrives(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, 90*time.Second, func() (bool, string) {
		n := s.pending(t)
		st, err := s.ledger.Status(t.Context())
		if err != nil {
			return false, err.Error()
		}
		return n == 0 && st.Pending == 0, fmt.Sprintf("%d entries are not acknowledged, %d sales not finalised", n, st.Pending)
	})
	o := reconcile.Options{Deep: true, Wait: 10 * time.Second, MaxLag: time.Minute, Actor: "test", Installation: s.ledger.Installation().ID}
	report, err := reconcile.Run(t.Context(), s.stock, wire.ReconcileLedger(s.ledger), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Err(); err != nil {
		t.Fatalf("%v: %+v", err, report)
	}
	st, err := s.ledger.Status(t.Context())
	if err != nil || len(st.DeadLetters) > 0 {
		t.Errorf("dead letters %v: %v", st.DeadLetters, err)
	}
}

// recorded is what the ledger has proven of these lots.
func (s *shop) recorded(t testing.TB, lots []drop.LotID) string {
	t.Helper()
	var all []string
	for _, lot := range lots {
		v, err := s.ledger.Verify(t.Context(), lot, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%+v", v))
	}
	return strings.Join(all, "\n")
}
