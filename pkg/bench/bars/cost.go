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
// booked, with a worker at the default limit; against one transaction a request. It needs Linux, which tells what a process used.
func (r *run) costOfASale(ctx context.Context, p *plant) ([]Row, error) {
	if runtime.GOOS != "linux" {
		r.Progress("  what PostgreSQL uses cannot be read here: its cost of a sale is left out")
		return nil, nil
	}
	const name = "pipeline.cpu-of-a-sale"
	share, hot, err := r.compareCosts(ctx, p, name, p.lots[:1], r.sales)
	if err != nil {
		return nil, err
	}
	spread, many, err := r.compareCosts(ctx, p, name+".many-lots", p.lots, r.sales/2)
	if err != nil {
		return nil, err
	}
	rows := append([]Row{AtMost(name, 0.333, share, "of an order in the request")}, hot...)
	return append(append(rows, info(name+".many-lots", spread, "of an order in the request", "spread over 100 lots, where orders seldom wait for each other")), many...), nil
}

// compareCosts returns our cost as a share of what the cheaper of the baselines costs, and what explains it.
func (r *run) compareCosts(ctx context.Context, p *plant, name string, lots []drop.LotID, sales int) (share float64, _ []Row, err error) {
	small, err := openOrders(ctx, p, 4)
	if err != nil {
		return 0, nil, err
	}
	defer small.Close()
	large, err := openOrders(ctx, p, maxConns)
	if err != nil {
		return 0, nil, err
	}
	defer large.Close()
	var ours, onFour, onMany []float64
	for round := range r.Rounds {
		mine, err := r.costOfOurs(ctx, p, lots, sales)
		if err != nil {
			return 0, nil, err
		}
		four, err := r.costOfOrders(ctx, p, small, lots, sales)
		if err != nil {
			return 0, nil, err
		}
		many, err := r.costOfOrders(ctx, p, large, lots, sales)
		if err != nil {
			return 0, nil, err
		}
		ours, onFour, onMany = append(ours, mine), append(onFour, four), append(onMany, many)
		r.Progress("  round %d of %d, %s: %.0f µs of PostgreSQL a sale; an order in the request: %.0f µs, on 4 connections %.0f µs", round+1, r.Rounds, name, mine, many, four)
	}
	share = Median(ours) / min(Median(onFour), Median(onMany))
	return share, []Row{
		info(name+".dropctl", Median(ours), "µs", "hold, confirmation and booking, a worker at the default limit"),
		info(name+".order-on-4", Median(onFour), "µs", "guarded update and insert in one transaction; 4 connections"),
		info(name+".order-on-16", Median(onMany), "µs", "the same on 16"),
	}, nil
}

// costOfOurs sells, with a worker beside, and returns what that cost of PostgreSQL a sale, in microseconds.
func (r *run) costOfOurs(ctx context.Context, p *plant, lots []drop.LotID, sales int) (float64, error) {
	_, stop, err := r.serve(ctx, p.env, "worker")
	if err != nil {
		return 0, err
	}
	defer stop()
	// The worker has been running before a sale: its connections are there and warm.
	if err := p.sellAndRecord(ctx, sales/5, lots); err != nil {
		return 0, err
	}
	return p.cost(sales, func() error { return p.sellAndRecord(ctx, sales, lots) })
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
	return p.booked(ctx)
}

// booked waits until every sale is in the order ledger.
func (p *plant) booked(ctx context.Context) error {
	for ctx.Err() == nil {
		var left int
		if err := p.conn.QueryRow(ctx, `SELECT count(*) FROM pending_allocations WHERE state IN ('PENDING', 'PROCESSING')`).Scan(&left); err != nil {
			return fault.Wrap(fault.Unavailable, err, "counting what is not booked")
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
func (r *run) costOfOrders(ctx context.Context, p *plant, pool *pgxpool.Pool, lots []drop.LotID, sales int) (float64, error) {
	if _, err := pool.Exec(ctx, `TRUNCATE plain.stock, plain.orders`); err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "emptying the baseline's tables")
	}
	for _, lot := range lots {
		if _, err := pool.Exec(ctx, `INSERT INTO plain.stock (lot, capacity) VALUES ($1, $2)`, string(lot), 2*sales); err != nil {
			return 0, fault.Wrap(fault.Unavailable, err, "entering the baseline's stock")
		}
	}
	sell := func(n int, group string) error {
		return takeUsers(ctx, n, callers, func(ctx context.Context, user string) error { return order(ctx, pool, lotOf(lots, user), user+group) })
	}
	if err := sell(sales/5, "-warm"); err != nil {
		return 0, err
	}
	return p.cost(sales, func() error { return sell(sales, "") })
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
