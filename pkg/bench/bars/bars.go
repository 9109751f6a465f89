// Package bars measures the speed that dropctl promises, on private servers of its own, against what a competent
// engineer would write without it.
//
// Each part of the benchmark is one file and yields rows of one table: bars, which must be met, and figures, which
// explain them. Whatever is compared runs under the same load (load.go), over the same unix socket, in turns: round by
// round, so that a slow minute of the machine hits everybody. A bar compares medians over the rounds.
package bars

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Options says what to measure.
type Options struct {
	Program  string                           // path of the built dropctl, for what is measured from outside
	Rounds   int                              // how often each contender runs; the bars are meant for 5 or more
	Only     []string                         // names of parts; empty: all but the soak
	Soak     time.Duration                    // how long the soak takes
	Progress func(format string, args ...any) // told what is being measured; may be nil
}

// effort is how much work goes into a figure. Tests need less than people.
type effort struct {
	warm, span time.Duration // of one throughput figure: first unmeasured, then measured
	probe      time.Duration // measured span while the best options of a baseline are sought
	lots       int           // where there are many
	crowd      int           // callers of the crowd
	holds      int           // live holds whose memory is measured
	single     int           // of them, taken by a lone caller
	batches    int           // applied a round
	rowSpan    time.Duration // of one figure of the ledger's baselines
	steady     time.Duration // at the workers' limit
	sales      int           // of one lot, whose cost is measured
	spread     int           // the same of many lots: fewer would fill no batch of their shard
	starts     int           // of the program
}

// full fits into six minutes, five rounds of everything.
var full = effort{warm: 300 * time.Millisecond, span: time.Second, probe: 500 * time.Millisecond, lots: 1000, crowd: 10_000,
	holds: 1_000_000, single: 20_000, batches: 20, rowSpan: 500 * time.Millisecond, steady: 8 * time.Second, sales: 3000, spread: 4000, starts: 20}

// part is a share of the benchmark that can be measured by itself.
type part struct {
	name string
	run  func(*run, context.Context) ([]Row, error)
}

var parts = []part{
	{"hot-lot", (*run).hotLot},
	{"many-lots", (*run).manyLots},
	{"memory", (*run).memory},
	{"apply", (*run).apply},
	{"pipeline", (*run).pipeline},
	{"http", (*run).http},
	{"generator", (*run).generator},
	{"cli", (*run).cli},
	{soakPart, (*run).soak},
}

// soakPart takes minutes: it runs only where it is asked for.
const soakPart = "soak"

// Parts lists the names that Options.Only takes, in the order in which they run.
func Parts() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// Row is a bar or, where OK is nil, a figure that explains the bars.
type Row struct {
	Bar      string   `json:"bar" table:"BAR,name"`
	Sense    string   `json:"sense" table:"MUST BE"` // at least, at most; an aim binds nobody
	Required *float64 `json:"required" table:"REQUIRED"`
	Measured float64  `json:"measured" table:"MEASURED"`
	Unit     string   `json:"unit" table:"UNIT"`
	OK       *bool    `json:"ok" table:"OK"`
	Detail   string   `json:"detail" table:"DETAIL,wide"`
}

// AtLeast is a bar for which more is better. It is not met by what is no number: whoever is compared with nothing has not won.
func AtLeast(bar string, required, measured float64, unit string) Row {
	ok := measured >= required && !math.IsInf(measured, 0)
	return Row{Bar: bar, Sense: "at least", Required: &required, Measured: Digits(measured), Unit: unit, OK: &ok}
}

// AtMost is a bar for which less is better.
func AtMost(bar string, required, measured float64, unit string) Row {
	ok := measured <= required
	return Row{Bar: bar, Sense: "at most", Required: &required, Measured: Digits(measured), Unit: unit, OK: &ok}
}

// Aim is a bar that binds nobody.
func Aim(bar string, required, measured float64, unit string) Row {
	return Row{Bar: bar, Sense: "aim", Required: &required, Measured: Digits(measured), Unit: unit}
}

func info(bar string, measured float64, unit, detail string) Row {
	return Row{Bar: bar, Measured: Digits(measured), Unit: unit, Detail: detail}
}

// Digits keeps three digits: more would claim more than was measured.
func Digits(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	r, _ := strconv.ParseFloat(strconv.FormatFloat(math.Round(v/unit)*unit, 'g', 6, 64), 64)
	return r
}

// Report is the outcome of a run.
type Report struct {
	Rounds int           `json:"rounds" table:"ROUNDS"`
	CPUs   int           `json:"cpus" table:"CPUS"`
	Go     string        `json:"go" table:"GO"`
	Load   *float64      `json:"load_average" table:"LOAD BEFORE"` // of the machine, over the minute before; null: unknown
	Took   time.Duration `json:"took_seconds" table:"TOOK"`
	Failed string        `json:"failed,omitempty" table:"FAILED,ifset"` // the part that could not be measured; those behind it were not begun
	Rows   []Row         `json:"bars" table:"BARS"`
}

// Err is nil if every bar was met, else what ends the command.
func (r Report) Err() error { return Missed(r.Rows) }

// Missed names the bars that were not met; nil if there are none. Its code is fault.BarMissed.
func Missed(rows []Row) error {
	var missed []string
	for _, row := range rows {
		if row.OK != nil && !*row.OK {
			missed = append(missed, fmt.Sprintf("%s is %v %s, %s %v required", row.Bar, row.Measured, row.Unit, row.Sense, *row.Required))
		}
	}
	if len(missed) == 0 {
		return nil
	}
	return fault.New(fault.BarMissed, "%s", strings.Join(missed, "; ")).With("missed", len(missed))
}

// run is one run of the benchmark.
type run struct {
	Options
	effort
}

// Run measures. It starts its own servers and leaves nothing behind, not even when ctx ends. With an error it returns what was
// measured until then. A missed bar is no error here: see Report.Err. Errors: fault.Usage, those of the lab, and any refusal, since
// nothing in the benchmark may be refused.
func Run(ctx context.Context, o Options) (Report, error) { return measure(ctx, o, full) }

func measure(ctx context.Context, o Options, e effort) (Report, error) {
	if o.Rounds < 1 {
		return Report{}, fault.New(fault.Usage, "%d rounds measure nothing", o.Rounds).WithField("rounds").WithHint("use 1 or more; the bars are meant for 5")
	}
	for _, name := range o.Only {
		if !slices.Contains(Parts(), name) {
			return Report{}, fault.New(fault.Usage, "%q is no part of the benchmark", name).WithField("only").WithHint("the parts are: %s", strings.Join(Parts(), ", "))
		}
	}
	if slices.Contains(o.Only, soakPart) && o.Soak < time.Second {
		return Report{}, fault.New(fault.Usage, "a soak of %s measures nothing", o.Soak).WithField("soak").WithHint("use 10m, for which its bars are meant")
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	begun := time.Now()
	report := Report{Rounds: o.Rounds, CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version(), Load: loadAverage()}
	r := &run{o, e}
	for _, p := range parts {
		if asked := slices.Contains(o.Only, p.name); !asked && (len(o.Only) > 0 || p.name == soakPart) {
			continue
		}
		rows, err := p.run(r, ctx)
		report.Took = time.Since(begun).Round(time.Millisecond)
		if err != nil {
			report.Failed = p.name
			return report, err
		}
		report.Rows = append(report.Rows, rows...)
	}
	return report, nil
}

// loadAverage tells how busy the machine was before: figures of a busy one say little. Only Linux tells.
func loadAverage() *float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	minute, _, _ := strings.Cut(string(text), " ")
	if load, err := strconv.ParseFloat(minute, 64); err == nil {
		return &load
	}
	return nil
}

// Median returns the middle of the values, 0 if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
