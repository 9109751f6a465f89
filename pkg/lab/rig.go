package lab

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// downTime is how long a killed server stays away: about as long as a supervisor waits.
const downTime = 500 * time.Millisecond

// Rig is what faults can be done to. Its methods are safe for concurrent use.
type Rig struct {
	Redis    *Redis
	Postgres *Postgres
	Worker   *Program // nil: there is none of its own

	// The proxies through which clients reach the servers; nil: directly, and no reply can be lost.
	RedisLink, PostgresLink *Proxy

	busy [3]sync.Mutex // one fault of a server itself after the other
}

// victim is a server that faults can be done to.
type victim interface {
	Kill() error
	Start(ctx context.Context) error
	Restart(ctx context.Context) error
}

// Do carries one fault out, now: At does not count. It returns when the fault is over and the server works again; a drop
// or delay without a length lasts until the context ends. What was begun is brought to its end even if the context ends.
func (r *Rig) Do(ctx context.Context, f Fault) error {
	if f.onReplies() || f.needsLink(f.Target) {
		return r.onLink(ctx, f)
	}
	who, turn := r.victim(f.Target)
	if who == nil {
		return fault.New(fault.Invalid, "the laboratory has no %s to %s", f.Target, f.Act)
	}
	turn.Lock()
	defer turn.Unlock()
	if ctx.Err() != nil {
		return fault.As(ctx.Err())
	}
	lasting := context.WithoutCancel(ctx)
	switch f.Act {
	case KillAct:
		if err := who.Kill(); err != nil {
			return err
		}
		wait(ctx, downTime)
		return who.Start(lasting)
	case RestartAct:
		return who.Restart(lasting)
	case PauseAct:
		return r.pause(ctx, f)
	case FlushAct:
		_, err := r.Redis.Do(ctx, "FLUSHALL")
		return err
	}
	return fault.New(fault.Invalid, "%q is no fault", f.Act)
}

func (r *Rig) pause(ctx context.Context, f Fault) error {
	var who interface {
		Pause() error
		Resume() error
	} = r.Redis
	if f.Target == WorkerTarget {
		who = r.Worker
	}
	if err := who.Pause(); err != nil {
		return err
	}
	wait(ctx, f.For)
	return who.Resume()
}

func (r *Rig) victim(target FaultTarget) (victim, *sync.Mutex) {
	switch {
	case target == RedisTarget && r.Redis != nil:
		return r.Redis, &r.busy[0]
	case target == PostgresTarget && r.Postgres != nil:
		return r.Postgres, &r.busy[1]
	case target == WorkerTarget && r.Worker != nil:
		return r.Worker, &r.busy[2]
	}
	return nil, nil
}

func (r *Rig) onLink(ctx context.Context, f Fault) error {
	link := r.RedisLink
	if f.Target == PostgresTarget {
		link = r.PostgresLink
	}
	if link == nil {
		return fault.New(fault.Invalid, "clients reach %s directly: nothing can happen on the way", f.Target)
	}
	switch f.Act {
	case DropAct:
		link.LoseReplies(f.Share)
		defer link.LoseReplies(0)
	case DelayAct:
		link.Delay(f.Delay)
		defer link.Delay(0)
	default:
		link.HoldRequests()
		link.CutReplies()
		defer link.Release()
	}
	wait(ctx, cmp.Or(f.For, maxFaultTime))
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// FaultReport says what became of one fault of a schedule.
type FaultReport struct {
	Fault string        `json:"fault" table:"FAULT"`
	Done  bool          `json:"done" table:"DONE"`         // false: it never began
	At    time.Duration `json:"at_seconds" table:"AT"`     // after the start
	Took  time.Duration `json:"took_seconds" table:"TOOK"` // until the server worked again
	Error string        `json:"error" table:"ERROR,ifset"` // of the server that did not come back
}

// Schedule carries the faults out, each at its time, until all are over or the context ends; those whose time has not come
// by then are not done. begun is called when one begins, it may be nil. The reports are in the order of the faults' times.
func (r *Rig) Schedule(ctx context.Context, faults []Fault, begun func(Fault)) ([]FaultReport, error) {
	faults = slices.SortedStableFunc(slices.Values(faults), func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	reports := make([]FaultReport, len(faults))
	errs := make([]error, len(faults))
	start := time.Now()
	var all sync.WaitGroup
	for i, f := range faults {
		reports[i].Fault = f.String()
		all.Go(func() {
			wait(ctx, f.At)
			if ctx.Err() != nil {
				return
			}
			if begun != nil {
				begun(f)
			}
			at := time.Now()
			errs[i] = r.Do(ctx, f)
			reports[i].Done, reports[i].At, reports[i].Took = true, at.Sub(start).Round(time.Millisecond), time.Since(at).Round(time.Millisecond)
			if errs[i] != nil {
				reports[i].Error = errs[i].Error()
			}
		})
	}
	all.Wait()
	return reports, errors.Join(errs...)
}
