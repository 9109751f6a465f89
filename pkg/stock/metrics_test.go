package stock

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// metric returns the value of an exported metric, of a histogram how often it was observed, and the sum. The label is
// that of the only one it has; "" if it has none.
func metric(t testing.TB, m *telemetry.Metrics, name, label string) (value, sum float64) {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if f.GetName() != name || label != "" && (len(series.GetLabel()) != 1 || series.GetLabel()[0].GetValue() != label) {
				continue
			}
			if h := series.GetHistogram(); h != nil {
				return float64(h.GetSampleCount()), h.GetSampleSum()
			}
			return series.GetGauge().GetValue() + series.GetCounter().GetValue(), 0
		}
	}
	return 0, 0
}

func TestTheEngineIsMeasured(t *testing.T) {
	testkit.Long(t)
	m := telemetry.New()
	s, _, r := newShop(t, withBreaker, func(o *Options) { o.Metrics, o.Shards = m.Engine, 1 })
	count := func(name, label string) float64 { n, _ := metric(t, m, name, label); return n }
	eventually := func(name, label string, fine func(float64) bool) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			n := count(name, label)
			return fine(n), name + " is " + strconv.FormatFloat(n, 'g', -1, 64)
		})
	}
	is := func(want float64) func(float64) bool { return func(n float64) bool { return n == want } }
	some := func(n float64) bool { return n > 0 }

	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 1000})
	const holds = 300
	inParallel(holds, func(i int) {
		if _, err := s.Reserve(t.Context(), one(lot, strconv.Itoa(i))); err != nil {
			t.Error(err)
		}
		wantUnknown(t, s, lot, "nobody-"+strconv.Itoa(i), "k", true)
	})
	for _, name := range []string{"reserve", lookName} {
		calls, requests := metric(t, m, "dropctl_engine_batch_requests", name)
		if requests != holds || calls == 0 || calls > holds/2 {
			t.Errorf("%s: %g requests in %g batches", name, requests, calls)
		}
		if timed, took := metric(t, m, "dropctl_engine_call_duration_seconds", name); timed != calls || took <= 0 || took > 60 {
			t.Errorf("%s: %g of %g calls took %g s", name, timed, calls, took)
		}
	}
	if n := count("dropctl_engine_script_reloads_total", ""); n < 1 {
		t.Error("a server that was empty had the scripts")
	}
	eventually("dropctl_engine_in_flight_calls", "", is(0))
	awaitBreaker(t, s, r.Addr(), drop.BreakerClosed)
	if n := count("dropctl_engine_connections_lost_total", ""); n != 0 {
		t.Errorf("%g connections are lost", n)
	}

	pause(t, r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		inParallel(10, func(i int) {
			// One after the other: what comes while both lanes wait for Redis has to wait too.
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			_, _ = s.Reserve(t.Context(), one(lot, "late-"+strconv.Itoa(i)))
		})
	}()
	eventually("dropctl_engine_in_flight_calls", "", some)
	eventually("dropctl_engine_breaker_state", r.Addr(), is(telemetry.BreakerOpen))
	<-done
	eventually("dropctl_engine_connections_lost_total", "", some)
	resume(t, r)
	eventually("dropctl_engine_breaker_state", r.Addr(), is(telemetry.BreakerClosed))
}

// TestWaitsAreSampled: requests that wait for the server's slots, and callers that wait for a connection of the pool.
func TestWaitsAreSampled(t *testing.T) {
	testkit.Long(t)
	m := telemetry.New()
	s, _, _ := newShop(t, func(o *Options) {
		o.Breaker, o.Metrics, o.Shards, o.Timeout, o.DialTimeout = true, m.Engine, 1, 500*time.Millisecond, 500*time.Millisecond
	})
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 1000})
	home := s.shards[0].home.Load()
	for range cap(home.slots) {
		home.slots <- struct{}{}
	}
	const callers = 50
	done := make(chan struct{})
	go func() {
		defer close(done)
		inParallel(callers, func(i int) {
			if _, err := s.Reserve(t.Context(), one(lot, strconv.Itoa(i))); err != nil {
				t.Error(err)
			}
		})
	}()
	waiting := func(want float64) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			n, _ := metric(t, m, "dropctl_engine_waiting_requests", "")
			return n == want, strconv.FormatFloat(n, 'g', -1, 64) + " wait"
		})
	}
	waiting(callers)
	for range cap(home.slots) {
		<-home.slots
	}
	<-done
	waiting(0)

	var taken []*redis.Conn
	defer func() {
		for _, conn := range taken {
			_ = conn.Close()
		}
	}()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // shorter than the pool's own limit, which counts
		conn := home.client.Conn()
		taken = append(taken, conn)
		err := conn.Ping(ctx).Err()
		cancel()
		if err != nil {
			break // the pool is empty
		}
	}
	_, err := s.Reservation(t.Context(), drop.ReservationID{Lot: lot, Attempt: drop.AttemptOf(lot, "u", "k"), N: 1})
	wantCode(t, err, fault.Unavailable)
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		n, _ := metric(t, m, "dropctl_engine_pool_waits_total", "")
		return n == 1, strconv.FormatFloat(n, 'g', -1, 64) + " have waited for a connection"
	})
}
