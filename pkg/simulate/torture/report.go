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
	History    []string      `json:"history" table:"HISTORY"`       // of the lot of the first one
}

const verdictOK = "ok"

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
	return fault.New(fault.Broken, "a guarantee is broken, %d findings; the first: %s %s: %s", r.Broken, v.Lot, v.Reservation, v.What).
		WithHint("the same decisions again: dropctl simulate --torture --seed %d --minutes %.1f", r.Seed, r.Took.Minutes()+0.1)
}

func (r *run) report(ctx context.Context) Report {
	rep := Report{Verdict: verdictOK, Seed: r.opt.Seed, Callers: r.opt.Callers, Looks: r.looks.Load(), Attempts: len(r.book.all()), Faults: []FaultCount{}, History: []string{}}
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

// maxHistory bounds the lines of a history.
const maxHistory = 400

// line is one line of a history.
type line struct {
	at   time.Time
	text string
}

// history tells what happened to the lot of a violation: all of the reservation it is about or, if it is the lot's, what
// happened about the time it was found; events of the journal, events that are only in the outbox, what callers were told, and the
// faults between.
func (r *run) history(ctx context.Context, v Violation) []string {
	const about = 3 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	attempt := attemptIn(v.Reservation)
	wanted := func(at time.Time) bool { return at.After(v.At.Add(-about)) && at.Before(v.At.Add(about)) }
	var lines []line
	for _, f := range r.faults {
		lines = append(lines, line{f.At, "fault   " + strings.TrimSuffix(f.Fault.String(), " at 0s")})
	}
	if v.Lot != "" {
		events, err := r.eventsOf(ctx, v.Lot, func(e drop.Event) bool {
			return e.Kind == drop.KindLoaded || attempt != "" && e.Reservation.Attempt == attempt || (attempt == "" || e.IsLotEvent()) && wanted(e.Time)
		})
		lines = append(lines, events...)
		if err != nil {
			lines = append(lines, line{v.At, "the events could not be read to the end: " + err.Error()})
		}
	}
	for name, a := range r.book.all() {
		if a.request.Lot != v.Lot {
			continue
		}
		for _, t := range a.told {
			if name == attempt || attempt == "" && wanted(t.at) {
				lines = append(lines, line{t.at, fmt.Sprintf("told    %s: %s: %s", a.request.User, t.op, t.code)})
			}
		}
	}
	found := line{v.At, "FOUND   " + v.What}
	lines = append(lines, found)
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	// What led to it says more than what came after.
	end := min(len(lines), slices.Index(lines, found)+maxHistory/4)
	list := []string{}
	for _, l := range lines[max(0, end-maxHistory):end] {
		list = append(list, l.at.UTC().Format("15:04:05.000")+" "+l.text)
	}
	return list
}

// eventsOf returns the wanted events of a lot, from the journal and, behind that, the outbox.
func (r *run) eventsOf(ctx context.Context, lot drop.LotID, wanted func(drop.Event) bool) (lines []line, err error) {
	add := func(where string, list []drop.Event) {
		for _, e := range list {
			if wanted(e) {
				lines = append(lines, line{e.Time, fmt.Sprintf("%s epoch %d seq %d %s", where, e.Epoch, e.Seq, strings.ReplaceAll(e.Line(), "\t", " "))})
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
	add("outbox ", rest[lot])
	return lines, err
}

// attemptIn returns the attempt that a violation is about: it names a reservation or the attempt itself.
func attemptIn(about string) string {
	if id, err := drop.ParseReservationID(about); err == nil {
		return id.Attempt
	}
	return about
}
