package ledger

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Advisory lock numbers. The first key tells ours from other programs' locks in the same database, and those of a space
// from those of the shop, which are the database's alike.
const (
	lockClass     = 0x64726f70 // "drop"
	lockReconcile = 1
	lockResend    = 2
	lockSpaces    = 3
	lockLotsBase  = 1000 // and lotLocks numbers from there
	lotLocks      = 64

	lockConns = 32 // connections that may hold locks at a time; opened only when needed
)

// LockLots keeps other seeds and restores away from these lots until unlock, which must be called once and
// works with a cancelled context. It waits for a while, then returns fault.Busy. It does not hinder apply.
func (l *Ledger) LockLots(ctx context.Context, ids []drop.LotID) (unlock func(), err error) {
	return l.lock(ctx, "another seed or restore works on these lots", func(ctx context.Context, conn *pgxpool.Conn) (bool, error) {
		// A server has a limited number of locks, so lots share a few; a false conflict only waits.
		_, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1, k) FROM (
			SELECT DISTINCT $2::int + abs(hashtextextended(lot, 0) % $3)::int AS k FROM unnest($4::text[]) AS t(lot) ORDER BY k OFFSET 0) AS ordered`,
			l.class, lockLotsBase, lotLocks, texts(ids))
		if hasState(err, stateLockTimeout) {
			return false, nil
		}
		return err == nil, err
	})
}

// LockResend keeps other workers from sending again what this server lacks, until unlock. It does not wait: fault.Busy if
// another worker is at it.
func (l *Ledger) LockResend(ctx context.Context) (unlock func(), err error) {
	return l.lock(ctx, "another worker sends again what the ledger lacks", func(ctx context.Context, conn *pgxpool.Conn) (locked bool, err error) {
		err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, l.class, lockResend).Scan(&locked)
		return locked, err
	})
}

// lock takes advisory locks on a connection of their own, which keeps them until unlock. They end with the
// connection, so that a process that dies leaves none behind.
func (l *Ledger) lock(ctx context.Context, busy string, take func(context.Context, *pgxpool.Conn) (bool, error)) (unlock func(), err error) {
	within, cancel := l.within(ctx)
	defer cancel()
	conn, err := l.locks.Acquire(within)
	if err != nil {
		return nil, l.fail(err, "locking")
	}
	unlock = func() {
		ctx, cancel := l.within(context.WithoutCancel(ctx))
		defer cancel()
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`); err != nil {
			_ = conn.Conn().Close(ctx)
		}
		conn.Release()
	}
	locked, err := take(within, conn)
	if err == nil && locked {
		return unlock, nil
	}
	unlock()
	if err != nil {
		return nil, l.fail(err, "locking")
	}
	return nil, fault.New(fault.Busy, "%s", busy)
}
