package torture

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
)

// Report is the outcome of a run.
type Report struct {
	Verdict    string        `json:"verdict" table:"VERDICT"` // ok, broken, or none: it was not audited to the end
	Seed       uint64        `json:"seed" table:"SEED"`
	Callers    int           `json:"callers" table:"CALLERS"`
	Took       time.Duration `json:"took_seconds" table:"TOOK"`         // with callers and faults
	Recovery   time.Duration `json:"recovery_seconds" table:"RECOVERY"` // until every lot could be sold again
	Calls      int64         `json:"calls" table:"CALLS"`
	Attempts   int           `json:"attempts" table:"ATTEMPTS"` // to reserve, each under a key of its own
	Looks      int64         `json:"looks" table:"LOOKS"`       // at every lot, while it went on
	Broken     int64         `json:"violations_found" table:"VIOLATIONS FOUND"`
	Operations []OpCount     `json:"operations" table:"OPERATIONS"`
	Faults     []FaultCount  `json:"faults" table:"FAULTS"`
	Violations []Violation   `json:"violations" table:"VIOLATIONS"` // the first ones
	History    []Moment      `json:"history" table:"HISTORY"`       // of the lot of the first one
}

const verdictOK = "ok"

// Moment is one line of the history of a lot.
type Moment struct {
	At   string `json:"at" table:"AT"`     // RFC 3339, with milliseconds
	From string `json:"from" table:"FROM"` // journal, outbox: an event; told: an answer; fault; found: the violation
	What string `json:"what" table:"WHAT"`
}

// FaultLine is one fault that was done.
type FaultLine struct {
	At    time.Time
	Fault lab.Fault
}

// FaultCount counts the faults of one kind.
type FaultCount struct {
	Fault string `json:"fault" table:"FAULT"`
	Times int64  `json:"times" table:"TIMES"`
}

// Err is nil if no promise was broken, else what ends the command.
func (r Report) Err() error {
	if r.Broken == 0 {
		return nil
	}
	v := r.Violations[0]
	about := cmp.Or(v.Reservation, string(v.Lot), "the shop")
	return fault.New(fault.Broken, "a guarantee is broken, %d findings; the first is of %s: %s", r.Broken, about, v.What).
		WithHint("the same decisions again: dropctl simulate --torture --seed %d --minutes %.1f", r.Seed, r.Took.Minutes()+0.1)
}

func (r *run) report(ctx context.Context) Report {
	rep := Report{Verdict: verdictOK, Seed: r.opt.Seed, Callers: r.opt.Callers, Looks: r.looks.Load(), Attempts: len(r.book.all()), Faults: []FaultCount{}, History: []Moment{}}
	rep.Operations, rep.Calls = r.book.operations()
	counts := map[string]int64{}
	for _, f := range r.faults {
		kind := string(f.Fault.Act) + " " + string(f.Fault.Target)
		if f.Fault.Act == lab.DropAct || f.Fault.Act == lab.DelayAct {
			kind = string(f.Fault.Act) + " replies of " + string(f.Fault.Target)
		}
		counts[kind]++
	}
	for kind, n := range counts {
		rep.Faults = append(rep.Faults, FaultCount{kind, n})
	}
	slices.SortFunc(rep.Faults, func(a, b FaultCount) int { return cmp.Compare(a.Fault, b.Fault) })
	rep.Violations, rep.Broken = r.book.found()
	if rep.Violations == nil {
		rep.Violations = []Violation{}
	}
	if rep.Broken > 0 {
		rep.Verdict = string(fault.Broken)
		rep.History = r.history(ctx, rep.Violations[0])
	}
	return rep
}

// How much of a lot's history is told: what led to a violation says more than what came after.
const (
	mostBefore = 120
	mostAfter  = 12
)

// line is one line of a history under way.
type line struct {
	at         time.Time
	from, what string
}

// history tells what happened to the lot of a violation: all of the reservation it is about or, if it is the lot's, what
// happened about the time it was found; events of the journal, events that are only in the outbox, what callers were told, and the
// faults between.
func (r *run) history(ctx context.Context, v Violation) []Moment {
	const about = 3 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	attempt := attemptIn(v.Reservation)
	wanted := func(at time.Time) bool { return at.After(v.At.Add(-about)) && at.Before(v.At.Add(about)) }
	var lines []line
	for _, f := range r.faults {
		lines = append(lines, line{f.At, "fault", strings.TrimSuffix(f.Fault.String(), " at 0s")})
	}
	if v.Lot != "" {
		events, err := r.eventsOf(ctx, v.Lot, func(e drop.Event) bool {
			return e.Kind == drop.KindLoaded || attempt != "" && e.Reservation.Attempt == attempt || (attempt == "" || e.IsLotEvent()) && wanted(e.Time)
		})
		lines = append(lines, events...)
		if err != nil {
			lines = append(lines, line{v.At, "journal", "the events could not be read to the end: " + err.Error()})
		}
	}
	for name, a := range r.book.all() {
		if a.request.Lot != v.Lot {
			continue
		}
		for _, t := range a.told {
			if name == attempt || attempt == "" && wanted(t.at) {
				lines = append(lines, line{t.at, "told", fmt.Sprintf("%s: %s: %s", a.request.User, t.op, t.code)})
			}
		}
	}
	return moments(append(lines, line{v.At, "found", v.What}))
}

// moments orders the lines and leaves those that are far from what was found.
func moments(lines []line) []Moment {
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	found := slices.IndexFunc(lines, func(l line) bool { return l.from == "found" })
	list := []Moment{}
	for _, l := range lines[max(0, found-mostBefore):min(len(lines), found+1+mostAfter)] {
		list = append(list, Moment{l.at.UTC().Format("2006-01-02T15:04:05.000Z07:00"), l.from, l.what})
	}
	return list
}

// eventsOf returns the wanted events of a lot, from the journal and, behind that, the outbox, each with what the lot has after
// it if one adds up the events alone: where a snapshot says otherwise, the event before it is the one to look at.
func (r *run) eventsOf(ctx context.Context, lot drop.LotID, wanted func(drop.Event) bool) (lines []line, err error) {
	var sum drop.Totals
	add := func(from string, list []drop.Event) {
		for _, e := range list {
			sum = after(sum, e)
			if wanted(e) {
				lines = append(lines, line{e.Time, from, fmt.Sprintf("%d/%d %s; by the events available %d, held %d, sold %d of %d",
					e.Epoch, e.Seq, inWords(e), sum.Available, sum.Held, sum.Sold, sum.Capacity)})
			}
		}
	}
	at := drop.Watermark{}
	for {
		page, err := r.ledger.Journal(ctx, lot, at, 1000)
		if err != nil {
			return lines, err
		}
		add("journal", page)
		if len(page) < 1000 {
			break
		}
		at = page[len(page)-1].Watermark()
	}
	folded, err := r.ledger.Lots(ctx, []drop.LotID{lot})
	if err != nil || len(folded) == 0 {
		return lines, err
	}
	from := map[drop.LotID]drop.Watermark{lot: folded[0].Watermark}
	rest, err := r.engine.EventsSince(ctx, lot.Shard(r.engine.Shards()), from)
	add("outbox", rest[lot])
	return lines, err
}

// after adds an event to what the lot had before it.
func after(t drop.Totals, e drop.Event) drop.Totals {
	held, sold, capacity := e.Delta()
	t.Held, t.Sold, t.Capacity = t.Held+held, t.Sold+sold, t.Capacity+capacity
	switch e.Kind {
	case drop.KindLoaded:
		t.Held, t.Sold, t.Capacity = e.Held, e.Sold, e.Definition.Stock
	case drop.KindAdjusted, drop.KindChanged:
		t.Capacity = e.Definition.Stock
	}
	t.Available = t.Capacity - t.Held - t.Sold
	return t
}

// inWords tells an event.
func inWords(e drop.Event) string {
	who := fmt.Sprintf("~%d", e.Reservation.N)
	if e.User != "" { // of a late payment it is not known any more
		who = fmt.Sprintf("%s, %s", e.User, who)
	}
	switch e.Kind {
	case drop.KindHeld:
		text := fmt.Sprintf("held %d for %s, until %s", e.Qty, who, clock(e.Deadline))
		if e.From > 0 {
			text += fmt.Sprintf(", taken anew for ~%d", e.From)
		}
		return text
	case drop.KindConfirmed:
		return fmt.Sprintf("confirmed %d of %s with %s, %d given back", e.Qty, who, e.Ref, e.Rest)
	case drop.KindReleased:
		return fmt.Sprintf("released %d of %s, %d stay held", e.Qty, who, e.Rest)
	case drop.KindExtended:
		return fmt.Sprintf("extended %s until %s", who, clock(e.Deadline))
	case drop.KindRefunded:
		return fmt.Sprintf("refunded %d of %s, %d in all, restock %t", e.Qty, who, e.Total, e.Restock)
	}
	if e.IsLotEvent() {
		return fmt.Sprintf("%s by %s: %s", e.Kind, e.Actor, e.Reason)
	}
	return fmt.Sprintf("%s %d of %s", e.Kind, e.Qty, who)
}

func clock(at time.Time) string { return at.UTC().Format("15:04:05.000") }

// attemptIn returns the attempt that a violation is about: it names a reservation or the attempt itself.
func attemptIn(about string) string {
	if id, err := drop.ParseReservationID(about); err == nil {
		return id.Attempt
	}
	return about
}
