package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/dropctl/dropctl/pkg/fault"
)

// touch gives every metric that has labels one series, so that all of them show.
func touch(m *Metrics) {
	for _, vec := range []*prometheus.GaugeVec{
		m.Engine.Breaker, m.Drop.Up, m.Drop.Looked, m.Drop.ShardOutboxBytes, m.Drop.ShardOutboxOldest, m.Drop.DeadLetters, m.Drop.WorkersAlive,
		m.Drop.ReconcileLots, m.Drop.DrainSeconds, m.Drop.Pace, m.Drop.LotsFrozen, m.Drop.LotsStopped, m.Drop.LotAvailable, m.Drop.LotHeld, m.Drop.LotSold,
	} {
		vec.WithLabelValues("x").Set(1)
	}
	m.Engine.BatchSize.WithLabelValues("x").Observe(1)
	m.Engine.CallSeconds.WithLabelValues("x").Observe(1)
	m.Worker.Relayed.WithLabelValues("x", "x").Inc()
	m.API.Requests.WithLabelValues("x", "x").Inc()
	m.API.Seconds.WithLabelValues("x", "x").Observe(1)
}

func TestTheContractIsWhatIsExported(t *testing.T) {
	m := New()
	touch(m)
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Metric{}
	for _, c := range Contract() {
		if _, twice := want[c.Name]; twice {
			t.Errorf("%s is there twice", c.Name)
		}
		want[c.Name] = c
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "dropctl_") {
			continue
		}
		c, ok := want[f.GetName()]
		delete(want, f.GetName())
		if !ok || c.Type != strings.ToLower(f.GetType().String()) || c.Help != f.GetHelp() {
			t.Errorf("%s is exported as %v %q, the contract says %+v", f.GetName(), f.GetType(), f.GetHelp(), c)
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(c.Labels)
		if !slices.Equal(labels, c.Labels) {
			t.Errorf("%s has the labels %v, the contract says %v", f.GetName(), labels, c.Labels)
		}
	}
	for name := range want {
		t.Errorf("%s is in the contract and not exported", name)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "dropctl_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func TestGroupsWithoutARegistryCount(t *testing.T) {
	NewEngine(nil).BatchSize.WithLabelValues("reserve").Observe(3)
	NewAPI(nil).RateLimited.WithLabelValues("user").Inc()
	NewWorker(nil).Expired.Inc()
	NewDrop(nil).Lots.Set(1)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestReadinessTellsDependenciesApart(t *testing.T) {
	var redis, postgres error
	h := &Health{}
	h.Need("redis", func() error { return redis })
	h.Watch("postgres", func() error { return postgres })
	s := httptest.NewServer(Handler(New(), h))
	defer s.Close()
	ask := func() (int, Readiness) {
		status, body := get(t, s.URL+"/readyz")
		var r Readiness
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		return status, r
	}
	if status, r := ask(); status != 200 || !r.Ready || !r.Checks["redis"].OK || !r.Checks["postgres"].OK {
		t.Errorf("all well: %d %+v", status, r)
	}
	postgres = fault.New(fault.Unavailable, "postgres at 10.0.0.7 is away")
	if status, r := ask(); status != 200 || !r.Ready || r.Checks["postgres"] != (Checked{Code: fault.Unavailable}) {
		t.Errorf("without what is not needed: %d %+v", status, r)
	}
	redis = errors.New("boom")
	if status, r := ask(); status != 503 || r.Ready || r.Checks["redis"] != (Checked{Needed: true, Code: fault.Failed}) {
		t.Errorf("without what is needed: %d %+v", status, r)
	}
	if _, body := get(t, s.URL+"/readyz"); strings.Contains(body, "10.0.0.7") || strings.Contains(body, "boom") {
		t.Errorf("it tells too much: %s", body)
	}
	if status, body := get(t, s.URL+"/livez"); status != 200 || !strings.Contains(body, "true") {
		t.Errorf("livez: %d %s", status, body)
	}
	if status, body := get(t, s.URL+"/metrics"); status != 200 || !strings.Contains(body, "\ndropctl_worker_expired_total 0\n") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %d %s", status, body)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Handler(New(), &Health{})) }()
	if status, _ := get(t, "http://"+l.Addr().String()+"/livez"); status != 200 {
		t.Errorf("status %d", status)
	}
	// One that never ends its request must hold up nobody.
	slow, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
	if _, err := slow.Write([]byte("GET /metrics HT")); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("it still listens")
	}
}

func TestListenSaysWhatIsInTheWay(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if _, err := Listen(t.Context(), l.Addr().String()); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("taken: %v", err)
	}
	for _, none := range []string{"", "9090", ":99999", ":-1", ":no-such-service", "unix:/run/face"} {
		if _, err := Listen(t.Context(), none); !fault.Is(err, fault.Usage) {
			t.Errorf("%q: %v", none, err)
		}
	}
	if _, err := Listen(t.Context(), "256.0.0.1:1"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("no such host: %v", err)
	}
}
