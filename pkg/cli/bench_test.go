package cli

import (
	"strings"
	"testing"
)

// A measurement takes minutes, so what is mistyped has to come to light before it begins.
func TestBenchRefusesNonsenseAtOnce(t *testing.T) {
	for line, hint := range map[string]string{
		"bench bars --only hot-lots":           "hot-lot, many-lots, memory, apply, pipeline, http, generator, cli",
		"bench bars --rounds 0":                "use 1 or more",
		"bench engine --rate 0":                "--users alone",
		"bench engine --rate NaN":              "operations a second",
		"bench engine --users 0":               "use 1 to",
		"bench engine --mix buy":               "accept, sold-out, churn, full",
		"bench engine --stock -1":              "use 0 or more",
		"bench engine --qty 0":                 "use 1 to",
		"bench engine --duration 0":            "use 10s or more",
		"bench engine --fail-if accept_p99>10": "unit",
		"bench bars hot-lot":                   "hint:",
	} {
		if r := run(t, nil, strings.Fields(line)...); r.exit != 2 || r.out != "" || !strings.Contains(r.err, hint) {
			t.Errorf("%s: exit %d\n%s%s", line, r.exit, r.out, r.err)
		}
	}
}

func TestBenchCompletesItsParts(t *testing.T) {
	if r := run(t, nil, "__complete", "bench", "bars", "--only", "m"); !strings.Contains(r.out, "many-lots") || !strings.Contains(r.out, "memory") || strings.Contains(r.out, "apply") {
		t.Error(r.out)
	}
}
