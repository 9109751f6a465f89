package bars

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/broker"
)

// BenchmarkThroughKafka measures how fast a worker brings events through brokers in a process of their own into the ledger,
// and fails below the bar. It is no part of the program's benchmark, which would have to carry the brokers; see `make bench`.
func BenchmarkThroughKafka(b *testing.B) {
	r := &run{Options{Program: built(b), Rounds: 1, Progress: func(string, ...any) {}}, full}
	p, done, err := r.openPlant(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer done()
	p.env = append(p.env, "DROPCTL_TRANSPORT=kafka", "DROPCTL_KAFKA_BROKERS="+strings.Join(broker.Start(b).Addrs(), ","))
	work := func() (stop func()) {
		_, stop, err := r.serve(b.Context(), p.env, "worker", "--max-events-per-second", strconv.Itoa(unthrottled))
		if err != nil {
			b.Fatal(err)
		}
		return stop
	}
	// A worker that sees a PostgreSQL for the first time sends it everything straight from the outbox, so there is one before.
	stop := work()
	testkit.Eventually(b, 30*time.Second, func() (bool, string) {
		now, remembered, _, err := p.ledger.Server(b.Context())
		return err == nil && now == remembered, "PostgreSQL is not known yet"
	})
	stop()
	folded := func() int64 {
		m, err := p.now(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		return m.events
	}
	var pace float64
	for b.Loop() {
		if err := p.sell(b.Context(), r.batches*applyBatch, p.lots); err != nil {
			b.Fatal(err)
		}
		target, err := p.written(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		stop := work()
		pace = testkit.Pace(b, target, folded)
		stop()
	}
	testkit.FastEnough(b, testkit.Database{Server: p.postgres, Name: lab.Database}, pace)
}
