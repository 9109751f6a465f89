package bench

import (
	"context"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// Meter tells what a run costs of its servers, whoever else uses them included. What it has not, or what does not answer, is
// left out of the cost: no run fails for it.
type Meter struct {
	Redis interface {
		Usage(context.Context) (stock.Usage, error)
	}
	Postgres interface {
		Activity(context.Context) (ledger.Activity, error)
	}
	PostgresPID int // of a private server on this machine; 0 for one elsewhere, whose processor time nobody tells
}

const (
	// sampleEvery is how often somebody looks who waits for a lock: often enough for a run of seconds, and seldom enough to
	// cost a server next to nothing.
	sampleEvery = 50 * time.Millisecond
	// meterPatience bounds each look, so that a server that stands still delays a result only a little.
	meterPatience = 2 * time.Second
)

// Metering is a run that is being metered.
type Metering struct {
	meter    Meter
	redis    *stock.Usage // at the beginning; nil if it did not tell
	postgres *ledger.Activity
	cpu      *time.Duration
	stop     context.CancelFunc
	sampling sync.WaitGroup
	locks    lockSamples
}

// lockSamples adds up what was seen of sessions that wait for locks: how many there were, times how long until the next look.
type lockSamples struct {
	waited time.Duration
	looks  int64 // each is a transaction of our own
	blind  bool  // not everything could be seen
}

// Begin notes how things stand. End has to be called.
func (m Meter) Begin(ctx context.Context) *Metering {
	r := &Metering{meter: m, redis: m.usage(ctx), cpu: m.postgresCPU()}
	if r.postgres = m.activity(ctx); r.postgres != nil {
		var within context.Context
		within, r.stop = context.WithCancel(ctx)
		r.sampling.Go(func() { r.sample(within) })
	}
	return r
}

// End returns what was used since, for each of so many operations.
func (r *Metering) End(ctx context.Context, operations int64) (redis RedisCost, postgres PostgresCost) {
	if r.stop != nil {
		r.stop()
		r.sampling.Wait()
	}
	ctx = context.WithoutCancel(ctx) // an interrupted run has its cost as well
	if operations == 0 {
		return redis, postgres
	}
	share := per(operations)
	if now := r.meter.usage(ctx); now != nil && r.redis != nil {
		redis = r.redisCost(*now, share)
	}
	if now := r.meter.postgresCPU(); now != nil && r.cpu != nil && *now >= *r.cpu {
		postgres.CPU = share.of(*now - *r.cpu)
	}
	if now := r.meter.activity(ctx); now != nil && r.postgres != nil {
		r.postgresCost(&postgres, *now, share)
	}
	return redis, postgres
}

// explain notes why what the servers cost is not known, as far as they were metered.
func (m Meter) explain(r *Result) {
	unknown := func(figure, why string) {
		if r.Answered() == 0 {
			why = "not a single operation was answered"
		}
		r.Unknown(figure, why)
	}
	if m.Redis != nil && r.Redis.CPU == nil {
		unknown("redis", "Redis does not tell it, did not answer, or was restarted meanwhile")
	}
	switch {
	case m.Postgres == nil:
	case r.Postgres.Transactions == nil:
		unknown("postgres", "PostgreSQL did not answer")
	default:
		if r.Postgres.CPU == nil {
			unknown("postgres.cpu_seconds_per_operation", "only that of a private PostgreSQL on Linux can be seen")
		}
		if r.Postgres.LockWait == nil {
			unknown("postgres.lock_wait_seconds_per_operation", "the role does not see other sessions: grant it pg_read_all_stats")
		}
	}
}

// per is how many operations something is shared by.
type per int64

func (n per) of(d time.Duration) *Span { return new(Span(d) / Span(n)) }

func (n per) share(count int64) *float64 { return new(float64(count) / float64(n)) }

func (r *Metering) redisCost(now stock.Usage, share per) (cost RedisCost) {
	if now.CPU < r.redis.CPU { // restarted meanwhile
		return cost
	}
	if r.redis.CPU > 0 {
		cost.CPU = share.of(now.CPU - r.redis.CPU)
	}
	if now.Calls == nil {
		return cost
	}
	cost.ByCommand = map[string]float64{}
	var sum int64
	for command, calls := range now.Calls {
		if calls -= r.redis.Calls[command]; calls > 0 && command != "info" { // that is how the meter asks
			sum += calls
			cost.ByCommand[command] = *share.share(calls)
		}
	}
	cost.Commands = share.share(sum)
	return cost
}

func (r *Metering) postgresCost(cost *PostgresCost, now ledger.Activity, share per) {
	if commits, rollbacks := now.Commits-r.postgres.Commits, now.Rollbacks-r.postgres.Rollbacks; commits >= 0 && rollbacks >= 0 {
		cost.Transactions = share.share(max(0, commits+rollbacks-r.locks.looks))
		cost.Rollbacks = share.share(rollbacks)
	}
	if !r.locks.blind {
		cost.LockWait = share.of(r.locks.waited)
	}
}

// sample looks again and again who waits for a lock. It is an estimate, but it sees every wait, which the log of lock waits
// (only long ones) and the view of locks (not since when) do not.
func (r *Metering) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		seen := r.meter.activity(ctx)
		if ctx.Err() != nil {
			return
		}
		if seen == nil || seen.Hidden {
			r.locks.blind = true
			return
		}
		now := time.Now()
		r.locks.waited += time.Duration(seen.Waiting) * now.Sub(last)
		r.locks.looks++
		last = now
	}
}

func (m Meter) usage(ctx context.Context) *stock.Usage {
	if m.Redis == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, meterPatience)
	defer cancel()
	u, err := m.Redis.Usage(ctx)
	if err != nil {
		return nil
	}
	return &u
}

func (m Meter) activity(ctx context.Context) *ledger.Activity {
	if m.Postgres == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, meterPatience)
	defer cancel()
	a, err := m.Postgres.Activity(ctx)
	if err != nil {
		return nil
	}
	return &a
}

func (m Meter) postgresCPU() *time.Duration {
	if m.PostgresPID == 0 {
		return nil
	}
	used, err := CPUOf(m.PostgresPID)
	if err != nil {
		return nil
	}
	return &used
}
