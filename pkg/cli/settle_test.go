package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// settledJSON is what programs read of a settled reservation.
type settledJSON struct {
	ID, State, Payment string
	Qty, Refunded      int64
	Deadline           *time.Time
	Remaining          *float64 `json:"remaining_seconds"`
	Replayed           bool
	DryRun             bool `json:"dry_run"`
}

// A dry run shows what the run then does.
func TestADryRunShowsThePlan(t *testing.T) {
	testkit.Long(t)
	_, env := newShop(t, 4)
	for name, steps := range map[string][]string{
		"confirm and refund": {"extend ID --by 12m", "confirm ID --payment p1", "confirm ID --payment p1", "refund ID --total 1 -y", "refund ID --total 1 -y", "refund ID -y", "refund ID -y"},
		"part confirm":       {"confirm ID --qty 2", "release ID --keep 2", "confirm ID --qty 2"},
		"release":            {"release ID --keep 1", "release ID --keep 1", "extend ID --by 1m", "release ID"},
	} {
		id := mustJSON[settledJSON](t, env, "reserve", "hat", "--user", name, "--qty", "3").ID
		for _, step := range steps {
			args := strings.Fields(strings.Replace(step, "ID", id, 1))
			dry := run(t, env, append(args, "--dry-run")...)
			if !strings.Contains(dry.err, "target: reservation "+id+" on ") {
				t.Errorf("%s: %s: the target is not named: %s", name, step, dry.err)
			}
			plan := mustJSON[settledJSON](t, env, append(args, "--dry-run")...)
			done := mustJSON[settledJSON](t, env, args...)
			if plan.State != done.State || plan.Qty != done.Qty || plan.Refunded != done.Refunded || plan.Payment != done.Payment || plan.Replayed != done.Replayed || !plan.DryRun || done.DryRun {
				t.Errorf("%s: %s: planned %+v, done %+v", name, step, plan, done)
			}
			if (plan.Deadline == nil) != (done.Deadline == nil) || plan.Deadline != nil && done.Deadline.Sub(*plan.Deadline).Abs() > 10*time.Second {
				t.Errorf("%s: %s: planned until %v, done until %v", name, step, plan.Deadline, done.Deadline)
			}
		}
	}
}

// What the script refuses, the plan refuses with the same code.
func TestADryRunRefusesAsTheRunDoes(t *testing.T) {
	testkit.Long(t)
	_, env := newShop(t, 4)
	held := mustJSON[settledJSON](t, env, "reserve", "hat", "--user", "a", "--qty", "2").ID
	sold := mustJSON[settledJSON](t, env, "reserve", "hat", "--user", "b", "--qty", "2").ID
	back := mustJSON[settledJSON](t, env, "reserve", "hat", "--user", "c", "--qty", "1").ID
	mustJSON[settledJSON](t, env, "confirm", sold, "--payment", "p")
	mustJSON[settledJSON](t, env, "refund", sold, "--total", "1", "-y")
	mustJSON[settledJSON](t, env, "release", back)
	for _, line := range []string{
		"confirm " + held + " --qty 3", "release " + held + " --keep 3", "refund " + held + " -y",
		"confirm " + sold + " --payment q", "release " + sold, "extend " + sold + " --by 1m", "refund " + sold + " --total 3 -y",
		"confirm " + back, "release " + back + " --keep 1", "refund " + back + " -y",
	} {
		args := append(strings.Fields(line), "-o", "json")
		plan, done := run(t, env, append(args, "-n")...), run(t, env, args...)
		if p, d := plan.errorObject(t), done.errorObject(t); p.Code != d.Code || p.Field != d.Field {
			t.Errorf("%s: planned %s %s, done %s %s", line, p.Code, p.Field, d.Code, d.Field)
		}
	}
}

func TestAnExtensionThatIsCutSaysSo(t *testing.T) {
	_, env := newShop(t, 4)
	id := mustJSON[settledJSON](t, env, "reserve", "hat", "--user", "ada").ID
	for _, flag := range []string{"--dry-run", "--quiet=false"} {
		if r := run(t, env, "extend", id, "--by", "50m", flag); r.exit != 0 || !strings.Contains(r.err, "not 50m: the lot's max_hold") {
			t.Errorf("%s: exit %d, %s", flag, r.exit, r.err)
		}
	}
	if r := run(t, env, "extend", id, "--by", "10m"); r.exit != 0 || strings.Contains(r.err, "max_hold") {
		t.Errorf("nothing was cut: exit %d, %s", r.exit, r.err)
	}
}

func TestAnOutputThatFailsAfterTheActSaysWhatWasDone(t *testing.T) {
	_, env := newShop(t, 4)
	r := run(t, env, "reserve", "hat", "--user", "ada", "--key", "k1", "--jq", ".id.nope.nope")
	if r.exit != 1 || r.out != "" || !strings.Contains(r.err, `"id":"hat~`) || !strings.Contains(r.err, "it was done") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if r := run(t, env, "reserve", "hat", "--user", "bob", "--dry-run", "--jq", ".id.nope.nope"); r.exit != 1 || strings.Contains(r.err, "it was done") {
		t.Errorf("a dry run does nothing: exit %d, %s", r.exit, r.err)
	}
	if lot := mustJSON[lotJSON](t, env, "lot", "show", "hat"); lot.Held != 1 {
		t.Errorf("%d units are held", lot.Held)
	}
}

func TestReservationsAreShownWithoutEmptyLabels(t *testing.T) {
	_, env := newShop(t, 4)
	id := mustJSON[settledJSON](t, env, "reserve", "hat", "--user", "ada").ID
	mustJSON[settledJSON](t, env, "confirm", id, "--payment", "p1")
	if r := run(t, env, "worker", "--until-idle", "-q"); r.exit != 0 {
		t.Fatal(r.err)
	}
	r := run(t, env, "reservation", "show", id)
	for line := range strings.SplitSeq(strings.TrimSpace(r.out), "\n") {
		label, value, _ := strings.Cut(line, "\t")
		if strings.HasPrefix(label, "DRY RUN") || strings.HasPrefix(label, "REPLAYED") || strings.HasPrefix(label, "USER MAY") || line != "" && value == "" && label != "RECORDED" {
			t.Errorf("%q in\n%s", line, r.out)
		}
	}
	for _, want := range []string{"USER\tada\n", "CREATED\t2", "PAYMENT\tp1\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is not in\n%s", want, r.out)
		}
	}
}

func TestALimitIsAWordWhereThereIsNone(t *testing.T) {
	if got := viewLot(drop.LotState{}).Limit.Cell() + " " + viewLot(drop.LotState{Definition: drop.Definition{Limit: 2}}).Limit.Cell(); got != "none 2" {
		t.Errorf("got %q", got)
	}
}

func TestARefundAsksForUnitsAndBuyer(t *testing.T) {
	_, env := newShop(t, 4)
	id := mustJSON[settledJSON](t, env, "reserve", "hat", "--user", "ann", "--qty", "2").ID
	mustJSON[settledJSON](t, env, "confirm", id)
	if r := run(t, env, "refund", id); r.exit != 2 || !strings.Contains(r.err, "refund 2 units of "+id+" (ann)") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if r := run(t, env, "refund", id, "--total", "1"); !strings.Contains(r.err, "refund 1 unit of ") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
}

func TestANamedConfigFileThatIsNotUsedIsToldOf(t *testing.T) {
	if r := run(t, nil, "version", "--config", "/does/not/exist"); r.exit != 0 || !strings.Contains(r.err, "warning: the config file is not used") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
}
