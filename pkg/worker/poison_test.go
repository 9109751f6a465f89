package worker_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// add writes an entry into the outbox of a lot's shard, as somebody might who should not.
func (s *shop) add(t testing.TB, lot drop.LotID, version, installation string, at time.Time, body string) {
	t.Helper()
	s.do(t, "XADD", outboxKey(t, s, lot), "*", drop.FieldVersion, version, drop.FieldInstallation, installation,
		drop.FieldTime, strconv.FormatInt(at.UnixMilli(), 10), drop.FieldBody, body)
}

// bodyOf is the body of an entry with nothing but this event.
func bodyOf(ev drop.Event) string {
	return fmt.Sprintf("@\t%s\t%d\n%s", ev.Lot, ev.Epoch, ev.Line())
}

// heldOf returns the first hold of a lot that the outbox has.
func (s *shop) heldOf(t testing.TB, lot drop.LotID) drop.Event {
	t.Helper()
	events, err := s.stock.EventsSince(t.Context(), lot.Shard(shards), map[drop.LotID]drop.Watermark{lot: {}})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events[lot] {
		if ev.Kind == drop.KindHeld {
			return ev
		}
	}
	t.Fatalf("there is no hold of %s", lot)
	return drop.Event{}
}

// Everything that can be wrong with an entry is in one shard's stream. What belongs to a lot stops that lot; nothing stops
// another one, nor a worker.
func TestPoisonStopsAtMostItsLot(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	ours := s.ledger.Installation().ID
	const good = drop.LotID("drop:good")
	stops := map[drop.LotID]fault.Code{
		"drop:garbled": fault.StopUnfoldable, "drop:forked": fault.StopFork, "drop:unissued": fault.StopUnfoldable, "drop:void": fault.StopUnfoldable, "drop:unheld": fault.StopUnfoldable,
	}
	lots := []drop.LotID{good}
	for lot := range stops {
		lots = append(lots, lot)
	}
	for _, lot := range lots {
		s.load(t, lot, 1000)
		s.sell(t, lot, 0, 4)
	}
	s.mustDrain(t)

	// Of no lot.
	ev := s.heldOf(t, good)
	s.add(t, good, "1", ours, ev.Time, strings.Repeat("nonsense ", 50_000))
	s.add(t, good, "1", ours, ev.Time, "\x00\xff\n\n\t")
	s.add(t, good, "9", ours, ev.Time, bodyOf(ev))
	s.add(t, good, "1", "somebody-else", ev.Time, bodyOf(ev))
	s.add(t, good, "1", "", ev.Time, bodyOf(ev))
	s.do(t, "XADD", outboxKey(t, s, good), "*", "what", "ever")
	unknown := ev
	unknown.Lot = "drop:unknown"
	s.add(t, good, "1", ours, ev.Time, bodyOf(unknown))
	const ofNoLot = 7 + 2 // lines: the second entry has three

	// Of a lot each.
	s.add(t, "drop:garbled", "1", ours, ev.Time, "@\tdrop:garbled\t1\nnonsense")
	forked := s.heldOf(t, "drop:forked")
	forked.User = "mallory"
	s.add(t, "drop:forked", "1", ours, forked.Time, bodyOf(forked))
	unissued := s.heldOf(t, "drop:unissued")
	unissued.Epoch = 9
	s.add(t, "drop:unissued", "1", ours, unissued.Time, bodyOf(unissued))
	next := func(lot drop.LotID) int64 { return s.watermark(t, lot).Seq + 1 }
	s.add(t, "drop:void", "1", ours, ev.Time, bodyOf(drop.Event{Lot: "drop:void", Epoch: 1, Seq: next("drop:void"), Kind: drop.KindVoid, Actor: "mallory"}))
	unheld := s.heldOf(t, "drop:unheld")
	unheld.Kind, unheld.Seq, unheld.Rest, unheld.Reservation.Attempt = drop.KindConfirmed, next("drop:unheld"), 0, strings.Repeat("a", drop.AttemptLen)
	s.add(t, "drop:unheld", "1", ours, ev.Time, bodyOf(unheld))

	for _, lot := range lots {
		if lot != "drop:unheld" { // its next event would have the place of the one above: in one batch with it, a fork
			s.sell(t, lot, 4, 20)
		}
	}
	sum, err := s.drain(t, worker.Options{})
	if !fault.Is(err, fault.Partial) {
		t.Errorf("the worker did %+v and ended with %v", sum, err)
	}
	if n := s.pending(t); n != 0 {
		t.Errorf("%d entries are held up", n)
	}
	for lot, code := range stops {
		if got := s.sql(t, `SELECT stopped FROM lots WHERE lot = '`+string(lot)+`'`); got != string(code) {
			t.Errorf("%s is stopped for %q, not %s", lot, got, code)
		}
	}
	if dead := s.sql(t, `SELECT count(*) FROM dead_letters WHERE lot NOT IN ('drop:garbled', 'drop:forked', 'drop:unissued', 'drop:void', 'drop:unheld')`); dead != strconv.Itoa(ofNoLot) {
		t.Errorf("of no lot %s lines are parked, not %d:\n%s", dead, ofNoLot, s.sql(t, `SELECT lot, code, left(reason, 60), left(line, 60) FROM dead_letters`))
	}
	if bad := s.differences(t.Context()); strings.Contains(bad, string(good)) {
		t.Error(bad)
	}
	// The good lot sells on, and is recorded.
	s.sell(t, good, 24, 20)
	if _, err := s.drain(t, worker.Options{}); !fault.Is(err, fault.Finding) {
		t.Errorf("the next worker ended with %v", err)
	}
	if bad := s.differences(t.Context()); strings.Contains(bad, string(good)) {
		t.Error(bad)
	}
}
