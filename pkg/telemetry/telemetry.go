// Package telemetry holds the metrics that dropctl exports to Prometheus, and the small server that shows them.
//
// Each group of metrics is a struct whose constructor is also the list of what it exports: name, help and labels stand
// there once, and Contract reads them from there. Names follow the conventions of Prometheus: base units (_seconds,
// _bytes), _total for counters only, and labels whose values come from a closed set, so that no caller can make series.
package telemetry

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are all metrics of one process. They are safe for concurrent use.
type Metrics struct {
	Engine *Engine
	API    *API
	Worker *Worker
	Drop   *Drop

	registry *prometheus.Registry
}

// New returns metrics in a registry of their own, together with those of the Go runtime and the process.
func New() *Metrics {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Metrics{Engine: NewEngine(reg), API: NewAPI(reg), Worker: NewWorker(reg), Drop: NewDrop(reg), registry: reg}
}

// Handler shows the metrics to Prometheus. Few scrapers at a time are served: a metric is not worth a sale.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 5 * time.Second})
}

// Gatherer reads the metrics within the process.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Metric is one line of the contract with those who read the metrics.
type Metric struct {
	Name   string   `json:"name" table:"NAME,name"`
	Type   string   `json:"type" table:"TYPE"` // counter, gauge or histogram
	Labels []string `json:"labels" table:"LABELS"`
	Group  string   `json:"group" table:"GROUP"`
	Help   string   `json:"help" table:"HELP"`
}

// Contract lists every metric of dropctl's own, by group.
func Contract() []Metric {
	var list []Metric
	note := func(m Metric) { list = append(list, m) }
	newEngine(maker{group: "engine", note: note})
	newAPI(maker{group: "api", note: note})
	newWorker(maker{group: "worker", note: note})
	newDrop(maker{group: "drop", note: note})
	return list
}

// maker makes the metrics of a group, and notes what it makes.
type maker struct {
	group string
	reg   prometheus.Registerer // nil: they count, but nobody sees them
	note  func(Metric)          // nil: nobody wants to know
}

func (m maker) made(kind, name, help string, labels []string) promauto.Factory {
	if m.note != nil {
		m.note(Metric{Name: name, Type: kind, Labels: append([]string{}, labels...), Group: m.group, Help: help})
	}
	return promauto.With(m.reg)
}

func (m maker) counter(name, help string) prometheus.Counter {
	return m.made("counter", name, help, nil).NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// counters also takes the values of its label as far as they are known: a counter that shows 0 from the start tells an
// alert of its first step.
func (m maker) counters(name, help string, labels []string, values ...string) *prometheus.CounterVec {
	vec := m.made("counter", name, help, labels).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	for _, value := range values {
		vec.WithLabelValues(value)
	}
	return vec
}

func (m maker) gauge(name, help string) prometheus.Gauge {
	return m.made("gauge", name, help, nil).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func (m maker) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return m.made("gauge", name, help, labels).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (m maker) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return m.made("histogram", name, help, nil).NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

func (m maker) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return m.made("histogram", name, help, labels).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

var (
	// durations reach from a call on loopback to the longest anybody waits.
	durations = []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}
	// sizes are those of a batch, of 1 to 1000.
	sizes = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}
)
