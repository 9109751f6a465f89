package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestDemoProvesADropOnServersOfItsOwn(t *testing.T) {
	testkit.Long(t)
	t.Parallel() // it mostly waits
	// A shop's own settings are none of the private Redis' business, which has no replicas.
	r := run(t, map[string]string{"DROPCTL_DURABILITY": "replicas=1"}, "demo", "--users", "400", "-q", "-o", "json")
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

func TestDemoChecksItsFlags(t *testing.T) {
	for _, args := range []string{"demo --users 0", "demo --users 1000001", "demo --seed -1", "demo lot"} {
		if r := run(t, nil, strings.Fields(args)...); r.exit != 2 {
			t.Errorf("%s: exit %d, %s", args, r.exit, r.err)
		}
	}
}
