package kafka_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// BenchmarkThroughKafka measures how fast a worker without a throttle brings what has piled up in Redis through a topic into
// the ledger, the brokers of the tests on the same machine.
func BenchmarkThroughKafka(b *testing.B) {
	const events = 100_000
	for b.Loop() {
		b.StopTimer()
		s := newShop(b)
		lots := s.lots(b, events/shards)
		known := s.start(b, worker.Options{}) // a first worker sends everything there is to a ledger it does not know
		s.arrives(b)
		known()
		var all sync.WaitGroup
		for caller := range 256 {
			all.Go(func() {
				for i := caller; i < events; i += 256 {
					user := "user-" + strconv.Itoa(i)
					if _, err := s.stock.Reserve(b.Context(), drop.ReserveRequest{Lot: lots[i%shards], User: user, Key: "key-" + user, Qty: 1, Hold: time.Hour, Actor: "bench"}); err != nil {
						b.Error(err)
					}
				}
			})
		}
		all.Wait()
		b.StartTimer()
		start := time.Now()
		stop := s.start(b, worker.Options{Rate: 1e9, Only: []worker.Part{worker.Relay, worker.Apply}})
		testkit.Eventually(b, 2*time.Minute, func() (bool, string) {
			lots, err := s.ledger.Lots(b.Context(), lots)
			held := int64(0)
			for _, l := range lots {
				held += l.Held
			}
			return err == nil && held == events, fmt.Sprintf("%d of %d events are recorded: %v", held, events, err)
		})
		b.ReportMetric(events/time.Since(start).Seconds(), "events/s")
		b.StopTimer()
		sum := stop()
		b.Logf("duplicates: %d", sum.Duplicates)
		b.StartTimer()
	}
}
