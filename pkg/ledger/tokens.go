package ledger

import (
	"context"
	_ "embed"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

//go:embed sql/take_tokens.sql
var takeTokensSQL string

// paceSpan is how many seconds of the past the pace tells of: what was written longer ago has all but faded from it.
const paceSpan = 10.0

// tokenShare is how many seconds' worth of tokens are granted at least, if as many are wanted. Who has to wait for tokens has a
// backlog, where a few large transactions cost far less than many small ones.
const tokenShare = 0.25

// TakeTokens takes up to want tokens, one an event, from the budget that all workers share. It is filled at the rate, in
// events a second, or at that of a worker alive if one has a lower one, and holds at most one second's worth. Less than a
// quarter of a second's worth is granted only to who wants less; where there are too few, wait says when to ask again. The
// rate may change from call to call.
func (l *Ledger) TakeTokens(ctx context.Context, rate float64, want int) (granted int, wait time.Duration, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var seconds float64
	if err := l.pool.QueryRow(ctx, takeTokensSQL, rate, want, WorkerLife, paceSpan, tokenShare).Scan(&granted, &seconds, nil); err != nil {
		return 0, 0, l.fail(err, "taking from the budget")
	}
	if granted == 0 && want > 0 {
		wait = max(time.Duration(seconds*float64(time.Second)), time.Millisecond)
	}
	return granted, wait, nil
}

// ChargeTokens charges n events that were read beyond what was granted; a negative n gives tokens back. The
// budget may fall below zero: the next events wait longer.
func (l *Ledger) ChargeTokens(ctx context.Context, n int) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `WITH charged AS (UPDATE apply_budget SET tokens = tokens - $1::int, pace = greatest(0, pace + $1::int / $2::float8))
		SELECT set_config('synchronous_commit', 'off', true)`, n, paceSpan)
	return l.fail(err, "charging the budget")
}

// Pace returns how fast the workers may write, and do.
func (l *Ledger) Pace(ctx context.Context) (drop.Pace, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	p, err := readPace(ctx, l.pool)
	return p, l.fail(err, "reading the pace")
}

func readPace(ctx context.Context, q querier) (p drop.Pace, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce(min(w.rate), 0), coalesce(max(w.rate), 0), (
			SELECT pace * exp(-least(600, greatest(0, extract(epoch FROM now() - filled_at)))::float8 / $2::float8) FROM apply_budget)
		FROM workers w WHERE w.rate > 0 AND w.seen_at >= now() - $1::interval`, WorkerLife, paceSpan).Scan(&p.Limit, &p.Highest, &p.Seen)
	if p.Seen < 0.5 { // what has faded that far is none
		p.Seen = 0
	}
	return p, err
}
