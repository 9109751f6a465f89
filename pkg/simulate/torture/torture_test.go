package torture_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/simulate/torture"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// TestMain makes this binary act as a worker process, which can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "worker" {
		if err := work(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testkit.Main(m))
}

// work runs a worker that takes over from a dead one sooner than usual.
func work(file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	cfg := settings()
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "redis-url":
			cfg.RedisURL = config.NewURL(strings.Trim(value, `"`))
		case "database-url":
			cfg.DatabaseURL = config.NewURL(strings.Trim(value, `"`))
		}
	}
	l, err := wire.OpenLedger(ctx, cfg, os.Getenv)
	if err != nil {
		return err
	}
	defer l.Close()
	s, err := wire.OpenStock(cfg, os.Getenv, l.Installation())
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	in := l.Installation()
	_, err = worker.New(s, wire.WorkerLedger(l), worker.Options{Installation: in.ID, Shards: in.Shards, Rate: 20_000, Takeover: time.Second, Rebuild: wire.RebuildLot(s, l)}).Run(ctx)
	return err
}

func settings() *config.Config {
	return &config.Config{Timeout: 10 * time.Second, RedisTimeout: 2 * time.Second, RedisDialTimeout: time.Second, KeyRetention: 24 * time.Hour,
		OutboxMaxBytes: 64 << 20, Durability: "memory", MaxEventsPerSecond: 20_000}
}

// laboratory is a shop with its lots on sale and a worker alive.
func laboratory(t *testing.T) *wire.Laboratory {
	t.Helper()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	l, err := wire.OpenLaboratory(t.Context(), settings(), os.Getenv, wire.LaboratoryOptions{Redis: lab.RedisOptions{Fsync: "always"},
		Links: []lab.FaultTarget{lab.RedisTarget, lab.PostgresTarget}, Shards: 4, Worker: []string{self, "worker", wire.WorkerConfig}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := wire.SeedTorture(t.Context(), l.Stock, l.Ledger); err != nil {
		t.Fatal(err)
	}
	return l
}

// plant does something before the stores are audited; nil: nothing.
func run(t *testing.T, l *wire.Laboratory, engine torture.Engine, o torture.Options, plant func()) torture.Report {
	t.Helper()
	audit := wire.TortureAudit(l.Stock, l.Ledger, time.Minute)
	o.Audit = func(ctx context.Context, flushed bool) ([]torture.Finding, error) {
		if plant != nil {
			if _, err := audit(ctx, flushed); err != nil { // all is recorded first
				return nil, err
			}
			plant()
		}
		return audit(ctx, flushed)
	}
	report, err := torture.Run(t.Context(), engine, wire.TortureLedger(l.Ledger), &l.Rig, o)
	if err != nil {
		t.Errorf("%v; the worker's log ends: %s", err, l.Rig.Worker.Log())
	}
	return report
}

func TestTortureBreaksNoPromise(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	l := laboratory(t)
	report := run(t, l, l.Stock, torture.Options{Seed: 21, For: 4 * time.Second}, nil)
	if report.Verdict != "ok" || report.Err() != nil {
		t.Errorf("%s: %v\n%+v", report.Verdict, report.Err(), report.History)
	}
	t.Logf("%d calls, %v, %v, %d looks, recovered in %s", report.Calls, report.Operations, report.Faults, report.Looks, report.Recovery)
	if report.Calls < 200 || report.Looks == 0 || len(report.Faults) == 0 {
		t.Errorf("%d calls, %d looks, faults %v: that is no torture", report.Calls, report.Looks, report.Faults)
	}
}

// forgetful is an engine that loses a unit: of what is given back a unit is missing every third time.
type forgetful struct {
	torture.Engine
	t     *testing.T
	redis *lab.Redis
	calls atomic.Int64
}

func (f *forgetful) Settle(ctx context.Context, q drop.SettleRequest) (drop.Outcome, error) {
	out, err := f.Engine.Settle(ctx, q)
	if q.Action == drop.ActRelease && err == nil && !out.Replayed && f.calls.Add(1)%3 == 0 {
		key, err := f.redis.Do(ctx, "KEYS", "*:lot:"+string(q.ID.Lot))
		if err != nil {
			f.t.Error(err)
		}
		testkit.Plant(f.t, f.redis, key, "available", -1)
	}
	return out, err
}

// forged is what somebody does to the ledger who can switch its triggers off: a sale of units that there are not, an event
// written twice, and one changed afterwards.
const forged = `INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref) VALUES ('last-one', 99999, 1, 'sale', 9, 'a', 'eve', '');
INSERT INTO reservation_events SELECT lot, epoch, seq + 100000, kind, reservation, event_at, line, hash FROM reservation_events
	WHERE lot = 'wine' AND kind = 'held' ORDER BY seq LIMIT 1;
UPDATE reservation_events SET hash = hash || '\x00' WHERE lot = 'poster' AND seq = 1`

func TestTortureFindsWhatIsPlanted(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	l := laboratory(t)
	report := run(t, l, &forgetful{t: t, Engine: l.Stock, redis: l.Rig.Redis}, torture.Options{Seed: 12, For: 20 * time.Second}, func() {
		testkit.Forge(t, testkit.Database{Server: l.Rig.Postgres, Name: lab.Database}, forged)
	})
	found := ""
	for _, v := range report.Violations {
		found += fmt.Sprintf("%s: %s\n", v.Lot, v.What)
	}
	if report.Verdict != "broken" || !fault.Is(report.Err(), fault.Broken) {
		t.Errorf("%s: %v", report.Verdict, report.Err())
	}
	for _, want := range []string{" is not available ", "units were sold beyond its capacity", "last-one: a sale is finalised of reservation number 99999",
		"wine: 1 events are recorded twice", "poster: its history at 1/1: its hash does not follow"} {
		if !strings.Contains(found, want) {
			t.Errorf("it does not find %q: %s", want, found)
		}
	}
	if took := report.Took; took > time.Minute {
		t.Errorf("it took %s to see that a unit is missing", took)
	}
	history := fmt.Sprint(report.History)
	for _, want := range []string{" journal 1/1 loaded by torture", " journal 1/", " released ", "; by the events available ", " told c", " found in Redis at epoch 1"} {
		if !strings.Contains(history, want) {
			t.Errorf("the history does not say %q: %s", want, history)
		}
	}
}
