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

func run(t *testing.T, l *wire.Laboratory, engine torture.Engine, o torture.Options) torture.Report {
	t.Helper()
	o.Audit = wire.TortureAudit(l.Stock, l.Ledger, time.Minute)
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
	report := run(t, l, l.Stock, torture.Options{Seed: 21, For: 5 * time.Second})
	if report.Verdict != "ok" || report.Err() != nil {
		t.Errorf("%s: %v\n%s", report.Verdict, report.Err(), strings.Join(report.History, "\n"))
	}
	t.Logf("%d calls, %v, %v, %d looks, recovered in %s", report.Calls, report.Operations, report.Faults, report.Looks, report.Recovery)
	if report.Calls < 200 || report.Looks == 0 || len(report.Faults) == 0 {
		t.Errorf("%d calls, %d looks, faults %v: that is no torture", report.Calls, report.Looks, report.Faults)
	}
}

// planted is an engine with a bug, which shows after a while.
type planted struct {
	torture.Engine
	bug   func(p *planted, ctx context.Context, q drop.SettleRequest) (drop.Outcome, error)
	t     *testing.T
	redis *lab.Redis
	calls atomic.Int64
}

func (p *planted) Settle(ctx context.Context, q drop.SettleRequest) (drop.Outcome, error) {
	return p.bug(p, ctx, q)
}

func TestTortureFindsAPlantedBug(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	for name, plant := range map[string]struct {
		bug  func(p *planted, ctx context.Context, q drop.SettleRequest) (drop.Outcome, error)
		want []string // one of these is found
	}{
		"a unit is sold to two": {func(p *planted, ctx context.Context, q drop.SettleRequest) (drop.Outcome, error) {
			out, err := p.Engine.Settle(ctx, q)
			if q.Action == drop.ActConfirm && fault.Is(err, fault.HoldExpired) { // its unit is somebody else's by now
				return drop.Outcome{Reservation: drop.Reservation{ID: q.ID, State: drop.Confirmed, Qty: max(1, q.Qty), Ref: q.Ref}, Now: time.Now()}, nil
			}
			return out, err
		}, []string{"after its deadline", "callers were told that at least", "which is not recorded", "(0: all of"}},
		"a unit is forgotten": {func(p *planted, ctx context.Context, q drop.SettleRequest) (drop.Outcome, error) {
			out, err := p.Engine.Settle(ctx, q)
			if q.Action == drop.ActRelease && err == nil && !out.Replayed && p.calls.Add(1) == 3 {
				key, err := p.redis.Do(ctx, "KEYS", "*:lot:"+string(q.ID.Lot))
				if err != nil {
					p.t.Error(err)
				}
				testkit.Plant(p.t, p.redis, key, "available", -1)
			}
			return out, err
		}, []string{"is not available"}},
		"what is given back is not": {func(p *planted, ctx context.Context, q drop.SettleRequest) (drop.Outcome, error) {
			if q.Action == drop.ActRelease && q.Keep == 0 {
				return drop.Outcome{Reservation: drop.Reservation{ID: q.ID, State: drop.Released}, Now: time.Now()}, nil
			}
			return p.Engine.Settle(ctx, q)
		}, []string{"told that it was given back", "after it was bought", "first told"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := laboratory(t)
			report := run(t, l, &planted{t: t, Engine: l.Stock, bug: plant.bug, redis: l.Rig.Redis}, torture.Options{Seed: 12, For: 20 * time.Second})
			text := ""
			for _, v := range report.Violations {
				text += v.What + "\n"
			}
			found := false
			for _, want := range plant.want {
				found = found || strings.Contains(text, want)
			}
			if report.Verdict != "broken" || !fault.Is(report.Err(), fault.Broken) || !found {
				t.Fatalf("%s: %v\n%s", report.Verdict, report.Err(), text)
			}
			if len(report.History) < 3 || !strings.Contains(strings.Join(report.History, "\n"), "FOUND") {
				t.Errorf("the history is %q", report.History)
			}
		})
	}
}
