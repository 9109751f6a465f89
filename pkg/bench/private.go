package bench

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// MeterRedis meters a private Redis, whatever is in it.
func MeterRedis(server *lab.Redis) Meter { return Meter{Redis: privateRedis{server}} }

type privateRedis struct{ server *lab.Redis }

func (r privateRedis) Usage(ctx context.Context) (stock.Usage, error) {
	info, err := r.server.Info(ctx, "cpu", "commandstats")
	if err != nil {
		return stock.Usage{}, err
	}
	return stock.ReadUsage(info)
}

// MeterPostgres meters a database of a private PostgreSQL, whatever is in it. The caller owes a call of done.
func MeterPostgres(ctx context.Context, server *lab.Postgres, database string) (m Meter, done func(), err error) {
	pool, err := pgxpool.New(ctx, server.SocketURL(lab.Superuser, database))
	if err != nil {
		return Meter{}, nil, fault.New(fault.Unavailable, "the private PostgreSQL cannot be observed") // without the error: it may quote the address
	}
	return Meter{Postgres: privatePostgres{pool}, PostgresPID: server.PID()}, pool.Close, nil
}

type privatePostgres struct{ pool *pgxpool.Pool }

func (p privatePostgres) Activity(ctx context.Context) (ledger.Activity, error) {
	return ledger.ActivityOf(ctx, p.pool)
}
