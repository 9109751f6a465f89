package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Proving every record works at one watermark too. Both stores are read in pages while they change, but every
// record carries the seq of its last change: rolling it forward with the events behind that seq, up to a
// snapshot taken after the pages, gives both sides as they were at that snapshot.

// proof is the outcome of one deep look.
type proof struct {
	at       drop.LotState // the snapshot that everything was compared at
	evidence []Evidence
	moving   []Evidence // differences in what changed while it was read: they prove nothing yet
	records  int64
	blind    bool // too much changed for this look to compare anything
}

// prove adds to a lot's row what a comparison of its records shows. A difference counts only if every look
// has it; what the first look found equal is proven, whatever changes afterwards.
func (r *run) prove(ctx context.Context, row Row) (Row, error) {
	if row.Redis == nil || row.Ledger == nil || row.Verdict == fault.VerdictStopped {
		return row, nil
	}
	row.equal = len(row.Evidence) == 0
	var s suspects
	for look := 0; ; look++ {
		p, err := r.deepLook(ctx, row.Lot)
		if err != nil {
			return row, err
		}
		row.Records = max(row.Records, p.records)
		if s.follow(p); !p.blind {
			row.seen = p.at
		}
		if s.settled() || look+1 >= looks && time.Now().After(r.deadline) {
			break
		}
		if err := retry.Sleep(ctx, pauseBefore(min(look+1, looks-1))); err != nil {
			return row, err
		}
	}
	row.Evidence = append(row.Evidence, s.proven()...)
	if err := r.sales(ctx, &row); err != nil {
		return row, err
	}
	switch {
	case len(row.Evidence) > 0:
		row.Verdict = fault.VerdictDrift
	case row.Verdict == fault.VerdictOK && (row.Unfinished > 0 || !s.settled()):
		row.Verdict = fault.VerdictLagging
	}
	row.settle(sight{lot: row.Lot})
	switch {
	case row.Message != "":
	case row.Unfinished > 0:
		row.Message = fmt.Sprintf("%d sales are not finalised yet", row.Unfinished)
	case !s.settled():
		row.Message = "it changed too fast to prove every record"
	}
	return row, nil
}

// sales checks that the units finalised are the units sold. While some are not finalised yet it can only wait.
func (r *run) sales(ctx context.Context, row *Row) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		s, err := r.ledger.Sales(ctx, row.Lot)
		if err != nil {
			return err
		}
		if row.Unfinished = s.Pending; s.Pending == 0 {
			if s.Net != s.Sold {
				row.Evidence = append(row.Evidence, Evidence{Check: "sales", Ledger: fmt.Sprintf("sold %d", s.Sold), Note: fmt.Sprintf("the sales and refunds recorded add up to %d", s.Net)})
			}
			return nil
		}
		left := time.Until(r.deadline)
		if left <= 0 {
			return nil
		}
		if err := retry.Sleep(ctx, min(pause, left)); err != nil {
			return err
		}
	}
}

// enough is how many looks must have a difference before it is reported, with none that has not.
const enough = 4

// suspects are the differences of the first look that could compare, as far as all later ones have them too.
type suspects struct {
	seen map[[2]string]int // by check and subject: in how many looks it was a proof, not only a movement
	last map[[2]string]Evidence
}

// follow takes in one look.
func (s *suspects) follow(p proof) {
	if p.blind {
		return
	}
	was := s.seen
	s.seen, s.last = map[[2]string]int{}, map[[2]string]Evidence{}
	for i, list := range [][]Evidence{p.evidence, p.moving} {
		for _, e := range list {
			k := [2]string{e.Check, e.Subject}
			if n, ok := was[k]; ok || was == nil {
				s.seen[k], s.last[k] = n+1-i, e
			}
		}
	}
}

// settled reports whether another look can change nothing more.
func (s *suspects) settled() bool {
	for _, n := range s.seen {
		if n < enough {
			return false
		}
	}
	return s.seen != nil
}

// proven are the differences seen often enough, sorted.
func (s *suspects) proven() []Evidence {
	var out []Evidence
	for k, n := range s.seen {
		if n >= enough {
			out = append(out, s.last[k])
		}
	}
	slices.SortFunc(out, func(a, b Evidence) int { return strings.Compare(a.Check+"\x00"+a.Subject, b.Check+"\x00"+b.Subject) })
	return out
}

// records are the live reservations of one side.
type records map[drop.ReservationID]drop.Reservation

// read takes in a page; of two versions of one reservation the newer stays.
func (rs records) read(page []drop.Reservation) {
	for _, r := range page {
		if old, ok := rs[r.ID]; live(r) && (!ok || old.LastSeq <= r.LastSeq) {
			rs[r.ID] = r
		} else if ok && old.LastSeq < r.LastSeq {
			delete(rs, r.ID)
		}
	}
}

func live(r drop.Reservation) bool { return r.State == drop.Held || r.State == drop.Confirmed }

// roll brings every record up to the last of the events, which are in order. One that was read in a later
// state than an event leaves is not touched by it.
func (rs records) roll(events []drop.Event) {
	for _, e := range events {
		if e.IsLotEvent() {
			continue
		}
		r, ok := rs[e.Reservation]
		if ok && r.LastSeq >= e.Seq || !ok && e.Kind != drop.KindHeld {
			continue
		}
		if r = after(r, e); live(r) {
			rs[e.Reservation] = r
		} else {
			delete(rs, e.Reservation)
		}
	}
}

// after is the reservation as the event leaves it.
func after(r drop.Reservation, e drop.Event) drop.Reservation {
	switch e.Kind {
	case drop.KindHeld:
		r = drop.Reservation{ID: e.Reservation, User: e.User, State: drop.Held, Qty: e.Qty, Deadline: e.Deadline, Created: e.Time, From: e.From, Asked: e.Asked}
	case drop.KindConfirmed:
		r.State, r.Qty, r.Rest, r.Ref = drop.Confirmed, e.Qty, e.Rest, e.Ref
	case drop.KindReleased:
		if r.Qty = e.Rest; e.Rest == 0 {
			r.State = drop.Released
		}
	case drop.KindExpired:
		r.State = drop.Expired
	case drop.KindExtended:
		r.Deadline = e.Deadline
	case drop.KindRefunded:
		if r.Qty, r.Refunded = r.Qty-e.Qty, e.Total; r.Qty <= 0 {
			r.State = drop.Refunded
		}
	}
	r.LastSeq = e.Seq
	return r
}

// deepLook reads everything of a lot once and compares it at the watermark of one snapshot of Redis.
func (r *run) deepLook(ctx context.Context, lot drop.LotID) (proof, error) {
	var p proof
	before, err := r.lookAt(ctx, lot)
	if err != nil || before.ledger == nil || before.redis == nil {
		p.blind = true
		return p, err
	}
	ledger := records{}
	if err := r.ledger.LiveReservations(ctx, lot, func(page []drop.Reservation) error { ledger.read(page); return nil }); err != nil {
		return p, err
	}
	redis := make(records, len(ledger))
	err = r.stock.Records(ctx, lot, func(page []drop.Reservation) error {
		redis.read(page)
		return r.ended(ctx, &p, *before.ledger, page)
	})
	if fault.CodeOf(err) == fault.Failed { // a record that is no record is a finding, not a failure of this run
		p.evidence = append(p.evidence, Evidence{Check: "records", Note: err.Error()})
		return p, nil
	}
	if err != nil {
		return p, err
	}
	now, events, ok, err := r.snapshot(ctx, before)
	if err != nil {
		return p, err
	}
	if p.blind = !ok; ok {
		ledger.roll(events)
		redis.roll(since(events, before.redis.Seq))
		p.at = now
		p.compare(redis, ledger)
		p.sums(redis, now.Totals, now.Seq)
		if err := r.derived(ctx, &p, redis, now); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (r *run) lookAt(ctx context.Context, lot drop.LotID) (sight, error) {
	sights, err := r.look(ctx, []drop.LotID{lot})
	if err != nil {
		return sight{}, err
	}
	return sights[0], nil
}

// snapshot looks at Redis once more, and returns all events between the ledger's watermark of the first look
// and this one. It is not ok while some of them are missing, or if a load came between.
func (r *run) snapshot(ctx context.Context, before sight) (now drop.LotState, events []drop.Event, ok bool, err error) {
	states, err := r.stock.LotStates(ctx, []drop.LotID{before.lot})
	if err != nil {
		return now, nil, false, err
	}
	now, ok = states[before.lot]
	if !ok || now.Epoch != before.redis.Epoch || now.Seq < before.ledger.Seq {
		return now, nil, false, nil
	}
	if now.Seq == before.ledger.Seq {
		return now, nil, true, nil
	}
	found, err := r.eventsSince(ctx, map[drop.LotID]drop.Watermark{before.lot: before.ledger.Watermark})
	if err != nil {
		return now, nil, false, err
	}
	events, missing := chain(before.ledger.Watermark, now.Watermark, found[before.lot])
	return now, events, len(missing) == 0, nil
}

func since(events []drop.Event, seq int64) []drop.Event {
	i, _ := slices.BinarySearchFunc(events, seq+1, func(e drop.Event, seq int64) int { return int(e.Seq - seq) })
	return events[i:]
}

// ended compares the page's ended reservations, as far as the ledger had folded their end, with the ledger's.
func (r *run) ended(ctx context.Context, p *proof, l drop.LedgerLot, page []drop.Reservation) error {
	var ids []drop.ReservationID
	for _, rec := range page {
		if !live(rec) && rec.LastSeq <= l.Seq {
			ids = append(ids, rec.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := r.ledger.ReservationsByID(ctx, ids)
	if err != nil {
		return err
	}
	for _, rec := range page {
		if live(rec) || rec.LastSeq > l.Seq {
			continue
		}
		row, ok := rows[rec.ID]
		if !ok {
			p.differs(rec.ID.String(), describe(rec), "", rec.LastSeq)
			continue
		}
		p.same(rec, row)
	}
	return nil
}

// compare holds the live records of both sides against each other.
func (p *proof) compare(redis, ledger records) {
	for id, rec := range redis {
		if row, ok := ledger[id]; ok {
			p.same(rec, row)
		} else {
			p.differs(id.String(), describe(rec), "", rec.LastSeq)
		}
	}
	for id, row := range ledger {
		if _, ok := redis[id]; !ok {
			p.differs(id.String(), "", describe(row), row.LastSeq)
		}
	}
}

// same compares every field that both stores keep in this state.
func (p *proof) same(rec, row drop.Reservation) {
	p.records++
	if rec.User == "" { // a tombstone may have dropped its user
		row.User = ""
	}
	if kept(rec) != kept(row) {
		p.differs(rec.ID.String(), describe(rec), describe(row), rec.LastSeq)
	}
}

// kept is a reservation with nothing but the fields that both stores keep in its state.
func kept(r drop.Reservation) drop.Reservation {
	k := drop.Reservation{ID: r.ID, User: r.User, State: r.State, Qty: r.Qty, LastSeq: r.LastSeq, Asked: r.Asked}
	switch r.State {
	case drop.Held:
		k.Deadline = r.Deadline.Round(0).UTC()
	case drop.Confirmed:
		k.Rest, k.Refunded, k.Ref, k.From = r.Rest, r.Refunded, r.Ref, r.From
	case drop.Refunded:
		k.Refunded = r.Refunded
	}
	return k
}

// describe writes those fields for people.
func describe(r drop.Reservation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s qty %d seq %d", r.State, r.Qty, r.LastSeq)
	switch r.State {
	case drop.Held:
		fmt.Fprintf(&b, " deadline %s", timeText(r.Deadline))
	case drop.Confirmed:
		fmt.Fprintf(&b, " rest %d refunded %d payment %q from %d", r.Rest, r.Refunded, r.Ref, r.From)
	case drop.Refunded:
		fmt.Fprintf(&b, " refunded %d", r.Refunded)
	}
	if r.User != "" {
		fmt.Fprintf(&b, " user %q", r.User)
	}
	fmt.Fprintf(&b, " asked %q", r.Asked)
	return b.String()
}

func (p *proof) differs(subject, redis, ledger string, seq int64) {
	p.evidence = append(p.evidence, Evidence{Check: "record", Subject: subject, Redis: redis, Ledger: ledger, Seq: seq})
}

// sums checks that the live records add up to the lot's counters.
func (p *proof) sums(rs records, t drop.Totals, seq int64) {
	var held, sold int64
	for _, r := range rs {
		if r.State == drop.Held {
			held += r.Qty
		} else {
			sold += r.Qty
		}
	}
	for _, c := range []struct {
		check         string
		records, want int64
	}{{"sum_held", held, t.Held}, {"sum_sold", sold, t.Sold}} {
		if c.records != c.want {
			p.evidence = append(p.evidence, Evidence{Check: c.check, Seq: seq, Redis: fmt.Sprint(c.want), Note: fmt.Sprintf("the records of Redis add up to %d", c.records)})
		}
	}
}
