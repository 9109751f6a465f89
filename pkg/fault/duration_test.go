package fault

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 5 * time.Minute: "5m", 24 * time.Hour: "24h", 90 * time.Second: "1m30s", time.Hour + time.Second: "1h0m1s",
		4*time.Minute + 59988*time.Millisecond: "5m", 29*time.Minute + 31600*time.Millisecond: "29m32s", 59999 * time.Millisecond: "1m",
		1234567 * time.Microsecond: "1.235s", 1500 * time.Nanosecond: "1.5µs", 10 * time.Second: "10s", -time.Hour: "-1h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}

// TestDurationsInErrorsReadAsElsewhere: whoever words an error need not think of it.
func TestDurationsInErrorsReadAsElsewhere(t *testing.T) {
	half := 30 * time.Minute
	e := Wrap(Invalid, New(Failed, "it took %v", time.Hour), "hold %s is longer than %s", half, "x").WithHint("at most %s", 24*time.Hour)
	if e.Error() != "hold 30m is longer than x: it took 1h" || e.Hint != "at most 24h" {
		t.Errorf("%s (%s)", e, e.Hint)
	}
}
