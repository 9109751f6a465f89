package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// claimOf claims as a worker, and names what it was given: kind and seq.
func claimOf(t testing.TB, l *Ledger, worker string, hook drop.Hook, limit int) (drop.HookClaim, string) {
	t.Helper()
	claim, err := l.ClaimDeliveries(t.Context(), worker, hook.ID, time.Minute, limit)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range claim.Deliveries {
		names = append(names, fmt.Sprintf("%s@%d", d.Notice.Kind, d.Notice.Seq))
	}
	return claim, strings.Join(names, " ")
}

func finishSending(t testing.TB, l *Ledger, claim drop.HookClaim, outcome drop.SendOutcome, retry, away time.Duration) {
	t.Helper()
	var sent []drop.Sent
	for _, d := range claim.Deliveries {
		sent = append(sent, drop.Sent{ID: d.ID, Outcome: outcome, Why: "answered 500", Retry: retry})
	}
	if err := l.FinishDeliveries(t.Context(), claim, sent, away); err != nil {
		t.Fatal(err)
	}
}

// wanted are the hooks that have something to be sent.
func wanted(t testing.TB, l *Ledger) int {
	t.Helper()
	hooks, err := l.DueHooks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(hooks)
}

func TestNoticesAreClaimedInOrder(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	hook := hookFor(t, l, drop.Hook{}, "held confirmed lot_opened")
	r := seeded(t, l, "lot", 10)
	r.confirm(r.hold("ann", 1), 1, "pay")
	r.hold("bob", 1)
	apply(t, l, r.take()...)
	if wanted(t, l) != 1 {
		t.Error("nothing is due")
	}
	first, got := claimOf(t, l, "one", hook, 2)
	if got != "lot_opened@1 held@2" {
		t.Errorf("claimed %s", got)
	}
	// The confirmation follows its hold; what another reservation does waits for neither.
	second, got := claimOf(t, l, "two", hook, 10)
	if got != "held@4" || second.Secret != "a secret of the test" || second.URL != hook.URL || second.Deliveries[0].Attempts != 1 {
		t.Errorf("claimed %s: %+v", got, second)
	}
	finishSending(t, l, first, drop.Delivered, 0, 0)
	third, got := claimOf(t, l, "two", hook, 10)
	if got != "confirmed@3" {
		t.Errorf("claimed %s", got)
	}
	// A worker that dies leaves its lease behind; the next one takes over, and what the first then says counts no more.
	db.SQL(t, "UPDATE hook_deliveries SET due_at = now() WHERE kind = 'confirmed'")
	fourth, got := claimOf(t, l, "three", hook, 10)
	if got != "confirmed@3" || fourth.Deliveries[0].Attempts != 2 {
		t.Errorf("taken over %s", got)
	}
	finishSending(t, l, third, drop.Failed, time.Hour, 0)
	if got := db.SQL(t, "SELECT worker FROM hook_deliveries WHERE kind = 'confirmed'"); got != "three" {
		t.Errorf("it is with %q", got)
	}
	finishSending(t, l, third, drop.Delivered, 0, 0) // but if it was delivered, it was
	finishSending(t, l, second, drop.Delivered, 0, 0)
	finishSending(t, l, fourth, drop.Failed, 0, 0)
	if got := db.SQL(t, "SELECT count(*) FROM hook_deliveries WHERE state <> 'delivered'"); got != "0" || wanted(t, l) != 0 {
		t.Errorf("%s are not delivered", got)
	}
	if n, err := l.NoticesToSend(t.Context()); n != 0 || err != nil {
		t.Errorf("%d to send, %v", n, err)
	}
}

// Of a receiver that does not answer one notice is tried now and then; what waits besides keeps its turn.
func TestAReceiverFailsAsAWhole(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t)
	hook := hookFor(t, l, drop.Hook{}, "held")
	other := hookFor(t, l, drop.Hook{}, "held")
	r := seeded(t, l, "lot", 10)
	for i := range 5 {
		r.hold(fmt.Sprint("u", i), 1)
	}
	apply(t, l, r.take()...)
	claim, _ := claimOf(t, l, "one", hook, 2)
	finishSending(t, l, claim, drop.Failed, time.Hour, time.Hour)
	finishSending(t, l, claim, drop.Failed, time.Hour, time.Millisecond) // said by one who claimed them before it failed
	if _, got := claimOf(t, l, "one", hook, 5); got != "" {
		t.Errorf("claimed %s of a receiver that is to be left alone", got)
	}
	if _, got := claimOf(t, l, "one", other, 5); got != "held@2 held@3 held@4 held@5 held@6" {
		t.Errorf("the other receiver's: %s", got)
	}
	hooks, err := l.Hooks(t.Context())
	if err != nil || hooks[0].Waiting != 5 || hooks[0].FailingSince.IsZero() || hooks[0].LastError != "answered 500" || hooks[0].Oldest.IsZero() || !hooks[1].FailingSince.IsZero() {
		t.Errorf("%+v, %v", hooks, err)
	}
	if n, err := l.NoticesToSend(t.Context()); n != 5 || err != nil { // those that the other has in hand
		t.Errorf("%d to send, %v", n, err)
	}
	for failures, want := range []string{"held@4", "held@5", "held@6", "held@2"} {
		db.SQL(t, "UPDATE hooks SET retry_at = now() WHERE failures > 0")
		if failures == 3 { // it has been asked about all that were never tried
			db.SQL(t, "UPDATE hook_deliveries SET due_at = now() WHERE seq = 2 AND hook = '"+hook.ID+"'")
		}
		probe, got := claimOf(t, l, "one", hook, 5)
		if got != want || probe.Failures != failures+1 {
			t.Errorf("after %d failures: claimed %s, want %s", probe.Failures, got, want)
		}
		if _, got := claimOf(t, l, "two", hook, 5); got != "" {
			t.Errorf("a second one asks with %s", got)
		}
		if failures < 3 {
			finishSending(t, l, probe, drop.Failed, time.Hour, time.Hour)
			continue
		}
		finishSending(t, l, probe, drop.Delivered, 0, 0)
	}
	// It answers again: all at once, in order.
	if _, got := claimOf(t, l, "one", hook, 5); got != "held@3 held@4 held@5 held@6" {
		t.Errorf("claimed %s", got)
	}
	if hooks, err = l.Hooks(t.Context()); err != nil || !hooks[0].FailingSince.IsZero() || hooks[0].LastError != "" {
		t.Errorf("%+v, %v", hooks, err)
	}
}

// A notice that its receiver does not want steps aside, is given up after three days, and can be taken up again.
func TestARefusedNoticeIsParked(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	l, db := newLedger(t)
	hook := hookFor(t, l, drop.Hook{}, "lot_opened lot_loaded")
	r := seeded(t, l, "lot", 10)
	apply(t, l, r.take()...)
	for range stepAside {
		claim, got := claimOf(t, l, "one", hook, 1)
		if got != "lot_loaded@1" {
			t.Errorf("claimed %s", got)
		}
		finishSending(t, l, claim, drop.Refused, 0, 0)
	}
	claim, got := claimOf(t, l, "one", hook, 2)
	if got != "lot_loaded@1 lot_opened@1" {
		t.Errorf("claimed %s", got)
	}
	finishSending(t, l, claim, drop.Refused, time.Hour, 0)
	prune := func() int64 {
		t.Helper()
		parked, err := l.PruneDeliveries(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return parked
	}
	if n := prune(); n != 0 {
		t.Errorf("%d were given up at once", n)
	}
	db.SQL(t, "UPDATE hook_deliveries SET retry_until = now() - interval '1 minute'")
	if n := prune(); n != 2 || prune() != 0 {
		t.Errorf("%d were given up", n)
	}
	if hooks, err := l.Hooks(t.Context()); err != nil || hooks[0].Parked != 2 || hooks[0].Waiting != 0 {
		t.Errorf("%+v, %v", hooks, err)
	}
	if n, err := l.RetryParked(t.Context(), hook.ID); n != 2 || err != nil || prune() != 0 {
		t.Errorf("%d are tried again, %v", n, err)
	}
	claim, _ = claimOf(t, l, "one", hook, 1)
	finishSending(t, l, claim, drop.Delivered, 0, 0)
	db.SQL(t, "UPDATE hook_deliveries SET ended_at = now() - interval '2 days' WHERE state = 'delivered'")
	prune()
	if got := told(t, db, hook); got != "lot_opened@1" {
		t.Errorf("%s is left", got)
	}
	// One that nobody tried, for want of a worker, is not given up.
	db.SQL(t, "UPDATE hook_deliveries SET retry_until = now() - interval '1 minute', attempts = 0")
	if n := prune(); n != 0 {
		t.Errorf("%d were given up and never tried", n)
	}
}
