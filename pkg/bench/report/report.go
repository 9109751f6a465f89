// Package report shows results of measurements side by side: in a table (report.go), and as a drawing (svg.go, chart.go) of
// latency over time, percentiles, and what the models of a comparison did.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Report is what was read, and is printed.
type Report struct {
	Runs   []Row   `json:"runs" table:"RUNS"`
	Models []Model `json:"models" table:"MODELS"`     // of comparisons
	SVG    string  `json:"svg" table:"DRAWING,ifset"` // the file that was drawn; "" if none
	runs   []run   // behind Runs
}

// run is one result, or several of the same kind together, under a name that tells it from the others.
type run struct {
	name string
	of   int // results
	bench.Result
}

// Row is a run in the table. What was not measured is nil.
type Row struct {
	Run         string      `json:"run" table:"RUN,name"`
	Results     int         `json:"results" table:"RESULTS,wide"` // that are merged in it
	Target      string      `json:"target" table:"TARGET"`
	Mix         string      `json:"mix" table:"MIX"`
	Loop        string      `json:"loop" table:"LOOP"`
	Users       int         `json:"users" table:"USERS,wide"`
	Offered     float64     `json:"offered_per_second" table:"OFFERED/S"`
	Achieved    float64     `json:"achieved_per_second" table:"ACHIEVED/S"`
	Behind      bool        `json:"behind" table:"BEHIND,ifset"`
	Dropped     int64       `json:"dropped" table:"DROPPED"`
	Errors      int64       `json:"errors" table:"ERRORS"`
	Accepted    int64       `json:"accepted" table:"ACCEPTED"`
	AcceptP50   *bench.Span `json:"accept_p50_seconds" table:"P50"`
	AcceptP90   *bench.Span `json:"accept_p90_seconds" table:"P90,wide"`
	AcceptP99   *bench.Span `json:"accept_p99_seconds" table:"P99"`
	AcceptP999  *bench.Span `json:"accept_p999_seconds" table:"P99.9"`
	AcceptMax   *bench.Span `json:"accept_max_seconds" table:"MAX"`
	Refused     int64       `json:"refused" table:"REFUSED"`
	RefuseP50   *bench.Span `json:"refuse_p50_seconds" table:"REFUSED P50,wide"`
	RefuseP99   *bench.Span `json:"refuse_p99_seconds" table:"REFUSED P99"`
	RedisCPU    *bench.Span `json:"redis_cpu_seconds" table:"REDIS CPU"` // an operation
	PostgresCPU *bench.Span `json:"postgres_cpu_seconds" table:"POSTGRESQL CPU,wide"`
	Audit       string      `json:"audit" table:"AUDIT"`
	Interrupted bool        `json:"interrupted" table:"INTERRUPTED,ifset"`
}

// Model is a model of a comparison, with the medians over its rounds.
type Model struct {
	File      string      `json:"file" table:"FILE,wide"`
	Model     string      `json:"model" table:"MODEL,name"`
	PerSecond float64     `json:"accepted_per_second" table:"ACCEPTED/S"`
	Low       float64     `json:"low_per_second" table:"LOW"` // the worst round, and the best
	High      float64     `json:"high_per_second" table:"HIGH"`
	P50       *bench.Span `json:"p50_seconds" table:"P50"`
	P99       *bench.Span `json:"p99_seconds" table:"P99"`
	Oversold  int64       `json:"oversold" table:"OVERSOLD"`
	Leaked    *int64      `json:"leaked" table:"LEAKED"` // nil: not tried
}

// Read adds what a file holds: results, or a comparison. Errors are those of bench.ReadResults.
func (r *Report) Read(file string, from io.Reader) error {
	var all bytes.Buffer
	var comparison struct {
		Models []Model `json:"models"`
	}
	from = io.LimitReader(from, bench.MaxFile+1) // which is too large for ReadResults
	dec := json.NewDecoder(io.TeeReader(from, &all))
	err := dec.Decode(&comparison)
	if len(comparison.Models) > 0 {
		return r.addModels(file, comparison.Models, err)
	}
	results, err := bench.ReadResults(file, io.MultiReader(&all, from))
	if err != nil {
		return err
	}
	for i, result := range results {
		name := file
		if len(results) > 1 {
			name = fmt.Sprintf("%s #%d", file, i+1)
		}
		r.runs = append(r.runs, run{name, 1, result})
	}
	return nil
}

func (r *Report) addModels(file string, models []Model, err error) error {
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "%s is no comparison of models", file).WithField("models").WithHint("write one with: dropctl bench compare -o json > models.json")
	}
	for i, m := range models {
		m.File = file
		if m.Model == "" || m.PerSecond < 0 || m.Low < 0 || m.High < 0 {
			return fault.New(fault.Invalid, "%s: models[%d]: it has no name, or a negative speed", file, i).WithField(fmt.Sprintf("models[%d]", i)).
				WithHint("use the file as dropctl bench wrote it")
		}
		r.Models = append(r.Models, m)
	}
	return nil
}

// Sum fills in the rows: a run each, and below them what those of the same kind came to together.
func (r *Report) Sum() {
	alone := len(r.runs)
	for i, first := range r.runs[:alone] {
		if together, n := r.together(i, alone); n > 1 {
			r.runs = append(r.runs, run{fmt.Sprintf("all %d: %s %s", n, first.Target, first.Mix), n, together})
		}
	}
	r.Runs = []Row{}
	for _, each := range r.runs {
		r.Runs = append(r.Runs, each.row())
	}
}

// kind is what results have in common that can be merged: the same was asked of the same.
type kind struct {
	target, mix, loop string
	users, lots       int
	stock, qty        int64
	rate              float64
}

func kindOf(r bench.Result) kind {
	k := kind{r.Target, r.Mix, r.Loop, r.Users, r.Lots, r.Stock, r.Qty, 0}
	if r.Loop == bench.OpenLoop {
		k.rate = r.Offered
	}
	return k
}

// together merges result i with those of its kind behind it. It counts 0 if there is one before it, which has merged it.
func (r *Report) together(i, alone int) (sum bench.Result, n int) {
	for j, each := range r.runs[:alone] {
		if kindOf(each.Result) != kindOf(r.runs[i].Result) {
			continue
		}
		if j < i {
			return sum, 0
		}
		if n++; n == 1 {
			sum = each.Result
			continue
		}
		sum = merge(sum, each.Result)
	}
	return sum, n
}

// merge adds up what can be added, and averages over the time what is per second. What can be neither is left out.
func merge(a, b bench.Result) bench.Result {
	sum := a
	took := a.Took + b.Took
	mean := func(x, y float64) float64 {
		if took <= 0 {
			return (x + y) / 2
		}
		return (x*float64(a.Took) + y*float64(b.Took)) / float64(took)
	}
	sum.Took, sum.Offered, sum.Achieved = took, mean(a.Offered, b.Offered), mean(a.Achieved, b.Achieved)
	sum.Dropped += b.Dropped
	sum.Behind, sum.Interrupted = a.Behind || b.Behind, a.Interrupted || b.Interrupted
	sum.Accepted, sum.Refused, sum.Lateness = a.Accepted.Merge(b.Accepted), a.Refused.Merge(b.Refused), a.Lateness.Merge(b.Lateness)
	sum.Errors = map[fault.Code]int64{}
	for _, each := range []bench.Result{a, b} {
		for code, n := range each.Errors {
			sum.Errors[code] += n
		}
	}
	sum.Seconds, sum.Batch, sum.Thresholds = nil, nil, nil
	sum.Redis, sum.Postgres = bench.RedisCost{CPU: meanSpan(a.Redis.CPU, b.Redis.CPU, a.Answered(), b.Answered())},
		bench.PostgresCost{CPU: meanSpan(a.Postgres.CPU, b.Postgres.CPU, a.Answered(), b.Answered())}
	sum.Audit.Verdict = worst(a.Audit.Verdict, b.Audit.Verdict)
	return sum
}

func meanSpan(a, b *bench.Span, times, more int64) *bench.Span {
	if a == nil || b == nil || times+more == 0 {
		return nil
	}
	return new(bench.Span((float64(*a)*float64(times) + float64(*b)*float64(more)) / float64(times+more)))
}

func worst(a, b string) string {
	for _, verdict := range []string{bench.AuditBroken, bench.AuditNone} {
		if a == verdict || b == verdict {
			return verdict
		}
	}
	return bench.AuditOK
}

func (r run) row() Row {
	a, f := r.Accepted, r.Refused
	return Row{
		Run: r.name, Results: r.of, Target: r.Target, Mix: r.Mix, Loop: r.Loop, Users: r.Users,
		Offered: round(r.Offered), Achieved: round(r.Achieved), Behind: r.Behind, Dropped: r.Dropped, Errors: r.Failed(),
		Accepted: a.Count, AcceptP50: a.P50, AcceptP90: a.P90, AcceptP99: a.P99, AcceptP999: a.P999, AcceptMax: a.Max,
		Refused: f.Count, RefuseP50: f.P50, RefuseP99: f.P99,
		RedisCPU: r.Redis.CPU, PostgresCPU: r.Postgres.CPU, Audit: r.Audit.Verdict, Interrupted: r.Interrupted,
	}
}

// round leaves as many digits as a measurement has a right to.
func round(perSecond float64) float64 {
	if perSecond < 100 {
		return float64(int64(perSecond*100+0.5)) / 100
	}
	return float64(int64(min(perSecond, 1e15) + 0.5))
}

func seconds(s bench.Span) float64 { return time.Duration(s).Seconds() }
