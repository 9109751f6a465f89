package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestASellOutOverHTTPSurvivesKills: the server, a worker and Redis are killed at random while shops sell a lot out over HTTP. In
// the end every unit is sold or held with a deadline, both stores say so, and every buyer has what the server told him.
func TestASellOutOverHTTPSurvivesKills(t *testing.T) {
	testkit.Long(t)
	redis, db := testkit.Redis(t, lab.RedisOptions{Fsync: "always"}), testkit.Postgres(t)
	s := &served{env: []string{"DROPCTL_REDIS_URL=" + redis.URL(), "DROPCTL_DATABASE_URL=" + db.URL(lab.Owner)}}
	s.run(t, "migrate", "up", "--shards", "4")
	const units, buyers = 120, 180
	s.run(t, "seed", "truffle", "--stock", fmt.Sprint(units), "--hold", "1h", "--max-hold", "2h")
	s.server, s.url = startAPI(t, s.env, "--listen", "127.0.0.1:0", "--ledger-wait", "100ms")
	worker := s.startWorker(t)

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	told := &answers{held: map[string]string{}, bought: map[string]string{}}
	c := s.client(t, s.url)
	sold := make(chan struct{})
	var shops sync.WaitGroup
	for shop := range 12 {
		shops.Go(func() {
			for b := shop; b < buyers; b += 12 {
				told.buy(ctx, t, c, fmt.Sprint("buyer-", b))
			}
		})
	}
	go func() { shops.Wait(); close(sold) }()
	victims := []string{"server", "worker", "redis", "server", "worker", "redis"}
	rand.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	for _, victim := range victims {
		time.Sleep(rand.N(time.Second)) // any moment
		switch victim {
		case "server":
			kill(s.server)
			s.server, _ = startAPI(t, s.env, "--listen", strings.TrimPrefix(s.url, "http://"), "--ledger-wait", "100ms")
		case "worker":
			kill(worker)
			worker = s.startWorker(t)
		case "redis":
			if err := redis.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := redis.Start(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	<-sold
	kill(worker)
	if t.Failed() {
		return
	}
	s.run(t, "worker", "--until-idle", "-q")
	s.run(t, "reconcile", "--deep", "-q")
	told.check(t, c, db, units)
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // says that it was killed
}

func (s *served) startWorker(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := as("dropctl", "worker", "-q")
	cmd.Env = append(cmd.Env, s.env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

// answers is what buyers were told: their reservations, and which of those are paid.
type answers struct {
	mu           sync.Mutex
	held, bought map[string]string // by buyer
}

// buy asks until it gets an answer, with the same key, and mostly pays.
func (a *answers) buy(ctx context.Context, t *testing.T, c *client.Client, buyer string) {
	var r client.Reservation
	err := untilAnswered(ctx, func() (err error) {
		r, err = c.Reserve(ctx, "truffle", buyer, client.ReserveBody{User: buyer})
		return err
	})
	if fault.Is(err, fault.SoldOut) {
		return
	}
	if err != nil {
		t.Errorf("%s: %v", buyer, err)
		return
	}
	a.mu.Lock()
	a.held[buyer] = r.ID
	a.mu.Unlock()
	if rand.N(5) == 0 {
		return // holds on without paying
	}
	err = untilAnswered(ctx, func() error {
		_, err := c.Confirm(ctx, r.ID, client.ConfirmBody{Payment: "pay-" + buyer})
		return err
	})
	if err != nil {
		t.Errorf("%s pays for %s: %v", buyer, r.ID, err)
		return
	}
	a.mu.Lock()
	a.bought[buyer] = r.ID
	a.mu.Unlock()
}

// untilAnswered repeats a call for as long as nobody answers it.
func untilAnswered(ctx context.Context, call func() error) error {
	for {
		err := call()
		if err == nil || fault.ExitOf(err) != fault.ExitUnavailable || ctx.Err() != nil {
			return err
		}
	}
}

// check compares what buyers were told with what is.
func (a *answers) check(t *testing.T, c *client.Client, db testkit.Database, units int64) {
	t.Helper()
	lot, err := c.Lot(t.Context(), "truffle")
	if err != nil || lot.Available != 0 || lot.Held+lot.Sold != units || lot.Capacity != units {
		t.Errorf("more buyers than units, and yet %+v, %v", lot, err)
	}
	if int64(len(a.held)) != units || int64(len(a.bought)) != lot.Sold {
		t.Errorf("%d buyers were given units and %d paid, of %d units of which %d are sold", len(a.held), len(a.bought), units, lot.Sold)
	}
	for buyer, id := range a.held {
		r, err := c.Reservation(t.Context(), id)
		paid := a.bought[buyer] != ""
		switch {
		case err != nil || r.User != buyer || r.Recorded == nil || r.Recorded.State != r.State:
			t.Errorf("%s has %s: %+v, %v", buyer, id, r, err)
		case paid && (r.State != "confirmed" || r.Payment != "pay-"+buyer), !paid && (r.State != "held" || r.Deadline == nil):
			t.Errorf("%s, paid %v, has %+v", buyer, paid, r)
		}
	}
	if sales := db.SQL(t, `SELECT count(*), count(DISTINCT user_id), sum(units) FROM order_ledger`); sales != fmt.Sprintf("%[1]d|%[1]d|%[1]d", lot.Sold) {
		t.Errorf("sales, buyers and units: %s; %d are sold", sales, lot.Sold)
	}
}
