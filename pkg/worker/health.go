package worker

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// health logs a trouble when it begins and when it is over, not at every attempt. Loops of the same part
// (relay/0, relay/1, …) share one trouble. Safe for concurrent use.
type health struct {
	log     *slog.Logger
	metrics *telemetry.Worker
	mu      sync.Mutex
	down    map[string]*trouble // by part
}

type trouble struct {
	since time.Time
	last  error
	loops map[string]bool // that fail
}

func newHealth(log *slog.Logger, metrics *telemetry.Worker) *health {
	return &health{log: log, metrics: metrics, down: map[string]*trouble{}}
}

func (h *health) failed(loop string, err error) {
	part, _, _ := strings.Cut(loop, "/")
	h.metrics.Failures.WithLabelValues(part).Inc()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down[part] == nil {
		h.down[part] = &trouble{since: time.Now(), loops: map[string]bool{}}
		h.log.Warn("trouble, trying again until it is over", "part", part, "loop", loop, "error", err, "code", fault.CodeOf(err))
	}
	h.down[part].last = err
	h.down[part].loops[loop] = true
}

func (h *health) fine(loop string) {
	part, _, _ := strings.Cut(loop, "/")
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.down[part]
	if t == nil {
		return
	}
	delete(t.loops, loop)
	if len(t.loops) == 0 {
		delete(h.down, part)
		h.metrics.Reconnects.WithLabelValues(part).Inc()
		h.log.Info("works again", "part", part, "after", time.Since(t.since).Round(time.Millisecond))
	}
}

// trouble returns the last error of a part that is in trouble, or nil.
func (h *health) trouble(part Part) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.down[string(part)]; t != nil {
		return t.last
	}
	return nil
}

// lasting returns the error of a part that has been in trouble for longer than d, or nil.
func (h *health) lasting(d time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.down {
		if time.Since(t.since) > d {
			return t.last
		}
	}
	return nil
}

// backoff is a pause that doubles from 50 ms up to 5 s, each time anywhere between zero and that (full
// jitter), so that workers which lost the same server do not come back all at once.
type backoff struct{ failures int }

const (
	firstPause = 50 * time.Millisecond
	maxPause   = 5 * time.Second
)

// wait pauses; it returns false as soon as the context has ended. Closing again ends the pause, and makes the next one short.
func (b *backoff) wait(ctx context.Context, again <-chan struct{}) bool {
	b.failures++
	goOn := sleep(ctx, retry.Pause(b.failures, firstPause, maxPause), again)
	select {
	case <-again:
		b.failures = 0
	default:
	}
	return goOn
}

// sleep pauses for d or until something arrives on wake, which may be nil. It returns false as soon as the
// context has ended.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-wake:
	}
	return ctx.Err() == nil
}

// loopName names one shard's loop of a part.
func loopName(part Part, shard int) string { return string(part) + "/" + strconv.Itoa(shard) }
