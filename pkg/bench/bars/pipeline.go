package bars

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

const (
	throttled   = 2000      // events a second of all workers together, by default
	unthrottled = 1_000_000 // what no machine writes
	fastEnough  = 15_000    // events a second that nobody has to beat
	lookEvery   = 10 * time.Millisecond
	share       = 500 // tokens: with fewer left the workers wait for the limit
)

// pipeline: what a worker process does from the outbox to the ledger, its whole way: how fast it may be, how well it keeps to
// its limit, and what a sale costs of PostgreSQL's processor.
func (r *run) pipeline(ctx context.Context) ([]Row, error) {
	var rows []Row
	// What one part leaves to clean up, PostgreSQL must not be charged with in the next: each has servers of its own.
	for _, part := range [][]func(context.Context, *plant) ([]Row, error){{r.fullSpeed, r.keepsToTheLimit}, {r.costOfASale}} {
		p, done, err := r.openPlant(ctx)
		if err != nil {
			return nil, err
		}
		for _, measure := range part {
			more, err := measure(ctx, p)
			if err != nil {
				done()
				return nil, err
			}
			rows = append(rows, more...)
		}
		done()
	}
	return rows, nil
}

// plant is a whole shop on private servers, and a look into its database.
type plant struct {
	redis    *lab.Redis
	postgres *lab.Postgres
	ledger   *ledger.Ledger
	stock    *stock.Stock
	conn     *pgx.Conn
	env      []string // of a worker process
	lots     []drop.LotID
}

func (r *run) openPlant(ctx context.Context) (_ *plant, done func(), err error) {
	r.Progress("starting Redis and PostgreSQL")
	servers, err := lab.Start(ctx, lab.RedisOptions{Directives: []string{"auto-aof-rewrite-percentage 0"}}, lab.PostgresOptions{})
	if err != nil {
		return nil, nil, err
	}
	p := &plant{redis: servers.Redis, postgres: servers.Postgres, lots: lotNames(applyLots)}
	done = func() {
		p.close()
		_ = servers.Stop(context.WithoutCancel(ctx))
	}
	if err := p.open(ctx); err != nil {
		done()
		return nil, nil, err
	}
	return p, done, nil
}

func (p *plant) open(ctx context.Context) (err error) {
	owner := ledger.Options{URL: p.postgres.URL(lab.Owner, lab.Database)}
	if _, err := ledger.MigrateUp(ctx, owner, ledger.MigrateOptions{AppRole: string(lab.App)}); err != nil {
		return err
	}
	app := p.postgres.SocketURL(lab.App, lab.Database)
	if p.ledger, err = ledger.Open(ctx, ledger.Options{URL: app}); err != nil {
		return err
	}
	if p.conn, err = pgx.Connect(ctx, app); err != nil {
		return fault.Wrap(fault.Unavailable, err, "connecting to the private PostgreSQL")
	}
	in := p.ledger.Installation()
	if p.stock, err = stock.Open(stock.Options{URL: p.redis.SocketURL(), Installation: in.ID, Shards: in.Shards, OutboxMaxBytes: 1 << 40}); err != nil {
		return err
	}
	for _, lot := range p.lots {
		if err := seedLot(ctx, p.stock, p.ledger, lot); err != nil {
			return err
		}
	}
	p.env = []string{"DROPCTL_REDIS_URL=" + p.redis.SocketURL(), "DROPCTL_DATABASE_URL=" + app, "DROPCTL_OUTBOX_MAX_BYTES=1GiB", "DROPCTL_LOG_FORMAT=json"}
	return nil
}

func (p *plant) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if p.stock != nil {
		_ = p.stock.Close()
	}
	if p.ledger != nil {
		p.ledger.Close()
	}
	if p.conn != nil {
		_ = p.conn.Close(ctx)
	}
}

// sell lets users buy a unit each, from any of the lots: two events a sale.
func (p *plant) sell(ctx context.Context, sales int, lots []drop.LotID) error {
	return takeUsers(ctx, sales, callers, func(ctx context.Context, user string) error {
		return sell(ctx, p.stock, lots, fmt.Sprintf("%s-%d", user, rand.Int64()))
	})
}

// moment is how many events the ledger has folded when.
type moment struct {
	events  int64
	seconds float64 // by PostgreSQL's clock
}

func (p *plant) now(ctx context.Context) (m moment, err error) {
	err = p.conn.QueryRow(ctx, `SELECT coalesce(sum(seq), 0)::bigint, extract(epoch FROM clock_timestamp())::float8 FROM lots`).Scan(&m.events, &m.seconds)
	if err != nil {
		return m, fault.Wrap(fault.Unavailable, err, "looking how far the ledger is")
	}
	return m, nil
}

// written returns how many events were written in Redis.
func (p *plant) written(ctx context.Context) (events int64, err error) {
	states, err := p.stock.LotStates(ctx, p.lots)
	for _, st := range states {
		events += st.Seq
	}
	return events, err
}

// after returns the first moment at which the ledger has more than so many events. Rates are taken between two such moments,
// since events come in batches.
func (p *plant) after(ctx context.Context, events int64, every time.Duration) (moment, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		m, err := p.now(ctx)
		if err != nil || m.events > events {
			return m, err
		}
		select {
		case <-ctx.Done():
			return m, fault.Wrap(fault.Failed, ctx.Err(), "the ledger stays at %d events", m.events)
		case <-time.After(every):
		}
	}
}

// exhausted returns a moment after the tokens that had run in before are used up, and what they paid for is written.
func (p *plant) exhausted(ctx context.Context) (m moment, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for left := math.Inf(1); left >= share; time.Sleep(lookEvery) {
		if err := p.conn.QueryRow(ctx, `SELECT tokens FROM apply_budget`).Scan(&left); err != nil {
			return m, fault.Wrap(fault.Unavailable, err, "looking how many tokens are left")
		}
	}
	if m, err = p.now(ctx); err != nil {
		return m, err
	}
	return p.after(ctx, m.events+throttled*3/2, lookEvery)
}

func perSecond(from, to moment) float64 {
	return float64(to.events-from.events) / (to.seconds - from.seconds)
}

// fullSpeed: a backlog, and a worker that may write as fast as it can; against rows written one by one.
func (r *run) fullSpeed(ctx context.Context, p *plant) ([]Row, error) {
	rows, err := openRowByRow(ctx, p.postgres.SocketURL(lab.Superuser, lab.Database))
	if err != nil {
		return nil, err
	}
	defer rows.close()
	single := rowByRowBaselines()[0]
	var ours []float64
	for round := range r.Rounds {
		if err := p.sell(ctx, r.batches*applyBatch/2, p.lots); err != nil {
			return nil, err
		}
		rate, err := r.drain(ctx, p)
		if err != nil {
			return nil, err
		}
		ours = append(ours, rate)
		if err := single.play(ctx, rows, [][]drop.Event{someEvents(p.lots, r.batches*applyBatch)}, r.rowSpan); err != nil {
			return nil, err
		}
		r.Progress("  round %d of %d, from the outbox to the ledger: %.0f events/s; row by row: %.0f", round+1, r.Rounds, rate, single.perSecond[round])
	}
	base := Median(single.perSecond)
	return []Row{
		AtLeast("pipeline.direct", Digits(min(fastEnough, 10*base)), Median(ours), "events/s"),
		info("pipeline.row-by-row", base, "events/s", single.detail),
	}, nil
}

// drain lets a worker record the whole backlog and returns its pace.
func (r *run) drain(ctx context.Context, p *plant) (float64, error) {
	target, err := p.written(ctx)
	if err != nil {
		return 0, err
	}
	begin, err := p.now(ctx)
	if err != nil {
		return 0, err
	}
	_, stop, err := r.serve(ctx, p.env, "worker", "--max-events-per-second", fmt.Sprint(unthrottled))
	if err != nil {
		return 0, err
	}
	defer stop()
	from, err := p.after(ctx, begin.events, lookEvery)
	if err != nil {
		return 0, err
	}
	to, err := p.after(ctx, target-1, lookEvery)
	if err == nil && to.events == from.events {
		err = fault.New(fault.Failed, "%d events are too few to measure", target-begin.events)
	}
	return perSecond(from, to), err
}

// someEvents are events of one hold each, for the baseline to write.
func someEvents(lots []drop.LotID, n int) []drop.Event {
	events := make([]drop.Event, n)
	for i := range events {
		lot, seq := lots[i%len(lots)], int64(i/len(lots)+1)
		e := drop.Event{Kind: drop.KindHeld, Time: time.Now(), Qty: 1, Deadline: time.Now().Add(time.Minute)}
		e.Lot, e.Epoch, e.Seq, e.User = lot, 1, seq, userName(int64(i))
		e.Reservation = drop.ReservationID{Lot: lot, Attempt: fmt.Sprintf("%026d", i), N: seq}
		events[i] = e
	}
	return events
}

// keepsToTheLimit: two workers share the default limit while there is a backlog.
func (r *run) keepsToTheLimit(ctx context.Context, p *plant) ([]Row, error) {
	if err := p.sell(ctx, int(throttled*(r.steady.Seconds()+8)/2), p.lots); err != nil {
		return nil, err
	}
	for range 2 {
		_, stop, err := r.serve(ctx, p.env, "worker")
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	from, err := p.exhausted(ctx)
	if err != nil {
		return nil, err
	}
	to, err := p.after(ctx, from.events+int64(throttled*r.steady.Seconds()), lookEvery)
	if err != nil {
		return nil, err
	}
	rate := perSecond(from, to)
	r.Progress("  two workers at the default limit: %.0f events/s", rate)
	return []Row{
		AtMost("pipeline.off-the-limit", 0.05, math.Abs(rate/throttled-1), "of 2000 events/s"),
		info("pipeline.at-the-limit", rate, "events/s", "two workers, the default limit"),
	}, nil
}
