package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestAKilledRepairIsAccountedForAndRepeated kills reconcile --repair after it has written down what it will repair and
// before Redis has done it: the history shows a repair that did not end, nothing is changed, and the next run repairs.
func TestAKilledRepairIsAccountedForAndRepeated(t *testing.T) {
	testkit.Long(t)
	redis, db := testkit.Redis(t), testkit.Postgres(t)
	run := func(args ...string) *exec.Cmd {
		cmd := as("dropctl", args...)
		cmd.Env = append(cmd.Env, "DROPCTL_REDIS_URL="+redis.URL(), "DROPCTL_DATABASE_URL="+db.URL(lab.Owner), "DROPCTL_OUTPUT=json")
		return cmd
	}
	must := func(want int, args ...string) []byte {
		t.Helper()
		out, err := run(args...).Output()
		if exit := exitOf(t, err); exit != want {
			t.Fatalf("%v: exit %d\n%s", args, exit, out)
		}
		return out
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := redis.Do(t.Context(), args...)
		if err != nil {
			t.Fatalf("%s: %v", args[0], err)
		}
		return strings.TrimSpace(out)
	}
	must(0, "migrate", "up", "--shards", "4")
	must(0, "seed", "truffle", "--stock", "10")
	must(0, "reserve", "truffle", "--user", "ada", "--qty", "2")
	must(0, "worker", "--until-idle")
	key := do("KEYS", "drop:*:lot:truffle")
	mark := drop.MarkOf("truffle", "ada")
	record := do("HGET", key, mark)
	attempt := mark + record[1:1+drop.AttemptLen-drop.MarkLen]
	do("HSET", key, attempt, "h"+record[1+drop.AttemptLen-drop.MarkLen:], mark, "7\t7\t\tada") // as if more had happened to it
	sound := "2\t0\t" + attempt + "\tada"

	do("CLIENT", "PAUSE", "60000", "WRITE") // looks are answered, repairs are not
	repair := run("reconcile", "truffle", "--repair", "--reason", "ticket 7")
	if err := repair.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		open := db.SQL(t, `SELECT count(*) FROM repairs WHERE outcome = ''`)
		return open == "1" && strings.Contains(do("INFO", "clients"), "blocked_clients:1"), "repairs under way: " + open
	})
	if err := repair.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = repair.Wait()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		clients := do("INFO", "clients")
		return strings.Contains(clients, "blocked_clients:0"), clients
	})
	do("CLIENT", "UNPAUSE")
	if now := do("HGET", key, mark); now != "7\t7\t\tada" {
		t.Fatalf("the killed repair acted: %q", now)
	}

	must(0, "reconcile", "truffle", "--repair", "--reason", "ticket 7")
	if now := do("HGET", key, mark); now != sound {
		t.Errorf("the counters are %q, not %q", now, sound)
	}
	must(0, "reconcile", "--deep")
	type repaired struct{ Outcome, Reason, Detail string }
	var past []struct {
		What, Note string
		Repaired   int
		Repairs    []repaired
	}
	if err := json.Unmarshal(must(0, "reconcile", "--history"), &past); err != nil || len(past) != 3 {
		t.Fatal(err, past)
	}
	if p := past[2]; p.Note != "ended with its process" || p.Repaired != 0 || fmt.Sprint(p.Repairs) != fmt.Sprint([]repaired{{"", "ticket 7", ""}}) {
		t.Errorf("of the killed run: %+v", p)
	}
	if p := past[1]; p.What != "reconcile truffle --repair" || p.Repaired != 1 || fmt.Sprint(p.Repairs) != fmt.Sprint([]repaired{{"done", "ticket 7", "1 of 1 repaired"}}) {
		t.Errorf("of the next run: %+v", p)
	}
}
