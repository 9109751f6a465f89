package lab

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// FaultAct is what is done to a server.
type FaultAct string

// The acts.
const (
	KillAct    FaultAct = "kill"    // SIGKILL; it is started again after a moment, as by a supervisor
	RestartAct FaultAct = "restart" // a clean stop and a start
	PauseAct   FaultAct = "pause"   // it stands still, its connections stay open
	FlushAct   FaultAct = "flush"   // Redis loses all it has: FLUSHALL
	DropAct    FaultAct = "drop"    // a share of its replies is lost, and their connections with them
	DelayAct   FaultAct = "delay"   // every reply comes later
)

// FaultTarget is a server of a laboratory.
type FaultTarget string

// The targets.
const (
	RedisTarget    FaultTarget = "redis"
	PostgresTarget FaultTarget = "postgres"
	WorkerTarget   FaultTarget = "worker"
)

// Fault is one thing that goes wrong in a laboratory.
type Fault struct {
	Act    FaultAct
	Target FaultTarget
	At     time.Duration // after the start of the schedule
	For    time.Duration // pause: how long; drop and delay: how long, 0 for as long as the schedule lasts
	Share  float64       // drop: of the replies, above 0 and up to 1
	Delay  time.Duration // delay: of each reply
}

const maxFaultTime = 24 * time.Hour

// onReplies reports whether the fault is one of the way to a server, rather than of the server.
func (f Fault) onReplies() bool { return f.Act == DropAct || f.Act == DelayAct }

// needsLink: PostgreSQL is many processes, so it stands still for its clients by way of the proxy.
func (f Fault) needsLink(target FaultTarget) bool {
	return f.Target == target && (f.onReplies() || f.Act == PauseAct && target == PostgresTarget)
}

// String writes the fault as ParseFault reads it.
func (f Fault) String() string {
	s := string(f.Act)
	switch f.Act {
	case DropAct:
		s += " " + strconv.FormatFloat(f.Share*100, 'g', 6, 64) + "% replies from " + string(f.Target)
	case DelayAct:
		s += " replies " + f.Delay.String() + " from " + string(f.Target)
	default:
		s += " " + string(f.Target)
	}
	switch {
	case f.Act == PauseAct:
		s += " " + f.For.String()
	case f.For > 0:
		s += " for " + f.For.String()
	}
	if f.At > 0 || !f.onReplies() {
		s += " at " + f.At.String()
	}
	return s
}

// ParseFault reads a fault as people write it:
//
//	kill redis at 3s             also restart; redis, postgres or worker
//	pause postgres 5s at 2s      redis, postgres or worker
//	flush redis at 4s
//	drop 1% replies [from redis] [for 10s] [at 2s]
//	delay replies 20ms [from postgres] [for 10s] [at 2s]
//
// Without `at`, drop and delay begin at once. The error is Invalid and says what was expected where.
func ParseFault(text string) (Fault, error) {
	p := faultParser{text: text, words: strings.Fields(text)}
	f := p.fault()
	if p.err == nil && len(p.words) > 0 {
		p.expect("nothing more")
	}
	if p.err != nil {
		return Fault{}, p.err
	}
	return f, nil
}

// faultParser takes word after word. Once something is wrong it stays at its first error.
type faultParser struct {
	text  string
	words []string
	err   error
}

func (p *faultParser) fault() (f Fault) {
	act := FaultAct(p.oneOf(string(KillAct), string(RestartAct), string(PauseAct), string(FlushAct), string(DropAct), string(DelayAct)))
	f.Act = act
	switch act {
	case DropAct:
		f.Share = p.percent()
		p.oneOf("replies")
		p.replies(&f)
	case DelayAct:
		p.oneOf("replies")
		f.Delay = p.duration()
		p.replies(&f)
	case FlushAct:
		f.Target = FaultTarget(p.oneOf(string(RedisTarget)))
		f.At = p.at()
	case PauseAct:
		f.Target = p.target()
		f.For = p.duration()
		f.At = p.at()
	default:
		f.Target = p.target()
		f.At = p.at()
	}
	return f
}

// replies reads what may follow, in this order: from whom, for how long, and when.
func (p *faultParser) replies(f *Fault) {
	f.Target = RedisTarget
	if p.next("from") {
		f.Target = FaultTarget(p.oneOf(string(RedisTarget), string(PostgresTarget)))
	}
	if p.next("for") {
		f.For = p.duration()
	}
	if len(p.words) > 0 {
		f.At = p.at()
	}
}

func (p *faultParser) target() FaultTarget {
	return FaultTarget(p.oneOf(string(RedisTarget), string(PostgresTarget), string(WorkerTarget)))
}

func (p *faultParser) at() time.Duration {
	if !p.next("at") {
		p.expect("at and when, such as at 3s")
	}
	if p.err == nil && len(p.words) > 0 && p.words[0] == "0s" { // the only moment that is no length of time
		p.words = p.words[1:]
		return 0
	}
	return p.duration()
}

// next takes the word if it comes next.
func (p *faultParser) next(word string) bool {
	if p.err != nil || len(p.words) == 0 || p.words[0] != word {
		return false
	}
	p.words = p.words[1:]
	return true
}

func (p *faultParser) oneOf(words ...string) string {
	for _, w := range words {
		if p.next(w) {
			return w
		}
	}
	p.expect(strings.Join(words, ", "))
	return ""
}

func (p *faultParser) duration() time.Duration {
	if p.err == nil && len(p.words) > 0 {
		if d, err := time.ParseDuration(p.words[0]); err == nil && d > 0 && d <= maxFaultTime {
			p.words = p.words[1:]
			return d
		}
	}
	p.expect("a time such as 500ms or 3s, up to 24h")
	return 0
}

func (p *faultParser) percent() float64 {
	if p.err == nil && len(p.words) > 0 {
		number, ok := strings.CutSuffix(p.words[0], "%")
		if share, err := strconv.ParseFloat(number, 64); ok && err == nil && !math.IsNaN(share) && share >= 0.001 && share <= 100 {
			p.words = p.words[1:]
			return share / 100
		}
	}
	p.expect("a share such as 1%, from 0.001% to 100%")
	return 0
}

// expect notes what should come at this place.
func (p *faultParser) expect(what string) {
	if p.err != nil {
		return
	}
	found := "the end"
	if len(p.words) > 0 {
		found = strconv.QuoteToASCII(p.words[0])
		if len(found) > 40 {
			found = found[:36] + `..."`
		}
	}
	p.err = fault.New(fault.Invalid, "fault %.80q: at %s, expected %s", p.text, found, what).WithField("fault").
		WithHint("for example: 'kill redis at 3s', 'pause postgres 5s at 2s', 'drop 1%% replies for 10s', 'delay replies 20ms from postgres'")
}

// CheckFaults refuses faults that get into each other's way: two at the same replies at the same time.
func CheckFaults(faults []Fault) error {
	for i, a := range faults {
		for _, b := range faults[:i] {
			if a.onReplies() && a.Act == b.Act && a.Target == b.Target && a.At < b.end() && b.At < a.end() {
				return fault.New(fault.Invalid, "the faults '%s' and '%s' overlap", b, a).WithField("fault").WithHint("let one end before the other begins: … for 5s at 2s")
			}
		}
	}
	return nil
}

func (f Fault) end() time.Duration {
	if f.For == 0 {
		return math.MaxInt64
	}
	return f.At + f.For
}

// Targets reports whether any of the faults is done to that server.
func Targets(faults []Fault, target FaultTarget) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool { return f.Target == target })
}

// NeedLink reports whether clients must reach that server through a proxy for the faults to reach them.
func NeedLink(faults []Fault, target FaultTarget) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool { return f.needsLink(target) })
}
