package compare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
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

// longHold is longer than any round.
const longHold = 5 * time.Minute

// tally is what came of a load.
type tally struct {
	perSecond float64
	p50, p99  bench.Span
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

// crowd is a load while it runs: the target of the generator.
type crowd struct {
	load
	shop       shop
	begin, end time.Time
	stop       context.CancelCauseFunc
	accepted   []atomic.Int64 // of each lot
	over       []atomic.Bool  // each lot, as far as callers were told
	left       atomic.Int64   // lots that are not
}

// errSold ends a load before its time.
var errSold = errors.New("everything is sold")

// run puts the load on until the time is over or everything is sold.
func (l load) run(ctx context.Context, s shop) (tally, error) {
	runtime.GC() // what came before is not this model's garbage
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c := &crowd{load: l, shop: s, stop: stop, accepted: make([]atomic.Int64, len(l.lots)), over: make([]atomic.Bool, len(l.lots))}
	c.left.Store(int64(len(l.lots)))
	c.begin = time.Now().Add(l.warm)
	c.end = c.begin.Add(l.span)
	r := bench.Load{Users: l.callers, Warmup: l.warm, Duration: l.span}.Run(ctx, c)
	switch err := context.Cause(ctx); {
	case errors.Is(err, errSold) && r.Began.Before(c.begin):
		return tally{}, fault.New(fault.Failed, "everything was sold before the measured time began").WithHint("use more --stock or --lots")
	case err != nil && !errors.Is(err, errSold):
		return tally{}, err
	}
	return c.tally(r), nil
}

// Do asks for a unit.
func (c *crowd) Do(ctx context.Context, n int64) error {
	at := int(n) % len(c.lots)
	_, err := c.shop.Reserve(ctx, c.lots[at], userName(n), longHold)
	switch {
	case err == nil:
		c.accepted[at].Add(1)
	case fault.Is(err, fault.SoldOut):
		if !c.over[at].Swap(true) && c.left.Add(-1) == 0 {
			c.stop(errSold)
		}
	case time.Now().Before(c.end): // who is not served by the end has waited for nothing
		c.stop(wrong(err))
	}
	return err
}

func (c *crowd) tally(r bench.Result) (t tally) {
	for i := range c.accepted {
		t.ofEach = append(t.ofEach, c.accepted[i].Load())
		t.accepted += t.ofEach[i]
	}
	t.perSecond = r.AcceptedRate
	if r.Accepted.Count > 0 {
		t.p50, t.p99 = *r.Accepted.P50, *r.Accepted.P99
	}
	return t
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
