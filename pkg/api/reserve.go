package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// reserve takes a hold: what thousands ask for in the same second. Its body and its answers are read and written by hand.
func (a *API) reserve(w http.ResponseWriter, r *http.Request) error {
	c := callOf(r.Context())
	lot, err := lotOf(c, r)
	if err != nil {
		return err
	}
	key, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	body, err := read(r, parseReserve)
	if err != nil {
		return err
	}
	q := drop.ReserveRequest{Lot: lot, User: c.identity(body.User), Key: key, Qty: body.Qty, Hold: client.Duration(body.Hold), Replace: body.Replace, Actor: c.actor()}
	if err := q.Check(); err != nil {
		return err
	}
	if err := a.limits.byUser(c, body.User); err != nil {
		return err
	}
	out, err := a.engine.Reserve(r.Context(), q)
	if err != nil {
		return a.aboutLot(r.Context(), lot, withTimeLeft(err, out.Now))
	}
	v := viewOutcome(out, body.User)
	v.Key = key
	status := http.StatusCreated
	if out.Replayed {
		c.replayed = true
		status = http.StatusOK
		w.Header()["Idempotency-Replayed"] = replayed
	} else {
		w.Header()["Location"] = []string{"/v1/reservations/" + v.ID}
	}
	writeJSON(w, status, typeJSON, func(b []byte) []byte { return appendReservation(b, v) })
	return nil
}

var replayed = []string{"true"}

// lotOf reads the lot that a request's path names.
func lotOf(c *call, r *http.Request) (drop.LotID, error) {
	lot, err := drop.ParseLotID(r.PathValue("lot"))
	c.lot = lot
	return lot, err
}

// idempotencyKey reads the header that names the attempt.
func idempotencyKey(r *http.Request) (string, error) {
	const name = "Idempotency-Key"
	switch keys := r.Header[name]; {
	case len(keys) == 0 || keys[0] == "":
		return "", fault.New(fault.Invalid, "the header %s is missing", name).WithField(name).
			WithHint("name each attempt of a user with a text of its own, and use the same one when you ask again")
	case len(keys) > 1:
		return "", fault.New(fault.Invalid, "the header %s comes twice", name).WithField(name).WithHint("send it once")
	default:
		return keys[0], nil
	}
}

// read reads the body of a request. No body is an object without fields.
func read[B any](r *http.Request, parse func(*object) B) (body B, err error) {
	buf, err := readBody(r)
	if err != nil {
		return body, err
	}
	defer putBack(buf)
	o := &object{data: buf.Bytes()}
	if len(o.data) == 0 {
		o.data = []byte("{}")
	}
	body = parse(o)
	return body, o.err
}

func parseReserve(o *object) client.ReserveBody {
	b := client.ReserveBody{Qty: 1}
	for o.next() {
		switch o.name {
		case "user":
			b.User = o.string()
		case "qty":
			b.Qty = o.units(1)
		case "hold_seconds":
			b.Hold = o.seconds()
		case "replace":
			b.Replace = o.bool()
		default:
			o.unknown()
		}
	}
	if b.User == "" {
		o.missing("user")
	}
	return b
}

// withTimeLeft says in an error about an existing hold how long it still runs, by the clock of Redis.
func withTimeLeft(err error, now time.Time) error {
	f := fault.As(err)
	if deadline, ok := f.Details["deadline"].(time.Time); ok && f.Code == fault.HoldExists {
		return f.With("remaining_seconds", max(0, deadline.Sub(now)).Seconds())
	}
	return err
}

// viewOf is a reservation as answers show it, at a moment of Redis' clock; the zero time if Redis was not asked.
func viewOf(r drop.Reservation, user string, now time.Time) client.Reservation {
	v := client.Reservation{ID: r.ID.String(), Lot: string(r.ID.Lot), User: user, State: string(r.State), Qty: r.Qty, Refunded: r.Refunded,
		Deadline: moment(r.Deadline), Payment: r.Ref, Created: moment(r.Created), Seq: r.LastSeq}
	if r.State == drop.Held && !now.IsZero() {
		left := max(0, r.Deadline.Sub(now)).Seconds()
		v.Left = &left
	}
	return v
}

// viewOutcome is what became of a reservation, and what its user may still take.
func viewOutcome(out drop.Outcome, user string) client.Reservation {
	v := viewOf(out.Reservation, user, out.Now)
	v.Replayed = out.Replayed
	if out.Remaining >= 0 {
		v.Remaining = &out.Remaining
	}
	return v
}

// moment is a time as answers show it: null for none.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// appendReservation writes a reservation as encoding/json does, several times faster.
func appendReservation(b []byte, v client.Reservation) []byte {
	b = appendField(append(b, '{'), "id", v.ID)
	b = appendField(append(b, ','), "lot", v.Lot)
	b = appendField(append(b, ','), "user", v.User)
	b = appendField(append(b, ','), "state", v.State)
	b = strconv.AppendInt(append(b, `,"qty":`...), v.Qty, 10)
	b = strconv.AppendInt(append(b, `,"refunded":`...), v.Refunded, 10)
	b = appendTime(append(b, `,"deadline":`...), v.Deadline)
	if b = append(b, `,"remaining_seconds":`...); v.Left == nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendFloat(b, *v.Left, 'f', -1, 64)
	}
	b = appendField(append(b, ','), "payment", v.Payment)
	b = appendField(append(b, ','), "key", v.Key)
	b = appendTime(append(b, `,"created":`...), v.Created)
	b = strconv.AppendInt(append(b, `,"seq":`...), v.Seq, 10)
	b = strconv.AppendBool(append(b, `,"replayed":`...), v.Replayed)
	if b = append(b, `,"remaining":`...); v.Remaining == nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendInt(b, *v.Remaining, 10)
	}
	return append(b, '}')
}

func appendTime(b []byte, t *time.Time) []byte {
	if t == nil {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = t.AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}
