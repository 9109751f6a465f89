package compare

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"strconv"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
)

// arena is where the models meet: servers of its own, which all of them use in turns.
type arena struct {
	effort
	o        Options
	postgres *lab.Postgres
	redis    *lab.Redis
	synced   *lab.Redis // nil unless a model asks for it
	shim     *lab.Shim  // nil until power is lost, or without a C compiler
	fragile  map[string]*lab.Redis
}

// openArena starts the servers. A Redis rewrites its append-only file only when it is told here, so that no model is
// hit by what another one wrote.
func openArena(ctx context.Context, o Options, e effort, synced bool) (_ *arena, err error) {
	a := &arena{effort: e, o: o, fragile: map[string]*lab.Redis{}}
	defer func() {
		if err != nil {
			a.close(ctx)
		}
	}()
	if a.postgres, err = lab.StartPostgres(ctx, lab.PostgresOptions{}); err != nil {
		return a, err
	}
	if a.redis, err = lab.StartRedis(ctx, redisOptions("everysec")); err != nil || !synced {
		return a, err
	}
	a.synced, err = lab.StartRedis(ctx, redisOptions("always"))
	return a, err
}

func redisOptions(fsync string) lab.RedisOptions {
	return lab.RedisOptions{Fsync: fsync, Directives: []string{"auto-aof-rewrite-percentage 0"}}
}

func (a *arena) close(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if a.postgres != nil {
		_ = a.postgres.Stop(ctx)
	}
	for _, server := range []*lab.Redis{a.redis, a.synced, a.fragile["everysec"], a.fragile["always"]} {
		if server != nil {
			_ = server.Stop(ctx)
		}
	}
	if a.shim != nil {
		a.shim.Remove()
	}
}

// dice are what is left to chance in a drill: the same for a seed and a model, whoever else takes part.
func (a *arena) dice(m Model) *rand.Rand {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(m.Name))
	return rand.New(rand.NewPCG(a.o.Seed, sum.Sum64()))
}

// redisOf returns the Redis of a model, nil if it works on PostgreSQL.
func (a *arena) redisOf(m Model) *lab.Redis {
	switch m.place {
	case onRedis:
		return a.redis
	case onRedisSynced:
		return a.synced
	}
	return nil
}

// enter empties the model's server, opens its shop and puts the lots on sale.
func (a *arena) enter(ctx context.Context, m Model, pool int, lots []drop.LotID, units int64) (shop, *counts, error) {
	return a.enterOn(ctx, a.redisOf(m), m, pool, lots, units)
}

func (a *arena) enterOn(ctx context.Context, redis *lab.Redis, m Model, pool int, lots []drop.LotID, units int64) (shop, *counts, error) {
	url := a.postgres.SocketURL(lab.Superuser, lab.Database)
	if redis != nil {
		url = redis.SocketURL()
		if err := redis.Empty(ctx); err != nil {
			return nil, nil, err
		}
	} else if _, err := a.postgres.SQL(ctx, lab.Database, "CHECKPOINT"); err != nil { // nobody writes another one's pages
		return nil, nil, err
	}
	count := &counts{}
	s, err := m.open(ctx, client{url, max(1, pool), count})
	if err != nil {
		return nil, nil, err
	}
	if err := s.Stock(ctx, lots, units); err != nil {
		return nil, nil, errors.Join(fault.Wrap(fault.Unavailable, err, "%s: putting the lots on sale", m.Name), s.Close())
	}
	return s, count, nil
}

// Round is what a model did in one round.
type Round struct {
	PerSecond   float64     `json:"accepted_per_second"`
	P50         bench.Span  `json:"p50_seconds"`
	P99         bench.Span  `json:"p99_seconds"`
	Accepted    int64       `json:"accepted"` // the warm-up included, as in all that follows
	Aborts      int64       `json:"aborts"`
	Retries     int64       `json:"retries"`
	LockWait    bench.Span  `json:"lock_wait_seconds"` // of all callers together
	CPU         *bench.Span `json:"cpu_seconds"`       // of the model's server; 0: less than the system counts; null: not known here
	Connections int         `json:"connections"`
	Oversold    int64       `json:"oversold"`
}

// play lets a model sell once.
func (a *arena) play(ctx context.Context, m Model, pool int, l load) (r Round, err error) {
	s, count, err := a.enter(ctx, m, pool, l.lots, a.o.Stock)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	meter, done, err := a.meterOf(ctx, m)
	if err != nil {
		return r, err
	}
	defer done()
	metering := meter.Begin(ctx)
	t, err := l.run(ctx, s)
	redis, postgres := metering.End(ctx, 1) // all that was used
	if err != nil {
		return r, fault.Wrap(fault.CodeOf(err), err, "%s", m.Name).WithHint("%s", fault.HintOf(err))
	}
	if m.place == onPostgres && postgres.LockWait == nil {
		return r, fault.New(fault.Unavailable, "the private PostgreSQL does not tell who waits for locks")
	}
	connections, err := a.connections(ctx, m, pool)
	return Round{
		PerSecond: t.perSecond, P50: t.p50, P99: t.p99, Accepted: t.accepted,
		Aborts: count.aborts.Load(), Retries: count.retries.Load(), LockWait: known(postgres.LockWait) + bench.Span(count.waited.Load()),
		CPU: cmp.Or(redis.CPU, postgres.CPU), Connections: connections, Oversold: t.oversold(a.o.Stock),
	}, err
}

// meterOf meters the model's server. The caller owes a call of done.
func (a *arena) meterOf(ctx context.Context, m Model) (_ bench.Meter, done func(), err error) {
	if redis := a.redisOf(m); redis != nil {
		return bench.MeterRedis(redis), func() {}, nil
	}
	return bench.MeterPostgres(ctx, a.postgres, lab.Database)
}

// known is 0 for what a server does not tell.
func known(s *bench.Span) bench.Span {
	if s == nil {
		return 0
	}
	return *s
}

// connections returns how many a model has: as many as it was given, or what it has taken of its own accord.
func (a *arena) connections(ctx context.Context, m Model, pool int) (int, error) {
	if pool > 0 {
		return pool, nil
	}
	info, err := a.redisOf(m).Info(ctx, "clients")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(info["connected_clients"])
	if err != nil {
		return 0, fault.Wrap(fault.Failed, err, "the private Redis does not tell its connections")
	}
	return n - 1, nil // less the one that asks
}

// mostConnections is what PostgreSQL lets in, less those who look on.
const mostConnections = 128

// luck is the share by which one short look may be worse than another by chance alone.
const luck = 0.05

// bestPool looks for the number of connections with which a model sells the most: from a likely one on upwards for as
// long as that may help, else downwards. A few short looks are enough, as near the best it matters little.
func (a *arena) bestPool(ctx context.Context, m Model) (int, error) {
	if m.pool == 0 {
		return 0, nil
	}
	l := load{a.o.Users, lotNames(a.o.Lots), a.warm, a.probe}
	speed := map[int]float64{}
	look := func(pool int) error {
		r, err := a.play(ctx, m, pool, l)
		if err == nil {
			a.o.Progress("  %s on %d connections: %.0f accepted/s, p99 %s", m.Name, pool, r.PerSecond, r.P99.Cell())
			speed[pool] = r.PerSecond
		}
		return err
	}
	best := m.pool
	if err := look(best); err != nil {
		return 0, err
	}
	for _, double := range []bool{true, false} {
		for pool := step(best, double); pool >= 1 && pool <= mostConnections; pool = step(pool, double) {
			if err := look(pool); err != nil {
				return 0, err
			}
			if speed[pool] < (1-luck)*speed[best] {
				break
			}
			if speed[pool] > speed[best] {
				best = pool
			}
		}
		if best != m.pool {
			break // it went up: what is below is known to be worse
		}
	}
	return best, nil
}

func step(pool int, double bool) int {
	if double {
		return 2 * pool
	}
	return pool / 2
}
