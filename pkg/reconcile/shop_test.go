package reconcile_test

import (
	"context"
	"fmt"
	"os"
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
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// shop is one installation on private servers.
type shop struct {
	redis  *lab.Redis
	db     testkit.Database
	stock  *stock.Stock
	ledger *ledger.Ledger
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{redis: testkit.Redis(t), db: stores.Database(t, 4)}
	s.ledger = stores.Ledger(t, s.db)
	s.stock = stores.Stock(t, s.redis.SocketURL(), s.ledger)
	return s
}

// load creates a lot in the ledger and loads it into Redis.
func (s *shop) load(t testing.TB, def drop.Definition) {
	t.Helper()
	def.MaxHold = 4 * time.Hour
	stores.Load(t, s.stock, s.ledger, def)
}

func (s *shop) worker(o worker.Options) *worker.Worker {
	in := s.ledger.Installation()
	o.Installation, o.Shards, o.Rebuild = in.ID, in.Shards, wire.RebuildLot(s.stock, s.ledger)
	return worker.New(s.stock, wire.WorkerLedger(s.ledger), o)
}

// drain brings the ledger up to date.
func (s *shop) drain(t testing.TB) {
	t.Helper()
	within := time.Minute
	if _, large := t.(*testing.B); large {
		within = 20 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if _, err := s.worker(worker.Options{UntilIdle: true, Rate: 1e6}).Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// work runs a worker until the test ends.
func (s *shop) work(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if _, err := s.worker(worker.Options{Rate: 1e6}).Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
}

// sell lets users come by, each with one of the ways a hold can go. Every lot gets the same.
func (s *shop) sell(t testing.TB, lot drop.LotID, from, users int) {
	t.Helper()
	var crowd sync.WaitGroup
	for i := from; i < from+users; i++ {
		crowd.Go(func() {
			user := fmt.Sprintf("user-%d", i)
			out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 3, Hold: time.Hour})
			if err != nil {
				t.Errorf("%s: %v", user, err)
				return
			}
			for _, r := range waysOut[i%len(waysOut)] {
				r.ID = out.Reservation.ID
				if _, err := s.stock.Settle(t.Context(), r); err != nil {
					t.Errorf("%s, %s: %v", user, r.Action, err)
				}
			}
		})
	}
	crowd.Wait()
}

var waysOut = [][]drop.SettleRequest{
	{},
	{{Action: drop.ActConfirm, Ref: "pay"}},
	{{Action: drop.ActConfirm, Ref: "pay", Qty: 2}},
	{{Action: drop.ActRelease}},
	{{Action: drop.ActRelease, Keep: 1}},
	{{Action: drop.ActExtend, By: 2 * time.Hour}},
	{{Action: drop.ActConfirm, Ref: "pay"}, {Action: drop.ActRefund, Total: 1}},
	{{Action: drop.ActConfirm, Ref: "pay"}, {Action: drop.ActRefund, Total: -1, NoRestock: true}},
}

// Users who come first in every lot, by what became of them.
const (
	holds    = "user-0"
	bought   = "user-1"
	released = "user-3"
)

func attemptOf(lot drop.LotID, user string) string { return drop.AttemptOf(lot, user, "k") }

// unfold gives a user's hold a field of its own, as it has once anything happened to it.
func (s *shop) unfold(t testing.TB, lot drop.LotID, user string) {
	t.Helper()
	key, mark := s.key(t, "lot", lot), drop.MarkOf(lot, user)
	text := s.do(t, "HGET", key, mark)
	if !strings.HasPrefix(text, "h") && !strings.HasPrefix(text, "b") {
		return
	}
	const rest = drop.AttemptLen - drop.MarkLen
	attempt, record := mark+text[1:1+rest], text[:1]+text[1+rest:]
	s.do(t, "HSET", key, attempt, record, mark, strings.Split(record, "\t")[3]+"\t0\t"+attempt+"\t"+user)
}

// askedAnother has a user's record say that something else was asked for, in the field given: the same request is refused then.
func (s *shop) askedAnother(t testing.TB, lot drop.LotID, user string, field int) {
	t.Helper()
	record := strings.Split(s.do(t, "HGET", s.key(t, "lot", lot), attemptOf(lot, user)), "\t")
	record[field] = "77/0"
	s.do(t, "HSET", s.key(t, "lot", lot), attemptOf(lot, user), strings.Join(record, "\t"))
}

// count writes what counts for a user, beside the records; "" for nothing.
func (s *shop) count(t testing.TB, lot drop.LotID, user, text string) {
	t.Helper()
	s.unfold(t, lot, user)
	if text == "" {
		s.do(t, "HDEL", s.key(t, "lot", lot), drop.MarkOf(lot, user))
	} else {
		s.do(t, "HSET", s.key(t, "lot", lot), drop.MarkOf(lot, user), text)
	}
}

// key returns the name of one of a lot's keys: lot, res, user, due.
func (s *shop) key(t testing.TB, kind string, lot drop.LotID) string {
	t.Helper()
	name := s.do(t, "KEYS", "drop:*:"+kind+":"+string(lot))
	if name == "" || strings.Contains(name, "\n") {
		t.Fatalf("no single key %s of %s: %q", kind, lot, name)
	}
	return name
}

// moveDue gives all due entries of a lot another time, 13 digits, or removes them.
func (s *shop) moveDue(t testing.TB, lot drop.LotID, at string) {
	t.Helper()
	const script = `for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], '[' .. ARGV[1] .. '\t', '(' .. ARGV[1] .. '\n')) do
  redis.call('ZREM', KEYS[1], member)
  if ARGV[2] ~= '' then redis.call('ZADD', KEYS[1], '0', (string.gsub(member, '\t%d+\t', '\t' .. ARGV[2] .. '\t', 1))) end
end`
	shard := strings.TrimSuffix(s.key(t, "lot", lot), "lot:"+string(lot))
	s.do(t, "EVAL", script, "1", shard+"due", string(lot), at)
}

func (s *shop) do(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.redis.Do(t.Context(), args...)
	if err != nil {
		t.Fatalf("%s: %v", args[0], err)
	}
	return out
}

func (s *shop) reconcile(t testing.TB, o reconcile.Options) reconcile.Report {
	t.Helper()
	o.Installation = s.ledger.Installation().ID
	report, err := reconcile.Run(t.Context(), s.stock, wire.ReconcileLedger(s.ledger), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func rowOf(t testing.TB, r reconcile.Report, lot drop.LotID) reconcile.Row {
	t.Helper()
	for _, row := range r.Rows {
		if row.Lot == lot {
			return row
		}
	}
	t.Fatalf("no row for %s", lot)
	return reconcile.Row{}
}
