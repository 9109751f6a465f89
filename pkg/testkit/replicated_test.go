package testkit

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/lab"
)

func TestAStaleReplicaLacksWhatCameAfterTheCut(t *testing.T) {
	Long(t)
	t.Parallel()
	primary, replicas := Replicated(t, 2)
	stale, fresh := replicas[0], replicas[1]
	do(t, primary, "SET", "bottles", "7")
	if err := stale.CutReplication(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		do(t, primary, "INCR", "bottles")
	}
	if err := fresh.AwaitCopy(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	if got := do(t, fresh, "GET", "bottles"); got != "17" {
		t.Errorf("the other replica has %s bottles", got)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := stale.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := do(t, stale, "INCR", "bottles"); got != "8" {
		t.Errorf("the promoted replica counts %s, want 7 and one", got)
	}
	if err := stale.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	do(t, stale, "INCR", "bottles") // it is still a primary

	if err := fresh.Follow(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	if err := fresh.AwaitCopy(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	if got := do(t, fresh, "GET", "bottles"); got != "9" {
		t.Errorf("the replica of the new primary has %s bottles", got)
	}
}

func TestAReplicaCatchesUpAfterHealing(t *testing.T) {
	Long(t)
	t.Parallel()
	primary, replicas := Replicated(t, 1, lab.RedisOptions{Directives: []string{"min-replicas-to-write 1", "min-replicas-max-lag 2"}})
	do(t, primary, "SET", "bottles", "7")
	if err := replicas[0].CutReplication(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	refused(t, primary, "NOREPLICAS", "INCR", "bottles")
	if err := replicas[0].HealReplication(t.Context()); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := primary.Do(t.Context(), "INCR", "bottles")
		return err == nil, "the healed replica does not count"
	})
	if err := replicas[0].AwaitCopy(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	if got := do(t, replicas[0], "GET", "bottles"); got != "8" {
		t.Errorf("the healed replica has %s bottles", got)
	}

	// A paused replica stays connected and stops counting only when its lag is too large.
	if err := replicas[0].Pause(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := primary.Do(t.Context(), "INCR", "bottles")
		return err != nil && strings.Contains(err.Error(), "NOREPLICAS"), "the paused replica still counts"
	})
}

func TestNoWriteSlipsThroughBetweenCopyAndCut(t *testing.T) {
	Long(t)
	t.Parallel()
	primary, replicas := Replicated(t, 1)
	c := client(t, primary.URL())
	ctx, stop := context.WithCancel(t.Context())
	acknowledged := make(chan int64, 1)
	go func() {
		var last int64
		for ctx.Err() == nil {
			if n, err := c.Incr(ctx, "bottles").Result(); err == nil {
				last = n
			}
		}
		acknowledged <- last
	}()
	Eventually(t, 30*time.Second, func() (bool, string) { return do(t, primary, "GET", "bottles") != "", "nobody writes" })
	before, err := c.Get(t.Context(), "bottles").Int64()
	if err != nil {
		t.Fatal(err)
	}
	if err := replicas[0].CutReplication(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	kept := do(t, replicas[0], "GET", "bottles")
	Eventually(t, 30*time.Second, func() (bool, string) {
		return do(t, primary, "GET", "bottles") != kept, "nobody writes after the cut"
	})
	stop()
	last := <-acknowledged
	var n int64
	if _, err := fmt.Sscan(kept, &n); err != nil || n < before || n >= last {
		t.Errorf("the replica has %s (%v); want at least %d and less than %d", kept, err, before, last)
	}
	if again := do(t, replicas[0], "GET", "bottles"); again != kept {
		t.Errorf("the replica went on to %s", again)
	}
}

func TestSentinelsReplaceADeadPrimary(t *testing.T) {
	t.Parallel()
	Long(t)
	w := Watched(t, 1)
	old := w.Servers[0]
	c := sentinelClient(t, w)
	if err := c.Set(t.Context(), "bottles", 7, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := w.Servers[1].AwaitCopy(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if err := old.Kill(); err != nil {
		t.Fatal(err)
	}
	if w.AwaitFailover(t, old) != w.Servers[1] {
		t.Fatal("the replica is not the new primary")
	}
	Eventually(t, 20*time.Second, func() (bool, string) {
		n, err := c.Incr(t.Context(), "bottles").Result()
		return err == nil && n == 8, fmt.Sprintf("the client counts %d, %v", n, err)
	})
}

func TestAnIsolatedPrimaryLosesItsOffice(t *testing.T) {
	t.Parallel()
	Long(t)
	w := Watched(t, 1, lab.RedisOptions{Directives: []string{"min-replicas-to-write 1", "min-replicas-max-lag 2"}})
	old := w.Servers[0]
	do(t, old, "SET", "bottles", "7")
	if err := w.Servers[1].AwaitCopy(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	w.Isolate(old)
	Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := old.Do(t.Context(), "SET", "bottles", "0")
		return err != nil && strings.Contains(err.Error(), "NOREPLICAS"), "the isolated primary takes writes for ever"
	})
	promoted := w.AwaitFailover(t, old)
	if got := do(t, promoted, "GET", "bottles"); got != "7" {
		t.Errorf("the new primary has %s bottles", got)
	}
	if is, err := old.IsPrimary(t.Context()); err != nil || !is {
		t.Fatalf("the isolated primary knows of its successor: %v, %v", is, err)
	}
	w.Rejoin(old)
	Eventually(t, 30*time.Second, func() (bool, string) {
		is, err := old.IsPrimary(t.Context())
		return err == nil && !is, "the former primary is not made a replica"
	})
	if err := old.AwaitCopy(t.Context(), promoted); err != nil {
		t.Fatal(err)
	}
	if got := do(t, old, "GET", "bottles"); got != "7" {
		t.Errorf("the former primary keeps %s bottles", got)
	}
}

func sentinelClient(t *testing.T, w *WatchedRedis) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(w.Servers[0].URL())
	if err != nil {
		t.Fatal("the private server's URL cannot be read") // without the URL: it has a password
	}
	f := &redis.FailoverOptions{MasterName: lab.SentinelMaster, Password: o.Password}
	for _, s := range w.Sentinels.Nodes {
		f.SentinelAddrs = append(f.SentinelAddrs, s.Addr())
	}
	c := redis.NewFailoverClient(f)
	t.Cleanup(func() { _ = c.Close() })
	if !strings.HasSuffix(w.URL(), "@"+strings.Join(f.SentinelAddrs, ",")+"/"+lab.SentinelMaster) {
		t.Error("the address for clients does not name the Sentinels")
	}
	return c
}

func TestAClusterReplicaTakesOver(t *testing.T) {
	t.Parallel()
	Long(t)
	cluster := ReplicatedCluster(t, 3, 1)
	o, err := redis.ParseClusterURL(cluster.URL())
	if err != nil {
		t.Fatal("the private cluster's URL cannot be read") // without the URL: it has a password
	}
	c := redis.NewClusterClient(o)
	defer func() { _ = c.Close() }()
	const bottles = "{a}:bottles" // in the slots of the last node
	if err := c.Set(t.Context(), bottles, 7, 0).Err(); err != nil {
		t.Fatal(err)
	}
	node, replica := cluster.Nodes[2], cluster.Replicas[2]
	if got := do(t, node, "GET", bottles); got != "7" {
		t.Fatalf("the node has %s bottles", got)
	}
	if err := replica.AwaitCopy(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := node.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := replica.AwaitPromotion(t.Context()); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 20*time.Second, func() (bool, string) {
		c.ReloadState(t.Context()) // by itself the client may keep to a dead node for a long time
		n, err := c.Incr(t.Context(), bottles).Result()
		return err == nil && n == 8, fmt.Sprintf("the client counts %d, %v", n, err)
	})
	if err := node.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := node.AwaitCopy(t.Context(), replica); err != nil { // its replica now
		t.Fatal(err)
	}
	if err := cluster.AwaitOK(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func sql(t *testing.T, p *lab.Postgres, statements string) string {
	t.Helper()
	out, err := p.SQL(t.Context(), lab.Database, statements)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAPromotedStandbyLacksWhatCameAfterTheCut(t *testing.T) {
	Long(t)
	t.Parallel()
	primary := PostgresServer(t, lab.PostgresOptions{NoFsync: true})
	standby := Standby(t, primary, false)
	sql(t, primary, "CREATE TABLE sales (n int); INSERT INTO sales SELECT generate_series(1, 7)")
	if err := standby.CutReplication(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	sql(t, primary, "INSERT INTO sales SELECT generate_series(8, 10)")
	const count = "SELECT count(*) FROM sales"
	if got := sql(t, standby, count); got != "7" {
		t.Errorf("the standby that was cut off has %s sales", got)
	}
	if err := standby.HealReplication(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.AwaitCopy(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	if got := sql(t, standby, count); got != "10" {
		t.Errorf("the healed standby has %s sales", got)
	}

	if err := standby.CutReplication(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	sql(t, primary, "INSERT INTO sales VALUES (11)")
	address := Proxy(t, primary.Addr())
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	address.Lead(standby.Addr())
	if got := queryInt(t, address.URL(t, standby.URL(lab.Superuser, lab.Database)), "INSERT INTO sales VALUES (12) RETURNING (SELECT count(*) FROM sales)"); got != 10 {
		t.Errorf("the promoted standby has %d sales, want 10", got)
	}
}

func TestASynchronousStandbyHasEveryCommit(t *testing.T) {
	Long(t)
	t.Parallel()
	primary := PostgresServer(t, lab.PostgresOptions{NoFsync: true})
	standby := Standby(t, primary, true)
	sql(t, primary, "CREATE TABLE sales (n int); INSERT INTO sales SELECT generate_series(1, 7)")
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sql(t, standby, "SELECT count(*) FROM sales"); got != "7" {
		t.Errorf("the promoted standby has %s sales of 7", got)
	}
	sql(t, standby, "INSERT INTO sales VALUES (8)") // it waits for nobody
}
