package bars

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
)

// callers is how many ask at once, where nothing else is said.
const callers = 256

// poolSizes are those among which the plain pattern finds its best.
var poolSizes = []int{8, 16, 32, 64, 128, 256}

// pipelines are the ways to set up AutoPipeline among which it finds its best.
var pipelines = []contender{
	autoPipeline("defaults", *redis.DefaultBlockingAutoPipelineOptions()),
	autoPipeline("small batches", redis.AutoPipelineOptions{MaxBatchSize: 64}),
	autoPipeline("100 µs delay", redis.AutoPipelineOptions{MaxBatchSize: 300, MaxFlushDelay: 100 * time.Microsecond}),
	autoPipeline("2 batches at once", redis.AutoPipelineOptions{MaxBatchSize: 300, MaxConcurrentBatches: 2, Unordered: true}),
	autoPipeline("4 batches at once", redis.AutoPipelineOptions{MaxBatchSize: 300, MaxConcurrentBatches: 4, Unordered: true}),
	autoPipeline("full duplex", redis.AutoPipelineOptions{MaxBatchSize: 300, FullDuplex: true}),
	autoPipeline("full duplex on 2", redis.AutoPipelineOptions{MaxBatchSize: 300, FullDuplex: true, NumShards: 2}),
}

// arena is the server on which contenders meet.
type arena struct {
	server *lab.Redis
	effort effort
	tell   func(format string, args ...any)
}

// openArena starts the server. Its append-only file is on and synced every second, as in production; only when it is
// rewritten is decided here, so that no contender is hit by what another one wrote.
func (r *run) openArena(ctx context.Context) (*arena, func(), error) {
	server, err := lab.StartRedis(ctx, lab.RedisOptions{Directives: []string{"auto-aof-rewrite-percentage 0"}})
	if err != nil {
		return nil, nil, err
	}
	return &arena{server, r.effort, r.Progress}, func() { _ = server.Stop(context.WithoutCancel(ctx)) }, nil
}

// match is a contender under a load, and what it did in the rounds so far.
type match struct {
	name string // of its rows
	contender
	callers int
	lots    []drop.LotID
	figures []figure
}

func (m *match) perSecond() float64 {
	return m.median(func(f figure) float64 { return f.perSecond })
}

// p99 is in milliseconds.
func (m *match) p99() float64 {
	return m.median(func(f figure) float64 { return float64(f.p99) / float64(time.Millisecond) })
}

func (m *match) median(of func(figure) float64) float64 {
	var values []float64
	for _, f := range m.figures {
		values = append(values, of(f))
	}
	return Median(values)
}

// rows show the absolute figures behind the bars.
func (m *match) rows() []Row {
	cpu := m.median(func(f figure) float64 { return float64(f.serverCPU) / float64(time.Microsecond) })
	return []Row{
		info(m.name+".throughput", m.perSecond(), "holds/s", m.contender.name),
		info(m.name+".p99", m.p99(), "ms", m.contender.name),
		info(m.name+".redis-cpu", cpu, "µs/hold", m.contender.name),
	}
}

// play lets a contender run once on the emptied server.
func (a *arena) play(ctx context.Context, c contender, l load) (_ figure, err error) {
	if err := a.server.Empty(ctx); err != nil {
		return figure{}, err
	}
	take, done, err := c.open(ctx, a.server, l.lots)
	if err != nil {
		return figure{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	l.meter = bench.MeterRedis(a.server)
	return l.run(ctx, take)
}

// finalists is how many contenders are looked at twice: one short look can be anybody's luck.
const finalists = 3

// fastest returns the contender that takes the most holds under a short load. One whose options do not work with this
// server is out.
func (a *arena) fastest(ctx context.Context, l load, list []contender) (contender, error) {
	speed := map[string]float64{}
	var last error
	look := func(list []contender) {
		for _, c := range list {
			f, err := a.play(ctx, c, l)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				last = err
				a.tell("  %s: %s", c.name, err.Error())
				continue
			}
			a.tell("  %s: %.0f holds/s, p99 %s", c.name, f.perSecond, f.p99)
			speed[c.name] += f.perSecond
		}
	}
	bySpeed := func(x, y contender) int { return cmp.Compare(speed[y.name], speed[x.name]) }
	look(list)
	best := slices.SortedFunc(slices.Values(list), bySpeed)
	best = best[:min(finalists, len(best))]
	look(best)
	slices.SortFunc(best, bySpeed)
	if ctx.Err() != nil {
		return contender{}, context.Cause(ctx)
	}
	if speed[best[0].name] == 0 {
		return contender{}, fault.Wrap(fault.Failed, last, "no baseline could be measured")
	}
	return best[0], nil
}

// baselines finds both baselines at their best for these lots.
func (a *arena) baselines(ctx context.Context, lots []drop.LotID) (plainBest, pipelineBest contender, err error) {
	a.tell("looking for the baselines at their best: lots %d, callers %d", len(lots), callers)
	l := load{callers: callers, lots: lots, warm: a.effort.warm, span: a.effort.probe}
	var pools []contender
	for _, size := range poolSizes {
		pools = append(pools, plain(size))
	}
	if plainBest, err = a.fastest(ctx, l, pools); err != nil {
		return
	}
	pipelineBest, err = a.fastest(ctx, l, pipelines)
	return
}

// rounds lets the matches take turns. Every other round goes backwards, so that nobody always follows the same one.
func (r *run) rounds(ctx context.Context, a *arena, matches []*match) error {
	for round := range r.Rounds {
		for i := range matches {
			m := matches[i]
			if round%2 == 1 {
				m = matches[len(matches)-1-i]
			}
			f, err := a.play(ctx, m.contender, load{callers: m.callers, lots: m.lots, warm: a.effort.warm, span: a.effort.span})
			if err != nil {
				return err
			}
			a.tell("  round %d of %d, %s: %.0f holds/s, p50 %s, p99 %s, %s of Redis each", round+1, r.Rounds, m.name, f.perSecond, f.p50, f.p99, f.serverCPU)
			m.figures = append(m.figures, f)
		}
	}
	return nil
}

// hotLot: everybody wants the same lot.
func (r *run) hotLot(ctx context.Context) ([]Row, error) {
	a, done, err := r.openArena(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	lots := lotNames(1)
	plainBest, pipelineBest, err := a.baselines(ctx, lots)
	if err != nil {
		return nil, err
	}
	ours := &match{name: "hot-lot.dropctl", contender: engine, callers: callers, lots: lots}
	plain := &match{name: "hot-lot.plain", contender: plainBest, callers: callers, lots: lots}
	pipe := &match{name: "hot-lot.autopipeline", contender: pipelineBest, callers: callers, lots: lots}
	r.Progress("measuring: lots 1, callers %d", callers)
	matches := []*match{ours, plain, pipe}
	if err := r.rounds(ctx, a, matches); err != nil {
		return nil, err
	}
	least, err := a.play(ctx, floor, load{callers: callers, lots: lots, warm: a.effort.warm, span: a.effort.span})
	if err != nil {
		return nil, err
	}
	times := ours.perSecond() / plain.perSecond()
	rows := []Row{
		AtLeast("hot-lot.throughput-over-plain", 2.8, times, "times"),
		Aim("hot-lot.throughput-over-plain.aim", 3.5, times, "times"),
		AtMost("hot-lot.p99-over-plain", 0.5, ours.p99()/plain.p99(), "times"),
		AtLeast("hot-lot.throughput-over-autopipeline", 1.6, ours.perSecond()/pipe.perSecond(), "times"),
	}
	rows = append(rows, details(matches)...)
	return append(rows, info("hot-lot.floor.redis-cpu", float64(least.serverCPU)/float64(time.Microsecond), "µs", floor.name)), nil
}

// manyLots: the same callers, and then a crowd, spread over many lots.
func (r *run) manyLots(ctx context.Context) ([]Row, error) {
	a, done, err := r.openArena(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	one, many := lotNames(1), lotNames(r.lots)
	plainBest, pipelineBest, err := a.baselines(ctx, many)
	if err != nil {
		return nil, err
	}
	hot := &match{name: "many-lots.dropctl-on-one-lot", contender: engine, callers: callers, lots: one}
	ours := &match{name: "many-lots.dropctl", contender: engine, callers: callers, lots: many}
	plain := &match{name: "many-lots.plain", contender: plainBest, callers: callers, lots: many}
	pipe := &match{name: "many-lots.autopipeline", contender: pipelineBest, callers: callers, lots: many}
	crowd := &match{name: "many-lots.dropctl-crowd", contender: engine, callers: r.crowd, lots: many}
	r.Progress("measuring: lots %d, callers %d and %d", len(many), callers, r.crowd)
	matches := []*match{hot, ours, plain, pipe, crowd}
	if err := r.rounds(ctx, a, matches); err != nil {
		return nil, err
	}
	rows := []Row{
		AtLeast("many-lots.throughput-over-best-baseline", 1, ours.perSecond()/max(plain.perSecond(), pipe.perSecond()), "times"),
		AtLeast("many-lots.crowd-over-one-lot", 0.55, crowd.perSecond()/hot.perSecond(), "times"),
	}
	return append(rows, details(matches)...), nil
}

func details(matches []*match) []Row {
	var rows []Row
	for _, m := range matches {
		rows = append(rows, m.rows()...)
	}
	return rows
}
