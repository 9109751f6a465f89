package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

// noServers names servers that nobody listens on: whatever dials them fails with unavailable.
var noServers = map[string]string{"DROPCTL_REDIS_URL": "redis://127.0.0.1:1", "DROPCTL_DATABASE_URL": "postgres://x@127.0.0.1:1/x"}

// TestSeedChecksEverythingBeforeItDials gives wrong usage and wrong files, which must end with status 2.
func TestSeedChecksEverythingBeforeItDials(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.csv")
	if err := os.WriteFile(bad, []byte("lot,stock\na,1.5\nb c,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string // in stderr
	}{
		{[]string{"seed"}, "no lot is named"},
		{[]string{"seed", "a"}, "stock is missing"},
		{[]string{"seed", "a", "b"}, "usage: "},
		{[]string{"seed", "a b", "--stock", "x"}, `lot "a b" is not a lot id`},
		{[]string{"seed", "a", "--stock", "5", "--hold", "300"}, "name the unit: 300s"},
		{[]string{"seed", "a", "--stock", "5", "-f", bad}, "either -f"},
		{[]string{"seed", "--stock", "5", "-f", bad}, "--stock does not go with -f"},
		{[]string{"seed", "a", "--stock", "5", "--map", "lot=SKU"}, "go with -f only"},
		{[]string{"seed", "a", "--stock", "5", "--exit-code"}, "with --dry-run only"},
		{[]string{"seed", "-f", bad + "x.csv"}, "no such file"},
		{[]string{"seed", "-f", filepath.Dir(bad), "--format", "csv"}, "is a directory"},
		{[]string{"seed", "-f", "-"}, "--format csv, json or yaml"},
		{[]string{"seed", "-f", bad, "--map", "sku=lot"}, "unknown field"},
		{[]string{"seed", "-f", bad}, bad + `:3:1: lot "b c" is not a lot id`},
	} {
		r := run(t, noServers, test.args...)
		if r.exit != int(fault.ExitUsage) || r.out != "" || !strings.Contains(r.err, test.want) {
			t.Errorf("%v: exit %d, stdout %q, stderr %q; want 2 and %q", test.args, r.exit, r.out, r.err, test.want)
		}
	}
	v := run(t, noServers, "seed", "-f", bad, "-o", "json").errorObject(t)
	if list, _ := v.Details["problems"].([]any); len(list) != 2 || v.Code != fault.Invalid {
		t.Errorf("the error is %+v", v)
	}
	if r := run(t, noServers, "seed", "a", "--stock", "5"); r.exit != int(fault.ExitUnavailable) || r.out != "" {
		t.Errorf("without servers: exit %d, %q", r.exit, r.out)
	}
}

// TestSeedCommand runs the command against real servers as CI does: plan, create, change, again.
func TestSeedCommand(t *testing.T) {
	redis, db := testkit.Redis(t), stores.Database(t, 4)
	env := map[string]string{"DROPCTL_REDIS_URL": redis.URL(), "DROPCTL_DATABASE_URL": db.URL(lab.App), "DROPCTL_ACTOR": "ci"}
	file := filepath.Join(t.TempDir(), "lots.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(exit fault.Exit, want []string, args ...string) result {
		t.Helper()
		r := run(t, env, args...)
		if r.exit != int(exit) {
			t.Errorf("%v: exit %d, want %d: %s%s", args, r.exit, exit, r.out, r.err)
		}
		for _, text := range want {
			if !strings.Contains(r.out, text) {
				t.Errorf("%v: %q is not in %q", args, text, r.out)
			}
		}
		if strings.Contains(r.out+r.err, "redis://") && strings.Contains(r.err, redis.URL()) {
			t.Errorf("%v shows the Redis password: %s", args, r.err)
		}
		return r
	}
	write("- {lot: hat, stock: 5, limit: 2}\n- {lot: cap, stock: 3}\n")
	expect(fault.ExitFinding, []string{"hat\tcreate\tplanned\t5"}, "seed", "-f", file, "-n", "--exit-code")
	if r := expect(fault.OK, []string{"hat\tcreate\tcreated\t5", "cap\tcreate\tcreated\t3"}, "seed", "-f", file); !strings.Contains(r.err, "target: 2 lots on ") {
		t.Errorf("the target is not named: %q", r.err)
	}
	expect(fault.OK, []string{"hat\tunchanged\tunchanged\t5"}, "seed", "-f", file)
	expect(fault.OK, []string{"hat\n", "cap\n"}, "seed", "-f", file, "-o", "name")
	expect(fault.OK, []string{"hat\tchange\tchanged\t6\t0\t0\tstock 5 -> 6, name none -> Hat"}, "seed", "hat", "--stock", "6", "--name", "Hat")

	r := expect(fault.OK, nil, "seed", "hat", "--stock", "6", "--limit", "", "-o", "json", "-q")
	var items []struct {
		Lot, Result string
		Stock       int64
		Changes     []struct {
			Field    string
			From, To any
		}
	}
	if err := json.Unmarshal([]byte(r.out), &items); err != nil || len(items) != 1 || len(items[0].Changes) != 1 || items[0].Changes[0].From != 2.0 || items[0].Changes[0].To != 0.0 {
		t.Errorf("JSON is %s: %v", r.out, err)
	}

	if _, err := redis.Do(t.Context(), "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	write("- {lot: hat, stock: 6}\n- {lot: mug, stock: 1}\n")
	if r := expect(fault.ExitPartial, []string{"hat\tlost\tfailed", "mug\tcreate\tcreated\t1"}, "seed", "-f", file); !strings.Contains(r.err, "hint: rebuild it from the ledger: dropctl restore hat") {
		t.Errorf("stderr is %q", r.err)
	}
	if r := expect(fault.ExitRefused, []string{"hat\tlost\tfailed"}, "seed", "hat", "--stock", "6"); !strings.Contains(r.err, "dropctl restore hat") {
		t.Errorf("stderr is %q", r.err)
	}
}
