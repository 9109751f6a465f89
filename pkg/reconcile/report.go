package reconcile

import (
	"fmt"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Report is the outcome of a run.
type Report struct {
	Verdict      fault.Code    `json:"verdict" table:"VERDICT"` // ok or finding
	Lots         int           `json:"lots_checked" table:"LOTS"`
	OK           int           `json:"ok" table:"OK"`
	Lagging      int           `json:"lagging" table:"LAGGING"`
	Drift        int           `json:"drift" table:"DRIFT"`
	Frozen       int           `json:"frozen" table:"FROZEN"`
	Stopped      int           `json:"stopped" table:"STOPPED"`
	Missing      int           `json:"missing" table:"MISSING"`
	Findings     int           `json:"findings" table:"FINDINGS"`
	Repaired     int           `json:"repaired" table:"REPAIRED,ifset"` // differences put right
	Planned      int           `json:"planned" table:"PLANNED,ifset"`   // differences that a dry run would have put right
	Left         int           `json:"left" table:"LEFT,ifset"`         // differences left because as many as allowed were repaired
	Deep         bool          `json:"deep" table:"DEEP"`
	Records      int64         `json:"records_proven" table:"RECORDS PROVEN"`
	WorkersAlive int           `json:"workers_alive" table:"WORKERS ALIVE"`
	Started      time.Time     `json:"started" table:"STARTED,wide"`
	Took         time.Duration `json:"took_seconds" table:"TOOK"`
	Rows         []Row         `json:"lots" table:"LOTS"` // findings first, then what lags, each in the order of lots
}

// Row is the verdict on one lot.
type Row struct {
	Lot        drop.LotID    `json:"lot" table:"LOT,name"`
	Verdict    fault.Code    `json:"verdict" table:"VERDICT"`
	Finding    bool          `json:"finding"`
	Reason     string        `json:"reason" table:"REASON,ifset"` // why it is frozen or stopped
	Redis      *Side         `json:"redis" table:"REDIS,wide"`
	Ledger     *Side         `json:"ledger" table:"LEDGER,wide"`
	LagEvents  int64         `json:"lag_events" table:"LAG"`
	Lag        time.Duration `json:"lag_seconds" table:"LAG AGE"` // age of the oldest event not folded
	Unfinished int64         `json:"sales_pending" table:"PENDING,wide"`
	Records    int64         `json:"records_proven" table:"RECORDS,wide"`
	Message    string        `json:"message" table:"MESSAGE,ifset"` // the first evidence, for people
	Evidence   []Evidence    `json:"evidence"`
	Repairs    []Repaired    `json:"repairs"`
	Next       string        `json:"next" table:"NEXT,ifset"` // the command to run next

	seen                    drop.LotState // as it was compared record by record
	equal                   bool          // before its records were compared
	lost                    bool          // neither outbox nor ledger has some of its events
	repaired, planned, left int
}

// Side is what one store says of a lot at its own watermark.
type Side struct {
	drop.Watermark
	drop.Totals
}

// Evidence is one difference: what was checked, of whom, and what both sides say at the same watermark.
type Evidence struct {
	Check   string `json:"check"`   // held, record, user, due, …
	Subject string `json:"subject"` // a reservation, attempt or user; "" for the lot itself
	Redis   string `json:"redis"`
	Ledger  string `json:"ledger"`
	Seq     int64  `json:"seq"` // where both sides were compared; 0: at no one place
	Note    string `json:"note"`

	fix *drop.Fix // what puts it right; nil where only a rebuild does
}

// String is one line for people.
func (e Evidence) String() string {
	s := e.Check
	if e.Subject != "" {
		s += " " + e.Subject
	}
	if e.Redis != "" || e.Ledger != "" {
		s += fmt.Sprintf(": redis %s, ledger %s", orNone(e.Redis), orNone(e.Ledger))
	}
	if e.Seq != 0 {
		s += fmt.Sprintf(" at seq %d", e.Seq)
	}
	if e.Note != "" {
		s += ": " + e.Note
	}
	return s
}

// rank puts what needs attention first.
func (row Row) rank() int {
	switch {
	case row.Finding:
		return 0
	case row.Verdict != fault.VerdictOK:
		return 1
	}
	return 2
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// maxEvidence bounds a row: a lot whose every record is wrong is no better explained by all of them.
const maxEvidence = 25

func (r *Report) add(row Row) {
	switch row.Verdict {
	case fault.VerdictOK:
		r.OK++
	case fault.VerdictLagging:
		r.Lagging++
	case fault.VerdictDrift:
		r.Drift++
	case fault.VerdictFrozen:
		r.Frozen++
	case fault.VerdictStopped:
		r.Stopped++
	case fault.VerdictMissing:
		r.Missing++
	}
	if row.Finding {
		r.Findings++
		r.Verdict = fault.Finding
	}
	if n := len(row.Evidence); n > maxEvidence {
		row.Evidence = append(row.Evidence[:maxEvidence:maxEvidence], Evidence{Check: "more", Note: fmt.Sprintf("%d more differences", n-maxEvidence)})
	}
	if row.Evidence == nil {
		row.Evidence = []Evidence{}
	}
	if row.Repairs == nil {
		row.Repairs = []Repaired{}
	}
	r.Repaired, r.Planned, r.Left = r.Repaired+row.repaired, r.Planned+row.planned, r.Left+row.left
	r.Lots++
	r.Records += row.Records
	r.Rows = append(r.Rows, row)
}

// Err is nil for a clean report, else the finding that ends the command.
func (r Report) Err() error {
	if r.Findings == 0 {
		return nil
	}
	var lots []drop.LotID
	for _, row := range r.Rows {
		if row.Finding {
			lots = append(lots, row.Lot)
		}
	}
	names := drop.JoinLots(lots[:min(len(lots), 5)])
	if len(lots) > 5 {
		names += fmt.Sprintf(" and %d more", len(lots)-5)
	}
	text := fmt.Sprintf("%d of %d lots need attention: %s", r.Findings, r.Lots, names)
	switch {
	case r.Left > 0:
		done := differences(r.Repaired) + " repaired"
		if r.Planned > 0 {
			done = differences(r.Planned) + " to be repaired"
		}
		return fault.New(fault.Finding, "%s, which is all that --max-repair allows, %d left; %s", done, r.Left, text).
			WithHint("look why there are so many, then run it again, or with a higher --max-repair")
	case r.Repaired > 0:
		return fault.New(fault.Partial, "%s repaired, but %s", differences(r.Repaired), text).WithHint("%s", r.nextOf(lots[0]))
	}
	return fault.New(fault.Finding, "%s", text).WithHint("%s", r.nextOf(lots[0]))
}

func differences(n int) string {
	if n == 1 {
		return "1 difference"
	}
	return fmt.Sprintf("%d differences", n)
}

func (r Report) nextOf(lot drop.LotID) string {
	for _, row := range r.Rows {
		if row.Lot == lot {
			return row.Next
		}
	}
	return ""
}
