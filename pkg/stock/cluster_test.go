package stock

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestSlotsSpreadEvenly(t *testing.T) {
	for shards := 1; shards <= MaxShards; shards *= 2 {
		seen := make([]int, shards)
		for n := range shards {
			seen[int(slot(tag(n)))*shards/slots]++
		}
		for place, n := range seen {
			if n != 1 {
				t.Fatalf("of %d shards, %d lie in the %d. part of the slots", shards, n, place+1)
			}
		}
	}
	// Three nodes, 16 shards: no node has more than one more than another.
	perNode := make([]int, 3)
	for n := range 16 {
		perNode[int(slot(tag(n)))*3/slots]++
	}
	for _, n := range perNode {
		if n < 5 || n > 6 {
			t.Fatalf("16 shards on 3 nodes: %v", perNode)
		}
	}
}

func TestSlotsAreThoseOfRedis(t *testing.T) {
	// The examples of the Redis Cluster specification and of its command reference.
	for key, want := range map[string]uint16{"123456789": 0x31c3, "somekey": 11058, "foo": 12182} {
		if got := slot(key); got != want%slots {
			t.Errorf("slot of %q is %d, want %d", key, got, want%slots)
		}
	}
}

func clusterURL(t *testing.T, c *lab.Cluster) string {
	t.Helper()
	first, err := url.Parse(c.Nodes[0].URL())
	if err != nil {
		t.Fatal("the private server's URL cannot be read") // without the URL: it has a password
	}
	addrs := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		addrs[i] = n.Addr()
	}
	return "redis-cluster://" + first.User.String() + "@" + strings.Join(addrs, ",")
}

// lotsOfEveryShard returns one lot for each shard.
func lotsOfEveryShard(s *Stock) []drop.LotID {
	lots := make([]drop.LotID, s.Shards())
	for i, found := 0, 0; found < len(lots); i++ {
		lot := drop.LotID(fmt.Sprintf("lot-%d", i))
		if n := lot.Shard(s.Shards()); lots[n] == "" {
			lots[n] = lot
			found++
		}
	}
	return lots
}

func TestAClusterSellsFromEveryShard(t *testing.T) {
	testkit.Long(t)
	c := testkit.Cluster(t, 3)
	s := openStock(t, clusterURL(t, c))
	lots := lotsOfEveryShard(s)
	inParallel(len(lots), func(i int) {
		if err := s.Load(t.Context(), LoadRequest{Definition: drop.Definition{Lot: lots[i], Stock: 50, Limit: 2}, Epoch: 1}); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		return
	}
	// After a move each connection is told once that the slot lives elsewhere; its call was not carried out.
	untilAvailable := func(t *testing.T, lot drop.LotID, call func() error) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if err := call(); !fault.Is(err, fault.Unavailable) || time.Now().After(deadline) {
				if err != nil {
					t.Errorf("%s: %v", lot, err)
				}
				return
			}
		}
	}
	sell := func(t *testing.T, round string) {
		t.Helper()
		inParallel(4*len(lots), func(i int) {
			var out drop.Outcome
			q := drop.ReserveRequest{Lot: lots[i%len(lots)], User: fmt.Sprintf("%s-%d", round, i), Key: "k", Qty: 2}
			untilAvailable(t, q.Lot, func() (err error) {
				out, err = s.Reserve(t.Context(), q)
				return err
			})
			action := []drop.Action{drop.ActConfirm, drop.ActRelease, "", ""}[i/len(lots)]
			if action != "" && !t.Failed() {
				untilAvailable(t, q.Lot, func() error {
					_, err := s.Settle(t.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: action})
					return err
				})
			}
		})
	}
	t.Run("all nodes", func(t *testing.T) {
		sell(t, "first")
		keys := make([]string, len(c.Nodes))
		for i, n := range c.Nodes {
			size, err := n.Do(t.Context(), "DBSIZE")
			if err != nil {
				t.Fatal(err)
			}
			keys[i] = size
			if size == "0" {
				t.Errorf("node %d has no key: %v", i, keys)
			}
		}
		states, err := s.LotStates(t.Context(), lots)
		if err != nil || len(states) != len(lots) {
			t.Fatalf("%d lots, %v", len(states), err)
		}
		for lot, state := range states {
			if !state.Balanced() || state.Held != 4 || state.Sold != 2 || !state.Sells() {
				t.Errorf("lot %s: %+v", lot, state)
			}
		}
		if found, err := s.Lots(t.Context()); err != nil || len(found) != len(lots) {
			t.Errorf("the cluster has lots %v, %v", found, err)
		}
	})
	t.Run("scripts forgotten by every node", func(t *testing.T) {
		for _, n := range c.Nodes {
			if _, err := n.Do(t.Context(), "FUNCTION", "FLUSH"); err != nil {
				t.Fatal(err)
			}
		}
		sell(t, "second")
	})
	t.Run("outbox and sweep of every shard", func(t *testing.T) {
		for shard, lot := range lots {
			if got := seqsOf(t, read(t, s, shard, "c"), lot); len(got) != 13 {
				t.Errorf("lot %s has %d events", lot, len(got))
			}
			if _, err := s.Sweep(t.Context(), shard, 10); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("a slot moves", func(t *testing.T) {
		lot := lots[0]
		state, err := s.Lot(t.Context(), lot)
		if err != nil {
			t.Fatal(err)
		}
		moveSlot(t, c, s.shardOf(lot).keys.prefix)
		// The new owner is another server: the shard's door is shut until somebody has looked.
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			_, err := s.Reserve(context.Background(), drop.ReserveRequest{Lot: lot, User: "moved", Key: "k", Qty: 1})
			if err == nil {
				t.Fatal("the slot's new owner took a hold before anybody had looked")
			}
			return fault.Is(err, fault.LotFrozen), err.Error()
		})
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			seen, err := s.ShardState(context.Background(), 0)
			if err == nil && seen.Closed() {
				err = s.Reopen(context.Background(), seen)
			}
			return err == nil && seen.Run == seen.OpenRun, fmt.Sprintf("%+v, %v", seen, err)
		})
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			_, err := s.Reserve(context.Background(), drop.ReserveRequest{Lot: lot, User: "moved", Key: "k", Qty: 1})
			return err == nil, fmt.Sprint(err)
		})
		wantTotals(t, s, lot, state.Available-1, state.Held+1, state.Sold)
		sell(t, "third")
	})
}

// moveSlot gives the slot of a hash tag to another node, keys and all.
func moveSlot(t *testing.T, c *lab.Cluster, tagged string) {
	t.Helper()
	do := func(n *lab.Redis, args ...string) string {
		t.Helper()
		out, err := n.Do(t.Context(), args...)
		if err != nil {
			t.Fatalf("%v: %v", args[:2], err)
		}
		return out
	}
	number := do(c.Nodes[0], "CLUSTER", "KEYSLOT", tagged)
	var from, to *lab.Redis
	for _, n := range c.Nodes {
		if do(n, "CLUSTER", "COUNTKEYSINSLOT", number) != "0" {
			from = n
		} else {
			to = n
		}
	}
	fromID, toID := do(from, "CLUSTER", "MYID"), do(to, "CLUSTER", "MYID")
	do(to, "CLUSTER", "SETSLOT", number, "IMPORTING", fromID)
	do(from, "CLUSTER", "SETSLOT", number, "MIGRATING", toID)
	target, err := url.Parse(to.URL())
	if err != nil {
		t.Fatal("the private server's URL cannot be read")
	}
	password, _ := target.User.Password()
	keys := strings.Fields(do(from, "CLUSTER", "GETKEYSINSLOT", number, "1000"))
	args := append([]string{"MIGRATE", "127.0.0.1", target.Port(), "", "0", "5000", "AUTH", password, "KEYS"}, keys...)
	if _, err := from.Do(t.Context(), args...); err != nil {
		t.Fatal("MIGRATE failed") // without its arguments: they have the password
	}
	for _, n := range []*lab.Redis{to, from} {
		do(n, "CLUSTER", "SETSLOT", number, "NODE", toID)
	}
	for _, n := range c.Nodes {
		if n != to && n != from {
			do(n, "CLUSTER", "SETSLOT", number, "NODE", toID)
		}
	}
}
