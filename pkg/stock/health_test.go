package stock

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// theNode takes a look at an engine on one server.
func theNode(t *testing.T, s *Stock) (drop.NodeHealth, drop.StockHealth) {
	t.Helper()
	h, err := s.Health(t.Context())
	if err != nil || len(h.Nodes) != 1 {
		t.Fatalf("%+v, %v", h, err)
	}
	return h.Nodes[0], h
}

func TestHealthTellsWhatTheServerTells(t *testing.T) {
	s, rdb, r := newShop(t)
	newLot(t, s, drop.Definition{Lot: "hat", Stock: 5})
	n, h := theNode(t, s)
	if n.Name != r.Addr() || n.Replica || n.Info["role"] != "master" || n.Config["appendfsync"] != "everysec" || n.NoConfig+n.NoInfo+n.NoDoors+n.NoScripts != "" {
		t.Errorf("%+v", n)
	}
	if n.Doubt <= 0 || n.Doubt > time.Second || n.Offset > time.Second || n.Offset < -time.Second || n.Ours != len(scripts) || n.Scripts != n.Ours || len(n.Others) != 0 {
		t.Errorf("clock %s ± %s, %d of %d scripts", n.Offset, n.Doubt, n.Scripts, n.Ours)
	}
	home := drop.LotID("hat").Shard(s.Shards())
	for _, d := range n.Doors {
		if d.Exists != (d.Shard == home) || d.Exists && (d.Closed() || d.Shards != s.Shards() || d.Installation != s.opt.Installation) {
			t.Errorf("%+v", d)
		}
	}
	if len(n.Doors) != s.Shards() || len(h.Outbox) != s.Shards() || len(h.Unknown) != 0 || len(h.Frozen) != 0 {
		t.Errorf("%+v", h)
	}
	if err := rdb.HSet(t.Context(), s.shards[home].keys.meta, "frozen", "operator").Err(); err != nil {
		t.Fatal(err)
	}
	if _, h := theNode(t, s); len(h.Frozen[fault.FreezeOperator]) != 1 {
		t.Errorf("frozen are %v", h.Frozen)
	}
}

// TestHealthSaysWhatItMayNotAsk looks as a user of a managed Redis does.
func TestHealthSaysWhatItMayNotAsk(t *testing.T) {
	s, _, r := newShop(t)
	newLot(t, s, drop.Definition{Lot: "hat", Stock: 5})
	if _, err := r.Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">secret", "~drop:*", "+@all", "-config"); err != nil {
		t.Fatal(err)
	}
	s = openStock(t, "redis://shop:secret@"+r.Addr())
	n, h := theNode(t, s)
	if n.Config != nil || !strings.Contains(n.NoConfig, "NOPERM") || n.Info["maxmemory_policy"] != "noeviction" || len(n.Doors) != s.Shards() || len(h.Unknown) != 0 {
		t.Errorf("%+v", h)
	}
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Health(t.Context()); !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("of a server that is gone: %v", err)
	}
}

func TestHealthOfAClusterGoesOnWithoutOneServer(t *testing.T) {
	testkit.Long(t)
	c := testkit.Cluster(t, 3)
	s := openStock(t, clusterURL(t, c))
	for i := range 40 {
		newLot(t, s, drop.Definition{Lot: drop.LotID("lot-" + strconv.Itoa(i)), Stock: 5})
	}
	check := func(silent int) {
		t.Helper()
		h, err := s.Health(t.Context())
		if err != nil || len(h.Nodes) != 3 {
			t.Fatalf("%+v, %v", h, err)
		}
		shards, down := 0, 0
		for _, n := range h.Nodes {
			shards += len(n.Doors)
			for _, d := range n.Doors {
				if d.Closed() {
					t.Errorf("%s: %+v", n.Name, d)
				}
			}
			if n.Err != nil {
				down++
			}
		}
		if down != silent || (shards == s.Shards()) != (silent == 0) || len(h.Outbox) != shards || (len(h.Unknown) == 0) != (silent == 0) {
			t.Errorf("%d servers silent, %d shards seen, %d outboxes, unknown %v", down, shards, len(h.Outbox), h.Unknown)
		}
	}
	check(0)
	if err := c.Nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	check(1)
}

func TestHealthLooksAtReplicasBehindSentinels(t *testing.T) {
	testkit.Long(t)
	w := testkit.Watched(t, 1)
	s := openStock(t, w.URL())
	newLot(t, s, drop.Definition{Lot: "hat", Stock: 5})
	look := func() (primary, replica drop.NodeHealth) {
		t.Helper()
		h, err := s.Health(t.Context())
		if err != nil || len(h.Nodes) != 2 {
			t.Fatalf("%+v, %v", h, err)
		}
		return h.Nodes[0], h.Nodes[1]
	}
	primary, replica := look()
	if primary.Replica || primary.Info["role"] != "master" || len(primary.Doors) != s.Shards() || !strings.HasPrefix(primary.Name, "127.0.0.1:") {
		t.Errorf("the primary: %+v", primary)
	}
	if !replica.Replica || replica.Info["role"] != "slave" || replica.Info["master_link_status"] != "up" || len(replica.Doors) != 0 || replica.Config["save"] != primary.Config["save"] {
		t.Errorf("the replica: %+v", replica)
	}
	if err := w.Servers[1].Kill(); err != nil {
		t.Fatal(err)
	}
	if _, replica := look(); !replica.Replica || replica.Err == nil {
		t.Errorf("the replica that is gone: %+v", replica)
	}
}

func TestPreflightAsksTheServersOfTheShards(t *testing.T) {
	s, rdb, r := newShop(t)
	newLot(t, s, drop.Definition{Lot: "hat", Stock: 5})
	shard := drop.LotID("hat").Shard(s.Shards())
	if err := rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Preflight(t.Context(), []int{shard})
	if err != nil || len(nodes) != 1 || nodes[0].Info["maxmemory_policy"] != "allkeys-lru" || len(nodes[0].Doors) != 1 || nodes[0].Doors[0].Shard != shard {
		t.Errorf("%+v, %v", nodes, err)
	}
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	if nodes, err := s.Preflight(t.Context(), []int{shard}); err != nil || nodes[0].Err == nil {
		t.Errorf("of a server that is gone: %+v, %v", nodes, err)
	}
}
