package api

import (
	"context"
	"net/http"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func (a *API) confirm(w http.ResponseWriter, r *http.Request) error {
	body, err := read(r, parseConfirm)
	if err != nil {
		return err
	}
	out, err := a.settle(r, drop.SettleRequest{Action: drop.ActConfirm, Qty: body.Qty, Ref: body.Payment, Late: drop.Late(body.Late), Reason: body.Reason})
	if err != nil {
		return err
	}
	v := a.viewSettled(r, out)
	status := http.StatusOK
	if body.Ack != ackStock {
		word, lag, err := a.recorded.await(r.Context(), out)
		if err != nil {
			return err
		}
		v.Ledger = word
		if word == ledgerPending {
			v.LedgerLag = new(lag.Seconds())
			status = http.StatusAccepted
		}
	}
	return answerReservation(w, status, v)
}

// ackStock is whose word a confirm may wait for instead of the ledger's: that of Redis, which it has at once.
const ackStock = "stock"

func parseConfirm(o *object) (b client.ConfirmBody) {
	for o.next() {
		switch o.name {
		case "qty":
			b.Qty = o.units(1)
		case "payment":
			b.Payment = o.line()
		case "late":
			b.Late = o.oneOf(string(drop.Refuse), string(drop.Reclaim))
		case "ack":
			b.Ack = o.oneOf("ledger", ackStock)
		case "reason":
			b.Reason = o.line()
		default:
			o.unknown()
		}
	}
	return b
}

func (a *API) release(w http.ResponseWriter, r *http.Request) error {
	body, err := read(r, parseRelease)
	if err != nil {
		return err
	}
	return a.settleAndAnswer(w, r, drop.SettleRequest{Action: drop.ActRelease, Keep: body.Keep, Reason: body.Reason})
}

func parseRelease(o *object) (b client.ReleaseBody) {
	for o.next() {
		switch o.name {
		case "keep":
			b.Keep = o.units(0)
		case "reason":
			b.Reason = o.line()
		default:
			o.unknown()
		}
	}
	return b
}

func (a *API) extend(w http.ResponseWriter, r *http.Request) error {
	body, err := read(r, parseExtend)
	if err != nil {
		return err
	}
	return a.settleAndAnswer(w, r, drop.SettleRequest{Action: drop.ActExtend, By: client.Duration(body.By), Reason: body.Reason})
}

func parseExtend(o *object) (b client.ExtendBody) {
	for o.next() {
		switch o.name {
		case "by_seconds":
			b.By = o.seconds()
		case "reason":
			b.Reason = o.line()
		default:
			o.unknown()
		}
	}
	if b.By == 0 {
		o.missing("by_seconds")
	}
	return b
}

func (a *API) refund(w http.ResponseWriter, r *http.Request) error {
	body, err := read(r, parseRefund)
	if err != nil {
		return err
	}
	q := drop.SettleRequest{Action: drop.ActRefund, Total: -1, NoRestock: body.NoRestock, Reason: body.Reason}
	if body.Total != nil {
		q.Total = *body.Total
	}
	if q.Total < 0 && !q.NoRestock || body.Due {
		q.Due = body.Due
		if done, err := a.closeDue(w, r, q); done || err != nil {
			return err
		}
	}
	return a.settleAndAnswer(w, r, q)
}

// closeDue records that the money of payments that are due was given back, and answers, if those are what the refund is
// about. Without a word of the ledger it would be a guess what is meant.
func (a *API) closeDue(w http.ResponseWriter, r *http.Request, q drop.SettleRequest) (done bool, err error) {
	c := callOf(r.Context())
	if q.ID, err = reservationOf(c, r); err != nil {
		return false, err
	}
	q.Actor = c.actor()
	if err := q.Check(); err != nil {
		return false, err
	}
	due, err := a.opt.Ledger.DueOf(r.Context(), q.ID)
	if err != nil {
		return false, fault.As(err).WithHint("to refund the sale while the ledger does not answer, name its total")
	}
	user, mine := c.mine(due.User)
	if !mine && due.User != "" {
		return false, noReservation(q.ID)
	}
	if meant, err := due.Meant(q); err != nil || !meant {
		return false, err
	}
	closed, err := a.opt.Ledger.CloseDue(r.Context(), q.ID, q.Actor, q.Reason)
	if err != nil {
		return false, err
	}
	v := client.Reservation{ID: q.ID.String(), Lot: string(q.ID.Lot), State: string(drop.Refunded)}
	if known, err := a.recordedOf(r.Context(), q.ID); err == nil && known != nil {
		v = viewRecorded(*known)
	}
	v.User, v.DueClosed, v.Replayed = user, due.Units, closed == 0
	c.replayed = v.Replayed
	return true, answerReservation(w, http.StatusOK, v)
}

func parseRefund(o *object) (b client.RefundBody) {
	for o.next() {
		switch o.name {
		case "total":
			total := o.units(1)
			b.Total = &total
		case "no_restock":
			b.NoRestock = o.bool()
		case "due":
			b.Due = o.bool()
		case "reason":
			b.Reason = o.line()
		default:
			o.unknown()
		}
	}
	return b
}

func (a *API) settleAndAnswer(w http.ResponseWriter, r *http.Request, q drop.SettleRequest) error {
	out, err := a.settle(r, q)
	if err != nil {
		return err
	}
	return answerReservation(w, http.StatusOK, a.viewSettled(r, out))
}

// settle carries out what a request wants of the reservation in its path.
func (a *API) settle(r *http.Request, q drop.SettleRequest) (drop.Outcome, error) {
	c := callOf(r.Context())
	id, err := reservationOf(c, r)
	if err != nil {
		return drop.Outcome{}, err
	}
	q.ID, q.Actor = id, c.actor()
	if err := a.own(r.Context(), c, id); err != nil {
		return drop.Outcome{}, err
	}
	out, err := a.engine.Settle(r.Context(), q)
	switch {
	case fault.Is(err, fault.NotFound):
		err = noReservation(id)
	case err != nil:
		err = a.aboutLot(r.Context(), id.Lot, withTimeLeft(err, out.Now))
	}
	c.replayed = out.Replayed
	return out, err
}

// viewSettled is a settled reservation as its caller knows its user.
func (a *API) viewSettled(r *http.Request, out drop.Outcome) client.Reservation {
	user, mine := callOf(r.Context()).mine(out.Reservation.User)
	if !mine {
		user = ""
	}
	return viewOutcome(out, user)
}

func answerReservation(w http.ResponseWriter, status int, v client.Reservation) error {
	if v.Replayed {
		w.Header()["Idempotency-Replayed"] = replayed
	}
	return answerJSON(w, status, v)
}

// reservationOf reads the reservation that a request's path names.
func reservationOf(c *call, r *http.Request) (drop.ReservationID, error) {
	id, err := drop.ParseReservationID(r.PathValue("id"))
	c.lot = id.Lot
	return id, err
}

// noReservation is the answer about a reservation that nobody knows, and about another tenant's.
func noReservation(id drop.ReservationID) error {
	return fault.New(fault.NotFound, "there is no reservation %s", id).
		WithHint("it may have ended longer ago than keys are kept; list what there is: dropctl reservation list --lot %s", id.Lot)
}

// own refuses a caller of another tenant than the reservation's. Whose it is says Redis or, of an ended one, the ledger;
// where neither knows, the id is enough: nobody guesses a hash of 128 bits.
func (a *API) own(ctx context.Context, c *call, id drop.ReservationID) error {
	if c.key.Tenant == "" {
		return nil
	}
	r, err := a.engine.Reservation(ctx, id)
	switch {
	case err == nil && r.User == "":
		r.User = a.userInLedger(ctx, r.ID)
	case fault.Is(err, fault.NotFound):
		r.User = a.userInLedger(ctx, id)
	case err != nil:
		return a.aboutLot(ctx, id.Lot, err)
	}
	if _, mine := c.mine(r.User); !mine && r.User != "" {
		return noReservation(id)
	}
	return nil
}

// ledgerLook is how long an answer that does not need the ledger waits for it.
const ledgerLook = 500 * time.Millisecond

// userInLedger returns the user of a reservation as the ledger knows it; "" if it does not, or not in time.
func (a *API) userInLedger(ctx context.Context, id drop.ReservationID) string {
	if known, err := a.recordedOf(ctx, id); err == nil && known != nil {
		return known.User
	}
	return ""
}
