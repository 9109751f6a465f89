package testkit

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/dropctl/dropctl/pkg/lab"
)

// Forge runs statements in the ledger as its owner could who has switched the triggers off.
func Forge(t testing.TB, d Database, statements string) {
	t.Helper()
	const triggers = `DO $$ DECLARE p regclass; BEGIN
		FOR p IN SELECT relid FROM pg_partition_tree('reservation_events') UNION SELECT relid FROM pg_partition_tree('order_ledger') LOOP
			EXECUTE format('ALTER TABLE %%s %s TRIGGER USER', p);
		END LOOP; END $$;`
	d.SQL(t, "BEGIN;"+fmt.Sprintf(triggers, "DISABLE")+statements+";"+fmt.Sprintf(triggers, "ENABLE")+"COMMIT")
}

// places are where a lot keeps its numbers (layout in lua/common.lua).
var places = map[string]struct {
	field, layout string
	place         int
}{
	"available": {"live", "<dddddd", 1}, "held": {"live", "<dddddd", 2}, "seq": {"live", "<dddddd", 3}, "mark": {"live", "<dddddd", 4},
	"sold": {"totals", ">i6i6", 1}, "capacity": {"totals", ">i6i6", 2}, "epoch": {"rule", ">i6i6i6i6i6i6ss", 1}, "limit": {"rule", ">i6i6i6i6i6i6ss", 2},
}

// Plant adds to one number of a lot in Redis behind everybody's back; key is the lot's key.
func Plant(t testing.TB, r *lab.Redis, key, number string, by int64) {
	t.Helper()
	at, known := places[number]
	if !known {
		t.Fatalf("a lot has no number %q", number)
	}
	const script = `local f = { struct.unpack(ARGV[4], redis.call('HGET', KEYS[1], ARGV[1])) }
f[tonumber(ARGV[2])] = f[tonumber(ARGV[2])] + ARGV[3]
redis.call('HSET', KEYS[1], ARGV[1], struct.pack(ARGV[4], unpack(f)))
local live = { struct.unpack('<dddddd', redis.call('HGET', KEYS[1], 'live')) }
live[6] = tonumber(string.sub(redis.sha1hex(redis.call('HGET', KEYS[1], 'rule')), 1, 13), 16)
return redis.call('HSET', KEYS[1], 'live', struct.pack('<dddddd', unpack(live, 1, 6)))`
	if _, err := r.Do(t.Context(), "EVAL", script, "1", key, at.field, strconv.Itoa(at.place), strconv.FormatInt(by, 10), at.layout); err != nil {
		t.Fatalf("%s of %s: %v", at.field, key, err)
	}
}
