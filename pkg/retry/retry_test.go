package retry

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"
)

func TestPausesGrowUpToTheLongest(t *testing.T) {
	for _, c := range []struct {
		failures int
		bound    time.Duration
	}{{-1, time.Second}, {0, time.Second}, {1, time.Second}, {2, 2 * time.Second}, {5, 16 * time.Second}, {7, time.Minute}, {1 << 40, time.Minute}} {
		var longest time.Duration
		for range 500 {
			p := Pause(c.failures, time.Second, time.Minute)
			if p < 0 || p >= c.bound {
				t.Fatalf("%s after %d failures", p, c.failures)
			}
			longest = max(longest, p)
		}
		// That 500 draws all lie in the lower half has a probability of 2^-500.
		if longest < c.bound/2 {
			t.Errorf("at most %s of %s after %d failures", longest, c.bound, c.failures)
		}
	}
	if p := Pause(3, 0, 0); p != 0 {
		t.Errorf("%s of nothing", p)
	}
	if p := Pause(3, time.Hour, time.Second); p >= time.Second {
		t.Errorf("%s, beyond the longest", p)
	}
}

func TestSleepEndsWithTheContext(t *testing.T) {
	began := time.Now()
	if err := Sleep(t.Context(), 20*time.Millisecond); err != nil || time.Since(began) < 20*time.Millisecond {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	if err := Sleep(t.Context(), -time.Hour); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, end)
	if err := Sleep(ended, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for range 100 { // also where nothing is left to wait for
		if err := Sleep(ended, 0); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

func TestRetryAfterIsReadSafely(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "99999999999999999999": 0, "Mon, 01 Jan 2001 00:00:00 GMT": 0} {
		if got := After(http.Header{"Retry-After": {text}}); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
	later := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	if got := After(http.Header{"Retry-After": {later}}); got < 50*time.Second || got > time.Minute {
		t.Errorf("%q: %s", later, got)
	}
}
