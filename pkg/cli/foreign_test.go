package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestOneShardOfSomebodyElse puts something else into each key of the shard of one of three lots, and then another
// installation's mark on it: what there is to know and to do of the others stays so.
func TestOneShardOfSomebodyElse(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	const shards = 4
	redis, env := newShop(t, shards)
	expect := expecting(t, env)
	taken := map[int]bool{drop.LotID("hat").Shard(shards): true}
	var other drop.LotID
	for i := 0; len(taken) < 3; i++ {
		if lot := drop.LotID(fmt.Sprint("cap-", i)); !taken[lot.Shard(shards)] {
			other, taken[lot.Shard(shards)] = lot, true
			expect(0, "created", "seed", string(lot), "--stock", "5")
		}
	}
	expect(0, "", "worker", "--until-idle", "-q")
	key, err := redis.Do(t.Context(), "KEYS", "*:lot:hat")
	if err != nil {
		t.Fatal(err)
	}
	do := func(args ...string) string {
		t.Helper()
		reply, err := redis.Do(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	base := strings.TrimSuffix(strings.TrimSpace(key), "lot:hat")
	for _, part := range []string{"outbox", "due", "meta", "lot:hat"} {
		there := do("EXISTS", base+part) == "1"
		if there {
			do("RENAME", base+part, "aside")
		}
		do("SET", base+part, "x")
		if part == "lot:hat" {
			expect(6, "damaged in Redis: hat", "status")
		} else {
			expect(6, "the key "+base+part+" is a string", "status")
			expect(6, "nothing is sold from hat", "status")
			expect(6, "RENAME "+base+part, "status")
		}
		expect(6, "2 lots are open", "status")
		expect(5, "", "--database-url", "postgres://127.0.0.1:1/none", "status")
		expect(5, "2 lots are open", "--database-url", "postgres://127.0.0.1:1/none", "status")
		do("DEL", base+part)
		if there {
			do("RENAME", "aside", base+part)
		}
	}
	expect(0, "3 lots are open", "status")
	do("HSET", base+"meta", "owner", "somebody-else/4")
	expect(6, "foreign installation: hat", "status")
	expect(6, "2 lots are open", "status")
	expect(6, "another installation", "doctor")
	expect(5, "another installation", "reserve", "hat", "--user", "ann")
	expect(0, "", "reserve", string(other), "--user", "ann")
	expect(6, "foreign_installation", "worker", "--until-idle", "-q")
	expect(0, "rebuilt", "restore", string(other), "--force", "--yes")
	expect(5, "another installation", "restore", "hat", "--force", "--yes")
}
