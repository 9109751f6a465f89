package stock

import (
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// fields reads tab-separated text by position and remembers whether anything did not fit.
type fields struct {
	f   []string
	bad bool
}

func (r *fields) text(i int) string {
	if i >= len(r.f) {
		return ""
	}
	return r.f[i]
}

func (r *fields) num(i int) int64 {
	n, err := strconv.ParseInt(r.text(i), 10, 64)
	if err != nil {
		r.bad = true
	}
	return n
}

func (r *fields) time(i int) time.Time { return time.UnixMilli(r.num(i)).UTC() }

// parseRecord reads a record of the `res` hash (layout in lua/common.lua).
func parseRecord(lot drop.LotID, attempt, record string) (drop.Reservation, error) {
	r := &fields{f: strings.Split(record, "\t")}
	out := drop.Reservation{ID: drop.ReservationID{Lot: lot, Attempt: attempt}}
	switch r.text(0) {
	case "h":
		out.State, out.User, out.Qty, out.ID.N = drop.Held, r.text(1), r.num(3), r.num(4)
		out.Deadline, out.Created, out.LastSeq = r.time(5), r.time(6), r.num(4)
		if len(r.f) > 7 {
			out.LastSeq = r.num(7)
		}
	case "c":
		out.State, out.User, out.Qty, out.ID.N, out.LastSeq = drop.Confirmed, r.text(1), r.num(3), r.num(4), r.num(5)
		out.Rest, out.Refunded, out.From, out.Ref = r.num(6), r.num(7), r.num(8), r.text(9)
	case "r":
		out.State, out.Qty, out.ID.N, out.LastSeq = drop.Released, r.num(2), r.num(3), r.num(4)
	case "x":
		out.State, out.Qty, out.ID.N, out.LastSeq, out.User = drop.Expired, r.num(2), r.num(3), r.num(4), r.text(6)
	case "f":
		out.State, out.ID.N, out.LastSeq, out.Refunded = drop.Refunded, r.num(3), r.num(4), r.num(6)
	default:
		r.bad = true
	}
	if r.bad {
		return drop.Reservation{}, fault.New(fault.Failed, "a record of lot %s in Redis is damaged (attempt %s)", lot, attempt).
			WithHint("compare it with the ledger: dropctl reconcile --deep %s", lot)
	}
	return out, nil
}

// lotState builds a LotState from the fields of a lot hash.
func lotState(lot drop.LotID, f map[string]string) (drop.LotState, error) {
	r := &fields{}
	num := func(name string) int64 {
		r.f = []string{f[name]}
		return r.num(0)
	}
	at := func(name string) time.Time {
		if f[name] == "" {
			return time.Time{}
		}
		return time.UnixMilli(num(name)).UTC()
	}
	opens, closes, _ := strings.Cut(f["window"], "/")
	f["opens"], f["closes"] = opens, closes
	ms := func(name string) time.Duration { return time.Duration(num(name)) * time.Millisecond }
	s := drop.LotState{
		Totals:    drop.Totals{Capacity: num("capacity"), Available: num("available"), Held: num("held"), Sold: num("sold")},
		Watermark: drop.Watermark{Epoch: num("epoch"), Seq: num("seq")},
		Mark:      at("mark"),
	}
	s.Definition = drop.Definition{Lot: lot, Stock: s.Capacity, Limit: num("limit"), Hold: ms("hold"), MaxHold: ms("max_hold"),
		Opens: at("opens"), Closes: at("closes"), Late: drop.Late(f["late"]), Status: drop.Status(f["status"]), Name: f["name"]}
	if r.bad {
		return s, fault.New(fault.Failed, "lot %s in Redis is damaged: a field is not a number", lot).WithHint("rebuild it from the ledger: dropctl restore %s", lot)
	}
	return s, nil
}

func parseUser(user, text string) UserCount {
	r := &fields{f: strings.Split(text, "\t")}
	return UserCount{User: user, Held: r.num(0), Bought: r.num(1), Live: r.text(2)}
}
