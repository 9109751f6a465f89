package bench

import (
	"bufio"
	"context"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Scrape is what the metrics of a server tell of it at a moment.
type Scrape struct {
	process string // when it started, as it writes it: who was started at another time is another one
	cpu     float64
	calls   map[float64]float64 // script calls, by the most operations in them
	sum     float64             // operations in all of them
}

// maxMetrics bounds what is read of a server's metrics. Those of 1,000 lots are far smaller.
const maxMetrics = 16 << 20

// Scrape reads the server's metrics, which takes a key with the scope read.
func (h *HTTP) Scrape(ctx context.Context) (Scrape, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(h.admin.URL(), "/")+"/metrics", http.NoBody)
	if err != nil {
		return Scrape{}, fault.New(fault.Failed, "the server's metrics cannot be asked for")
	}
	if h.key != "" {
		req.Header.Set("Authorization", "Bearer "+h.key)
	}
	resp, err := h.looks.Do(req)
	if err != nil {
		return Scrape{}, fault.Wrap(fault.Unavailable, err, "the server's metrics cannot be read")
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return Scrape{}, fault.New(fault.Unavailable, "the server answers %d to /metrics", resp.StatusCode)
	}
	return readScrape(io.LimitReader(resp.Body, maxMetrics))
}

// readScrape picks from Prometheus' text format the few lines that it is about.
func readScrape(text io.Reader) (Scrape, error) {
	s := Scrape{cpu: math.NaN(), calls: map[float64]float64{}}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		value, _, _ := strings.Cut(rest, " ")
		name, labels, _ := strings.Cut(name, "{")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a comment, or a label with a space in it, which none of these has
		}
		switch name {
		case "process_start_time_seconds":
			s.process = value
		case "process_cpu_seconds_total":
			s.cpu = n
		case "dropctl_engine_batch_requests_sum":
			s.sum += n
		case "dropctl_engine_batch_requests_bucket":
			_, bound, _ := strings.Cut(labels, `le="`)
			bound, _, _ = strings.Cut(bound, `"`)
			if le, err := strconv.ParseFloat(bound, 64); err == nil {
				s.calls[le] += n
			}
		}
	}
	if err := lines.Err(); err != nil {
		return Scrape{}, fault.Wrap(fault.Unavailable, err, "the server's metrics cannot be read")
	}
	return s, nil
}

// Doing is what a server did between two looks at its metrics, whoever else uses it included.
type Doing struct {
	Batch *Batch         // nil if it is not known
	CPU   *time.Duration // nil if it is not known
	Why   string         // something of it is not known
}

// Between compares two looks, of which err says what went wrong with them.
func Between(before, after Scrape, err error) Doing {
	switch {
	case err != nil:
		return Doing{Why: err.Error()}
	case before.process == "" || after.process == "":
		return Doing{Why: "the server's /metrics do not say which process they are of"}
	case before.process != after.process:
		return Doing{Why: "the server was restarted meanwhile, or is several processes behind one address"}
	}
	d := Doing{Batch: batchBetween(before, after)}
	if used := after.cpu - before.cpu; used >= 0 { // NaN is not
		d.CPU = new(time.Duration(used * float64(time.Second)))
	}
	if d.Batch == nil || d.CPU == nil {
		d.Why = "the server's /metrics do not tell it"
	}
	return d
}

// batchBetween returns how many operations travelled in each call; nil if there was none. The sizes are counted in steps, of
// which the upper bound is taken.
func batchBetween(before, after Scrape) *Batch {
	calls := func(le float64) float64 { return after.calls[le] - before.calls[le] }
	sum, operations := calls(math.Inf(1)), after.sum-before.sum
	if sum <= 0 || operations < sum {
		return nil
	}
	at := func(share float64) int64 {
		for _, le := range slices.Sorted(maps.Keys(after.calls)) {
			if calls(le) >= share*sum {
				return int64(min(le, operations)) // beyond the last step nobody counts
			}
		}
		return int64(operations)
	}
	return &Batch{P50: at(0.5), P99: at(0.99), Max: at(1), Mean: operations / sum, AtMost: true}
}
