package doctor

import (
	"context"
	"errors"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

var options = Options{Profile: Development, MaxLag: time.Minute, OutboxMaxBytes: 1000, OutboxKeep: 15 * time.Minute,
	Parts: []string{"relay", "sweep"}, Version: "1.0", Now: func() time.Time { return now }}

// healthy is a primary of which nothing is to be said even in production.
func healthy() patient {
	info := map[string]string{"role": "master", "redis_version": "7.0.15", "maxmemory_policy": "noeviction", "maxmemory": "1000", "used_memory": "100",
		"aof_enabled": "1", "aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok", "rdb_last_bgsave_status": "ok", "aof_delayed_fsync": "0",
		"connected_slaves": "1", "slave0": "ip=10.0.0.2,port=6379,state=online,offset=1,lag=0", "min_slaves_good_slaves": "1", "number_of_cached_scripts": "9"}
	config := map[string]string{"appendfsync": "always", "save": "", "stop-writes-on-bgsave-error": "yes", "min-replicas-to-write": "1",
		"min-replicas-max-lag": "10", "notify-keyspace-events": "xE"}
	door := drop.ShardState{Exists: true, Installation: "shop", Shards: 4, Run: "r1", OpenRun: "r1"}
	return patient{NodeHealth: drop.NodeHealth{Name: "10.0.0.1:6379", Info: info, Config: config, Scripts: 9, Ours: 9, Doors: []drop.ShardState{door}, Doubt: time.Millisecond}}
}

// healthyBase is a PostgreSQL of which nothing is to be said either.
func healthyBase() drop.LedgerHealth {
	return drop.LedgerHealth{Version: "15.18", Number: 150018, Role: "app", Backends: 10, MaxConns: 200, PoolConns: 40, Replicas: 1, ID: "shop", Shards: 4,
		Versions: []string{"1.0"}, Parts: []string{"relay", "sweep"}, Doubt: time.Millisecond,
		Settings: map[string]string{"statement_timeout": "10s", "lock_timeout": "3s", "idle_in_transaction_session_timeout": "10s", "fsync": "on",
			"full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": "*"}}
}

type redisRule = func(patient) verdict

type redisCase struct {
	rule   redisRule
	name   string
	change func(*patient)
	want   finding
}

func info(pairs ...string) func(*patient) {
	return func(p *patient) { put(p.Info, pairs) }
}

func config(pairs ...string) func(*patient) {
	return func(p *patient) { put(p.Config, pairs) }
}

// put sets fields; one set to "-" is not told.
func put(m map[string]string, pairs []string) {
	for i := 0; i < len(pairs); i += 2 {
		if m[pairs[i]] = pairs[i+1]; pairs[i+1] == "-" {
			delete(m, pairs[i])
		}
	}
}

func both(changes ...func(*patient)) func(*patient) {
	return func(p *patient) {
		for _, c := range changes {
			c(p)
		}
	}
}

func forbidden(p *patient) { p.Config, p.NoConfig = nil, "NOPERM" }

func asReplica(p *patient) {
	p.Replica, p.Doors = true, nil
	put(p.Info, []string{"role", "slave", "master_host", "10.0.0.1", "master_port", "6379", "master_link_status", "up"})
}

func shard(change func(*drop.ShardState)) func(*patient) {
	return func(p *patient) { change(&p.Doors[0]) }
}

var redisCases = []redisCase{
	{answers, "refused", func(p *patient) { p.Err = errors.New("refused") }, silent},
	{answers, "a replica refused", func(p *patient) { p.Replica, p.Err = true, errors.New("refused") }, lostReplica},
	{answers, "loading", info("loading", "1"), loading},

	{role, "replica", info("role", "slave"), isReplica},
	{role, "replica behind Sentinel", asReplica, fine},
	{role, "not told", info("role", "-"), hidden},

	{redisVersion, "6", info("redis_version", "6.2.14"), tooOld},
	{redisVersion, "10", info("redis_version", "10.0.0"), fine},
	{redisVersion, "odd", info("redis_version", "x"), tooOld},
	{redisVersion, "not told", info("redis_version", "-"), hidden},

	{eviction, "allkeys", info("maxmemory_policy", "allkeys-lru"), canEvict},
	{eviction, "volatile", info("maxmemory_policy", "volatile-ttl"), canEvict},
	{eviction, "by CONFIG", both(info("maxmemory_policy", "-"), config("maxmemory-policy", "allkeys-lru")), canEvict},
	{eviction, "not told", info("maxmemory_policy", "-"), hidden},

	{memory, "no ceiling", info("maxmemory", "0"), noCeiling},
	{memory, "74%", info("used_memory", "749"), fine},
	{memory, "75%", info("used_memory", "750"), tight},
	{memory, "95%", info("used_memory", "950"), full},
	{memory, "not told", info("maxmemory", "-"), hidden},

	{appendOnly, "off", info("aof_enabled", "0"), noAOF},
	{appendOnly, "each second", config("appendfsync", "everysec"), syncSecond},
	{appendOnly, "each second, on a slow disk", both(config("appendfsync", "everysec"), info("aof_delayed_fsync", "3")), syncLate},
	{appendOnly, "never", config("appendfsync", "no"), syncNever},
	{appendOnly, "forbidden", forbidden, hidden},
	{appendOnly, "not told", info("aof_enabled", "-"), hidden},

	{persistence, "append-only file", info("aof_last_write_status", "err"), diskError},
	{persistence, "snapshot", both(info("rdb_last_bgsave_status", "err"), config("save", "3600 1")), diskError},
	{persistence, "snapshot nobody asked for", info("rdb_last_bgsave_status", "err"), rewriteFail},
	{persistence, "snapshot, going on", both(info("rdb_last_bgsave_status", "err"), config("save", "3600 1", "stop-writes-on-bgsave-error", "no")), rewriteFail},
	{persistence, "rewrite", info("aof_last_bgrewrite_status", "err"), rewriteFail},
	{persistence, "not told", info("rdb_last_bgsave_status", "-"), hidden},

	{durability, "less than is asked for", func(p *patient) { p.Weak, p.Remedy = "it syncs later", "let it sync" }, tooWeak},

	{restart, "empty", info("aof_enabled", "0"), startsEmpty},
	{restart, "old", both(info("aof_enabled", "0"), config("save", "3600 1")), startsOld},
	{restart, "forbidden", both(info("aof_enabled", "0"), forbidden), hidden},
	{restart, "not told", info("aof_enabled", "-"), hidden},

	{replication, "none", info("connected_slaves", "0", "slave0", "-"), fine},
	{replication, "lag", info("slave0", "ip=10.0.0.2,port=6379,state=online,offset=1,lag=11"), behind},
	{replication, "copying", info("slave0", "ip=10.0.0.2,port=6379,state=wait_bgsave,offset=1,lag=0"), behind},
	{replication, "more lag allowed", both(info("slave0", "ip=10.0.0.2,port=6379,state=online,offset=1,lag=11"), config("min-replicas-max-lag", "20")), fine},
	{replication, "not told", info("connected_slaves", "-"), hidden},
	{replication, "a replica", asReplica, fine},
	{replication, "a replica cut off", both(asReplica, info("master_link_status", "down")), behind},
	{replication, "a replica that does not tell", both(asReplica, info("master_link_status", "-")), hidden},

	{minReplicas, "too few", info("min_slaves_good_slaves", "0"), tooFew},
	{minReplicas, "split brain", config("min-replicas-to-write", "0"), splitBrain},
	{minReplicas, "one copy", both(config("min-replicas-to-write", "0"), info("slave0", "-", "min_slaves_good_slaves", "-")), oneCopy},
	{minReplicas, "no number", config("min-replicas-to-write", "x"), hidden},
	{minReplicas, "forbidden", forbidden, hidden},

	{notifications, "off", config("notify-keyspace-events", ""), pollsOnly},
	{notifications, "others", config("notify-keyspace-events", "Kx"), pollsOnly},
	{notifications, "all", config("notify-keyspace-events", "AE"), fine},
	{notifications, "forbidden", forbidden, hidden},
	{coverage, "single", info(), fine},
	{coverage, "needs all", both(info("cluster_enabled", "1"), config("cluster-require-full-coverage", "yes")), allOrNone},
	{coverage, "needs its own", both(info("cluster_enabled", "1"), config("cluster-require-full-coverage", "no")), fine},
	{coverage, "forbidden", both(info("cluster_enabled", "1"), forbidden), hidden},

	{loadedScripts, "some", func(p *patient) { p.Scripts = 0 }, fine},
	{loadedScripts, "others", func(p *patient) { p.Others = []string{"dropctl_1", "dropctl_2"} }, mixed},
	{loadedScripts, "forbidden", func(p *patient) { p.NoScripts = "NOPERM" }, hidden},

	{doors, "restarted", shard(func(d *drop.ShardState) { d.OpenRun = "r0" }), shut},
	{doors, "frozen", shard(func(d *drop.ShardState) { d.Frozen = "operator" }), shut},
	{doors, "unused", shard(func(d *drop.ShardState) { *d = drop.ShardState{} }), fine},
	{doors, "run id not told", shard(func(d *drop.ShardState) { d.Run = "" }), fine},
	{doors, "not told", func(p *patient) { p.Doors, p.NoDoors = nil, "NOPERM" }, hidden},

	{keys, "something else", func(p *patient) {
		p.Misplaced = []drop.MisplacedKey{{Key: "k", What: "it is a list", Fix: "put it aside"}}
	}, wrongKey},
	{keys, "not told", func(p *patient) { p.Doors, p.NoDoors = nil, "NOPERM" }, hidden},
}

func answers(p patient) verdict { return reachable(p.NodeHealth) }

type baseRule = func(drop.LedgerHealth, Options) verdict

var baseCases = []struct {
	rule   baseRule
	name   string
	change func(*drop.LedgerHealth)
	want   finding
}{
	{writable, "standby", func(p *drop.LedgerHealth) { p.Standby = true }, standby},
	{postgresVersion, "14", func(p *drop.LedgerHealth) { p.Number = 140011 }, tooOld},
	{migrated, "pending", func(p *drop.LedgerHealth) { p.Pending = []string{"00004"} }, notMigrated},
	{migrated, "newer", func(p *drop.LedgerHealth) { p.Newer = []int64{9} }, newerSchema},
	{timeouts, "none", func(p *drop.LedgerHealth) { p.Settings["lock_timeout"] = "0" }, noTimeout},
	{triggers, "dropped", func(p *drop.LedgerHealth) { p.Unguarded = []string{"order_ledger_3"} }, noTrigger},
	{grants, "taken away", func(p *drop.LedgerHealth) { p.Lacking = []string{"INSERT on lots"} }, noRights},
	{rights, "superuser", func(p *drop.LedgerHealth) { p.Superuser = true }, owns},
	{rights, "owner", func(p *drop.LedgerHealth) { p.Owned = []string{"lots"} }, owns},
	{rights, "may change", func(p *drop.LedgerHealth) { p.Changeable = []string{"order_ledger"} }, owns},
	{connections, "crowded", func(p *drop.LedgerHealth) { p.Backends = 170 }, crowded},
	{connections, "no room", func(p *drop.LedgerHealth) { p.Backends = 195 }, noRoom},
	{synchronous, "fsync", func(p *drop.LedgerHealth) { p.Settings["fsync"] = "off" }, commitLoses},
	{synchronous, "commit", func(p *drop.LedgerHealth) { p.Settings["synchronous_commit"] = "off" }, commitLoses},
	{synchronous, "hangs", func(p *drop.LedgerHealth) { p.Replicas = 0 }, commitHangs},
	{synchronous, "asynchronous", func(p *drop.LedgerHealth) { p.Settings["synchronous_standby_names"] = "" }, asynchronous},
	{synchronous, "alone", func(p *drop.LedgerHealth) { p.Settings["synchronous_standby_names"], p.Replicas = "", 0 }, asynchronous},
	{synchronous, "local", func(p *drop.LedgerHealth) { p.Settings["synchronous_commit"] = "local" }, asynchronous},
	{deadEvents, "some", func(p *drop.LedgerHealth) { p.Dead = map[fault.Code]int64{fault.StopFork: 2} }, deadLetters},
	{stoppedLots, "one", func(p *drop.LedgerHealth) { p.Stopped = []drop.StoppedLot{{Lot: "hat", Code: fault.StopFork}} }, stopped},
	{throttle, "one limit", func(p *drop.LedgerHealth) { p.Progress.Pace = drop.Pace{Limit: 500, Highest: 500} }, fine},
	{throttle, "other limits", func(p *drop.LedgerHealth) { p.Progress.Pace = drop.Pace{Limit: 500, Highest: 2000} }, otherLimits},
	{payments, "a gateway in trouble", func(p *drop.LedgerHealth) { p.Payments = drop.Payments{Open: 9, Refused: 1, Stuck: 2} }, noAnswer},
	{payments, "a refund that the gateway will not make", func(p *drop.LedgerHealth) { p.Payments = drop.Payments{Returns: 1, Refused: 1} }, refundRefused},
	{payments, "a gateway that takes its time", func(p *drop.LedgerHealth) { p.Payments = drop.Payments{Open: 9, Pending: 9} }, fine},
	{hooks, "a receiver that does not answer", func(p *drop.LedgerHealth) { p.Hooks = []drop.HookState{{FailingSince: time.Now()}} }, hookFails},
	{hooks, "notices given up", func(p *drop.LedgerHealth) { p.Hooks = []drop.HookState{{Parked: 3}} }, hookFails},
	{workers, "nobody tells hooks", func(p *drop.LedgerHealth) { p.Hooks, p.Parts = []drop.HookState{{}}, nil }, partIdle},
	{workers, "none", func(p *drop.LedgerHealth) { p.Versions, p.Parts = nil, nil }, noWorker},
	{workers, "a part", func(p *drop.LedgerHealth) { p.Parts = []string{"relay"} }, partIdle},
	{workers, "another version", func(p *drop.LedgerHealth) { p.Versions = []string{"1.0", "0.9"} }, mixed},
}

var shopCases = []struct {
	name  string
	judge func() verdict
	want  finding
}{
	{"nothing pending", func() verdict { return outboxLag(drop.StockHealth{Outbox: []drop.OutboxState{{}}}, options) }, fine},
	{"pending", func() verdict {
		return outboxLag(drop.StockHealth{Outbox: []drop.OutboxState{{Pending: 1, Oldest: now.Add(-time.Minute)}}}, options)
	}, fine},
	{"pending for long", func() verdict {
		return outboxLag(drop.StockHealth{Outbox: []drop.OutboxState{{Pending: 1, Oldest: now.Add(-time.Minute - 1)}}}, options)
	}, lagging},
	{"outbox not known", func() verdict { return outboxLag(drop.StockHealth{Unknown: map[string]string{"outbox": "x"}}, options) }, hidden},
	{"small", func() verdict { return outboxSize(drop.StockHealth{Outbox: []drop.OutboxState{{Bytes: 499}}}, options) }, fine},
	{"half", func() verdict { return outboxSize(drop.StockHealth{Outbox: []drop.OutboxState{{Bytes: 500}}}, options) }, halfFull},
	{"nearly full", func() verdict {
		return outboxSize(drop.StockHealth{Outbox: []drop.OutboxState{{}, {Bytes: 900}}}, options)
	}, nearlyFull},
	{"size not known", func() verdict {
		return outboxSize(drop.StockHealth{Unknown: map[string]string{"outbox": "x"}}, options)
	}, hidden},
	{"no frozen lot", func() verdict { return frozenLots(drop.StockHealth{}) }, fine},
	{"a frozen lot", func() verdict {
		return frozenLots(drop.StockHealth{Frozen: map[fault.Code][]drop.LotID{fault.FreezeClock: {"hat"}}})
	}, notSold},
	{"lots not known", func() verdict { return frozenLots(drop.StockHealth{Unknown: map[string]string{"lots": "x"}}) }, hidden},

	{"nothing is behind", behindBy(0, 0), fine},
	{"behind, and recorded", behindBy(40, 2000), fine},
	{"behind, and nobody records", behindBy(40, 0), noWorker},
	{"backlog not known", func() verdict {
		return backlog(drop.StockHealth{}, drop.LedgerHealth{Unknown: map[string]string{"pace": "x"}}, options)
	}, hidden},

	{"both agree", owners(func(*drop.StockHealth, *drop.LedgerHealth) {}), fine},
	{"another installation", owners(func(_ *drop.StockHealth, p *drop.LedgerHealth) { p.ID = "other" }), foreign},
	{"another P", owners(func(_ *drop.StockHealth, p *drop.LedgerHealth) { p.Shards = 16 }), foreign},
	{"Redis is new", owners(func(r *drop.StockHealth, _ *drop.LedgerHealth) { r.Nodes[0].Doors[0] = drop.ShardState{} }), fine},
	{"Redis was emptied", owners(func(r *drop.StockHealth, p *drop.LedgerHealth) { r.Nodes[0].Doors[0], p.Seen = drop.ShardState{}, 3 }), emptied},
	{"Redis does not tell", owners(func(r *drop.StockHealth, p *drop.LedgerHealth) {
		r.Nodes[0].Doors, r.Nodes[0].NoDoors, p.Seen = nil, "NOPERM", 3
	}), hidden},
	{"no installation yet", owners(func(_ *drop.StockHealth, p *drop.LedgerHealth) { p.ID = "" }), hidden},

	{"clocks agree", func() verdict { return skew([]clock{{"a", 900 * time.Millisecond, 0}, {"b", 0, 0}}) }, fine},
	{"clocks may agree", func() verdict {
		return skew([]clock{{"a", 1500 * time.Millisecond, 600 * time.Millisecond}, {"b", 0, 0}})
	}, fine},
	{"clocks differ", func() verdict {
		return skew([]clock{{"a", 600 * time.Millisecond, 0}, {"b", -600 * time.Millisecond, time.Millisecond}})
	}, skewed},
}

func behindBy(events int64, limit float64) func() verdict {
	return func() verdict {
		r := drop.StockHealth{Lots: map[drop.LotID]drop.LotState{"hat": {Watermark: drop.Watermark{Seq: 100 + events}}}}
		l := drop.LedgerLot{Definition: drop.Definition{Lot: "hat"}, Watermark: drop.Watermark{Seq: 100}}
		return backlog(r, drop.LedgerHealth{Progress: drop.Progress{Lots: []drop.LedgerLot{l}, Pace: drop.Pace{Limit: limit}}}, options)
	}
}

func owners(change func(*drop.StockHealth, *drop.LedgerHealth)) func() verdict {
	return func() verdict {
		r, p := drop.StockHealth{Nodes: []drop.NodeHealth{healthy().NodeHealth}}, healthyBase()
		change(&r, &p)
		return sameInstallation(r, p)
	}
}

// TestRules lets every rule find everything it can find, and every finding be found.
func fitsFour(h drop.TopicHealth) verdict { return fits(h, 4) }

var topicCases = []struct {
	rule   func(drop.TopicHealth) verdict
	name   string
	change func(*drop.TopicHealth)
	want   finding
}{
	{fitsFour, "to be made", func(h *drop.TopicHealth) { *h = drop.TopicHealth{} }, noTopicYet},
	{fitsFour, "too many partitions", func(h *drop.TopicHealth) { h.Partitions = 5 }, wrongTopic},
	{fitsFour, "compacted", func(h *drop.TopicHealth) { h.Compacted = true }, wrongTopic},
	{acknowledges, "a partition without a leader", func(h *drop.TopicHealth) { h.Leaderless = []int{2} }, leaderless},
	{acknowledges, "a replica is missing", func(h *drop.TopicHealth) { h.Weak = []int{1} }, cannotWrite},
	{acknowledges, "one copy", func(h *drop.TopicHealth) { h.Replicas = 1 }, oneCopy},
	{acknowledges, "untold", func(h *drop.TopicHealth) { h.Needed, h.NoSettings = 0, "not allowed" }, hidden},
}

var tasksCases = []struct {
	name  string
	facts drop.TasksHealth
	want  finding
}{
	{"in order", drop.TasksHealth{Exists: true, Delivered: 500, Created: 500}, fine},
	{"of a service that tells no rate", drop.TasksHealth{Exists: true, Created: 500}, fine},
	{"not there", drop.TasksHealth{Created: 500}, noQueue},
	{"paused", drop.TasksHealth{Exists: true, Stands: "paused"}, queueStands},
	{"slower than a worker", drop.TasksHealth{Exists: true, Delivered: 10, Created: 500}, slowQueue},
	{"that we may not look at", drop.TasksHealth{Hidden: true, Created: 500}, hidden},
}

func TestRules(t *testing.T) {
	found := map[finding]bool{}
	check := func(name string, got verdict, want finding) {
		t.Helper()
		found[got.found] = true
		if got.found != want || got.what == "" {
			t.Errorf("%s: %q (%s), want %q", name, got.found, got.what, want)
		}
		if got.found != fine && got.fix == "" {
			t.Errorf("%s: no fix for %s", name, got.what)
		}
	}
	for _, c := range redisCases {
		name := ruleName(c.rule)
		check(name+" in order", c.rule(healthy()), fine)
		p := healthy()
		c.change(&p)
		check(name+", "+c.name, c.rule(p), c.want)
	}
	for _, c := range baseCases {
		name := ruleName(c.rule)
		check(name+" in order", c.rule(healthyBase(), options), fine)
		p := healthyBase()
		c.change(&p)
		check(name+", "+c.name, c.rule(p, options), c.want)
	}
	for _, c := range topicCases {
		h := drop.TopicHealth{Exists: true, Partitions: 4, Replicas: 3, Needed: 2}
		check("a topic in order", c.rule(h), fine)
		c.change(&h)
		check("a topic, "+c.name, c.rule(h), c.want)
	}
	for _, c := range tasksCases {
		check("a task queue "+c.name, delivers(c.facts), c.want)
	}
	for _, c := range shopCases {
		check(c.name, c.judge(), c.want)
	}
	for f := range levels {
		if !found[f] {
			t.Errorf("no rule finds %q", f)
		}
	}
}

func ruleName(rule any) string {
	name := runtime.FuncForPC(reflect.ValueOf(rule).Pointer()).Name()
	return name[strings.LastIndex(name, ".")+1:]
}

// TestEveryFindingHasItsLevels reads the source: a finding without levels would pass for nothing at all.
func TestEveryFindingHasItsLevels(t *testing.T) {
	source, err := os.ReadFile("levels.go")
	if err != nil {
		t.Fatal(err)
	}
	if named := strings.Count(string(source), " finding = \""); named != len(levels) {
		t.Errorf("%d findings, %d with levels", named, len(levels))
	}
	for f, l := range levels {
		if slices.Index(worstFirst, l[1]) > slices.Index(worstFirst, l[0]) {
			t.Errorf("%s: production is laxer than development", f)
		}
	}
}

func TestAttestedIsBelievedOnlyWhereTheServerIsSilent(t *testing.T) {
	vouched := map[string]string{"redis-appendfsync": "always", "redis-min-replicas-to-write": "1", "redis-save": "3600 1",
		"redis-notify-keyspace-events": "Ex", "redis-maxmemory-policy": "noeviction"}
	p := healthy()
	forbidden(&p)
	put(p.Info, []string{"maxmemory_policy", "-"})
	p.attested = vouched
	for _, rule := range []redisRule{appendOnly, minReplicas, notifications, eviction} {
		if v := rule(p); v.found != fine || !v.attested {
			t.Errorf("%s: %+v", ruleName(rule), v)
		}
	}
	put(p.Info, []string{"aof_enabled", "0"})
	if v := restart(p); v.found != startsOld || !v.attested {
		t.Errorf("restart: %+v", v)
	}
	told := healthy()
	told.attested = vouched
	put(told.Config, []string{"appendfsync", "no"})
	if v := appendOnly(told); v.found != syncNever || v.attested {
		t.Errorf("what the server tells: %+v", v)
	}
}

type side[T any] struct {
	facts T
	err   error
}

func (s side[T]) Target() string                    { return "target" }
func (s side[T]) Health(context.Context) (T, error) { return s.facts, s.err }

func TestReports(t *testing.T) {
	r := drop.StockHealth{Nodes: []drop.NodeHealth{healthy().NodeHealth}, Outbox: []drop.OutboxState{{}}}
	down := fault.New(fault.Unavailable, "connection refused")
	evicting := drop.StockHealth{Nodes: []drop.NodeHealth{healthy().NodeHealth}}
	evicting.Nodes[0].Info = maps.Clone(evicting.Nodes[0].Info)
	evicting.Nodes[0].Info["maxmemory_policy"] = "allkeys-lru"
	managed := drop.StockHealth{Nodes: []drop.NodeHealth{healthy().NodeHealth}}
	managed.Nodes[0].Config, managed.Nodes[0].NoConfig = nil, "NOPERM"
	asyncBase := healthyBase()
	asyncBase.Settings["synchronous_standby_names"] = ""
	for _, c := range []struct {
		name    string
		stores  Stores
		profile Profile
		verdict Result
		first   string // check of the first line
		lines   int
		exit    fault.Exit
	}{
		{"all is well", Stores{side[drop.StockHealth]{facts: r}, side[drop.LedgerHealth]{facts: healthyBase()}, nil, nil}, Production, OK, "reachable", 38, 0},
		{"Redis alone", Stores{Stock: side[drop.StockHealth]{facts: r}}, Production, OK, "reachable", 20, 0},
		{"eviction", Stores{Stock: side[drop.StockHealth]{facts: evicting}}, Development, Fail, "eviction", 20, 6},
		{"Redis is down", Stores{side[drop.StockHealth]{err: down}, side[drop.LedgerHealth]{facts: healthyBase()}, nil, nil}, Development, Fail, "reachable", 18, 6},
		{"both are down", Stores{side[drop.StockHealth]{err: down}, side[drop.LedgerHealth]{err: down}, nil, nil}, Development, Fail, "reachable", 2, 6},
		{"the brokers are down", Stores{nil, side[drop.LedgerHealth]{facts: healthyBase()}, side[drop.TopicHealth]{err: down}, nil}, Production, Fail, "reachable", 18, 6},
		{"the topic is of another shop", Stores{nil, side[drop.LedgerHealth]{facts: healthyBase()}, side[drop.TopicHealth]{facts: drop.TopicHealth{Exists: true, Partitions: 1, Replicas: 3, Needed: 2}}, nil}, Production, Fail, "topic", 20, 6},
		{"the task queue is paused", Stores{nil, side[drop.LedgerHealth]{facts: healthyBase()}, nil, side[drop.TasksHealth]{facts: drop.TasksHealth{Exists: true, Stands: "paused"}}}, Production, Fail, "queue", 19, 6},
		{"unknown is no failure", Stores{Stock: side[drop.StockHealth]{facts: managed}}, Production, OK, "aof", 20, 0},
		{"a warning is no failure", Stores{Ledger: side[drop.LedgerHealth]{facts: asyncBase}}, Production, Warn, "standby", 17, 0},
	} {
		o := options
		o.Profile = c.profile
		got := Run(t.Context(), c.stores, o)
		if got.Verdict != c.verdict || got.Lines[0].Check != c.first || len(got.Lines) != c.lines || fault.ExitOf(got.Err()) != c.exit ||
			got.OK+got.Warn+got.Fail+got.Unknown != c.lines {
			t.Errorf("%s: %s, %d lines, exit %d: %+v", c.name, got.Verdict, len(got.Lines), fault.ExitOf(got.Err()), got.Lines)
		}
	}
}

func TestPreflightBlocksWhatIsFatalAlone(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*patient)
		id     string
		want   fault.Code // "": may be opened
	}{
		{"in order", func(*patient) {}, "shop", ""},
		{"eviction", info("maxmemory_policy", "allkeys-lru"), "shop", fault.UnsafeRedis},
		{"replica", info("role", "slave"), "shop", fault.UnsafeRedis},
		{"disk", info("aof_last_write_status", "err"), "shop", fault.UnsafeRedis},
		{"another's data", func(*patient) {}, "other", fault.Foreign},
		{"closed door", shard(func(d *drop.ShardState) { d.OpenRun = "r0" }), "shop", fault.LotFrozen},
		{"the ledger is silent", func(*patient) {}, "", ""},
		{"nothing is told", func(p *patient) { p.Info, p.Config = nil, nil }, "shop", ""},
		{"no answer", func(p *patient) { p.Err, p.Info, p.Config, p.Doors = errors.New("timeout"), nil, nil, nil }, "shop", ""},
		{"not fatal", info("aof_enabled", "0", "maxmemory", "0"), "shop", ""},
	} {
		p := healthy()
		c.change(&p)
		blocked := Preflight([]drop.NodeHealth{p.NodeHealth}, c.id, 4)
		if code := fault.CodeOf(blocked[0]); code != c.want || c.want != "" && fault.HintOf(blocked[0]) == "" {
			t.Errorf("%s: %v", c.name, blocked)
		}
	}
}
