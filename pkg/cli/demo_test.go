package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/simulate"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestDemoProvesADropOnServersOfItsOwn(t *testing.T) {
	testkit.Long(t)
	t.Parallel() // it mostly waits
	r := run(t, nil, "demo", "--users", "400", "-q", "-o", "json")
	if r.exit != 0 || r.err != "" {
		t.Fatalf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(r.out), &v); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"verdict", "oversold_units", "unaccounted_units", "requests", "accepted", "refused", "replayed", "expired", "released",
		"sold_units", "ledger_units", "accept_latency_seconds", "refuse_latency_seconds", "lots"} {
		if _, ok := v[field]; !ok {
			t.Errorf("the summary has no %s", field)
		}
	}
	number := func(name string) float64 { n, _ := v[name].(float64); return n }
	lots, _ := v["lots"].([]any)
	refused, _ := v["refused"].(map[string]any)
	latency, _ := v["accept_latency_seconds"].(map[string]any)
	if v["verdict"] != "ok" || number("oversold_units") != 0 || number("unaccounted_units") != 0 || number("sold_units") != number("ledger_units") {
		t.Errorf("not sound: %s", r.out)
	}
	for _, name := range []string{"requests", "accepted", "replayed", "expired", "released", "sold_units"} {
		if number(name) <= 0 {
			t.Errorf("%s is %v", name, v[name])
		}
	}
	if len(lots) < 20 || len(refused) < 5 || latency["p50"] == nil || latency["p99"] == nil || latency["max"] == nil {
		t.Errorf("%d lots, refused %v, latency %v", len(lots), refused, latency)
	}
}

func TestDemoSaysWhenAGuaranteeBroke(t *testing.T) {
	testkit.Long(t)
	t.Parallel() // it mostly waits
	redis, db := testkit.Redis(t), testkit.Postgres(t)
	if _, err := ledger.MigrateUp(t.Context(), ledger.Options{URL: db.URL(lab.Owner)}, ledger.MigrateOptions{AppRole: string(lab.App)}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(t.Context(), ledger.Options{URL: db.URL(lab.App)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := stock.Open(stock.Options{URL: redis.SocketURL(), Installation: l.Installation().ID, Shards: l.Installation().Shards})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()

	// Somebody adds three units to a lot in Redis, behind everybody's back, as soon as it is there.
	planted := make(chan string, 1)
	go func() {
		key, err := "", error(nil)
		for err == nil && key == "" {
			key, err = redis.Do(t.Context(), "KEYS", "drop:*:lot:early-bird") // which nobody can buy
		}
		if err == nil {
			testkit.Plant(t, redis, key, "available", 3)
		}
		planted <- key
	}()
	a := newApp(nil, Streams{In: strings.NewReader(""), Out: &strings.Builder{}, Err: &strings.Builder{}, Getenv: func(string) string { return "" }})
	cmd := newDemo(a)
	a.globalFlags(cmd)
	a.configFile = "none"
	if err := a.prepare(cmd); err != nil {
		t.Fatal(err)
	}
	scenario, err := a.readScenario(simulate.Demo)
	if err != nil {
		t.Fatal(err)
	}
	summary, err := a.rehearse(t.Context(), l, s, scenario.Scaled(100), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	<-planted
	if summary.Verdict != "broken" || summary.Unaccounted != 3 || fault.ExitOf(summary.Err()) != fault.ExitFinding {
		t.Errorf("verdict %s, %d unaccounted, error %v, broken %v", summary.Verdict, summary.Unaccounted, summary.Err(), summary.Broken)
	}
	if text := strings.Join(summary.Broken, "\n"); !strings.Contains(text, "early-bird: drift") {
		t.Errorf("it names no lot: %s", text)
	}
}

func TestDemoChecksItsFlags(t *testing.T) {
	for _, args := range []string{"demo --users 0", "demo --users 1000001", "demo --seed -1", "demo lot"} {
		if r := run(t, nil, strings.Fields(args)...); r.exit != 2 {
			t.Errorf("%s: exit %d, %s", args, r.exit, r.err)
		}
	}
}
