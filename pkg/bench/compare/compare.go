package compare

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/bench/bars"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Options says what to compare.
type Options struct {
	Models   []string      // names; empty: all
	Rounds   int           // of each model, in turns
	Users    int           // callers who ask at once
	Duration time.Duration // measured span of a round
	Lots     int
	Stock    int64 // units of each lot; a round ends when they are sold
	Seed     uint64
	NoCrash  bool                             // leave out what happens when clients die and servers end
	Progress func(format string, args ...any) // told what is being done; may be nil
}

// effort is how much work goes into what no option says. Tests need less than people.
type effort struct {
	warm, probe  time.Duration // before a round; measured span while the best pool is sought
	drillUnits   int64         // of the lot that is sold out, and of that at which clients die
	drillCallers int
	deaths       int           // client processes that die
	grace        time.Duration // beyond holds and locks, until what did not come back is leaked
	darkAfter    time.Duration // about when a server ends
}

var full = effort{warm: 500 * time.Millisecond, probe: 500 * time.Millisecond, drillUnits: 800, drillCallers: 64, deaths: 32, grace: time.Second, darkAfter: 1200 * time.Millisecond}

// Run compares. It starts its own servers and leaves nothing behind, not even when ctx ends, with whose error it then
// returns. With an error comes what was measured until then, if anything was. A missed bar is no error here: see Report.Err.
// Errors: fault.Usage, and those of the lab and the drivers.
func Run(ctx context.Context, o Options) (Report, error) { return run(ctx, o, full) }

func run(ctx context.Context, o Options, e effort) (Report, error) {
	models, err := o.check()
	if err != nil {
		return Report{}, err
	}
	return compete(ctx, o, e, models)
}

// check returns the models that are asked for, in their order.
func (o *Options) check() ([]Model, error) {
	for _, name := range o.Models {
		if !slices.Contains(Names(), name) {
			return nil, fault.New(fault.Usage, "there is no model %q", name).WithField("models").WithHint("the models are: %s", strings.Join(Names(), ", "))
		}
	}
	for _, n := range []struct {
		field       string
		value, most int64
	}{{"rounds", int64(o.Rounds), 1000}, {"users", int64(o.Users), 100_000}, {"lots", int64(o.Lots), 10_000}, {"stock", o.Stock, 10_000_000}} {
		if n.value < 1 || n.value > n.most {
			return nil, fault.New(fault.Usage, "%s is %d", n.field, n.value).WithField(n.field).WithHint("use 1 to %d", n.most)
		}
	}
	if o.Duration < 10*time.Millisecond || o.Duration > time.Hour {
		return nil, fault.New(fault.Usage, "rounds of %s measure nothing", o.Duration).WithField("duration").WithHint("use 10ms to 1h")
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	var models []Model
	for _, m := range Models() {
		if len(o.Models) == 0 || slices.Contains(o.Models, m.Name) {
			models = append(models, m)
		}
	}
	return models, nil
}

// entry is a model in the competition.
type entry struct {
	Model
	best   int // connections
	rounds []Round
	sold   Audit
	died   *Audit
	outage *Outage
}

func compete(ctx context.Context, o Options, e effort, models []Model) (Report, error) {
	begun := time.Now()
	report := Report{Users: o.Users, Lots: o.Lots, Stock: o.Stock, Rounds: o.Rounds, Duration: o.Duration, Seed: o.Seed, CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version(), Models: []Row{}, Bars: []bars.Row{}}
	var entries []*entry
	synced := false
	for _, m := range models {
		entries = append(entries, &entry{Model: m})
		synced = synced || m.place == onRedisSynced
	}
	a, err := openArena(ctx, o, e, synced)
	if err != nil {
		return Report{}, err
	}
	defer a.close(ctx)
	for _, step := range []func(context.Context, []*entry) error{a.seek, a.takeTurns, a.drills} {
		if err = step(ctx, entries); err != nil {
			break
		}
	}
	for _, e := range entries {
		if len(e.rounds) > 0 {
			report.Models = append(report.Models, e.row())
		}
	}
	report.Took = time.Since(begun).Round(time.Millisecond)
	if err != nil {
		if report.Interrupted = true; ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return report, err
	}
	report.Bars = bar(report.Models)
	return report, nil
}

// seek finds the best number of connections for each.
func (a *arena) seek(ctx context.Context, entries []*entry) (err error) {
	a.o.Progress("looking for the number of connections at which each model is at its best")
	for _, e := range entries {
		if e.best, err = a.bestPool(ctx, e.Model); err != nil {
			return err
		}
	}
	return nil
}

// takeTurns lets all of them play, in another order each round: nobody always follows the same one.
func (a *arena) takeTurns(ctx context.Context, entries []*entry) error {
	a.o.Progress("measuring: %d users, lots: %d of %d units", a.o.Users, a.o.Lots, a.o.Stock)
	l := load{a.o.Users, lotNames(a.o.Lots), a.warm, a.o.Duration}
	for round := range a.o.Rounds {
		for _, at := range rand.New(rand.NewPCG(a.o.Seed, uint64(round)+1)).Perm(len(entries)) {
			e := entries[at]
			r, err := a.play(ctx, e.Model, e.best, l)
			if err != nil {
				return err
			}
			a.o.Progress("  round %d of %d, %s: %.0f accepted/s, p50 %s, p99 %s", round+1, a.o.Rounds, e.Name, r.PerSecond, r.P50.Cell(), r.P99.Cell())
			e.rounds = append(e.rounds, r)
		}
	}
	return nil
}

// drills let each sell out, lose clients, and lose its server.
func (a *arena) drills(ctx context.Context, entries []*entry) (err error) {
	if a.o.NoCrash {
		a.o.Progress("selling out")
	} else {
		a.o.Progress("selling out, killing clients, ending servers")
	}
	missing := false
	for _, e := range entries {
		if e.sold, err = a.sellOut(ctx, e.Model, e.best); err != nil {
			return err
		}
		if a.o.NoCrash {
			continue
		}
		died, err := a.crash(ctx, e.Model, e.best)
		if err != nil {
			return err
		}
		e.died = &died
		a.o.Progress("  %s: %d of %d units oversold, %d leaked", e.Name, e.sold.Oversold+died.Oversold, e.sold.Units+died.Units, e.sold.Unsold+died.Unsold)
		outage, err := a.outage(ctx, e.Model, e.best)
		switch {
		case fault.Is(err, fault.MissingBinary):
			if !missing {
				a.o.Progress("  what a power failure takes from Redis is left out: %s", fault.HintOf(err))
			}
			missing = true
			continue
		case err != nil:
			return err
		}
		e.outage = &outage
		a.o.Progress("  %s: %d of %d acknowledged holds lost with the server", e.Name, outage.Lost, outage.Acknowledged)
	}
	return nil
}
