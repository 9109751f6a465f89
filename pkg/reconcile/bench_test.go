package reconcile_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/reconcile"
)

// BenchmarkReconcile measures a run over many quiet lots, which takes at most 2 s for 1,000 of them, and one that proves
// every record of a large one:
//
//	go test -run '^$' -bench Reconcile -benchtime 3x ./pkg/reconcile
//
// With -short there are fewer records.
func BenchmarkReconcile(b *testing.B) {
	lots, many, few := 1000, 1_000_000, 20
	if testing.Short() {
		many = 20_000
	}
	b.Run(fmt.Sprintf("lots=%d", lots), func(b *testing.B) {
		s := newShop(b)
		ids := make([]drop.LotID, lots)
		for i := range ids {
			ids[i] = drop.LotID(fmt.Sprintf("lot-%d", i))
		}
		s.loadAll(b, ids)
		s.buyOften(b, ids, lots*few)
		s.drain(b)
		b.Run("totals", func(b *testing.B) { s.measure(b, reconcile.Options{}) })
		b.Run("deep", func(b *testing.B) { s.measure(b, reconcile.Options{Deep: true}) })
	})
	b.Run(fmt.Sprintf("records=%d", many), func(b *testing.B) {
		s := newShop(b)
		ids := []drop.LotID{"truffle"}
		s.loadAll(b, ids)
		s.buyOften(b, ids, many)
		s.drain(b)
		b.Run("deep", func(b *testing.B) { s.measure(b, reconcile.Options{Deep: true}) })
	})
}

func (s *shop) measure(b *testing.B, o reconcile.Options) {
	var records int64
	for b.Loop() {
		report := s.reconcile(b, o)
		if report.Err() != nil || report.OK != report.Lots {
			b.Fatalf("%v: %d of %d lots ok", report.Err(), report.OK, report.Lots)
		}
		records = report.Records
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/run")
	b.ReportMetric(float64(records), "records")
}

// loadAll creates lots that never sell out.
func (s *shop) loadAll(b *testing.B, lots []drop.LotID) {
	var loading sync.WaitGroup
	for w := range 8 {
		loading.Go(func() {
			for i := w; i < len(lots); i += 8 {
				s.load(b, drop.Definition{Lot: lots[i], Stock: drop.MaxUnits})
			}
		})
	}
	loading.Wait()
}

// buyOften makes records, n in all: one in ten is confirmed, the others are held.
func (s *shop) buyOften(b *testing.B, lots []drop.LotID, n int) {
	var next atomic.Int64
	var crowd sync.WaitGroup
	for range 256 {
		crowd.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				user := fmt.Sprint("user-", i)
				out, err := s.stock.Reserve(b.Context(), drop.ReserveRequest{Lot: lots[i%int64(len(lots))], User: user, Key: user, Qty: 1, Hold: 4 * time.Hour})
				if err == nil && i%10 == 0 {
					_, err = s.stock.Settle(b.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActConfirm, Ref: "pay"})
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	crowd.Wait()
}
