// Package bench measures what a target carries: it offers operations, waits for the answers, and says how long they took
// and what they cost.
//
// A load (generator.go) drives a target, which is the engine (engine.go) or anything else with a Do. In an open loop
// operations are due at a rate, whatever the answers, and each one's time runs from the moment at which it was due: a
// target that stands still makes everybody late who wanted something meanwhile, and so it is measured. In a closed loop
// each user asks again once he is answered; it finds the most that a target answers, and hides how long people would wait.
package bench

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Target is what is measured. Do carries out operation n and returns nil if it was accepted, a refusal (exit status 4) if a
// rule said no, else what failed. It is called by many goroutines at once. Numbers begin at 0 and never come twice in a run.
type Target interface {
	Do(ctx context.Context, n int64) error
}

// TargetFunc is a function that is a target.
type TargetFunc func(ctx context.Context, n int64) error

// Do calls the function.
func (f TargetFunc) Do(ctx context.Context, n int64) error { return f(ctx, n) }

// Noop is a target that accepts at once: what it is measured at, the generator can do at most.
var Noop = TargetFunc(func(context.Context, int64) error { return nil })

// Load is what a target is offered.
type Load struct {
	Rate     float64       // operations a second; 0: a closed loop
	Users    int           // closed loop: who ask at once; open loop: the most operations in flight
	Warmup   time.Duration // before the measured span
	Duration time.Duration // of the measured span
	Live     func(Second)  // told each second of the measured span, as it ends; may be nil
	Meter    Meter         // of the servers behind the target; the zero value tells nothing
}

const (
	maxRate  = 10_000_000
	maxUsers = 100_000
	// patience is how long what is in flight at the end may take before it is given up.
	patience = 10 * time.Second
)

// Check reports what is wrong with a load: Usage, with the field.
func (l Load) Check() error {
	switch {
	case !(l.Rate >= 0 && l.Rate <= maxRate): // NaN is neither
		return fault.New(fault.Usage, "a rate of %v is out of range", l.Rate).WithField("rate").WithHint("use operations a second, up to %d", maxRate)
	case l.Users < 1 || l.Users > maxUsers:
		return fault.New(fault.Usage, "%d users are out of range", l.Users).WithField("users").WithHint("use 1 to %d", maxUsers)
	case l.Warmup < 0:
		return fault.New(fault.Usage, "a warm-up of %s cannot be", l.Warmup).WithField("warmup").WithHint("use 0s for none")
	case l.Duration < 100*time.Millisecond:
		return fault.New(fault.Usage, "a run of %s measures nothing", l.Duration).WithField("duration").WithHint("use 10s or more")
	}
	return nil
}

// generator is a load on its way.
type generator struct {
	Load
	target   Target
	notes    *recorder
	metering *Metering // of the measured span
	start    time.Time // of the warm-up
	begin    time.Time // of the measured span
	end      time.Time
	number   atomic.Int64 // of the next operation
	due      atomic.Int64 // operations so far, dropped ones included
	dropped  atomic.Int64
}

// Run puts the load on and returns what it found. Whatever the target answers is a finding and no error. When ctx ends, no
// more is asked, what is in flight is waited for, and the result holds what was measured until then.
func (l Load) Run(ctx context.Context, target Target) Result {
	g := &generator{Load: l, target: target, notes: newRecorder()}
	if l.Warmup == 0 {
		g.metering = l.Meter.Begin(ctx)
	}
	g.start = time.Now()
	g.begin = g.start.Add(l.Warmup)
	g.end = g.begin.Add(l.Duration)
	// What was asked is to be answered even if nobody may ask any more: an operation cut off is one whose outcome is unknown.
	within, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	var users sync.WaitGroup
	if l.Rate > 0 {
		g.open(ctx, within, &users)
	} else {
		g.closed(ctx, within, &users)
	}
	return g.watch(ctx, func() {
		late := time.AfterFunc(patience, giveUp)
		defer late.Stop()
		users.Wait()
	})
}

// Demand is Run for a target that has to accept everything: the first error ends the run and is returned.
func (l Load) Demand(ctx context.Context, target Target) (Result, error) {
	runtime.GC() // what came before is not this target's garbage
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := l.Run(ctx, TargetFunc(func(ctx context.Context, n int64) error {
		err := target.Do(ctx, n)
		if err != nil {
			stop(err)
		}
		return err
	}))
	return r, context.Cause(ctx)
}

// closed lets every user ask, and ask again once he is answered.
func (g *generator) closed(ctx, within context.Context, users *sync.WaitGroup) {
	for u := range g.Users {
		users.Go(func() {
			notes := g.notes.of(u)
			for asked := time.Now(); asked.Before(g.end) && ctx.Err() == nil; {
				g.due.Add(1)
				err := g.target.Do(within, g.number.Add(1)-1)
				now := time.Now()
				notes.answer(now.Sub(asked), err)
				asked = now
			}
		})
	}
}

// operation is one that is due.
type operation struct {
	n   int64
	due time.Time
}

// open offers operations when they are due. It drops one that finds everybody busy.
func (g *generator) open(ctx, within context.Context, users *sync.WaitGroup) {
	operations := make(chan operation, g.Users)
	var inFlight atomic.Int64
	for u := range g.Users {
		users.Go(func() {
			notes := g.notes.of(u)
			for op := range operations {
				notes.late(time.Since(op.due))
				err := g.target.Do(within, op.n)
				notes.answer(time.Since(op.due), err)
				inFlight.Add(-1)
			}
		})
	}
	users.Go(func() {
		defer close(operations)
		for n := int64(0); ; n++ {
			due := g.start.Add(time.Duration(float64(n) / g.Rate * float64(time.Second)))
			if !due.Before(g.end) || !sleepUntil(ctx, due) {
				return
			}
			g.due.Add(1)
			if inFlight.Load() >= int64(g.Users) {
				g.dropped.Add(1)
				continue
			}
			inFlight.Add(1)
			operations <- operation{n, due}
		}
	})
}

// nap bounds a sleep, so that an interruption is seen soon.
const nap = 20 * time.Millisecond

// sleepUntil waits for a moment and reports false if ctx ends before.
func sleepUntil(ctx context.Context, t time.Time) bool {
	for {
		left := time.Until(t)
		if left <= 0 {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		sleep(min(left, nap))
	}
}
