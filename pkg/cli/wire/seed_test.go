package wire_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// shop is a private Redis and a private migrated database, opened as a command opens them.
type shop struct {
	redis  *lab.Redis
	db     testkit.Database
	stock  *stock.Stock
	ledger *ledger.Ledger
}

func openShop(t *testing.T) shop {
	t.Helper()
	s := shop{redis: testkit.Redis(t), db: stores.Database(t, 4)}
	s.ledger = stores.Ledger(t, s.db)
	s.stock = s.openStock(t)
	return s
}

func (s shop) openStock(t *testing.T) *stock.Stock {
	t.Helper()
	return stores.Stock(t, s.redis.URL(), s.ledger)
}

func rows(t *testing.T, csv string) []seed.Row {
	t.Helper()
	list, err := seed.Read(strings.NewReader(csv), seed.Input{Name: "lots.csv", Format: seed.CSV})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (s shop) seed(ctx context.Context, t *testing.T, csv string, o seed.Options) ([]seed.Item, error) {
	t.Helper()
	o.Actor, o.Installation = "ci@test", s.ledger.Installation().ID
	return seed.Run(ctx, rows(t, csv), wire.SeedStock(s.stock), wire.SeedLedger(s.ledger), o)
}

func (s shop) mustSeed(t *testing.T, csv string, o seed.Options) []seed.Item {
	t.Helper()
	items, err := s.seed(t.Context(), t, csv, o)
	if err != nil {
		t.Fatalf("seeding %q: %v; %+v", csv, err, items)
	}
	return items
}

// sell takes a unit for each of n users, who confirm them, and returns the last reservation.
func (s shop) sell(t *testing.T, lot drop.LotID, n int) (last drop.ReservationID) {
	t.Helper()
	for i := range n {
		user := fmt.Sprintf("user-%d", i)
		out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: user, Qty: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActConfirm, Ref: "paid"}); err != nil {
			t.Fatal(err)
		}
		last = out.Reservation.ID
	}
	return last
}

// drain applies all that the outbox holds, as a worker does.
func (s shop) drain(t *testing.T) {
	t.Helper()
	lots, err := s.ledger.Lots(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for shard := range s.stock.Shards() {
		from := map[drop.LotID]drop.Watermark{}
		for _, l := range lots {
			if l.Lot.Shard(s.stock.Shards()) == shard {
				from[l.Lot] = l.Watermark
			}
		}
		events, err := s.stock.EventsSince(t.Context(), shard, from)
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range events {
			if _, err := s.ledger.Apply(t.Context(), list, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (s shop) lot(t *testing.T, id drop.LotID) (drop.LotState, ledger.Lot) {
	t.Helper()
	state, err := s.stock.Lot(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	lots, err := s.ledger.Lots(t.Context(), []drop.LotID{id})
	if err != nil || len(lots) != 1 {
		t.Fatalf("the ledger has %v, %v", lots, err)
	}
	return state, lots[0]
}

func TestSeedCreatesChangesAndKeeps(t *testing.T) {
	s := openShop(t)
	const text = "lot,stock,limit,hold,max_hold,opens,closes,late,status,name\n" +
		"hat,5,2,90s,1h,2026-12-01 10:00 Europe/Rome,2036-12-01T18:00:00Z,reclaim,paused,\"Hüte, \"\"rot\"\"\"\n" + "group:cap,0,,,,,,,,\n"
	items := s.mustSeed(t, text, seed.Options{})
	if items[0].Result != seed.ResultCreated || items[1].Result != seed.ResultCreated {
		t.Errorf("%+v", items)
	}
	want := rows(t, text)
	for _, row := range want {
		state, known := s.lot(t, row.Definition.Lot)
		if d := row.Definition.WithDefaults(); !state.Definition.Equal(d) || !known.Definition.Equal(d) || !known.Seen || known.Watermark != state.Watermark {
			t.Errorf("%+v is in Redis %+v, in the ledger %+v", d, state, known)
		}
	}
	for _, it := range s.mustSeed(t, text, seed.Options{}) {
		if it.Result != seed.ResultUnchanged {
			t.Errorf("seeding again: %+v", it)
		}
	}
	it := s.mustSeed(t, "lot,stock,limit,hold,max_hold,opens,closes,late,status,name\nhat,9,,,,,,,,\n", seed.Options{})[0]
	if it.Result != seed.ResultChanged || len(it.Changes) != 9 {
		t.Errorf("%+v", it)
	}
	s.sell(t, "hat", 3)
	s.drain(t)
	state, known := s.lot(t, "hat")
	if d := (drop.Definition{Lot: "hat", Stock: 9}).WithDefaults(); !state.Definition.Equal(d) || !known.Definition.Equal(d) || known.Sold != 3 || known.Stopped != "" {
		t.Errorf("in Redis %+v, in the ledger %+v", state, known)
	}
	items, err := s.seed(t.Context(), t, "lot,stock\nhat,2\ngroup:cap,4\n", seed.Options{})
	if !fault.Is(err, fault.Partial) || items[0].Action != seed.Refused || items[1].Result != seed.ResultChanged {
		t.Errorf("%+v, %v", items, err)
	}
	if _, _, err := s.stock.Adjust(t.Context(), drop.AdjustRequest{Lot: "hat", To: ptr(int64(20)), Expect: 9, Actor: "alice", Reason: "recount"}); err != nil {
		t.Fatal(err)
	}
	for _, drained := range []bool{false, true} {
		if items, err := s.seed(t.Context(), t, "lot,stock\nhat,9\n", seed.Options{}); !fault.Is(err, fault.Conflict) || !strings.Contains(items[0].Message, "by alice since the last seed (recount)") {
			t.Errorf("drained %v: %+v, %v", drained, items, err)
		}
		s.drain(t)
	}
	// A seed that agrees with the adjustment makes it its own.
	s.mustSeed(t, "lot,stock\nhat,20\n", seed.Options{})
	s.mustSeed(t, "lot,stock\nhat,21\n", seed.Options{})
	s.mustSeed(t, "lot,stock\nhat,10\n", seed.Options{Overwrite: true})
	s.drain(t)
	s.mustSeed(t, "lot,stock\nhat,11\n", seed.Options{})
}

// TestSeedKeepsWhatARefundTookOut refunds a unit that is not to be sold again; the file still has the old stock.
func TestSeedKeepsWhatARefundTookOut(t *testing.T) {
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,5\n", seed.Options{})
	id := s.sell(t, "hat", 1)
	if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: drop.ActRefund, Total: -1, NoRestock: true, Actor: "bob"}); err != nil {
		t.Fatal(err)
	}
	for _, drained := range []bool{false, true} {
		if items, err := s.seed(t.Context(), t, "lot,stock\nhat,5\n", seed.Options{}); !fault.Is(err, fault.Conflict) || !strings.Contains(items[0].Message, "by bob since the last seed (refund without restock)") {
			t.Errorf("drained %v: %+v, %v", drained, items, err)
		} else if !strings.Contains(items[0].Hint, "set the stock of hat to 4 in line 2 of the file, since 1 of its units") {
			t.Errorf("the hint is %q", items[0].Hint)
		}
		s.drain(t)
	}
	if state, known := s.lot(t, "hat"); state.Capacity != 4 || known.Stock != 4 {
		t.Errorf("Redis has %+v, the ledger %+v", state, known)
	}
}

func ptr[T any](v T) *T { return &v }

// TestSeedNeverMakesLostStockAnew empties Redis after sales; whether a worker ever ran makes no difference.
func TestSeedNeverMakesLostStockAnew(t *testing.T) {
	testkit.Long(t)
	for _, worker := range []bool{false, true} {
		s := openShop(t)
		s.mustSeed(t, "lot,stock\nhat,20\n", seed.Options{})
		s.sell(t, "hat", 10)
		if worker {
			s.drain(t)
		}
		if _, err := s.redis.Do(t.Context(), "FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		items, err := s.seed(t.Context(), t, "lot,stock\nhat,20\n", seed.Options{})
		if fault.ExitOf(err) != fault.ExitRefused || !strings.Contains(fault.HintOf(err), "dropctl restore hat") || items[0].Action != seed.Lost {
			t.Errorf("worker %v: %+v, %v", worker, items, err)
		}
		if lots, err := s.stock.Lots(t.Context()); err != nil || len(lots) != 0 {
			t.Errorf("worker %v: on sale are %v, %v", worker, lots, err)
		}
	}
}

func TestSeedRefusesAnotherInstallationsRedis(t *testing.T) {
	testkit.Long(t)
	s, other := openShop(t), openShop(t)
	s.mustSeed(t, "lot,stock\nhat,20\n", seed.Options{})
	other.redis = s.redis
	other.stock = other.openStock(t)
	for _, csv := range []string{"lot,stock\nhat,21\n", "lot,stock\nhat,20\n", "lot,stock\ncap,1\ncup,1\ncan,1\n"} {
		if items, err := other.seed(t.Context(), t, csv, seed.Options{}); !fault.Is(err, fault.Foreign) || items != nil {
			t.Errorf("seeding %q: %+v, %v", csv, items, err)
		}
	}
	if lots, err := s.stock.Lots(t.Context()); err != nil || len(lots) != 1 {
		t.Errorf("Redis has %v, %v", lots, err)
	}
}

// TestSeedCreatesNothingWhereThereIsNoRoom: a Redis out of memory would take the lot itself, and then no hold of it.
func TestSeedCreatesNothingWhereThereIsNoRoom(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,20\n", seed.Options{})
	if _, err := s.redis.Do(t.Context(), "CONFIG", "SET", "maxmemory", "1"); err != nil {
		t.Fatal(err)
	}
	// What is there may be changed: that needs no room to speak of.
	items, err := s.seed(t.Context(), t, "lot,stock\nhat,21\ncap,5\n", seed.Options{})
	if !fault.Is(err, fault.Partial) || items[0].Result != seed.ResultChanged || items[1].Code != fault.OutOfMemory || items[1].Hint == "" {
		t.Errorf("seeded %+v, %v", items, err)
	}
	if _, err := s.stock.Lot(t.Context(), "cap"); !fault.Is(err, fault.LotNotLoaded) {
		t.Errorf("looking at the lot: %v", err)
	}
	if lots, err := s.ledger.Lots(t.Context(), []drop.LotID{"cap"}); err != nil || len(lots) != 0 {
		t.Errorf("the ledger has %+v, %v", lots, err)
	}
	if _, err := s.redis.Do(t.Context(), "CONFIG", "SET", "maxmemory", "0"); err != nil {
		t.Fatal(err)
	}
	s.mustSeed(t, "lot,stock\nhat,21\ncap,5\n", seed.Options{})
}

// TestSeedHealsACrashBetweenTheStores ends a seed between ledger and Redis, as a crash does, and seeds again.
func TestSeedHealsACrashBetweenTheStores(t *testing.T) {
	s := openShop(t)
	crashed := errors.New("crashed")
	for _, after := range []string{"CreateLot", "IssueEpoch", "Load"} {
		id := drop.LotID("lot-" + after)
		list := rows(t, "lot,stock\n"+string(id)+",7\n")
		l := crashing{wire.SeedLedger(s.ledger), after, crashed}
		st := crashingStock{wire.SeedStock(s.stock), after, crashed}
		if _, err := seed.Run(t.Context(), list, st, l, seed.Options{Actor: "ci", Installation: s.ledger.Installation().ID}); !errors.Is(err, crashed) {
			t.Fatalf("after %s: %v", after, err)
		}
		it := s.mustSeed(t, "lot,stock\n"+string(id)+",7\n", seed.Options{})[0]
		if want := map[string]seed.Result{"Load": seed.ResultUnchanged}[after]; it.Result != want && it.Result != seed.ResultLoaded {
			t.Errorf("after %s: %+v", after, it)
		}
		state, known := s.lot(t, id)
		if state.Available != 7 || state.Capacity != 7 || !known.Seen || known.Watermark != state.Watermark {
			t.Errorf("after %s: Redis has %+v, the ledger %+v", after, state, known)
		}
	}
}

// TestALoadThatComesLateIsNotLoadedTwice lets a seed give up on a load that is still under way, so that it comes
// through while the next seed is about to load.
func TestALoadThatComesLateIsNotLoadedTwice(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	late := &lateStock{Stock: wire.SeedStock(s.stock)}
	o := seed.Options{Actor: "ci", Installation: s.ledger.Installation().ID}
	first := rows(t, "lot,stock\nsame,7\nother,7\n")
	if _, err := seed.Run(t.Context(), first, late, wire.SeedLedger(s.ledger), o); err == nil || len(late.under) != 2 {
		t.Fatalf("the first seed: %v", err)
	}
	items, err := seed.Run(t.Context(), rows(t, "lot,stock\nsame,7\nother,9\n"), late, wire.SeedLedger(s.ledger), o)
	if !fault.Is(err, fault.Partial) || items[0].Result != seed.ResultLoaded || items[1].Result != seed.ResultFailed {
		t.Fatalf("the second seed: %+v, %v", items, err)
	}
	s.sell(t, "same", 3)
	s.sell(t, "other", 3)
	s.mustSeed(t, "lot,stock\nsame,7\nother,9\n", seed.Options{})
	s.drain(t)
	for id, stock := range map[drop.LotID]int64{"same": 7, "other": 9} {
		state, known := s.lot(t, id)
		if state.Capacity != stock || known.Stock != stock || known.Sold != 3 || known.Stopped != "" || known.Watermark != state.Watermark {
			t.Errorf("Redis has %+v, the ledger %+v", state, known)
		}
	}
	if dead, err := s.ledger.DeadLetters(t.Context(), "", 0, 10); err != nil || len(dead) > 0 {
		t.Errorf("dead letters %+v, %v", dead, err)
	}
}

// lateStock carries out a lot's first load only when the second one is asked for.
type lateStock struct {
	seed.Stock
	mu    sync.Mutex
	under map[drop.LotID]seed.LoadRequest
}

func (l *lateStock) Load(ctx context.Context, r seed.LoadRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first, asked := l.under[r.Definition.Lot]; asked {
		if err := l.Stock.Load(ctx, first); err != nil {
			return err
		}
		return l.Stock.Load(ctx, r)
	}
	if l.under == nil {
		l.under = map[drop.LotID]seed.LoadRequest{}
	}
	l.under[r.Definition.Lot] = r
	return fault.New(fault.OutcomeUnknown, "no answer in time")
}

// crashing and crashingStock do a step and then lose everything that was to follow it.
type crashing struct {
	seed.Ledger
	after string
	err   error
}

func (c crashing) CreateLot(ctx context.Context, d drop.Definition, actor string) (bool, error) {
	created, err := c.Ledger.CreateLot(ctx, d, actor)
	if c.after == "CreateLot" {
		err = c.err
	}
	return created, err
}

func (c crashing) IssueEpoch(ctx context.Context, lot drop.LotID, actor, reason string) (int64, drop.Watermark, error) {
	epoch, closing, err := c.Ledger.IssueEpoch(ctx, lot, actor, reason)
	if c.after == "IssueEpoch" {
		err = c.err
	}
	return epoch, closing, err
}

type crashingStock struct {
	seed.Stock
	after string
	err   error
}

func (c crashingStock) Load(ctx context.Context, r seed.LoadRequest) error {
	err := c.Stock.Load(ctx, r)
	if c.after == "Load" && err == nil {
		err = c.err
	}
	return err
}

// TestSeedManyLotsQuickly also runs two seeds of the same file at once: one creates, the other finds.
func TestSeedManyLotsQuickly(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	n := 1000
	if testing.Short() {
		n = 100
	}
	var b strings.Builder
	b.WriteString("lot,stock\n")
	for i := range n {
		fmt.Fprintf(&b, "lot-%04d,%d\n", i, i)
	}
	start := time.Now()
	type outcome struct {
		items []seed.Item
		err   error
	}
	done := make(chan outcome, 2)
	for range 2 {
		go func() {
			items, err := s.seed(t.Context(), t, b.String(), seed.Options{})
			done <- outcome{items, err}
		}()
	}
	created := 0
	for range 2 {
		o := <-done
		if o.err != nil {
			t.Fatal(o.err)
		}
		for _, it := range o.items {
			if it.Result == seed.ResultCreated {
				created++
			}
		}
	}
	t.Logf("%d lots seeded twice at once in %s", n, time.Since(start))
	if created != n {
		t.Errorf("%d of %d lots created", created, n)
	}
}
