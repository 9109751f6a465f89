package bars

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

// figure is what one contender did under a load.
type figure struct {
	perSecond float64
	p50, p99  time.Duration
	answered  int64         // holds, those of the warm-up included
	serverCPU time.Duration // of the server, for one hold; filled in by whoever knows the server
}

// hold takes one unit of a lot for a user. It is called by all callers at once.
type hold func(ctx context.Context, lot drop.LotID, user string) error

// run puts the load on. The first error of any caller ends it.
func (l load) run(ctx context.Context, take hold) (figure, error) {
	runtime.GC() // what came before is not this contender's garbage
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	begin := time.Now().Add(l.warm)
	end := begin.Add(l.span)
	took := make([][]time.Duration, l.callers) // a slice each: callers do not wait for one another to take notes
	var users, answered atomic.Int64
	var callers sync.WaitGroup
	for c := range l.callers {
		callers.Go(func() {
			mine := int64(0)
			defer func() { answered.Add(mine) }()
			for ctx.Err() == nil {
				n := users.Add(1)
				lot, user := l.lots[n%int64(len(l.lots))], userName(n)
				asked := time.Now()
				if !asked.Before(end) {
					return
				}
				if err := take(ctx, lot, user); err != nil {
					stop(err)
					return
				}
				mine++
				if now := time.Now(); !now.Before(begin) && now.Before(end) {
					took[c] = append(took[c], now.Sub(asked))
				}
			}
		})
	}
	callers.Wait()
	if err := context.Cause(ctx); err != nil {
		return figure{}, err
	}
	f := l.figure(took)
	f.answered = answered.Load()
	if f.perSecond == 0 {
		return f, fault.New(fault.Failed, "nobody was answered within %s", l.span)
	}
	return f, nil
}

func (l load) figure(took [][]time.Duration) figure {
	latency := hdrhistogram.New(1, time.Minute.Microseconds(), 3)
	for _, list := range took {
		for _, d := range list {
			_ = latency.RecordValue(min(d.Microseconds(), latency.HighestTrackableValue())) // which it always takes
		}
	}
	at := func(quantile float64) time.Duration {
		return time.Duration(latency.ValueAtQuantile(quantile)) * time.Microsecond
	}
	return figure{perSecond: float64(latency.TotalCount()) / l.span.Seconds(), p50: at(50), p99: at(99)}
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
