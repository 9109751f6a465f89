package stock

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Health asks every server. A server that is silent is part of the answer; the error says that there was none to ask.
func (s *Stock) Health(ctx context.Context) (drop.StockHealth, error) {
	shards := make([]int, len(s.shards))
	for i := range shards {
		shards[i] = i
	}
	homes, err := s.homes(ctx, shards)
	if err != nil {
		return drop.StockHealth{}, err
	}
	var mu sync.Mutex
	if err := s.server.eachNode(ctx, func(n *redis.Client) error { // those without a shard of ours too
		mu.Lock()
		defer mu.Unlock()
		homes[n] = slices.Clip(homes[n]) // an entry at least
		return nil
	}); err != nil {
		return drop.StockHealth{}, wireFault(s.target, err, false)
	}
	primary, replicas, err := s.watched(ctx)
	if err != nil {
		return drop.StockHealth{}, err
	}
	h := drop.StockHealth{Unknown: map[string]string{}}
	h.Nodes = s.examine(ctx, homes, primary)
	for _, opt := range replicas {
		h.Nodes = append(h.Nodes, s.examineReplica(ctx, opt))
	}
	if allSilent(h.Nodes) {
		return drop.StockHealth{}, wireFault(s.target, h.Nodes[0].Err, false)
	}
	s.examineLots(ctx, &h)
	return h, nil
}

// Preflight asks the servers of some shards, in one round trip, what speaks against selling from them.
func (s *Stock) Preflight(ctx context.Context, shards []int) ([]drop.NodeHealth, error) {
	homes, err := s.homes(ctx, shards)
	if err != nil {
		return nil, err
	}
	return s.askAll(homes, func(n *redis.Client, shards []int) drop.NodeHealth { return s.ask(ctx, n, shards) }), nil
}

// homes says which server has which of the shards.
func (s *Stock) homes(ctx context.Context, shards []int) (map[*redis.Client][]int, error) {
	homes := map[*redis.Client][]int{}
	for _, n := range shards {
		node, err := s.server.node(ctx, s.shards[n].keys.meta)
		if err != nil {
			return nil, wireFault(s.target, err, false)
		}
		homes[node] = append(homes[node], n)
	}
	return homes, nil
}

func (s *Stock) askAll(homes map[*redis.Client][]int, ask func(*redis.Client, []int) drop.NodeHealth) []drop.NodeHealth {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var nodes []drop.NodeHealth
	for client, shards := range homes {
		wg.Go(func() {
			n := ask(client, shards)
			mu.Lock()
			defer mu.Unlock()
			nodes = append(nodes, n)
		})
	}
	wg.Wait()
	return nodes
}

// examine asks servers everything. A primary that Sentinel found has no address in its client's options.
func (s *Stock) examine(ctx context.Context, homes map[*redis.Client][]int, primary string) []drop.NodeHealth {
	return s.askAll(homes, func(client *redis.Client, shards []int) drop.NodeHealth {
		n := s.ask(ctx, client, shards)
		if primary != "" {
			n.Name = primary
		}
		if n.Err == nil {
			askScripts(ctx, client, &n)
			askClock(ctx, client, &n)
		}
		return n
	})
}

// configNames are the directives that are looked at.
var configNames = []any{"CONFIG", "GET", "maxmemory-policy", "appendfsync", "save", "stop-writes-on-bgsave-error",
	"min-replicas-to-write", "min-replicas-max-lag", "notify-keyspace-events", "cluster-require-full-coverage"}

// ask reads, in one round trip, what decides whether the server may be sold from.
func (s *Stock) ask(ctx context.Context, client *redis.Client, shards []int) drop.NodeHealth {
	n := drop.NodeHealth{Name: client.Options().Addr, Ours: len(scripts)}
	pipe := client.Pipeline()
	info, config := pipe.Info(ctx), redis.NewMapStringStringCmd(ctx, configNames...)
	_ = pipe.Process(ctx, config)
	doors := make([]*redis.SliceCmd, len(shards))
	types := make([]typeLook, len(shards))
	for i, shard := range shards {
		types[i] = lookAtTypes(ctx, pipe, s.shards[shard].keys.gated())
		doors[i] = pipe.HMGet(ctx, s.shards[shard].keys.meta, "owner", "run", "frozen", "opened")
	}
	level := s.level.ask(ctx, pipe)
	_, _ = pipe.Exec(ctx) // each command has its own error
	if err := info.Err(); err != nil && (!serverSaid(err) || hasAnyPrefix(err.Error(), "NOAUTH", "WRONGPASS")) {
		n.Err = err
		return n
	}
	n.Info, n.NoInfo = readInfo(info.Val()), whyNot(info.Err())
	n.Config, n.NoConfig = config.Val(), whyNot(config.Err())
	if _, n.Weak = s.judge(level); n.Weak != "" {
		n.Remedy = s.level.remedy()
	}
	for i, shard := range shards {
		n.Misplaced = append(n.Misplaced, misplacedKeys(types[i])...)
		if err := doors[i].Err(); err != nil {
			n.NoDoors = whyNot(err)
			continue
		}
		n.Doors = append(n.Doors, readDoor(shard, doors[i].Val(), n.Info))
	}
	return n
}

// MisplacedKeys returns, of each shard that has any, the keys of ours that something else is in, lots left out: those say so
// themselves. It takes one round trip.
func (s *Stock) MisplacedKeys(ctx context.Context) (map[int][]drop.MisplacedKey, error) {
	pipe := s.server.Pipeline()
	looks := make([]typeLook, len(s.shards))
	for i, sh := range s.shards {
		looks[i] = lookAtTypes(ctx, pipe, sh.keys.gated())
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wireFault(s.target, err, false)
	}
	found := map[int][]drop.MisplacedKey{}
	for i, look := range looks {
		if keys := misplacedKeys(look); len(keys) > 0 {
			found[i] = keys
		}
	}
	return found, nil
}

func misplacedKeys(look typeLook) (keys []drop.MisplacedKey) {
	for _, m := range look.misplaced() {
		keys = append(keys, drop.MisplacedKey{Key: m.key, What: m.String(), Fix: m.fix()})
	}
	return keys
}

// askScripts finds out how many of this program's scripts the server has ready, and of which other versions it has any.
func askScripts(ctx context.Context, client *redis.Client, n *drop.NodeHealth) {
	libraries, err := client.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: lua.Prefix + "*"}).Result()
	n.NoScripts = whyNot(err)
	for _, library := range libraries {
		if library.Name == libraryName {
			n.Scripts = len(library.Functions)
		} else {
			n.Others = append(n.Others, library.Name)
		}
	}
}

// askClock compares clocks, on a connection that is already there. The answer was given somewhere within the round trip.
func askClock(ctx context.Context, client *redis.Client, n *drop.NodeHealth) {
	start := time.Now()
	clock, err := client.Time(ctx).Result()
	if err == nil {
		n.Doubt = max(time.Since(start)/2, 1)
		n.Offset = clock.Sub(start.Add(n.Doubt))
	}
}

func readDoor(shard int, meta []any, info map[string]string) drop.ShardState {
	text := func(i int) string { t, _ := meta[i].(string); return t }
	st := drop.ShardState{Shard: shard, Exists: text(0) != "", OpenRun: text(1), Frozen: text(2), Opened: text(3), Run: life(info, text(1))}
	if st.Exists {
		st.Installation, st.Shards, _ = readOwner(text(0)) // a P that cannot be read is 0, and no installation has that
	}
	return st
}

// readInfo reads the lines of INFO, name:value.
func readInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// whyNot words why a server would not tell something; "" if it did.
func whyNot(err error) string {
	switch {
	case err == nil:
		return ""
	case serverSaid(err) && strings.HasPrefix(err.Error(), "NOPERM"):
		return "the Redis user may not ask for it (NOPERM)"
	case serverSaid(err) && strings.Contains(err.Error(), "unknown command"):
		return "the server has no such command"
	}
	return err.Error()
}

func allSilent(nodes []drop.NodeHealth) bool {
	for _, n := range nodes {
		if n.Err == nil {
			return false
		}
	}
	return true
}

// examineLots looks at outbox and lots of the servers that answered: the others would only let it wait.
func (s *Stock) examineLots(ctx context.Context, h *drop.StockHealth) {
	var shards []int
	for _, n := range h.Nodes {
		for _, d := range n.Doors {
			shards = append(shards, d.Shard)
		}
	}
	if len(shards) < len(s.shards) {
		const why = "a server with shards did not answer, or does not let them be read"
		h.Unknown["outbox"], h.Unknown["lots"] = why, why
	}
	for _, shard := range shards {
		out, err := s.OutboxState(ctx, shard)
		if err != nil {
			h.Unknown["outbox"] = fault.As(err).Error()
			continue
		}
		h.Outbox = append(h.Outbox, out)
	}
	lots, err := s.LotsOf(ctx, shards)
	states := map[drop.LotID]drop.LotState{}
	if err == nil {
		states, err = s.LotStates(ctx, lots)
	}
	if err != nil {
		h.Unknown["lots"] = fault.As(err).Error()
	}
	h.Lots, h.Frozen = states, map[fault.Code][]drop.LotID{}
	for _, lot := range lots {
		if st, ok := states[lot]; ok && st.FreezeReason() != "" {
			h.Frozen[st.FreezeReason()] = append(h.Frozen[st.FreezeReason()], lot)
		}
	}
}

// watched asks the Sentinels for the primary's address and for its replicas; nothing for another kind of URL.
func (s *Stock) watched(ctx context.Context) (primary string, replicas []*redis.Options, err error) {
	rest, ok := strings.CutPrefix(s.opt.URL, "redis-sentinel://")
	if !ok {
		return "", nil, nil
	}
	u, hosts, err := splitHosts("redis", rest)
	if err != nil {
		return "", nil, err
	}
	master := strings.Trim(u.Path, "/")
	u.Path = ""
	var addresses []string
	for _, host := range hosts {
		if primary, addresses, err = s.askSentinel(ctx, host, master); err == nil {
			break
		}
	}
	if err != nil {
		return "", nil, wireFault(s.target, err, false)
	}
	for _, address := range addresses {
		opt, err := redis.ParseURL(u.String()) // user, password and database are the primary's
		if err != nil {
			return "", nil, err
		}
		s.opt.tune(opt)
		opt.Addr = address
		replicas = append(replicas, opt)
	}
	return primary, replicas, nil
}

func (s *Stock) askSentinel(ctx context.Context, host, master string) (primary string, replicas []string, err error) {
	opt := &redis.Options{Addr: host}
	s.opt.tune(opt)
	opt.Password = "" // it is Redis', not the Sentinels'
	sentinel := redis.NewSentinelClient(opt)
	defer func() { _ = sentinel.Close() }()
	at, err := sentinel.GetMasterAddrByName(ctx, master).Result()
	if err != nil {
		return "", nil, err
	}
	followers, err := sentinel.Replicas(ctx, master).Result()
	for _, f := range followers {
		replicas = append(replicas, net.JoinHostPort(f["ip"], f["port"]))
	}
	return net.JoinHostPort(at[0], at[1]), replicas, err
}

// examineReplica asks a replica on a connection of its own.
func (s *Stock) examineReplica(ctx context.Context, opt *redis.Options) drop.NodeHealth {
	client := redis.NewClient(opt)
	defer func() { _ = client.Close() }()
	n := s.ask(ctx, client, nil)
	if n.Replica = true; n.Err == nil {
		askClock(ctx, client, &n)
	}
	return n
}
