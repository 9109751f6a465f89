package lua

import (
	"slices"
	"strings"
	"testing"
)

func TestEveryScriptIsEmbedded(t *testing.T) {
	entries, err := files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(Names())+1 {
		t.Errorf("%d files for %d scripts and common.lua", len(entries), len(Names()))
	}
	for _, name := range Names() {
		lines := strings.Split(Source(name), "\n")
		if !strings.HasPrefix(lines[0], "#!lua") || !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "-- "+name+": ") }) {
			t.Errorf("%s starts with %q, or says nothing of itself", name, lines[0])
		}
		for _, part := range []string{"-- KEYS", "-- ARGV", "-- Reply", "\nlocal function run()\n"} {
			if !strings.Contains(Source(name), part) {
				t.Errorf("%s has no line %q", name, part)
			}
		}
	}
}
