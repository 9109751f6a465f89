package packaging

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/telemetry"
)

// What PromQL itself knows, as far as we use it.
var (
	functions = strings.Fields("min max sum rate increase histogram_quantile time absent")
	clauses   = strings.Fields("by without")
	operators = strings.Fields("and or unless")
	given     = strings.Fields("instance job le") // labels that Prometheus or a histogram adds
)

// token is a string, a range or variable, a number, a word, or any other single character.
var token = regexp.MustCompile(`"[^"]*"|\[[^\]]*\]|\$\w+|[0-9][0-9.]*|[A-Za-z_:][A-Za-z0-9_:]*|\S`)

type tokens []string

func tokensOf(expr string) tokens { return token.FindAllString(expr, -1) }

// at is "" beyond both ends.
func (t tokens) at(i int) string {
	if i < 0 || i >= len(t) {
		return ""
	}
	return t[i]
}

// rated reports whether the metric at i is taken as a rate over a range.
func (t tokens) rated(i int) bool {
	after := i + 1
	if t.at(after) == "{" { // its labels stand before the range
		after += slices.Index(t[after:], "}") + 1
	}
	return slices.Contains([]string{"rate", "increase"}, t.at(i-2)) && strings.HasPrefix(t.at(after), "[")
}

// mistakes says what an expression uses that is not exported, and how it uses it wrongly.
func mistakes(expr string, contract []telemetry.Metric) (list []string) {
	metrics := map[string]telemetry.Metric{}
	for _, m := range contract {
		metrics[m.Name] = m
	}
	var used []telemetry.Metric
	var labels []string
	tokens := tokensOf(expr)
	inBraces, inClause := false, false
	for i, word := range tokens {
		switch {
		case word == "{":
			inBraces = true
		case word == "}":
			inBraces = false
		case word == ")":
			inClause = false
		case word == "(" && slices.Contains(clauses, tokens.at(i-1)):
			inClause = true
		case !regexp.MustCompile(`^[A-Za-z_:]`).MatchString(word):
		case inBraces || inClause:
			labels = append(labels, word)
		case slices.Contains(clauses, word) || slices.Contains(operators, word):
		case tokens.at(i+1) == "(" || slices.Contains(clauses, tokens.at(i+1)):
			if !slices.Contains(functions, word) {
				list = append(list, word+" is no function we know")
			}
		default:
			m, part := find(metrics, word)
			if m.Name == "" {
				list = append(list, word+" is not exported")
				continue
			}
			used = append(used, m)
			if counts := m.Type == "counter" || part != ""; counts != tokens.rated(i) {
				list = append(list, word+" is a "+m.Type+" and used as another thing")
			}
		}
	}
	for _, label := range labels {
		ours := slices.ContainsFunc(used, func(m telemetry.Metric) bool { return slices.Contains(m.Labels, label) })
		if !ours && !slices.Contains(given, label) {
			list = append(list, label+" is a label of none of its metrics")
		}
	}
	if len(used) == 0 && len(list) == 0 {
		list = append(list, "it uses no metric")
	}
	return list
}

// find returns the metric that a name in an expression belongs to, and for a histogram which part of it.
func find(metrics map[string]telemetry.Metric, name string) (m telemetry.Metric, part string) {
	if m, ok := metrics[name]; ok && m.Type != "histogram" {
		return m, ""
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, part); ok && metrics[base].Type == "histogram" {
			return metrics[base], part
		}
	}
	return telemetry.Metric{}, ""
}

func TestTheExpressionCheckBites(t *testing.T) {
	contract := telemetry.Contract()
	for _, bad := range []string{
		"dropctl_no_such > 0", "max(dropctl_outbox_byte)", "max by (lot) (dropctl_outbox_bytes)", `dropctl_dead_letters{kode="x"} > 0`, "foo(dropctl_outbox_bytes)",
		"rate(dropctl_outbox_bytes[5m])", "dropctl_worker_entries_total > 0", "dropctl_api_confirm_wait_seconds > 1", "rate(dropctl_worker_entries_total)", "1 > 0",
		`rate(dropctl_worker_relayed_entries_total{step="sent"})`, `max(dropctl_worker_relayed_entries_total{step="sent"}[5m])`,
	} {
		if len(mistakes(bad, contract)) == 0 {
			t.Errorf("%s passed", bad)
		}
	}
	for _, good := range []string{
		`max by (code) (dropctl_dead_letters{code=~"fork|ghost", instance!="x"}) > 0.5`, "time() - max(dropctl_reconcile_last_timestamp_seconds) > 3600",
		`sum by (transport) (increase(dropctl_worker_relayed_entries_total{step="sent"}[5m])) > 0`,
		"histogram_quantile(0.99, sum by (le, route) (rate(dropctl_api_request_duration_seconds_bucket[$__rate_interval])))",
	} {
		if list := mistakes(good, contract); len(list) > 0 {
			t.Errorf("%s: %v", good, list)
		}
	}
}

type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			For         string            `yaml:"for"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func TestRulesUseWhatIsExported(t *testing.T) {
	var file ruleFile
	dec := yaml.NewDecoder(strings.NewReader(Rules))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	contract := telemetry.Contract()
	seen := map[string]bool{}
	for _, rule := range file.Groups[0].Rules {
		for _, what := range mistakes(rule.Expr, contract) {
			t.Errorf("%s: %s", rule.Alert, what)
		}
		if seen[rule.Alert] || !slices.Contains([]string{"critical", "warning"}, rule.Labels["severity"]) || rule.Annotations["summary"] == "" ||
			!strings.Contains(rule.Annotations["description"], "Next: ") {
			t.Errorf("%s is there twice, or incomplete", rule.Alert)
		}
		seen[rule.Alert] = true
	}
	for _, alert := range strings.Fields("OldestEvent DeadLetters LotFrozen LotStopped Drift ReconcileStale OutboxHalfFull NoWorker BreakerOpen RefundsDue StoreDown") {
		if !seen["Dropctl"+alert] {
			t.Errorf("nobody is told of %s", alert)
		}
	}
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct{ H, W, X, Y int }
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

func TestTheDashboardUsesWhatIsExported(t *testing.T) {
	var board struct {
		Title  string  `json:"title"`
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal([]byte(Dashboard), &board); err != nil {
		t.Fatal(err)
	}
	contract := telemetry.Contract()
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q shares its id with another", p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, what := range mistakes(target.Expr, contract) {
				t.Errorf("panel %q: %s: %s", p.Title, target.Expr, what)
			}
		}
	}
	if board.Title == "" || len(board.Panels) < 20 {
		t.Errorf("only %d panels", len(board.Panels))
	}
}
