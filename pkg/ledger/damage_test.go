package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestADamagedLotStopsAlone lets somebody with the owner's rights damage what the ledger has of one lot, in every table that
// apply writes. Another lot, whose events come in the same call, is recorded; nothing of the damaged one is lost.
func TestADamagedLotStopsAlone(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	for _, c := range []struct {
		name, damage string
		stopped      fault.Code
		rebuilds     bool // the lot can be put back into Redis as it was before
	}{
		{"a journal row in the place of the next event", `INSERT INTO reservation_events (lot, epoch, seq, kind, event_at, line, hash)
			VALUES ('LOT', 1, 5, 'void', now(), 'x', '')`, fault.StopUnfoldable, true},
		{"the next event itself in the journal", `INSERT INTO reservation_events (lot, epoch, seq, kind, event_at, line, hash)
			SELECT lot, epoch, 5, kind, event_at, line, hash FROM reservation_events WHERE lot = 'LOT' AND seq = 2`, fault.StopUnfoldable, true},
		{"a reservation in the place of the next hold", `INSERT INTO reservations SELECT lot, 6, attempt, user_id, 'released', qty, refunded, rest, deadline, created_at, changed_at, last_seq,
			ref, taken_from, key, asked, rejected FROM reservations WHERE lot = 'LOT' AND n = 2`, fault.StopUnfoldable, false},
		{"an allocation of what is not confirmed yet", `INSERT INTO pending_allocations (lot, n, attempt, user_id, units, refunded, ref, epoch, seq, confirmed_at, state, reason, entries)
			VALUES ('LOT', 2, 'x', 'x', 1, 0, '', 1, 2, now(), 'PENDING', '', 0)`, fault.StopUnfoldable, true},
		{"an event that nobody knows to wait", `INSERT INTO waiting_events (lot, epoch, seq, event_at, line) VALUES ('LOT', 1, 9, now(), 'x')`, fault.StopUnfoldable, true},
		{"a waiting event that cannot be read", `INSERT INTO waiting_events (lot, epoch, seq, event_at, line) VALUES ('LOT', 1, 9, now(), 'x');
			UPDATE lots SET waiting = 1 WHERE lot = 'LOT'`, fault.StopUnfoldable, true},
		{"units held that the lot does not count", `UPDATE lots SET held = 0 WHERE lot = 'LOT'`, fault.StopUnfoldable, false},
		{"a watermark below the journal", `UPDATE lots SET seq = 3, hash = (SELECT hash FROM reservation_events WHERE lot = 'LOT' AND seq = 3) WHERE lot = 'LOT'`, fault.StopUnfoldable, false},
		{"a watermark above the journal", `UPDATE lots SET seq = 7 WHERE lot = 'LOT'`, fault.StopFork, false},
		{"an epoch that was never issued", `INSERT INTO lot_epochs (lot, epoch, closed_epoch, closed_seq, actor, reason) VALUES ('LOT', 2, 1, 4, '', '')`, "", true},
		{"no lot", `DELETE FROM lots WHERE lot = 'LOT'`, "", false},
		{"no epoch", `DELETE FROM lot_epochs WHERE lot = 'LOT'`, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad, good := seeded(t, l, newLot(), 10), seeded(t, l, newLot(), 10)
			held, released := bad.hold("ann", 2), bad.hold("bob", 1)
			bad.hold("cid", 1)
			before := append(bad.take(), good.take()...)
			apply(t, l, before...)
			db.SQL(t, strings.ReplaceAll(c.damage, "LOT", string(bad.def.Lot)))

			bad.confirm(held, 2, "pay") // seq 5
			bad.hold("dan", 1)
			bad.release(released, 0)
			good.hold("ann", 3)
			came := append(bad.take(), good.take()...)
			bad.hold("eve", 1) // seq 8, ahead of 9
			behind := append(bad.take(), bad.emit(drop.Event{Kind: drop.KindChanged, Actor: "x", Definition: bad.def}))
			bad.take()
			apply(t, l, came...)
			apply(t, l, behind[1]) // waits behind a gap
			apply(t, l, append(append(before, came...), behind...)...)
			if _, err := l.FoldWaiting(t.Context()); err != nil {
				t.Error(err)
			}
			wantTotals(t, l, good.def.Lot, 10, 3, 0)
			wantStopped(t, l, good.def.Lot, "")
			wantDamage(t, l, bad.def.Lot, c.stopped)
			missing, err := l.Missing(t.Context(), entriesOf(append(came, behind...)))
			if err != nil || len(missing) > 0 {
				t.Errorf("the ledger does not have what it acknowledged: %+v, %v", missing, err)
			}
			if c.rebuilds {
				wantRebuilt(t, l, bad)
			}
		})
	}
}

// wantDamage checks that a lot stopped, and says why; "": that it goes on, or is gone.
func wantDamage(t *testing.T, l *Ledger, lot drop.LotID, code fault.Code) {
	t.Helper()
	lots, err := l.Lots(t.Context(), []drop.LotID{lot})
	if err != nil {
		t.Fatal(err)
	}
	for _, is := range lots {
		if is.Stopped != code || code == fault.StopUnfoldable && !strings.Contains(is.StoppedReason, "damaged") {
			t.Errorf("stopped %q: %s", is.Stopped, is.StoppedReason)
		}
	}
}

// wantRebuilt begins a new epoch of the lot, as a rebuild does, in which it goes on.
func wantRebuilt(t *testing.T, l *Ledger, r *redis) {
	t.Helper()
	r.load(issue(t, l, r.def.Lot))
	r.hold("fay", 1)
	apply(t, l, r.take()...)
	if lot := lotOf(t, l, r.def.Lot); lot.Stopped != "" || lot.Epoch < 2 || lot.Held != r.held {
		t.Errorf("after a rebuild %+v, stopped %q: %s; want %d held", lot.LedgerLot, lot.Stopped, lot.StoppedReason, r.held)
	}
}

// entriesOf is an outbox entry for each of these events.
func entriesOf(events []drop.Event) (entries []drop.OutboxEntry) {
	for _, ev := range events {
		body := fmt.Sprintf("@\t%s\t%d\n%s\n", ev.Lot, ev.Epoch, ev.Line())
		entries = append(entries, drop.OutboxEntry{Entry: drop.Entry{Installation: ev.Installation, Time: ev.Time, Body: body}})
	}
	return entries
}

// TestAnotherInstallationsDatabaseAtTheSameAddressIsLeftAlone: after a failover the address leads to somebody else's database.
func TestAnotherInstallationsDatabaseAtTheSameAddressIsLeftAlone(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	r := seeded(t, l, "lot", 10)
	apply(t, l, r.take()...)
	r.hold("ann", 1)
	events := r.take()
	db.SQL(t, `UPDATE settings SET installation = 'somebody-else'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { // the first calls find their connections dead
		_, err := l.Apply(t.Context(), events, nil)
		return fault.Is(err, fault.Foreign), fmt.Sprintf("applying there ended with %v", err)
	})
	if _, err := l.LockResend(t.Context()); !fault.Is(err, fault.Foreign) {
		t.Errorf("locking there ended with %v", err)
	}
	db.SQL(t, fmt.Sprintf(`UPDATE settings SET installation = '%s'`, l.Installation().ID))
	apply(t, l, events...)
	wantTotals(t, l, "lot", 10, 1, 0)
}
