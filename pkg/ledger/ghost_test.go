package ledger

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// The epoch race: the ledger is at 6, events 7 and 8 are still in the queue, and Redis was replaced by one that never
// saw them. Once the epoch has changed both are ghosts, whenever and in whatever order they arrive, and what was
// paid with them is due for refund.
func TestEventsInTheQueueAreGhostsWheneverTheyArrive(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	pool := openPool(t, db.URL(lab.Owner))
	const before, issued, withLoad, loaded = 0, 1, 2, 3
	var ends []string
	for at7 := issued; at7 <= loaded; at7++ { // before the epoch changes it would be folded
		for at8 := before; at8 <= loaded; at8++ {
			for _, swapped := range []bool{false, true} {
				lot := newLot()
				r := seeded(t, l, lot, 10)
				ann, bob := r.hold("ann", 2), r.hold("bob", 1)
				r.extend(ann)
				r.extend(bob)
				r.extend(ann)
				apply(t, l, r.take()...)
				seven, eight := r.confirm(ann, 2, "pay-ann"), r.confirm(bob, 1, "")
				if seven.Seq != 7 || eight.Seq != 8 {
					t.Fatalf("the events are %d and %d", seven.Seq, eight.Seq)
				}
				r.take()
				arrive := func(when int) (events []drop.Event) {
					if at7 == when {
						events = append(events, seven)
					}
					if at8 == when {
						events = append(events, eight)
					}
					if swapped && len(events) == 2 {
						events[0], events[1] = eight, seven
					}
					for i := range events[:max(0, len(events)-1)] { // one call each
						apply(t, l, events[i])
					}
					return events[max(0, len(events)-1):]
				}
				apply(t, l, arrive(before)...)
				life := issue(t, l, lot)
				if life.Closing != (drop.Watermark{Epoch: 1, Seq: 6}) {
					t.Fatalf("closed at %v", life.Closing)
				}
				apply(t, l, arrive(issued)...)
				// The promoted Redis goes on at 6: both holds still run, and its own 7 and 8 are other events.
				r.load(life)
				ann.State, ann.Qty, bob.State = drop.Held, 2, drop.Held
				r.release(bob, 0)
				r.expire(ann)
				apply(t, l, append(arrive(withLoad), r.take()...)...)
				apply(t, l, arrive(loaded)...)
				apply(t, l, eight, seven) // once more, as a queue may
				finalise(t, l)

				where := fmt.Sprintf("7 at %d, 8 at %d, swapped %v", at7, at8, swapped)
				wantTotals(t, l, lot, 10, 0, 0)
				wantStopped(t, l, lot, "")
				if dead := deadCodes(t, l, lot); dead != "ghost@1.7 ghost@1.8" && dead != "ghost@1.8 ghost@1.7" {
					t.Errorf("%s: dead letters %s", where, dead)
				}
				if due := dueRefs(t, l, lot); due != "ghost:pay-ann:2 ghost::1" && due != "ghost::1 ghost:pay-ann:2" {
					t.Errorf("%s: refunds due %s", where, due)
				}
				if s := salesOf(t, l, lot); s != (Sales{}) {
					t.Errorf("%s: sales %+v", where, s)
				}
				if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" {
					t.Errorf("%s: verify %+v, %v", where, v, err)
				}
				ends = append(ends, withoutHashes(dump(t, pool, []string{string(lot)}), lot, ann, bob))
			}
		}
	}
	for _, end := range ends {
		if end != ends[0] {
			t.Fatalf("two orders end differently:\n%s\n\n%s", ends[0], end)
		}
	}
}

var hash = regexp.MustCompile(`\\\\x[0-9a-f]{64}`)

// withoutHashes makes the dumps of two lots comparable: names and what follows from them are replaced.
func withoutHashes(dump string, lot drop.LotID, reservations ...*drop.Reservation) string {
	for i, r := range reservations {
		dump = strings.ReplaceAll(dump, r.ID.Attempt, fmt.Sprint("attempt-", i))
	}
	return hash.ReplaceAllString(strings.ReplaceAll(dump, string(lot)+",", "lot,"), "hash")
}
