package reconcile_test

import (
	"context"
	"fmt"
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

// derivedFaults are faults of derived data beyond those that are planted everywhere.
var derivedFaults = []planted{
	{"a user's counters are garbage", func(t *testing.T, s *shop, lot drop.LotID) {
		s.count(t, lot, holds, "?")
	}, fault.VerdictDrift, "user", false},
	{"a user's counters are below zero", func(t *testing.T, s *shop, lot drop.LotID) {
		s.count(t, lot, holds, "-1\t0\t\t"+holds)
	}, fault.VerdictDrift, "user", false},
	{"a user's counters are no numbers of units", func(t *testing.T, s *shop, lot drop.LotID) {
		s.count(t, lot, holds, "99999999999999999999\t+1\t\t"+holds)
	}, fault.VerdictDrift, "user", false},
	{"a user's live hold is another's", func(t *testing.T, s *shop, lot drop.LotID) {
		s.count(t, lot, holds, "3\t0\t"+attemptOf(lot, bought)+"\t"+holds)
	}, fault.VerdictDrift, "user", false},
	{"a user's name is another's", func(t *testing.T, s *shop, lot drop.LotID) {
		s.count(t, lot, holds, "3\t0\t"+attemptOf(lot, holds)+"\t"+bought)
	}, fault.VerdictDrift, "user", false},
	{"a user nobody knows is garbage", func(t *testing.T, s *shop, lot drop.LotID) {
		s.count(t, lot, "nobody", "x")
	}, fault.VerdictDrift, "user", false},
	{"a due entry is garbage", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "ZADD", s.shardKey(t, lot, "due"), "0", string(lot)+"\t!")
	}, fault.VerdictDrift, "stray_due", false},
	{"a due entry has a time that sorts nowhere", func(t *testing.T, s *shop, lot drop.LotID) { s.moveDue(t, lot, "9") }, fault.VerdictDrift, "stray_due", false},
	{"the sweep does not come", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "ZREM", s.shardKey(t, lot, "next"), string(lot))
	}, fault.VerdictDrift, "next_look", false},
	{"the sweep comes too late", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "ZADD", s.shardKey(t, lot, "next"), "9000000000000", string(lot))
	}, fault.VerdictDrift, "next_look", false},
	{"a batch stays behind", func(t *testing.T, s *shop, lot drop.LotID) {
		s.do(t, "HSET", s.key(t, "lot", lot), "#left", "1\t1\t1\t")
	}, fault.VerdictDrift, "batch", false},
}

func (f planted) derived() bool {
	return slices.Contains([]string{"user", "due", "stray_due", "next_look", "batch"}, f.check)
}

func (s *shop) shardKey(t testing.TB, lot drop.LotID, kind string) string {
	return strings.TrimSuffix(s.key(t, "lot", lot), "lot:"+string(lot)) + kind
}

// repair reconciles with --repair.
func (s *shop) repair(t testing.TB, o reconcile.Options) reconcile.Report {
	t.Helper()
	return s.reconcile(t, repairing(o))
}

func repairing(o reconcile.Options) reconcile.Options {
	o.Repair, o.Deep, o.Actor, o.Reason = true, true, "olga", "ticket 7"
	if o.MaxRepair == 0 {
		o.MaxRepair = 1000
	}
	if o.MaxLag == 0 {
		o.MaxLag = time.Minute
	}
	return o
}

// content is all that Redis has of a lot.
func (s *shop) content(t testing.TB, lot drop.LotID) string {
	fields := strings.Split(s.do(t, "HGETALL", s.key(t, "lot", lot)), "\n")
	slices.Sort(fields)
	return strings.Join(fields, "\n") + s.do(t, "ZRANGEBYLEX", s.shardKey(t, lot, "due"), "["+string(lot)+"\t", "("+string(lot)+"\n")
}

// TestWhatIsDerivedIsRepairedAndNothingElse plants every fault there is, each in a lot of its own.
func TestWhatIsDerivedIsRepairedAndNothingElse(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	all := append(slices.Clone(faults), derivedFaults...)
	lots := make([]drop.LotID, len(all))
	for i := range all {
		lots[i] = drop.LotID(fmt.Sprintf("lot-%d", i))
		s.load(t, drop.Definition{Lot: lots[i], Stock: 5000, Limit: 10})
		s.sell(t, lots[i], 0, 4*len(waysOut))
	}
	s.drain(t)
	before := map[drop.LotID]string{}
	for i, f := range all {
		if f.plant(t, s, lots[i]); !f.derived() && f.check != "lot" {
			before[lots[i]] = s.content(t, lots[i])
		}
	}

	dry := s.repair(t, reconcile.Options{DryRun: true})
	if dry.Planned == 0 || dry.Repaired != 0 || fault.CodeOf(dry.Err()) != fault.Finding {
		t.Errorf("dry run: %d planned, %d repaired, %v", dry.Planned, dry.Repaired, dry.Err())
	}
	if n := s.db.SQL(t, `SELECT count(*) FROM repairs`); strings.TrimSpace(n) != "0" {
		t.Errorf("a dry run wrote down %s repairs", n)
	}
	for i, f := range all {
		f.expect(t, rowOf(t, dry, lots[i])) // still there
	}

	report := s.repair(t, reconcile.Options{})
	if report.Repaired < dry.Planned || fault.ExitOf(report.Err()) != fault.ExitPartial {
		t.Errorf("%d repaired, %v", report.Repaired, report.Err())
	}
	after := s.reconcile(t, reconcile.Options{Deep: true, MaxLag: time.Minute})
	for i, f := range all {
		row, again := rowOf(t, report, lots[i]), rowOf(t, after, lots[i])
		if f.derived() {
			if row.Verdict != fault.VerdictOK || len(row.Repairs) == 0 || row.Repairs[0].Result != "repaired" || again.Verdict != fault.VerdictOK {
				t.Errorf("%s: %+v; looked at again: %+v", f.name, row, again)
			}
			continue
		}
		f.expect(t, row)
		if len(row.Repairs) > 0 || strings.Contains(row.Next, "--repair") {
			t.Errorf("%s: repaired %v, next %s", f.name, row.Repairs, row.Next)
		}
		if was, ok := before[lots[i]]; ok && s.content(t, lots[i]) != was {
			t.Errorf("%s: the lot was touched", f.name)
		}
	}
	if odd := s.db.SQL(t, `SELECT * FROM repairs WHERE actor <> 'olga' OR reason <> 'ticket 7' OR outcome <> 'done' OR run IS NULL OR evidence->'differences'->0->>'check' IS NULL OR (evidence->'at'->>'seq')::int = 0`); odd != "" {
		t.Errorf("odd repairs in the account:\n%s", odd)
	}
	past, err := reconcile.History(t.Context(), wire.ReconcileHistory(s.ledger), 10)
	if err != nil || past[1].What != "reconcile --repair" || past[1].Repaired == 0 {
		t.Errorf("history: %+v, %v", past, err)
	}
}

// TestARepairedHoldIsTakenBack: without its due entry a hold would stay for ever in a lot that nobody buys from.
func TestARepairedHoldIsTakenBack(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 100, Hold: 2 * time.Second})
	var crowd sync.WaitGroup
	for i := range 20 { // some alone, some in batches
		crowd.Go(func() {
			if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "truffle", User: fmt.Sprint("user-", i), Key: "k", Qty: 1}); err != nil {
				t.Error(err)
			}
		})
	}
	crowd.Wait()
	s.drain(t)
	s.moveDue(t, "truffle", "")
	s.do(t, "ZREM", s.shardKey(t, "truffle", "next"), "truffle")
	if report := s.repair(t, reconcile.Options{}); report.Err() != nil || report.Repaired < 20 {
		t.Fatalf("%+v", report)
	}
	s.work(t)
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		state, err := s.stock.Lot(t.Context(), "truffle")
		return err == nil && state.Available == 100, fmt.Sprint(state.Totals, err)
	})
	report := s.reconcile(t, reconcile.Options{Deep: true, Wait: 20 * time.Second})
	if report.Err() != nil || strings.Contains(s.do(t, "HKEYS", s.key(t, "lot", "truffle")), "#") {
		t.Errorf("%+v\n%s", report, s.do(t, "HKEYS", s.key(t, "lot", "truffle")))
	}
}

// Due entries of no lot are told of, and taken away; those of lots stay, also of one that only the ledger has, which a restore
// brings back.
func TestDueEntriesOfNoLotAreTakenAway(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	for _, lot := range []drop.LotID{"g:truffle", "g:lost"} {
		s.load(t, drop.Definition{Lot: lot, Stock: 100})
		s.sell(t, lot, 0, 4)
	}
	s.drain(t)
	s.do(t, "DEL", s.key(t, "lot", "g:lost"))
	due := s.shardKey(t, "g:truffle", "due")
	sound := s.do(t, "ZRANGE", due, "0", "-1")
	for _, garbage := range []string{"!", "trufflf\t0000000000001\t\t", "a\xff\tb", "g:truffle", "zz\t9"} {
		s.do(t, "ZADD", due, "0", garbage)
	}
	if report := s.reconcile(t, reconcile.Options{Lots: []drop.LotID{"g:truffle"}, Deep: true, MaxLag: time.Minute}); report.Err() != nil {
		t.Errorf("a lot is blamed for what is not its own: %v", report.Err())
	}
	shard := drop.LotID(fmt.Sprintf("(shard %d)", drop.LotID("g:truffle").Shard(4)))
	row := rowOf(t, s.reconcile(t, reconcile.Options{Deep: true, MaxLag: time.Minute}), shard)
	if !row.Finding || len(row.Evidence) != 5 || row.Evidence[0].Check != "stray_due" || !strings.Contains(row.Next, "--repair") {
		t.Errorf("%+v", row)
	}
	if row := rowOf(t, s.repair(t, reconcile.Options{DryRun: true}), shard); len(row.Repairs) != 5 || row.Repairs[0].Result != "planned" {
		t.Errorf("planned %+v", row)
	}
	if report := s.repair(t, reconcile.Options{MaxRepair: 2}); report.Repaired != 2 || report.Left != 3 {
		t.Errorf("%d repaired, %d left: %v", report.Repaired, report.Left, report.Err())
	}
	report := s.repair(t, reconcile.Options{})
	if row := rowOf(t, report, shard); report.Repaired != 3 || row.Verdict != fault.VerdictOK || row.Repairs[0].Result != "repaired" {
		t.Errorf("%d repaired: %+v", report.Repaired, row)
	}
	if left := s.do(t, "ZRANGE", due, "0", "-1"); left != sound {
		t.Errorf("left are\n%s\nwant\n%s", left, sound)
	}
	if n := s.db.SQL(t, `SELECT count(*) FROM repairs WHERE what = 'stray due entry' AND outcome = 'done' AND lot LIKE '(shard %)'`); strings.TrimSpace(n) != "2" {
		t.Errorf("%s repairs in the account", n)
	}
}

func TestNoMoreIsRepairedThanAllowed(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	for _, lot := range []drop.LotID{"barolo", "truffle"} {
		s.load(t, drop.Definition{Lot: lot, Stock: 100})
		s.sell(t, lot, 0, 4)
	}
	s.drain(t)
	for _, lot := range []drop.LotID{"barolo", "truffle"} {
		for i := range 3 {
			s.count(t, lot, fmt.Sprint("user-", i), "")
		}
	}
	report := s.repair(t, reconcile.Options{MaxRepair: 4})
	if report.Repaired != 4 || report.Left != 2 || report.Findings != 1 || fault.ExitOf(report.Err()) != fault.ExitFinding || !strings.Contains(report.Err().Error(), " 2 left") {
		t.Errorf("%d repaired, %d left: %v", report.Repaired, report.Left, report.Err())
	}
	if report := s.repair(t, reconcile.Options{MaxRepair: 4}); report.Repaired != 2 || report.Left != 0 || report.Err() != nil {
		t.Errorf("%d repaired, %d left: %v", report.Repaired, report.Left, report.Err())
	}
}

func TestAFrozenShardIsNotRepaired(t *testing.T) {
	s := newShop(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 10})
	s.sell(t, "truffle", 0, 2)
	s.drain(t)
	s.count(t, "truffle", holds, "")
	seen, err := s.stock.ShardState(t.Context(), drop.LotID("truffle").Shard(4))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stock.Freeze(t.Context(), seen, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	report := s.repair(t, reconcile.Options{})
	row := rowOf(t, report, "truffle")
	if report.Repaired != 0 || row.Verdict != fault.VerdictDrift || len(row.Repairs) != 1 || row.Repairs[0].Result != "refused" || fault.ExitOf(report.Err()) != fault.ExitFinding {
		t.Errorf("%+v", report)
	}
	if how := s.db.SQL(t, `SELECT outcome FROM repairs`); strings.TrimSpace(how) != "failed" {
		t.Errorf("the account says %s", how)
	}
}

// gated lets a repair wait between its account and its script.
type gated struct {
	*stock.Stock
	reached, open chan struct{}
}

func (g gated) Repair(ctx context.Context, seen drop.LotState, fixes []drop.Fix) ([]drop.FixOutcome, error) {
	select {
	case g.reached <- struct{}{}:
	case <-g.open:
	}
	<-g.open
	return g.Stock.Repair(ctx, seen, fixes)
}

// TestARepairPausedPastItsLockChangesNothing: another run has repaired the lot meanwhile, and one of its users went on.
func TestARepairPausedPastItsLockChangesNothing(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 100})
	s.sell(t, "truffle", 0, 4)
	s.drain(t)
	for _, user := range []string{holds, bought} {
		s.count(t, "truffle", user, "7\t7\t\t"+user)
	}
	g := gated{s.stock, make(chan struct{}), make(chan struct{})}
	type result struct {
		report reconcile.Report
		err    error
	}
	first := make(chan result, 1)
	go func() {
		o := repairing(reconcile.Options{Installation: s.ledger.Installation().ID})
		report, err := reconcile.Run(context.WithoutCancel(t.Context()), g, wire.ReconcileLedger(s.ledger), o)
		first <- result{report, err}
	}()
	<-g.reached

	o := repairing(reconcile.Options{Installation: s.ledger.Installation().ID})
	if _, err := reconcile.Run(t.Context(), s.stock, wire.ReconcileLedger(s.ledger), o); fault.ExitOf(err) != fault.ExitBusy {
		t.Errorf("a second repair at once: %v", err)
	}
	s.db.SQL(t, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()`)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		report, err := reconcile.Run(t.Context(), s.stock, wire.ReconcileLedger(s.ledger), o)
		return err == nil && report.Err() == nil && report.Repaired == 2, fmt.Sprintf("%+v, %v", report, err)
	})
	id := drop.ReservationID{Lot: "truffle", Attempt: attemptOf("truffle", holds)}
	known, err := s.stock.RecordsOf(t.Context(), "truffle", []string{id.Attempt})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: known[id.Attempt].ID, Action: drop.ActRelease}); err != nil {
		t.Fatal(err)
	}
	before := s.content(t, "truffle")
	close(g.open)
	r := <-first
	if r.err != nil || r.report.Repaired != 0 {
		t.Fatalf("the paused repair: %+v, %v", r.report, r.err)
	}
	if after := s.content(t, "truffle"); after != before {
		t.Errorf("it changed\n%q into\n%q", before, after)
	}
	results := map[string]string{}
	for _, done := range rowOf(t, r.report, "truffle").Repairs {
		results[done.Subject] = done.Result
	}
	if results[holds] != "changed" || results[bought] != "unneeded" {
		t.Errorf("results %v", results)
	}
	if how := s.db.SQL(t, `SELECT outcome FROM repairs ORDER BY id`); strings.TrimSpace(how) != "nothing\ndone" {
		t.Errorf("the account says %q", how)
	}
}

// TestRepairWorksUnderLiveTraffic: faults are planted in a lot while it sells, among others into the due entries of
// people who buy at that moment; what can be told at once is repaired at once, and nothing else is harmed.
func TestRepairWorksUnderLiveTraffic(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	const lot = drop.LotID("truffle")
	s.load(t, drop.Definition{Lot: lot, Stock: 500, Hold: time.Second, Late: drop.Reclaim})
	quiet := make([]drop.ReservationID, 12)
	for i := range quiet {
		out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprint("quiet-", i), Key: "k", Qty: 2, Hold: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if quiet[i] = out.Reservation.ID; i%2 == 0 {
			if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: quiet[i], Action: drop.ActConfirm, Ref: "pay"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int64
	var crowd sync.WaitGroup
	for u := range 12 {
		crowd.Go(func() { s.shopper(ctx, t, []drop.LotID{lot}, u, &calls) })
	}
	s.work(t)
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		s.moveDue(t, lot, "")
		for user, text := range map[string]string{"quiet-0": "", "quiet-1": "", "quiet-2": "5\t1\t\tquiet-2", "quiet-3": "9\t9\t\tquiet-3"} {
			s.count(t, lot, user, text)
		}
		s.do(t, "HSET", s.key(t, "lot", lot), fmt.Sprint("#left-", round), "1\t1\t1\t")
		begun := calls.Load()
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			report := s.repair(t, reconcile.Options{})
			row := rowOf(t, report, lot)
			text := s.do(t, "HMGET", s.key(t, "lot", lot), drop.MarkOf(lot, "quiet-0"), drop.MarkOf(lot, "quiet-1"), drop.MarkOf(lot, "quiet-2"), drop.MarkOf(lot, "quiet-3"), fmt.Sprint("#left-", round))
			want := fmt.Sprintf("0\t2\t\tquiet-0\n2\t0\t%s\tquiet-1\n0\t2\t\tquiet-2\n2\t0\t%s\tquiet-3", quiet[1].Attempt, quiet[3].Attempt)
			return strings.TrimSpace(text) == want && s.allDue(t, lot, quiet), fmt.Sprintf("%q\n%+v", text, row)
		})
		if calls.Load() == begun {
			t.Error("nobody came by meanwhile")
		}
	}
	cancel()
	crowd.Wait()
	testkit.Eventually(t, time.Minute, func() (bool, string) {
		report := s.repair(t, reconcile.Options{Wait: 5 * time.Second})
		return report.Err() == nil && report.OK == 1, fmt.Sprintf("%+v", report)
	})
	testkit.Eventually(t, 20*time.Second, func() (bool, string) { // the crowd's holds come back, the quiet ones stay
		state, err := s.stock.Lot(t.Context(), lot)
		return err == nil && state.Held == int64(len(quiet)), fmt.Sprint(state.Totals, err)
	})
	report := s.reconcile(t, reconcile.Options{Deep: true, Wait: 30 * time.Second})
	if report.Err() != nil || report.OK != 1 {
		t.Errorf("at the end: %+v", report)
	}
	t.Logf("%d calls meanwhile, repairs: %s", calls.Load(), s.db.SQL(t, `SELECT what, outcome, count(*) FROM repairs GROUP BY 1, 2`))
}

// allDue reports whether each of the reservations that is a hold has a due entry.
func (s *shop) allDue(t testing.TB, lot drop.LotID, ids []drop.ReservationID) bool {
	due := map[string]bool{}
	err := s.stock.DueEntries(t.Context(), lot, func(page []drop.DueEntry) error {
		for _, d := range page {
			for _, attempt := range d.Attempts {
				due[attempt] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		if i%2 == 1 && !due[id.Attempt] {
			return false
		}
	}
	return true
}
