package stock

import (
	"regexp"
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

func (r *fields) ms(i int) time.Duration { return time.Duration(r.num(i)) * time.Millisecond }

func (r *fields) time(i int) time.Time { return time.UnixMilli(r.num(i)).UTC() }

// moment reads a time that may be missing, as 0.
func (r *fields) moment(i int) time.Time {
	if r.text(i) == "0" {
		return time.Time{}
	}
	return r.time(i)
}

// parseRecord reads a record of a lot's hash, in full (layout in lua/common.lua).
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

// lotState builds a LotState from the fields of a lot hash (layout in lua/common.lua), Damaged if they do not make sense.
func lotState(lot drop.LotID, f map[string]string) drop.LotState {
	if why := f["damaged"]; why != "" {
		return drop.LotState{Definition: drop.Definition{Lot: lot}, Damaged: why}
	}
	live := &fields{f: strings.Split(f["live"], "\t")}
	totals := &fields{f: strings.Split(f["totals"], "\t")}
	rule := &fields{f: strings.Split(f["rule"], "\t")}
	s := drop.LotState{
		Totals:    drop.Totals{Capacity: totals.num(1), Available: live.num(0), Held: live.num(1), Sold: totals.num(0)},
		Watermark: drop.Watermark{Epoch: rule.num(0), Seq: live.num(2)},
		Mark:      live.time(3),
		Frozen:    f["frozen"],
		LotFrozen: f["frozen"],
	}
	s.Definition = drop.Definition{Lot: lot, Stock: s.Capacity, Limit: rule.num(1), Hold: rule.ms(2), MaxHold: rule.ms(3),
		Opens: rule.moment(4), Closes: rule.moment(5), Late: drop.Late(rule.text(7)), Status: drop.Status(rule.text(6)), Name: f["name"]}
	if live.bad || totals.bad || rule.bad {
		return drop.LotState{Definition: drop.Definition{Lot: lot}, Damaged: "a field of it is not a number"}
	}
	return s
}

func damagedFault(s drop.LotState) error {
	if s.Damaged == "" {
		return nil
	}
	return fault.New(fault.Failed, "lot %s is damaged in Redis: %s", s.Lot, s.Damaged).WithHint("rebuild it from the ledger: dropctl restore %s", s.Lot)
}

// countText is what a counter of a user is written as.
var countText = regexp.MustCompile(`^\d{1,15}$`)

// parseUser reads what counts for a user. What lua/repair.lua takes for damaged must be so here, or a repair would wait for
// something that it never sees.
func parseUser(mark, text string) drop.UserCount {
	if attempt, record, ok := onlyHold(mark, text); ok {
		r := &fields{f: strings.Split(record, "\t")}
		return drop.UserCount{Mark: mark, User: r.text(1), Held: r.num(3), Live: attempt}
	}
	r := &fields{f: strings.SplitN(text, "\t", 4)}
	if len(r.f) < 4 || !countText.MatchString(r.f[0]) || !countText.MatchString(r.f[1]) {
		return drop.UserCount{Mark: mark, Damaged: true}
	}
	return drop.UserCount{Mark: mark, User: r.text(3), Held: r.num(0), Bought: r.num(1), Live: r.text(2)}
}

// restText begins what is stored of a user who has nothing but a hold: its letter and the rest of its attempt.
var restText = regexp.MustCompile(`^[hb][a-z2-7]{10}\t[^\t]*\t[^\t]*\t\d+\t`)

// onlyHold returns the hold that is stored with its user, if there is one (layout in lua/common.lua).
func onlyHold(mark, text string) (attempt, record string, ok bool) {
	const rest = drop.AttemptLen - drop.MarkLen
	if !restText.MatchString(text) {
		return "", "", false
	}
	return mark + text[1:1+rest], text[:1] + text[1+rest:], true
}
