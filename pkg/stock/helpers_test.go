package stock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// rounds returns how often a test repeats itself: fewer times with -short.
func rounds(normal, short int) int {
	if testing.Short() {
		return short
	}
	return normal
}

// rawClient speaks to the server past the engine, to look at its keys and to damage them.
func rawClient(t testing.TB, r *lab.Redis) *redis.Client {
	t.Helper()
	opt, err := redis.ParseURL(r.URL())
	if err != nil {
		t.Fatal("the private server's URL cannot be read") // without the URL: it has a password
	}
	opt.ReadTimeout = 10 * time.Second
	c := redis.NewClient(opt)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// newShop starts a server with an engine on it.
func newShop(t testing.TB, change ...func(*Options)) (*Stock, *redis.Client, *lab.Redis) {
	t.Helper()
	r := testkit.Redis(t)
	return openStock(t, r.URL(), change...), rawClient(t, r), r
}

// passTime lets time pass for some lots of one shard without waiting for it: every time that Redis has stored moves
// back by d. Redis' clock cannot be set, but nothing can tell a later clock from earlier times.
func passTime(t testing.TB, s *Stock, rdb *redis.Client, d time.Duration, lots ...drop.LotID) {
	t.Helper()
	for _, lot := range lots {
		sh := s.shardOf(lot)
		if err := rdb.Eval(t.Context(), passTimeScript, sh.keys.gated(lot), d.Milliseconds(), string(lot)).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

const passTimeScript = `
local d, lot = tonumber(ARGV[1]), ARGV[2]
local function back(text) return (string.gsub(text, '%d%d%d%d%d%d%d%d%d%d%d*', function(n) return string.format('%d', n - d) end)) end
local function fields(text)
  local f = {}
  for field in string.gmatch(text .. '\t', '([^\t]*)\t') do f[#f + 1] = field end
  return f
end
local function move(text, ...)
  local f = fields(text)
  for _, at in ipairs({ ... }) do f[at] = back(f[at]) end
  return table.concat(f, '\t')
end
local function moved(field, layout, ...)
  local f = { struct.unpack(layout, redis.call('HGET', KEYS[7], field)) }
  for _, at in ipairs({ ... }) do f[at] = f[at] > 0 and f[at] - d or 0 end
  return f
end
local rule = struct.pack('>i6i6i6i6i6i6ss', unpack(moved('rule', '>i6i6i6i6i6i6ss', 5, 6)))
local live = moved('live', '<dddddd', 4, 5)
live[6] = tonumber(string.sub(redis.sha1hex(rule), 1, 13), 16)
redis.call('HSET', KEYS[7], 'live', struct.pack('<dddddd', unpack(live, 1, 6)), 'rule', rule)
local times = { h = { 6, 7 }, b = {}, c = { 12 }, r = { 6 }, x = { 6 }, f = { 6 } }
local all = redis.call('HGETALL', KEYS[7])
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 1) == '#' then
    redis.call('HSET', KEYS[7], all[i], move(all[i + 1], 2, 3))
  elseif (#all[i] == 26 or #all[i] == 16) and times[string.sub(all[i + 1], 1, 1)] then
    redis.call('HSET', KEYS[7], all[i], move(all[i + 1], unpack(times[string.sub(all[i + 1], 1, 1)])))
  end
end
local due = redis.call('ZRANGEBYLEX', KEYS[4], '[' .. lot .. '\t', '(' .. lot .. '\n')
if #due > 0 then redis.call('ZREM', KEYS[4], unpack(due)) end
for _, member in ipairs(due) do redis.call('ZADD', KEYS[4], '0', (string.gsub(member, '\t(%d+)\t', function(at) return string.format('\t%013d\t', at - d) end, 1))) end
for _ = 1, redis.call('LLEN', KEYS[6]) / 2 do
  local at, lines = redis.call('LPOP', KEYS[6]), redis.call('LPOP', KEYS[6])
  for line, of in string.gmatch(lines, '(([^\t\n]+)\t[^\n]*\n)') do redis.call('RPUSH', KEYS[6], of == lot and string.format('%d', at - d) or at, line) end
end
local next = redis.call('ZSCORE', KEYS[3], lot)
if next then redis.call('ZADD', KEYS[3], string.format('%d', next - d), lot) end
redis.call('DEL', KEYS[5])
return 1`

// contents returns every key of the server with its value, for comparison. Redis' own serialisation tells a hash table
// from itself while it is rehashed, so hashes are written out in order.
func contents(t testing.TB, rdb *redis.Client) map[string]string {
	t.Helper()
	out := serialised(t, rdb)
	for key := range out {
		if kind := rdb.Type(t.Context(), key).Val(); kind != "hash" {
			continue
		}
		fields, err := rdb.HGetAll(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		text := "hash"
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			text += fmt.Sprintf(" %q=%q", name, fields[name])
		}
		out[key] = text
	}
	return out
}

// serialised returns every key of the server as RESTORE takes it.
func serialised(t testing.TB, rdb *redis.Client) map[string]string {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	pipe := rdb.Pipeline()
	values := make([]*redis.StringCmd, len(keys))
	for i, k := range keys {
		values[i] = pipe.Dump(t.Context(), k)
	}
	if _, err := pipe.Exec(t.Context()); err != nil && len(keys) > 0 {
		t.Fatal(err)
	}
	out := make(map[string]string, len(keys))
	for i, k := range keys {
		out[k] = values[i].Val()
	}
	return out
}

// history returns every event of a shard's outbox, in order. Anything in it that is no event fails the test.
func history(t testing.TB, s *Stock, rdb *redis.Client, shard int) []drop.Event {
	t.Helper()
	messages, err := rdb.XRange(context.Background(), s.shards[shard].keys.outbox, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var events []drop.Event
	for _, m := range messages {
		got, poison := entryOf(m).Decode()
		if len(poison) > 0 {
			t.Fatalf("the outbox holds what is no event: %+v", poison)
		}
		events = append(events, got...)
	}
	return events
}

// wantHistory checks that a lot's events run on without a gap and add up to its totals, and that Redis' records and
// user counters do too. It returns the lot's events.
func wantHistory(t testing.TB, s *Stock, rdb *redis.Client, lot drop.LotID) []drop.Event {
	t.Helper()
	state, err := s.Lot(context.Background(), lot)
	if err != nil {
		t.Fatal(err)
	}
	var events []drop.Event
	var sum drop.Totals
	var seq int64
	for _, e := range history(t, s, rdb, lot.Shard(s.Shards())) {
		if e.Lot != lot {
			continue
		}
		events = append(events, e)
		if seq++; e.Seq != seq {
			t.Fatalf("lot %s: event %d follows %d", lot, e.Seq, seq-1)
		}
		addEvent(&sum, e)
		if !sum.Balanced() {
			t.Fatalf("lot %s: after event %d the totals are %+v", lot, seq, sum)
		}
	}
	if sum != state.Totals || seq != state.Seq {
		t.Fatalf("lot %s: %d events add up to %+v, but Redis has %+v at seq %d", lot, seq, sum, state.Totals, state.Seq)
	}
	wantParts(t, s, lot, state.Totals)
	return events
}

// addEvent folds an event into totals.
func addEvent(sum *drop.Totals, e drop.Event) {
	if e.IsLotEvent() {
		sum.Capacity = e.Definition.Stock
	}
	held, sold, capacity := e.Delta()
	sum.Held, sum.Sold, sum.Capacity = sum.Held+held, sum.Sold+sold, sum.Capacity+capacity
	sum.Available = sum.Capacity - sum.Held - sum.Sold
}

// wantParts checks that records and user counters each add up to the lot's totals.
func wantParts(t testing.TB, s *Stock, lot drop.LotID, totals drop.Totals) {
	t.Helper()
	var records, users drop.Totals
	seen := make(map[string]bool)
	err := s.Records(context.Background(), lot, func(page []drop.Reservation) error {
		for _, r := range page {
			switch {
			case seen[r.ID.Attempt]:
			case r.State == drop.Held:
				records.Held += r.Qty
			case r.State == drop.Confirmed:
				records.Sold += r.Qty
			}
			seen[r.ID.Attempt] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	err = s.Users(context.Background(), lot, func(page []drop.UserCount) error {
		for _, u := range page {
			if !names[u.User] {
				users.Held, users.Sold = users.Held+u.Held, users.Sold+u.Bought
			}
			names[u.User] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if records.Held != totals.Held || records.Sold != totals.Sold {
		t.Fatalf("lot %s: records add up to %d held and %d sold, the lot has %+v", lot, records.Held, records.Sold, totals)
	}
	if users.Held != totals.Held || users.Sold != totals.Sold {
		t.Fatalf("lot %s: users have %d held and %d bought, the lot has %+v", lot, users.Held, users.Sold, totals)
	}
}

// inParallel runs fn n times at once and returns when all are done.
func inParallel(n int, fn func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			fn(i)
		})
	}
	close(start)
	wg.Wait()
}

// ptr returns a pointer to a value, for optional fields.
func ptr[T any](v T) *T { return &v }
