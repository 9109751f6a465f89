package stock

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// withBreaker also lets calls that hang end soon.
func withBreaker(o *Options) { o.Breaker, o.Timeout = true, time.Second }

// hanging lets calls hang for long, so that nobody else's wait can be mistaken for it.
func hanging(o *Options) { o.Timeout = hangs }

const hangs = 3 * time.Second

// awaitBreaker waits until the breaker of some server is in a state; node is part of the server's name.
func awaitBreaker(t testing.TB, s *Stock, node string, want drop.Breaker) drop.NodeState {
	t.Helper()
	var found drop.NodeState
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		nodes := s.Nodes()
		for _, n := range nodes {
			if strings.Contains(n.Node, node) && n.Breaker == want && n.LastPing > 0 {
				found = n
				return true, ""
			}
		}
		return false, fmt.Sprintf("no breaker at %s is %s: %+v", node, want, nodes)
	})
	return found
}

func one(lot drop.LotID, user string) drop.ReserveRequest {
	return drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 1}
}

func pause(t testing.TB, r *lab.Redis) {
	t.Helper()
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
}

func resume(t testing.TB, r *lab.Redis) {
	t.Helper()
	if err := r.Resume(); err != nil {
		t.Fatal(err)
	}
}

// wantRefusedAtOnce checks that every kind of call is refused at once: what each would wait for adds up to minutes.
func wantRefusedAtOnce(t *testing.T, s *Stock, lot drop.LotID) {
	t.Helper()
	id := drop.ReservationID{Lot: lot, Attempt: drop.AttemptOf(lot, "u", "k"), N: 1}
	start := time.Now()
	inParallel(200, func(i int) {
		ctx := t.Context()
		_, err1 := s.Reserve(ctx, one(lot, strconv.Itoa(i)))
		_, err2 := s.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActConfirm})
		_, err3 := s.Unknown(ctx, lot, "u", "k")
		_, err4 := s.Reservation(ctx, id)
		_, err5 := s.Lot(ctx, lot)
		_, err6 := s.Lots(ctx)
		for call, err := range []error{err1, err2, err3, err4, err5, err6} {
			if e := fault.As(err); !fault.Is(err, fault.Unavailable) || e.Details["retry_after_seconds"] != retryAfter || !strings.Contains(e.Error(), "since 20") {
				t.Errorf("call %d: %v", call, err)
			}
		}
	})
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("1200 refusals took %v", took)
	}
}

// TestAServerThatHangsHoldsNobody stops Redis under the load of 200 callers, each of whom repeats a call until it is
// answered.
func TestAServerThatHangsHoldsNobody(t *testing.T) {
	testkit.Long(t) // not beside others: it counts the goroutines of the process
	s, rdb, r := newShop(t, withBreaker)
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 1e6})
	const callers = 200
	var held sync.Map // user to reservation
	var refused, unknown, sold atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	load := make(chan struct{})
	go func() {
		defer close(load)
		inParallel(callers, func(caller int) {
			for i := 0; ctx.Err() == nil; i++ {
				user := fmt.Sprintf("%d-%d", caller, i)
				for {
					out, err := s.Reserve(context.WithoutCancel(ctx), one(lot, user))
					if err == nil {
						held.Store(user, out.Reservation.ID)
						sold.Add(1)
						break
					}
					if fault.Is(err, fault.OutcomeUnknown) {
						unknown.Add(1)
					} else if refused.Add(1); !fault.Is(err, fault.Unavailable) {
						t.Errorf("user %s: %v", user, err)
					}
					time.Sleep(20 * time.Millisecond) // as Retry-After would have it
				}
			}
		})
	}()
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { return sold.Load() > callers, "nobody sells" })
	goroutines := runtime.NumGoroutine()

	pause(t, r)
	down := awaitBreaker(t, s, r.Addr(), drop.BreakerOpen)
	if down.Since.IsZero() || down.Err == "" {
		t.Errorf("%+v", down)
	}
	wantRefusedAtOnce(t, s, lot)
	// What was sent ends with its socket's time limit; everybody else is told at once, and nothing piles up.
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		waiting, busy := underWay(s, lot)
		return waiting == 0 && busy == 0, fmt.Sprintf("%d requests wait, %d lanes are busy", waiting, busy)
	})
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { return refused.Load() > callers, "few are refused" })
	if now := runtime.NumGoroutine(); now > goroutines+20 {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
	before := sold.Load()

	resume(t, r)
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { return sold.Load() > before+callers, "nobody sells" })
	stop()
	<-load
	t.Logf("%d sold, %d refused, %d outcomes unknown", sold.Load(), refused.Load(), unknown.Load())
	if unknown.Load() > callers {
		t.Error("callers were let wait for a server that hangs")
	}
	var users []string
	for user := range held.Range {
		name, _ := user.(string)
		users = append(users, name)
	}
	inParallel(len(users), func(i int) {
		out, err := s.Reserve(t.Context(), one(lot, users[i]))
		if id, _ := held.Load(users[i]); err != nil || !out.Replayed || out.Reservation.ID != id {
			t.Errorf("user %s: %+v, %v; was %v", users[i], out, err, id)
		}
	})
	wantTotals(t, s, lot, 1e6-sold.Load(), sold.Load(), 0)
	wantHistory(t, s, rdb, lot)
}

// underWay returns how many requests wait in the shard of a lot, and how many lanes of its server are busy.
func underWay(s *Stock, lot drop.LotID) (waiting, busy int) {
	sh := s.shardOf(lot)
	sh.mu.Lock()
	waiting = len(sh.queue)
	sh.mu.Unlock()
	home := sh.home.Load()
	home.lanes.mu.Lock()
	defer home.lanes.mu.Unlock()
	return waiting, len(home.lanes.busy)
}

// TestWhatWaitsIsNotSentToAServerThatHangs: while Redis hangs, a call is sent. Those behind it, for which another connection
// would have to be made, are answered when the breaker opens, and Redis never gets them.
func TestWhatWaitsIsNotSentToAServerThatHangs(t *testing.T) {
	t.Parallel()
	s, _, r := newShop(t, withBreaker, hanging)
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 1000})
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	pause(t, r)
	var sent sync.WaitGroup
	sent.Go(func() {
		if _, err := s.Reserve(t.Context(), one(lot, "sent")); err != nil {
			t.Error(err) // it was sent, and is answered in the end
		}
	})
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		waiting, busy := underWay(s, lot)
		return waiting == 0 && busy == 1, "nothing is sent"
	})
	const callers = 100
	start := time.Now()
	attempts := make([]string, callers)
	inParallel(callers, func(i int) {
		user := strconv.Itoa(i)
		attempts[i] = drop.AttemptOf(lot, user, "k")
		if _, err := s.Reserve(t.Context(), one(lot, user)); !fault.Is(err, fault.Unavailable) {
			t.Error(err)
		}
	})
	if took := time.Since(start); took > hangs*2/3 {
		t.Errorf("they waited for %v", took)
	}
	resume(t, r)
	sent.Wait()
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	found, err := s.RecordsOf(t.Context(), lot, attempts)
	if err != nil || len(found) > 0 {
		t.Errorf("%d of those who were refused have a hold, %v", len(found), err)
	}
}

func TestABreakerClosesAfterARestart(t *testing.T) {
	t.Parallel()
	r := testkit.Redis(t, lab.RedisOptions{Fsync: "always"}) // the lot must be there afterwards
	s := openStock(t, r.URL(), withBreaker)
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 10})
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitBreaker(t, s, r.Addr(), drop.BreakerOpen)
	wantRefusedAtOnce(t, s, lot)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	_, err := s.Reserve(t.Context(), one(lot, "ann"))
	wantCode(t, err, fault.LotFrozen) // its door is shut until somebody has looked
	_, err = s.Unknown(t.Context(), lot, "ann", "k")
	wantCode(t, err, fault.LotFrozen)
}

func TestSlowPingsOpenTheBreaker(t *testing.T) {
	t.Parallel()
	r := testkit.Redis(t)
	proxy := testkit.Proxy(t, r.Addr())
	s := openStock(t, proxy.URL(t, r.URL()), withBreaker)
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 10})
	awaitBreaker(t, s, proxy.Addr(), drop.BreakerClosed)
	proxy.Delay(slowPing + 40*time.Millisecond)
	if slow := awaitBreaker(t, s, proxy.Addr(), drop.BreakerOpen); slow.LastPing < slowPing {
		t.Errorf("%+v", slow)
	}
	wantRefusedAtOnce(t, s, lot)
	proxy.Heal()
	awaitBreaker(t, s, proxy.Addr(), drop.BreakerClosed)
	if _, err := s.Reserve(t.Context(), one(lot, "ann")); err != nil {
		t.Fatal(err)
	}
}

// TestRefusalsDoNotOpenTheBreaker: every call of many is refused, and scripts are forgotten meanwhile.
func TestRefusalsDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	s, rdb, r := newShop(t, withBreaker)
	soldOut := newLot(t, s, drop.Definition{Lot: "sold-out", Stock: 0})
	frozen := newLot(t, s, drop.Definition{Lot: "frozen", Stock: 5})
	seen, err := s.Lot(t.Context(), frozen)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.FreezeLot(t.Context(), seen, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	want := map[drop.LotID]fault.Code{soldOut: fault.SoldOut, frozen: fault.LotFrozen, "sold-out:absent": fault.LotNotLoaded}
	until := time.Now().Add(4 * probeEvery)
	inParallel(16, func(caller int) {
		for i := 0; time.Now().Before(until); i++ {
			for lot, code := range want {
				if _, err := s.Reserve(t.Context(), one(lot, fmt.Sprintf("%d-%d", caller, i))); !fault.Is(err, code) {
					t.Errorf("%s: %v, want %s", lot, err, code)
					return
				}
			}
			if i%100 == 0 && caller == 0 {
				rdb.ScriptFlush(t.Context())
			}
		}
	})
	if n := s.Nodes(); len(n) != 1 || n[0].Breaker != drop.BreakerClosed || !n[0].Since.IsZero() {
		t.Errorf("%+v", n)
	}
}

// A server that hangs never seems to work, also while a ping is on its way to it.
func TestAServerThatHangsNeverSeemsToWork(t *testing.T) {
	testkit.Long(t)
	s, _, r := newShop(t, withBreaker)
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	pause(t, r)
	defer resume(t, r)
	awaitBreaker(t, s, r.Addr(), drop.BreakerOpen)
	seen := map[drop.Breaker]int{}
	for until := time.Now().Add(6 * probeEvery); time.Now().Before(until); time.Sleep(time.Millisecond) {
		n := s.Nodes()[0]
		seen[n.Breaker]++
		if n.Works() {
			t.Fatalf("it seems to work: %+v", n)
		}
	}
	if seen[drop.BreakerHalfOpen] == 0 {
		t.Errorf("it was never tried: %v", seen)
	}
}

// A server that answers, but that it takes no calls, opens no breaker: nothing piles up. It is told apart from one that
// works, and from one whose pings alone are forbidden.
func TestAServerThatTakesNoCallsIsTold(t *testing.T) {
	t.Parallel()
	r := testkit.Redis(t)
	s, err := Open(Options{URL: r.URL(), Installation: installation, Breaker: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	rdb := rawClient(t, r)
	operator := rdb.Conn() // which outlives its password
	defer func() { _ = operator.Close() }()
	told := func(works bool, said string) {
		t.Helper()
		operator.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			n := s.Nodes()[0]
			return n.Breaker == drop.BreakerClosed && n.Works() == works && strings.Contains(n.Err, said), fmt.Sprintf("%+v", n)
		})
	}
	must := func(args ...any) {
		t.Helper()
		if err := operator.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	must("ACL", "SETUSER", "default", "-ping")
	told(true, "NOPERM")
	must("ACL", "SETUSER", "default", "+ping", "resetpass", ">another")
	told(false, "WRONGPASS")
	must("ACL", "SETUSER", "default", ">"+rdb.Options().Password)
	told(true, "")
}

func TestAnEngineClosesWithAnOpenBreaker(t *testing.T) {
	t.Parallel()
	r := testkit.Redis(t)
	s, err := Open(Options{URL: r.URL(), Installation: installation, Breaker: true})
	if err != nil {
		t.Fatal(err)
	}
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 10})
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	pause(t, r)
	defer resume(t, r)
	awaitBreaker(t, s, r.Addr(), drop.BreakerOpen)
	start := time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("closing took %v", took)
	}
	_, err = s.Reserve(t.Context(), one(lot, "ann"))
	wantCode(t, err, fault.Unavailable)
	_, err = s.Unknown(t.Context(), lot, "ann", "k")
	wantCode(t, err, fault.Unavailable)
}

// TestNobodyIsThere: a server that was never reached opens its breaker, and a cluster that was never reached has none yet.
func TestNobodyIsThere(t *testing.T) {
	testkit.Long(t)
	single := openStock(t, "redis://127.0.0.1:1", withBreaker)
	awaitBreaker(t, single, "127.0.0.1:1", drop.BreakerOpen)
	wantRefusedAtOnce(t, single, "truffle")
	cluster := openStock(t, "redis-cluster://127.0.0.1:1", withBreaker)
	_, err := cluster.Reserve(t.Context(), one("truffle", "ann"))
	wantCode(t, err, fault.Unavailable)
	_, err = cluster.Unknown(t.Context(), "truffle", "ann", "k")
	wantCode(t, err, fault.Unavailable)
	if n := cluster.Nodes(); len(n) != 0 {
		t.Errorf("%+v", n)
	}
}

// TestOneNodeOfAClusterHangs: calls for its shards are refused, and those for others do not even wait.
func TestOneNodeOfAClusterHangs(t *testing.T) {
	testkit.Long(t)
	c := testkit.Cluster(t, 3)
	for _, n := range c.Nodes { // now that each of them knows all slots
		if _, err := n.Do(t.Context(), "CONFIG", "SET", "cluster-require-full-coverage", "no"); err != nil {
			t.Fatal(err)
		}
	}
	// Many shards: what is sent to them could fill the room for calls of the whole engine.
	s := openStock(t, clusterURL(t, c), withBreaker, hanging, func(o *Options) { o.Shards = 64 })
	var here, there []drop.LotID // on the node that hangs, and elsewhere
	for _, lot := range lotsOfEveryShard(s) {
		newLot(t, s, drop.Definition{Lot: lot, Stock: 1e6})
		if s.shardOf(lot).home.Load().name == c.Nodes[1].Addr() {
			here = append(here, lot)
		} else {
			there = append(there, lot)
		}
	}
	for _, n := range c.Nodes {
		awaitBreaker(t, s, n.Addr(), drop.BreakerClosed)
	}
	pause(t, c.Nodes[1])
	load := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(load)
		inParallel(4*len(here), func(i int) {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := s.Reserve(t.Context(), one(here[i%len(here)], fmt.Sprintf("%d-%d", i, n))); err == nil {
					t.Error("a node that hangs has sold")
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}()
	var longest time.Duration
	for i := 0; len(s.Nodes()) != 3 || awaited(s, c.Nodes[1].Addr()) != drop.BreakerOpen || i < 200; i++ {
		start := time.Now()
		if _, err := s.Reserve(t.Context(), one(there[i%len(there)], strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(start))
	}
	if longest > hangs*2/3 {
		t.Errorf("a call to another node took %v", longest)
	}
	_, err := s.Unknown(t.Context(), here[0], "u", "k")
	wantCode(t, err, fault.Unavailable)
	stop()

	// A shard that another node has taken over is that node's, however the old one is.
	takeSlot(t, c.Nodes[0], c.Nodes[2], s.shardOf(here[0]).keys.prefix)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		_, err := s.Reserve(context.Background(), one(here[0], "moved"))
		return fault.Is(err, fault.LotNotLoaded), fmt.Sprint(err) // it came without its data
	})

	<-load
	resume(t, c.Nodes[1])
	awaitBreaker(t, s, c.Nodes[1].Addr(), drop.BreakerClosed)
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := s.Reserve(context.Background(), one(here[1], "after"))
		return err == nil, fmt.Sprint(err)
	})
}

func awaited(s *Stock, node string) drop.Breaker {
	for _, n := range s.Nodes() {
		if n.Node == node {
			return n.Breaker
		}
	}
	return ""
}

// takeSlot gives the slot of a hash tag to a node, without asking the owner; another node learns of it.
func takeSlot(t *testing.T, to, other *lab.Redis, tagged string) {
	t.Helper()
	number, err1 := to.Do(t.Context(), "CLUSTER", "KEYSLOT", tagged)
	id, err2 := to.Do(t.Context(), "CLUSTER", "MYID")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	for _, n := range []*lab.Redis{to, other} {
		if _, err := n.Do(t.Context(), "CLUSTER", "SETSLOT", number, "NODE", id); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheBreakerFollowsSentinel: the primary hangs, another takes over, and the breaker closes on that one.
func TestTheBreakerFollowsSentinel(t *testing.T) {
	testkit.Long(t)
	w := testkit.Watched(t, 1)
	s := openStock(t, w.URL(), withBreaker)
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 10})
	awaitBreaker(t, s, "@", drop.BreakerClosed)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { // the one that takes over has the lot
		n, err := w.Servers[1].Do(t.Context(), "EXISTS", s.shardOf(lot).keys.lot(lot))
		return n == "1", fmt.Sprint("the replica lacks the lot: ", err)
	})
	pause(t, w.Servers[0])
	defer resume(t, w.Servers[0])
	awaitBreaker(t, s, "@", drop.BreakerOpen)
	wantRefusedAtOnce(t, s, lot)
	w.AwaitFailover(t, w.Servers[0])
	awaitBreaker(t, s, "@", drop.BreakerClosed)
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := s.Reserve(context.Background(), one(lot, "ann"))
		return fault.Is(err, fault.LotFrozen), fmt.Sprint(err) // another server: nobody has looked yet
	})
}
