package stock

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// book is a plain account of one lot, kept by the rules of the design and the scripts' header contracts. It knows
// nothing of batches, due entries or sweeps: which holds were taken back when, the events tell; whether that was
// right, the book tells. Times are milliseconds.
type book struct {
	def drop.Definition // Stock is the present capacity
	drop.Totals
	seq     int64
	records map[string]*entry // by attempt
	users   map[string]*tally
}

// entry is one record of the book.
type entry struct {
	state                       drop.State
	user, asked, ref, late      string
	qty, n, last                int64
	deadline, created           int64
	rest, refunded, from, since int64 // since: when it was confirmed, or ended
}

// tally is what a user has.
type tally struct {
	held, bought int64
	live         string
}

// verdict is what the book expects of a call: a refusal's code, or the reservation as it then is; and the events.
type verdict struct {
	code      fault.Code
	attempt   string
	replayed  bool
	remaining int64
	events    []drop.Event // without installation, epoch and time
}

func newBook(d drop.Definition) *book {
	d = d.WithDefaults()
	return &book{def: d, Totals: drop.Totals{Capacity: d.Stock, Available: d.Stock}, seq: 1, records: make(map[string]*entry), users: make(map[string]*tally)}
}

func (b *book) user(name string) *tally {
	if b.users[name] == nil {
		b.users[name] = &tally{}
	}
	return b.users[name]
}

// left is how many more units a user may take; -1 without a limit. A user unknown to a record counts as one who has nothing.
func (b *book) left(user string) int64 {
	if b.def.Limit == 0 || user == "" { // nobody: a tombstone that names no user
		return -1
	}
	u := b.user(user)
	return max(0, b.def.Limit-u.held-u.bought)
}

func (b *book) next() int64 { b.seq++; return b.seq }

// due reports whether holds are in the book whose deadline has passed.
func (b *book) due(now int64) bool {
	for _, r := range b.records {
		if r.state == drop.Held && r.deadline <= now {
			return true
		}
	}
	return false
}

// event starts an event about a record.
func (b *book) event(kind drop.Kind, attempt string, r *entry, qty int64, q drop.SettleRequest) drop.Event {
	return drop.Event{Kind: kind, Seq: r.last, Reservation: drop.ReservationID{Lot: b.def.Lot, Attempt: attempt, N: r.n}, User: r.user, Qty: qty, Actor: q.Actor, Reason: q.Reason}
}

// expire books an expiry that an event told of, or says why it is wrong.
func (b *book) expire(e drop.Event, now int64) error {
	r := b.records[e.Reservation.Attempt]
	switch {
	case r == nil || r.state != drop.Held || r.n != e.Reservation.N:
		return fmt.Errorf("expired what is no hold: %+v", e)
	case r.deadline > now:
		return fmt.Errorf("expired %d ms early: %+v", r.deadline-now, e)
	case e.Qty != r.qty || e.User != r.user || e.Seq != b.seq+1:
		return fmt.Errorf("the event does not fit the hold %+v: %+v", *r, e)
	}
	b.Held, b.Available = b.Held-r.qty, b.Available+r.qty
	u := b.user(r.user)
	u.held -= r.qty
	if u.live == e.Reservation.Attempt {
		u.live = ""
	}
	r.state, r.last, r.since = drop.Expired, b.next(), now
	return nil
}

func (b *book) refuse(code fault.Code, user string) verdict {
	return verdict{code: code, remaining: b.left(user)}
}

func (b *book) reserve(q drop.ReserveRequest, now int64) verdict {
	attempt := drop.AttemptOf(q.Lot, q.User, q.Key)
	asked := fmt.Sprintf("%d/%d", q.Qty, q.Hold.Milliseconds())
	if r := b.records[attempt]; r != nil {
		if r.asked != asked {
			return b.refuse(fault.KeyReused, q.User)
		}
		return verdict{attempt: attempt, replayed: true, remaining: b.left(q.User)}
	}
	hold := q.Hold
	if hold == 0 {
		hold = b.def.Hold
	}
	u := b.user(q.User)
	var back int64
	if q.Replace && u.live != "" {
		back = b.records[u.live].qty
	}
	switch {
	case b.closed(now) != "":
		return b.refuse(b.closed(now), q.User)
	case u.live != "" && !q.Replace:
		return b.refuse(fault.HoldExists, q.User)
	case b.def.Limit > 0 && u.held+u.bought-back+q.Qty > b.def.Limit:
		return b.refuse(fault.CustomerLimit, q.User)
	case hold > b.def.MaxHold:
		return b.refuse(fault.Invalid, q.User)
	case q.Qty > b.Available+back:
		return b.refuse(fault.SoldOut, q.User)
	}
	var events []drop.Event
	if u.live != "" {
		old := drop.SettleRequest{ID: drop.ReservationID{Attempt: u.live}, Actor: q.Actor, Reason: "replaced"}
		events = b.release(old, b.records[u.live], now).events
	}
	n := b.next()
	r := &entry{state: drop.Held, user: q.User, asked: asked, qty: q.Qty, n: n, last: n, deadline: now + hold.Milliseconds(), created: now}
	b.records[attempt] = r
	b.Available, b.Held = b.Available-q.Qty, b.Held+q.Qty
	u.held, u.live = u.held+q.Qty, attempt
	e := b.event(drop.KindHeld, attempt, r, q.Qty, drop.SettleRequest{Actor: q.Actor})
	e.Asked, e.Key, e.Deadline = asked, q.Key, time.UnixMilli(r.deadline).UTC()
	return verdict{attempt: attempt, remaining: b.left(q.User), events: append(events, e)}
}

// closed says why the lot takes no hold.
func (b *book) closed(now int64) fault.Code {
	switch {
	case b.def.Status == drop.Paused:
		return fault.LotPaused
	case b.def.Status == drop.Closed, !b.def.Closes.IsZero() && now >= b.def.Closes.UnixMilli():
		return fault.SaleClosed
	case !b.def.Opens.IsZero() && now < b.def.Opens.UnixMilli():
		return fault.SaleNotOpen
	}
	return ""
}

// settle books a settle call. No hold that it is about is due: those were expired before.
func (b *book) settle(q drop.SettleRequest, now int64) verdict {
	r := b.records[q.ID.Attempt]
	switch {
	case r == nil:
		return verdict{code: fault.NotFound}
	case r.n != q.ID.N && (r.state != drop.Confirmed && r.state != drop.Refunded || r.from != q.ID.N):
		if q.ID.N < r.n {
			return verdict{code: fault.HoldExpired}
		}
		return verdict{code: fault.NotFound}
	}
	switch q.Action {
	case drop.ActConfirm:
		return b.confirm(q, r, now)
	case drop.ActRelease:
		return b.release(q, r, now)
	case drop.ActExtend:
		return b.extend(q, r, now)
	}
	return b.refund(q, r, now)
}

// owner is the user whose counters an answer tells of: tombstones of released and refunded reservations name none.
func (r *entry) owner() string {
	if r.state == drop.Released || r.state == drop.Refunded {
		return ""
	}
	return r.user
}

func (b *book) already(q drop.SettleRequest, r *entry) verdict {
	return verdict{attempt: q.ID.Attempt, replayed: true, remaining: b.left(r.owner())}
}

var endings = map[drop.State]fault.Code{drop.Confirmed: fault.AlreadyConfirmed, drop.Released: fault.AlreadyReleased, drop.Refunded: fault.AlreadyRefunded, drop.Expired: fault.HoldExpired}

// refDigest is what a record remembers of a payment reference.
func refDigest(ref string) string {
	if ref == "" {
		return ""
	}
	sum := sha1.Sum([]byte(ref))
	return hex.EncodeToString(sum[:])[:10]
}

// unpaid refuses a confirm. Money that nobody has units for is told of once.
func (b *book) unpaid(code fault.Code, q drop.SettleRequest, r *entry) verdict {
	v := verdict{code: code, remaining: b.left(r.owner())}
	digest := refDigest(q.Ref)
	sold := r.state == drop.Confirmed || r.state == drop.Refunded
	if q.Ref == "" || r.state == drop.Held || r.late == digest || sold && r.ref == q.Ref {
		return v
	}
	r.late, r.last = digest, b.next()
	e := b.event(drop.KindPaidLate, q.ID.Attempt, r, r.qty, q)
	e.User, e.Ref = r.owner(), q.Ref
	v.events = []drop.Event{e}
	return v
}

func (b *book) confirm(q drop.SettleRequest, r *entry, now int64) verdict {
	qty := q.Qty
	if qty == 0 {
		qty = r.qty
	}
	u := b.user(r.user)
	switch r.state {
	case drop.Held:
		if qty > r.qty {
			return b.unpaid(fault.Conflict, q, r)
		}
		b.Held, b.Sold, b.Available = b.Held-r.qty, b.Sold+qty, b.Available+r.qty-qty
		u.held, u.bought, u.live = u.held-r.qty, u.bought+qty, ""
		r.state, r.rest, r.qty, r.ref, r.since, r.last = drop.Confirmed, r.qty-qty, qty, q.Ref, now, b.next()
		e := b.event(drop.KindConfirmed, q.ID.Attempt, r, qty, q)
		e.Rest, e.Ref = r.rest, q.Ref
		return verdict{attempt: q.ID.Attempt, remaining: b.left(r.user), events: []drop.Event{e}}
	case drop.Confirmed:
		sameUnits := q.Qty == r.qty+r.refunded || q.Qty == 0 && r.rest == 0
		if sameUnits && (q.Ref == "" || q.Ref == r.ref) {
			return b.already(q, r)
		}
	case drop.Expired:
		late := q.Late
		if late == "" {
			late = b.def.Late
		}
		if late == drop.Reclaim {
			return b.reclaim(q, r, qty, now)
		}
	}
	return b.unpaid(endings[r.state], q, r)
}

func (b *book) reclaim(q drop.SettleRequest, r *entry, qty, now int64) verdict {
	u := b.user(r.user)
	switch {
	case qty > r.qty:
		return b.unpaid(fault.Conflict, q, r)
	case u.live != "":
		return b.unpaid(fault.HoldExists, q, r)
	case b.def.Limit > 0 && qty > b.left(r.user):
		return b.unpaid(fault.CustomerLimit, q, r)
	case qty > b.Available:
		return b.unpaid(fault.SoldOut, q, r)
	}
	r.from, r.n, r.qty = r.n, b.next(), qty
	r.last = r.n
	held := b.event(drop.KindHeld, q.ID.Attempt, r, qty, drop.SettleRequest{Actor: q.Actor})
	held.Asked, held.From, held.Deadline = r.asked, r.from, time.UnixMilli(now).UTC()
	b.Available, b.Sold, u.bought = b.Available-qty, b.Sold+qty, u.bought+qty
	r.state, r.rest, r.refunded, r.ref, r.since, r.last = drop.Confirmed, 0, 0, q.Ref, now, b.next()
	confirmed := b.event(drop.KindConfirmed, q.ID.Attempt, r, qty, q)
	confirmed.Ref = q.Ref
	return verdict{attempt: q.ID.Attempt, remaining: b.left(r.user), events: []drop.Event{held, confirmed}}
}

func (b *book) release(q drop.SettleRequest, r *entry, now int64) verdict {
	switch {
	case r.state == drop.Released && q.Keep == 0,
		r.state == drop.Confirmed && q.Keep > 0 && q.Keep == r.qty+r.refunded,
		r.state == drop.Held && q.Keep == r.qty:
		return b.already(q, r)
	case r.state != drop.Held:
		return b.refuse(endings[r.state], r.owner())
	case q.Keep > r.qty:
		return b.refuse(fault.Conflict, r.user)
	}
	back := r.qty - q.Keep
	r.last = b.next()
	e := b.event(drop.KindReleased, q.ID.Attempt, r, back, q)
	e.Rest = q.Keep
	b.Held, b.Available = b.Held-back, b.Available+back
	u := b.user(r.user)
	u.held -= back
	if q.Keep > 0 {
		r.qty = q.Keep
	} else {
		u.live = ""
		r.state, r.qty, r.since = drop.Released, back, now
	}
	return verdict{attempt: q.ID.Attempt, remaining: b.left(r.user), events: []drop.Event{e}}
}

func (b *book) extend(q drop.SettleRequest, r *entry, now int64) verdict {
	if r.state != drop.Held {
		return b.refuse(endings[r.state], r.owner())
	}
	most := r.created + b.def.MaxHold.Milliseconds()
	deadline := max(r.deadline, min(now+q.By.Milliseconds(), most))
	if deadline == r.deadline {
		return b.already(q, r)
	}
	r.deadline, r.last = deadline, b.next()
	e := b.event(drop.KindExtended, q.ID.Attempt, r, r.qty, q)
	e.Deadline = time.UnixMilli(deadline).UTC()
	return verdict{attempt: q.ID.Attempt, remaining: b.left(r.user), events: []drop.Event{e}}
}

func (b *book) refund(q drop.SettleRequest, r *entry, now int64) verdict {
	if r.state == drop.Refunded {
		if q.Total == -1 || q.Total == r.refunded {
			return b.already(q, r)
		}
		return b.refuse(fault.AlreadyRefunded, "")
	}
	if r.state != drop.Confirmed {
		return b.refuse(fault.NotConfirmed, r.owner())
	}
	bought, total := r.qty+r.refunded, q.Total
	if total == -1 {
		total = bought
	}
	switch {
	case total == r.refunded:
		return b.already(q, r)
	case total < r.refunded:
		return b.refuse(fault.AlreadyRefunded, r.user)
	case total > bought:
		return b.refuse(fault.Conflict, r.user)
	}
	back := total - r.refunded
	r.last = b.next()
	e := b.event(drop.KindRefunded, q.ID.Attempt, r, back, q)
	e.Total, e.Restock = total, !q.NoRestock
	b.Sold -= back
	if q.NoRestock {
		b.Capacity -= back
	} else {
		b.Available += back
	}
	b.def.Stock = b.Capacity
	b.user(r.user).bought -= back
	r.qty, r.refunded = r.qty-back, total
	if r.qty == 0 {
		r.state, r.since = drop.Refunded, now
	}
	return verdict{attempt: q.ID.Attempt, remaining: b.left(r.user), events: []drop.Event{e}}
}

// adjust books a change of the capacity; replayed says that it already was so.
func (b *book) adjust(q drop.AdjustRequest) verdict {
	target := q.Expect
	if q.To != nil {
		target = *q.To
	} else {
		target += *q.By
	}
	switch {
	case target == b.Capacity:
		return verdict{replayed: true}
	case q.Expect != b.Capacity, target < b.Held+b.Sold:
		return verdict{code: fault.Conflict}
	}
	b.Capacity, b.Available, b.def.Stock = target, target-b.Held-b.Sold, target
	return verdict{events: []drop.Event{b.picture(drop.KindAdjusted, q.Actor, q.Reason)}}
}

// change books a change of the definition.
func (b *book) change(q drop.ChangeRequest) verdict {
	after := q.Apply(b.def)
	if after.Equal(b.def) {
		return verdict{replayed: true}
	}
	b.def = after
	return verdict{events: []drop.Event{b.picture(drop.KindChanged, q.Actor, q.Reason)}}
}

func (b *book) picture(kind drop.Kind, actor, reason string) drop.Event {
	return drop.Event{Kind: kind, Seq: b.next(), Actor: actor, Reason: reason, Definition: b.def, Held: b.Held, Sold: b.Sold}
}

// forgettable reports whether a record is past its retention.
func (r *entry) forgettable(now, retention int64) bool {
	return r.state != drop.Held && r.state != drop.Confirmed && r.since+retention <= now
}

// passTime moves every time of the book back.
func (b *book) passTime(d time.Duration) {
	ms := d.Milliseconds()
	for _, r := range b.records {
		r.deadline, r.created, r.since = r.deadline-ms, r.created-ms, r.since-ms
	}
	for _, t := range []*time.Time{&b.def.Opens, &b.def.Closes} {
		if !t.IsZero() {
			*t = t.Add(-d)
		}
	}
}

// text is the record as lua/common.lua lays it out.
func (r *entry) text() string {
	f := []any{}
	switch r.state {
	case drop.Held:
		f = append(f, "h", r.user, r.asked, r.qty, r.n, r.deadline, r.created)
		if r.last != r.n {
			f = append(f, r.last)
		}
	case drop.Confirmed:
		f = append(f, "c", r.user, r.asked, r.qty, r.n, r.last, r.rest, r.refunded, r.from, r.ref, r.late, r.since)
	case drop.Released:
		f = append(f, "r", r.asked, r.qty, r.n, r.last, r.since, r.late)
	case drop.Expired:
		f = append(f, "x", r.asked, r.qty, r.n, r.last, r.since, r.user, r.late)
	case drop.Refunded:
		f = append(f, "f", r.asked, r.qty, r.n, r.last, r.since, r.refunded, r.late, r.from, refDigest(r.ref))
	}
	parts := make([]string, len(f))
	for i, v := range f {
		parts[i] = fmt.Sprint(v)
	}
	return strings.Join(parts, "\t")
}

// reservation is the record as the engine answers with it; a replayed reserve knows its user anyway.
func (r *entry) reservation(lot drop.LotID, attempt string) drop.Reservation {
	out := drop.Reservation{ID: drop.ReservationID{Lot: lot, Attempt: attempt, N: r.n}, User: r.owner(), State: r.state, Qty: r.qty, LastSeq: r.last}
	switch r.state {
	case drop.Held:
		out.Deadline, out.Created = time.UnixMilli(r.deadline).UTC(), time.UnixMilli(r.created).UTC()
	case drop.Confirmed:
		out.Rest, out.Refunded, out.From, out.Ref = r.rest, r.refunded, r.from, r.ref
	case drop.Refunded:
		out.Refunded = r.refunded
	}
	return out
}
