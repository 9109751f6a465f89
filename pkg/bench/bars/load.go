package bars

import (
	"context"
	"fmt"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// load is a number of callers who ask for a unit each, again and again. No user comes twice, and the users are spread
// evenly over the lots.
type load struct {
	callers    int
	lots       []drop.LotID
	rate       float64 // requests a second, whatever the answers; 0: each caller asks again as soon as he is answered
	warm, span time.Duration
	meter      bench.Meter // of the server; the zero value tells nothing
	from       int64       // number of the first user
}

// figure is what one contender did under a load.
type figure struct {
	perSecond float64
	p50, p99  time.Duration
	serverCPU time.Duration // of the server, for one hold; 0 if it was not metered
}

// hold takes one unit of a lot for a user. It is called by all callers at once.
type hold func(ctx context.Context, lot drop.LotID, user string) error

// run puts the load on. The first error of any caller ends it. Where a span is so short, or the machine so busy, that nobody is
// answered, it tries a longer one.
func (l load) run(ctx context.Context, take hold) (figure, error) {
	offered := bench.Load{Rate: l.rate, Users: l.callers, Warmup: l.warm, Duration: l.span, Meter: l.meter}
	r, err := offered.Demand(ctx, bench.TargetFunc(func(ctx context.Context, n int64) error {
		return take(ctx, l.lots[n%int64(len(l.lots))], userName(l.from+n))
	}))
	if err != nil {
		return figure{}, err
	}
	if r.AcceptedRate == 0 && l.span < 10*time.Second {
		l.span *= 5
		l.from += 5_000_000 // the users before may have been served after all
		return l.run(ctx, take)
	}
	if r.AcceptedRate == 0 {
		return figure{}, fault.New(fault.Failed, "nobody was answered within %s", l.span)
	}
	f := figure{perSecond: r.AcceptedRate, p50: time.Duration(*r.Accepted.P50), p99: time.Duration(*r.Accepted.P99)}
	if r.Redis.CPU != nil {
		f.serverCPU = time.Duration(*r.Redis.CPU)
	}
	return f, nil
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
