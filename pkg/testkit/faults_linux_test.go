package testkit

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/lab"
)

// ahead returns how far a clock that tells seconds is ahead of ours.
func ahead(t *testing.T, clock string) time.Duration {
	t.Helper()
	seconds, err := strconv.ParseFloat(clock, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds*float64(time.Second)) - time.Duration(time.Now().UnixNano())
}

func TestSteppedClocks(t *testing.T) {
	Long(t)
	t.Parallel()
	r := Redis(t, lab.RedisOptions{Under: Faulty(t)})
	p := PostgresServer(t, lab.PostgresOptions{Under: Faulty(t), NoFsync: true})
	redisClock := func() string { return strings.Replace(do(t, r, "TIME"), "\n", ".", 1) }
	postgresClock := func() string {
		now, err := p.SQL(t.Context(), "postgres", "SELECT extract(epoch FROM clock_timestamp())")
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	want := time.Duration(0)
	check := func(what string) {
		t.Helper()
		for _, clock := range []func() string{redisClock, postgresClock} {
			if got := ahead(t, clock()); math.Abs((got - want).Seconds()) > 5 {
				t.Errorf("%s: a clock is %v ahead, want %v", what, got, want)
			}
		}
	}
	check("at first")
	for _, step := range []time.Duration{time.Hour, -3*time.Hour - time.Nanosecond} {
		StepClock(t, r, step)
		StepClock(t, p, step)
		want += step
		check("after a step")
	}
	if err := r.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("after a restart")
}

func TestPowerLossTakesTheUnsyncedTail(t *testing.T) {
	Long(t)
	t.Parallel()
	r := Redis(t, lab.RedisOptions{Fsync: "everysec", Under: Faulty(t)})
	do(t, r, "SET", "bottles", "1")
	const log = "appendonly.aof.1.incr.aof"
	synced := func() int64 {
		n, err := r.Synced(log)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	Eventually(t, 30*time.Second, func() (bool, string) { return synced() > 0, "the first write is not synced" })

	// Right after a sync there is a second until the next.
	before := synced()
	do(t, r, "INCR", "bottles")
	Eventually(t, 30*time.Second, func() (bool, string) { return synced() > before, "the second write is not synced" })
	do(t, r, "INCRBY", "bottles", "1000")
	do(t, r, "SET", "more", strings.Repeat("x", 1000))
	if lost := LosePower(t, r); lost < 1000 {
		t.Errorf("%d bytes lost", lost)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if bottles, more := do(t, r, "GET", "bottles"), do(t, r, "EXISTS", "more"); bottles != "2" || more != "0" {
		t.Errorf("%s bottles, %s more; want what was synced and nothing else", bottles, more)
	}
}

func TestPowerLossTakesNothingThatWasSynced(t *testing.T) {
	t.Parallel()
	r := Redis(t, lab.RedisOptions{Fsync: "always", Under: Faulty(t)})
	for round := range 3 { // each after a restart
		for i := range 50 {
			if got := do(t, r, "INCR", "bottles"); got != strconv.Itoa(50*round+i+1) {
				t.Fatalf("round %d: bottle %d is answered %s", round, i, got)
			}
		}
		if round == 1 { // the log begins anew
			do(t, r, "BGREWRITEAOF")
			Eventually(t, 30*time.Second, func() (bool, string) {
				logs, _ := filepath.Glob(filepath.Join(r.Dir(), "appendonlydir", "*.2.incr.aof"))
				return len(logs) == 1 && strings.Contains(do(t, r, "INFO", "persistence"), "aof_rewrite_in_progress:0"), "the log is not rewritten"
			})
			do(t, r, "INCR", "bottles")
			do(t, r, "DECR", "bottles")
		}
		LosePower(t, r)
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := do(t, r, "GET", "bottles"); got != "150" {
		t.Errorf("%s bottles of 150 acknowledged", got)
	}
}

func TestRedisWithAFullDisk(t *testing.T) {
	t.Parallel()
	r := Redis(t, lab.RedisOptions{DiskSize: 4 << 20})
	do(t, r, "SET", "bottles", "7")
	if err := r.FillDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What was allocated before still takes a little.
	var refusal error
	for i := 0; refusal == nil && i < 1000; i++ {
		_, refusal = r.Do(t.Context(), "SET", "filling", strings.Repeat("x", 10_000))
	}
	if refusal == nil || !strings.Contains(refusal.Error(), "MISCONF") {
		t.Fatalf("with a full disk a write gives %v", refusal)
	}
	refused(t, r, "MISCONF", "INCR", "bottles")
	if got := do(t, r, "GET", "bottles"); got != "7" {
		t.Errorf("%s bottles", got)
	}

	if err := r.FreeDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 30*time.Second, func() (bool, string) {
		_, err := r.Do(t.Context(), "INCR", "bottles")
		return err == nil, fmt.Sprintf("with place again a write gives %v", err)
	})
	if err := r.Kill(); err != nil { // the disk survives its server
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := do(t, r, "GET", "bottles"); got != "8" {
		t.Errorf("%s bottles after a restart", got)
	}
}

func TestPostgresWithAFullDisk(t *testing.T) {
	Long(t)
	t.Parallel()
	p := PostgresServer(t, lab.PostgresOptions{WALDiskSize: 40 << 20})
	sql := func(statements string) (string, error) { return p.SQL(t.Context(), lab.Database, statements) }
	if _, err := sql("CREATE TABLE sales (n int)"); err != nil {
		t.Fatal(err)
	}
	if err := p.FillDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	recorded, full := 0, false
	for !full && recorded < 20 { // there may be segments that were made in advance
		if _, err := sql("INSERT INTO sales VALUES (1); SELECT pg_switch_wal();"); err != nil {
			full = true
		} else {
			recorded++
		}
	}
	if !full {
		t.Fatal("with a full disk every commit is accepted")
	}
	if err := p.FreeDisk(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil { // it ended by itself, or tries to recover
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := sql("SELECT count(*) FROM sales")
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := strconv.Atoi(got); n < recorded || n > recorded+1 { // the last commit's outcome is unknown
		t.Errorf("%s sales of %d acknowledged", got, recorded)
	}
}

func TestFaultsNeedTheirMeans(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	if err := r.FillDisk(t.Context()); err == nil || !strings.Contains(err.Error(), "no disk of its own") {
		t.Errorf("filling no disk gives %v", err)
	}
}
