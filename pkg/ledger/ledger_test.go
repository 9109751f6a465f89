package ledger

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestMain(m *testing.M) {
	flag.Parse()
	checks := "60"
	if testing.Short() {
		checks = "15"
	}
	if flag.Lookup("rapid.checks").Value.String() == flag.Lookup("rapid.checks").DefValue {
		_ = flag.Set("rapid.checks", checks)
	}
	os.Exit(testkit.Main(m))
}

// migrated makes a database with the schema and the rights of the runtime role.
func migrated(t testing.TB) testkit.Database {
	t.Helper()
	return testkit.Migrated(t, 0, func(db testkit.Database) error {
		_, err := MigrateUp(t.Context(), Options{URL: db.URL(lab.Owner)}, MigrateOptions{AppRole: string(lab.App)})
		return err
	})
}

// open opens a ledger as the runtime role.
func open(t testing.TB, db testkit.Database) *Ledger {
	t.Helper()
	l, err := Open(t.Context(), Options{URL: db.URL(lab.App), Application: "dropctl-test", MaxConns: 6})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func newLedger(t testing.TB) (*Ledger, testkit.Database) {
	t.Helper()
	db := migrated(t)
	return open(t, db), db
}

var shared struct {
	sync.Once
	db testkit.Database
}

// sharedLedger opens a ledger on the database that tests share who keep to lots of their own: making and
// migrating one takes longer than most tests. It goes with the process's server.
func sharedLedger(t testing.TB) *Ledger {
	t.Helper()
	shared.Do(func() {
		db := testkit.Database{Server: testkit.Postgres(t).Server, Name: "ledger_tests"}
		if err := db.Server.CreateDatabase(t.Context(), db.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := MigrateUp(t.Context(), Options{URL: db.URL(lab.Owner)}, MigrateOptions{AppRole: string(lab.App)}); err != nil {
			t.Fatal(err)
		}
		shared.db = db
	})
	return open(t, shared.db)
}

var lotsNamed atomic.Int64

// newLot returns a lot id that no other test uses, so that tests can share a database.
func newLot() drop.LotID { return drop.LotID(fmt.Sprint("lot-", lotsNamed.Add(1))) }

// redis is a lot as Redis would change it: it writes the events that the scripts would.
type redis struct {
	installation string
	def          drop.Definition
	epoch, seq   int64
	held, sold   int64
	now          time.Time
	live         map[int64]*drop.Reservation
	events       []drop.Event
}

func newRedis(installation string, lot drop.LotID, stock int64) *redis {
	return &redis{installation: installation, def: drop.Definition{Lot: lot, Stock: stock}.WithDefaults(), now: time.UnixMilli(1_790_000_000_000).UTC(), live: map[int64]*drop.Reservation{}}
}

func (r *redis) emit(ev drop.Event) drop.Event {
	r.seq++
	r.now = r.now.Add(time.Millisecond)
	ev.Installation, ev.Lot, ev.Epoch, ev.Seq, ev.Time = r.installation, r.def.Lot, r.epoch, r.seq, r.now
	r.events = append(r.events, ev)
	return ev
}

func (r *redis) load(issued Issued) drop.Event {
	r.epoch, r.seq = issued.Epoch, issued.Closing.Seq
	r.def, r.held, r.sold = issued.Lot.Definition, issued.Lot.Held, issued.Lot.Sold
	return r.emit(drop.Event{Kind: drop.KindLoaded, Actor: "test", Definition: r.def, Held: r.held, Sold: r.sold, Closing: issued.Closing})
}

func (r *redis) hold(user string, qty int64) *drop.Reservation {
	n := r.seq + 1
	id := drop.ReservationID{Lot: r.def.Lot, Attempt: drop.AttemptOf(r.def.Lot, user, fmt.Sprint(n)), N: n}
	deadline := r.now.Add(r.def.Hold)
	ev := r.emit(drop.Event{Kind: drop.KindHeld, Reservation: id, User: user, Key: fmt.Sprint("k", n), Asked: fmt.Sprintf("%d/0", qty), Qty: qty, Deadline: deadline})
	r.held += qty
	res := &drop.Reservation{ID: id, User: user, State: drop.Held, Qty: qty, Deadline: deadline, Created: ev.Time, LastSeq: n}
	r.live[n] = res
	return res
}

func (r *redis) about(kind drop.Kind, res *drop.Reservation, qty int64) drop.Event {
	return drop.Event{Kind: kind, Reservation: res.ID, User: res.User, Qty: qty, Actor: "test"}
}

func (r *redis) confirm(res *drop.Reservation, qty int64, ref string) drop.Event {
	ev := r.about(drop.KindConfirmed, res, qty)
	ev.Rest, ev.Ref = res.Qty-qty, ref
	r.held, r.sold = r.held-res.Qty, r.sold+qty
	res.State, res.Qty, res.Ref = drop.Confirmed, qty, ref
	return r.emit(ev)
}

func (r *redis) release(res *drop.Reservation, keep int64) drop.Event {
	ev := r.about(drop.KindReleased, res, res.Qty-keep)
	ev.Rest = keep
	r.held -= ev.Qty
	res.Qty = keep
	if keep == 0 {
		res.State = drop.Released
	}
	return r.emit(ev)
}

func (r *redis) expire(res *drop.Reservation) drop.Event {
	r.held -= res.Qty
	res.State = drop.Expired
	return r.emit(r.about(drop.KindExpired, res, res.Qty))
}

func (r *redis) extend(res *drop.Reservation) drop.Event {
	ev := r.about(drop.KindExtended, res, res.Qty)
	res.Deadline = res.Deadline.Add(time.Minute)
	ev.Deadline = res.Deadline
	return r.emit(ev)
}

func (r *redis) refund(res *drop.Reservation, qty int64, restock bool) drop.Event {
	ev := r.about(drop.KindRefunded, res, qty)
	res.Qty, res.Refunded = res.Qty-qty, res.Refunded+qty
	ev.Total, ev.Restock = res.Refunded, restock
	r.sold -= qty
	if !restock {
		r.def.Stock -= qty
	}
	if res.Qty == 0 {
		res.State = drop.Refunded
	}
	return r.emit(ev)
}

func (r *redis) paidLate(res *drop.Reservation, ref string) drop.Event {
	ev := r.about(drop.KindPaidLate, res, max(res.Qty, 1))
	ev.Ref = ref
	return r.emit(ev)
}

func (r *redis) adjust(stock int64) drop.Event {
	r.def.Stock = stock
	return r.emit(drop.Event{Kind: drop.KindAdjusted, Actor: "olga", Reason: "count", Definition: r.def, Held: r.held, Sold: r.sold})
}

func (r *redis) change(status drop.Status) drop.Event {
	r.def.Status = status
	return r.emit(drop.Event{Kind: drop.KindChanged, Actor: "olga", Definition: r.def, Held: r.held, Sold: r.sold})
}

// take removes the events written since the last take.
func (r *redis) take() []drop.Event {
	events := r.events
	r.events = nil
	return events
}

// seeded creates a lot in the ledger, issues its first epoch and loads it. The load is in the events.
func seeded(t testing.TB, l *Ledger, lot drop.LotID, stock int64) *redis {
	t.Helper()
	r := newRedis(l.Installation().ID, lot, stock)
	if _, err := l.CreateLot(t.Context(), r.def, "test"); err != nil {
		t.Fatal(err)
	}
	r.load(issue(t, l, lot))
	return r
}

func issue(t testing.TB, l *Ledger, lot drop.LotID) Issued {
	t.Helper()
	issued, err := l.IssueEpoch(t.Context(), lot, IssueRequest{Actor: "test", Reason: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return issued
}

func apply(t testing.TB, l *Ledger, events ...drop.Event) drop.Applied {
	t.Helper()
	a, err := l.Apply(t.Context(), events, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func lotOf(t testing.TB, l *Ledger, lot drop.LotID) Lot {
	t.Helper()
	lots, err := l.Lots(t.Context(), []drop.LotID{lot})
	if err != nil || len(lots) != 1 {
		t.Fatalf("lot %s: %d found, %v", lot, len(lots), err)
	}
	return lots[0]
}

func wantTotals(t testing.TB, l *Ledger, lot drop.LotID, capacity, held, sold int64) {
	t.Helper()
	got := lotOf(t, l, lot).Totals()
	if got.Capacity != capacity || got.Held != held || got.Sold != sold {
		t.Errorf("%s: capacity %d, held %d, sold %d; want %d, %d, %d", lot, got.Capacity, got.Held, got.Sold, capacity, held, sold)
	}
}

func wantStopped(t testing.TB, l *Ledger, lot drop.LotID, code fault.Code) {
	t.Helper()
	if got := lotOf(t, l, lot); got.Stopped != code {
		t.Errorf("%s is stopped %q (%s), want %q", lot, got.Stopped, got.StoppedReason, code)
	}
}

func deadCodes(t testing.TB, l *Ledger, lot drop.LotID) string {
	t.Helper()
	dead, err := l.DeadLetters(t.Context(), lot, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	for i := len(dead) - 1; i >= 0; i-- {
		codes = append(codes, fmt.Sprintf("%s@%d.%d", dead[i].Code, dead[i].Epoch, dead[i].Seq))
	}
	return strings.Join(codes, " ")
}

func dueRefs(t testing.TB, l *Ledger, lot drop.LotID) string {
	t.Helper()
	due, err := l.RefundsDue(t.Context(), lot, 0)
	if err != nil {
		t.Fatal(err)
	}
	var refs []string
	for _, d := range due {
		refs = append(refs, fmt.Sprintf("%s:%s:%d", d.Why, d.Ref, d.Units))
	}
	return strings.Join(refs, " ")
}

// finalise makes sales of everything that is pending.
func finalise(t testing.TB, l *Ledger) {
	t.Helper()
	for finaliseOnce(t, l) > 0 {
	}
}

func salesOf(t testing.TB, l *Ledger, lot drop.LotID) Sales {
	t.Helper()
	sales, err := l.SalesOf(t.Context(), []drop.LotID{lot})
	if err != nil {
		t.Fatal(err)
	}
	return sales[lot]
}

// openPool connects without the ledger's help.
func openPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
