package bench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Threshold is a --fail-if and what it came to.
type Threshold struct {
	Expression string   `json:"expression" table:"FAIL IF"`
	Measured   *float64 `json:"measured"`               // seconds, percent or a plain number; null if there was nothing to measure
	Shown      string   `json:"shown" table:"MEASURED"` // the same for people
	OK         bool     `json:"ok" table:"OK"`          // it is not so; what was not measured is not OK
}

// Limit is a --fail-if, understood: a run fails if it is so.
type Limit struct {
	name    string
	op      string
	bound   float64 // seconds, percent or a plain number
	unit    string  // as it was written
	written string  // the bound, as it was written
}

// dimension says which units a figure can be held against.
type dimension int

const (
	timely  dimension = iota // a unit of time
	counted                  // none, or % of what was offered
	plain                    // none
)

// figure is what can be limited. It is nil where a run tells nothing of it.
type figure struct {
	dimension dimension
	of        func(Result) *float64
}

// figures are the names of --fail-if.
var figures = func() map[string]figure {
	all := map[string]figure{
		"achieved":       {counted, func(r Result) *float64 { return new(r.Achieved) }},
		"accepted":       {plain, func(r Result) *float64 { return new(float64(r.Accepted.Count)) }},
		"refused":        {plain, func(r Result) *float64 { return new(float64(r.Refused.Count)) }},
		"dropped":        {counted, func(r Result) *float64 { return new(float64(r.Dropped)) }},
		"errors":         {counted, func(r Result) *float64 { return new(float64(r.Failed())) }},
		"oversold":       {plain, audited(func(a Audit) int64 { return a.Oversold })},
		"leaked":         {plain, audited(func(a Audit) int64 { return a.Leaked })},
		"doubled":        {plain, audited(func(a Audit) int64 { return a.Doubled })},
		"redis_cpu":      {timely, func(r Result) *float64 { return seconds(r.Redis.CPU) }},
		"redis_commands": {plain, func(r Result) *float64 { return r.Redis.Commands }},
		"postgres_cpu":   {timely, func(r Result) *float64 { return seconds(r.Postgres.CPU) }},
		"lock_wait":      {timely, func(r Result) *float64 { return seconds(r.Postgres.LockWait) }},
		"transactions":   {plain, func(r Result) *float64 { return r.Postgres.Transactions }},
	}
	for name, p := range map[string]struct {
		of     func(Latency) *Span
		beyond float64 // the share of answers that may come later
	}{
		"p50": {func(l Latency) *Span { return l.P50 }, .5}, "p90": {func(l Latency) *Span { return l.P90 }, .1}, "p99": {func(l Latency) *Span { return l.P99 }, .01},
		"p999": {func(l Latency) *Span { return l.P999 }, .001}, "max": {func(l Latency) *Span { return l.Max }, 0},
	} {
		all["accept_"+name] = figure{timely, func(r Result) *float64 { return r.waited(p.of(r.Accepted), p.beyond) }}
		all["refuse_"+name] = figure{timely, func(r Result) *float64 { return r.waited(p.of(r.Refused), p.beyond) }}
	}
	return all
}()

// waited is a percentile of the answers, as one of all who asked. Who was dropped would have waited longer than anybody: if
// there are more of them than may come later, nobody knows it.
func (r Result) waited(s *Span, beyond float64) *float64 {
	if float64(r.Dropped) > beyond*float64(r.asked()) {
		return nil
	}
	return seconds(s)
}

// asked returns how many operations were to be started.
func (r Result) asked() int64 { return r.Answered() + r.Failed() + r.Dropped }

func audited(units func(Audit) int64) func(Result) *float64 {
	return func(r Result) *float64 {
		if r.Audit.Verdict == AuditNone {
			return nil
		}
		return new(float64(units(r.Audit)))
	}
}

func seconds(s *Span) *float64 {
	if s == nil {
		return nil
	}
	return new(time.Duration(*s).Seconds())
}

// LimitNames lists what --fail-if can name.
func LimitNames() []string { return slices.Sorted(maps.Keys(figures)) }

var timeUnits = map[string]time.Duration{"ns": 1, "us": time.Microsecond, "µs": time.Microsecond, "μs": time.Microsecond, "ms": time.Millisecond, "s": time.Second}

// The longest first: Go takes the first that fits.
var limitForm = regexp.MustCompile(`^\s*([A-Za-z0-9_.]+)\s*(<=|>=|<|>)\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ns|us|µs|μs|ms|s|%|/s)?\s*$`)

// ParseLimit understands one --fail-if, such as accept_p99>10ms, achieved<99% or oversold>0.
func ParseLimit(text string) (Limit, error) {
	m := limitForm.FindStringSubmatch(text)
	if m == nil {
		return Limit{}, limitFault("%.60q is no limit", text).WithHint("write a name, one of < <= > >=, and a number with its unit, as in: --fail-if 'accept_p99>10ms'")
	}
	l := Limit{name: strings.ToLower(m[1]), op: m[2], written: m[3], unit: m[4]}
	l.name = strings.ReplaceAll(l.name, "p99.9", "p999") // as people say it
	f, ok := figures[l.name]
	if !ok {
		if near := fault.Nearest(l.name, LimitNames()); near != "" {
			return Limit{}, limitFault("nothing measured is called %.40q", l.name).WithHint("did you mean %s?", near)
		}
		return Limit{}, limitFault("nothing measured is called %.40q", l.name).WithHint("these are: %s", strings.Join(LimitNames(), ", "))
	}
	bound, err := strconv.ParseFloat(l.written, 64)
	if err != nil {
		return Limit{}, limitFault("%.40q is no number", l.written)
	}
	l.bound = bound
	unit, isTime := timeUnits[l.unit]
	switch {
	case f.dimension == timely && !isTime:
		return Limit{}, limitFault("%s is a time, and %.40q has no unit of time", l.name, l.written+l.unit).WithHint("use ns, µs, ms or s, as in: %s%s10ms", l.name, l.op)
	case f.dimension == timely:
		l.bound *= unit.Seconds()
	case isTime, l.unit == "%" && f.dimension != counted, l.unit == "/s" && l.name != "achieved":
		return Limit{}, limitFault("%s is not counted in %s", l.name, l.unit).WithHint("use a number alone")
	}
	return l, nil
}

func limitFault(format string, args ...any) *fault.Error {
	return fault.New(fault.Usage, format, args...).WithField("fail-if")
}

// ParseLimits understands them all, or says what is wrong with the first that is wrong.
func ParseLimits(texts []string) ([]Limit, error) {
	var limits []Limit
	for _, text := range texts {
		l, err := ParseLimit(text)
		if err != nil {
			return nil, err
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// String writes the limit so that ParseLimit understands it.
func (l Limit) String() string { return l.name + l.op + l.written + l.unit }

// Judge holds a run against the limit.
func (l Limit) Judge(r Result) Threshold {
	measured := l.measure(r)
	t := Threshold{Expression: l.String(), Measured: measured, Shown: "not measured"}
	if measured == nil {
		return t
	}
	t.Shown, t.OK = l.show(*measured), !l.holds(*measured)
	return t
}

// measure returns the figure in the limit's dimension; nil if the run tells nothing of it.
func (l Limit) measure(r Result) *float64 {
	f := figures[l.name]
	n := f.of(r)
	if n == nil || l.unit != "%" {
		return n
	}
	whole := float64(r.asked())
	if l.name == "achieved" {
		whole = r.Offered
	}
	if whole == 0 || l.name == "achieved" && r.Loop == ClosedLoop { // which offers what it achieves
		return nil
	}
	return new(100 * *n / whole)
}

func (l Limit) holds(n float64) bool {
	switch l.op {
	case "<":
		return n < l.bound
	case "<=":
		return n <= l.bound
	case ">":
		return n > l.bound
	}
	return n >= l.bound
}

func (l Limit) show(n float64) string {
	if figures[l.name].dimension == timely {
		return Span(n*float64(time.Second) + 0.5).Cell()
	}
	digits := 2
	if n == math.Trunc(n) || n >= 1000 {
		digits = 0
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + l.unit
}

// Judge holds a run against all limits and notes in it what they came to.
func (r *Result) Judge(limits []Limit) {
	r.Thresholds = nil
	for _, l := range limits {
		r.Thresholds = append(r.Thresholds, l.Judge(*r))
	}
}

// Err returns what is bad about a run: a guarantee that was broken, else the limits that it missed, else why not a single
// operation was answered; nil if all is well.
func (r Result) Err() error {
	if r.Audit.Verdict == AuditBroken {
		what := "the stores are not as promised"
		if len(r.Audit.Findings) > 0 {
			what = r.Audit.Findings[0]
		}
		err := fault.New(fault.Broken, "%d broken promises; the first: %s", max(1, len(r.Audit.Findings)), what)
		if r.Target == "engine" { // in a space of its own, which is gone
			err = err.WithHint("no lot of a shop was in it; keep this output, measure again, and do not sell with these servers before you know why")
		}
		return err
	}
	var missed []string
	for _, t := range r.Thresholds {
		if !t.OK {
			missed = append(missed, fmt.Sprintf("%s (%s)", t.Expression, t.Shown))
		}
	}
	if len(missed) == 0 {
		return r.allFailed()
	}
	return fault.New(fault.ThresholdMissed, "%d of %d limits missed: %s", len(missed), len(r.Thresholds), strings.Join(missed, ", "))
}

// allFailed returns why not a single operation was answered: nothing was measured then. It has the code and the hint of what
// most of them met.
func (r Result) allFailed() error {
	if r.Answered() > 0 || r.Failed() == 0 || r.Interrupted {
		return nil
	}
	code, n, first := r.MostFrequent()
	return fault.Wrap(code, first, "not a single operation was answered; of %d that failed, %d are %s", r.Failed(), n, code).
		WithHint("%s", cmp.Or(fault.HintOf(first), "dropctl explain "+string(code)))
}
