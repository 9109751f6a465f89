package worker_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

// newReplicatedShop is a shop on a primary with one replica, behind an address that can be led to the replica.
func newReplicatedShop(t testing.TB) (s *shop, replica *lab.Redis, failOver func()) {
	t.Helper()
	primary, replicas := testkit.Replicated(t, 1)
	address := testkit.Proxy(t, primary.Addr())
	db := stores.Database(t, shards)
	s = newShopAt(t, primary, address.URL(t, primary.URL()), db)
	return s, replicas[0], func() {
		t.Helper()
		if err := primary.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := replicas[0].Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		address.Lead(replicas[0].Addr())
		s.redis = replicas[0]
	}
}

// The replica lacks ten events that the ledger has; nobody but the guardian can know.
func TestAPromotedReplicaSellsNothingBeforeTheGuardianHasLooked(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s, replica, failOver := newReplicatedShop(t)
	s.load(t, "truffle", 100_000)
	s.sell(t, "truffle", 0, 20)
	if err := replica.CutReplication(t.Context(), s.redis); err != nil {
		t.Fatal(err)
	}
	var lost []drop.ReservationID
	for i := range 10 {
		id, err := s.hold(t.Context(), "truffle", "lost-"+strconv.Itoa(i), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		lost = append(lost, id)
	}
	s.mustDrain(t)
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 20, 10*time.Second)
	failOver()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		_, _, last := buyers.count()
		return strings.Contains(last, "closed_door"), "the promoted replica answers " + last
	})
	buyers.awaitRefused(t, 200)
	s.start(t, worker.Options{})
	buyers.awaitAccepted(t, 50, 20*time.Second)
	buyers.stop()
	s.agreesWithin(t, 20*time.Second)
	for i, id := range lost {
		if again, err := s.hold(t.Context(), "truffle", "lost-"+strconv.Itoa(i), time.Hour); err != nil || again != id {
			t.Errorf("of what only the ledger had, %s is now %s, %v", id, again, err)
		}
	}
}

// The replica has every event, but not that any was acknowledged, nor that a worker has the newest in hand.
func TestWhatWasAcknowledgedOnALostServerIsRecordedOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s, replica, failOver := newReplicatedShop(t)
	s.load(t, "truffle", 1000)
	s.sell(t, "truffle", 0, 30)
	if err := replica.AwaitCopy(t.Context(), s.redis); err != nil {
		t.Fatal(err)
	}
	if err := replica.CutReplication(t.Context(), s.redis); err != nil {
		t.Fatal(err)
	}
	stop := s.start(t, worker.Options{})
	s.agreesWithin(t, time.Minute)
	s.allAcknowledged(t)
	before := s.sql(t, `SELECT lot, n, entry, units, recorded_at FROM order_ledger ORDER BY n`)
	failOver()
	s.sellsWithin(t, "truffle", time.Minute)
	s.agreesWithin(t, time.Minute)
	sum, err := stop()
	if err != nil {
		t.Fatal(err)
	}
	if sum.Duplicates < 1+30+15 {
		t.Errorf("%d duplicates were counted of %d events that came again: %+v", sum.Duplicates, 1+30+15, sum)
	}
	if after := s.sql(t, `SELECT lot, n, entry, units, recorded_at FROM order_ledger ORDER BY n`); after != before {
		t.Errorf("the sales were\n%s\nand are\n%s", before, after)
	}
	s.nothingTwice(t)
}

// Events 7 and 8 are in the hands of a worker while a replica that has neither is promoted, and the ledger has neither.
func TestEventsOfALostServerAreGhostsInAnyOrder(t *testing.T) {
	testkit.Long(t)
	tests := map[string]struct{ before, after []int }{
		"in order":         {after: []int{0, 1}},
		"reversed":         {after: []int{1, 0}},
		"the later before": {before: []int{1}, after: []int{0}},
		"twice":            {before: []int{1}, after: []int{0, 1, 0}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, replica, failOver := newReplicatedShop(t)
			s.load(t, "truffle", 1000)
			for i := range 5 {
				if _, err := s.hold(t.Context(), "truffle", "user-"+strconv.Itoa(i), time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			s.mustDrain(t)
			if err := replica.CutReplication(t.Context(), s.redis); err != nil {
				t.Fatal(err)
			}
			inHand := s.loseTwoEvents(t)
			failOver()
			apply := func(which []int) {
				for _, i := range which {
					if _, err := s.ledger.Apply(t.Context(), inHand[i:i+1], nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			apply(tt.before)
			s.start(t, worker.Options{})
			s.sellsWithin(t, "truffle", 20*time.Second)
			apply(tt.after)
			s.sellsWithin(t, "truffle", 20*time.Second)
			s.agreesWithin(t, 20*time.Second)

			dead, err := s.ledger.DeadLetters(t.Context(), "truffle", 0, 10)
			if err != nil || len(dead) != 2 || dead[0].Code != fault.StopGhost || dead[1].Code != fault.StopGhost {
				t.Errorf("dead letters %+v, %v", dead, err)
			}
			due, err := s.ledger.RefundsDue(t.Context(), "truffle", 0)
			if err != nil || len(due) != 1 || due[0].Ref != "paid" || due[0].Why != ledger.WhyGhost {
				t.Errorf("refunds due %+v, %v", due, err)
			}
		})
	}
}

// The primary is made a replica of its replica by hand, which lacks events 7 and 8, and then a primary again, under the hands
// of buyers whose connections stay open: the same run id as ever, older data, and a ledger that has 7 and 8 no more than Redis.
// A worker still has them in hand. Nobody buys before the guardian has looked.
func TestAPrimaryThatWasAReplicaSellsUnderNewEpochs(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s, replica, _ := newReplicatedShop(t)
	s.load(t, "truffle", 100_000)
	for i := range 5 {
		if _, err := s.hold(t.Context(), "truffle", "user-"+strconv.Itoa(i), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	s.mustDrain(t)
	before := s.watermark(t, "truffle")
	if err := replica.CutReplication(t.Context(), s.redis); err != nil {
		t.Fatal(err)
	}
	inHand := s.loseTwoEvents(t)
	run := s.door(t, "truffle").Run
	rested, restedFrom := s.another(t), time.Now() // an engine that sends nothing meanwhile
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 20, 20*time.Second)
	steps := []func() error{
		func() error { return replica.Promote(t.Context()) },
		func() error { return s.redis.Follow(t.Context(), replica) },
		func() error { return s.redis.AwaitCopy(t.Context(), replica) },
		func() error { buyers.awaitRefused(t, 20); return s.redis.Promote(t.Context()) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	buyers.awaitRefused(t, 100)
	if _, _, last := buyers.count(); !strings.Contains(last, "closed_door") {
		t.Errorf("buyers are answered %s", last)
	}
	time.Sleep(time.Until(restedFrom.Add(1500 * time.Millisecond))) // it is a rest only then
	if _, err := rested.hold(t.Context(), "truffle", "late", time.Hour); !fault.Is(err, fault.LotFrozen) {
		t.Errorf("who asks after a rest is answered %v", err)
	}
	if st := s.door(t, "truffle"); !strings.HasPrefix(st.Run, run+"/") || st.OpenRun != run || !st.Closed() {
		t.Fatalf("the door is %+v, was open on %s", st, run)
	}
	s.start(t, worker.Options{})
	s.awaitEpoch(t, "truffle", before.Epoch+1, 20*time.Second)
	buyers.awaitAccepted(t, 20, 20*time.Second)
	if _, err := s.ledger.Apply(t.Context(), inHand, nil); err != nil {
		t.Fatal(err)
	}
	buyers.awaitAccepted(t, 20, 20*time.Second)
	buyers.stop()
	s.agreesWithin(t, 20*time.Second)
	s.nothingTwice(t)
	dead, err := s.ledger.DeadLetters(t.Context(), "truffle", 0, 10)
	if err != nil || len(dead) != 2 || dead[0].Code != fault.StopGhost {
		t.Errorf("dead letters %+v, %v", dead, err)
	}
}

// another is the same shop with an engine of its own, whose connections to the lot's shard are open.
func (s *shop) another(t testing.TB) *shop {
	t.Helper()
	other := *s
	if err := other.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.close)
	if _, err := other.hold(t.Context(), "truffle", "early", time.Hour); err != nil {
		t.Fatal(err)
	}
	return &other
}

// loseTwoEvents sells a unit for money and returns the two events of it, which nobody has recorded: 7 and 8.
func (s *shop) loseTwoEvents(t testing.TB) []drop.Event {
	t.Helper()
	at := s.watermark(t, "truffle")
	id, err := s.hold(t.Context(), "truffle", "ghost", time.Hour)
	if err == nil {
		_, err = s.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: "paid"})
	}
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.stock.EventsSince(t.Context(), drop.LotID("truffle").Shard(shards), map[drop.LotID]drop.Watermark{"truffle": at})
	if err != nil || len(events["truffle"]) != 2 || at.Seq != 6 {
		t.Fatalf("behind %+v there are %d events, %v", at, len(events["truffle"]), err)
	}
	return events["truffle"]
}

// A replica that attaches gives the primary another replication history. That is no reason to sell nothing, nor is it that
// somebody resets the server's statistics, or empties its caches of scripts and functions.
func TestAReplicaThatAttachesFreezesNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 100_000)
	s.start(t, worker.Options{})
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 20, 10*time.Second)
	before, err := s.stock.ShardState(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	replica, err := s.redis.StartReplica(t.Context(), lab.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = replica.Stop(context.Background()) }()
	after, err := s.stock.ShardState(t.Context(), 0)
	if err != nil || after.Replication == before.Replication {
		t.Fatalf("the history is still %q, %v", after.Replication, err)
	}
	for _, command := range [][]string{{"CONFIG", "RESETSTAT"}, {"SCRIPT", "FLUSH"}, {"FUNCTION", "FLUSH"}} {
		s.do(t, command...)
	}
	time.Sleep(1500 * time.Millisecond) // a pass of the guardian
	buyers.awaitAccepted(t, 20, 10*time.Second)
	buyers.stop()
	if _, refused, last := buyers.count(); refused > 0 {
		t.Errorf("%d buyers were refused: %s", refused, last)
	}
	if at := s.watermark(t, "truffle"); at.Epoch != 1 {
		t.Errorf("it is epoch %d", at.Epoch)
	}
}

// Both sides of a cut may sell for a moment. The side that lost its replicas has to stop by itself: where its connections
// break, and where packets are lost and nobody is told.
func TestASplitBrainStopsSellingAndLeavesNothingTwice(t *testing.T) {
	testkit.Long(t)
	for name, watched := range map[string]func(testing.TB, int, ...lab.RedisOptions) *testkit.WatchedRedis{
		"connections break": testkit.Watched, "packets are lost": testkit.WatchedAcross,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lag = 2 * time.Second
			w := watched(t, 2, lab.RedisOptions{Directives: []string{"min-replicas-to-write 1", "min-replicas-max-lag 2"}})
			splitBrain(t, w, lag)
		})
	}
}

func splitBrain(t *testing.T, w *testkit.WatchedRedis, lag time.Duration) {
	primary := w.Servers[0]
	db := stores.Database(t, shards)
	s := newShopAt(t, primary, w.URL(), db)
	s.load(t, "truffle", 100_000)
	s.load(t, "bottle", 30)
	s.start(t, worker.Options{})
	s.sellsWithin(t, "truffle", 20*time.Second)
	if sold := s.sellConfirmed(t, "bottle", "both", 10); sold != 10 {
		t.Fatalf("%d bottles sold", sold)
	}
	s.agreesWithin(t, 30*time.Second)
	in := s.ledger.Installation()
	cutOff, err := stock.Open(stock.Options{URL: primary.SocketURL(), Installation: in.ID, Shards: in.Shards})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cutOff.Close() }()
	island := &shop{stock: cutOff, ledger: s.ledger}
	old := island.buyers(t, "truffle")
	old.awaitAccepted(t, 20, 20*time.Second)

	w.Isolate(primary)
	cut := time.Now()
	there := island.sellConfirmed(t, "bottle", "cut off", 20) // as far as it still sells
	last := cut                                               // when the side that is cut off sold last
	for sold, _, _ := old.count(); time.Since(cut) < lag+4*time.Second; time.Sleep(10 * time.Millisecond) {
		if now, _, _ := old.count(); now > sold {
			sold, last = now, time.Now()
		}
	}
	if took := last.Sub(cut); took > lag+2*time.Second { // replicas report once a second
		t.Errorf("it sold for %v", took)
	}
	w.AwaitFailover(t, primary)
	s.sellsWithin(t, "truffle", 60*time.Second)
	t.Logf("the side that was cut off sold for %v; the other sold after %v", last.Sub(cut).Round(10*time.Millisecond), time.Since(cut).Round(10*time.Millisecond))
	before := s.watermark(t, "truffle").Epoch
	if before < 2 {
		t.Errorf("the lot sells in epoch %d: it was not compared", before)
	}
	s.sellsWithin(t, "bottle", 60*time.Second)
	here := s.sellConfirmed(t, "bottle", "elsewhere", 19)
	w.Rejoin(primary)
	testkit.Eventually(t, 60*time.Second, func() (bool, string) {
		still, err := primary.IsPrimary(t.Context())
		return err == nil && !still, "the old primary does not follow"
	})
	old.awaitRefused(t, 20)
	old.stop()
	s.sellsWithin(t, "truffle", 20*time.Second)
	s.agreesWithin(t, 20*time.Second)
	s.nothingTwice(t)
	sold, err := strconv.Atoi(s.sql(t, `SELECT sum(units) FROM order_ledger WHERE lot = 'bottle'`))
	t.Logf("of 20 bottles %d were confirmed on the side that was cut off, %d on the other; in all the ledger has sold %d of 30", there, here, sold)
	if err != nil || sold < 10+here || sold > 30 {
		t.Errorf("the ledger has sold %d, %v", sold, err)
	}
}

// sellConfirmed sells one unit each to n users, as far as there is any, and returns how many were told that they have bought.
func (s *shop) sellConfirmed(t testing.TB, lot drop.LotID, name string, n int) (sold int) {
	t.Helper()
	for i := range n {
		id, err := s.hold(t.Context(), lot, fmt.Sprintf("%s-%d", name, i), time.Hour)
		if err == nil {
			_, err = s.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: "paid"})
		}
		if err == nil {
			sold++
		}
	}
	return sold
}

// nothingTwice checks that every hold in the ledger is one that Redis, as it is now, gave out.
func (s *shop) nothingTwice(t testing.TB) {
	t.Helper()
	twice := s.sql(t, `SELECT count(*) FROM (SELECT user_id FROM reservations GROUP BY user_id, lot HAVING count(*) > 1) AS t`)
	dead := s.sql(t, `SELECT count(*) FROM dead_letters WHERE code = 'fork'`)
	if twice != "0" || dead != "0" {
		t.Errorf("%s users are recorded twice, %s forks", twice, dead)
	}
}

func TestASentinelFailoverUnderLoad(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	w := testkit.Watched(t, 1)
	db := stores.Database(t, shards)
	s := newShopAt(t, w.Servers[0], w.URL(), db)
	s.load(t, "truffle", 100_000)
	s.start(t, worker.Options{})
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 50, 10*time.Second)
	if err := w.Servers[0].Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	buyers.awaitRefused(t, 10)
	buyers.awaitAccepted(t, 1, 60*time.Second)
	t.Logf("first reservation %v after the primary was killed", time.Since(killed).Round(10*time.Millisecond))
	buyers.awaitAccepted(t, 50, 20*time.Second)
	buyers.stop()
	s.agreesWithin(t, 20*time.Second)
	s.nothingTwice(t)
}

func TestBothStoresMayDieAtOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	postgres := testkit.PostgresServer(t)
	s := newShopOn(t, testkit.Redis(t), stores.On(t, postgres, shards))
	s.load(t, "truffle", 100_000)
	s.start(t, worker.Options{})
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 100, 10*time.Second)
	for _, server := range []interface{ Kill() error }{s.redis, postgres} {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for _, server := range []interface{ Start(context.Context) error }{s.redis, postgres} {
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	buyers.awaitAccepted(t, 50, 40*time.Second)
	buyers.stop()
	s.agreesWithin(t, 20*time.Second)
	s.nothingTwice(t)
}

// The disk of Redis' append-only file is full: it refuses every write, and sells again once there is room.
func TestAFullDiskOfRedisStopsTheSaleAndLosesNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	r := testkit.Redis(t, lab.RedisOptions{DiskSize: 16 << 20})
	db := stores.Database(t, shards)
	s := newShopOn(t, r, db)
	s.load(t, "truffle", 100_000)
	s.start(t, worker.Options{})
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 100, 20*time.Second)
	if err := r.FillDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 60*time.Second, func() (bool, string) { // what was allocated before takes a little
		_, refused, last := buyers.count()
		return refused > 20, "it sells on; the last refusal is " + last
	})
	buyers.awaitRefused(t, 100)
	if err := r.FreeDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	buyers.awaitAccepted(t, 100, 60*time.Second)
	buyers.stop()
	s.agreesWithin(t, 60*time.Second)
	if err := r.Kill(); err != nil { // all that was acknowledged is on the disk
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.sellsWithin(t, "truffle", 60*time.Second)
	s.agreesWithin(t, 60*time.Second)
	s.nothingTwice(t)
	if have := len(buyers.accepted()); s.held(t, "truffle") < have {
		t.Errorf("of %d reservations the ledger has %d", have, s.held(t, "truffle"))
	}
}

// The disk of PostgreSQL's write-ahead log is full, and the server ends: the sale goes on, and all of it is recorded later.
func TestAFullDiskOfPostgreSQLHoldsNoSaleUp(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	postgres := testkit.PostgresServer(t, lab.PostgresOptions{WALDiskSize: 48 << 20})
	s := newShopOn(t, testkit.Redis(t), stores.On(t, postgres, shards))
	s.load(t, "truffle", 100_000)
	s.start(t, worker.Options{})
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 100, 20*time.Second)
	if err := postgres.FillDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 60*time.Second, func() (bool, string) { // there may be segments that were made in advance
		_, err := postgres.SQL(t.Context(), lab.Database, "SELECT pg_switch_wal()")
		return err != nil, "the server runs on"
	})
	buyers.awaitAccepted(t, 300, 60*time.Second)
	if _, refused, last := buyers.count(); refused > 0 {
		t.Errorf("%d buyers were refused: %s", refused, last)
	}
	if err := postgres.FreeDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := postgres.Kill(); err != nil { // it ended by itself, or tries to recover
		t.Fatal(err)
	}
	if err := postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	buyers.stop()
	s.agreesWithin(t, 60*time.Second)
	s.nothingTwice(t)
	if have := len(buyers.accepted()); s.held(t, "truffle") != have {
		t.Errorf("of %d reservations the ledger has %d", have, s.held(t, "truffle"))
	}
}

// held counts the holds of a lot that the ledger has.
func (s *shop) held(t testing.TB, lot drop.LotID) int {
	t.Helper()
	lots, err := s.ledger.Lots(t.Context(), []drop.LotID{lot})
	if err != nil || len(lots) != 1 {
		t.Fatalf("%d lots, %v", len(lots), err)
	}
	return int(lots[0].Held)
}

func clusterURL(t testing.TB, c *lab.Cluster) string {
	t.Helper()
	first, err := url.Parse(c.Nodes[0].URL())
	if err != nil {
		t.Fatal("the private server's URL cannot be read") // without the URL: it has a password
	}
	var hosts []string
	for _, r := range slices.Concat(c.Nodes, c.Replicas) {
		hosts = append(hosts, r.Addr())
	}
	return "redis-cluster://" + first.User.String() + "@" + strings.Join(hosts, ",")
}

// lotsByNode loads a lot into every shard and returns those of each node.
func (s *shop) lotsByNode(t testing.TB, c *lab.Cluster) [][]drop.LotID {
	t.Helper()
	byNode := make([][]drop.LotID, len(c.Nodes))
	seen := map[int]bool{}
	for i := 0; len(seen) < shards; i++ {
		lot := drop.LotID(fmt.Sprintf("lot-%d", i))
		if seen[lot.Shard(shards)] {
			continue
		}
		seen[lot.Shard(shards)] = true
		s.load(t, lot, 100_000)
		for n, node := range c.Nodes {
			if keys, err := node.Do(t.Context(), "KEYS", "*:lot:"+string(lot)); err == nil && keys != "" {
				byNode[n] = append(byNode[n], lot)
			}
		}
	}
	return byNode
}

func TestAClusterThatLosesAPrimaryGoesOn(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	c := testkit.ReplicatedCluster(t, 3, 1, lab.RedisOptions{Directives: []string{"cluster-require-full-coverage no"}})
	db := stores.Database(t, shards)
	s := newShopAt(t, c.Nodes[0], clusterURL(t, c), db)
	lots := s.lotsByNode(t, c)
	s.start(t, worker.Options{})
	hit, other := s.buyers(t, lots[0][0]), s.buyers(t, lots[1][0])
	hit.awaitAccepted(t, 20, 10*time.Second)
	other.awaitAccepted(t, 20, 10*time.Second)
	if err := c.Replicas[0].AwaitCopy(t.Context(), c.Nodes[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	hit.awaitRefused(t, 10)
	other.awaitAccepted(t, 20, 5*time.Second) // before anybody can have taken over
	hit.awaitAccepted(t, 1, 60*time.Second)
	t.Logf("first reservation %v after the node was killed", time.Since(killed).Round(10*time.Millisecond))
	hit.awaitAccepted(t, 20, 20*time.Second)
	if _, refused, last := other.count(); refused > 20 {
		t.Errorf("%d buyers of a lot elsewhere were refused: %s", refused, last)
	}
	hit.stop()
	other.stop()
	s.agreesWithin(t, 30*time.Second)
	s.nothingTwice(t)
}

func TestASlotThatMovesUnderLoadIsComparedAndSellsAgain(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	c := testkit.Cluster(t, 3)
	db := stores.Database(t, shards)
	s := newShopAt(t, c.Nodes[0], clusterURL(t, c), db)
	lots := s.lotsByNode(t, c)
	s.start(t, worker.Options{})
	moved, other := s.buyers(t, lots[0][0]), s.buyers(t, lots[1][0])
	moved.awaitAccepted(t, 50, 10*time.Second)
	s.moveSlot(t, c, lots[0][0], func() {
		moved.awaitRefused(t, 20) // part of the keys is here, part there
		other.awaitAccepted(t, 20, 10*time.Second)
	})
	moved.awaitAccepted(t, 50, 40*time.Second)
	moved.stop()
	other.stop()
	s.agreesWithin(t, 20*time.Second)
	s.nothingTwice(t)
	if at := s.watermark(t, lots[0][0]); at.Epoch != 2 {
		t.Errorf("it is epoch %d: an equal lot begins one new epoch", at.Epoch)
	}
	if rebuilds := s.sql(t, `SELECT count(*) FROM repairs`); rebuilds != "0" {
		t.Errorf("%s rebuilds, though nothing was lost", rebuilds)
	}
}

// moveSlot moves the slot of a lot from the first node to the second, with something to do when some of its keys have moved.
func (s *shop) moveSlot(t testing.TB, c *lab.Cluster, lot drop.LotID, inTheMiddle func()) {
	t.Helper()
	do := func(r *lab.Redis, command ...string) string {
		t.Helper()
		out, err := r.Do(t.Context(), command...)
		if err != nil {
			t.Fatalf("%s: %v", command[0], err)
		}
		return out
	}
	from, to := c.Nodes[0], c.Nodes[1]
	fromID, toID := do(from, "CLUSTER", "MYID"), do(to, "CLUSTER", "MYID")
	key := do(from, "KEYS", "*:lot:"+string(lot))
	slot := do(from, "CLUSTER", "KEYSLOT", key)
	do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port, _ := strings.Cut(to.Addr(), ":")
	u, _ := url.Parse(to.URL())
	password, _ := u.User.Password()
	do(from, "MIGRATE", host, port, key, "0", "5000", "AUTH", password) // the lot goes first
	inTheMiddle()
	for {
		keys := strings.Fields(do(from, "CLUSTER", "GETKEYSINSLOT", slot, "100"))
		if len(keys) == 0 {
			break
		}
		do(from, append([]string{"MIGRATE", host, port, "", "0", "5000", "AUTH", password, "KEYS"}, keys...)...)
	}
	for _, node := range []*lab.Redis{to, from, c.Nodes[2]} {
		do(node, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
}

func TestAClockThatStepsFreezesTheSaleUntilItIsRight(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	db := stores.Database(t, shards)
	s := newShopOn(t, testkit.Redis(t, lab.RedisOptions{Under: testkit.Faulty(t)}), db)
	s.load(t, "drop:quiet", 100)
	s.load(t, "drop:truffle", 100_000)
	s.start(t, worker.Options{})
	s.agreesWithin(t, 10*time.Second)
	buyers := s.buyers(t, "drop:truffle")
	buyers.awaitAccepted(t, 400, 10*time.Second) // the guardian has seen the clock meanwhile
	frozen := func(step string) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			st := s.door(t, "drop:quiet")
			return st.Frozen == string(fault.FreezeClock), step + ": frozen for " + strconv.Quote(st.Frozen)
		})
		if _, err := s.hold(t.Context(), "drop:quiet", "early", time.Hour); !fault.Is(err, fault.LotFrozen) {
			t.Errorf("%s: reserving answers %v", step, err)
		}
	}
	testkit.StepClock(t, s.redis, time.Hour)
	frozen("an hour on")
	testkit.StepClock(t, s.redis, -time.Hour)
	s.sellsWithin(t, "drop:quiet", 20*time.Second)
	// What was sold before anybody noticed is dated an hour ahead.
	if st, err := s.stock.Lot(t.Context(), "drop:truffle"); err != nil || st.FreezeReason() != fault.FreezeClock {
		t.Errorf("the lot that was sold meanwhile is frozen for %q, %v", st.FreezeReason(), err)
	}
	buyers.stop()
	testkit.StepClock(t, s.redis, -time.Minute)
	frozen("a minute back")
	testkit.StepClock(t, s.redis, time.Minute)
	s.sellsWithin(t, "drop:quiet", 20*time.Second)
	s.agreesWithin(t, 20*time.Second)
}

// The replica does not answer, though its connection stands: the primary has to stop selling by itself.
func TestAPrimaryWhoseReplicaIsSilentStopsSelling(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	primary, replicas := testkit.Replicated(t, 1, lab.RedisOptions{Directives: []string{"min-replicas-to-write 1", "min-replicas-max-lag 2"}})
	db := stores.Database(t, shards)
	s := newShopOn(t, primary, db)
	s.load(t, "truffle", 100_000)
	s.start(t, worker.Options{})
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 20, 10*time.Second)
	if err := replicas[0].Pause(); err != nil {
		t.Fatal(err)
	}
	paused := time.Now()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		_, refused, _ := buyers.count()
		return refused > 0, "it still sells"
	})
	if took := time.Since(paused); took > 5*time.Second { // a lag of 2 s, told once a second in whole seconds
		t.Errorf("it sold for %v", took)
	}
	buyers.awaitRefused(t, 50)
	if err := replicas[0].Resume(); err != nil {
		t.Fatal(err)
	}
	buyers.awaitAccepted(t, 50, 20*time.Second)
	buyers.stop()
	s.agreesWithin(t, 20*time.Second)
	s.nothingTwice(t)
}

// slowLedger stands still behind the issue of an epoch, once.
type slowLedger struct {
	worker.Ledger
	stands, goOn chan struct{}
	stood        atomic.Bool
}

func (l *slowLedger) NextEpoch(ctx context.Context, seen drop.LedgerLot, actor, reason string) (int64, error) {
	epoch, err := l.Ledger.NextEpoch(ctx, seen, actor, reason)
	if err == nil && l.stood.CompareAndSwap(false, true) {
		close(l.stands)
		<-l.goOn
	}
	return epoch, err
}

// A guardian stops between the two halves of a new epoch. Others finish, and it must not undo what they did.
func TestAGuardianThatStandsStillInTheMiddleIsOvertaken(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 100_000)
	s.sell(t, "truffle", 0, 20)
	s.mustDrain(t)
	if err := s.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	slow := &slowLedger{Ledger: wire.WorkerLedger(s.ledger), stands: make(chan struct{}), goOn: make(chan struct{})}
	s.startOn(t, slow, worker.Options{Only: []worker.Part{worker.Guardian}})
	select {
	case <-slow.stands:
	case <-time.After(20 * time.Second):
		t.Fatal("the guardian issues no epoch")
	}
	s.start(t, worker.Options{})
	s.start(t, worker.Options{})
	buyers := s.buyers(t, "truffle")
	buyers.awaitAccepted(t, 50, 20*time.Second)
	close(slow.goOn)
	buyers.awaitAccepted(t, 300, 20*time.Second)
	buyers.stop()
	s.agreesWithin(t, 20*time.Second)
	s.nothingTwice(t)
	if _, refused, last := buyers.count(); strings.Contains(last, "redis_behind") {
		t.Errorf("after %d refusals: %s", refused, last)
	}
}
