package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/simulate"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/term"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

// trigger does something once when a text is written to it.
type trigger struct {
	on   string
	do   func()
	once sync.Once
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *trigger) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	if strings.Contains(w.text.String(), w.on) {
		w.once.Do(w.do)
	}
	return len(b), nil
}

func TestAnInterruptedSimulationPrintsWhatItHasAndLeavesNothingRunning(t *testing.T) {
	testkit.Long(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	before := children(t)
	var out bytes.Buffer
	errs := &trigger{on: " gone ", do: func() { cancel(fault.New(fault.Interrupted, "interrupted")) }} // users are at it
	args := []string{"simulate", "truffle-lot", "--users", "500"}
	getenv := func(name string) string { return map[string]string{"DROPCTL_CONFIG": "none"}[name] }
	a := newApp(args, Streams{In: strings.NewReader(""), Out: &out, Err: errs, Getenv: getenv})
	exit := a.execute(ctx, newRoot(a), args)
	if exit != int(fault.ExitInterrupted) {
		t.Errorf("exit %d\n%s", exit, errs.text.String())
	}
	for _, want := range []string{"VERDICT\tnone", "REQUESTS\t", "USERS\t500"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not print %q: %s", want, out.String())
		}
	}
	if text := errs.text.String(); !strings.Contains(text, "stock 7305: ") || !strings.Contains(text, "lock waits 0") {
		t.Errorf("its lines say nothing of the stores: %s", text)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { return children(t) <= before, "child processes are left" })
}

func TestTheLiveViewIsRedrawnInItsPlace(t *testing.T) {
	var out bytes.Buffer
	a := newApp(nil, Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &out, Getenv: func(string) string { return "" }})
	a.errTerm = term.Stream{TTY: true, Width: 40}
	v := a.newLiveView(nil, nil, simulate.Scenario{Crowds: []simulate.Crowd{{Users: 500}}})
	v.seen = storesSeen{capacity: 99, available: 50, held: 40, sold: 9, lockWaits: 7, trouble: fault.Unavailable}
	v.redraw(simulate.Progress{Users: 123})
	v.redraw(simulate.Progress{Users: 124, Accept: simulate.Latency{P99: 0.0125}})
	v.note("now: kill redis at 2s")
	v.wipe()
	seen := out.String()
	if strings.Count(seen, "\x1b[5A\x1b[J") != 2 || !strings.HasSuffix(seen, "\x1b[5A\x1b[Jnow: kill redis at 2s\n") {
		t.Errorf("it is not drawn over itself: %q", seen)
	}
	for _, want := range []string{"users 124 of 500", "stock 99: available 50, held 40, sold 9", "p99 accepted 12.5 ms"} {
		if !strings.Contains(seen, want) {
			t.Errorf("it does not show %q: %q", want, seen)
		}
	}
	for line := range strings.Lines(strings.ReplaceAll(seen, "\x1b[5A\x1b[J", "")) {
		if len(line) > 40 {
			t.Errorf("a line is wider than the terminal: %q", line)
		}
	}
	if text := strings.Join(v.texts(simulate.Progress{}), " "); !strings.Contains(text, "lock waits 7") || !strings.Contains(text, "stores: unavailable") {
		t.Errorf("it shows nothing of the ledger: %s", text)
	}
}

// Four lots, of which three are spoiled while people buy. Whoever pays takes a while, so that events come after the plant.
const spoiled = `
lots:
  - {lot: sound, stock: 50, hold: 20s}
  - {lot: leaking, stock: 50, hold: 20s}
  - {lot: oversold, stock: 2, hold: 20s}
  - {lot: doubled, stock: 50, hold: 20s}
crowds:
  fan:
    users: 120
    arrive: {spike: 1s}
    wants: {sound: 1, leaking: 1, oversold: 1, doubled: 1}
    insist: 20
    pause: 200ms..300ms
    think: 3s..5s
    patience: 2s
`

func TestASimulationFindsPlantedFaults(t *testing.T) {
	testkit.Long(t)
	t.Parallel() // it mostly waits
	a, l, s, redis, _ := privateShop(t)
	scenario, err := simulate.Parse(simulate.Source{Name: "spoiled", Text: []byte(spoiled), Lots: wire.ScenarioLots})
	if err != nil {
		t.Fatal(err)
	}
	plant := func(ctx context.Context) error {
		for lot, by := range map[string]int64{"leaking": -1, "oversold": 5} {
			key, err := redis.Do(ctx, "KEYS", "drop:*:lot:"+lot)
			if err != nil {
				return err
			}
			testkit.Plant(t, redis, strings.TrimSpace(key), "available", by)
		}
		// An event is written to the outbox twice. The ledger takes it once, and says nothing.
		outbox, err := redis.Do(ctx, "KEYS", "drop:*:outbox")
		if err != nil {
			return err
		}
		for key := range strings.FieldsSeq(outbox) {
			const again = `local e = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
return e and redis.call('XADD', KEYS[1], '*', unpack(e[2]))`
			if _, err := redis.Do(ctx, "EVAL", again, "1", key); err != nil {
				return err
			}
		}
		// An event comes once more, as another one.
		var events []drop.Event
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			events, _ = l.Journal(ctx, "doubled", drop.Watermark{}, 100)
			return len(events) > 1, "nothing is recorded"
		})
		again := events[len(events)-1]
		again.Seq += 2
		if _, err := l.Apply(ctx, []drop.Event{again}, nil); err != nil {
			return err
		}
		return nil
	}
	summary, err := a.rehearse(t.Context(), l, s, scenario, around{beside: plant})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(summary.Broken, "\n")
	if summary.Verdict != "broken" || fault.ExitOf(summary.Err()) != fault.ExitFinding || summary.Unaccounted < 1 {
		t.Errorf("verdict %s, %d oversold, %d unaccounted", summary.Verdict, summary.Oversold, summary.Unaccounted)
	}
	for _, want := range []string{"leaking: drift", "oversold: ", "is sold, but it was not recorded", "doubled: stopped", ": the outbox has event 1/1 twice"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not find %q: %s", want, text)
		}
	}
	for _, promise := range summary.Broken {
		if strings.Contains(promise, "sound~") {
			t.Errorf("a sound lot is blamed: %s", promise)
		}
	}
}

func TestARehearsalOnRealServersLeavesTheShopAlone(t *testing.T) {
	testkit.Long(t)
	t.Parallel() // it mostly waits
	_, l, s, redis, db := privateShop(t)
	db.SQL(t, `GRANT CREATE ON DATABASE "`+db.Name+`" TO "`+string(lab.App)+`"`)
	env := map[string]string{"DROPCTL_REDIS_URL": redis.SocketURL(), "DROPCTL_DATABASE_URL": db.URL(lab.App), "DROPCTL_TIMEOUT": "30s"}
	hat := drop.Definition{Lot: "hat", Stock: 3}.WithDefaults()
	if _, err := seed.Run(t.Context(), []seed.Row{seed.Whole(hat)}, wire.SeedStock(s), wire.SeedLedger(l), seed.Options{Installation: l.Installation().ID}); err != nil {
		t.Fatal(err)
	}
	before := keysOf(t, redis)
	path := filepath.Join(t.TempDir(), "mine.yaml")
	text := "lots: [{lot: hat, stock: 20, hold: 5s}]\ncrowds: {fan: {users: 60, arrive: {spike: 500ms}, think: 0s..500ms}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, env, "simulate", path, "--rehearse"); r.exit != 2 || r.out != "" || !strings.Contains(r.err, "--yes") {
		t.Errorf("where there is a shop: exit %d, %s%s", r.exit, r.out, r.err)
	}
	r := run(t, env, "simulate", path, "--rehearse", "--yes", "-q", "-o", "json", "--jq", "[.verdict, .ledger_units]")
	if out := strings.Join(strings.Fields(r.out), ""); r.exit != 0 || out != `["ok",20]` {
		t.Errorf("exit %d: %s%s", r.exit, r.out, r.err)
	}
	if after := keysOf(t, redis); !slices.Equal(after, before) {
		t.Errorf("there were the keys %s, and there are %s", before, after)
	}
	if schemas := db.SQL(t, `SELECT nspname FROM pg_namespace WHERE nspname LIKE 'dropctl%'`); schemas != "" {
		t.Errorf("left behind: %s", schemas)
	}
	if st, err := s.Lot(t.Context(), "hat"); err != nil || st.Available != 3 {
		t.Errorf("the shop's lot: %+v, %v", st, err)
	}
}

// keysOf lists the keys of a server in order: Redis tells them in any.
func keysOf(t *testing.T, redis *lab.Redis) []string {
	t.Helper()
	keys, err := redis.Do(t.Context(), "KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(strings.FieldsSeq(keys))
}

// privateShop opens both stores on servers of the test, for an app with default settings.
func privateShop(t *testing.T) (*app, *ledger.Ledger, *stock.Stock, *lab.Redis, testkit.Database) {
	t.Helper()
	redis, db := testkit.Redis(t), stores.Database(t, 0)
	l, err := ledger.Open(t.Context(), ledger.Options{URL: db.URL(lab.App)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	s, err := stock.Open(stock.Options{URL: redis.SocketURL(), Installation: l.Installation().ID, Shards: l.Installation().Shards})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	a := newApp(nil, Streams{In: strings.NewReader(""), Out: &strings.Builder{}, Err: &strings.Builder{}, Getenv: func(string) string { return "" }})
	cmd := newDemo(a)
	a.globalFlags(cmd)
	a.configFile = "none"
	if err := a.prepare(cmd); err != nil {
		t.Fatal(err)
	}
	return a, l, s, redis, db
}

// Whoever saw the lots in Redis has to make them anew by itself: help would hide a guardian that does not.
func TestLotsAreRestoredOnlyForAWorkerThatNeverSawThem(t *testing.T) {
	worker, err := lab.StartProgram(t.Context(), "none.yaml", "", "/bin/sleep", "3600")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = worker.Stop(context.Background()) })
	now := time.Now()
	hourAgo, soon := now.Add(-time.Hour), now.Add(time.Hour)
	for name, c := range map[string]struct {
		worker  *lab.Program
		began   time.Time
		flushes []flush
		want    bool
	}{
		"no flush":                           {worker: worker},
		"started after the flush":            {worker: worker, flushes: []flush{{hourAgo, hourAgo}}, want: true},
		"there throughout":                   {worker: worker, flushes: []flush{{soon, soon}}},
		"started between two":                {worker: worker, flushes: []flush{{hourAgo, hourAgo}, {soon, soon}}, want: true},
		"of this process, throughout":        {began: hourAgo, flushes: []flush{{now, now}}},
		"of this process, not yet looked at": {began: now, flushes: []flush{{now, now}}, want: true},
	} {
		m := &mishaps{laboratory: &wire.Laboratory{Rig: lab.Rig{Worker: c.worker}}, began: c.began, flushes: c.flushes}
		if got := m.needOperator(); got != c.want {
			t.Errorf("%s: an operator is needed: %t", name, got)
		}
	}
}

// What Redis lost is told either way, but that nothing else is wrong only where it is so.
func TestNothingWasSoldTwiceIsSaidOnlyWhereItIsSo(t *testing.T) {
	for verdict, want := range map[string]bool{"ok": true, string(fault.Broken): false} {
		var errs bytes.Buffer
		a := newApp(nil, Streams{In: strings.NewReader(""), Out: &strings.Builder{}, Err: &errs, Getenv: func(string) string { return "" }})
		cmd := newDemo(a)
		a.globalFlags(cmd)
		a.configFile = "none"
		if err := a.prepare(cmd); err != nil {
			t.Fatal(err)
		}
		err := a.played(simulate.Summary{Verdict: verdict, Lost: []string{"told ann"}}, nil)
		if text := errs.String(); (err == nil) != want || !strings.Contains(text, "in 1 cases") || strings.Contains(text, "Nothing was sold twice") != want {
			t.Errorf("%s: %v, %s", verdict, err, text)
		}
	}
}

func TestScenariosAreListedPrintedAndCompleted(t *testing.T) {
	if r := run(t, nil, "simulate", "--list", "-o", "name"); r.exit != 0 || r.out != "sneaker-raid\nticket-drop\ntruffle-lot\n" {
		t.Errorf("exit %d: %s%s", r.exit, r.out, r.err)
	}
	r := run(t, nil, "simulate", "--print", "truffle-lot")
	if r.exit != 0 || !strings.Contains(r.out, "\ncrowds:\n") {
		t.Fatalf("exit %d: %s%s", r.exit, r.out, r.err)
	}
	// What was printed is a scenario, whose lots are found although their file is not there.
	path := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(path, []byte(r.out), 0o600); err != nil {
		t.Fatal(err)
	}
	a := newApp(nil, Streams{In: strings.NewReader(r.out), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}, Getenv: func(string) string { return "" }})
	for _, name := range []string{path, "-"} {
		if s, err := a.readScenario(name); err != nil || len(s.Lots) < 20 || s.Users() != 10_000 {
			t.Errorf("%s: %d lots, %d users, %v", name, len(s.Lots), s.Users(), err)
		}
		a.in = strings.NewReader(r.out)
	}
	if r := run(t, nil, "__complete", "simulate", "t"); !strings.Contains(r.out, "ticket-drop\ntruffle-lot\n:0\n") {
		t.Errorf("completion offers %s", r.out)
	}
}

// Nothing can be started here: whoever gets to that answers with something else.
func TestAScenarioIsCheckedBeforeAnythingStarts(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	path := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(path, []byte("lots: [{lot: hat, stock: 1}]\ncrowds:\n  fan: {users: 1, think: 5, seeed: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"simulate":                         "SCENARIO is missing",
		"simulate sneaker-rade":            "did you mean sneaker-raid?",
		"simulate ./gone.yaml":             "cannot be read",
		"simulate --print gone":            "no scenario",
		"simulate --list truffle-lot":      "--list goes alone",
		"simulate truffle-lot --users 0":   "out of range",
		"simulate truffle-lot --seed -1":   "invalid",
		"simulate " + path:                 "bad.yaml:3:26: crowds.fan.think",
		"simulate " + path + " --users 10": "bad.yaml:3:29: crowds.fan.seeed: unknown field",
	} {
		if r := run(t, nil, strings.Fields(args)...); r.exit != 2 || r.out != "" || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit %d, %s%s; want %s", args, r.exit, r.out, r.err, want)
		}
	}
	var e struct {
		Details struct{ Problems []fault.Problem }
	}
	r := run(t, nil, "simulate", path, "-o", "json")
	if err := json.Unmarshal([]byte(r.err), &e); err != nil || len(e.Details.Problems) != 2 || e.Details.Problems[0].Line != 3 {
		t.Errorf("%v: %s", err, r.err)
	}
}
