package bench

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dropctl/dropctl/pkg/telemetry"
)

// Batches counts how many operations travel in each script call of an engine that is opened with its Metrics.
type Batches struct {
	Metrics *telemetry.Engine

	mu    sync.Mutex
	calls map[int64]int64 // of each size
	sum   int64           // calls
	in    int64           // operations in them
}

// NewBatches counts from nothing on.
func NewBatches() *Batches {
	b := &Batches{Metrics: telemetry.NewEngine(nil), calls: map[int64]int64{}}
	b.Metrics.BatchSize = b // the metric's own histogram would round the sizes up to its bounds
	return b
}

// WithLabelValues returns the one who counts, whatever the script.
func (b *Batches) WithLabelValues(...string) prometheus.Observer { return b }

// Observe counts a call.
func (b *Batches) Observe(size float64) {
	b.mu.Lock()
	b.calls[int64(size)]++
	b.sum++
	b.in += int64(size)
	b.mu.Unlock()
}

// Sizes returns what was counted; nil if there was no call.
func (b *Batches) Sizes() *Batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sum == 0 {
		return nil
	}
	at := func(percent int64) int64 {
		var upTo int64 // calls of at most that size
		for _, size := range slices.Sorted(maps.Keys(b.calls)) {
			if upTo += b.calls[size]; 100*upTo >= percent*b.sum {
				return size
			}
		}
		return 0
	}
	return &Batch{P50: at(50), P99: at(99), Max: at(100), Mean: float64(b.in) / float64(b.sum)}
}
