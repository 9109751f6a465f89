package bench

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// ResultVersion is the version of the format of results. It changes when a reader of the old one would misread the new one;
// a field more does not change it.
const ResultVersion = 1

// The words of a result that others look for.
const (
	OpenLoop   = "open"
	ClosedLoop = "closed"

	AuditOK     = "ok"
	AuditBroken = "broken"
	AuditNone   = "none" // nobody looked
)

// Result is what one run found. It is the JSON of `bench engine` and `bench http`, what `bench report` reads, and a model's
// round in `bench compare`. ReadResults reads it again.
type Result struct {
	Version      int                  `json:"version"`                                // of this format: ResultVersion
	Target       string               `json:"target" table:"TARGET,name"`             // engine, http, or a model's name
	Mix          string               `json:"mix" table:"MIX"`                        // accept, sold-out, churn, full
	Loop         string               `json:"loop" table:"LOOP"`                      // OpenLoop or ClosedLoop
	Users        int                  `json:"users" table:"USERS"`                    // closed loop: callers; open loop: the most in flight
	Lots         int                  `json:"lots" table:"LOTS,wide"`                 // among which people choose
	Stock        int64                `json:"stock" table:"STOCK,wide"`               // units of each lot
	Qty          int64                `json:"qty" table:"QTY,wide"`                   // units that each person takes
	Began        time.Time            `json:"began" table:"BEGAN,wide"`               // the measured span
	Took         Span                 `json:"took_seconds" table:"TOOK"`              // the measured span
	Offered      float64              `json:"offered_per_second" table:"OFFERED/S"`   // open loop: as asked for; closed loop: as achieved
	Achieved     float64              `json:"achieved_per_second" table:"ACHIEVED/S"` // accepts and refusals
	AcceptedRate float64              `json:"accepted_per_second" table:"ACCEPTED/S"` // among the achieved
	Dropped      int64                `json:"dropped" table:"DROPPED"`                // never sent, since too many were in flight
	Behind       bool                 `json:"behind" table:"BEHIND,ifset"`            // the rate was missed by more than 1 %
	Accepted     Latency              `json:"accepted" table:"ACCEPTED"`              // accepts and refusals are counted apart: a refusal
	Refused      Latency              `json:"refused" table:"REFUSED"`                // is quicker, and many of them would make any figure look good
	Lateness     Latency              `json:"lateness"`                               // open loop: from when operations were due until they were started, which is the generator's own doing
	Seconds      []Second             `json:"seconds"`                                // the measured span, second by second
	Errors       map[fault.Code]int64 `json:"errors" table:"ERRORS,ifset"`            // neither accepted nor refused by a rule
	Examples     map[fault.Code]error `json:"-"`                                      // the first error of each code in Errors
	Redis        RedisCost            `json:"redis" table:"REDIS"`
	Postgres     PostgresCost         `json:"postgres" table:"POSTGRESQL"`
	Batch        *Batch               `json:"batch" table:"BATCH"`                         // null where the target does not tell
	Server       *ServerCost          `json:"server" table:"SERVER,ifset"`                 // of an HTTP server; null for other targets
	NotKnown     map[string]string    `json:"not_known,omitempty" table:"NOT KNOWN,ifset"` // why figures that are null are not known
	Audit        Audit                `json:"audit" table:"AUDIT"`
	Thresholds   []Threshold          `json:"thresholds" table:"THRESHOLDS"`
	Interrupted  bool                 `json:"interrupted" table:"INTERRUPTED,ifset"` // it holds what was measured until then
}

// Second is one second of a run, the last one perhaps shorter.
type Second struct {
	Second   int     `json:"second" table:"SECOND"` // from 1
	Offered  int64   `json:"offered" table:"OFFERED"`
	Dropped  int64   `json:"dropped" table:"DROPPED"`
	Accepted Answers `json:"accepted" table:"ACCEPTED"`
	Refused  Answers `json:"refused" table:"REFUSED"`
	Errors   int64   `json:"errors" table:"ERRORS"`
}

// RedisCost is what a run cost of Redis, for each operation that was answered. What the server does not tell is nil.
type RedisCost struct {
	CPU       *Span              `json:"cpu_seconds_per_operation"`
	Commands  *float64           `json:"commands_per_operation"` // those that scripts call included
	ByCommand map[string]float64 `json:"by_command"`             // the same for each command, in lower case
}

// PostgresCost is what a run cost of PostgreSQL. What the server does not tell is nil.
type PostgresCost struct {
	CPU          *Span    `json:"cpu_seconds_per_operation"`       // of private servers on Linux alone
	LockWait     *Span    `json:"lock_wait_seconds_per_operation"` // of all sessions together, sampled
	Transactions *float64 `json:"transactions_per_operation"`
	Rollbacks    *float64 `json:"rollbacks_per_operation"` // among the transactions
}

// Batch says how many operations went into one script call.
type Batch struct {
	P50    int64   `json:"p50"`
	P99    int64   `json:"p99"`
	Max    int64   `json:"max"`
	Mean   float64 `json:"mean"`
	AtMost bool    `json:"at_most"` // p50, p99 and max are upper bounds: a server counts sizes in steps
}

// ServerCost is what a run took of an HTTP server.
type ServerCost struct {
	Connections int64 `json:"connections"`               // opened in all; more than were in flight at once were not kept
	CPU         *Span `json:"cpu_seconds_per_operation"` // the warm-up included, and whoever else uses it; nil if it does not tell
}

// Cell writes it for people.
func (c ServerCost) Cell() string {
	text := fmt.Sprintf("connections %d", c.Connections)
	if c.CPU != nil {
		text += ", " + join(said("cpu", c.CPU))
	}
	return text
}

// Audit is what was found in the stores after a run.
type Audit struct {
	Verdict  string   `json:"verdict"`  // AuditOK, AuditBroken or AuditNone
	Oversold int64    `json:"oversold"` // units
	Leaked   int64    `json:"leaked"`   // units that are neither available, nor held, nor sold
	Doubled  int64    `json:"doubled"`  // events or sales that are there twice
	Findings []string `json:"findings"` // every broken promise in words
}

// Failed returns how many operations were neither accepted nor refused.
func (r Result) Failed() (n int64) {
	for _, each := range r.Errors {
		n += each
	}
	return n
}

// Unknown notes why a figure is not known.
func (r *Result) Unknown(figure, why string) {
	if r.NotKnown == nil {
		r.NotKnown = map[string]string{}
	}
	r.NotKnown[figure] = why
}

// MostFrequent returns the code that most of the failed operations have, how many they are, and the first of them; 0 if none
// failed.
func (r Result) MostFrequent() (code fault.Code, n int64, first error) {
	for _, each := range slices.Sorted(maps.Keys(r.Errors)) { // of equals the same one every time
		if r.Errors[each] > n {
			code, n = each, r.Errors[each]
		}
	}
	return code, n, r.Examples[code]
}

// Answered returns how many operations were accepted or refused.
func (r Result) Answered() int64 { return r.Accepted.Count + r.Refused.Count }

// Span is a duration that is written in seconds, exactly. (A time.Duration is written in milliseconds' precision, which is no
// measure of a machine that answers within microseconds.)
type Span time.Duration

// MarshalJSON writes seconds.
func (s Span) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// maxSpan is the longest span that is read; ten years are nobody's measurement.
const maxSpan = 10 * 365 * 24 * time.Hour

// UnmarshalJSON reads seconds.
func (s *Span) UnmarshalJSON(text []byte) error {
	var seconds float64
	if err := json.Unmarshal(text, &seconds); err != nil {
		return err
	}
	if seconds < 0 || seconds > maxSpan.Seconds() {
		return wrongValue[Span]("a time out of range")
	}
	*s = Span(seconds*float64(time.Second) + 0.5)
	return nil
}

// Cell writes it as people read it, in three digits or so.
func (s Span) Cell() string {
	d := time.Duration(s)
	for unit := time.Nanosecond; unit < time.Second; unit *= 10 {
		if d.Abs() < 1000*unit {
			return fault.Duration(d.Round(unit))
		}
	}
	return fault.Duration(d)
}

// Cell writes it for people.
func (c RedisCost) Cell() string {
	return join(said("cpu", c.CPU), saidNumber("commands", c.Commands))
}

// Cell writes it for people.
func (c PostgresCost) Cell() string {
	return join(said("cpu", c.CPU), said("lock waits", c.LockWait), saidNumber("transactions", c.Transactions), saidNumber("rolled back", c.Rollbacks))
}

// Cell writes it for people.
func (b Batch) Cell() string {
	atMost := ""
	if b.AtMost {
		atMost = "≤ "
	}
	return fmt.Sprintf("p50 %[1]s%[2]d, p99 %[1]s%[3]d, max %[1]s%[4]d, mean %.1[5]f", atMost, b.P50, b.P99, b.Max, b.Mean)
}

func said(name string, s *Span) string {
	if s == nil {
		return ""
	}
	return name + " " + s.Cell()
}

func saidNumber(name string, n *float64) string {
	if n == nil {
		return ""
	}
	return name + " " + strconv.FormatFloat(*n, 'g', 3, 64)
}

// join joins what is said with commas, and says what it is counted for.
func join(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ", ") + " an operation"
}
