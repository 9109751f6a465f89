package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// hookFor adds a hook of some kinds, separated by blanks; "": all.
func hookFor(t testing.TB, l *Ledger, h drop.Hook, kinds string) drop.Hook {
	t.Helper()
	var err error
	if h.Kinds, err = drop.ParseNoticeKinds(strings.Fields(kinds)); err != nil {
		t.Fatal(err)
	}
	h.ID, h.CreatedBy = drop.NewHookID(), "test"
	if h.URL == "" {
		h.URL = "https://shop.example/" + h.ID
	}
	h, err = l.AddHook(t.Context(), h, "a secret of the test")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// told lists what was queued for a hook, in order: the kinds, with the seq of the event.
func told(t testing.TB, db testkit.Database, hook drop.Hook) string {
	t.Helper()
	rows := db.SQL(t, `SELECT kind || '@' || seq FROM hook_deliveries WHERE hook = '`+hook.ID+`' ORDER BY id`)
	return strings.Join(strings.Fields(rows), " ")
}

// raised waits until RaiseNotices has queued what was noted, and returns what the hook was told altogether.
func raised(t testing.TB, l *Ledger, db testkit.Database, hook drop.Hook, want string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		if _, err := l.RaiseNotices(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := told(t, db, hook)
		return got == want, fmt.Sprintf("it was told %q, not %q", got, want)
	})
}

func TestEventsBecomeNoticesOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	l, db := newLedger(t)
	r := seeded(t, l, "autumn:lot", 10)
	before := r.take()
	all := hookFor(t, l, drop.Hook{}, "held confirmed expired lot_loaded lot_opened")
	lot := hookFor(t, l, drop.Hook{Lot: "autumn:lot"}, "confirmed")
	group := hookFor(t, l, drop.Hook{Group: "autumn"}, "lot_loaded")
	other := hookFor(t, l, drop.Hook{Group: "autum"}, "")
	elsewhere := hookFor(t, l, drop.Hook{Lot: "lot"}, "")
	a, b := r.hold("ann", 2), r.hold("bob", 1)
	r.extend(a)
	r.confirm(a, 2, "pay-a")
	r.expire(b)
	r.change(drop.Paused)
	r.change(drop.Open)
	events := append(before, r.take()...)
	if got := apply(t, l, events...); got.Notices == 0 {
		t.Errorf("applied %+v", got)
	}
	apply(t, l, events...) // a duplicate changes nothing
	apply(t, l, events[3:]...)
	for hook, want := range map[string]string{
		told(t, db, all):       "lot_loaded@1 lot_opened@1 held@2 held@3 confirmed@5 expired@6 lot_opened@8",
		told(t, db, lot):       "confirmed@5",
		told(t, db, group):     "lot_loaded@1",
		told(t, db, other):     "",
		told(t, db, elsewhere): "",
	} {
		if hook != want {
			t.Errorf("told %q, want %q", hook, want)
		}
	}
	got := db.SQL(t, `SELECT notice FROM hook_deliveries WHERE kind = 'confirmed' LIMIT 1`)
	for _, part := range []string{`"qty": 2`, `"user": "ann"`, `"payment": "pay-a"`, `"reservation": "` + a.ID.String() + `"`, `"seq": 5`, `"at": "2026-`} {
		if !strings.Contains(got, part) {
			t.Errorf("%s is missing in %s", part, got)
		}
	}
	if got := db.SQL(t, `SELECT notice->'state' FROM hook_deliveries WHERE kind = 'lot_loaded' LIMIT 1`); !strings.Contains(got, `"available": 10`) || !strings.Contains(got, `"status": "open"`) {
		t.Errorf("the state of a lot: %s", got)
	}
}

func TestAHookIsToldFromNowOn(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	l, db := newLedger(t)
	r := seeded(t, l, "lot", 1)
	late := r.hold("ann", 1)
	r.paidLate(late, "pay-old")
	apply(t, l, r.take()...)
	hook := hookFor(t, l, drop.Hook{}, "")
	r.paidLate(late, "pay-new")
	r.expire(late)
	apply(t, l, r.take()...)
	// It was sold out before anybody listened, so that it is available again now.
	raised(t, l, db, hook, "expired@5 refund_due@4 available_again@5")
	if removed, err := l.RemoveHook(t.Context(), hook.ID, "olga"); !removed || err != nil {
		t.Fatal(removed, err)
	}
	if got := db.SQL(t, "SELECT secret FROM hooks"); got != "" {
		t.Errorf("a removed hook has the secret %q", got)
	}
	r.hold("bob", 1)
	if got := apply(t, l, r.take()...); got.Notices != 0 {
		t.Errorf("applied %+v", got)
	}
	if _, err := l.PruneDeliveries(t.Context()); err != nil || told(t, db, hook) != "" {
		t.Errorf("%v, %s", err, told(t, db, hook))
	}
}

// Units nobody gets are not sold: the buyer is not told so, but the payment is due for refund.
func TestRejectedUnitsAndGhostsAreNoSales(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	hook := hookFor(t, l, drop.Hook{}, "held confirmed refund_due")
	r := seeded(t, l, "lot", 1)
	a, b := r.hold("ann", 1), r.hold("bob", 1) // Redis counted one unit twice
	r.confirm(a, 1, "pay-a")
	r.confirm(b, 1, "pay-b")
	apply(t, l, r.take()...)
	raised(t, l, db, hook, "held@2 confirmed@4 refund_due@5")
	issue(t, l, "lot")
	c := r.hold("cid", 1)
	r.confirm(c, 1, "pay-c") // of an epoch that is closed
	apply(t, l, r.take()...)
	raised(t, l, db, hook, "held@2 confirmed@4 refund_due@5 refund_due@7")
}

// A payment that is settled by the transaction that found it is told to nobody.
func TestASettledRefundIsNotTold(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	hook := hookFor(t, l, drop.Hook{}, "refund_due")
	r := seeded(t, l, "lot", 2)
	a := r.hold("ann", 1)
	r.paidLate(a, "pay-a")
	r.confirm(a, 1, "pay-a")
	b := r.hold("bob", 1)
	r.paidLate(b, "pay-b")
	apply(t, l, r.take()...)
	raised(t, l, db, hook, "refund_due@6")
	if got := db.SQL(t, "SELECT count(*) FROM refunds_due WHERE NOT told"); got != "0" {
		t.Errorf("%s rows are still to be looked at", got)
	}
}

// Whatever a lot does within a second, hooks hear of it once, and only if it differs from what they heard before.
func TestSoldOutAndAvailableAgainDoNotFlap(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	l, db := newLedger(t)
	hook := hookFor(t, l, drop.Hook{}, "sold_out available_again")
	r := seeded(t, l, "lot", 1)
	for i := range 5 { // it ends as it began
		r.expire(r.hold(fmt.Sprint("u", i), 1))
		apply(t, l, r.take()...)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		n, err := l.RaiseNotices(t.Context())
		return n == 1 && err == nil, fmt.Sprint("raised ", n, err)
	})
	if got := told(t, db, hook); got != "" {
		t.Errorf("told of nothing: %s", got)
	}
	for i := range 5 { // it ends sold out
		last := r.hold(fmt.Sprint("v", i), 1)
		if i < 4 {
			r.expire(last)
		}
		apply(t, l, r.take()...)
	}
	raised(t, l, db, hook, "sold_out@20")
	r.adjust(3)
	apply(t, l, r.take()...)
	raised(t, l, db, hook, "sold_out@20 available_again@21")
	if n, err := l.RaiseNotices(t.Context()); n != 0 || err != nil {
		t.Errorf("raised %d more, %v", n, err)
	}
}

// A lot with a window opens when that begins, unless it is paused by then.
func TestAWindowOpensALot(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	l, db := newLedger(t)
	hook := hookFor(t, l, drop.Hook{}, "lot_loaded lot_opened")
	for _, lot := range []drop.LotID{"opens", "paused", "moved"} {
		r := newRedis(l.Installation().ID, lot, 5)
		r.def.Opens = time.Now().UTC().Add(3 * time.Second).Truncate(time.Millisecond)
		if _, err := l.CreateLot(t.Context(), r.def, "test"); err != nil {
			t.Fatal(err)
		}
		r.load(issue(t, l, lot))
		switch lot {
		case "paused":
			r.change(drop.Paused)
		case "moved":
			r.def.Opens = time.Now().UTC().Add(time.Hour).Truncate(time.Millisecond)
			r.change(drop.Open)
		}
		apply(t, l, r.take()...)
	}
	raised(t, l, db, hook, "lot_loaded@1 lot_loaded@1 lot_loaded@1 lot_opened@1")
	if got := db.SQL(t, "SELECT lot FROM hook_deliveries WHERE kind = 'lot_opened'"); got != "opens" {
		t.Errorf("told of %s", got)
	}
	if got := db.SQL(t, "SELECT string_agg(lot, ' ') FROM hook_lots WHERE opens_at IS NOT NULL AND lot <> 'paused'"); got != "moved" {
		t.Errorf("still to open: %s", got)
	}
}

func TestAFreezeIsToldOnce(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	frozen := map[drop.LotID]fault.Code{"a": fault.FreezeClock, "b": fault.FreezeAhead}
	if err := l.NoteFrozen(t.Context(), frozen); err != nil { // nobody listens
		t.Fatal(err)
	}
	hook := hookFor(t, l, drop.Hook{Lot: "a"}, "")
	for range 3 {
		if err := l.NoteFrozen(t.Context(), frozen); err != nil {
			t.Fatal(err)
		}
	}
	if got := told(t, db, hook); got != "lot_frozen@1" {
		t.Errorf("told %s", got)
	}
	if got := db.SQL(t, `SELECT notice->>'reason' FROM hook_deliveries`); got != "clock" {
		t.Errorf("the reason is %s", got)
	}
	db.SQL(t, "UPDATE hook_lots SET frozen_at = now() - interval '1 minute'") // it has thawed for so long
	if err := l.NoteFrozen(t.Context(), frozen); err != nil || told(t, db, hook) != "lot_frozen@1 lot_frozen@2" {
		t.Errorf("%v, told %s", err, told(t, db, hook))
	}
}

func TestHooksAreAddedOnce(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	first := hookFor(t, l, drop.Hook{URL: "https://shop.example/a"}, "held")
	_, err := l.AddHook(t.Context(), drop.Hook{ID: drop.NewHookID(), URL: "https://shop.example/a", Kinds: drop.NoticeKinds(), CreatedBy: "test"}, "another secret of it")
	if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.HintOf(err), first.ID) {
		t.Errorf("added twice: %v", err)
	}
	hookFor(t, l, drop.Hook{URL: "https://shop.example/a", Lot: "lot"}, "held")
	got, secret, err := l.HookSecret(t.Context(), first.ID)
	if err != nil || secret != "a secret of the test" || got.URL != first.URL || len(got.Kinds) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	hooks, err := l.Hooks(t.Context())
	if err != nil || len(hooks) != 2 || strings.Contains(fmt.Sprintf("%+v", hooks), "secret") {
		t.Errorf("%+v, %v", hooks, err)
	}
	for want := range 2 {
		if changed, err := l.RemoveHook(t.Context(), first.ID, "olga"); changed != (want == 0) || err != nil {
			t.Errorf("removed %v, %v", changed, err)
		}
	}
	if _, err := l.RemoveHook(t.Context(), "zzzzzzzz", "olga"); !fault.Is(err, fault.NotFound) {
		t.Errorf("removed what is not there: %v", err)
	}
	if _, _, err := l.HookSecret(t.Context(), first.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("a removed hook: %v", err)
	}
	hookFor(t, l, drop.Hook{URL: "https://shop.example/a"}, "held")
	if pool := openPool(t, db.URL(lab.App)); pool != nil {
		if _, err := pool.Exec(t.Context(), "DELETE FROM hooks"); !hasState(err, stateNoRight) {
			t.Errorf("the runtime role may delete hooks: %v", err)
		}
	}
}
