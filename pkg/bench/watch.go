package bench

import (
	"context"
	"time"
)

// slack is the share of a rate that may be missed.
const slack = 0.01

// count is how much the generator had offered at a moment.
type count struct{ due, dropped int64 }

func (g *generator) counted() count { return count{g.due.Load(), g.dropped.Load()} }

// watch turns the page second by second and adds up. Everything that is answered from the begin of the measured span on
// counts; what was in flight at its end and is answered then belongs to the last second, but not to what was achieved.
func (g *generator) watch(ctx context.Context, drain func()) Result {
	begun, from := g.start, count{}
	if g.Warmup > 0 {
		waitUntil(ctx, g.begin)
		g.metering = g.Meter.Begin(ctx)
		g.notes.turn() // nobody reads it
		begun, from = time.Now(), g.counted()
	}
	start, all, last := from, newPage(), newPage()
	r := Result{Version: ResultVersion, Loop: ClosedLoop, Users: g.Users, Began: begun.UTC(), Audit: Audit{Verdict: AuditNone}}
	for over := false; !over; {
		next := begun.Add(time.Duration(len(r.Seconds)+1) * time.Second)
		if over = !next.Before(g.end); over {
			next = g.end
		}
		over = !waitUntil(ctx, next) || over
		now := g.counted()
		last = g.notes.turn()
		all.add(last)
		r.Seconds = append(r.Seconds, secondOf(len(r.Seconds)+1, from, now, last))
		if g.Live != nil {
			g.Live(r.Seconds[len(r.Seconds)-1])
		}
		from = now
	}
	stopped := time.Now()
	r.Interrupted = stopped.Before(g.end)
	if !r.Interrupted && begun.Before(g.end) {
		stopped = g.end // nobody asked any more while the last page was turned
	}
	g.rate(&r, all, count{from.due - start.due, from.dropped - start.dropped}, stopped.Sub(begun))
	drain()
	tail := g.notes.turn()
	last.add(tail)
	all.add(tail)
	r.Seconds[len(r.Seconds)-1] = r.Seconds[len(r.Seconds)-1].with(last)
	r.Accepted, r.Refused, r.Lateness = LatencyOf(all.accepted), LatencyOf(all.refused), LatencyOf(all.lateness)
	r.Errors, r.Examples = all.errors, all.examples
	r.Redis, r.Postgres = g.metering.End(ctx, r.Answered())
	g.Meter.explain(&r)
	return r
}

// rate fills in what was offered and what was achieved. An open loop is behind if more than 1 % of what was due was neither
// accepted nor refused within the span. A single operation is never the reason, since one is always on its way; with more of
// them on their way, a warm-up lets as many arrive from before the span as are missing at its end.
func (g *generator) rate(r *Result, in *page, offered count, took time.Duration) {
	r.Took, r.Dropped = Span(took), offered.dropped
	answered := in.answers()
	if took > 0 && !r.Began.Before(g.begin) { // who was interrupted in the warm-up has no rate
		r.Achieved, r.AcceptedRate = float64(answered)/took.Seconds(), float64(in.accepted.TotalCount())/took.Seconds()
	}
	r.Offered = r.Achieved
	if g.Rate > 0 {
		r.Loop, r.Offered = OpenLoop, g.Rate
		r.Behind = float64(offered.due-answered) > 1+slack*float64(offered.due)
	}
}

func secondOf(n int, from, to count, p *page) Second {
	return Second{Second: n, Offered: to.due - from.due, Dropped: to.dropped - from.dropped}.with(p)
}

// with returns the second with the answers of a page.
func (s Second) with(p *page) Second {
	s.Accepted, s.Refused, s.Errors = AnswersOf(p.accepted), AnswersOf(p.refused), p.failed()
	return s
}

// waitUntil waits for a moment and reports false if ctx ends before.
func waitUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
