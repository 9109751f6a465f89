package compare

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// little is enough to see that everything is done; its figures mean nothing.
var little = effort{warm: 20 * time.Millisecond, probe: 60 * time.Millisecond, drillUnits: 96, drillCallers: 64, deaths: 6, grace: 500 * time.Millisecond, darkAfter: 400 * time.Millisecond}

func options(t *testing.T) Options {
	return Options{Rounds: 2, Users: 16, Duration: 300 * time.Millisecond, Lots: 2, Stock: 20_000, Seed: 7, Progress: t.Logf}
}

func arenaOf(t *testing.T) *arena {
	t.Helper()
	a, err := openArena(t.Context(), options(t), little, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close(context.Background()) })
	return a
}

// TestModelsKeepTheirPromise sells out under 64 callers who click twice, lets clients die, and ends servers.
func TestModelsKeepTheirPromise(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	a := arenaOf(t)
	var chains errgroup.Group // a model has its server to itself
	for _, place := range []place{onPostgres, onRedis, onRedisSynced} {
		chains.Go(func() error {
			for _, m := range Models() {
				if m.place == place {
					checkPromise(t, a, m)
				}
			}
			return nil
		})
	}
	_ = chains.Wait()
	checkBrokenIsFound(t, a)
	checkSmallLotSurvivesAnOutage(t, a)
	for _, m := range []Model{pgGuardedUpdate, redisScript, dropctl, dropctlFsync} {
		out, err := a.outage(t.Context(), m, 16)
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		if out.Acknowledged == 0 || (m.place == onRedis) != (out.Lost > 0) {
			t.Errorf("%s: %+v", m.Name, out)
		}
	}
}

// mortal are those at which clients die: the others on PostgreSQL write and take back as pg-for-update does.
var mortal = []string{"pg-for-update", "pg-unit-rows", "redis-watch", "redis-lock", "redis-script", "dropctl"}

func checkPromise(t *testing.T, a *arena, m Model) {
	begun := time.Now()
	sold, err := a.sellOut(t.Context(), m, 16)
	t.Logf("%s is sold out after %s", m.Name, time.Since(begun))
	if want := (Audit{Units: little.drillUnits, Claims: little.drillUnits}); err != nil || sold != want {
		t.Errorf("%s sells out: %+v, %v", m.Name, sold, err)
	}
	if !slices.Contains(mortal, m.Name) {
		return
	}
	died, err := a.crash(t.Context(), m, 16)
	t.Logf("%s has recovered after %s", m.Name, time.Since(begun))
	leaks := m.Name == redisScript.Name // by nature: the unit goes with the key of the hold
	if err != nil || died.Oversold != 0 || died.OverLimit != 0 || (died.Unsold > 0) != leaks {
		t.Errorf("%s loses clients: %+v, %v", m.Name, died, err)
	}
}

// hasty looks and then writes as if nobody else were there.
type hasty struct{ redisShop }

func (s hasty) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	c := claim{lot: lot, user: user}
	if err := look(ctx, s.client, lot, user); err != nil {
		return c, err
	}
	if err := retry.Sleep(ctx, 5*time.Millisecond); err != nil {
		return c, err
	}
	_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		take(ctx, p, lot, user, hold)
		return nil
	})
	return c, err
}

func checkBrokenIsFound(t *testing.T, a *arena) {
	broken := Model{Name: "hasty", place: onRedis, open: func(_ context.Context, c client) (shop, error) {
		s, err := openRedis(c)
		return hasty{s}, err
	}}
	sold, err := a.sellOut(t.Context(), broken, 64)
	if err != nil || sold.Oversold == 0 || sold.OverLimit == 0 {
		t.Errorf("a model that checks and then acts passes: %+v, %v", sold, err)
	}
}

func TestAuditCounts(t *testing.T) {
	one := claim{lot: "l", user: "a"}
	two := claim{lot: "l", user: "b"}
	for _, c := range []struct {
		book []claim
		want Audit
	}{
		{nil, Audit{Units: 2, Unsold: 2}},
		{[]claim{one, two}, Audit{Units: 2, Claims: 2}},
		{[]claim{one, one}, Audit{Units: 2, Claims: 2, OverLimit: 1}},
		{[]claim{one, two, two}, Audit{Units: 2, Claims: 3, Oversold: 1, OverLimit: 1}},
	} {
		if got := audit(c.book, 2); got != c.want {
			t.Errorf("%v: %+v", c.book, got)
		}
	}
}

// TestCompares runs a whole comparison and checks what does not depend on the machine's speed.
func TestCompares(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	o := options(t)
	o.NoCrash = true
	o.Models = []string{"dropctl-fsync", "dropctl", "redis-script", "pg-for-update"}
	report, err := run(t.Context(), o, little)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Models) != len(o.Models) || len(report.Bars) != 6 {
		t.Fatalf("%d models, %d bars", len(report.Models), len(report.Bars))
	}
	for _, m := range report.Models {
		served := m.PerSecond > 0 && m.P50 > 0 || strings.HasPrefix(m.Model, "pg-") // which a slow machine may not manage
		if !served || m.Low > m.High || m.P99 < m.P50 || m.Connections < 1 || m.Oversold != 0 || m.Leaked != nil || len(m.Each) != o.Rounds {
			t.Errorf("%+v", m)
		}
		if runtime.GOOS == "linux" && m.CPU == nil {
			t.Errorf("what the server of %s used is missing", m.Model)
		}
		if m.Model == pgForUpdate.Name && m.Each[0].LockWait+m.Each[1].LockWait == 0 {
			t.Errorf("nobody waits for the lock of the one row: %+v", m)
		}
	}
	if _, err := json.Marshal(report); err != nil {
		t.Error(err)
	}
}

func TestBarsAreThoseOfTheModelsThatTookPart(t *testing.T) {
	none := int64(0)
	all := []Row{
		{Model: "dropctl", PerSecond: 56_000, P99: bench.Span(5 * time.Millisecond), Leaked: &none}, {Model: "dropctl-fsync", PerSecond: 30_000, P99: bench.Span(time.Millisecond)},
		{Model: "redis-script", PerSecond: 20_000, P99: bench.Span(20 * time.Millisecond)}, {Model: "pg-for-update", PerSecond: 1000, P99: bench.Span(time.Second)},
	}
	if rows := bar(all); len(rows) != 7 || (Report{Bars: rows}).Err() != nil {
		t.Errorf("%+v", rows)
	}
	all[0].PerSecond, all[0].Oversold, all[0].P99 = 55_000, 1, bench.Span(21*time.Millisecond)
	err := Report{Bars: bar(all)}.Err()
	if fault.ExitOf(err) != fault.ExitFinding {
		t.Fatal(err)
	}
	for _, name := range []string{"compare.over-redis-script is", "compare.p99-over-lowest", "compare.oversold"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is missing in: %v", name, err)
		}
	}
	if rows := bar(all[2:]); len(rows) != 0 {
		t.Errorf("bars of dropctl without it: %+v", rows)
	}
	// One that answered nobody is neither beaten nor the quickest of all.
	all[0].P99, all[3].PerSecond, all[3].P99 = bench.Span(19*time.Millisecond), 0, 0
	for _, row := range bar(all) {
		met := map[string]bool{"compare.over-pg-for-update": false, "compare.p99-over-lowest": true}
		if want, about := met[row.Bar]; about && *row.OK != want {
			t.Errorf("%+v", row)
		}
	}
	if rows := bar(all); len(rows) != 7 {
		t.Errorf("%d bars", len(rows))
	}
}

// A server that used less than the system counts was measured all the same: on a slow machine a short round is of that kind.
func TestWhatAServerUsedIsMissingOnlyWhereARoundDoesNotTell(t *testing.T) {
	rounds := func(used ...*bench.Span) *entry {
		e := &entry{Model: pgForUpdate}
		for _, each := range used {
			e.rounds = append(e.rounds, Round{Accepted: 10, CPU: each})
		}
		return e
	}
	none, some := bench.Span(0), bench.Span(20*time.Millisecond)
	if cpu := rounds(&none, &none).row().CPU; cpu == nil || *cpu != 0 {
		t.Errorf("less than is counted: %v", cpu)
	}
	if cpu := rounds(&some, &none).row().CPU; cpu == nil || *cpu != bench.Span(time.Millisecond) {
		t.Errorf("some in one of two: %v", cpu)
	}
	if cpu := rounds(&some, nil).row().CPU; cpu != nil {
		t.Errorf("one round does not tell, and it is %v", *cpu)
	}
}

func TestEveryLotCanBeOversold(t *testing.T) {
	sold := tally{ofEach: []int64{12, 10, 7, 11}}
	if n := sold.oversold(10); n != 3 {
		t.Errorf("%d units beyond what four lots of 10 have", n)
	}
}

// A model may sell out before its server ends: that is no error of the comparison, and what was sold is looked for all the same.
func checkSmallLotSurvivesAnOutage(t *testing.T, a *arena) {
	few := *a
	few.o.Stock = 5
	if out, err := few.outage(t.Context(), pgGuardedUpdate, 4); err != nil || out != (Outage{Acknowledged: 5}) {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := options(t)
	for field, change := range map[string]func(*Options){
		"models":   func(o *Options) { o.Models = []string{"dropctl", "mongo"} },
		"rounds":   func(o *Options) { o.Rounds = 0 },
		"users":    func(o *Options) { o.Users = -1 },
		"lots":     func(o *Options) { o.Lots = 0 },
		"stock":    func(o *Options) { o.Stock = 1 << 40 },
		"duration": func(o *Options) { o.Duration = 0 },
	} {
		o := good
		change(&o)
		var f *fault.Error
		if _, err := Run(t.Context(), o); !errors.As(err, &f) || f.Code != fault.Usage || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A comparison that is stopped leaves no server behind (the test kit watches), says why it ended, and returns what it has.
func TestStopsWithItsContext(t *testing.T) {
	t.Parallel()
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	o := options(t)
	o.Duration, o.Models = time.Hour, []string{"dropctl"}
	o.Progress = func(string, ...any) { cancel(stop) }
	if r, err := run(ctx, o, little); !errors.Is(err, stop) || len(r.Models) != 0 {
		t.Fatalf("it ended with %v, %+v", err, r)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	defer cancel(nil)
	o = options(t)
	o.Rounds, o.Models = 1000, []string{"dropctl"}
	o.Progress = func(format string, _ ...any) {
		if strings.Contains(format, "round") {
			cancel(stop)
		}
	}
	r, err := run(ctx, o, little)
	if !errors.Is(err, stop) || !r.Interrupted || len(r.Models) != 1 || len(r.Bars) != 0 {
		t.Fatalf("it ended with %v, %+v", err, r)
	}
	if m := r.Models[0]; len(m.Each) == 0 || m.PerSecond == 0 || len(m.Audits) != 0 || m.Leaked != nil {
		t.Errorf("after a round: %+v", m)
	}
}
