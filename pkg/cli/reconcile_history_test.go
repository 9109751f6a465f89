package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

func TestHistoryChecksItsFlagsBeforeItDials(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"reconcile --limit 5", "goes with --history only"},
		{"reconcile --history --deep", "do not go together"},
		{"reconcile --history --max-lag 5s", "do not go together"},
		{"reconcile --history hat", "do not go together"},
		{"reconcile --history --limit 0", "is out of range"},
		{"reconcile --history --fields no_such_field", "the fields are: run, started"},
	} {
		if r := run(t, noServers, strings.Fields(test.args)...); r.exit != 2 || !strings.Contains(r.err, test.want) {
			t.Errorf("%s: exit %d, %s", test.args, r.exit, r.err)
		}
	}
}

// The history has runs with and without a verdict, one under way and one whose process died, and repairs of a run and
// of none; Redis is not asked.
func TestHistoryListsRunsAndRepairs(t *testing.T) {
	testkit.Long(t)
	db := stores.Database(t, 0)
	env := map[string]string{"DROPCTL_DATABASE_URL": db.URL(lab.App)}
	history := func(args ...string) result {
		t.Helper()
		r := run(t, env, append([]string{"reconcile", "--history"}, args...)...)
		if r.exit != 0 {
			t.Fatalf("exit %d: %s", r.exit, r.err)
		}
		return r
	}
	if r := history("-o", "json"); r.out != "[]\n" {
		t.Errorf("nothing happened yet, but it says %s", r.out)
	}
	l := stores.Ledger(t, db)
	start := func(actor string, s reconcile.Start) *ledger.Run {
		t.Helper()
		r, err := l.StartRun(t.Context(), actor, s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	repair := func(run int64, lot drop.LotID, did bool, failed error) error {
		return l.Repair(t.Context(), drop.Repair{Run: run, Lot: lot, What: "user counters", Actor: "olga", Reason: "ticket 7", Evidence: []string{"ada: 2, not 1"}},
			func(context.Context) (bool, string, error) { return did, "ada", failed })
	}
	died := start("cron", reconcile.Start{})
	must(died.Abandon(t.Context(), ""))
	db.SQL(t, "UPDATE reconcile_runs SET finished_at = NULL, report = NULL")
	abandoned := start("cron", reconcile.Start{Group: "festival"})
	must(abandoned.Abandon(t.Context(), "Redis is away"))
	found := start("olga", reconcile.Start{Lots: []drop.LotID{"hat", "scarf"}, Deep: true})
	must(repair(found.ID, "hat", true, nil))
	must(repair(found.ID, "scarf", false, nil))
	must(found.Finish(t.Context(), ledger.Outcome{Verdict: fault.Finding, Report: reconcile.Report{Lots: 2, Findings: 1, Drift: 1, Rows: []reconcile.Row{{Lot: "hat"}}}}))
	if err := repair(0, "glove", false, errors.New("Redis went away")); err == nil {
		t.Error("the failure of a repair is lost")
	}
	under := start("cron", reconcile.Start{})
	defer func() { _ = under.Abandon(context.Background(), "the test is over") }()

	var past []reconcile.Past
	if err := json.Unmarshal([]byte(strings.ReplaceAll(history("-o", "json").out, `"took_seconds": `, `"took": `)), &past); err != nil || len(past) != 5 {
		t.Fatalf("%v in %+v", err, past)
	}
	if p := past[0]; p.Run != under.ID || !p.Running || p.Note != "under way" {
		t.Errorf("under way: %+v", p)
	}
	if p := past[1]; p.Run != 0 || p.What != "user counters glove" || p.Note != "failed: Redis went away" || p.Repaired != 0 || len(p.Repairs) != 1 || p.Repairs[0].Reason != "ticket 7" {
		t.Errorf("a repair of no run: %+v", p)
	}
	if p := past[2]; p.Run != found.ID || p.What != "reconcile hat scarf --deep" || p.Actor != "olga" || p.Verdict != fault.Finding || p.Checked != 2 || p.Findings != 1 || p.Drift != 1 ||
		p.Repaired != 1 || len(p.Repairs) != 2 || p.Repairs[1].Lot != "hat" || p.Repairs[1].Outcome != "done" || p.Repairs[0].Outcome != "nothing" || string(p.Repairs[0].Evidence) == "" {
		t.Errorf("with a finding: %+v", p)
	}
	if p := past[3]; p.What != "reconcile --group festival" || p.Verdict != "" || p.Note != "Redis is away" {
		t.Errorf("without a verdict: %+v", p)
	}
	if p := past[4]; p.Run != died.ID || p.Running || p.Note != "ended with its process" || p.Lots == nil || p.Repairs == nil {
		t.Errorf("of a process that died: %+v", p)
	}

	if r := history("--limit", "2", "-o", "jsonl"); strings.Count(r.out, "\n") != 2 {
		t.Errorf("limited:\n%s", r.out)
	}
	if r := history("-o", "name"); !strings.Contains(r.out, "3\n2\n1\n") {
		t.Errorf("names:\n%s", r.out)
	}
	for _, format := range []string{"table", "wide", "yaml"} {
		if r := history("-o", format); !strings.Contains(r.out, "reconcile hat scarf --deep") || !strings.Contains(r.out, "ended with its process") {
			t.Errorf("%s:\n%s", format, r.out)
		}
	}
	if r := history("-o", "none"); r.out != "" {
		t.Errorf("none: %s", r.out)
	}
}
