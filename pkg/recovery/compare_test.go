package recovery

import (
	"slices"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// equalSides returns a lot that both stores agree on: 10 units, 2 held, 3 sold, at epoch 2, seq 40.
func equalSides(id drop.LotID) (drop.LedgerLot, drop.LotState) {
	d := drop.Definition{Lot: id, Stock: 10}.WithDefaults()
	w := drop.Watermark{Epoch: 2, Seq: 40}
	l := drop.LedgerLot{Definition: d, Held: 2, Sold: 3, Watermark: w, OpenEpoch: 2, Seen: true}
	r := drop.LotState{Definition: d, Totals: drop.Totals{Capacity: 10, Available: 5, Held: 2, Sold: 3}, Watermark: w}
	return l, r
}

func TestAShardIsReopenedOnlyIfEveryLotIsEqual(t *testing.T) {
	tests := map[string]struct {
		change func(l *drop.LedgerLot, r *drop.LotState)
		want   fault.Code
	}{
		"equal":                         {func(*drop.LedgerLot, *drop.LotState) {}, ""},
		"redis has a later seq":         {func(_ *drop.LedgerLot, r *drop.LotState) { r.Seq++ }, fault.FreezeAhead},
		"redis has a later epoch":       {func(_ *drop.LedgerLot, r *drop.LotState) { r.Epoch++; r.Seq = 1 }, fault.FreezeAhead},
		"redis lost its last change":    {func(_ *drop.LedgerLot, r *drop.LotState) { r.Seq--; r.Held--; r.Available++ }, fault.FreezeBehind},
		"an epoch was issued meanwhile": {func(l *drop.LedgerLot, _ *drop.LotState) { l.OpenEpoch++ }, fault.FreezeBehind},
		"one unit moved":                {func(_ *drop.LedgerLot, r *drop.LotState) { r.Held--; r.Available++ }, fault.FreezeDiffers},
		"a unit sold less":              {func(_ *drop.LedgerLot, r *drop.LotState) { r.Sold--; r.Held++ }, fault.FreezeDiffers},
		"a unit appeared":               {func(_ *drop.LedgerLot, r *drop.LotState) { r.Available++ }, fault.FreezeDiffers},
		"another capacity":              {func(_ *drop.LedgerLot, r *drop.LotState) { r.Stock++; r.Capacity++; r.Available++ }, fault.FreezeDiffers},
		"another status":                {func(_ *drop.LedgerLot, r *drop.LotState) { r.Status = drop.Paused }, fault.FreezeDiffers},
		"stopped, though equal":         {func(l *drop.LedgerLot, _ *drop.LotState) { l.Stopped = fault.StopFork }, fault.StopFork},
		"its load was never recorded":   {func(l *drop.LedgerLot, r *drop.LotState) { l.Seen, l.Watermark, r.Seq = false, drop.Watermark{}, 1 }, fault.FreezeAhead},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, r := equalSides("truffle")
			tt.change(&l, &r)
			b := bothSides{shards: 1, ledger: map[drop.LotID]drop.LedgerLot{"truffle": l}, redis: map[drop.LotID]drop.LotState{"truffle": r}}
			reason, lots := b.compare(0)
			if reason != tt.want {
				t.Errorf("reason %q, want %q", reason, tt.want)
			}
			if (reason != "") != slices.Equal(lots, []drop.LotID{"truffle"}) {
				t.Errorf("the evidence names %v", lots)
			}
		})
	}
}

func TestTheGravestReasonNamesTheShard(t *testing.T) {
	equal, equalR := equalSides("a-equal")
	lost, _ := equalSides("b-lost")
	behind, behindR := equalSides("c-behind")
	behindR.Seq--
	ahead, aheadR := equalSides("d-ahead")
	aheadR.Seq++
	_, unknownR := equalSides("e-unknown")
	unloaded, _ := equalSides("f-created-only")
	unloaded.Seen = false

	b := bothSides{shards: 1,
		ledger: map[drop.LotID]drop.LedgerLot{equal.Lot: equal, unloaded.Lot: unloaded},
		redis:  map[drop.LotID]drop.LotState{equal.Lot: equalR},
	}
	expect := func(want fault.Code, evidence ...drop.LotID) {
		t.Helper()
		if reason, lots := b.compare(0); reason != want || !slices.Equal(lots, evidence) {
			t.Errorf("%q because of %v, want %q because of %v", reason, lots, want, evidence)
		}
	}
	expect("") // a lot that was created and never loaded is nobody's loss

	b.ledger[lost.Lot] = lost
	expect(fault.FreezeEmptied, "b-lost")
	b.ledger[behind.Lot], b.redis[behind.Lot] = behind, behindR
	expect(fault.FreezeBehind, "c-behind")
	b.redis[unknownR.Lot] = unknownR
	expect(fault.FreezeAhead, "e-unknown")
	b.ledger[ahead.Lot], b.redis[ahead.Lot] = ahead, aheadR
	expect(fault.FreezeAhead, "d-ahead", "e-unknown")
	lost.Stopped = fault.StopUnfoldable
	b.ledger[lost.Lot] = lost
	expect(fault.StopUnfoldable, "b-lost")
}

func TestLotsOfOtherShardsDoNotCount(t *testing.T) {
	l, _ := equalSides("truffle")
	b := bothSides{shards: 16, ledger: map[drop.LotID]drop.LedgerLot{"truffle": l}}
	for shard := range 16 {
		reason, _ := b.compare(shard)
		if want := shard == l.Lot.Shard(16); (reason == fault.FreezeEmptied) != want {
			t.Errorf("shard %d: reason %q", shard, reason)
		}
	}
}
