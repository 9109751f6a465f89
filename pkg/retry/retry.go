// Package retry says how long to wait before something that failed is tried again, and waits.
package retry

import (
	"context"
	"math/rand/v2"
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
