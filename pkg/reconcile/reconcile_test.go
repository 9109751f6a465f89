package reconcile_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// planted is one fault, put into a lot behind everybody's back.
type planted struct {
	name    string
	plant   func(t *testing.T, s *shop, lot drop.LotID)
	verdict fault.Code
	check   string // the evidence it must leave
	shallow bool   // seen without --deep too
}

var faults = []planted{
	{"units appear", func(t *testing.T, s *shop, lot drop.LotID) {
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "available", 1)
	}, fault.VerdictDrift, "invariant", true},
	{"units vanish", func(t *testing.T, s *shop, lot drop.LotID) {
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "available", -1)
	}, fault.VerdictDrift, "invariant", true},
	{"held counted as available", func(t *testing.T, s *shop, lot drop.LotID) {
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "available", 1)
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "held", -1)
	}, fault.VerdictDrift, "held", true},
	{"sold counted as held", func(t *testing.T, s *shop, lot drop.LotID) {
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "sold", -1)
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "held", 1)
	}, fault.VerdictDrift, "sold", true},
	{"capacity grows", func(t *testing.T, s *shop, lot drop.LotID) {
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "available", 5)
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "capacity", 5)
	}, fault.VerdictDrift, "capacity", true},
	{"a rule changes", func(t *testing.T, s *shop, lot drop.LotID) {
		testkit.Plant(t, s.redis, s.key(t, "lot", lot), "limit", 77)
	}, fault.VerdictDrift, "limit", true},
	{"seq jumps ahead", func(t *testing.T, s *shop, lot drop.LotID) { testkit.Plant(t, s.redis, s.key(t, "lot", lot), "seq", 3) }, fault.VerdictDrift, "events", true},
	{"the lot is garbage", func(t *testing.T, s *shop, lot drop.LotID) { s.do(t, "HSET", s.key(t, "lot", lot), "live", "?") }, fault.VerdictDrift, "lot", true},
	{"the lot's rules are not its own", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "EVAL", "local f = { struct.unpack('>i6i6i6i6i6i6ss', redis.call('HGET', KEYS[1], 'rule')) } f[2] = f[2] + 1 return redis.call('HSET', KEYS[1], 'rule', struct.pack('>i6i6i6i6i6i6ss', unpack(f, 1, 8)))", "1", s.key(t, "lot", lot))
	}, fault.VerdictDrift, "lot", true},
	{"the lot is deleted", func(t *testing.T, s *shop, lot drop.LotID) { s.do(t, "DEL", s.key(t, "lot", lot)) }, fault.VerdictMissing, "lot", true},
	{"the ledger counts another hold", func(t *testing.T, s *shop, lot drop.LotID) {
		s.db.SQL(t, fmt.Sprintf(`UPDATE lots SET held = held + 1 WHERE lot = '%s'`, lot))
	}, fault.VerdictDrift, "held", true},

	{"a hold is lost", func(t *testing.T, s *shop, lot drop.LotID) {
		s.unfold(t, lot, holds)
		s.do(t, "HDEL", s.key(t, "lot", lot), attemptOf(lot, holds))
	}, fault.VerdictDrift, "record", false},
	{"a hold is lost with its user", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "HDEL", s.key(t, "lot", lot), drop.MarkOf(lot, holds))
	}, fault.VerdictDrift, "record", false},
	{"a hold is garbage with its user", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "HSET", s.key(t, "lot", lot), drop.MarkOf(lot, holds), "h")
	}, fault.VerdictDrift, "record", false},
	{"a sale is lost", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "HDEL", s.key(t, "lot", lot), attemptOf(lot, bought))
	}, fault.VerdictDrift, "record", false},
	{"a hold's request is another", func(t *testing.T, s *shop, lot drop.LotID) {
		s.unfold(t, lot, holds)
		s.askedAnother(t, lot, holds, 2)
	}, fault.VerdictDrift, "record", false},
	{"an ended hold's request is another", func(t *testing.T, s *shop, lot drop.LotID) { s.askedAnother(t, lot, released, 1) }, fault.VerdictDrift, "record", false},
	{"a sale's request is another", func(t *testing.T, s *shop, lot drop.LotID) { s.askedAnother(t, lot, bought, 2) }, fault.VerdictDrift, "record", false},
	{"a hold appears", func(t *testing.T, s *shop, lot drop.LotID) {
		s.unfold(t, lot, holds)
		record := s.do(t, "HGET", s.key(t, "lot", lot), attemptOf(lot, holds))
		s.do(t, "HSET", s.key(t, "lot", lot), attemptOf(lot, "nobody"), record)
	}, fault.VerdictDrift, "record", false},
	{"an ended hold lives again", func(t *testing.T, s *shop, lot drop.LotID) {
		s.unfold(t, lot, holds)
		record := s.do(t, "HGET", s.key(t, "lot", lot), attemptOf(lot, holds))
		s.do(t, "HSET", s.key(t, "lot", lot), attemptOf(lot, released), record)
	}, fault.VerdictDrift, "record", false},
	{"an ended hold changes", func(t *testing.T, s *shop, lot drop.LotID) {
		record := strings.Split(s.do(t, "HGET", s.key(t, "lot", lot), attemptOf(lot, released)), "\t")
		record[2] = "2" // it gave 3 units back
		s.do(t, "HSET", s.key(t, "lot", lot), attemptOf(lot, released), strings.Join(record, "\t"))
	}, fault.VerdictDrift, "record", false},
	{"a hold holds more", func(t *testing.T, s *shop, lot drop.LotID) {
		s.unfold(t, lot, holds)
		record := strings.Split(s.do(t, "HGET", s.key(t, "lot", lot), attemptOf(lot, holds)), "\t")
		record[3] = "4"
		s.do(t, "HSET", s.key(t, "lot", lot), attemptOf(lot, holds), strings.Join(record, "\t"))
	}, fault.VerdictDrift, "sum_held", false},
	{"a record is garbage", func(t *testing.T, s *shop, lot drop.LotID) {
		s.unfold(t, lot, holds)
		s.do(t, "HSET", s.key(t, "lot", lot), attemptOf(lot, holds), "h")
	}, fault.VerdictDrift, "records", false},
	{"a record is there twice, once as garbage", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "HSET", s.key(t, "lot", lot), attemptOf(lot, holds), "h")
	}, fault.VerdictDrift, "records", false},
	{"a user has bought more", func(t *testing.T, s *shop, lot drop.LotID) {
		s.count(t, lot, bought, "0\t9\t\t"+bought)
	}, fault.VerdictDrift, "user", false},
	{"a user's counters are lost", func(t *testing.T, s *shop, lot drop.LotID) { s.count(t, lot, holds, "") }, fault.VerdictDrift, "user", false},
	{"a user appears", func(t *testing.T, s *shop, lot drop.LotID) {
		s.count(t, lot, "nobody", "1\t0\t\tnobody")
	}, fault.VerdictDrift, "user", false},
	{"the due entries are lost", func(t *testing.T, s *shop, lot drop.LotID) { s.moveDue(t, lot, "") }, fault.VerdictDrift, "due", false},
	{"a due entry comes too late", func(t *testing.T, s *shop, lot drop.LotID) { s.moveDue(t, lot, "9000000000000") }, fault.VerdictDrift, "due", false},
	{"the ledger forgets a hold", func(t *testing.T, s *shop, lot drop.LotID) {
		s.db.SQL(t, fmt.Sprintf(`DELETE FROM reservations WHERE lot = '%s' AND attempt = '%s'`, lot, attemptOf(lot, holds)))
	}, fault.VerdictDrift, "record", false},
	{"the ledger forgets an ended hold", func(t *testing.T, s *shop, lot drop.LotID) {
		s.db.SQL(t, fmt.Sprintf(`DELETE FROM reservations WHERE lot = '%s' AND attempt = '%s'`, lot, attemptOf(lot, released)))
	}, fault.VerdictDrift, "record", false},
	{"the ledger knows another buyer", func(t *testing.T, s *shop, lot drop.LotID) {
		s.db.SQL(t, fmt.Sprintf(`UPDATE reservations SET user_id = 'nobody' WHERE lot = '%s' AND attempt = '%s'`, lot, attemptOf(lot, bought)))
	}, fault.VerdictDrift, "record", false},
	{"a sale nobody made is recorded", func(t *testing.T, s *shop, lot drop.LotID) {
		s.db.SQL(t, fmt.Sprintf(`INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref) VALUES ('%s', 9999, 1, 'sale', 1, 'x', 'x', '')`, lot))
	}, fault.VerdictDrift, "sales", false},
}

// Scenario 21: the same faults with nothing and with much to be folded; lag itself is never taken for drift.
func TestPlantedFaultsAreFoundWhateverTheLag(t *testing.T) {
	testkit.Long(t)
	lags := []int{0, 500}
	if testing.Short() {
		lags[1] = 50
	}
	for _, lag := range lags {
		t.Run(fmt.Sprintf("lag %d", lag), func(t *testing.T) {
			s := newShop(t)
			sound := drop.LotID("sound")
			lots := []drop.LotID{sound}
			for i := range faults {
				lots = append(lots, drop.LotID(fmt.Sprintf("lot-%d", i)))
			}
			for _, lot := range lots {
				s.load(t, drop.Definition{Lot: lot, Stock: 5000, Limit: 10})
				s.sell(t, lot, 0, 2*len(waysOut))
			}
			s.drain(t)
			for _, lot := range lots {
				s.sell(t, lot, 100, lag/2) // a hold and, mostly, one event more
			}
			for i, f := range faults {
				f.plant(t, s, lots[i+1])
			}
			report := s.reconcile(t, reconcile.Options{MaxLag: time.Minute})
			deep := s.reconcile(t, reconcile.Options{MaxLag: time.Minute, Deep: true})
			want := fault.VerdictOK
			if lag > 0 {
				want = fault.VerdictLagging
			}
			if row := rowOf(t, deep, sound); row.Verdict != want || row.Finding || len(row.Evidence) > 0 || row.LagEvents < int64(lag)*9/10 {
				t.Errorf("the sound lot: %+v", row)
			}
			if row := rowOf(t, deep, sound); row.Records < int64(len(waysOut)+lag/4) {
				t.Errorf("only %d records proven", row.Records)
			}
			for i, f := range faults {
				if f.check == "sales" && lag > 0 {
					continue // sales are compared once nothing is pending
				}
				if f.shallow {
					f.expect(t, rowOf(t, report, lots[i+1]))
				}
				f.expect(t, rowOf(t, deep, lots[i+1]))
			}
			if deep.Err() == nil || fault.ExitOf(deep.Err()) != fault.ExitFinding {
				t.Errorf("the run ends with %v", deep.Err())
			}
		})
	}
}

func (f planted) expect(t *testing.T, row reconcile.Row) {
	t.Helper()
	found := slices.ContainsFunc(row.Evidence, func(e reconcile.Evidence) bool { return e.Check == f.check })
	if row.Verdict != f.verdict || !row.Finding || !found || row.Next == "" || row.Message == "" {
		t.Errorf("%s: verdict %s, finding %v, evidence %v; want %s with %s", f.name, row.Verdict, row.Finding, row.Evidence, f.verdict, f.check)
	}
	// Where the totals are equal, a restore has to be forced.
	if strings.Contains(row.Next, "dropctl restore") && strings.Contains(row.Next, "--force") == f.shallow {
		t.Errorf("%s: next: %s", f.name, row.Next)
	}
}

func TestALostEventIsDriftNotLag(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 100})
	s.drain(t)
	for i := range 3 { // one entry each
		s.sell(t, "truffle", i*len(waysOut), 1)
	}
	outbox := strings.TrimSuffix(s.key(t, "lot", "truffle"), "lot:truffle") + "outbox"
	entries := strings.Split(s.do(t, "XRANGE", outbox, "-", "+"), "\n")
	var ids []string
	for _, line := range entries {
		if ms, _, ok := strings.Cut(line, "-"); ok && len(ms) == 13 {
			ids = append(ids, line)
		}
	}
	if len(ids) < 3 {
		t.Fatalf("entries of %q: %q", outbox, entries)
	}
	s.do(t, "XDEL", outbox, ids[len(ids)-2])
	row := rowOf(t, s.reconcile(t, reconcile.Options{MaxLag: time.Minute}), "truffle")
	if row.Verdict != fault.VerdictDrift || row.Evidence[0].Check != "events" || !strings.Contains(row.Evidence[0].Note, "the events 3") {
		t.Errorf("%+v", row)
	}
}

func TestWhatRedisHasAndTheLedgerDoesNotKnowIsDrift(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	def := drop.Definition{Lot: "smuggled", Stock: 5}.WithDefaults()
	if err := s.stock.Load(t.Context(), stock.LoadRequest{Definition: def, Epoch: 1, Actor: "test", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if row := rowOf(t, s.reconcile(t, reconcile.Options{}), "smuggled"); row.Verdict != fault.VerdictDrift || !row.Finding {
		t.Errorf("%+v", row)
	}
}

// An archive that broke off is finished, and never undone by what reconcile says to run next.
func TestAnArchiveIsFinishedAndNotUndone(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 10, Status: drop.Closed})
	s.drain(t)
	lot, err := s.ledger.BeginArchive(t.Context(), "truffle", "test")
	if err != nil {
		t.Fatal(err)
	}
	s.do(t, "DEL", s.key(t, "lot", "truffle"))
	if row := rowOf(t, s.reconcile(t, reconcile.Options{}), "truffle"); row.Verdict != fault.VerdictMissing || row.Next != "dropctl lot archive truffle" {
		t.Errorf("broken off: %+v", row)
	}
	if err := s.ledger.FinishArchive(t.Context(), "truffle", lot.Watermark); err != nil {
		t.Fatal(err)
	}
	o := reconcile.Options{Installation: s.ledger.Installation().ID, Lots: []drop.LotID{"truffle"}}
	if _, err := reconcile.Run(t.Context(), s.stock, wire.ReconcileLedger(s.ledger), o); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "archived") {
		t.Errorf("finished: %v", err)
	}
}

func TestFrozenStoppedAndForgottenLots(t *testing.T) {
	s := newShop(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 10})
	s.drain(t)
	if _, err := s.ledger.CreateLot(t.Context(), drop.Definition{Lot: "planned", Stock: 3}.WithDefaults(), "test"); err != nil {
		t.Fatal(err)
	}
	row := rowOf(t, s.reconcile(t, reconcile.Options{}), "planned")
	if row.Verdict != fault.VerdictMissing || row.Next != "dropctl seed planned" {
		t.Errorf("created, never loaded: %+v", row)
	}
	seen, err := s.stock.ShardState(t.Context(), drop.LotID("truffle").Shard(4))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stock.Freeze(t.Context(), seen, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	row = rowOf(t, s.reconcile(t, reconcile.Options{Lots: []drop.LotID{"truffle"}, Deep: true}), "truffle")
	if row.Verdict != fault.VerdictFrozen || row.Reason != string(fault.FreezeOperator) || len(row.Evidence) != 0 {
		t.Errorf("frozen: %+v", row)
	}
	s.db.SQL(t, `UPDATE lots SET stopped = 'fork' WHERE lot = 'truffle'`)
	row = rowOf(t, s.reconcile(t, reconcile.Options{Lots: []drop.LotID{"truffle"}}), "truffle")
	if row.Verdict != fault.VerdictStopped || row.Reason != "fork" || row.Next != "dropctl explain fork" {
		t.Errorf("stopped: %+v", row)
	}
	_, err = reconcile.Run(t.Context(), s.stock, wire.ReconcileLedger(s.ledger), reconcile.Options{Installation: s.ledger.Installation().ID, Lots: []drop.LotID{"trufle"}})
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("an unknown lot: %v", err)
	}
}

func TestLagIsWaitedForAndBecomesAFindingWithAge(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 100})
	s.sell(t, "truffle", 0, 8)
	if row := rowOf(t, s.reconcile(t, reconcile.Options{MaxLag: time.Hour}), "truffle"); row.Verdict != fault.VerdictLagging || row.Finding {
		t.Errorf("within the limit: %+v", row)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		row := rowOf(t, s.reconcile(t, reconcile.Options{MaxLag: time.Millisecond}), "truffle")
		return row.Verdict == fault.VerdictLagging && row.Finding && row.Lag > 0, fmt.Sprintf("past the limit: %+v", row)
	})
	begin := time.Now()
	s.work(t)
	report := s.reconcile(t, reconcile.Options{MaxLag: time.Hour, Wait: 30 * time.Second, Deep: true})
	if row := rowOf(t, report, "truffle"); row.Verdict != fault.VerdictOK || row.Records == 0 || row.Unfinished != 0 {
		t.Errorf("after %s of waiting: %+v", time.Since(begin), row)
	}
	if report.WorkersAlive != 1 {
		t.Errorf("%d workers alive", report.WorkersAlive)
	}
}

func TestOneRunAtATimeAndEachIsRecorded(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 100})
	l := wire.ReconcileLedger(s.ledger)
	_, finish, err := l.StartRun(t.Context(), reconcile.Start{Actor: "first"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reconcile.Run(t.Context(), s.stock, l, reconcile.Options{Installation: s.ledger.Installation().ID}); fault.ExitOf(err) != fault.ExitBusy {
		t.Errorf("a second run: %v", err)
	}
	if err := finish(reconcile.Report{}, fault.New(fault.Unavailable, "Redis is away")); err != nil {
		t.Fatal(err)
	}
	testkit.Plant(t, s.redis, s.key(t, "lot", "truffle"), "available", 1)
	s.reconcile(t, reconcile.Options{Actor: "second"})
	runs := s.db.SQL(t, `SELECT actor, verdict, finished_at IS NOT NULL FROM reconcile_runs ORDER BY id`)
	if want := "first||t\nsecond|finding|t"; strings.TrimSpace(runs) != want {
		t.Errorf("recorded runs:\n%s\nwant\n%s", runs, want)
	}
}

// G10: whatever happens between two reads is never taken for a fault.
func TestNoFalseDriftUnderLiveTraffic(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	lots := []drop.LotID{"truffle", "barolo", "alba:day-1"}
	for _, lot := range lots {
		s.load(t, drop.Definition{Lot: lot, Stock: 60, Limit: 6, Hold: time.Second, Late: drop.Reclaim})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int64
	var crowd sync.WaitGroup
	for u := range 24 {
		crowd.Go(func() { s.shopper(ctx, t, lots, u, &calls) })
	}
	crowd.Go(func() { s.operator(ctx, lots) })
	s.work(t)

	length := 6 * time.Second
	if testing.Short() {
		length = 2 * time.Second
	}
	passes, records := 0, int64(0)
	for end := time.Now().Add(length); time.Now().Before(end) || passes < 6 || calls.Load() < 500; passes++ {
		report := s.reconcile(t, reconcile.Options{Deep: passes%2 == 1, MaxLag: time.Minute})
		records += report.Records
		for _, row := range report.Rows {
			if row.Finding || len(row.Evidence) > 0 {
				t.Fatalf("pass %d: %+v\ndead letters: %s", passes, row, s.db.SQL(t, "SELECT code, reason, line FROM dead_letters"))
			}
		}
	}
	t.Logf("%d passes, %d records compared, %d calls", passes, records, calls.Load())
	if records == 0 {
		t.Error("no record was compared")
	}
	cancel()
	crowd.Wait()
	report := s.reconcile(t, reconcile.Options{Deep: true, Wait: time.Minute}) // some holds still expire
	if report.Err() != nil || report.OK != len(lots) {
		t.Errorf("at the end: %+v", report)
	}
}

// TestNoFalseDriftWhereManyHoldsAreConfirmed: each leaves its user's field for one of its own, while all fields are read.
func TestNoFalseDriftWhereManyHoldsAreConfirmed(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	const n = 6000
	s.load(t, drop.Definition{Lot: "truffle", Stock: n, Hold: time.Hour})
	s.work(t)
	ids := make([]drop.ReservationID, n)
	each := func(fn func(i int)) {
		var crowd sync.WaitGroup
		for from := range 64 {
			crowd.Go(func() {
				for i := from; i < n && !t.Failed(); i += 64 {
					fn(i)
				}
			})
		}
		crowd.Wait()
	}
	each(func(i int) {
		out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "truffle", User: fmt.Sprint("user-", i), Key: "k", Qty: 1})
		if ids[i] = out.Reservation.ID; err != nil {
			t.Error(err)
		}
	})
	confirmed := make(chan struct{})
	go func() {
		defer close(confirmed)
		each(func(i int) {
			if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: ids[i], Action: drop.ActConfirm, Ref: "pay"}); err != nil {
				t.Error(err)
			}
			time.Sleep(60 * time.Millisecond)
		})
	}()
	for passes := 1; ; passes++ {
		for _, row := range s.reconcile(t, reconcile.Options{Deep: true, MaxLag: time.Minute}).Rows {
			if row.Finding || len(row.Evidence) > 0 {
				t.Errorf("pass %d: %+v", passes, row)
			}
		}
		select {
		case <-confirmed:
			return
		default:
		}
	}
}

// shopper reserves and settles at random until the context ends.
func (s *shop) shopper(ctx context.Context, t *testing.T, lots []drop.LotID, u int, calls *atomic.Int64) {
	rng := rand.New(rand.NewPCG(1, uint64(u)))
	for i := 0; ctx.Err() == nil; i++ {
		lot := lots[rng.IntN(len(lots))]
		out, err := s.stock.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: fmt.Sprint("user-", u), Key: fmt.Sprint("k", i), Qty: 1 + rng.Int64N(3)})
		calls.Add(1)
		if err != nil {
			refused(ctx, t, err)
			sleep(ctx, 2*time.Millisecond)
			continue
		}
		id := out.Reservation.ID
		for _, r := range []drop.SettleRequest{
			{Action: drop.ActExtend, By: 2 * time.Second}, {Action: drop.ActRelease, Keep: 1}, {Action: drop.ActConfirm, Ref: "pay"}, {Action: drop.ActRefund, Total: 1}, {Action: drop.ActRelease}, {Action: drop.ActRefund, Total: -1},
		} {
			if rng.IntN(2) == 0 {
				continue
			}
			r.ID = id
			settled, err := s.stock.Settle(ctx, r)
			if err == nil {
				id = settled.Reservation.ID
			} else {
				refused(ctx, t, err)
			}
			calls.Add(1)
			if rng.IntN(60) == 0 {
				sleep(ctx, 1200*time.Millisecond) // let the deadline pass
			}
		}
	}
}

// refused fails the test for an error that is no refusal.
func refused(ctx context.Context, t *testing.T, err error) {
	if ctx.Err() == nil && fault.ExitOf(err) != fault.ExitRefused {
		t.Errorf("%s: %v", fault.CodeOf(err), err)
	}
}

// operator changes the lots while they sell.
func (s *shop) operator(ctx context.Context, lots []drop.LotID) {
	rng := rand.New(rand.NewPCG(2, 0))
	for ctx.Err() == nil {
		lot := lots[rng.IntN(len(lots))]
		if state, err := s.stock.Lot(ctx, lot); err == nil {
			by := 1 - 2*rng.Int64N(2)
			_, _, _ = s.stock.Adjust(ctx, drop.AdjustRequest{Lot: lot, By: &by, Expect: state.Capacity, Actor: "operator", Reason: "test"})
			limit := 5 + rng.Int64N(5)
			_, _, _ = s.stock.Change(ctx, drop.ChangeRequest{Lot: lot, Limit: &limit, Actor: "operator", Reason: "test"})
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func TestAThousandQuietLotsAreOneReport(t *testing.T) {
	testkit.Long(t)
	n := 1000
	if testing.Short() {
		n = 100
	}
	s := newShop(t)
	var loading sync.WaitGroup
	for w := range 8 {
		loading.Go(func() {
			for i := w; i < n; i += 8 {
				s.load(t, drop.Definition{Lot: drop.LotID(fmt.Sprintf("lot-%d", i)), Stock: 10})
			}
		})
	}
	loading.Wait()
	s.drain(t)
	report := s.reconcile(t, reconcile.Options{})
	if report.OK != n {
		t.Errorf("%d of %d lots ok", report.OK, n)
	}
	t.Logf("%d lots in %s", n, report.Took)
}

// TestAnotherInstallationsRedisIsNotCompared: with the wrong database there is nothing to say about a lot, neither that
// it is well nor that Redis lost it.
func TestAnotherInstallationsRedisIsNotCompared(t *testing.T) {
	testkit.Long(t)
	ours, theirs := newShop(t), newShop(t)
	for _, s := range []*shop{ours, theirs} {
		s.load(t, drop.Definition{Lot: "truffle", Stock: 3})
		s.drain(t)
	}
	_, err := reconcile.Run(t.Context(), theirs.stock, wire.ReconcileLedger(ours.ledger), reconcile.Options{Installation: ours.ledger.Installation().ID})
	if !fault.Is(err, fault.Foreign) {
		t.Fatalf("got %v", err)
	}
	if runs := ours.db.SQL(t, `SELECT count(*) FROM reconcile_runs`); strings.TrimSpace(runs) != "0" {
		t.Errorf("%s runs were recorded", runs)
	}
}
