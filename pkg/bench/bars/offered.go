package bars

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	offeredMost   = 200_000 // operations a second: more than the bar asks for
	offeredEvenly = 20_000  // at which rate the generator must be on time
	mostInFlight  = 1024    // as bench engine and bench http have by default
)

// generator: what the load generator of bench engine and bench http does by itself. It must be faster, and more on time, than
// what it measures.
func (r *run) generator(ctx context.Context) ([]Row, error) {
	r.Progress("measuring the load generator: a target that does nothing")
	var achieved, late []float64
	for round := range r.Rounds {
		most := bench.Load{Rate: offeredMost, Users: mostInFlight, Warmup: r.warm, Duration: r.span}.Run(ctx, bench.Noop)
		even := bench.Load{Rate: offeredEvenly, Users: mostInFlight, Warmup: r.warm, Duration: r.span}.Run(ctx, bench.Noop)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if even.Lateness.P99 == nil {
			return nil, fault.New(fault.Failed, "the generator started nothing within %s", r.span)
		}
		achieved = append(achieved, most.Achieved)
		late = append(late, float64(*even.Lateness.P99)/float64(time.Millisecond))
		r.Progress("  round %d of %d: %.0f operations/s of %d asked for; at %d/s %.3f ms late (p99)", round+1, r.Rounds, most.Achieved, offeredMost, offeredEvenly, late[len(late)-1])
	}
	return []Row{
		AtLeast("generator.throughput", 150_000, Median(achieved), "operations/s"),
		AtMost("generator.late-p99", 1, Median(late), "ms"),
	}, nil
}
