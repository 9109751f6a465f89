package compare

import (
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/bench/bars"
)

// Report is the outcome of a comparison.
type Report struct {
	Users    int           `json:"users" table:"USERS"`
	Lots     int           `json:"lots" table:"LOTS"`
	Stock    int64         `json:"stock" table:"STOCK"`
	Rounds   int           `json:"rounds" table:"ROUNDS"`
	Duration time.Duration `json:"duration_seconds" table:"DURATION"`
	Seed     uint64        `json:"seed" table:"SEED"`
	CPUs     int           `json:"cpus" table:"CPUS"`
	Go       string        `json:"go" table:"GO"`
	Took     time.Duration `json:"took_seconds" table:"TOOK"`
	Models   []Row         `json:"models" table:"MODELS"`
	Bars     []bars.Row    `json:"bars" table:"BARS"`
	SVG      string        `json:"svg" table:"DRAWING,ifset"` // the file that was drawn; "" if none

	Interrupted bool `json:"interrupted" table:"INTERRUPTED,ifset"` // it holds what was measured until then, and judges no bar
}

// Row is a model with the medians over its rounds. What is "per success" is divided by the accepted.
type Row struct {
	Model       string      `json:"model" table:"MODEL,name"`
	PerSecond   float64     `json:"accepted_per_second" table:"ACCEPTED/S"`
	Low         float64     `json:"low_per_second" table:"LOW"` // the worst round, and the best
	High        float64     `json:"high_per_second" table:"HIGH"`
	P50         bench.Span  `json:"p50_seconds" table:"P50"`
	P99         bench.Span  `json:"p99_seconds" table:"P99"`
	Aborts      float64     `json:"aborts_per_success" table:"ABORTS"`
	Retries     float64     `json:"retries_per_success" table:"RETRIES"`
	Connections int         `json:"connections" table:"CONNS"`                       // to the server, at the best number
	LockWait    bench.Span  `json:"lock_wait_per_success_seconds" table:"LOCK WAIT"` // in the database; of redis-lock: for its lock
	CPU         *bench.Span `json:"cpu_per_success_seconds" table:"DB CPU"`          // of the server; 0: less than the system counts, in hundredths of a second; null where it does not tell
	Oversold    int64       `json:"oversold" table:"OVERSOLD"`
	OverLimit   int64       `json:"over_limit" table:"OVER LIMIT,ifset"`
	Leaked      *int64      `json:"leaked" table:"LEAKED"` // units, after clients died; null: not tried
	Lost        *int64      `json:"lost" table:"LOST"`     // acknowledged holds, after the server ended hard; null: not tried
	LostOf      *int64      `json:"lost_of" table:"OF"`    // holds acknowledged before it ended
	Does        string      `json:"does" table:"DOES,wide"`
	Audits      []Audit     `json:"audits"`
	Each        []Round     `json:"rounds"`
}

func (e *entry) row() Row {
	perSuccess := func(of func(Round) float64) float64 {
		return e.median(func(r Round) float64 { return of(r) / float64(max(1, r.Accepted)) })
	}
	r := Row{
		Model: e.Name, Does: e.Does, Each: e.rounds,
		PerSecond:   bars.Digits(e.median(speed)),
		Low:         bars.Digits(slices.Min(e.values(speed))),
		High:        bars.Digits(slices.Max(e.values(speed))),
		P50:         round(e.median(func(r Round) float64 { return float64(r.P50) })),
		P99:         round(e.median(func(r Round) float64 { return float64(r.P99) })),
		Aborts:      bars.Digits(perSuccess(func(r Round) float64 { return float64(r.Aborts) })),
		Retries:     bars.Digits(perSuccess(func(r Round) float64 { return float64(r.Retries) })),
		LockWait:    round(perSuccess(func(r Round) float64 { return float64(r.LockWait) })),
		Connections: int(e.median(func(r Round) float64 { return float64(r.Connections) })),
		Audits:      []Audit{}, Oversold: e.sold.Oversold, OverLimit: e.sold.OverLimit,
	}
	if e.sold.Units > 0 { // it came to that
		r.Audits = append(r.Audits, e.sold)
	}
	if !slices.ContainsFunc(e.rounds, func(r Round) bool { return r.CPU == nil }) {
		r.CPU = new(round(perSuccess(func(r Round) float64 { return float64(*r.CPU) })))
	}
	for _, each := range e.rounds {
		r.Oversold += each.Oversold
	}
	if e.died != nil {
		r.Audits = append(r.Audits, *e.died)
		r.Oversold += e.died.Oversold
		r.OverLimit += e.died.OverLimit
		leaked := e.sold.Unsold + e.died.Unsold
		r.Leaked = &leaked
	}
	if e.outage != nil {
		r.Lost, r.LostOf = &e.outage.Lost, &e.outage.Acknowledged
	}
	return r
}

// round keeps as many digits of a duration as were measured.
func round(nanoseconds float64) bench.Span { return bench.Span(bars.Digits(nanoseconds)) }

func speed(r Round) float64 { return r.PerSecond }

func (e *entry) values(of func(Round) float64) []float64 {
	var list []float64
	for _, r := range e.rounds {
		list = append(list, of(r))
	}
	return list
}

func (e *entry) median(of func(Round) float64) float64 { return bars.Median(e.values(of)) }

// bar compares what the models did with what is required of dropctl, as far as those took part that it takes.
func bar(models []Row) []bars.Row {
	by := map[string]Row{}
	for _, m := range models {
		by[m.Model] = m
	}
	var rows []bars.Row
	times := func(name string, ours, theirs Model, required float64, add func(string, float64, float64, string) bars.Row) {
		a, ok1 := by[ours.Name]
		b, ok2 := by[theirs.Name]
		if ok1 && ok2 {
			rows = append(rows, add(name, required, a.PerSecond/b.PerSecond, "times"))
		}
	}
	times("compare.over-redis-script", dropctl, redisScript, 2.8, bars.AtLeast)
	times("compare.over-redis-script.aim", dropctl, redisScript, 6, bars.Aim)
	times("compare.over-pg-for-update", dropctl, pgForUpdate, 40, bars.AtLeast)
	times("compare.synced-over-redis-script", dropctlFsync, redisScript, 1.5, bars.AtLeast)
	ours, ok := by[dropctl.Name]
	if !ok {
		return rows
	}
	if best := lowestP99(models); best > 0 {
		rows = append(rows, bars.AtMost("compare.p99-over-lowest", 1, float64(ours.P99)/float64(best), "times"))
	}
	rows = append(rows, bars.AtMost("compare.oversold", 0, float64(ours.Oversold), "units"))
	if ours.Leaked != nil {
		rows = append(rows, bars.AtMost("compare.leaked", 0, float64(*ours.Leaked), "units"))
	}
	return rows
}

// lowestP99 is that of the best of all others that answered anybody; 0 if there are none.
func lowestP99(models []Row) (lowest bench.Span) {
	for _, m := range models {
		if m.Model == dropctl.Name || m.Model == dropctlFsync.Name || m.P99 == 0 {
			continue
		}
		if lowest == 0 || m.P99 < lowest {
			lowest = m.P99
		}
	}
	return lowest
}

// Err is nil if every bar was met, else what ends the command.
func (r Report) Err() error { return bars.Missed(r.Bars) }
