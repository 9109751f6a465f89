package bars

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/broker"
)

func TestMain(m *testing.M) {
	if broker.Main() {
		return
	}
	os.Exit(testkit.Main(m))
}

// built builds the program and returns its path.
func built(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "dropctl")
	if out, err := exec.Command("go", "build", "-o", program, "../../../cmd/dropctl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// little is enough to see that everything is measured; its figures mean nothing.
var little = effort{warm: 20 * time.Millisecond, span: 150 * time.Millisecond, probe: 80 * time.Millisecond, lots: 30, crowd: 500,
	holds: 20_000, single: 500, batches: 2, rowSpan: 50 * time.Millisecond, steady: time.Second, sales: 1000, spread: 1000, starts: 2}

// TestMeasuresEverything runs every part on real servers and checks what does not depend on the machine's speed.
func TestMeasuresEverything(t *testing.T) {
	testkit.Long(t)
	report, err := measure(t.Context(), Options{Program: built(t), Rounds: 2, Only: Parts(), Soak: 2 * time.Second, Progress: t.Logf}, little)
	if err != nil {
		t.Fatal(err)
	}
	bars := map[string]Row{}
	for _, row := range report.Rows {
		bars[row.Bar] = row
		if row.Measured <= 0 && row.Bar != "soak.unavailable" && row.Bar != "pipeline.off-the-limit" { // at best none
			t.Errorf("%s: measured %v", row.Bar, row.Measured)
		}
	}
	for name, required := range map[string]float64{
		"hot-lot.throughput-over-plain": 2.8, "hot-lot.p99-over-plain": 0.5, "hot-lot.throughput-over-autopipeline": 1.6,
		"many-lots.throughput-over-best-baseline": 1, "many-lots.crowd-over-one-lot": 0.55, "memory.bytes-per-hold": 350,
		"apply.over-row-by-row": 10, "pipeline.off-the-limit": 0.05, "pipeline.cpu-of-a-sale": 0.333, "http.accept-over-bare": 0.5, "http.sold-out-over-bare": 0.65, "http.accept-p99-at-half-load": 10,
		"soak.memory-growth": 1.1, "soak.goroutine-growth": 1.1, "cli.script-calls-of-a-reserve": 1, "cli.version": 50,
	} {
		if bar := bars[name]; bar.Required == nil || *bar.Required != required || bar.OK == nil {
			t.Errorf("%s: %+v", name, bar)
		}
	}
	for _, name := range []string{"memory.bytes-per-hold", "cli.script-calls-of-a-reserve"} { // any machine meets these
		if bar := bars[name]; bar.OK != nil && !*bar.OK {
			t.Errorf("%s is %v", name, bar.Measured)
		}
	}
}

func TestMissedBarsAreNamed(t *testing.T) {
	met := Report{Rows: []Row{AtLeast("speed", 2, 2, "times"), AtMost("size", 350, 350, "bytes"), Aim("dream", 3.5, 1, "times"), info("figure", 1, "ms", "")}}
	if err := met.Err(); err != nil {
		t.Error(err)
	}
	missed := Report{Rows: append(met.Rows, AtLeast("slow", 2, 1.999, "times"), AtMost("fat", 350, 351, "bytes"))}
	err := missed.Err()
	if fault.CodeOf(err) != fault.BarMissed || fault.ExitOf(err) != fault.ExitFinding {
		t.Fatalf("%v", err)
	}
	for _, name := range []string{"slow", "fat"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is missing in: %v", name, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{Rounds: 0}, {Rounds: 5, Only: []string{"hot-lots"}}} {
		if _, err := Run(t.Context(), o); fault.CodeOf(err) != fault.Usage {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A benchmark that is stopped leaves no server behind (the test kit watches) and says why it ended.
func TestStopsWithItsContext(t *testing.T) {
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	long := little
	long.warm = time.Hour
	_, err := measure(ctx, Options{Rounds: 1, Only: []string{"hot-lot"}, Progress: func(string, ...any) { cancel(stop) }}, long)
	if err == nil || ctx.Err() == nil {
		t.Fatalf("it ended with %v", err)
	}
}

func TestAPartThatFailsLeavesWhatWasMeasured(t *testing.T) {
	report, err := measure(t.Context(), Options{Rounds: 1, Only: []string{"generator", "cli"}, Program: filepath.Join(t.TempDir(), "gone")}, little)
	if err == nil || report.Failed != "cli" || len(report.Rows) == 0 || report.Took == 0 {
		t.Fatalf("it ended with %v and %+v", err, report)
	}
}

func TestLoadMeasuresWhatItIsGiven(t *testing.T) {
	const answer = 10 * time.Millisecond
	l := load{callers: 4, lots: lotNames(2), warm: 20 * time.Millisecond, span: 300 * time.Millisecond}
	f, err := l.run(t.Context(), func(context.Context, drop.LotID, string) error {
		time.Sleep(answer)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Four callers who wait 10 ms each time get 400 answers a second at most, on a busy machine fewer.
	if f.perSecond > 420 || f.perSecond < 20 || f.p50 < answer || f.p99 < f.p50 {
		t.Errorf("%+v", f)
	}
	refused := errors.New("refused")
	if _, err := l.run(t.Context(), func(context.Context, drop.LotID, string) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a refusal gives %v", err)
	}
}

// No user asks twice and every lot gets its share, or the contenders would not do the same work.
func TestLoadSpreadsUsersOverLots(t *testing.T) {
	l := load{callers: 1, lots: lotNames(3), span: 20 * time.Millisecond}
	byLot := map[drop.LotID]int{}
	var users []string
	_, err := l.run(t.Context(), func(_ context.Context, lot drop.LotID, user string) error {
		byLot[lot]++
		users = append(users, user)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n := len(users)
	slices.Sort(users)
	if unique := slices.Compact(users); len(unique) != n || len(users[0]) != 12 {
		t.Errorf("%d names for %d users such as %s", len(unique), n, users[0])
	}
	for _, lot := range l.lots {
		if byLot[lot] < n/3 || byLot[lot] > n/3+1 {
			t.Errorf("%s got %d of %d users", lot, byLot[lot], n)
		}
	}
}

func TestDigitsAndMedian(t *testing.T) {
	for v, want := range map[float64]float64{0: 0, 3.14159: 3.14, 98765: 98800, 0.012345: 0.0123, 999.9: 1000} {
		if got := Digits(v); got != want {
			t.Errorf("%v becomes %v, not %v", v, got, want)
		}
	}
	if m := Median([]float64{9, 1, 5}); m != 5 {
		t.Error(m)
	}
	if m := Median([]float64{9, 1, 5, 7}); m != 6 {
		t.Error(m)
	}
}
