package wire_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/recovery"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func (s shop) rebuilder() *recovery.Rebuilder {
	r := wire.Rebuilder(s.stock, s.ledger)
	r.Patience = 200 * time.Millisecond
	return r
}

func (s shop) rebuild(t *testing.T, lot drop.LotID) recovery.Rebuilt {
	t.Helper()
	r := s.rebuilder()
	done, err := r.Rebuild(t.Context(), lot, "alice", "redis was lost")
	if err == nil {
		err = r.Record(t.Context(), []drop.LotID{lot})
	}
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func (s shop) flush(t *testing.T) {
	t.Helper()
	if _, err := s.redis.Do(t.Context(), "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
}

// wantProven checks that every record of all lots is the same on both sides.
func (s shop) wantProven(t *testing.T) reconcile.Report {
	t.Helper()
	report, err := reconcile.Run(t.Context(), s.stock, wire.ReconcileLedger(s.ledger), reconcile.Options{Deep: true, MaxLag: time.Minute, Actor: "test", Installation: s.ledger.Installation().ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range report.Rows {
		if len(row.Evidence) > 0 || row.Verdict != fault.VerdictOK && row.Unfinished == 0 {
			t.Errorf("%s is %s: %s %+v", row.Lot, row.Verdict, row.Message, row.Evidence)
		}
	}
	return report
}

// scene is a lot with a reservation of every fate, and the requests that made them.
type scene struct {
	lot   drop.LotID
	asked map[string]drop.ReserveRequest
	ids   map[string]drop.ReservationID
}

func (s shop) scene(t *testing.T, lot drop.LotID) scene {
	t.Helper()
	s.mustSeed(t, "lot,stock,limit,hold,late\n"+string(lot)+",100,5,1m,reclaim\n", seed.Options{})
	sc := scene{lot, map[string]drop.ReserveRequest{}, map[string]drop.ReservationID{}}
	for _, user := range []string{"held", "extended", "kept", "bought", "part", "released", "expired", "refunded", "some", "late"} {
		sc.asked[user] = drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 3, Hold: 10 * time.Minute}
		if user == "expired" || user == "late" {
			q := sc.asked[user]
			q.Hold = time.Second
			sc.asked[user] = q
		}
		out, err := s.stock.Reserve(t.Context(), sc.asked[user])
		if err != nil {
			t.Fatal(err)
		}
		sc.ids[user] = out.Reservation.ID
	}
	do := func(user string, q drop.SettleRequest) {
		q.ID = sc.ids[user]
		if _, err := s.stock.Settle(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", user, err)
		}
	}
	do("extended", drop.SettleRequest{Action: drop.ActExtend, By: 20 * time.Minute})
	do("kept", drop.SettleRequest{Action: drop.ActRelease, Keep: 2})
	for _, user := range []string{"bought", "refunded", "some"} {
		do(user, drop.SettleRequest{Action: drop.ActConfirm, Ref: "paid-" + user})
	}
	do("part", drop.SettleRequest{Action: drop.ActConfirm, Qty: 1, Ref: "paid"})
	do("released", drop.SettleRequest{Action: drop.ActRelease})
	do("refunded", drop.SettleRequest{Action: drop.ActRefund, Total: -1})
	do("some", drop.SettleRequest{Action: drop.ActRefund, Total: 2, NoRestock: true})
	s.expire(t, lot, 2)
	do("late", drop.SettleRequest{Action: drop.ActConfirm, Ref: "late"})
	_, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: sc.ids["released"], Action: drop.ActConfirm, Ref: "too-late"})
	if !fault.Is(err, fault.AlreadyReleased) {
		t.Fatal(err)
	}
	return sc
}

// expire ends the holds of a second and takes them back.
func (s shop) expire(t *testing.T, lot drop.LotID, want int) {
	t.Helper()
	s.endShortHolds(t, lot)
	expired := 0
	for more := true; more; {
		out, err := s.stock.Sweep(t.Context(), lot.Shard(s.stock.Shards()), 1000)
		if err != nil {
			t.Fatal(err)
		}
		expired, more = expired+out.Expired, out.More
	}
	if expired != want {
		t.Fatalf("%d holds ended, not %d", expired, want)
	}
}

// endShortHolds moves the deadlines of a lot's holds of a second into the past, where time would bring them.
func (s shop) endShortHolds(t *testing.T, lot drop.LotID) {
	t.Helper()
	const script = `local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local head, deadline, created, tail = string.match(all[i + 1], '^(h[a-z2-7]*\t[^\t]*\t[^\t]*\t%d+\t%d+\t)(%d+)\t(%d+)(.*)$')
  if head and deadline - created <= 1000 then
    local over, attempt = created - 1, #all[i] == 26 and all[i] or all[i] .. string.sub(head, 2, 11)
    redis.call('HSET', KEYS[1], all[i], head .. string.format('%d', over) .. '\t' .. created .. tail)
    redis.call('ZADD', KEYS[2], '0', string.format('%s\t%013d\t\t%s', ARGV[1], over, attempt))
    redis.call('ZADD', KEYS[3], string.format('%d', over), ARGV[1])
  end
end
return 1`
	key := s.lotKey(t, lot)
	prefix := strings.TrimSuffix(key, "lot:"+string(lot))
	if _, err := s.redis.Do(t.Context(), "EVAL", script, "3", key, prefix+"due", prefix+"next", string(lot)); err != nil {
		t.Fatal(err)
	}
}

// answers says what a retry of each request is answered.
func (s shop) answers(t *testing.T, sc scene) map[string]string {
	t.Helper()
	out := map[string]string{}
	for user, q := range sc.asked {
		got, err := s.stock.Reserve(t.Context(), q)
		if err != nil || !got.Replayed {
			t.Errorf("%s: the retry is answered %+v, %v", user, got, err)
		}
		out[user] = fmt.Sprintf("%+v left %d", got.Reservation, got.Remaining)
	}
	return out
}

// TestAnEmptiedRedisIsRestored empties Redis in the middle of a drop. Once rebuilt, nobody can tell.
func TestAnEmptiedRedisIsRestored(t *testing.T) {
	s := openShop(t)
	sc := s.scene(t, "hat")
	before := s.answers(t, sc)
	s.drain(t)
	was, known := s.lot(t, "hat")
	s.flush(t)
	if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: "x", Key: "k", Qty: 1}); !fault.Is(err, fault.LotNotLoaded) {
		t.Fatal(err)
	}
	done := s.rebuild(t, "hat")
	if done.Epoch != known.OpenEpoch+1 || done.Records != 10 || done.Totals != was.Totals {
		t.Errorf("rebuilt %+v; before it was %+v", done, was)
	}
	now, known := s.lot(t, "hat")
	if now.Totals != was.Totals || !now.Definition.Equal(was.Definition) || now.Seq != was.Seq+1 || known.Watermark != now.Watermark || now.Mark.Before(was.Mark) || !now.Sells() {
		t.Errorf("rebuilt is %+v, it was %+v; the ledger has %+v", now, was, known)
	}
	s.wantProven(t)
	for user, after := range s.answers(t, sc) {
		if after != before[user] {
			t.Errorf("%s: a retry was answered\n%s, and now\n%s", user, before[user], after)
		}
	}
	s.sellOn(t, sc)
	s.drain(t)
	s.wantProven(t)
	if again := s.rebuild(t, "hat"); again.Epoch != 0 {
		t.Errorf("rebuilt again: %+v", again)
	}
}

// sellOn does with a rebuilt lot what could be done with it before.
func (s shop) sellOn(t *testing.T, sc scene) {
	t.Helper()
	refused := func(want fault.Code, err error) {
		t.Helper()
		if !fault.Is(err, want) {
			t.Errorf("answered %v, want %s", err, want)
		}
	}
	settle := func(q drop.SettleRequest) (drop.Outcome, error) { return s.stock.Settle(t.Context(), q) }
	_, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: sc.lot, User: "held", Key: "other", Qty: 1})
	refused(fault.HoldExists, err)
	_, err = s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: sc.lot, User: "bought", Key: "other", Qty: 3})
	refused(fault.CustomerLimit, err)
	_, err = s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: sc.lot, User: "held", Key: "k", Qty: 2})
	refused(fault.KeyReused, err)
	for user, same := range map[string]drop.SettleRequest{
		"bought": {Action: drop.ActConfirm, Ref: "paid-bought"}, "refunded": {Action: drop.ActRefund, Total: -1}, "some": {Action: drop.ActRefund, Total: 2},
		"released": {Action: drop.ActRelease}, "part": {Action: drop.ActConfirm, Qty: 1, Ref: "paid"}, "late": {Action: drop.ActConfirm, Ref: "late"},
	} {
		same.ID = sc.ids[user]
		if out, err := settle(same); err != nil || !out.Replayed {
			t.Errorf("%s: done again it is %+v, %v", user, out, err)
		}
	}
	// Money that came too late once is not due for refund twice.
	seq := func() int64 { state, _ := s.lot(t, sc.lot); return state.Seq }
	at := seq()
	_, err = settle(drop.SettleRequest{ID: sc.ids["released"], Action: drop.ActConfirm, Ref: "too-late"})
	refused(fault.AlreadyReleased, err)
	_, err = settle(drop.SettleRequest{ID: sc.ids["refunded"], Action: drop.ActConfirm, Ref: "paid-refunded"})
	refused(fault.AlreadyRefunded, err)
	if seq() != at {
		t.Error("the same money was written down twice")
	}
	for user, q := range map[string]drop.SettleRequest{
		"held": {Action: drop.ActConfirm, Ref: "p"}, "extended": {Action: drop.ActExtend, By: 25 * time.Minute}, "kept": {Action: drop.ActRelease},
		"bought": {Action: drop.ActRefund, Total: 1}, "expired": {Action: drop.ActConfirm, Ref: "p", Late: drop.Reclaim},
	} {
		q.ID = sc.ids[user]
		if out, err := settle(q); err != nil || out.Replayed {
			t.Errorf("%s: %+v, %v", user, out, err)
		}
	}
	// The rebuilt due entries work: a hold whose time comes is taken back, though it was loaded with others.
	if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: sc.lot, User: "new", Key: "k", Qty: 1, Hold: time.Second}); err != nil {
		t.Error(err)
	}
	s.expire(t, sc.lot, 1)
}

// broken is a store that fails, or loses its caller, at a step.
type broken struct {
	recovery.RebuildStock
	recovery.RebuildLedger
	at     string
	before bool // the step itself is not done
	cancel context.CancelFunc
}

var errBroken = errors.New("killed")

func (b *broken) step(name string, act func() error) error {
	if name != b.at {
		return act()
	}
	defer b.cancel()
	if !b.before {
		if err := act(); err != nil {
			return err
		}
	}
	return errBroken
}

func (b *broken) FreezeLot(ctx context.Context, seen drop.LotState, reason fault.Code) error {
	return b.step("freeze", func() error { return b.RebuildStock.FreezeLot(ctx, seen, reason) })
}

func (b *broken) ThawLot(ctx context.Context, seen drop.LotState, reason fault.Code) error {
	return errBroken // who is killed thaws nothing
}

func (b *broken) Record(ctx context.Context, events []drop.Event) error {
	return b.step("record", func() error { return b.RebuildLedger.Record(ctx, events) })
}

func (b *broken) IssueEpoch(ctx context.Context, lot drop.LotID, actor, reason string) (issued recovery.Issued, err error) {
	err = b.step("issue", func() error { issued, err = b.RebuildLedger.IssueEpoch(ctx, lot, actor, reason); return err })
	return issued, err
}

func (b *broken) EachRecord(ctx context.Context, lot drop.LotID, epoch int64, since time.Time, fn func([]drop.Record) error) error {
	return b.step("records", func() error { return b.RebuildLedger.EachRecord(ctx, lot, epoch, since, fn) })
}

func (b *broken) EachUser(ctx context.Context, lot drop.LotID, epoch int64, since time.Time, fn func([]drop.UserCount) error) error {
	return b.step("users", func() error { return b.RebuildLedger.EachUser(ctx, lot, epoch, since, fn) })
}

func (b *broken) Rebuild(ctx context.Context, r recovery.LoadRequest) (run string, err error) {
	err = b.step("load", func() error { run, err = b.RebuildStock.Rebuild(ctx, r); return err })
	return run, err
}

// TestARebuildIsFinishedWhereverItWasKilled kills a rebuild before and behind each of its steps, of a lot that is there
// and of one that is lost. Nothing sells that must not, and the next rebuild finishes.
func TestARebuildIsFinishedWhereverItWasKilled(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	n := 0
	for _, at := range []string{"freeze", "record", "issue", "records", "users", "load"} {
		for _, before := range []bool{true, false} {
			for _, lost := range []bool{false, true} {
				if lost && at == "freeze" {
					continue
				}
				n++
				lot := drop.LotID(fmt.Sprintf("lot-%d", n))
				sc := s.kill(t, lot, at, before, lost)
				s.rebuild(t, lot)
				if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "after", Key: "k", Qty: 1}); err != nil {
					t.Errorf("killed at %s (before %v, lost %v): %v", at, before, lost, err)
				}
				s.answers(t, sc)
			}
		}
	}
	s.drain(t)
	if report := s.wantProven(t); len(report.Rows) != n {
		t.Errorf("%d lots of %d were proven", len(report.Rows), n)
	}
	if repairs, err := s.ledger.RepairsOutsideRuns(t.Context(), 100); err != nil || len(repairs) < 2*n-2 {
		t.Errorf("%d repairs were written down, %v", len(repairs), err)
	}
	if left, err := s.redis.Do(t.Context(), "KEYS", "*stage*"); err != nil || left != "" {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// kill sells a lot, breaks a rebuild of it off and checks that it does not sell unless nothing has happened to it yet.
func (s shop) kill(t *testing.T, lot drop.LotID, at string, before, lost bool) scene {
	t.Helper()
	sc := scene{lot, map[string]drop.ReserveRequest{}, map[string]drop.ReservationID{}}
	s.mustSeed(t, "lot,stock\n"+string(lot)+",20\n", seed.Options{})
	for i := range 5 {
		user := fmt.Sprintf("u%d", i)
		sc.asked[user] = drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 2}
		if _, err := s.stock.Reserve(t.Context(), sc.asked[user]); err != nil {
			t.Fatal(err)
		}
	}
	if at != "record" {
		s.drain(t)
	}
	if lost { // without its events, unless the rebuild is to find them
		if _, err := s.redis.Do(t.Context(), "DEL", s.lotKey(t, lot)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := s.rebuilder()
	b := &broken{RebuildStock: r.Stock, RebuildLedger: r.Ledger, at: at, before: before, cancel: cancel}
	r.Stock, r.Ledger = b, b
	if _, err := r.RebuildAnyway(ctx, lot, "alice", "why"); err == nil {
		t.Fatalf("killed at %s (before %v, lost %v): no error", at, before, lost)
	}
	_, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "between", Key: "k", Qty: 1})
	sells := at == "freeze" && before || at == "load" && !before
	if sells && err != nil || !sells && !fault.Is(err, fault.LotFrozen) && !fault.Is(err, fault.LotNotLoaded) {
		t.Errorf("killed at %s (before %v, lost %v): a reserve is answered %v", at, before, lost, err)
	}
	return sc
}

// late is a rebuild whose connection to PostgreSQL was cut, and its lock lost with it, once it had staged everything: it does
// not know that another one has begun.
type late struct {
	recovery.RebuildLedger
	recovery.RebuildStock
	load func() error // what it does in the end, when it goes on
}

func (l *late) LockLots(context.Context, []drop.LotID) (func(), error) { return func() {}, nil }

func (l *late) Rebuild(ctx context.Context, r recovery.LoadRequest) (string, error) {
	r.Records = replay(ctx, r.Records)
	r.Users = replay(ctx, r.Users)
	l.load = func() error { _, err := l.RebuildStock.Rebuild(ctx, r); return err }
	return "", errBroken
}

// replay reads the pages now and hands them over later.
func replay[T any](ctx context.Context, read func(context.Context, func([]T) error) error) func(context.Context, func([]T) error) error {
	var all []T
	err := read(ctx, func(page []T) error { all = append(all, page...); return nil })
	return func(_ context.Context, fn func([]T) error) error { return errors.Join(err, fn(all)) }
}

// between lets something happen while an epoch is issued.
type between struct {
	recovery.RebuildLedger
	happens func()
}

func (b between) IssueEpoch(ctx context.Context, lot drop.LotID, actor, reason string) (recovery.Issued, error) {
	issued, err := b.RebuildLedger.IssueEpoch(ctx, lot, actor, reason)
	b.happens()
	return issued, err
}

// TestALoadUnderAClosedEpochIsReplaced: a rebuild that lost its lock loads the lot under an epoch that another one has just
// closed, and the lot sells. The other one stops that at once, and what was sold is a ghost.
func TestALoadUnderAClosedEpochIsReplaced(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,20\n", seed.Options{})
	s.sell(t, "hat", 3)
	s.drain(t)
	s.flush(t)
	first := s.rebuilder()
	l := &late{RebuildLedger: first.Ledger, RebuildStock: first.Stock}
	first.Ledger, first.Stock = l, l
	if _, err := first.Rebuild(t.Context(), "hat", "alice", "why"); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	second := s.rebuilder()
	second.Ledger = between{second.Ledger, func() {
		if err := l.load(); err != nil {
			t.Errorf("the late load: %v", err)
		}
		if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: "ghost", Key: "k", Qty: 1}); err != nil {
			t.Error(err)
		}
	}}
	done, err := second.Rebuild(t.Context(), "hat", "bob", "redis was lost")
	if err == nil {
		err = second.Record(t.Context(), []drop.LotID{"hat"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if now, known := s.lot(t, "hat"); now.Epoch != done.Epoch || now.Held != 0 || now.Sold != 3 || !now.Sells() || known.Epoch != done.Epoch {
		t.Errorf("after %+v Redis has %+v, the ledger %+v", done, now, known)
	}
	s.drain(t)
	s.wantProven(t)
}

// TestARebuildThatLostItsLockLoadsNothing: another rebuild has issued an epoch by the time everything is staged.
func TestARebuildThatLostItsLockLoadsNothing(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,20\n", seed.Options{})
	s.sell(t, "hat", 3)
	s.drain(t)
	s.flush(t)
	r := s.rebuilder()
	r.Ledger = overtaken{r.Ledger, s.ledger}
	if _, err := r.Rebuild(t.Context(), "hat", "alice", "why"); !fault.Is(err, fault.Conflict) {
		t.Errorf("the rebuild ended with %v", err)
	}
	if _, err := s.stock.Lot(t.Context(), "hat"); !fault.Is(err, fault.LotNotLoaded) {
		t.Errorf("looking at the lot: %v", err)
	}
	s.rebuild(t, "hat")
	s.wantProven(t)
}

// overtaken lets another rebuild issue an epoch once the last page was read.
type overtaken struct {
	recovery.RebuildLedger
	ledger *ledger.Ledger
}

func (o overtaken) EachUser(ctx context.Context, lot drop.LotID, epoch int64, since time.Time, fn func([]drop.UserCount) error) error {
	err := o.RebuildLedger.EachUser(ctx, lot, epoch, since, fn)
	_, issueErr := o.ledger.IssueEpoch(ctx, lot, ledger.IssueRequest{Actor: "bob", Reason: "another rebuild"})
	return errors.Join(err, issueErr)
}

func (s shop) lotKey(t *testing.T, lot drop.LotID) string {
	t.Helper()
	key, err := s.redis.Do(t.Context(), "KEYS", "drop:*:lot:"+string(lot))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestNothingIsRebuiltWhileRedisIsAhead loses the outbox before the ledger has it: only Redis knows what was sold.
func TestNothingIsRebuiltWhileRedisIsAhead(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,20\n", seed.Options{})
	s.sell(t, "hat", 3)
	if _, err := s.redis.Do(t.Context(), "EVAL", "for _, k in ipairs(redis.call('KEYS', '*outbox')) do redis.call('DEL', k) end return 1", "0"); err != nil {
		t.Fatal(err)
	}
	_, err := s.rebuilder().RebuildAnyway(t.Context(), "hat", "alice", "why")
	if !fault.Is(err, fault.Conflict) {
		t.Fatalf("rebuilt, and what was sold is forgotten: %v", err)
	}
	// It sells on, as before: a rebuild that may not be is undone.
	if state, _ := s.lot(t, "hat"); state.Sold != 3 || !state.Sells() {
		t.Errorf("left as %+v", state)
	}
}

// A server without memory refuses a rebuild before the epoch is closed: the lot goes on as it was.
func TestALotSellsOnWhereThereIsNoRoomToRebuildIt(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,9\n", seed.Options{})
	s.drain(t)
	before, _ := s.lot(t, "hat")
	for _, limit := range []string{"1", "0"} {
		if _, err := s.redis.Do(t.Context(), "CONFIG", "SET", "maxmemory", limit); err != nil {
			t.Fatal(err)
		}
		if limit == "0" {
			break
		}
		if _, err := s.rebuilder().RebuildAnyway(t.Context(), "hat", "alice", "why not"); !fault.Is(err, fault.OutOfMemory) {
			t.Fatalf("answered %v", err)
		}
	}
	if now, _ := s.lot(t, "hat"); now.Frozen != "" || now.Watermark != before.Watermark {
		t.Fatalf("the lot is %+v, it was %+v", now, before)
	}
	if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: "ann", Key: "k", Qty: 1}); err != nil {
		t.Fatal(err)
	}
}

// TestOnlyWhatWasOnSaleIsRebuilt also lets several rebuild at once, of whom one does.
func TestOnlyWhatWasOnSaleIsRebuilt(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	if _, err := s.rebuilder().Rebuild(t.Context(), "nobody", "alice", "why"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	s.mustSeed(t, "lot,stock\nhat,20\n", seed.Options{})
	s.sell(t, "hat", 3)
	s.drain(t)
	s.flush(t)
	var wg sync.WaitGroup
	loaded := make(chan recovery.Rebuilt, 8)
	for range cap(loaded) {
		wg.Go(func() { loaded <- s.rebuild(t, "hat") })
	}
	wg.Wait()
	close(loaded)
	n := 0
	for done := range loaded {
		if done.Epoch != 0 {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d of 8 rebuilt the lot", n)
	}
	s.wantProven(t)
	if _, err := s.ledger.CreateLot(t.Context(), drop.Definition{Lot: "new", Stock: 3}.WithDefaults(), "alice"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.rebuilder().Rebuild(t.Context(), "new", "alice", "why"); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
}

// TestAnOldSnapshotIsRebuilt puts an older state of Redis back, and damages another lot.
func TestAnOldSnapshotIsRebuilt(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,20\ncap,20\n", seed.Options{})
	s.sell(t, "hat", 3)
	s.drain(t)
	key := s.lotKey(t, "hat")
	if _, err := s.redis.Do(t.Context(), "COPY", key, "old"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: "more", Key: "k", Qty: 9}); err != nil {
		t.Fatal(err)
	}
	s.drain(t)
	if _, err := s.redis.Do(t.Context(), "COPY", "old", key, "REPLACE"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.redis.Do(t.Context(), "HSET", s.lotKey(t, "cap"), "live", "x"); err != nil {
		t.Fatal(err)
	}
	for _, lot := range []drop.LotID{"hat", "cap"} {
		plan, err := s.rebuilder().Plan(t.Context(), lot, false)
		if err != nil || plan.Step != recovery.StepRebuild || !plan.Selling() {
			t.Errorf("planned %+v, %v", plan, err)
		}
		if done := s.rebuild(t, lot); done.Epoch != 2 {
			t.Errorf("%+v", done)
		}
	}
	if out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: "more", Key: "k", Qty: 9}); err != nil || !out.Replayed {
		t.Errorf("%+v, %v", out, err)
	}
	s.wantProven(t)
}

// TestAnyHistoryIsRestored does anything to a lot, in any order, loses it, and compares every record and every answer.
func TestAnyHistoryIsRestored(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	histories, steps := 6, 150
	if testing.Short() {
		histories, steps = 3, 60
	}
	for seedNumber := range histories {
		rng := rand.New(rand.NewPCG(7, uint64(seedNumber)))
		lot := drop.LotID(fmt.Sprintf("lot-%d", seedNumber))
		late := []string{"refuse", "reclaim"}[rng.IntN(2)]
		s.mustSeed(t, fmt.Sprintf("lot,stock,limit,hold,late\n%s,%d,%d,1m,%s\n", lot, 5+rng.IntN(60), rng.IntN(2)*6, late), seed.Options{})
		sc := s.anyHistory(t, rng, lot, steps)
		s.drain(t)
		// What is due is taken back first, so that no retry finds it another way than the record says.
		for more := true; more; {
			out, err := s.stock.Sweep(t.Context(), lot.Shard(s.stock.Shards()), 1000)
			if err != nil {
				t.Fatal(err)
			}
			more = out.More
		}
		before := s.answers(t, sc)
		s.drain(t)
		was, _ := s.lot(t, lot)
		if _, err := s.redis.Do(t.Context(), "DEL", s.lotKey(t, lot)); err != nil {
			t.Fatal(err)
		}
		if done := s.rebuild(t, lot); done.Totals != was.Totals {
			t.Fatalf("history %d: rebuilt %+v of %+v", seedNumber, done, was)
		}
		for user, after := range s.answers(t, sc) {
			if after != before[user] {
				t.Errorf("history %d: %s was answered\n%s, and now\n%s", seedNumber, user, before[user], after)
			}
		}
	}
	s.drain(t)
	s.wantProven(t)
}

// anyHistory lets a few users do anything. Its holds last for minutes, or end within it.
func (s shop) anyHistory(t *testing.T, rng *rand.Rand, lot drop.LotID, steps int) scene {
	t.Helper()
	sc := scene{lot, map[string]drop.ReserveRequest{}, map[string]drop.ReservationID{}}
	var names []string
	for step := range steps {
		if len(names) == 0 || rng.IntN(3) == 0 {
			q := drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("u%d", rng.IntN(12)), Key: fmt.Sprint(step), Qty: 1 + rng.Int64N(4), Hold: 20 * time.Minute}
			if rng.IntN(3) == 0 {
				q.Hold = time.Second
			}
			if out, err := s.stock.Reserve(t.Context(), q); err == nil {
				name := q.User + "/" + q.Key
				sc.asked[name], sc.ids[name] = q, out.Reservation.ID
				names = append(names, name)
			}
			continue
		}
		q := drop.SettleRequest{ID: sc.ids[names[rng.IntN(len(names))]], Actor: "x"}
		switch rng.IntN(5) {
		case 0, 1:
			q.Action, q.Qty, q.Ref, q.Late = drop.ActConfirm, rng.Int64N(3), fmt.Sprint("pay", rng.IntN(9)), []drop.Late{"", drop.Refuse, drop.Reclaim}[rng.IntN(3)]
		case 2:
			q.Action, q.Keep = drop.ActRelease, rng.Int64N(3)
		case 3:
			q.Action, q.By = drop.ActExtend, time.Duration(1+rng.IntN(1500))*time.Second
		case 4:
			q.Action, q.Total, q.NoRestock = drop.ActRefund, 1+rng.Int64N(3), rng.IntN(2) == 0
		}
		_, _ = s.stock.Settle(t.Context(), q) // a refusal is part of the history
		if rng.IntN(40) == 0 {
			s.endShortHolds(t, lot) // in the middle of it
		}
	}
	s.endShortHolds(t, lot)
	return sc
}

// TestALargeLotIsRestoredQuickly logs how long it takes; how quick that is depends on the machine. With DROPCTL_RECORDS it
// takes that many.
func TestALargeLotIsRestoredQuickly(t *testing.T) {
	testkit.Long(t)
	n := 100_000
	if more, err := strconv.Atoi(os.Getenv("DROPCTL_RECORDS")); err == nil {
		n = more
	}
	s := openShop(t)
	here := s.ledger.Installation()
	var err error
	if s.stock, err = stock.Open(stock.Options{URL: s.redis.URL(), Shards: here.Shards, Installation: here.ID, OutboxMaxBytes: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.stock.Close() }()
	s.mustSeed(t, fmt.Sprintf("lot,stock\nhat,%d\n", n), seed.Options{})
	var crowd sync.WaitGroup
	for c := range 256 {
		crowd.Go(func() {
			for i := c; i < n; i += 256 {
				user := fmt.Sprintf("user-%d", i)
				out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: user, Key: "k", Qty: 1, Hold: 25 * time.Minute})
				if err == nil && i%4 > 1 {
					action := []drop.Action{drop.ActConfirm, drop.ActRelease}[i%2]
					_, err = s.stock.Settle(t.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: action})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	crowd.Wait()
	if _, err := s.rebuilder().Rebuild(t.Context(), "hat", "alice", "record it"); err != nil { // equal once recorded
		t.Fatal(err)
	}
	was, _ := s.lot(t, "hat")
	if _, err := s.redis.Do(t.Context(), "SLOWLOG", "RESET"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.redis.Do(t.Context(), "CONFIG", "SET", "slowlog-log-slower-than", "20000"); err != nil {
		t.Fatal(err)
	}
	done, err := s.rebuilder().RebuildAnyway(t.Context(), "hat", "alice", "why")
	if err != nil || done.Records != int64(n) || done.Totals != was.Totals {
		t.Fatalf("%+v of %+v, %v", done, was, err)
	}
	slow, err := s.redis.Do(t.Context(), "SLOWLOG", "LEN")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d records and %d users restored in %s; %s calls took Redis longer than 20 ms", done.Records, done.Users, done.Took.Round(time.Millisecond), slow)
	s.wantProven(t)
}

// TestALotIsRebuiltWhileItSells rebuilds a lot again and again under the hands of its buyers. Nobody is answered anything
// but yes, or that the lot is frozen just now; and in the end every unit is where both sides say.
func TestALotIsRebuiltWhileItSells(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,100000\n", seed.Options{})
	ctx, stop := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	var held atomic.Int64
	var kept [32]map[string]drop.ReservationID
	for c := range kept {
		kept[c] = map[string]drop.ReservationID{}
		crowd.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				user := fmt.Sprintf("u%d-%d", c, i)
				out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: user, Key: "k", Qty: 1})
				if err == nil {
					kept[c][user] = out.Reservation.ID
					held.Add(1)
					if i%3 == 0 {
						_, err = s.stock.Settle(t.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActConfirm, Ref: "p"})
					}
				}
				if err != nil && !fault.Is(err, fault.LotFrozen) {
					t.Errorf("%s: %v", user, err)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	rebuilder := s.rebuilder()
	rebuilder.Patience = 10 * time.Second
	for range 3 {
		before := held.Load()
		testkit.Eventually(t, 20*time.Second, func() (bool, string) { return held.Load() > before+50, "the crowd does not buy" })
		if done, err := rebuilder.RebuildAnyway(t.Context(), "hat", "alice", "why"); err != nil || done.Epoch == 0 {
			t.Errorf("%+v, %v", done, err)
		}
	}
	stop()
	crowd.Wait()
	s.drain(t)
	s.wantProven(t)
	n := 0
	for _, mine := range kept {
		for user, id := range mine {
			n++
			if out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: "hat", User: user, Key: "k", Qty: 1}); err != nil || !out.Replayed || out.Reservation.ID != id {
				t.Errorf("%s had %s, and is answered %+v, %v", user, id, out, err)
			}
		}
	}
	if state, _ := s.lot(t, "hat"); state.Held+state.Sold != int64(n) || n == 0 {
		t.Errorf("%d were sold to, the lot says %+v", n, state)
	}
}
