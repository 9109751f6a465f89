package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const keyColumns = `id, tenant, name, scopes, hash, created_at, created_by, expires_at, revoked_at, revoked_by`

// CreateKey records a key, created now if it does not say when, and returns it as recorded. Recording the same key again
// changes nothing. Errors: fault.Invalid for a field, fault.Conflict if the id belongs to another key.
func (l *Ledger) CreateKey(ctx context.Context, k drop.APIKey) (drop.APIKey, error) {
	if err := k.Check(); err != nil {
		return drop.APIKey{}, err
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `INSERT INTO api_keys (id, tenant, name, scopes, hash, created_at, created_by, expires_at)
		VALUES ($1, $2, $3, $4, $5, coalesce($6, now()), $7, $8) ON CONFLICT (id) DO NOTHING`,
		k.ID, k.Tenant, k.Name, k.Scopes, k.Hash[:], nullTime(k.Created), k.CreatedBy, nullTime(k.Expires))
	if err != nil {
		return drop.APIKey{}, l.fail(err, "recording a key")
	}
	recorded, err := l.Key(ctx, k.ID)
	if err == nil && recorded.Hash != k.Hash {
		err = fault.New(fault.Conflict, "the id %s belongs to another key", k.ID).WithField("id").WithHint("run it again: the next key gets another id")
	}
	return recorded, err
}

// Keys returns all keys, revoked and expired ones included, oldest first.
func (l *Ledger) Keys(ctx context.Context) ([]drop.APIKey, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT `+keyColumns+` FROM api_keys ORDER BY created_at, id`)
	if err != nil {
		return nil, l.fail(err, "reading the keys")
	}
	keys, err := pgx.CollectRows(rows, scanKey)
	return keys, l.fail(err, "reading the keys")
}

// RevokeKey ends a key for good and returns it; false if it was revoked before, which stays as it was. Error:
// fault.NotFound.
func (l *Ledger) RevokeKey(ctx context.Context, id, actor string) (k drop.APIKey, changed bool, err error) {
	if err := drop.CheckKeyID(id); err != nil {
		return drop.APIKey{}, false, err
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	k, err = l.key(ctx, `UPDATE api_keys SET revoked_at = now(), revoked_by = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING `+keyColumns, id, actor)
	if !fault.Is(err, fault.NotFound) {
		return k, err == nil, err
	}
	k, err = l.Key(ctx, id)
	return k, false, err
}

// Key returns one key. Error: fault.NotFound.
func (l *Ledger) Key(ctx context.Context, id string) (drop.APIKey, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	return l.key(ctx, `SELECT `+keyColumns+` FROM api_keys WHERE id = $1`, id)
}

// key runs a statement that gives the one key, whose id is its first argument.
func (l *Ledger) key(ctx context.Context, statement, id string, args ...any) (drop.APIKey, error) {
	rows, err := l.pool.Query(ctx, statement, append([]any{id}, args...)...)
	if err != nil {
		return drop.APIKey{}, l.fail(err, "looking up a key")
	}
	k, err := pgx.CollectExactlyOneRow(rows, scanKey)
	if errors.Is(err, pgx.ErrNoRows) {
		return drop.APIKey{}, fault.New(fault.NotFound, "there is no key %s", id).WithField("id").WithHint("see the keys: dropctl key list")
	}
	return k, l.fail(err, "looking up a key")
}

func scanKey(row pgx.CollectableRow) (drop.APIKey, error) {
	var k drop.APIKey
	var hash []byte
	var expires, revoked *time.Time
	err := row.Scan(&k.ID, &k.Tenant, &k.Name, &k.Scopes, &hash, &k.Created, &k.CreatedBy, &expires, &revoked, &k.RevokedBy)
	copy(k.Hash[:], hash) // of 32 bytes: the table checks it
	k.Created, k.Expires, k.Revoked = k.Created.UTC(), timeOf(expires), timeOf(revoked)
	return k, err
}
