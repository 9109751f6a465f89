package bench

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dropctl/dropctl/pkg/telemetry"
)

// Batches counts how many operations travel in each script call of an engine that is opened with its Metrics.
type Batches struct {
	Metrics *telemetry.Engine

	registry *prometheus.Registry
}

// NewBatches counts from nothing on.
func NewBatches() *Batches {
	registry := prometheus.NewRegistry()
	return &Batches{telemetry.NewEngine(registry), registry}
}

// Sizes returns what was counted, each size rounded up to one that the metric tells apart; nil if there was no call.
func (b *Batches) Sizes() *Batch {
	families, err := b.registry.Gather()
	if err != nil {
		return nil
	}
	upTo := map[float64]uint64{} // calls of at most that size
	var calls uint64
	for _, family := range families {
		if family.GetName() != "dropctl_engine_batch_requests" {
			continue
		}
		for _, script := range family.GetMetric() {
			calls += script.GetHistogram().GetSampleCount()
			for _, bucket := range script.GetHistogram().GetBucket() {
				upTo[bucket.GetUpperBound()] += bucket.GetCumulativeCount()
			}
		}
	}
	if calls == 0 {
		return nil
	}
	at := func(share float64) int64 {
		least := math.Inf(1)
		for size, n := range upTo {
			if float64(n) >= share*float64(calls) {
				least = min(least, size)
			}
		}
		return int64(least)
	}
	return &Batch{P50: at(.5), P99: at(.99), Max: at(1)}
}
