package worker_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

var recoveryRounds = flag.Int("recovery-rounds", 0, "how often to time the recovery from each fault (0: once, without a table)")

// recovery is how long a sale took to recover, from just before the fault.
type recovery struct {
	reserved time.Duration // until a reservation was accepted that was asked for after the fault
	recorded time.Duration // until the ledger had the sale of such a one
}

// mishap is a fault that a sale recovers from by itself.
type mishap struct {
	name string
	open func(t testing.TB) (s *shop, strike, mend func() error) // mend is what a supervisor does at once; nil: nothing
}

var mishaps = []mishap{
	{"Redis killed and restarted", func(t testing.TB) (*shop, func() error, func() error) {
		db := stores.Database(t, shards)
		s := newShopOn(t, testkit.Redis(t), db)
		return s, s.redis.Kill, func() error { return s.redis.Start(t.Context()) }
	}},
	{"Sentinel primary killed", func(t testing.TB) (*shop, func() error, func() error) {
		w := testkit.Watched(t, 1)
		db := stores.Database(t, shards)
		return newShopAt(t, w.Servers[0], w.URL(), db), w.Servers[0].Kill, nil
	}},
	{"Cluster primary killed", func(t testing.TB) (*shop, func() error, func() error) {
		c := testkit.ReplicatedCluster(t, 3, 1)
		db := stores.Database(t, shards)
		s := newShopAt(t, c.Nodes[0], clusterURL(t, c), db)
		return s, func() error { return s.nodeOf(t, c, "truffle").Kill() }, nil
	}},
	{"worker killed and restarted", func(t testing.TB) (*shop, func() error, func() error) {
		db := stores.Database(t, shards)
		s := newShopOn(t, testkit.Redis(t), db)
		return s, func() error { return endProcess(s.running) }, func() error { s.startProcess(t); return nil }
	}},
	{"PostgreSQL killed and restarted", func(t testing.TB) (*shop, func() error, func() error) {
		postgres := testkit.PostgresServer(t)
		s := newShopOn(t, testkit.Redis(t), stores.On(t, postgres, shards))
		return s, postgres.Kill, func() error { return postgres.Start(t.Context()) }
	}},
	{"Redis emptied (FLUSHALL)", func(t testing.TB) (*shop, func() error, func() error) {
		db := stores.Database(t, shards)
		s := newShopOn(t, testkit.Redis(t), db)
		return s, func() error { _, err := s.redis.Do(t.Context(), "FLUSHALL"); return err }, nil
	}},
}

// TestASaleRecoversByItself breaks a sale in every way that needs no operator, and times how long nothing was sold, and
// nothing recorded. Callers try again every 10 ms; the worker is a process of its own with default settings.
func TestASaleRecoversByItself(t *testing.T) {
	testkit.Long(t)
	if *recoveryRounds == 0 {
		for _, m := range mishaps {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				took := m.recover(t)
				t.Logf("reserved after %v, recorded after %v", took.reserved, took.recorded)
			})
		}
		return
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "FAULT\tROUNDS\tRESERVED\tMAX\tRECORDED\tMAX")
	for _, m := range mishaps {
		var reserved, recorded []time.Duration
		for round := range *recoveryRounds {
			t.Run(fmt.Sprintf("%s/%d", m.name, round), func(t *testing.T) {
				took := m.recover(t)
				t.Logf("reserved after %v, recorded after %v", took.reserved, took.recorded)
				reserved, recorded = append(reserved, took.reserved), append(recorded, took.recorded)
			})
		}
		if len(recorded) > 0 {
			_, _ = fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", m.name, len(recorded), medianAndMax(reserved), medianAndMax(recorded))
		}
	}
	_ = table.Flush()
}

// medianAndMax are two columns of the table, in seconds.
func medianAndMax(times []time.Duration) string {
	slices.Sort(times)
	return fmt.Sprintf("%.2f s\t%.2f s", times[len(times)/2].Seconds(), times[len(times)-1].Seconds())
}

// recover breaks a sale and waits until it is sold out all the same, with every number right.
func (m mishap) recover(t *testing.T) (took recovery) {
	const units = 2000
	s, strike, mend := m.open(t)
	s.load(t, "truffle", units)
	s.startProcess(t)
	c := s.callers(t, "truffle")
	c.await(t, 10*time.Second, func() bool { return c.sold >= 100 })
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		return s.sql(t, `SELECT count(*) FROM order_ledger`) != "0", "no sale is recorded"
	})
	time.Sleep(rand.N(time.Second)) // any moment between two looks of the guardian

	began := time.Now()
	if err := strike(); err != nil {
		t.Fatal(err)
	}
	c.struck(time.Now())
	if mend != nil {
		if err := mend(); err != nil {
			t.Fatal(err)
		}
	}
	c.await(t, 60*time.Second, func() bool { return len(c.after) > 0 })
	took.reserved = c.firstAfter.Sub(began)
	testkit.Eventually(t, 90*time.Second, func() (bool, string) {
		recorded, err := s.postgres.SQL(t.Context(), s.databaseName(), c.askForSales())
		return err == nil && strings.TrimSpace(recorded) == "t", "no sale is recorded: " + errorText(err)
	})
	took.recorded = time.Since(began)

	c.await(t, 60*time.Second, func() bool { return c.soldOut })
	c.stop()
	s.audit(t, units)
	return took
}

// audit checks, once the ledger has everything, that nothing was oversold and that both sides agree on every record.
func (s *shop) audit(t testing.TB, units int64) {
	t.Helper()
	s.agreesWithin(t, time.Minute) // what a killed worker was finalising comes back after 30 s
	s.nothingTwice(t)
	if over := s.sql(t, fmt.Sprintf(`SELECT coalesce(sum(units), 0) > %d FROM order_ledger`, units)); over != "f" {
		t.Error("more was sold than there is")
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		report, err := reconcile.Run(t.Context(), s.stock, wire.ReconcileLedger(s.ledger),
			reconcile.Options{Deep: true, MaxLag: time.Minute, Actor: "test", Installation: s.ledger.Installation().ID})
		return err == nil && report.OK == report.Lots, fmt.Sprintf("reconcile: %v, %+v", err, report.Rows)
	})
}

// startProcess runs a worker with default settings in a process of its own until the test ends.
func (s *shop) startProcess(t testing.TB) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRedis+"="+s.redisURL, envDatabase+"="+s.databaseURL, envDefaults+"=yes")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.running = cmd
	t.Cleanup(func() { _ = endProcess(cmd) })
}

// endProcess kills a process and waits until it is gone. Of one that is gone already it says nothing.
func endProcess(cmd *exec.Cmd) error {
	if cmd.ProcessState != nil {
		return nil
	}
	err := cmd.Process.Kill()
	_ = cmd.Wait() // says that it was killed
	return err
}

// nodeOf is the node of a Cluster that has the lot.
func (s *shop) nodeOf(t testing.TB, c *lab.Cluster, lot drop.LotID) *lab.Redis {
	t.Helper()
	for _, node := range c.Nodes {
		keys, err := node.Do(t.Context(), "KEYS", "*:lot:"+string(lot))
		if err != nil {
			t.Fatal(err)
		}
		if keys != "" {
			return node
		}
	}
	t.Fatalf("no node has the lot %s", lot)
	return nil
}

// callers buy a lot until it is sold out: each holds a unit and confirms it, and asks again with the same key after 10 ms
// for as long as no answer is final.
type callers struct {
	stop func()

	mu         sync.Mutex
	sold       int
	soldOut    bool
	wrong      error
	fault      time.Time // once it is over
	firstAfter time.Time // when the first reservation was accepted that was asked for after the fault
	after      []string  // attempts of the first sales after the fault
}

func (s *shop) callers(t testing.TB, lot drop.LotID) *callers {
	t.Helper()
	c := &callers{}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	c.stop = func() {
		cancel()
		all.Wait()
	}
	t.Cleanup(c.stop)
	for caller := range 8 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil && c.buy(ctx, s, lot, fmt.Sprintf("user-%d-%d", caller, i)); i++ {
				sleepUntil(ctx, 10*time.Millisecond)
			}
		})
	}
	return c
}

// buy returns whether there may be more to buy.
func (c *callers) buy(ctx context.Context, s *shop, lot drop.LotID, user string) bool {
	var hold drop.Outcome
	var asked time.Time
	err := everyTenMS(ctx, func() (err error) {
		asked = time.Now()
		hold, err = s.stock.Reserve(context.WithoutCancel(ctx), drop.ReserveRequest{Lot: lot, User: user, Key: user, Qty: 1, Hold: time.Hour})
		return err
	})
	if err == nil {
		c.accepted(asked)
		err = everyTenMS(ctx, func() error {
			_, err := s.stock.Settle(context.WithoutCancel(ctx), drop.SettleRequest{ID: hold.Reservation.ID, Action: drop.ActConfirm, Ref: "pay-" + user})
			return err
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch fault.CodeOf(err) {
	case "":
		c.sold++
		if !c.fault.IsZero() && asked.After(c.fault) && len(c.after) < 20 {
			c.after = append(c.after, "'"+hold.Reservation.ID.Attempt+"'")
		}
	case fault.SoldOut:
		c.soldOut = true
		return false
	case fault.NotFound: // a hold that the fault took: the sale goes on without it
	default:
		if ctx.Err() == nil {
			c.wrong = err
		}
	}
	return true
}

// everyTenMS repeats a call for as long as its answer is that Redis is away, shut, or did not say.
func everyTenMS(ctx context.Context, call func() error) error {
	for {
		err := call()
		if err == nil || fault.ExitOf(err) != fault.ExitUnavailable || ctx.Err() != nil {
			return err
		}
		sleepUntil(ctx, 10*time.Millisecond)
	}
}

// accepted notes the first reservation after the fault.
func (c *callers) accepted(asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.firstAfter.IsZero() && !c.fault.IsZero() && asked.After(c.fault) {
		c.firstAfter = time.Now()
	}
}

// struck says that the fault is over: what is asked for from now on is asked of what came after it.
func (c *callers) struck(over time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = over
}

// askForSales asks the ledger whether it has one of the first sales after the fault.
func (c *callers) askForSales() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return `SELECT EXISTS (SELECT FROM order_ledger WHERE attempt IN (` + strings.Join(c.after, ",") + `))`
}

// await waits until something is so; it is asked with the callers' mutex held.
func (c *callers) await(t testing.TB, limit time.Duration, so func() bool) {
	t.Helper()
	testkit.Eventually(t, limit, func() (bool, string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return so(), fmt.Sprintf("%d sold, %d of them after the fault, wrong answer: %v", c.sold, len(c.after), c.wrong)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong != nil {
		t.Errorf("somebody was answered %v", c.wrong)
	}
}
