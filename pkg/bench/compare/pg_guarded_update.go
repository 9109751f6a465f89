package compare

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// pgGuardedUpdate takes a unit where there is one and writes the hold, in one statement that is its own transaction: the
// row is locked for no longer than a commit takes.
var pgGuardedUpdate = Model{Name: "pg-guarded-update", Does: "UPDATE … WHERE available > 0 and the insert in one statement", place: onPostgres, pool: 16,
	open: func(ctx context.Context, c client) (shop, error) {
		s, err := openPostgres(ctx, c)
		return guardedUpdate{s}, err
	}}

type guardedUpdate struct{ postgres }

const takeGuarded = `
	WITH taken AS (
		UPDATE lots SET available = available - 1, version = version + 1
		WHERE lot = $1 AND available > 0 AND NOT EXISTS (SELECT FROM holds WHERE lot = $1 AND user_id = $2)
		RETURNING lot)
	INSERT INTO holds (lot, user_id, deadline) SELECT lot, $2, now() + $3::interval FROM taken`

func (s guardedUpdate) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	c := claim{lot: lot, user: user}
	tag, err := s.pool.Exec(ctx, takeGuarded, string(lot), user, hold)
	switch {
	case sqlState(err, uniqueViolation): // the same user, at the same time: nothing of the statement has happened
		return c, overLimit(user)
	case err == nil && tag.RowsAffected() == 0:
		return c, s.refusal(ctx, lot, user)
	}
	return c, err
}
