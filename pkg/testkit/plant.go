package testkit

import (
	"strconv"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/lab"
)

// places are where a lot keeps its numbers (layout in lua/common.lua).
var places = map[string]struct {
	field string
	place int
}{
	"available": {"live", 0}, "held": {"live", 1}, "seq": {"live", 2}, "mark": {"live", 3},
	"sold": {"totals", 0}, "capacity": {"totals", 1}, "epoch": {"rule", 0}, "limit": {"rule", 2},
}

// Plant adds to one number of a lot in Redis behind everybody's back; key is the lot's key.
func Plant(t testing.TB, r *lab.Redis, key, number string, by int64) {
	t.Helper()
	at, known := places[number]
	if !known {
		t.Fatalf("a lot has no number %q", number)
	}
	text, err := r.Do(t.Context(), "HGET", key, at.field)
	if err != nil {
		t.Fatal(err)
	}
	numbers := strings.Split(text, "\t")
	n, err := strconv.ParseInt(numbers[at.place], 10, 64)
	if err != nil {
		t.Fatalf("%s of %s is %q: %v", at.field, key, text, err)
	}
	numbers[at.place] = strconv.FormatInt(n+by, 10)
	if _, err := r.Do(t.Context(), "HSET", key, at.field, strings.Join(numbers, "\t")); err != nil {
		t.Fatal(err)
	}
}
