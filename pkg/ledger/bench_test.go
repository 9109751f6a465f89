package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// BenchmarkApply applies batches of 2,000 events of 20 lots; BenchmarkRowByRow is the plain way: one insert
// and one transaction an event. Both on a server that syncs. Compare the events/s.
func BenchmarkApply(b *testing.B) {
	const batch = 2000
	l := benchLedger(b)
	events := benchEvents(b, l, b.N*batch)
	b.ResetTimer()
	for chunk := range slices.Chunk(events, batch) {
		if a, err := l.Apply(b.Context(), chunk, nil); err != nil || a.Folded != len(chunk) {
			b.Fatalf("%+v, %v", a, err)
		}
	}
	b.ReportMetric(float64(len(events))/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkRowByRow(b *testing.B) {
	l := benchLedger(b)
	events := benchEvents(b, l, b.N)
	b.ResetTimer()
	for _, ev := range events {
		_, err := l.pool.Exec(b.Context(), `INSERT INTO reservation_events (lot, epoch, seq, kind, reservation, event_at, line, hash) VALUES ($1, $2, $3, $4, $5, $6, $7, '')`,
			string(ev.Lot), ev.Epoch, ev.Seq, string(ev.Kind), ev.Reservation.N, ev.Time, ev.Line())
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(events))/b.Elapsed().Seconds(), "events/s")
}

func benchLedger(b *testing.B) *Ledger {
	server := testkit.PostgresServer(b)
	if _, err := MigrateUp(b.Context(), Options{URL: server.URL(lab.Owner, lab.Database)}, MigrateOptions{AppRole: string(lab.App)}); err != nil {
		b.Fatal(err)
	}
	l, err := Open(b.Context(), Options{URL: server.SocketURL(lab.App, lab.Database)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(l.Close)
	return l
}

// benchEvents returns n events of 20 lots whose loads are applied: holds, most of them confirmed.
func benchEvents(b *testing.B, l *Ledger, n int) []drop.Event {
	b.Helper()
	const lots = 20
	var events []drop.Event
	random := rand.New(rand.NewPCG(1, 1))
	sims := make([]*redis, lots)
	waiting := make([][]*drop.Reservation, lots)
	for i := range sims {
		sims[i] = seeded(b, l, newLot(), 1_000_000_000)
		apply(b, l, sims[i].take()...)
	}
	for k := range n {
		i := k % lots
		r := sims[i]
		if random.IntN(2) == 0 && len(waiting[i]) > 0 {
			r.confirm(waiting[i][0], 1, fmt.Sprint("payment-", k))
			waiting[i] = waiting[i][1:]
		} else {
			waiting[i] = append(waiting[i], r.hold(fmt.Sprint("user-", k), 1))
		}
		events = append(events, r.take()...)
	}
	return events
}
