package ledger

import (
	"context"
	_ "embed"
	"time"
)

//go:embed sql/take_tokens.sql
var takeTokensSQL string

// TakeTokens takes up to want tokens, one an event, from the budget that all workers share. It is filled at
// rate events a second and holds at most one second's worth. Where none is left, wait says when to ask again.
// The rate may change from call to call.
func (l *Ledger) TakeTokens(ctx context.Context, rate float64, want int) (granted int, wait time.Duration, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var left float64
	if err := l.pool.QueryRow(ctx, takeTokensSQL, rate, want).Scan(&granted, &left); err != nil {
		return 0, 0, l.fail(err, "taking from the budget")
	}
	if granted == 0 && want > 0 {
		wait = time.Duration((1 - left) / rate * float64(time.Second))
	}
	return granted, wait, nil
}

// ChargeTokens charges n events that were read beyond what was granted; a negative n gives tokens back. The
// budget may fall below zero: the next events wait longer.
func (l *Ledger) ChargeTokens(ctx context.Context, n int) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `UPDATE apply_budget SET tokens = tokens - $1`, n)
	return l.fail(err, "charging the budget")
}
