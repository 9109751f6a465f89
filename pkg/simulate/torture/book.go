package torture

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Violation is a broken promise.
type Violation struct {
	At          time.Time  `json:"at" table:"AT"` // when it was found
	Lot         drop.LotID `json:"lot" table:"LOT"`
	Reservation string     `json:"reservation" table:"RESERVATION"` // or attempt; "" if it is the lot's
	What        string     `json:"what" table:"WHAT"`
}

// maxViolations is how many are kept: after the first ones the rest says little.
const maxViolations = 50

// book is what callers were told. Each attempt belongs to one caller, which alone changes it; the rest is for all.
type book struct {
	mu         sync.Mutex
	attempts   map[string]*attempt
	ops        map[act]*OpCount
	sold       map[drop.LotID]*bounds
	violations []Violation
	broken     int64 // violations, those not kept included
}

// bounds are units of a lot, by what its callers asked for and were told so far. What is sold at any moment lies between
// what was bought before and was not on its way back after it, and what was being bought after and had not come back before.
type bounds struct {
	bought   int64 // and told so
	buying   int64 // bought, or asked for and perhaps bought
	returned int64 // refunded, and told so
	back     int64 // asked to be refunded
}

// OpCount counts the calls of one kind.
type OpCount struct {
	Op       act   `json:"operation" table:"OPERATION"`
	Calls    int64 `json:"calls" table:"CALLS"` // repetitions included
	Accepted int64 `json:"accepted" table:"ACCEPTED"`
	Replayed int64 `json:"replayed" table:"REPLAYED"` // of the accepted: it already was so
	Refused  int64 `json:"refused" table:"REFUSED"`   // by a rule
	Unclear  int64 `json:"unclear" table:"UNCLEAR"`   // no answer, or none that says what happened
}

func newBook() *book {
	b := &book{attempts: map[string]*attempt{}, ops: map[act]*OpCount{}, sold: map[drop.LotID]*bounds{}}
	for _, w := range weights {
		b.ops[w.act] = &OpCount{Op: w.act}
	}
	for _, l := range lots {
		b.sold[l.Lot] = &bounds{}
	}
	return b
}

func (b *book) violate(lot drop.LotID, about, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken++; len(b.violations) < maxViolations {
		b.violations = append(b.violations, Violation{time.Now().UTC(), lot, about, fmt.Sprintf(format, args...)})
	}
}

// move changes the bounds of what is sold.
func (b *book) move(lot drop.LotID, by bounds) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.sold[lot]
	n.bought, n.buying, n.returned, n.back = n.bought+by.bought, n.buying+by.buying, n.returned+by.returned, n.back+by.back
}

func (b *book) boundsOf(lot drop.LotID) bounds {
	b.mu.Lock()
	defer b.mu.Unlock()
	return *b.sold[lot]
}

// clear reports whether an answer says for sure what happened.
func clear(err error) bool { return err == nil || fault.ExitOf(err) == fault.ExitRefused }

// count enters one answer.
func (b *book) count(op act, replayed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.ops[op]
	n.Calls++
	switch {
	case err == nil:
		n.Accepted++
		if replayed {
			n.Replayed++
		}
	case clear(err):
		n.Refused++
	default:
		n.Unclear++
	}
}

// told is one answer, kept for the history of an attempt.
type told struct {
	at   time.Time
	op   string // what was asked for
	code string // what was answered
}

// attempt is what one user was told under one key.
type attempt struct {
	request  drop.ReserveRequest
	id       drop.ReservationID // the newest
	granted  bool
	state    drop.State // "" before it is granted
	qty      int64      // units held or, once it is confirmed, sold
	whole    bool       // sold: all that was held
	ref      string
	refunded int64
	back     int64     // of the units refunds were asked for
	deadline time.Time // at the earliest
	longer   bool      // an extension may have been made of which nobody was told
	most     int64     // units within bounds.buying

	// What was asked for without a clear answer, and may have been done, or still be done.
	mayHold, mayBuy, mayRelease, mayRefund bool
	told                                   []told
}

func (a *attempt) note(op string, out drop.Outcome, err error) {
	code := string(fault.CodeOf(err))
	if err == nil {
		code = fmt.Sprintf("~%d %s %d", out.Reservation.ID.N, out.Reservation.State, out.Reservation.Qty)
		if !out.Reservation.Deadline.IsZero() {
			code += " until " + clock(out.Reservation.Deadline)
		}
		if out.Replayed {
			code += " (replayed)"
		}
	}
	a.told = append(a.told, told{time.Now(), op, code})
}

// live reports whether the hold lasts, as far as its user knows.
func (a *attempt) live() bool { return a.state == drop.Held && time.Now().Before(a.deadline) }

// reserved enters the answer to a reserve call. An unclear one may still be carried out, so only success ends the doubt.
func (b *book) reserved(a *attempt, out drop.Outcome, err error) {
	about := drop.AttemptOf(a.request.Lot, a.request.User, a.request.Key)
	wrong := func(format string, args ...any) { b.violate(a.request.Lot, about, format, args...) }
	switch {
	case err == nil:
	case !clear(err):
		if fault.ExitOf(err) != fault.ExitUnavailable {
			wrong("reserving was answered %v", err)
		}
		a.mayHold = true
		return
	case a.granted:
		wrong("a key that was granted %s is refused: %v", a.id, err)
		return
	default:
		return
	}
	r := out.Reservation
	switch {
	case a.granted && r.ID != a.id && r.From != a.id.N && !a.mayBuy:
		wrong("first told %s, then %s", a.id, r.ID)
	case a.granted && !out.Replayed:
		wrong("granted twice: %s, then %s", a.id, r.ID)
	case !out.Replayed && (r.State != drop.Held || r.Qty != a.request.Qty):
		wrong("asked for %d units, told %s %s of %d", a.request.Qty, r.ID, r.State, r.Qty)
	case a.state == drop.Confirmed && !a.mayRefund && r.Qty+a.refunded != a.qty && a.refunded < a.qty:
		wrong("told that %d units are bought, then that it is %s of %d", a.qty, r.State, r.Qty)
	}
	if !a.granted {
		a.granted, a.id, a.deadline, a.state, a.qty = true, r.ID, r.Deadline, drop.Held, a.request.Qty
	}
	a.mayHold = false
	b.shown(a, r)
}

// shown takes over what a repeated call shows of a reservation, which only what was asked for can have brought about.
func (b *book) shown(a *attempt, r drop.Reservation) {
	if a.state != drop.Held {
		return
	}
	wrong := func(format string, args ...any) { b.violate(a.request.Lot, r.ID.String(), format, args...) }
	switch r.State {
	case drop.Confirmed, drop.Refunded:
		if !a.mayBuy {
			wrong("told that it is %s, which nobody asked for", r.State)
		}
		b.sale(a, r)
	case drop.Released:
		if !a.mayRelease {
			wrong("told that it is released, which nobody asked for")
		}
		a.state = drop.Released
	case drop.Expired:
		if time.Now().Before(a.deadline) {
			wrong("told that it has expired, before its deadline %s", a.deadline)
		}
		a.state = drop.Expired
	}
}

// expects says which units may be sold by a confirmation, before it is sent.
func (b *book) expects(a *attempt, q drop.SettleRequest) {
	if q.Action != drop.ActConfirm || a.state == drop.Confirmed || a.state == drop.Refunded {
		return
	}
	units := max(q.Qty, a.qty) - a.most
	if units > 0 {
		a.most += units
		b.move(q.ID.Lot, bounds{buying: units})
	}
}

// forget takes back what expects said, of a confirmation that was refused and left no doubt.
func (b *book) forget(a *attempt) {
	if a.most > 0 && !a.mayBuy && a.state != drop.Confirmed {
		b.move(a.request.Lot, bounds{buying: -a.most})
		a.most = 0
	}
}

// settled enters the answer to a settle call.
func (b *book) settled(a *attempt, q drop.SettleRequest, out drop.Outcome, err error) {
	wrong := func(format string, args ...any) { b.violate(q.ID.Lot, q.ID.String(), format, args...) }
	if err != nil && !clear(err) {
		if fault.ExitOf(err) != fault.ExitUnavailable {
			wrong("%s was answered %v", q.Action, err)
		}
		b.doubt(a, q)
		return
	}
	if err != nil {
		b.refused(a, q, err)
		return
	}
	switch q.Action {
	case drop.ActConfirm:
		b.bought(a, q, out)
	case drop.ActRelease:
		b.released(a, q, out)
	case drop.ActExtend:
		if a.state == drop.Confirmed || a.state == drop.Released && !a.mayRelease {
			wrong("extended, though it was %s", a.state)
		}
		if out.Reservation.Deadline.Before(a.deadline) {
			wrong("extended until %s, before its deadline %s", out.Reservation.Deadline, a.deadline)
		}
		a.deadline = out.Reservation.Deadline
	case drop.ActRefund:
		b.paidBack(a, q)
	}
}

// doubt notes what may have been done.
func (b *book) doubt(a *attempt, q drop.SettleRequest) {
	switch q.Action {
	case drop.ActConfirm:
		a.mayBuy = true
	case drop.ActRelease:
		a.mayRelease = true
	case drop.ActExtend:
		a.longer = true
	case drop.ActRefund:
		a.mayRefund = true
	}
}

// refused holds a refusal against what was said before.
func (b *book) refused(a *attempt, q drop.SettleRequest, err error) {
	wrong := func(format string, args ...any) { b.violate(q.ID.Lot, q.ID.String(), format, args...) }
	code := fault.CodeOf(err)
	switch {
	case code == fault.LedgerRejected:
		wrong("the ledger rejected it")
	case code == fault.HoldExpired && a.state == drop.Held && !a.mayRelease && q.ID == a.id && time.Now().Before(a.deadline):
		wrong("told that it has expired, %s before its deadline", time.Until(a.deadline))
	case code == fault.AlreadyConfirmed && a.state == drop.Held && !a.mayBuy:
		wrong("told that it was bought, which nobody asked for")
	case code == fault.AlreadyReleased && a.state == drop.Held && !a.mayRelease:
		wrong("told that it was given back, which nobody asked for")
	case q.Action == drop.ActConfirm && a.state == drop.Confirmed && q.ID == a.id && q.Ref == a.ref && (q.Qty == a.qty || q.Qty == 0 && a.whole) && a.refunded == 0 && !a.mayRefund:
		wrong("bought, and then refused: %v", err)
	case q.Action == drop.ActRefund && a.state == drop.Confirmed && q.ID == a.id && q.Total > a.refunded && q.Total <= a.qty && !a.mayRefund:
		wrong("a refund of %d of %d units is refused: %v", q.Total, a.qty, err)
	}
	if code == fault.HoldExpired && a.state == drop.Held {
		a.state = drop.Expired
	}
	b.forget(a)
}

// bought holds an acknowledged confirmation against everything said before.
func (b *book) bought(a *attempt, q drop.SettleRequest, out drop.Outcome) {
	wrong := func(format string, args ...any) { b.violate(q.ID.Lot, q.ID.String(), format, args...) }
	r, retaken := out.Reservation, out.Reservation.ID != q.ID
	if a.state == drop.Confirmed || a.state == drop.Refunded { // once more
		if (r.ID != a.id || r.State == drop.Confirmed && r.Qty+r.Refunded != a.qty) && !a.mayRefund {
			wrong("bought as %s with %d units, then as %s with %d", a.id, a.qty, r.ID, r.Qty+r.Refunded)
		}
		return
	}
	switch {
	case r.State != drop.Confirmed || r.Ref != q.Ref || q.Qty != 0 && r.Qty != q.Qty || r.Qty > a.qty || q.Qty == 0 && r.Qty < a.qty && !a.mayRelease:
		wrong("the confirmation of %d units (0: all of %d) is answered with %s of %d", q.Qty, a.qty, r.State, r.Qty)
	case retaken && r.From != q.ID.N:
		wrong("its confirmation is answered with %s", r.ID)
	case !retaken && !out.Replayed && !a.longer && !out.Now.Before(a.deadline):
		wrong("bought at %s, after its deadline %s", out.Now, a.deadline)
	case a.state == drop.Released && !retaken && !a.mayRelease:
		wrong("bought after it was given back")
	}
	b.sale(a, r)
}

// sale notes that somebody was told of a sale.
func (b *book) sale(a *attempt, r drop.Reservation) {
	units := r.Qty + r.Refunded
	if r.State == drop.Refunded {
		units = r.Refunded
	}
	b.move(a.request.Lot, bounds{bought: units, buying: units - a.most})
	a.state, a.id, a.qty, a.whole, a.ref, a.most, a.mayBuy = drop.Confirmed, r.ID, units, r.Rest == 0, r.Ref, units, false
}

func (b *book) released(a *attempt, q drop.SettleRequest, out drop.Outcome) {
	if a.state == drop.Confirmed || a.state == drop.Refunded {
		b.violate(q.ID.Lot, q.ID.String(), "given back after it was bought")
		return
	}
	if q.Keep == 0 {
		a.state = drop.Released
		b.forget(a)
		return
	}
	if out.Reservation.State == drop.Held && out.Reservation.Qty != q.Keep {
		b.violate(q.ID.Lot, q.ID.String(), "%d units were to stay held, %d do", q.Keep, out.Reservation.Qty)
	}
	a.qty = min(a.qty, q.Keep)
}

func (b *book) paidBack(a *attempt, q drop.SettleRequest) {
	if a.state != drop.Confirmed && !a.mayBuy {
		b.violate(q.ID.Lot, q.ID.String(), "refunded, though it was never bought")
		return
	}
	b.move(q.ID.Lot, bounds{returned: max(0, q.Total-a.refunded)})
	a.refunded, a.mayRefund = max(a.refunded, q.Total), false
}

// refunding says that units may be sold no more, before the refund is sent.
func (b *book) refunding(a *attempt, total int64) {
	more := max(0, total-a.back)
	a.back += more
	b.move(a.request.Lot, bounds{back: more})
}

// all returns the attempts, once the callers have ended.
func (b *book) all() map[string]*attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.attempts
}

// operations returns the counts in the order of the acts.
func (b *book) operations() (list []OpCount, calls int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range weights {
		n := *b.ops[w.act]
		list = append(list, n)
		calls += n.Calls
	}
	return list, calls
}

func (b *book) found() ([]Violation, int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.violations), b.broken
}
