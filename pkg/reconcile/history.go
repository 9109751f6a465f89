package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Past is a run that was, with its repairs; or a repair of no run, such as a rebuild by hand.
type Past struct {
	Run      int64         `json:"run" table:"RUN,name"` // 0: a repair of no run
	Started  time.Time     `json:"started" table:"STARTED"`
	What     string        `json:"what" table:"WHAT"` // the command, or what was repaired
	Actor    string        `json:"actor" table:"ACTOR"`
	Verdict  fault.Code    `json:"verdict" table:"VERDICT,ifset"` // "" where it came to none
	Lots     []drop.LotID  `json:"lots"`                          // named by whoever ran it; empty: all, or those of the group
	Group    string        `json:"group"`
	Deep     bool          `json:"deep"`
	Checked  int           `json:"lots_checked" table:"LOTS"`
	Findings int           `json:"findings" table:"FINDINGS"`
	Drift    int           `json:"drift" table:"DRIFT"`
	Frozen   int           `json:"frozen" table:"FROZEN,wide"`
	Stopped  int           `json:"stopped" table:"STOPPED,wide"`
	Missing  int           `json:"missing" table:"MISSING,wide"`
	Repaired int           `json:"repaired" table:"REPAIRED"` // repairs that changed something
	Took     time.Duration `json:"took_seconds" table:"TOOK,wide"`
	Running  bool          `json:"running"`
	Note     string        `json:"note" table:"NOTE,ifset"` // why there is no verdict, or how the repair ended
	Repairs  []PastRepair  `json:"repairs"`
}

// PastRepair is the account of one repair.
type PastRepair struct {
	Run      int64           `json:"-"`
	Lot      drop.LotID      `json:"lot"`
	What     string          `json:"what"`
	Actor    string          `json:"actor"`
	Reason   string          `json:"reason"`
	Evidence json.RawMessage `json:"evidence"`
	Begun    time.Time       `json:"begun"`
	Ended    time.Time       `json:"ended"`   // zero: under way, or ended with its process
	Outcome  string          `json:"outcome"` // done, nothing or failed; "" while it has not ended
	Detail   string          `json:"detail"`
}

// PastRun is a run as it was recorded.
type PastRun struct {
	ID       int64
	Actor    string
	Started  time.Time
	Finished time.Time // zero: under way, or ended with its process
	Running  bool
	Verdict  fault.Code
	Request  json.RawMessage // a Start
	Report   json.RawMessage // a Report without its rows, or why there is none
}

// Records are the account that is kept of runs and repairs, each list newest first.
type Records interface {
	Runs(ctx context.Context, limit int) ([]PastRun, error)
	// RepairsOfRuns returns the repairs of these runs, RepairsOutsideRuns those of none: rebuilds and archives.
	RepairsOfRuns(ctx context.Context, runs []int64) ([]PastRepair, error)
	RepairsOutsideRuns(ctx context.Context, limit int) ([]PastRepair, error)
}

// History returns the newest runs and repairs, at most limit, newest first.
func History(ctx context.Context, records Records, limit int) ([]Past, error) {
	runs, err := records.Runs(ctx, limit)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(runs))
	past := make([]Past, len(runs))
	byID := map[int64]*Past{}
	for i, r := range runs {
		ids[i], past[i] = r.ID, r.past()
		byID[r.ID] = &past[i]
	}
	repairs, err := records.RepairsOfRuns(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, r := range repairs {
		byID[r.Run].add(r)
	}
	lone, err := records.RepairsOutsideRuns(ctx, limit)
	if err != nil {
		return nil, err
	}
	for _, r := range lone {
		past = append(past, r.past())
	}
	slices.SortStableFunc(past, func(a, b Past) int { return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(b.Run, a.Run)) })
	return past[:min(limit, len(past))], nil
}

func (p *Past) add(r PastRepair) {
	p.Repairs = append(p.Repairs, r)
	if r.Outcome == "done" {
		p.Repaired++
	}
}

// past reads what was stored. A field that an older version did not write stays zero.
func (r PastRun) past() Past {
	p := Past{Run: r.ID, Started: r.Started, Actor: r.Actor, Verdict: r.Verdict, Running: r.Running, Lots: []drop.LotID{}, Repairs: []PastRepair{}}
	var asked Start
	var found struct {
		Lots     int    `json:"lots_checked"`
		Findings int    `json:"findings"`
		Drift    int    `json:"drift"`
		Frozen   int    `json:"frozen"`
		Stopped  int    `json:"stopped"`
		Missing  int    `json:"missing"`
		Error    string `json:"error"`
	}
	_, _ = json.Unmarshal(r.Request, &asked), json.Unmarshal(r.Report, &found)
	p.Lots, p.Group, p.Deep = append(p.Lots, asked.Lots...), asked.Group, asked.Deep
	p.Checked, p.Findings, p.Drift, p.Frozen, p.Stopped, p.Missing, p.Note = found.Lots, found.Findings, found.Drift, found.Frozen, found.Stopped, found.Missing, found.Error
	p.What = asked.command()
	switch {
	case r.Running:
		p.Note = "under way"
	case r.Finished.IsZero():
		p.Note = "ended with its process"
	default:
		p.Took = r.Finished.Sub(r.Started).Round(time.Millisecond)
	}
	return p
}

// command is what was typed, as far as it matters.
func (s Start) command() string {
	words := []string{"reconcile"}
	for _, lot := range s.Lots[:min(len(s.Lots), 3)] {
		words = append(words, string(lot))
	}
	if len(s.Lots) > 3 {
		words = append(words, "…")
	}
	if s.Group != "" {
		words = append(words, "--group", s.Group)
	}
	switch {
	case s.Repair: // looks at every record too
		words = append(words, "--repair")
	case s.Deep:
		words = append(words, "--deep")
	}
	return strings.Join(words, " ")
}

// past shows a repair of no run as an entry of its own.
func (r PastRepair) past() Past {
	p := Past{Started: r.Begun, What: r.What + " " + string(r.Lot), Actor: r.Actor, Lots: []drop.LotID{r.Lot}, Repairs: []PastRepair{}}
	p.add(r)
	switch {
	case r.Ended.IsZero():
		p.Note = "under way, or ended with its process"
	default:
		p.Took = r.Ended.Sub(r.Begun).Round(time.Millisecond)
		p.Note = strings.TrimSuffix(r.Outcome+": "+r.Detail, ": ")
	}
	return p
}
