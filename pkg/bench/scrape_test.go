package bench

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

const metricsBefore = `# HELP process_start_time_seconds Start time.
process_start_time_seconds 1.78e+09
process_cpu_seconds_total 2.5
dropctl_engine_batch_requests_bucket{script="reserve",le="1"} 10
dropctl_engine_batch_requests_bucket{script="reserve",le="5"} 10
dropctl_engine_batch_requests_bucket{script="reserve",le="+Inf"} 10
dropctl_engine_batch_requests_sum{script="reserve"} 10
dropctl_engine_batch_requests_count{script="reserve"} 10
dropctl_lot_available_units{lot="hat"} 3
`

// What a server did between two looks is the difference, over both scripts; that of two processes is none.
func TestWhatAServerDidIsReadFromItsMetrics(t *testing.T) {
	// Meanwhile 4 calls of one operation, and 6 of up to 5; 22 operations in all.
	after := strings.NewReplacer("total 2.5", "total 4", `le="1"} 10`, `le="1"} 12`, `le="5"} 10`, `le="5"} 18`, `le="+Inf"} 10`, `le="+Inf"} 18`,
		`sum{script="reserve"} 10`, `sum{script="reserve"} 30`).Replace(metricsBefore) + `dropctl_engine_batch_requests_bucket{script="settle",le="1"} 2
dropctl_engine_batch_requests_bucket{script="settle",le="5"} 2
dropctl_engine_batch_requests_bucket{script="settle",le="+Inf"} 2
dropctl_engine_batch_requests_sum{script="settle"} 2
`
	text := metricsBefore
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	look := func(key string) (Scrape, error) {
		h, err := NewHTTP(HTTPOptions{URL: server.URL, Key: key, Users: 1, Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		return h.Scrape(t.Context())
	}
	must := func(s Scrape, err error) Scrape {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := must(look("secret"))
	text = after
	second := must(look("secret"))
	d := Between(first, second, nil)
	if d.CPU == nil || *d.CPU != 1500*time.Millisecond || d.Batch == nil || *d.Batch != (Batch{P50: 5, P99: 5, Max: 5, Mean: 2.2, AtMost: true}) || d.Why != "" {
		t.Fatalf("%+v, batches %+v", d, d.Batch)
	}
	if text := d.Batch.Cell(); text != "p50 ≤ 5, p99 ≤ 5, max ≤ 5, mean 2.2" {
		t.Error(text)
	}
	if d := Between(first, first, nil); d.Batch != nil || d.CPU == nil || *d.CPU != 0 || d.Why == "" {
		t.Errorf("between twice the same: %+v", d)
	}
	text = strings.Replace(after, "1.78e+09", "1.79e+09", 1)
	if d := Between(first, must(look("secret")), nil); d.Batch != nil || d.CPU != nil || !strings.Contains(d.Why, "restarted") {
		t.Errorf("between two processes: %+v", d)
	}
	if d := Between(first, Scrape{}, nil); d.Batch != nil || d.CPU != nil || d.Why == "" {
		t.Errorf("of a page that is another's: %+v", d)
	}
	_, err := look("wrong")
	if d := Between(first, Scrape{}, err); !fault.Is(err, fault.Unavailable) || d.Batch != nil || !strings.Contains(d.Why, "403") {
		t.Errorf("%+v, %v", d, err)
	}
}
