package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// verdict is what a rule made of the facts.
type verdict struct {
	found    finding
	what     string
	fix      string
	attested bool
}

func good(format string, args ...any) verdict {
	return verdict{found: fine, what: fmt.Sprintf(format, args...)}
}

func bad(found finding, fix, format string, args ...any) verdict {
	return verdict{found: found, fix: fix, what: fmt.Sprintf(format, args...)}
}

// notTold is the verdict on what nobody could find out.
func notTold(why, fix string) verdict { return verdict{found: hidden, what: why, fix: fix} }

// patient is a node with what an operator vouches for.
type patient struct {
	drop.NodeHealth
	attested map[string]string
}

// directive is a setting of a Redis server as far as it is known.
type directive struct {
	value    string
	known    bool
	attested bool
}

// directive looks in CONFIG, then in what is attested.
func (p patient) directive(name string) directive {
	if value, ok := p.Config[name]; ok {
		return directive{value, true, false}
	}
	value, ok := p.attested["redis-"+name]
	return directive{value, ok, ok}
}

// untold is the verdict where a directive is neither told nor attested.
func (p patient) untold(name, example string) verdict {
	why := p.NoConfig
	if why == "" {
		why = "the server does not tell"
	}
	return notTold(fmt.Sprintf("%s is not known: %s", name, why),
		fmt.Sprintf("let the Redis user run CONFIG GET, or vouch for it in the config file: attest: {redis-%s: %s}", name, example))
}

// field returns a number of INFO.
func (p patient) field(name string) (int64, bool) {
	n, err := strconv.ParseInt(p.Info[name], 10, 64)
	return n, err == nil
}

// missing is the verdict where a field of INFO is not told.
func (p patient) missing(name string) verdict {
	why := p.NoInfo
	if why == "" {
		why = "the server does not tell"
	}
	return notTold(fmt.Sprintf("%s is not known: %s", name, why), "let the Redis user run INFO")
}

// nodeRules are the checks of each Redis server; the rest of those of a primary are in primaryRules.
var nodeRules = []struct {
	check string
	judge func(patient) verdict
}{
	{"role", role}, {"version", redisVersion}, {"eviction", eviction}, {"memory", memory},
	{"aof", appendOnly}, {"persistence", persistence}, {"restart", restart}, {"replication", replication},
}

var primaryRules = []struct {
	check string
	judge func(patient) verdict
}{
	{"durability", durability}, {"min-replicas", minReplicas}, {"notifications", notifications}, {"coverage", coverage}, {"scripts", loadedScripts}, {"doors", doors}, {"keys", keys},
}

func (e *exam) redis(target string, r drop.StockHealth, err error) {
	if err != nil {
		e.say("redis", target, "reachable", unreachable(err))
		return
	}
	for _, n := range r.Nodes {
		p := patient{n, e.o.Attested}
		answer := reachable(n)
		e.say("redis", n.Name, "reachable", answer)
		if answer.found != fine {
			continue
		}
		for _, rule := range nodeRules {
			e.say("redis", n.Name, rule.check, rule.judge(p))
		}
		for _, rule := range primaryRules {
			if !n.Replica {
				e.say("redis", n.Name, rule.check, rule.judge(p))
			}
		}
	}
	e.say("redis", target, "outbox-lag", outboxLag(r, e.o))
	e.say("redis", target, "outbox-size", outboxSize(r, e.o))
	e.say("redis", target, "frozen-lots", frozenLots(r))
}

func unreachable(err error) verdict {
	fix := fault.HintOf(err)
	if own := fault.As(err).Hint; own == "" {
		fix = "check the server and its address: dropctl config view --origin"
	}
	return bad(silent, fix, "%s", fault.As(err).Error())
}

func reachable(n drop.NodeHealth) verdict {
	switch {
	case n.Err != nil && n.Replica:
		return bad(lostReplica, "see that it runs and that this machine reaches it", "the replica does not answer: %s", n.Err)
	case n.Err != nil:
		return bad(silent, "see that it runs; what lives there is not on sale until it is back", "it does not answer: %s", n.Err)
	case n.Info["loading"] == "1":
		return bad(loading, "wait until it has read its data: dropctl status --watch", "it is reading its data")
	}
	return good("it answers")
}

func role(p patient) verdict {
	is, ok := p.Info["role"]
	switch {
	case !ok:
		return p.missing("role")
	case is != "master" && !p.Replica:
		return bad(isReplica, "name the primary, or all Sentinels, in --redis-url", "it is a replica: nothing can be changed there")
	case p.Replica:
		return good("replica of %s", p.Info["master_host"]+":"+p.Info["master_port"])
	}
	return good("primary")
}

func redisVersion(p patient) verdict {
	is, ok := p.Info["redis_version"]
	if !ok {
		return p.missing("redis_version")
	}
	major, _, _ := strings.Cut(is, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return bad(tooOld, "use Redis 7.0 or newer", "Redis %s", is)
	}
	return good("Redis %s", is)
}

func eviction(p patient) verdict {
	is := directive{value: p.Info["maxmemory_policy"], known: p.Info["maxmemory_policy"] != ""}
	if !is.known {
		is = p.directive("maxmemory-policy")
	}
	var v verdict
	switch {
	case !is.known:
		return p.untold("maxmemory-policy", "noeviction")
	case is.value != "noeviction":
		v = bad(canEvict, "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf", "maxmemory-policy is %s: Redis may throw away stock and holds", is.value)
	default:
		v = good("noeviction")
	}
	v.attested = is.attested
	return v
}

func memory(p patient) verdict {
	most, ok := p.field("maxmemory")
	used, told := p.field("used_memory")
	switch {
	case !ok || !told:
		return p.missing("maxmemory")
	case most == 0:
		return bad(noCeiling, "set maxmemory to what the machine can spare", "%s used, no maxmemory: the kernel would kill Redis where it could have refused", bytes(used))
	}
	share := 100 * used / most
	say := fmt.Sprintf("%s of %s used (%d%%)", bytes(used), bytes(most), share)
	switch {
	case share >= 95:
		return bad(full, "raise maxmemory, or drain the outbox: dropctl worker --until-idle", "%s: holds are about to be refused", say)
	case share >= 75:
		return bad(tight, "raise maxmemory before the next drop", "%s", say)
	}
	return good("%s", say)
}

func appendOnly(p patient) verdict {
	on, ok := p.Info["aof_enabled"]
	switch {
	case !ok:
		return p.missing("aof_enabled")
	case on != "1":
		return bad(noAOF, "CONFIG SET appendonly yes, and the same in redis.conf", "no append-only file: a restart loses every change since the last snapshot")
	}
	fsync := p.directive("appendfsync")
	if !fsync.known {
		return p.untold("appendfsync", "always")
	}
	v := synced(p, fsync.value)
	v.attested = fsync.attested
	return v
}

// synced judges when what is written reaches the disk. Redis counts the times it wrote although a sync was under way.
func synced(p patient, fsync string) verdict {
	late, _ := p.field("aof_delayed_fsync")
	const fix = "for a lot that must not lose a hold: CONFIG SET appendfsync always"
	switch {
	case fsync == "no":
		return bad(syncNever, "CONFIG SET appendfsync everysec, or always", "appendfsync no: when a hold reaches the disk is left to the kernel")
	case fsync == "always":
		return good("appendfsync always")
	case late > 0:
		return bad(syncLate, "a faster disk, or appendfsync always", "appendfsync %s, and %d times the disk was too slow for it: more than a second may be lost", fsync, late)
	}
	return bad(syncSecond, fix, "appendfsync %s: a crash of the machine may lose the last second", fsync)
}

func persistence(p patient) verdict {
	const fix = "free space on the disk of Redis' folder, or mend it; see Redis' log"
	snapshots := p.directive("save")
	switch {
	case p.Info["aof_last_write_status"] == "err":
		return bad(diskError, fix, "the last write of the append-only file failed: Redis refuses every change (MISCONF)")
	case p.Info["rdb_last_bgsave_status"] == "err" && snapshots.known && snapshots.value != "" && p.Config["stop-writes-on-bgsave-error"] == "yes":
		return bad(diskError, fix, "the last snapshot failed: Redis refuses every change (MISCONF)")
	case p.Info["aof_last_bgrewrite_status"] == "err":
		return bad(rewriteFail, fix, "the append-only file could not be rewritten: it grows without end")
	case p.Info["rdb_last_bgsave_status"] == "err":
		return bad(rewriteFail, fix, "the last snapshot failed")
	case p.Info["rdb_last_bgsave_status"] == "":
		return p.missing("rdb_last_bgsave_status")
	}
	return good("no error on disk")
}

// durability judges whether the server can give what is asked for: an answer that has outlived a power failure, or the
// server itself.
func durability(p patient) verdict {
	if p.Weak != "" {
		return bad(tooWeak, p.Remedy, "it cannot give the durability that is asked for: %s", p.Weak)
	}
	return good("it gives what is asked for")
}

// restart judges what a server has in it that a service manager starts again at once.
func restart(p patient) verdict {
	on, ok := p.Info["aof_enabled"]
	switch {
	case !ok:
		return p.missing("aof_enabled")
	case on == "1":
		return good("it comes back with its append-only file")
	}
	snapshots := p.directive("save")
	var v verdict
	switch {
	case !snapshots.known:
		return p.untold("save", `"3600 1"`)
	case snapshots.value == "":
		v = bad(startsEmpty, "CONFIG SET appendonly yes; until then let nothing start it again by itself", "it comes back empty, and its replicas empty themselves after it")
	default:
		v = bad(startsOld, "CONFIG SET appendonly yes", "it comes back with an old snapshot, and stays shut until its lots are rebuilt")
	}
	v.attested = snapshots.attested
	return v
}

// replicaLag is how long a replica may not have been heard of, where min-replicas-max-lag does not say.
const replicaLag = 10

func replication(p patient) verdict {
	if p.Replica {
		switch p.Info["master_link_status"] {
		case "":
			return p.missing("master_link_status")
		case "up":
			return good("it follows its primary")
		}
		return bad(behind, "see that it reaches its primary; see its log", "it does not follow its primary: the link is %s", p.Info["master_link_status"])
	}
	if _, ok := p.field("connected_slaves"); !ok {
		return p.missing("connected_slaves")
	}
	most := int64(replicaLag)
	if n, err := strconv.ParseInt(p.Config["min-replicas-max-lag"], 10, 64); err == nil && n > 0 {
		most = n
	}
	var late []string
	all := p.followers()
	for _, f := range all {
		if f.state != "online" || f.lag > most {
			late = append(late, f.name)
		}
	}
	switch {
	case len(all) == 0:
		return good("no replica")
	case len(late) > 0:
		return bad(behind, "see that they run and reach the primary", "replicas not up to date: %s", strings.Join(late, ", "))
	}
	return good("%d up to date", len(all))
}

type follower struct {
	name, state string
	lag         int64 // seconds since it was last heard of
}

// followers reads INFO's slave0:ip=…,port=…,state=…,offset=…,lag=… lines.
func (p patient) followers() []follower {
	var list []follower
	for i := 0; ; i++ {
		line, ok := p.Info["slave"+strconv.Itoa(i)]
		if !ok {
			return list
		}
		part := map[string]string{}
		for field := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(field, "=")
			part[name] = value
		}
		lag, _ := strconv.ParseInt(part["lag"], 10, 64)
		list = append(list, follower{part["ip"] + ":" + part["port"], part["state"], lag})
	}
}

// minReplicas judges what a primary does that has lost sight of its replicas.
func minReplicas(p patient) verdict {
	least := p.directive("min-replicas-to-write")
	if !least.known {
		return p.untold("min-replicas-to-write", "1")
	}
	v := enoughReplicas(p, least.value)
	v.attested = least.attested
	return v
}

func enoughReplicas(p patient, least string) verdict {
	need, err := strconv.ParseInt(least, 10, 64)
	have := int64(len(p.followers()))
	if near, ok := p.field("min_slaves_good_slaves"); ok {
		have = near
	}
	switch {
	case err != nil:
		return notTold("min-replicas-to-write is no number: "+least, "write a number")
	case need > have:
		return bad(tooFew, "bring the replicas back; nothing can be sold until then", "%d of %d replicas are near enough: Redis refuses every change (NOREPLICAS)", have, need)
	case need > 0:
		return good("stops without %d near", need)
	case have > 0:
		return bad(splitBrain, "CONFIG SET min-replicas-to-write 1, and min-replicas-max-lag 10", "min-replicas-to-write is 0: a primary that is cut off goes on selling what its successor sells too")
	}
	return bad(oneCopy, "add a replica, and min-replicas-to-write 1", "no replica: when this server is lost, its lots stay shut until they are rebuilt")
}

func notifications(p patient) verdict {
	events := p.directive("notify-keyspace-events")
	if !events.known {
		return p.untold("notify-keyspace-events", "Ex")
	}
	v := good("expired keys are told")
	if !strings.Contains(events.value, "E") || !strings.ContainsAny(events.value, "xA") {
		v = bad(pollsOnly, "CONFIG SET notify-keyspace-events Ex", "no notifications: the worker looks for due holds by itself, a little later")
	}
	v.attested = events.attested
	return v
}

// coverage: whether the other servers of a cluster sell on when this one is gone.
func coverage(p patient) verdict {
	if p.Info["cluster_enabled"] != "1" {
		return good("no cluster: no server depends on another's slots")
	}
	full := p.directive("cluster-require-full-coverage")
	if !full.known {
		return p.untold("cluster-require-full-coverage", "no")
	}
	v := good("a server that is gone takes only its own lots along")
	if full.value != "no" {
		v = bad(allOrNone, "CONFIG SET cluster-require-full-coverage no", "one primary without a replica that takes over stops every lot of the cluster")
	}
	v.attested = full.attested
	return v
}

func loadedScripts(p patient) verdict {
	switch {
	case p.NoScripts != "":
		return notTold("which scripts it has is not known: "+p.NoScripts, "let the Redis user run FUNCTION LIST")
	case len(p.Others) > 0:
		return bad(mixed, "let all processes run one version, then "+remove(p.Others), "%d of %d scripts of this version are loaded, and %d libraries of other versions", p.Scripts, p.Ours, len(p.Others))
	case p.Scripts < p.Ours:
		return good("%d of %d scripts of this version are loaded, the others will be when they are needed", p.Scripts, p.Ours)
	}
	return good("all %d scripts of this version are loaded", p.Ours)
}

// remove is how libraries are deleted.
func remove(libraries []string) string {
	return "FUNCTION DELETE " + strings.Join(libraries, ", FUNCTION DELETE ")
}

// doors judges whether the shards that live on a server can be sold from.
func doors(p patient) verdict {
	closed := map[fault.Code][]int{}
	open := 0
	for _, d := range p.Doors {
		switch reason := whyShut(d); {
		case reason != "":
			closed[reason] = append(closed[reason], d.Shard)
		case d.Exists:
			open++
		}
	}
	if reasons := slices.Sorted(maps.Keys(closed)); len(reasons) > 0 {
		var say []string
		for _, reason := range reasons {
			say = append(say, fmt.Sprintf("shard %s (%s)", someNumbers(closed[reason]), reason))
		}
		return bad(shut, fault.Lookup(reasons[0]).Hint, "shut: %s", strings.Join(say, ", "))
	}
	if p.NoDoors != "" {
		return notTold("the shards' doors are not known: "+p.NoDoors, "let the Redis user read the keys drop:*")
	}
	return good("%d open, %d not used yet", open, len(p.Doors)-open)
}

// keys judges whether only dropctl writes the keys of these shards.
func keys(p patient) verdict {
	if len(p.Misplaced) == 0 && p.NoDoors != "" {
		return notTold("the shards' keys are not known: "+p.NoDoors, "let the Redis user read the keys drop:*")
	}
	if n := len(p.Misplaced); n > 0 {
		what := p.Misplaced[0].What
		if n > 1 {
			what += fmt.Sprintf(", and %d more like it", n-1)
		}
		return bad(wrongKey, p.Misplaced[0].Fix, "%s", what)
	}
	return good("nothing else is in the keys of dropctl")
}

// whyShut returns why a shard cannot be sold from, or "".
func whyShut(d drop.ShardState) fault.Code {
	switch {
	case !d.Exists:
		return ""
	case d.Frozen != "":
		return fault.Code(d.Frozen)
	case d.Run != "" && d.Closed():
		return fault.FreezeClosedDoor
	}
	return ""
}

func outboxLag(r drop.StockHealth, o Options) verdict {
	var pending int64
	var age time.Duration
	for _, s := range r.Outbox {
		pending += s.Pending
		if !s.Oldest.IsZero() {
			age = max(age, o.Now().Sub(s.Oldest))
		}
	}
	say := fmt.Sprintf("%d entries the ledger has not got, the oldest %s old", pending, fault.Duration(age.Round(time.Second)))
	switch {
	case age > o.MaxLag:
		return bad(lagging, "see that a worker runs: dropctl worker", "%s", say)
	case r.Unknown["outbox"] != "":
		return notTold("the outbox is not known: "+r.Unknown["outbox"], "see the lines about the servers")
	case pending == 0:
		return good("the ledger has everything")
	}
	return good("%s", say)
}

func outboxSize(r drop.StockHealth, o Options) verdict {
	var largest drop.OutboxState
	for _, s := range r.Outbox {
		if s.Bytes >= largest.Bytes {
			largest = s
		}
	}
	say := fmt.Sprintf("the largest, of shard %d, has %s of %s", largest.Shard, bytes(largest.Bytes), bytes(o.OutboxMaxBytes))
	switch {
	case largest.Bytes >= o.OutboxMaxBytes*9/10:
		return bad(nearlyFull, "let more workers run, or raise --outbox-max-bytes", "%s: holds are about to be refused", say)
	case largest.Bytes >= o.OutboxMaxBytes/2:
		return bad(halfFull, "let more workers run: dropctl worker", "%s", say)
	case r.Unknown["outbox"] != "":
		return notTold("the outbox is not known: "+r.Unknown["outbox"], "see the lines about the servers")
	}
	return good("%s", say)
}

func frozenLots(r drop.StockHealth) verdict {
	if reasons := slices.Sorted(maps.Keys(r.Frozen)); len(reasons) > 0 {
		var say []string
		for _, reason := range reasons {
			say = append(say, fmt.Sprintf("%s (%s)", someLots(r.Frozen[reason]), reason))
		}
		return bad(notSold, fault.Lookup(reasons[0]).Hint, "nobody can buy from %s", strings.Join(say, ", "))
	}
	if why := r.Unknown["lots"]; why != "" {
		return notTold("the lots are not known: "+why, "see the lines about the servers")
	}
	return good("none")
}
