package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestAKilledCommandIsRepeatedSafely: buyers' commands are killed at random moments of a sell-out and typed again with
// the same key. Nobody gets two reservations, nobody loses one, and every unit is accounted for in both stores.
func TestAKilledCommandIsRepeatedSafely(t *testing.T) {
	testkit.Long(t)
	redis, db := testkit.Redis(t, lab.RedisOptions{Fsync: "always"}), testkit.Postgres(t)
	run := func(args ...string) *exec.Cmd {
		cmd := as("dropctl", args...)
		cmd.Env = append(cmd.Env, "DROPCTL_REDIS_URL="+redis.URL(), "DROPCTL_DATABASE_URL="+db.URL(lab.Owner), "DROPCTL_OUTPUT=json", "DROPCTL_YES=1")
		return cmd
	}
	must := func(want int, args ...string) []byte {
		t.Helper()
		cmd := run(args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if exit := exitOf(t, cmd.Run()); exit != want {
			t.Fatalf("%v: exit %d\n%s%s", args, exit, &out, &errs)
		}
		return out.Bytes()
	}
	must(0, "migrate", "up", "--shards", "4")
	const stock, buyers = 10, 14
	must(0, "seed", "truffle", "--stock", fmt.Sprint(stock))

	// killed starts a command and kills it, mostly, after a moment in which it may or may not have acted.
	killed := func(rng *rand.Rand, args ...string) {
		cmd := run(args...)
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		timer := time.AfterFunc(time.Duration(rng.IntN(150))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
	}
	var mu sync.Mutex
	held := map[string]string{} // reservation → buyer
	var all sync.WaitGroup
	for b := range buyers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(b)))
			reserve := []string{"reserve", "truffle", "--user", fmt.Sprint("buyer-", b), "--key", "click"}
			for range 3 {
				killed(rng, reserve...)
			}
			out, err := run(reserve...).Output()
			if exit := exitOf(t, err); exit == 4 {
				return // sold out
			} else if exit != 0 {
				t.Errorf("buyer %d: exit %d", b, exit)
				return
			}
			var r struct{ ID string }
			if err := json.Unmarshal(out, &r); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if other, twice := held[r.ID]; twice {
				t.Errorf("%s and buyer-%d share %s", other, b, r.ID)
			}
			held[r.ID] = fmt.Sprint("buyer-", b)
			mu.Unlock()
			confirm := []string{"confirm", r.ID, "--payment", fmt.Sprint("pay-", b)}
			killed(rng, confirm...)
			if exit := exitOf(t, run(confirm...).Run()); exit != 0 {
				t.Errorf("confirm of buyer %d: exit %d", b, exit)
			}
		})
	}
	all.Wait()
	if len(held) != stock {
		t.Errorf("%d reservations of %d units", len(held), stock)
	}
	must(0, "worker", "--until-idle")
	var lot struct{ Available, Held, Sold int }
	if err := json.Unmarshal(must(0, "lot", "show", "truffle"), &lot); err != nil || lot.Sold != stock || lot.Held != 0 || lot.Available != 0 {
		t.Errorf("%+v, %v", lot, err)
	}
	must(0, "reconcile", "--deep")
	if sales := db.SQL(t, `SELECT count(*), sum(units) FROM order_ledger`); sales != fmt.Sprintf("%d|%d", stock, stock) {
		t.Errorf("sales: %s", sales)
	}
}

// TestOneSignalEndsWhatWouldNotEnd: cron and systemd send one TERM, also to a command that waits for a pipe nobody
// writes to, or for a jq expression that finds no end.
func TestOneSignalEndsWhatWouldNotEnd(t *testing.T) {
	testkit.Long(t)
	pipe := filepath.Join(t.TempDir(), "pipe.csv")
	if err := exec.Command("mkfifo", pipe).Run(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"seed", "-f", pipe, "--dry-run", "--redis-url", "redis://127.0.0.1:1", "--database-url", "postgres://127.0.0.1:1/x"},
		{"version", "--jq", "last(repeat(1))"},
	} {
		// A signal that comes before the program listens ends it otherwise: then it is given more time to start.
		exit := -1
		for wait := 300 * time.Millisecond; exit == -1 && wait < 10*time.Second; wait *= 2 {
			exit = terminated(t, wait, args...)
		}
		if exit != 143 {
			t.Errorf("%v: exit %d", args, exit)
		}
	}
}

// terminated runs a command that does not end by itself, sends it one TERM after a while, and returns its exit status:
// -1 if the signal itself ended it.
func terminated(t *testing.T, wait time.Duration, args ...string) int {
	cmd := as("dropctl", args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		t.Fatalf("%v ended by itself: %v", args, err)
	case <-time.After(wait):
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		return exitOf(t, err)
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		t.Fatalf("%v went on after a signal", args)
	}
	return 0
}
