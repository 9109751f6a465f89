// Package doctor looks at the servers a shop runs on and says what is not as it should be, and how to mend it.
//
// Facts come from the adapters, each known or not. Rules are pure functions from facts to findings, and one table
// (levels.go) says how bad a finding is. Nothing is changed, and a store that is down silences no check of the other.
package doctor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Stock is the Redis side.
type Stock interface {
	// Target names the server for people; it holds no secret, and is "" if no server is named.
	Target() string
	// Health asks every server. An error means that none could be asked.
	Health(ctx context.Context) (drop.StockHealth, error)
}

// Ledger is the PostgreSQL side.
type Ledger interface {
	// Target names the server and database for people, as Stock's does.
	Target() string
	// Health asks the server, with or without our schema. An error means that it cannot be used at all.
	Health(ctx context.Context) (drop.LedgerHealth, error)
}

// Topic is what lies between the relay and the ledger, where workers use Kafka.
type Topic interface {
	// Target names the brokers and the topic for people, as Stock's does.
	Target() string
	// Health asks the brokers. An error means that none could be asked.
	Health(ctx context.Context) (drop.TopicHealth, error)
}

// Tasks is what lies between the relay and the ledger, where workers use Cloud Tasks.
type Tasks interface {
	// Target names the queue for people.
	Target() string
	// Health asks the service. An error means that it cannot be asked.
	Health(ctx context.Context) (drop.TasksHealth, error)
}

// Options say what to judge by.
type Options struct {
	Profile        Profile
	Attested       map[string]string // redis-DIRECTIVE → what an operator vouches for where the server does not tell
	MaxLag         time.Duration     // how old the oldest event that the ledger has not got may be
	OutboxMaxBytes int64             // ceiling of one shard's outbox
	OutboxKeep     time.Duration     // how long Redis keeps what the ledger has
	Parts          []string          // what workers have to do
	Version        string            // of this program
	Now            func() time.Time
}

// Line is one check of one server.
type Line struct {
	Result   Outcome `json:"result" table:"RESULT"`
	Attested bool    `json:"attested"` // the server did not tell; the config file vouches for it
	Check    string  `json:"check" table:"CHECK,name"`
	Store    string  `json:"store" table:"STORE"`   // redis, postgres, kafka, cloudtasks or both
	Target   string  `json:"target" table:"TARGET"` // the server
	What     string  `json:"what" table:"WHAT"`
	Fix      string  `json:"fix" table:"FIX"` // what to do; "" if there is nothing to do
}

// Outcome is a result that people see marked where it rests on the config file alone.
type Outcome struct {
	Result
	attested bool
}

// MarshalText implements encoding.TextMarshaler: programs get the bare result.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.Result), nil }

// Cell is what people get.
func (o Outcome) Cell() string {
	if o.attested {
		return string(o.Result) + " (attested)"
	}
	return string(o.Result)
}

// Report is what one look found.
type Report struct {
	Verdict Result    `json:"verdict" table:"VERDICT"` // ok, warn or fail; what is unknown does not count
	Profile Profile   `json:"profile" table:"PROFILE"`
	Checked time.Time `json:"checked" table:"CHECKED"`
	OK      int       `json:"ok"`
	Warn    int       `json:"warn"`
	Fail    int       `json:"fail"`
	Unknown int       `json:"unknown"`
	Lines   []Line    `json:"checks" table:"WORST FIRST"`
}

// Stores are what to look at; a nil one is left out.
type Stores struct {
	Stock  Stock
	Ledger Ledger
	Topic  Topic
	Tasks  Tasks
}

// Run asks all of them at once and judges. It has no error: a store that does not answer is a failed check.
func Run(ctx context.Context, s Stores, o Options) Report {
	var redis drop.StockHealth
	var base drop.LedgerHealth
	var topic drop.TopicHealth
	var tasks drop.TasksHealth
	var noRedis, noBase, noTopic, noTasks error
	var wg sync.WaitGroup
	if s.Stock != nil {
		wg.Go(func() { redis, noRedis = s.Stock.Health(ctx) })
	}
	if s.Ledger != nil {
		wg.Go(func() { base, noBase = s.Ledger.Health(ctx) })
	}
	if s.Topic != nil {
		wg.Go(func() { topic, noTopic = s.Topic.Health(ctx) })
	}
	if s.Tasks != nil {
		wg.Go(func() { tasks, noTasks = s.Tasks.Health(ctx) })
	}
	wg.Wait()
	e := exam{o: o}
	if s.Stock != nil {
		e.redis(s.Stock.Target(), redis, noRedis)
	}
	if s.Ledger != nil {
		e.postgres(s.Ledger.Target(), base, noBase)
	}
	if s.Stock != nil && s.Ledger != nil && noRedis == nil && noBase == nil {
		e.both(redis, base)
	}
	if s.Topic != nil {
		e.topic(s.Topic.Target(), topic, noTopic, base.Shards)
	}
	if s.Tasks != nil {
		e.tasks(s.Tasks.Target(), tasks, noTasks)
	}
	e.clocks(redis, base)
	return e.report()
}

// exam collects lines.
type exam struct {
	o     Options
	lines []Line
}

func (e *exam) say(store, target, check string, v verdict) {
	e.lines = append(e.lines, Line{Result: Outcome{v.found.in(e.o.Profile), v.attested}, Attested: v.attested, Check: check, Store: store, Target: target, What: v.what, Fix: v.fix})
}

func (e *exam) report() Report {
	r := Report{Verdict: OK, Profile: e.o.Profile, Checked: e.o.Now().UTC(), Lines: e.lines}
	slices.SortStableFunc(r.Lines, func(a, b Line) int {
		return slices.Index(worstFirst, a.Result.Result) - slices.Index(worstFirst, b.Result.Result)
	})
	count := map[Result]int{}
	for _, l := range r.Lines {
		count[l.Result.Result]++
	}
	r.OK, r.Warn, r.Fail, r.Unknown = count[OK], count[Warn], count[Fail], count[Unknown]
	switch {
	case r.Fail > 0:
		r.Verdict = Fail
	case r.Warn > 0:
		r.Verdict = Warn
	}
	return r
}

// Err is nil unless a check failed. What only warns, or could not be found out, is no failure.
func (r Report) Err() error {
	if r.Fail == 0 {
		return nil
	}
	worst := r.Lines[0]
	return fault.New(fault.Finding, "%d of %d checks failed; the first: %s: %s", r.Fail, len(r.Lines), worst.Check, worst.What).WithHint("%s", worst.Fix)
}
