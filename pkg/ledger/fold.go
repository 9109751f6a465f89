package ledger

import (
	"fmt"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// allocation is a confirmed reservation on its way to a sale.
type allocation struct {
	lot       drop.LotID
	n         int64
	attempt   string
	user      string
	units     int64 // to be sold
	refunded  int64 // of them, while the state was PROCESSING
	ref       string
	confirmed drop.Watermark
	at        time.Time
	state     string
	reason    string
	entries   int // rows in order_ledger
}

// The states of an allocation.
const (
	allocationPending    = "PENDING"
	allocationProcessing = "PROCESSING"
	allocationProcessed  = "PROCESSED"
	allocationRejected   = "REJECTED"
)

// misfit says why an event does not follow from the state before it. The lot is stopped with its code.
type misfit struct {
	code   fault.Code
	reason string
}

func unfoldable(format string, args ...any) *misfit {
	return &misfit{fault.StopUnfoldable, fmt.Sprintf(format, args...)}
}

// fold is one lot while events are folded into it, in memory. It knows the reservations and allocations that
// the events concern, and collects what must be written.
type fold struct {
	lot           *Lot
	start         int64                    // seq behind which everything is new
	reservations  map[int64]*drop.Recorded // by n
	allocations   map[int64]*allocation    // by n
	touched       map[int64]bool           // reservations to write
	paid          map[int64]bool           // allocations to write
	journal       []journalRow
	entries       []ledgerEntry
	due           []RefundDue
	confirmations []payment // that have units now, whatever of them was due before

	wanted  map[drop.NoticeKind]bool // what hooks want to know; nil: nothing
	notices []noticeRow
	marks   marks
}

type journalRow struct {
	item
	hash []byte
}

// ledgerEntry is one row of order_ledger.
type ledgerEntry struct {
	*allocation
	entry int
	units int64
}

func newFold(lot *Lot) *fold {
	return &fold{lot: lot, start: lot.Watermark.Seq, reservations: map[int64]*drop.Recorded{}, allocations: map[int64]*allocation{}, touched: map[int64]bool{}, paid: map[int64]bool{}}
}

// next folds the event that follows the lot's watermark, or changes nothing and says why it does not fit.
// It may leave the lot stopped: then the event is folded, but none after it may be.
func (f *fold) next(it item) *misfit {
	ev := it.Event
	if bad := f.follows(ev); bad != nil {
		return bad
	}
	was := f.lot.glance(ev.Time)
	var bad *misfit
	switch ev.Kind {
	case drop.KindLoaded:
		bad = f.loaded(ev)
	case drop.KindAdjusted, drop.KindChanged:
		bad = f.redefined(ev)
	case drop.KindVoid: // it only fills a place
	default:
		bad = f.ofReservation(ev)
	}
	if bad != nil {
		return bad
	}
	f.record(it)
	if len(f.wanted) > 0 {
		f.tell(ev, was)
	}
	return nil
}

// ofReservation folds an event of a reservation.
func (f *fold) ofReservation(ev drop.Event) *misfit {
	switch ev.Kind {
	case drop.KindHeld:
		return f.held(ev)
	case drop.KindPaidLate:
		f.paidLate(ev)
		return nil
	case drop.KindConfirmed, drop.KindReleased, drop.KindExpired, drop.KindExtended:
		return f.settled(ev)
	case drop.KindRefunded:
		return f.refunded(ev)
	}
	return unfoldable("an event of the kind %s does not come from Redis", ev.Kind)
}

// follows checks the event's place: seq runs on across epochs, and an epoch begins with its load, or with a void in place
// of one.
func (f *fold) follows(ev drop.Event) *misfit {
	at := f.lot.Watermark
	switch {
	case ev.Seq != at.Seq+1:
		return unfoldable("seq %d does not follow %d", ev.Seq, at.Seq)
	case ev.Kind == drop.KindLoaded && ev.Epoch == at.Epoch:
		return unfoldable("epoch %d is loaded twice", ev.Epoch)
	case ev.Kind != drop.KindLoaded && ev.Kind != drop.KindVoid && ev.Epoch != at.Epoch:
		return unfoldable("epoch %d does not begin with its load", ev.Epoch)
	}
	return nil
}

func (f *fold) record(it item) {
	f.lot.Watermark = it.Watermark()
	f.lot.hash = drop.Chain(f.lot.hash, it.DigestOf(it.line))
	if it.Kind != drop.KindVoid { // it has no time of its own
		f.lot.EventAt = it.Time
	}
	f.journal = append(f.journal, journalRow{it, f.lot.hash})
}

// stop keeps the first reason: what follows from it explains nothing.
func (l *Lot) stop(code fault.Code, reason string) {
	if l.Stopped == "" {
		l.Stopped, l.StoppedReason = code, reason
	}
}

// loaded: Redis must have been given exactly what the ledger closed the epoch with. The very first load closes
// nothing, and its capacity is where the history begins: of two seeds that overlap, either's load may be the one
// that came through. Rejected holds are not part of a load, so that they are gone now.
func (f *fold) loaded(ev drop.Event) *misfit {
	is, want := f.lot.Totals(), drop.Totals{Capacity: ev.Definition.Stock, Held: ev.Held, Sold: ev.Sold}
	want.Available = want.Capacity - want.Held - want.Sold
	if f.lot.Watermark == (drop.Watermark{}) {
		is.Capacity, is.Available = want.Capacity, want.Capacity
	}
	if ev.Closing != f.lot.Watermark || is != want {
		return &misfit{fault.StopLoadMismatch, fmt.Sprintf("loaded %d held and %d sold of %d behind (%d, %d), but the ledger stands at %d held and %d sold of %d at (%d, %d)",
			want.Held, want.Sold, want.Capacity, ev.Closing.Epoch, ev.Closing.Seq, is.Held, is.Sold, is.Capacity, f.lot.Watermark.Epoch, f.lot.Watermark.Seq)}
	}
	f.define(ev)
	for n, r := range f.reservations {
		if r.Rejected && r.State == drop.Held {
			r.State = drop.Expired
			f.touched[n] = true
		}
	}
	return nil
}

// redefined takes over the definition. The counters follow from the other events alone: that the event's
// differ is drift, which reconcile shows, and no reason to leave the sales after it unrecorded.
func (f *fold) redefined(ev drop.Event) *misfit {
	if f.lot.Held+f.lot.Sold > ev.Definition.Stock {
		return unfoldable("a capacity of %d is less than the %d held and %d sold", ev.Definition.Stock, f.lot.Held, f.lot.Sold)
	}
	f.define(ev)
	if ev.Kind == drop.KindAdjusted {
		f.lot.AdjustActor, f.lot.AdjustReason = ev.Actor, ev.Reason
	}
	return nil
}

func (f *fold) define(ev drop.Event) {
	id := f.lot.Lot
	f.lot.Definition = ev.Definition
	f.lot.Lot = id
}

func (f *fold) held(ev drop.Event) *misfit {
	if ev.Reservation.N != ev.Seq {
		return unfoldable("a hold's n is %d, not its seq %d", ev.Reservation.N, ev.Seq)
	}
	r := &drop.Recorded{
		Reservation: drop.Reservation{ID: ev.Reservation, User: ev.User, State: drop.Held, Qty: ev.Qty, Deadline: ev.Deadline, Created: ev.Time, From: ev.From, Asked: ev.Asked},
		Key:         ev.Key,
		// A hold beyond the capacity is one that Redis counted twice. It is kept, but counts nowhere.
		Rejected: f.lot.Held+f.lot.Sold+ev.Qty > f.lot.Stock,
	}
	if !r.Rejected {
		f.lot.Held += ev.Qty
	}
	f.reservations[ev.Reservation.N] = r
	f.touch(r, ev)
	return nil
}

func (f *fold) touch(r *drop.Recorded, ev drop.Event) {
	r.LastSeq, r.Changed = ev.Seq, ev.Time
	f.touched[r.ID.N] = true
}

// known returns the event's reservation in the state the event needs.
func (f *fold) known(ev drop.Event, state drop.State) (*drop.Recorded, *misfit) {
	r := f.reservations[ev.Reservation.N]
	switch {
	case r == nil || r.ID.Attempt != ev.Reservation.Attempt:
		return nil, unfoldable("the reservation %s is unknown", ev.Reservation)
	case r.State != state:
		return nil, unfoldable("the reservation %s is %s, not %s", ev.Reservation, r.State, state)
	}
	return r, nil
}

// settled folds what ends, shortens or extends a hold.
func (f *fold) settled(ev drop.Event) *misfit {
	r, bad := f.known(ev, drop.Held)
	if bad != nil {
		return bad
	}
	if ev.Qty+ev.Rest != r.Qty {
		return unfoldable("%s %d units and %d rest do not make up the %d held of %s", ev.Kind, ev.Qty, ev.Rest, r.Qty, ev.Reservation)
	}
	if !r.Rejected {
		held, sold, _ := ev.Delta()
		f.lot.Held += held
		f.lot.Sold += sold
	}
	f.touch(r, ev)
	switch {
	case ev.Kind == drop.KindConfirmed:
		f.confirmed(r, ev)
	case ev.Kind == drop.KindExtended:
		r.Deadline = ev.Deadline
	case ev.Kind == drop.KindExpired:
		r.State = drop.Expired
	case ev.Rest > 0:
		r.Qty = ev.Rest
	default:
		r.State = drop.Released
	}
	return nil
}

// confirmed makes the units wait for their sale. Units that the lot does not have are rejected: the buyer
// gets the money back, and the lot stops, since Redis promised them twice.
func (f *fold) confirmed(r *drop.Recorded, ev drop.Event) {
	r.State, r.Qty, r.Rest, r.Ref = drop.Confirmed, ev.Qty, ev.Rest, ev.Ref
	a := &allocation{lot: r.ID.Lot, n: r.ID.N, attempt: r.ID.Attempt, user: r.User, units: ev.Qty, ref: ev.Ref, confirmed: ev.Watermark(), at: ev.Time, state: allocationPending}
	f.allocations[a.n] = a
	f.paid[a.n] = true
	if !r.Rejected {
		if ev.Ref != "" {
			f.confirmations = append(f.confirmations, payment{r.ID.Lot, r.ID.Attempt, ev.Ref})
		}
		return
	}
	r.State, r.Qty, r.Refunded = drop.Refunded, 0, ev.Qty
	a.state, a.reason = allocationRejected, string(fault.StopOverCapacity)
	f.due = append(f.due, refundDue(ev, r.User, WhyRejected))
	f.lot.stop(fault.StopOverCapacity, fmt.Sprintf("%s confirmed %d units that the lot does not have", ev.Reservation, ev.Qty))
}

// paidLate changes no counter, and the reservation may be long gone: only the money is due.
func (f *fold) paidLate(ev drop.Event) {
	user := ev.User
	if r := f.reservations[ev.Reservation.N]; r != nil && r.ID.Attempt == ev.Reservation.Attempt {
		user = r.User
		r.LastSeq = ev.Seq // and no change of its own: a reservation that ended did not end later by it
		f.touched[r.ID.N] = true
	}
	f.due = append(f.due, refundDue(ev, user, WhyPaidLate))
}

func (f *fold) refunded(ev drop.Event) *misfit {
	r, bad := f.known(ev, drop.Confirmed)
	if bad != nil {
		return bad
	}
	a := f.allocations[r.ID.N]
	switch {
	case ev.Qty < 1 || ev.Qty > r.Qty || ev.Total != r.Refunded+ev.Qty:
		return unfoldable("a refund of %d units, %d in all, does not fit the %d left and %d refunded of %s", ev.Qty, ev.Total, r.Qty, r.Refunded, ev.Reservation)
	case a == nil || a.state == allocationRejected:
		return unfoldable("the reservation %s has no sale to refund", ev.Reservation)
	}
	_, sold, capacity := ev.Delta()
	f.lot.Sold += sold
	f.lot.Stock += capacity
	if capacity != 0 {
		// A seed must not put back what left the lot for good.
		f.lot.AdjustActor, f.lot.AdjustReason = ev.Actor, "refund without restock"
	}
	r.Qty, r.Refunded = r.Qty-ev.Qty, ev.Total
	if r.Qty == 0 {
		r.State = drop.Refunded
	}
	f.touch(r, ev)
	f.refundSale(a, ev.Qty)
	return nil
}

// refundSale keeps the sum of the sale's entries equal to the units that stay sold. What no worker has begun
// to charge is simply charged less, or not at all. What a worker may be charging keeps its amount, since a
// retry must ask for the same; the refund is written together with the sale. What is sold gets a refund entry.
func (f *fold) refundSale(a *allocation, units int64) {
	f.paid[a.n] = true
	switch a.state {
	case allocationPending:
		a.units -= units
		if a.units == 0 {
			a.state, a.reason = allocationRejected, string(drop.Refunded)
		}
	case allocationProcessing:
		a.refunded += units
	case allocationProcessed:
		a.entries++
		f.entries = append(f.entries, ledgerEntry{a, a.entries, -units})
	}
}
