package simulate

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Book is what the users were told. It is safe for concurrent use while a rehearsal runs.
type Book struct {
	Took time.Duration

	mu         sync.Mutex
	count      Counts
	accept     *hdrhistogram.Histogram // microseconds
	refuse     *hdrhistogram.Histogram
	attempts   map[string]*attempt // by attempt, which is a hash of lot, user and key
	lots       map[drop.LotID]drop.Definition
	violations []violation
	flushes    []flush
	lost       []string // what these took from buyers; known once it is audited
}

// flush is the time in which Redis was emptied on purpose.
type flush struct{ from, until time.Time }

// violation is a broken promise. Redis emptied on purpose may have broken it between the two times.
type violation struct {
	text    string
	told    time.Time // when the promise was given last; zero: it is about more than one attempt, and no flush excuses it
	noticed time.Time
}

// Counts are the answers given.
type Counts struct {
	Requests int64                // calls made: reserve, confirm, release, refund
	Accepted int64                // holds granted; a replay is not counted again
	Replayed int64                // answers that only repeated what already was so
	Refused  map[fault.Code]int64 // by code, trouble with servers included
	Released int64                // holds given back whole
	Sold     int64                // units whose confirmation was acknowledged
	Refunded int64                // units of these, whose refund was acknowledged
	GaveUp   int64                // users who left since nobody took their call within their patience
	PaidLate int64                // payments for a hold that had ended, which are to go back; known once it is audited
}

// Latency is how long users waited for the answer to a reserve call, in seconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Cell is the latency as a person reads it.
func (l Latency) Cell() string {
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, max %.1f ms", l.P50*1000, l.P99*1000, l.Max*1000)
}

// attempt is what one user was told under one key.
type attempt struct {
	request   drop.ReserveRequest
	id        drop.ReservationID // of the newest answer
	told      time.Time          // when what is noted here was last told; what contradicts it is no such thing
	deadline  time.Time
	grants    int               // answers that were no replay
	confirmed *drop.Reservation // as acknowledged first
	released  bool
	refunded  int64 // units
	late      bool  // paid when the hold had ended: the money is to go back
	unknown   bool  // a confirmation was sent and no clear answer came
	unsure    bool  // a refund was sent and no clear answer came
}

func newBook(lots []drop.Definition) *Book {
	b := &Book{
		count:  Counts{Refused: map[fault.Code]int64{}},
		accept: hdrhistogram.New(1, time.Hour.Microseconds(), 3), refuse: hdrhistogram.New(1, time.Hour.Microseconds(), 3),
		attempts: map[string]*attempt{}, lots: map[drop.LotID]drop.Definition{},
	}
	for _, l := range lots {
		b.lots[l.Lot] = l
	}
	return b
}

// Counts returns the answers counted so far.
func (b *Book) Counts() Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.count
	c.Refused = maps.Clone(c.Refused)
	return c
}

// Latencies returns how long users waited to be accepted, and to be refused.
func (b *Book) Latencies() (accept, refuse Latency) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return latency(b.accept), latency(b.refuse)
}

func latency(h *hdrhistogram.Histogram) Latency {
	seconds := func(micros int64) float64 { return float64(micros) / 1e6 }
	return Latency{P50: seconds(h.ValueAtQuantile(50)), P99: seconds(h.ValueAtQuantile(99)), Max: seconds(h.Max())}
}

func (b *Book) progress() Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := Progress{Requests: b.count.Requests, Accepted: b.count.Accepted, Sold: b.count.Sold, GaveUp: b.count.GaveUp, Accept: latency(b.accept), Refuse: latency(b.refuse)}
	for _, n := range b.count.Refused {
		p.Refused += n
	}
	return p
}

// gaveUp enters a user who left without an answer.
func (b *Book) gaveUp() {
	b.mu.Lock()
	b.count.GaveUp++
	b.mu.Unlock()
}

// Flushed notes that Redis was emptied on purpose, at some time between the two. No guarantee covers what the ledger had not got
// until then: buyers who were told something before have lost it.
func (b *Book) Flushed(from, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushes = append(b.flushes, flush{from, until})
}

// sorted tells broken promises apart from what was lost since Redis was emptied: what was told before that, and found to be
// otherwise only afterwards.
func (b *Book) sorted(all []violation) (broken, lost []string) {
	for _, v := range all {
		took := func(f flush) bool { return v.told.Before(f.until) && !v.noticed.Before(f.from) }
		if !v.told.IsZero() && slices.ContainsFunc(b.flushes, took) {
			lost = append(lost, v.text)
		} else {
			broken = append(broken, v.text)
		}
	}
	return broken, lost
}

// wrong enters a broken promise. It is called with the lock held.
func (b *Book) wrong(a *attempt, noticed time.Time, format string, args ...any) {
	b.violations = append(b.violations, violation{fmt.Sprintf(format, args...), a.told, noticed})
}

// reserved enters the answer to a reserve call.
func (b *Book) reserved(r drop.ReserveRequest, out drop.Outcome, err error, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count.Requests++
	if err != nil {
		b.count.Refused[fault.CodeOf(err)]++
		if fault.ExitOf(err) == fault.ExitRefused {
			record(b.refuse, took)
		}
		return
	}
	record(b.accept, took)
	name := drop.AttemptOf(r.Lot, r.User, r.Key)
	a := b.attempts[name]
	if a == nil {
		a = &attempt{request: r, id: out.Reservation.ID, told: out.Now, deadline: out.Reservation.Deadline}
		b.attempts[name] = a
	}
	if out.Replayed {
		b.count.Replayed++
	} else {
		b.count.Accepted++
		a.grants++
	}
	b.checkGrant(a, r, out)
}

// record never fails: what is slower than an hour counts as an hour.
func record(h *hdrhistogram.Histogram, took time.Duration) {
	_ = h.RecordValue(min(max(1, took.Microseconds()), h.HighestTrackableValue()))
}

// checkGrant holds an accepted reserve call against what was said before: same key, same answer.
func (b *Book) checkGrant(a *attempt, r drop.ReserveRequest, out drop.Outcome) {
	res, again := out.Reservation, !out.Replayed && a.grants > 1
	if again {
		b.wrong(a, out.Now, "%s, key %s: granted twice", r.User, r.Key)
	}
	if r.Qty != a.request.Qty || r.Hold != a.request.Hold {
		b.wrong(a, out.Now, "%s, key %s: another wish under the same key was accepted", r.User, r.Key)
	}
	// A late confirm takes the units anew: the same attempt then has a new number, and names the old one.
	if res.ID != a.id && res.From != a.id.N {
		b.wrong(a, out.Now, "%s, key %s: first told %s, then %s", r.User, r.Key, a.id, res.ID)
	}
	if again && a.confirmed == nil { // from now on the user goes by this one
		*a = attempt{request: a.request, id: res.ID, told: out.Now, deadline: res.Deadline, grants: a.grants, unknown: a.unknown, unsure: a.unsure}
	}
}

// settled enters the answer to a confirm or release call.
func (b *Book) settled(r drop.SettleRequest, out drop.Outcome, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count.Requests++
	a := b.attempts[r.ID.Attempt]
	if a == nil {
		b.wrong(&attempt{}, time.Now(), "%s: settled, but never granted", r.ID)
		return
	}
	if err != nil {
		b.count.Refused[fault.CodeOf(err)]++
		switch {
		case fault.Is(err, fault.NotFound):
			b.wrong(a, time.Now(), "%s: granted, but no longer known", r.ID)
		case r.Action == drop.ActConfirm && tooLate(fault.CodeOf(err)) && a.confirmed == nil:
			a.late, a.told = true, time.Now()
		case fault.ExitOf(err) == fault.ExitRefused: // nothing was promised
		case r.Action == drop.ActConfirm:
			a.unknown = true
		case r.Action == drop.ActRefund:
			a.unsure = true
		}
		return
	}
	if out.Replayed {
		b.count.Replayed++
	}
	switch r.Action {
	case drop.ActConfirm:
		b.confirmed(a, r, out)
	case drop.ActRefund:
		b.refunded(a, r, out)
	default:
		b.released(a, r, out)
	}
}

// tooLate reports whether a confirmation was refused because its hold had ended, and its units could not be taken anew.
func tooLate(code fault.Code) bool {
	return code == fault.HoldExpired || code == fault.AlreadyReleased || code == fault.SoldOut || code == fault.HoldExists || code == fault.CustomerLimit
}

// released holds an acknowledged release against everything said before.
func (b *Book) released(a *attempt, r drop.SettleRequest, out drop.Outcome) {
	if a.confirmed != nil {
		b.wrong(a, out.Now, "%s: released after it was sold", r.ID)
	} else {
		a.told = out.Now
	}
	if r.Keep == 0 && !out.Replayed {
		b.count.Released++
		a.released = true
	}
}

// refunded holds an acknowledged refund against everything said before.
func (b *Book) refunded(a *attempt, r drop.SettleRequest, out drop.Outcome) {
	res := out.Reservation
	if a.confirmed == nil && !a.unknown {
		b.wrong(a, out.Now, "%s: refunded, but never sold", r.ID)
	}
	if res.Refunded < a.refunded || r.Total >= 0 && res.Refunded != r.Total {
		b.wrong(a, out.Now, "%s: the refund of %d units was answered with %d refunded", r.ID, r.Total, res.Refunded)
	}
	b.count.Refunded += res.Refunded - a.refunded
	a.refunded, a.told = res.Refunded, out.Now
}

// confirmed holds an acknowledged confirmation against everything said before.
func (b *Book) confirmed(a *attempt, r drop.SettleRequest, out drop.Outcome) {
	res := out.Reservation
	retaken := res.ID != r.ID
	if res.State != drop.Confirmed || res.Ref != r.Ref || r.Qty != 0 && res.Qty != r.Qty {
		b.wrong(a, out.Now, "%s: the confirmation of %d units was answered with %s, %d units", r.ID, r.Qty, res.State, res.Qty)
	}
	if retaken && (res.From != r.ID.N || b.lots[res.ID.Lot].Late != drop.Reclaim) {
		b.wrong(a, out.Now, "%s: its confirmation was answered with %s", r.ID, res.ID)
	}
	if !retaken && !out.Replayed && !out.Now.Before(a.deadline) {
		b.wrong(a, out.Now, "%s: confirmed at %s, after its deadline %s", r.ID, out.Now, a.deadline)
	}
	if a.released {
		b.wrong(a, out.Now, "%s: confirmed after it was given back", r.ID)
	}
	switch {
	case a.confirmed == nil:
		a.confirmed, a.id, a.told = &res, res.ID, out.Now
		b.count.Sold += res.Qty
	case a.confirmed.ID != res.ID || a.confirmed.Qty != res.Qty:
		b.wrong(a, out.Now, "%s: confirmed as %s with %d units, then as %s with %d", r.ID, a.confirmed.ID, a.confirmed.Qty, res.ID, res.Qty)
	default:
		a.told = out.Now
	}
}
