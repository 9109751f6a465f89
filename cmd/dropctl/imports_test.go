package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dropctl/dropctl/"

// arrows says what each room may import of the other rooms. Arrows point down: the command line joins
// use cases and adapters, those know the domain, everybody knows the leaves. Use cases and adapters do
// not know each other, except that the worker acts on what recovery decides.
var arrows = map[string]string{
	"cmd/dropctl": "pkg/cli pkg/fault pkg/term",

	"pkg/cli": "pkg/cli/wire pkg/api pkg/drop pkg/stock pkg/ledger pkg/worker pkg/recovery pkg/reconcile pkg/doctor pkg/seed pkg/payment pkg/notify pkg/bench pkg/bench/bars pkg/bench/compare pkg/bench/report pkg/simulate pkg/simulate/torture " +
		"pkg/lab pkg/client pkg/config pkg/fault pkg/retry pkg/term pkg/render pkg/telemetry pkg/packaging",
	"pkg/cli/wire": "pkg/drop pkg/stock pkg/ledger pkg/worker pkg/worker/cloudtasks pkg/worker/kafka pkg/recovery pkg/reconcile pkg/doctor pkg/seed pkg/payment pkg/notify pkg/bench " +
		"pkg/simulate pkg/simulate/torture pkg/lab pkg/api pkg/client pkg/config pkg/fault pkg/telemetry",

	"pkg/api":    "pkg/client pkg/drop pkg/fault pkg/sign pkg/telemetry", // the bodies of the API are the types of its client
	"pkg/worker": "pkg/drop pkg/fault pkg/recovery pkg/payment pkg/notify pkg/retry pkg/telemetry",
	// The queues between relay and ledger are adapters, which know the worker's interfaces by their shape alone.
	"pkg/worker/kafka":      "pkg/drop pkg/fault",
	"pkg/worker/cloudtasks": "pkg/drop pkg/fault pkg/retry",
	"pkg/recovery":          "pkg/drop pkg/fault pkg/telemetry",
	"pkg/reconcile":         "pkg/drop pkg/fault pkg/retry pkg/telemetry",
	"pkg/doctor":            "pkg/drop pkg/fault pkg/telemetry",
	"pkg/seed":              "pkg/drop pkg/fault pkg/telemetry",
	"pkg/payment":           "pkg/drop pkg/fault pkg/sign pkg/retry pkg/telemetry",
	"pkg/notify":            "pkg/drop pkg/fault pkg/sign pkg/retry pkg/telemetry",
	"pkg/simulate":          "pkg/drop pkg/fault pkg/sign pkg/retry pkg/telemetry",
	"pkg/simulate/torture":  "pkg/drop pkg/fault pkg/retry pkg/lab", // its faults are done to private servers
	"pkg/client":            "pkg/drop pkg/fault pkg/retry",
	// The benchmarks compare the engine with bare drivers, on private servers.
	"pkg/bench":         "pkg/drop pkg/fault pkg/stock pkg/ledger pkg/lab pkg/client pkg/telemetry",
	"pkg/bench/bars":    "pkg/bench pkg/drop pkg/fault pkg/stock pkg/ledger pkg/lab pkg/client pkg/telemetry",
	"pkg/bench/compare": "pkg/bench pkg/bench/bars pkg/drop pkg/fault pkg/stock pkg/lab pkg/retry",
	"pkg/bench/report":  "pkg/bench pkg/fault",

	"pkg/stock":  "lua pkg/drop pkg/fault pkg/telemetry",
	"pkg/ledger": "migrations pkg/drop pkg/fault pkg/telemetry",

	"pkg/drop":      "pkg/fault",
	"pkg/lab":       "pkg/fault",
	"pkg/render":    "pkg/fault pkg/term",
	"pkg/config":    "pkg/fault",
	"pkg/telemetry": "pkg/fault",
	"pkg/packaging": "",
	"pkg/term":      "",
	"pkg/sign":      "pkg/fault",
	"pkg/retry":     "",
	"pkg/fault":     "",

	"pkg/testkit":        "pkg/lab pkg/drop pkg/fault pkg/stock pkg/ledger pkg/sign migrations",
	"pkg/testkit/stores": "pkg/testkit pkg/lab pkg/drop pkg/stock pkg/ledger",
	"pkg/testkit/broker": "",
	"lua":                "",
	"migrations":         "",
	"completions":        "",
}

// owners says which rooms alone may import a library.
var owners = map[string]string{
	"github.com/spf13/cobra":            "pkg/cli",
	"github.com/spf13/viper":            "pkg/config",
	"github.com/charmbracelet/lipgloss": "pkg/term pkg/render",
	// The benchmark runs the plain patterns that the engine is compared with; the lab and the test kit
	// look at servers they have just started.
	"github.com/redis/go-redis": "pkg/stock pkg/bench pkg/bench/bars pkg/bench/compare pkg/lab pkg/testkit",
	"github.com/jackc/pgx":      "pkg/ledger pkg/bench pkg/bench/bars pkg/bench/compare pkg/lab pkg/testkit",
	"github.com/pressly/goose":  "pkg/ledger",
	"github.com/twmb/franz-go":  "pkg/worker/kafka pkg/testkit/broker",
	"golang.org/x/oauth2":       "pkg/worker/cloudtasks",
	"github.com/go-jose":        "pkg/worker/cloudtasks",
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-e", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 8 {
		t.Fatalf("only %d packages were found", len(list))
	}
	return list
}

// broken lists what a package imports and must not.
func broken(p goPackage) []string {
	room := strings.TrimPrefix(p.ImportPath, module)
	allowed, known := arrows[room]
	if !known {
		return []string{"the room is not in the table of imports_test.go"}
	}
	var list []string
	for _, path := range p.Imports {
		if ours, ok := strings.CutPrefix(path, module); ok && !slices.Contains(strings.Fields(allowed), ours) {
			list = append(list, "imports "+ours)
		}
		for library, rooms := range owners {
			if (path == library || strings.HasPrefix(path, library+"/")) && !slices.Contains(strings.Fields(rooms), room) {
				list = append(list, "imports "+path+", which belongs to "+rooms)
			}
		}
	}
	return list
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		for _, what := range broken(p) {
			t.Errorf("%s: %s", strings.TrimPrefix(p.ImportPath, module), what)
		}
	}
}

func TestImportRulesBite(t *testing.T) {
	for _, p := range []goPackage{
		{module + "pkg/stock", []string{module + "pkg/ledger"}},
		{module + "pkg/ledger", []string{module + "pkg/stock"}},
		{module + "pkg/drop", []string{"github.com/redis/go-redis/v9"}},
		{module + "pkg/worker", []string{"github.com/jackc/pgx/v5/pgxpool"}},
		{module + "pkg/cli", []string{"github.com/spf13/viper"}},
		{module + "pkg/cli", []string{"github.com/charmbracelet/lipgloss/table"}},
		{module + "pkg/seed", []string{module + "pkg/cli"}},
		{module + "pkg/seed", []string{module + "lua"}},
		{module + "pkg/new", nil},
	} {
		if len(broken(p)) == 0 {
			t.Errorf("%+v passed", p)
		}
	}
	if what := broken(goPackage{module + "pkg/stock", []string{"context", module + "pkg/drop", "github.com/redis/go-redis/v9"}}); len(what) > 0 {
		t.Errorf("%v", what)
	}
}
