package stock

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func inSpace(name string) func(*Options) { return func(o *Options) { o.Space = name } }

// keysOfAll lists the keys of servers.
func keysOfAll(t *testing.T, nodes []*lab.Redis) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, n := range nodes {
		for key := range contents(t, rawClient(t, n)) {
			all[key] = true
		}
	}
	return all
}

// A space and the shop sell lots of the same names on the same cluster, and neither sees the other's. Erased, nothing is left
// of the space, and everything of the shop, and of another space whose name begins alike.
func TestASpaceOnACluster(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	c := testkit.Cluster(t, 3)
	for _, n := range c.Nodes {
		if _, err := n.Do(t.Context(), "CONFIG", "SET", "notify-keyspace-events", "Ex"); err != nil {
			t.Fatal(err)
		}
	}
	shop, space, other := openStock(t, clusterURL(t, c)), openStock(t, clusterURL(t, c), inSpace("run-1")), openStock(t, clusterURL(t, c), inSpace("run-11"))
	lots := lotsOfEveryShard(shop)
	fill := func(s *Stock, stock int64) {
		inParallel(len(lots), func(i int) {
			if err := s.Load(t.Context(), LoadRequest{Definition: drop.Definition{Lot: lots[i], Stock: stock, Hold: time.Second}, Epoch: 1}); err != nil {
				t.Error(err)
			}
		})
	}
	fill(shop, 3)
	fill(other, 1)
	before := keysOfAll(t, c.Nodes)
	fill(space, 5)
	wakes, err := space.Wakes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	inParallel(len(lots), func(i int) {
		if _, err := space.Reserve(t.Context(), drop.ReserveRequest{Lot: lots[i], User: "ann", Key: "k", Qty: 5, Hold: time.Second}); err != nil {
			t.Error(err)
		}
	})
	select {
	case n := <-wakes:
		if out, err := space.Sweep(t.Context(), n, 10); err != nil || out.Expired != 1 {
			t.Errorf("swept shard %d: %+v, %v", n, out, err)
		}
	case <-time.After(20 * time.Second):
		t.Error("no hold of the space woke anybody")
	}
	for _, s := range []*Stock{shop, space} {
		if found, err := s.Lots(t.Context()); err != nil || len(found) != len(lots) {
			t.Errorf("%d lots, %v", len(found), err)
		}
	}
	if st, err := shop.Lot(t.Context(), lots[0]); err != nil || st.Available != 3 {
		t.Errorf("the shop's lot: %+v, %v", st, err)
	}
	if err := space.Erase(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := keysOfAll(t, c.Nodes); !maps.Equal(before, after) {
		t.Errorf("before: %d keys, after: %v", len(before), after)
	}
	if _, err := space.Reserve(t.Context(), drop.ReserveRequest{Lot: lots[1], User: "bob", Key: "k", Qty: 1}); !fault.Is(err, fault.LotNotLoaded) && !fault.Is(err, fault.LotFrozen) {
		t.Errorf("a call after the end: %v", err)
	}
	if after := keysOfAll(t, c.Nodes); !maps.Equal(before, after) {
		t.Errorf("a call after the end left something: %v", after)
	}
}

func TestTheShopCannotBeErased(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "hat", Stock: 3})
	before := contents(t, rdb)
	if err := s.Erase(t.Context()); !fault.Is(err, fault.Conflict) {
		t.Errorf("erasing the shop: %v", err)
	}
	if after := contents(t, rdb); !maps.Equal(before, after) {
		t.Errorf("%s: %v", lot, after)
	}
}

func TestNamesOfSpaces(t *testing.T) {
	for _, name := range []string{"{x}", "a:b", "*", "A", "a b", "drop\n", "é", strings.Repeat("a", 41)} {
		if _, err := Open(Options{URL: "redis://localhost", Space: name}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	s, err := Open(Options{URL: "redis://localhost", Space: "run-1"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for n, sh := range s.shards {
		shop := keysOf("drop", n)
		if want := "drop:run-1:" + strings.TrimPrefix(shop.wake, "drop:"); sh.keys.wake != want {
			t.Errorf("shard %d: %s, want %s", n, sh.keys.wake, want)
		}
		if !strings.Contains(sh.keys.meta, fmt.Sprintf(":{%s}:", tag(n))) {
			t.Errorf("shard %d lost its tag: %s", n, sh.keys.meta)
		}
	}
}
