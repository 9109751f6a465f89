package torture

import (
	"context"
	"fmt"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/retry"
)

// watch looks at every lot again and again, and ends the run a moment after something was found: what follows from it is
// worth having in the history, what comes much later is not.
func (r *run) watch(ctx context.Context, over func()) {
	const moment = time.Second
	last := map[drop.LotID]drop.Watermark{}
	for retry.Sleep(ctx, lookEvery) == nil {
		r.look(ctx, last)
		if _, broken := r.book.found(); broken > 0 {
			_ = retry.Sleep(ctx, moment)
			over()
			return
		}
	}
}

// look holds one snapshot of every lot against the invariants and against what callers were told. Servers that are away
// are no finding.
func (r *run) look(ctx context.Context, last map[drop.LotID]drop.Watermark) {
	before := map[drop.LotID]bounds{}
	for _, id := range r.ids {
		before[id] = r.book.boundsOf(id)
	}
	states, err := r.engine.LotStates(ctx, r.ids)
	if err != nil {
		return
	}
	for id, st := range states {
		r.inspect(id, st, before[id], r.book.boundsOf(id), last[id])
		last[id] = st.Watermark
	}
	r.lookAtLedger(ctx)
	r.looks.Add(1)
}

func (r *run) inspect(id drop.LotID, st drop.LotState, before, after bounds, last drop.Watermark) {
	wrong := func(format string, args ...any) {
		r.book.violate(id, "", "in Redis at epoch %d seq %d: %s", st.Epoch, st.Seq, fmt.Sprintf(format, args...))
	}
	if !st.Sells() { // it may be being rebuilt
		return
	}
	switch {
	case st.Damaged != "":
		wrong("it cannot be read: %s", st.Damaged)
	case !st.Balanced():
		wrong("capacity %d is not available %d + held %d + sold %d", st.Capacity, st.Available, st.Held, st.Sold)
	case st.Epoch < last.Epoch || st.Epoch == last.Epoch && st.Seq < last.Seq:
		wrong("it went back, from epoch %d seq %d", last.Epoch, last.Seq)
	case st.Sold < before.bought-after.back:
		wrong("%d units are sold, callers were told that at least %d are", st.Sold, before.bought-after.back)
	case st.Sold > after.buying-before.returned:
		wrong("%d units are sold, callers asked for at most %d", st.Sold, after.buying-before.returned)
	}
}

func (r *run) lookAtLedger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	folded, err := r.ledger.Lots(ctx, r.ids)
	if err != nil {
		return
	}
	for _, l := range folded {
		if !l.Totals().Balanced() {
			r.book.violate(l.Lot, "", "in the ledger at epoch %d seq %d: capacity %d, held %d, sold %d", l.Epoch, l.Seq, l.Stock, l.Held, l.Sold)
		}
		if l.Stopped != "" {
			r.book.violate(l.Lot, "", "the ledger stopped it: %s", l.Stopped)
		}
	}
}

// audit compares the stores with each other and with what callers were told, once everything is recorded.
func (r *run) audit(ctx context.Context) error {
	findings, err := r.opt.Audit(ctx, r.flushed)
	if err != nil {
		return err
	}
	for _, f := range findings {
		r.book.violate(f.Lot, "", "%s", f.What)
	}
	recorded := map[string][]drop.Recorded{} // by attempt
	for i, id := range r.ids {
		users := map[string]int64{}
		err := r.ledger.EachReservation(ctx, drop.ReservationFilter{Lot: id}, func(page []drop.Recorded) error {
			for _, rec := range page {
				recorded[rec.ID.Attempt] = append(recorded[rec.ID.Attempt], rec)
				if rec.State == drop.Held || rec.State == drop.Confirmed {
					users[rec.User] += rec.Qty
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for user, units := range users {
			if limit := lots[i].Limit; limit > 0 && units > limit {
				r.book.violate(id, "", "user %s has %d units, the limit is %d", user, units, limit)
			}
		}
	}
	attempts := r.book.all()
	for name, a := range attempts {
		r.judge(name, a, recorded[name])
	}
	for name, list := range recorded {
		if attempts[name] == nil {
			r.book.violate(list[0].ID.Lot, list[0].ID.String(), "it is recorded, but nobody asked for it")
		}
	}
	return r.judgeBookings(ctx, recorded)
}

// judge holds what is recorded of an attempt against what its user was told.
func (r *run) judge(name string, a *attempt, recorded []drop.Recorded) {
	wrong := func(format string, args ...any) { r.book.violate(a.request.Lot, name, format, args...) }
	var sold, newest *drop.Recorded
	for i := range recorded {
		rec := &recorded[i]
		if rec.User != a.request.User {
			wrong("%s is recorded of user %s, not %s", rec.ID, rec.User, a.request.User)
		}
		if rec.State == drop.Confirmed || rec.State == drop.Refunded {
			if sold != nil {
				wrong("sold twice under one key: %s and %s", sold.ID, rec.ID)
			}
			sold = rec
		}
		if newest == nil || rec.ID.N > newest.ID.N {
			newest = rec
		}
	}
	switch {
	case a.granted && newest == nil:
		wrong("told %s, which is not recorded", a.id)
	case !a.granted && newest != nil && !a.mayHold:
		wrong("%s is recorded, but its user was refused", newest.ID)
	case a.state == drop.Confirmed:
		r.judgeSale(a, sold, wrong)
	case sold != nil && !a.mayBuy:
		wrong("%s is recorded as sold, but nobody was told so", sold.ID)
	case a.granted && a.state == drop.Released && !a.mayBuy && newest.State != drop.Released && newest.State != drop.Expired:
		wrong("told that it was given back, and it is %s", newest.State)
	case a.granted && a.state == drop.Held && newest.State == drop.Released && !a.mayRelease:
		wrong("told that it is held, and it is released")
	}
}

func (r *run) judgeSale(a *attempt, sold *drop.Recorded, wrong func(string, ...any)) {
	switch {
	case sold == nil:
		wrong("told that %s is bought, which is not recorded", a.id)
	case sold.ID != a.id || sold.Ref != a.ref:
		wrong("told that %s is bought with %s, but recorded is %s with %s", a.id, a.ref, sold.ID, sold.Ref)
	case a.mayRefund:
	case sold.Refunded != a.refunded:
		wrong("told that %d units were refunded, but recorded are %d", a.refunded, sold.Refunded)
	case sold.State == drop.Confirmed && sold.Qty != a.qty-a.refunded:
		wrong("told that %d units are bought and %d refunded, but recorded are %d", a.qty, a.refunded, sold.Qty)
	}
}

// judgeBookings holds the order ledger against the recorded reservations: each sale once, with its units.
func (r *run) judgeBookings(ctx context.Context, recorded map[string][]drop.Recorded) error {
	booked := map[drop.LotID]map[int64]Booking{}
	for _, id := range r.ids {
		var err error
		if booked[id], err = r.ledger.Booked(ctx, id); err != nil {
			return err
		}
	}
	for _, list := range recorded {
		for _, rec := range list {
			b := booked[rec.ID.Lot][rec.ID.N]
			delete(booked[rec.ID.Lot], rec.ID.N)
			if wrong := misbooked(rec, b); wrong != "" {
				r.book.violate(rec.ID.Lot, rec.ID.String(), "finalised are %d sales of %d units and %d refunded, recorded is %s of %d and %d refunded: %s",
					b.Sales, b.Units, b.Refunded, rec.State, rec.Qty, rec.Refunded, wrong)
			}
		}
	}
	for lot, left := range booked {
		for n := range left {
			r.book.violate(lot, "", "a sale is finalised of reservation number %d, which is not recorded", n)
		}
	}
	return nil
}

// misbooked says what is wrong with what is finalised of a reservation. Units that were refunded before they were finalised are
// finalised neither as sold nor as refunded.
func misbooked(rec drop.Recorded, b Booking) string {
	net := int64(0)
	if rec.State == drop.Confirmed {
		net = rec.Qty
	}
	switch {
	case b.Sales > 1:
		return "it is sold more than once"
	case b.Units-b.Refunded != net:
		return "the units do not add up"
	case b.Refunded > rec.Refunded:
		return "more is refunded than was asked for"
	}
	return ""
}
