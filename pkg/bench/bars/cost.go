package bars

import (
	"context"
	"runtime"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
)

// The orders of a shop that writes each of them in the path of the request: as plain as they can be.
const orderTables = `
CREATE TABLE plain.stock (lot text PRIMARY KEY, capacity bigint NOT NULL, sold bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
CREATE TABLE plain.orders (lot text, user_id text, qty bigint NOT NULL, ref text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (lot, user_id));
`

// costOfASale: processor time of PostgreSQL for each unit sold, from the first request until the outbox is empty and the sale
// finalised, with a worker at the default limit; against one transaction a request. It needs Linux, which tells what a process used.
func (r *run) costOfASale(ctx context.Context, p *plant) ([]Row, error) {
	if runtime.GOOS != "linux" {
		r.Progress("  what PostgreSQL uses cannot be read here: its cost of a sale is left out")
		return nil, nil
	}
	hot := &costs{name: "pipeline.cpu-of-a-sale", lots: p.lots[:1], sales: r.sales}
	spread := &costs{name: hot.name + ".many-lots", lots: p.lots, sales: r.spread}
	if err := r.compareCosts(ctx, p, hot, spread); err != nil {
		return nil, err
	}
	rows := append([]Row{AtMost(hot.name, 0.333, hot.share(), "of an order in the request")}, hot.rows()...)
	rows = append(rows, info(spread.name, spread.share(), "of an order in the request", "spread over 100 lots, where orders seldom wait for each other"))
	return append(rows, spread.rows()...), nil
}

// costs are what PostgreSQL used for a sale in the rounds so far, in microseconds.
type costs struct {
	name                 string // of the rows
	lots                 []drop.LotID
	sales                int // of a round
	ours, onFour, onMany []float64
}

// share is our cost over that of the cheaper baseline.
func (c *costs) share() float64 { return Median(c.ours) / min(Median(c.onFour), Median(c.onMany)) }

func (c *costs) rows() []Row {
	return []Row{
		info(c.name+".dropctl", Median(c.ours), "µs", "hold, confirmation and finalising, a worker at the default limit"),
		info(c.name+".order-on-4", Median(c.onFour), "µs", "guarded update and insert in one transaction; 4 connections"),
		info(c.name+".order-on-16", Median(c.onMany), "µs", "the same on 16"),
	}
}

// compareCosts lets the worker and the baselines take turns. What only explains is measured in every other round.
func (r *run) compareCosts(ctx context.Context, p *plant, bar, explains *costs) error {
	small, err := openOrders(ctx, p, 4)
	if err != nil {
		return err
	}
	defer small.Close()
	large, err := openOrders(ctx, p, maxConns)
	if err != nil {
		return err
	}
	defer large.Close()
	for round := range r.Rounds {
		kinds := []*costs{bar, explains}[:2-round%2]
		if err := r.costOfOurs(ctx, p, kinds); err != nil {
			return err
		}
		for _, c := range kinds {
			four, err := costOfOrders(ctx, p, small, c)
			if err != nil {
				return err
			}
			many, err := costOfOrders(ctx, p, large, c)
			if err != nil {
				return err
			}
			c.onFour, c.onMany = append(c.onFour, four), append(c.onMany, many)
			r.Progress("  round %d of %d, %s: %.0f µs of PostgreSQL a sale; an order in the request: %.0f µs, on 4 connections %.0f µs", round+1, r.Rounds, c.name, c.ours[len(c.ours)-1], many, four)
		}
	}
	return nil
}

// costOfOurs sells every kind, with a worker beside.
func (r *run) costOfOurs(ctx context.Context, p *plant, kinds []*costs) error {
	_, stop, err := r.serve(ctx, p.env, "worker")
	if err != nil {
		return err
	}
	defer stop()
	for _, c := range kinds {
		// The worker has been running before a sale: its connections are there and warm.
		if err := p.sellAndRecord(ctx, c.sales/5, c.lots); err != nil {
			return err
		}
		used, err := p.cost(c.sales, func() error { return p.sellAndRecord(ctx, c.sales, c.lots) })
		if err != nil {
			return err
		}
		c.ours = append(c.ours, used)
	}
	return nil
}

// sellAndRecord sells and waits until every sale is in the order ledger.
func (p *plant) sellAndRecord(ctx context.Context, sales int, lots []drop.LotID) error {
	if err := p.sell(ctx, sales, lots); err != nil {
		return err
	}
	target, err := p.written(ctx)
	if err != nil {
		return err
	}
	if _, err := p.after(ctx, target-1, 10*lookEvery); err != nil { // looking costs PostgreSQL, too
		return err
	}
	return p.finalised(ctx)
}

// finalised waits until every sale is in the order ledger.
func (p *plant) finalised(ctx context.Context) error {
	for ctx.Err() == nil {
		var left int
		if err := p.conn.QueryRow(ctx, `SELECT count(*) FROM pending_allocations WHERE state IN ('PENDING', 'PROCESSING')`).Scan(&left); err != nil {
			return fault.Wrap(fault.Unavailable, err, "counting what is not finalised")
		}
		if left == 0 {
			return nil
		}
		time.Sleep(10 * lookEvery)
	}
	return ctx.Err()
}

func openOrders(ctx context.Context, p *plant, conns int) (*pgxpool.Pool, error) {
	url := p.postgres.SocketURL(lab.Superuser, lab.Database)
	pool, err := pgxpool.New(ctx, url+"&pool_max_conns="+strconv.Itoa(conns))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "connecting the baseline to the private PostgreSQL")
	}
	if _, err := pool.Exec(ctx, `DROP SCHEMA IF EXISTS plain CASCADE; CREATE SCHEMA plain;`+orderTables); err != nil {
		pool.Close()
		return nil, fault.Wrap(fault.Unavailable, err, "creating the baseline's tables")
	}
	return pool, nil
}

// costOfOrders writes each order in its request and returns what that cost of PostgreSQL an order, in microseconds.
func costOfOrders(ctx context.Context, p *plant, pool *pgxpool.Pool, c *costs) (float64, error) {
	if _, err := pool.Exec(ctx, `TRUNCATE plain.stock, plain.orders`); err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "emptying the baseline's tables")
	}
	for _, lot := range c.lots {
		if _, err := pool.Exec(ctx, `INSERT INTO plain.stock (lot, capacity) VALUES ($1, $2)`, string(lot), 2*c.sales); err != nil {
			return 0, fault.Wrap(fault.Unavailable, err, "entering the baseline's stock")
		}
	}
	sell := func(n int, group string) error {
		return takeUsers(ctx, n, callers, func(ctx context.Context, user string) error { return order(ctx, pool, lotOf(c.lots, user), user+group) })
	}
	if err := sell(c.sales/5, "-warm"); err != nil {
		return 0, err
	}
	return p.cost(c.sales, func() error { return sell(c.sales, "") })
}

// order takes a unit and writes the order, in one transaction.
func order(ctx context.Context, pool *pgxpool.Pool, lot drop.LotID, user string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE plain.stock SET sold = sold + 1 WHERE lot = $1 AND sold < capacity`, string(lot))
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fault.New(fault.SoldOut, "%s is sold out", lot)
		}
		_, err = tx.Exec(ctx, `INSERT INTO plain.orders (lot, user_id, qty, ref) VALUES ($1, $2, 1, $3)`, string(lot), user, "payment-"+user)
		return err
	})
}

// lotOf spreads users over lots.
func lotOf(lots []drop.LotID, user string) drop.LotID {
	n, _ := strconv.Atoi(user[len("buyer"):])
	return lots[n%len(lots)]
}

// cost returns the processor time that PostgreSQL used while n were sold, for one of them, in microseconds.
func (p *plant) cost(n int, sell func() error) (float64, error) {
	before, err := bench.CPUOf(p.postgres.PID())
	if err != nil {
		return 0, err
	}
	if err := sell(); err != nil {
		return 0, err
	}
	after, err := bench.CPUOf(p.postgres.PID())
	return float64((after - before).Microseconds()) / float64(n), err
}
