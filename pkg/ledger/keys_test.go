package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
)

func newKey() drop.APIKey {
	token, id := drop.NewToken()
	_, hash, _ := drop.ReadToken(token)
	return drop.APIKey{ID: id, Tenant: "shop", Name: "till 1", Scopes: []drop.Scope{drop.ScopeReserve, drop.ScopeRead}, Hash: hash, CreatedBy: "olga"}
}

func TestKeys(t *testing.T) {
	l, db := newLedger(t)
	if keys, err := l.Keys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("%v, %v", keys, err)
	}
	k := newKey()
	k.Expires = time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	made, err := l.CreateKey(t.Context(), k)
	if err != nil || made.Hash != k.Hash || !made.Expires.Equal(k.Expires) || !slices.Equal(made.Scopes, k.Scopes) || time.Since(made.Created).Abs() > time.Minute || made.CreatedBy != "olga" || !made.Revoked.IsZero() {
		t.Fatalf("%+v, %v", made, err)
	}
	if _, err := l.CreateKey(t.Context(), k); err != nil {
		t.Errorf("asked again: %v", err)
	}
	other := newKey()
	other.ID = k.ID
	if _, err := l.CreateKey(t.Context(), other); !fault.Is(err, fault.Conflict) {
		t.Errorf("an id twice: %v", err)
	}
	other.ID, other.Scopes = newKey().ID, nil
	if _, err := l.CreateKey(t.Context(), other); !fault.Is(err, fault.Invalid) {
		t.Errorf("without a scope: %v", err)
	}

	if _, changed, err := l.RevokeKey(t.Context(), k.ID, "ivo"); err != nil || !changed {
		t.Errorf("revoking: %v, %v", changed, err)
	}
	if again, changed, err := l.RevokeKey(t.Context(), k.ID, "eva"); err != nil || changed || again.RevokedBy != "ivo" || again.Revoked.IsZero() {
		t.Errorf("revoking again: %+v, %v, %v", again, changed, err)
	}
	if _, _, err := l.RevokeKey(t.Context(), newKey().ID, "ivo"); !fault.Is(err, fault.NotFound) {
		t.Errorf("revoking what is not there: %v", err)
	}
	if _, _, err := l.RevokeKey(t.Context(), "x' OR true --", "ivo"); !fault.Is(err, fault.Invalid) {
		t.Errorf("revoking nonsense: %v", err)
	}
	second := newKey()
	second.Created = time.Now().Add(time.Hour)
	if _, err := l.CreateKey(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	keys, err := l.Keys(t.Context())
	if err != nil || len(keys) != 2 || keys[0].ID != k.ID || keys[0].Revoked.IsZero() || keys[1].ID != second.ID || keys[1].Created.Sub(second.Created).Abs() > time.Millisecond {
		t.Errorf("%+v, %v", keys, err)
	}

	// The runtime role can neither give a key another hash nor make one disappear.
	pool := openPool(t, db.URL(lab.App))
	for _, statement := range []string{"UPDATE api_keys SET hash = hash", "UPDATE api_keys SET scopes = '{admin}'", "UPDATE api_keys SET expires_at = NULL", "DELETE FROM api_keys", "TRUNCATE api_keys"} {
		if _, err := pool.Exec(t.Context(), statement); !hasState(err, stateNoRight) {
			t.Errorf("%s: %v", statement, err)
		}
	}
}
