// Package retry says how long to wait before something that failed is tried again, and waits.
package retry

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// Pause returns how long to wait after so many failures in a row, counted from 1: anything between zero and a bound that
// begins with first and doubles each time up to longest (full jitter), so that many who failed together do not come back
// together.
func Pause(failures int, first, longest time.Duration) time.Duration {
	bound := max(first, 1)
	for range failures - 1 {
		if bound >= longest/2 {
			bound = longest
			break
		}
		bound *= 2
	}
	return rand.N(max(min(bound, longest), 1)) // of one nanosecond it is zero
}

// After reads how long a server wants to be left alone, in seconds or as a date; 0 if it does not say. It is for the caller
// to bound.
func After(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// Sleep waits for d. Its error is the context's, as soon as that has ended.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return ctx.Err()
}
