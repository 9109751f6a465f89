package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

// TestManyLotsAreRestored loses more lots than can be locked at a time, restores one group of them and then the rest.
func TestManyLotsAreRestored(t *testing.T) {
	testkit.Long(t)
	redis, _, env := emptyShop(t, 4)
	expect := expecting(t, env)
	const lots, grouped = 120, 20
	var csv strings.Builder
	csv.WriteString("lot,stock\n")
	for i := range lots {
		group := ""
		if i < grouped {
			group = "fair:"
		}
		fmt.Fprintf(&csv, "%slot-%03d,%d\n", group, i, i)
	}
	file := filepath.Join(t.TempDir(), "lots.csv")
	if err := os.WriteFile(file, []byte(csv.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(0, "", "seed", "-f", file, "-o", "none")
	if _, err := redis.Do(t.Context(), "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	rebuilt := func(r result) int { return strings.Count(r.out, "\trebuilt\t") }
	if n := rebuilt(expect(0, "", "restore", "--group", "fair")); n != grouped {
		t.Errorf("%d lots of the group were rebuilt", n)
	}
	if n := rebuilt(expect(0, "", "restore", "--all")); n != lots-grouped {
		t.Errorf("%d lots were rebuilt after the group", n)
	}
	expect(0, "", "restore", "--all", "--dry-run", "--exit-code")
	if list := expect(0, "", "lot", "list", "-o", "name", "--quiet"); len(strings.Fields(list.out)) != lots {
		t.Errorf("on sale are\n%s", list.out)
	}
	expect(0, "", "reconcile", "--deep")
	expect(3, "", "restore", "--group", "nobody")
}

// TestAnArchiveThatBrokeOffIsFinished ends the process before and after the lot is out of Redis.
func TestAnArchiveThatBrokeOffIsFinished(t *testing.T) {
	testkit.Long(t)
	redis, db, env := emptyShop(t, 4)
	l := stores.Ledger(t, db)
	for _, out := range []bool{false, true} {
		lot := fmt.Sprint("hat-", out)
		for _, args := range [][]string{{"seed", lot, "--stock", "3", "--status", "closed"}, {"worker", "--until-idle", "-q"}} {
			if r := run(t, env, args...); r.exit != 0 {
				t.Fatalf("%v: %s", args, r.err)
			}
		}
		if _, err := l.BeginArchive(t.Context(), drop.LotID(lot), "alice"); err != nil {
			t.Fatal(err)
		}
		if out {
			if _, err := redis.Do(t.Context(), "EVAL", "return redis.call('DEL', redis.call('KEYS', '*lot:"+lot+"')[1])", "0"); err != nil {
				t.Fatal(err)
			}
		}
		if r := run(t, env, "restore", "--all"); r.exit != 0 || strings.Contains(r.out, lot) {
			t.Errorf("gone from Redis %v: exit %d\n%s%s", out, r.exit, r.out, r.err)
		}
		if r := run(t, env, "lot", "archive", lot, "--yes"); r.exit != 0 || !strings.Contains(r.out, lot+"\tarchived") {
			t.Errorf("gone from Redis %v: exit %d\n%s%s", out, r.exit, r.out, r.err)
		}
		if lots, err := l.Lots(t.Context(), []drop.LotID{drop.LotID(lot)}); err != nil || lots[0].Archive != drop.Archived {
			t.Errorf("%+v, %v", lots, err)
		}
		if r := run(t, env, "lot", "list", "-o", "name"); r.exit != 0 || r.out != "" {
			t.Errorf("Redis still has\n%s%s", r.out, r.err)
		}
	}
}

// TestAnArchivedLotThatCameBackIsPutAwayAgain: a Redis with older data has the lot as it was when it sold.
func TestAnArchivedLotThatCameBackIsPutAwayAgain(t *testing.T) {
	testkit.Long(t)
	redis, _, env := emptyShop(t, 4)
	expect := expecting(t, env)
	eval := func(script string) {
		t.Helper()
		if _, err := redis.Do(t.Context(), "EVAL", script, "0"); err != nil {
			t.Fatal(err)
		}
	}
	expect(0, "", "seed", "hat", "--stock", "3")
	expect(0, "", "seed", "cap", "--stock", "3")
	eval(`local lot = redis.call('KEYS', '*lot:hat')[1]; return redis.call('COPY', lot, 'kept ' .. lot)`)
	expect(0, "", "lot", "close", "hat")
	expect(0, "", "worker", "--until-idle", "-q")
	expect(0, "archived", "lot", "archive", "hat", "--yes")
	eval(`for _, meta in ipairs(redis.call('KEYS', '*:meta')) do redis.call('HSET', meta, 'run', 'the server before') end
		local kept = redis.call('KEYS', 'kept *')[1]
		return redis.call('RENAME', kept, string.sub(kept, 6))`)
	expect(5, "lot_frozen", "reserve", "hat", "--user", "ann")
	expect(6, "hat sells nothing (redis_ahead)", "worker", "--until-idle", "-q")
	expect(0, "", "reserve", "cap", "--user", "ann")
	expect(5, "lot_frozen", "reserve", "hat", "--user", "ann")
	expect(6, "dropctl lot archive hat", "reconcile", "hat")
	expect(4, "dropctl lot archive hat", "restore", "hat")
	expect(0, "archived", "lot", "archive", "hat", "--yes")
	expect(0, "unchanged", "lot", "archive", "hat", "--yes")
	expect(0, "", "worker", "--until-idle", "-q")
	expect(0, "", "status")
}

// TestAShardThatLostOnlyItsDoorIsRestored: as after an eviction, its lots are all there, and nobody can tell whether they
// are what they were.
func TestAShardThatLostOnlyItsDoorIsRestored(t *testing.T) {
	testkit.Long(t)
	redis, _, env := emptyShop(t, 1)
	expect := expecting(t, env)
	lose := func() {
		t.Helper()
		if _, err := redis.Do(t.Context(), "EVAL", `return redis.call('DEL', redis.call('KEYS', '*:meta')[1])`, "0"); err != nil {
			t.Fatal(err)
		}
		expect(5, "lot_not_loaded", "reserve", "hat", "--user", "bob")
	}
	expect(0, "", "seed", "hat", "--stock", "3")
	expect(0, "", "seed", "cap", "--stock", "3")
	expect(0, "", "reserve", "hat", "--user", "ann", "--key", "k")
	expect(0, "", "worker", "--until-idle", "-q")

	lose()
	expect(6, "emptied", "reconcile", "hat")
	expect(0, "rebuilt", "restore", "hat")
	expect(0, "ann", "reserve", "hat", "--user", "ann", "--key", "k")
	expect(0, "", "reserve", "cap", "--user", "cid")
	expect(0, "", "worker", "--until-idle", "-q")

	lose()
	expect(0, "rebuilt", "restore", "--all")
	expect(0, "", "reserve", "cap", "--user", "dan")
	expect(0, "", "worker", "--until-idle", "-q")
	expect(0, "2 lots ok", "reconcile", "--deep")
}

// TestAnotherShopsRedisIsLeftAlone: to archive a lot because another shop's Redis does not have it would leave it on sale.
func TestAnotherShopsRedisIsLeftAlone(t *testing.T) {
	testkit.Long(t)
	ours, theirs := testkit.Redis(t), testkit.Redis(t)
	shops := map[string]map[string]string{}
	for name, redis := range map[string]*lab.Redis{"ours": ours, "theirs": theirs} {
		db := stores.Database(t, 4)
		shops[name] = map[string]string{"DROPCTL_REDIS_URL": redis.SocketURL(), "DROPCTL_DATABASE_URL": db.URL(lab.App)}
		for _, args := range [][]string{{"seed", name, "--stock", "3", "--status", "closed"}, {"worker", "--until-idle", "-q"}} {
			if r := run(t, shops[name], args...); r.exit != 0 {
				t.Fatalf("%v: %s", args, r.err)
			}
		}
	}
	mixed := map[string]string{"DROPCTL_REDIS_URL": theirs.SocketURL(), "DROPCTL_DATABASE_URL": shops["ours"]["DROPCTL_DATABASE_URL"]}
	for _, args := range []string{"restore --all --yes", "restore ours --dry-run", "lot archive ours --yes", "lot archive ours --dry-run"} {
		if r := run(t, mixed, strings.Fields(args)...); r.exit != 5 || !strings.Contains(r.err, "(foreign_installation)") {
			t.Errorf("%s: exit %d\n%s%s", args, r.exit, r.out, r.err)
		}
	}
	if r := run(t, shops["ours"], "lot", "archive", "ours", "--yes"); r.exit != 0 || !strings.Contains(r.out, "ours\tarchived") {
		t.Errorf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
}

// TestLostRecordsOfEqualTotalsAreFoundAndRebuilt takes a buyer's record out of Redis, whose totals stay as they are: a restore
// has nothing to do by them, and says who compares the records; that one says what to run.
func TestLostRecordsOfEqualTotalsAreFoundAndRebuilt(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	redis, env := newShop(t, 4)
	expect := func(exit int, says string, args ...string) {
		t.Helper()
		if r := run(t, env, args...); r.exit != exit || !strings.Contains(r.out+r.err, says) {
			t.Errorf("%v: exit %d, want %d and %q\n%s%s", args, r.exit, exit, says, r.out, r.err)
		}
	}
	id := mustJSON[map[string]any](t, env, "reserve", "hat", "--user", "ann", "--key", "k")["id"].(string)
	expect(0, "", "confirm", id, "--payment", "p", "-o", "none")
	expect(0, "", "worker", "--until-idle", "-q")
	expect(0, "nothing to do; its records are compared by: dropctl reconcile --deep", "restore", "hat")
	key, err := redis.Do(t.Context(), "KEYS", "*:lot:hat")
	if err == nil {
		_, err = redis.Do(t.Context(), "HDEL", strings.TrimSpace(key), strings.Split(id, "~")[1])
	}
	if err != nil {
		t.Fatal(err)
	}
	expect(0, "dropctl reconcile --deep hat", "restore", "hat", "-o", "json")
	expect(6, "dropctl restore hat --force", "reconcile", "--deep", "hat")
	expect(0, "rebuilt", "restore", "hat", "--force", "--yes")
	expect(0, "", "worker", "--until-idle", "-q")
	expect(0, "ok", "reconcile", "--deep", "hat")
	expect(0, `"replayed": true`, "reserve", "hat", "--user", "ann", "--key", "k", "-o", "json")
}
