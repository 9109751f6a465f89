package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/bench"
)

// resultFile writes the result of a run that answered nothing.
func resultFile(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := json.Marshal(bench.Result{Version: bench.ResultVersion, Target: "engine", Mix: "accept", Loop: bench.ClosedLoop, Audit: bench.Audit{Verdict: bench.AuditNone}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBenchReportShowsAndDraws(t *testing.T) {
	dir := t.TempDir()
	monday, tuesday, drawing := resultFile(t, dir, "monday.json"), resultFile(t, dir, "tuesday.json"), filepath.Join(dir, "week.svg")
	if err := os.WriteFile(drawing, []byte("what it was before"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, nil, "bench", "report", monday, tuesday, "--svg", drawing, "-o", "json", "--jq", "[.runs[].run], .svg")
	if r.exit != 0 || !strings.Contains(r.out, "all 2: engine accept") || !strings.Contains(r.out, "week.svg") {
		t.Errorf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
	if text, err := os.ReadFile(drawing); err != nil || !strings.HasPrefix(string(text), "<svg") || !strings.HasSuffix(string(text), "</svg>\n") {
		t.Errorf("%s (%v)", text, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".dropctl-*")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %s", left)
	}
	if r := run(t, nil, "bench", "report", monday); r.exit != 0 || !strings.Contains(r.out, "monday.json\tengine\taccept") {
		t.Errorf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
}

func TestBenchReportNamesWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	good, bad := resultFile(t, dir, "good.json"), filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"version": 7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		exit int
		says string
	}{
		{nil, 2, "hint:"},
		{[]string{good, bad}, 2, "bad.json is of version 7"},
		{[]string{filepath.Join(dir, "none.json")}, 2, "none.json"},
		{[]string{good, "--svg", filepath.Join(dir, "no", "where.svg")}, 1, "who may write"},
		{[]string{dir}, 2, dir},
	} {
		if r := run(t, nil, append([]string{"bench", "report"}, c.args...)...); r.exit != c.exit || r.out != "" || !strings.Contains(r.err, c.says) {
			t.Errorf("%s: exit %d\n%s%s", c.args, r.exit, r.out, r.err)
		}
	}
}

func TestBenchReportCompletesFiles(t *testing.T) {
	for _, line := range []string{"__complete bench report mon", "__complete bench report run.json --svg we"} {
		if r := run(t, nil, strings.Fields(line)...); !strings.Contains(r.out, "ShellCompDirectiveFilterFileExt") && !strings.Contains(r.out, ":8") {
			t.Errorf("%s: %s", line, r.out)
		}
	}
}
