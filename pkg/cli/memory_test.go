package cli

import (
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/testkit"
)

// When Redis is full, and has lost its functions, which it does not take again then, nobody gets a hold any more; all that
// brings a drop to its end, and all that looks, still works, and whoever looks is told.
func TestAFullRedisOnlyRefusesNewHolds(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	redis, env := newShop(t, 4)
	hold := func(user string) string {
		return mustJSON[map[string]any](t, env, "reserve", "hat", "--user", user)["id"].(string)
	}
	ann, bob, carl := hold("ann"), hold("bob"), hold("carl")
	for _, lost := range [][]string{{"CONFIG", "SET", "maxmemory", "1mb"}, {"FUNCTION", "FLUSH"}} {
		if _, err := redis.Do(t.Context(), lost...); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		line string
		exit int
		says string
	}{
		{"reserve hat --user dora", 5, "raise maxmemory"},
		{"status", 6, "redis_out_of_memory"},
		{"confirm " + ann + " --payment p", 0, ""},
		{"release " + bob, 0, ""},
		{"extend " + carl + " --by 10m", 0, ""},
		{"lot adjust hat --by 1 --expect 10", 0, ""},
		{"lot pause hat", 0, ""},
		{"worker --until-idle", 0, ""},
		{"refund " + ann + " --total 1 --yes", 0, ""},
		{"worker --until-idle", 0, ""},
		{"lot show hat", 0, ""},
		{"reservation list --lot hat", 0, ""},
		{"reservation show " + carl, 0, ""},
		{"ledger verify hat", 0, ""},
		{"reconcile hat --deep", 0, ""},
		{"reconcile hat --deep --repair --reason full --yes", 0, ""},
		{"restore hat --dry-run", 0, ""},
		{"outbox list", 0, ""},
		{"lot close hat", 0, ""},
		{"worker --until-idle", 0, ""},
	} {
		r := run(t, env, append(strings.Fields(c.line), "-o", "json")...)
		if r.exit != c.exit || !strings.Contains(r.out+r.err, c.says) {
			t.Errorf("%s: exit %d, want %d and %q\n%s%s", c.line, r.exit, c.exit, c.says, r.out, r.err)
		}
	}
	if _, err := redis.Do(t.Context(), "CONFIG", "SET", "maxmemory", "0"); err != nil {
		t.Fatal(err)
	}
	if r := run(t, env, "status"); r.exit != 0 || strings.Contains(r.out, "memory") {
		t.Errorf("status of a Redis that has room again: exit %d\n%s%s", r.exit, r.out, r.err)
	}
}
