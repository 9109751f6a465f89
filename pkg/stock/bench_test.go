package stock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// BenchmarkReserve holds units of one or many lots with 256 callers. `make bench` compares it with other patterns.
func BenchmarkReserve(b *testing.B) {
	for _, lots := range []int{1, 1000} {
		b.Run(fmt.Sprintf("lots=%d", lots), func(b *testing.B) {
			s := openStock(b, testkit.Redis(b).SocketURL())
			ids := make([]drop.LotID, lots)
			for i := range ids {
				ids[i] = newLot(b, s, drop.Definition{Lot: drop.LotID(fmt.Sprintf("lot-%d", i)), Stock: drop.MaxUnits, Limit: 2})
			}
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range 256 {
				wg.Go(func() {
					for {
						i := next.Add(1)
						if i > int64(b.N) {
							return
						}
						user := fmt.Sprintf("user-%d", i)
						if _, err := s.Reserve(b.Context(), drop.ReserveRequest{Lot: ids[i%int64(lots)], User: user, Key: user, Qty: 1}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "holds/s")
		})
	}
}
