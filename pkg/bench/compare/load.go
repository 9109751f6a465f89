package compare

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// load is a number of callers, each of whom asks again as soon as he is answered. No user comes twice, and the users
// are spread evenly over the lots.
type load struct {
	callers    int
	lots       []drop.LotID
	warm, span time.Duration
}

// A hold lasts for longer than any round; how long one waits at most for the last answers after the end of a round.
const (
	longHold = 5 * time.Minute
	patience = 10 * time.Second
)

// tally is what came of a load.
type tally struct {
	perSecond float64
	p50, p99  time.Duration
	accepted  int64   // in all, the warm-up included
	ofEach    []int64 // lot
}

// oversold counts the units that were handed out beyond what each lot had.
func (t tally) oversold(stock int64) (units int64) {
	for _, n := range t.ofEach {
		units += max(0, n-stock)
	}
	return units
}

// crowd is a load while it runs.
type crowd struct {
	load
	shop       shop
	begin, end time.Time
	users      atomic.Int64
	accepted   []atomic.Int64 // of each lot
	soldOut    atomic.Int64   // lots, as far as callers were told; a lot may be counted more than once
	over       []atomic.Bool
	last       atomic.Int64 // when the last one of the measured was answered, in nanoseconds after begin
}

// run puts the load on until the time is over or everything is sold.
func (l load) run(ctx context.Context, s shop) (tally, error) {
	runtime.GC() // what came before is not this model's garbage
	c := &crowd{load: l, shop: s, accepted: make([]atomic.Int64, len(l.lots)), over: make([]atomic.Bool, len(l.lots))}
	c.begin = time.Now().Add(l.warm)
	c.end = c.begin.Add(l.span)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late, cancel := context.WithDeadline(ctx, c.end.Add(patience))
	defer cancel()
	took := make([][]time.Duration, l.callers) // a slice each: callers do not wait for one another to take notes
	var callers sync.WaitGroup
	for i := range took {
		callers.Go(func() {
			if err := c.call(late, &took[i]); err != nil {
				stop(err)
			}
		})
	}
	callers.Wait()
	if err := context.Cause(ctx); err != nil {
		return tally{}, err
	}
	return c.tally(took)
}

// call asks for one unit after another.
func (c *crowd) call(ctx context.Context, took *[]time.Duration) error {
	for ctx.Err() == nil && c.soldOut.Load() < int64(len(c.lots)) {
		n := c.users.Add(1)
		at := int(n) % len(c.lots)
		asked := time.Now()
		if !asked.Before(c.end) {
			return nil
		}
		_, err := c.shop.Reserve(ctx, c.lots[at], userName(n), longHold)
		now := time.Now()
		switch {
		case fault.Is(err, fault.SoldOut):
			if !c.over[at].Swap(true) {
				c.soldOut.Add(1)
			}
		case err != nil && now.After(c.end): // who is not served by the end has waited for nothing
			return nil
		case err != nil:
			return wrong(err)
		default:
			c.accepted[at].Add(1)
			if !now.Before(c.begin) && now.Before(c.end) {
				*took = append(*took, now.Sub(asked))
				c.last.Store(int64(now.Sub(c.begin)))
			}
		}
	}
	return context.Cause(ctx)
}

func (c *crowd) tally(took [][]time.Duration) (t tally, err error) {
	latency := hdrhistogram.New(1, time.Minute.Microseconds(), 3)
	for _, list := range took {
		for _, d := range list {
			_ = latency.RecordValue(min(d.Microseconds(), latency.HighestTrackableValue())) // which it always takes
		}
	}
	for i := range c.accepted {
		t.ofEach = append(t.ofEach, c.accepted[i].Load())
		t.accepted += t.ofEach[i]
	}
	span := c.span
	if c.soldOut.Load() >= int64(len(c.lots)) {
		if span = time.Duration(c.last.Load()); span <= 0 {
			return t, fault.New(fault.Failed, "everything was sold before the measured time began").WithHint("use more --stock or --lots")
		}
	}
	at := func(quantile float64) time.Duration {
		return time.Duration(latency.ValueAtQuantile(quantile)) * time.Microsecond
	}
	t.perSecond, t.p50, t.p99 = float64(latency.TotalCount())/span.Seconds(), at(50), at(99)
	return t, nil
}

// wrong wraps what a driver reports; a refusal that nothing called for is as wrong.
func wrong(err error) error {
	if refused(err) {
		return fault.Wrap(fault.Failed, err, "a refusal without a reason")
	}
	return fault.Wrap(fault.Unavailable, err, "a private server")
}

// userName makes names of 12 bytes, about as long as those of people and their numbers.
func userName(n int64) string { return fmt.Sprintf("buyer%07d", n) }

// lotNames makes the names of n lots.
func lotNames(n int) []drop.LotID {
	lots := make([]drop.LotID, n)
	for i := range lots {
		lots[i] = drop.LotID(fmt.Sprintf("lot-%04d", i))
	}
	return lots
}
