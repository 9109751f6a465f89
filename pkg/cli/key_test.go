package cli

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

// keyJSON is what programs read of a key.
type keyJSON struct {
	ID, Tenant, Name, Hash, Token string
	Scopes                        []drop.Scope
	Created, Expires, Revoked     *time.Time
	RevokedBy                     string `json:"revoked_by"`
	DryRun                        bool   `json:"dry_run"`
}

// keyShop is a migrated database: keys need no Redis.
func keyShop(t *testing.T) (testkit.Database, map[string]string) {
	t.Helper()
	db := stores.Database(t, 0)
	return db, map[string]string{"DROPCTL_DATABASE_URL": db.URL(lab.App), "DROPCTL_ACTOR": "tester"}
}

// A token is shown once. Afterwards nothing can show it: not the list, not the database.
func TestATokenIsShownOnce(t *testing.T) {
	db, env := keyShop(t)
	dry := mustJSON[keyJSON](t, env, "key", "create", "--tenant", "shop", "--scope", "settle,read,settle", "--name", "till 1", "--expires", "90d", "--dry-run")
	if dry.Token != "" || dry.ID != "" || !dry.DryRun || len(dry.Scopes) != 2 {
		t.Errorf("a dry run: %+v", dry)
	}
	if list := mustJSON[[]keyJSON](t, env, "key", "list"); len(list) != 0 {
		t.Errorf("a dry run made a key: %+v", list)
	}
	made := mustJSON[keyJSON](t, env, "key", "create", "--tenant", "shop", "--scope", "settle,read,settle", "--name", "till 1", "--expires", "90d")
	id, hash, ok := drop.ReadToken(made.Token)
	if !ok || id != made.ID || hash.String() != made.Hash || made.Revoked != nil || made.Expires.Sub(*made.Created) != 90*24*time.Hour || made.Scopes[0] != drop.ScopeRead {
		t.Errorf("%+v", made)
	}
	word := run(t, env, "key", "create", "--tenant", "shop", "--scope", "read", "-o", "name")
	if _, _, ok := drop.ReadToken(strings.TrimSpace(word.out)); !ok || strings.Contains(word.err, strings.TrimSpace(word.out)[20:]) {
		t.Errorf("-o name: %q, %q", word.out, word.err)
	}
	secret := made.Token[13:]
	for _, format := range []string{"table", "wide", "json", "jsonl", "yaml", "name"} {
		if r := run(t, env, "key", "list", "-o", format, "--debug"); r.exit != 0 || strings.Contains(r.out+r.err, secret) || !strings.Contains(r.out, made.ID) {
			t.Errorf("list -o %s: exit %d\n%s%s", format, r.exit, r.out, r.err)
		}
	}
	if got := db.SQL(t, "SELECT k::text FROM api_keys k"); strings.Contains(got, secret) || !strings.Contains(got, made.ID) {
		t.Error("the database has the secret")
	}
	// The output fails after the key was made: the error says what to do and does not show the token.
	lost := run(t, env, "key", "create", "--tenant", "shop", "--scope", "read", "--jq", `.token | error`)
	if lost.exit == 0 || strings.Contains(lost.err, "drk_") || !strings.Contains(lost.err, "dropctl key revoke ") {
		t.Errorf("exit %d, %s", lost.exit, lost.err)
	}
}

func TestWhatIsNoKeyIsRefused(t *testing.T) {
	env := map[string]string{"DROPCTL_DATABASE_URL": "postgres://shop@127.0.0.1:1/shop"}
	token, _ := drop.NewToken()
	for line, word := range map[string]string{
		"key create --scope read":                             "--tenant is missing",
		"key create --tenant shop":                            "--scope is missing",
		"key create --tenant Shop --scope read":               "tenant name",
		"key create --tenant a:b --scope read":                "tenant name",
		"key create --tenant shop --scope root":               "not a scope",
		"key create --tenant shop --scope read, ":             "empty place",
		"key create --tenant shop --scope read --expires 0d":  "90d",
		"key create --tenant shop --scope read --expires -5d": "90d",
		"key create --tenant shop --scope read --expires 1y":  "90d",
		"key create --tenant shop --scope read --name a\x07b": "printable",
		"key revoke":             "ID is missing",
		"key revoke nope":        "not the id of a key",
		"key revoke " + token:    "not the id of a key",
		"key list --tenant shop": "unknown flag",
	} {
		r := run(t, env, strings.Split(strings.TrimSuffix(line, " "), " ")...)
		if r.exit != 2 || r.out != "" || !strings.Contains(r.err, word) || strings.Contains(r.err, token[20:]) {
			t.Errorf("%s: exit %d, %s", line, r.exit, r.err)
		}
	}
}

func TestKeysAreRevokedOneByOne(t *testing.T) {
	_, env := keyShop(t)
	var ids []string
	for range 3 {
		ids = append(ids, mustJSON[keyJSON](t, env, "key", "create", "--tenant", "shop", "--scope", "read").ID)
	}
	if r := run(t, env, "key", "revoke", ids[0]); r.exit != 2 || !strings.Contains(r.err, "needs_confirmation") {
		t.Errorf("unasked: exit %d, %s", r.exit, r.err)
	}
	results := func(args ...string) (string, int) {
		t.Helper()
		r := run(t, env, append(append([]string{"key", "revoke"}, args...), "--jq", `map(.result) | join(" ")`)...)
		return strings.TrimSpace(r.out), r.exit
	}
	for _, c := range []struct {
		args []string
		want string
		exit int
	}{
		{[]string{ids[0], ids[1], "-n"}, "planned planned", 0},
		{[]string{ids[0], "--yes"}, "revoked", 0},
		{[]string{ids[0]}, "unchanged", 0}, // nothing to ask about
		{[]string{ids[0], "zzzzzzzz", ids[1], ids[1], "-y"}, "unchanged failed revoked", 8},
		{[]string{"zzzzzzzz", "yyyyyyyy", "-y"}, "failed failed", 3},
		{[]string{"zzzzzzzz", "-y"}, "failed", 3},
	} {
		if got, exit := results(c.args...); got != c.want || exit != c.exit {
			t.Errorf("%v: %s, exit %d", c.args, got, exit)
		}
	}
	for _, k := range mustJSON[[]keyJSON](t, env, "key", "list") {
		if revoked := k.ID != ids[2]; (k.Revoked != nil) != revoked || revoked != (k.RevokedBy == "tester") {
			t.Errorf("%+v", k)
		}
	}
	if r := run(t, env, "__complete", "key", "revoke", ""); r.out != ids[2]+"\tshop\n:4\n" {
		t.Errorf("completion: %q", r.out)
	}
}

// The list is the file of keys that a server reads: field by field what the domain says of a key.
func TestTheListIsAFileOfKeys(t *testing.T) {
	_, env := keyShop(t)
	made := mustJSON[keyJSON](t, env, "key", "create", "--tenant", "shop", "--scope", "reserve,admin")
	mustJSON[[]keyRevokedView](t, env, "key", "revoke", made.ID, "--yes")
	mustJSON[keyJSON](t, env, "key", "create", "--tenant", "bar", "--scope", "read", "--expires", "1h")
	path := t.TempDir() + "/keys.json"
	if err := os.WriteFile(path, []byte(run(t, env, "key", "list", "-o", "json").out), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var keys []drop.APIKey
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	if err := d.Decode(&keys); err != nil || len(keys) != 2 {
		t.Fatalf("%v\n%s", err, data)
	}
	if keys[0].Tenant != "shop" { // keys of the same second stand in any order
		slices.Reverse(keys)
	}
	_, hash, _ := drop.ReadToken(made.Token)
	if k := keys[0]; k.Check() != nil || k.Hash != hash || k.Revoked.IsZero() || k.RevokedBy != "tester" || !k.Has(drop.ScopeAdmin) || !k.Expires.IsZero() || keys[1].Expires.IsZero() {
		t.Errorf("%+v", keys)
	}
}
