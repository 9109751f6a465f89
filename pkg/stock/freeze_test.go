package stock

import (
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// TestAFrozenLotAnswersNobody freezes one of two lots of a shard: it takes no call and loses nothing, the other one
// sells on and is swept.
func TestAFrozenLotAnswersNobody(t *testing.T) {
	sc := newScene(t, true)
	s, shard := sc.s, sceneLot.Shard(sc.s.Shards())
	was, err := s.Lot(t.Context(), sceneLot)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.FreezeLot(t.Context(), was, fault.StopFork); err != nil {
		t.Fatal(err)
	}
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: sceneLot, User: "bob", Key: "k", Qty: 1})
	wantCode(t, err, fault.LotFrozen)
	if fault.As(err).Details["reason"] != string(fault.StopFork) {
		t.Errorf("the answer is %+v", fault.As(err))
	}
	_, err = s.Settle(t.Context(), drop.SettleRequest{ID: drop.ReservationID{Lot: sceneLot, Attempt: drop.AttemptOf(sceneLot, "bob", "k"), N: 1}, Action: drop.ActConfirm})
	wantCode(t, err, fault.LotFrozen)
	_, _, err = s.Change(t.Context(), drop.ChangeRequest{Lot: sceneLot, Limit: ptr(int64(3))})
	wantCode(t, err, fault.LotFrozen)
	// Both lots are due: the frozen one neither loses its holds nor stands in the other's way.
	if out, err := s.Sweep(t.Context(), shard, 100); err != nil || out.Expired != 1 {
		t.Errorf("swept %+v, %v", out, err)
	}
	if out, err := s.Sweep(t.Context(), shard, 100); err != nil || out.Expired != 0 || out.More {
		t.Errorf("swept again %+v, %v", out, err)
	}
	now, err := s.Lot(t.Context(), sceneLot)
	if err != nil || now.Frozen != string(fault.StopFork) || now.LotFrozen != now.Frozen || !now.Definition.Equal(was.Definition) || now.Totals != was.Totals || now.Watermark != was.Watermark {
		t.Errorf("the frozen lot is %+v, %v; it was %+v", now, err, was)
	}
	// The first reason stays, and only it thaws the lot.
	for _, try := range []func() error{
		func() error { return s.FreezeLot(t.Context(), now, fault.FreezeRestoring) },
		func() error { return s.ThawLot(t.Context(), now, fault.FreezeRestoring) },
	} {
		if err := try(); err != nil {
			t.Error(err)
		}
		if again, err := s.Lot(t.Context(), sceneLot); err != nil || again.LotFrozen != string(fault.StopFork) {
			t.Errorf("the frozen lot is %+v, %v", again, err)
		}
	}
	if err := s.ThawLot(t.Context(), now, fault.StopFork); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Sweep(t.Context(), shard, 100); err != nil || out.Expired != 1 {
		t.Errorf("swept %+v, %v", out, err)
	}
	reserve(t, s, sceneLot, "zoe", "k", 1)
	if fields, err := sc.rdb.HMGet(t.Context(), s.shardOf(sceneLot).keys.lot(sceneLot), "was", "frozen").Result(); err != nil || fields[0] != nil || fields[1] != nil {
		t.Errorf("left behind: %v, %v", fields, err)
	}
}

// TestALotIsFrozenOnlyAsItWasSeen changes the lot between look and freeze, and freezes on a frozen shard.
func TestALotIsFrozenOnlyAsItWasSeen(t *testing.T) {
	s, rdb, _ := newShop(t)
	const lot = drop.LotID("hat")
	newLot(t, s, drop.Definition{Lot: lot, Stock: 6, Hold: time.Minute, Status: drop.Paused})
	seen, err := s.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Change(t.Context(), drop.ChangeRequest{Lot: lot, Limit: ptr(int64(2))}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.ThawLot(t.Context(), seen, fault.StopFork), fault.Conflict)
	older := seen
	older.Epoch--
	wantCode(t, s.FreezeLot(t.Context(), older, fault.StopFork), fault.Conflict)
	door, err := s.ShardState(t.Context(), lot.Shard(s.Shards()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Freeze(t.Context(), door, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	if err := s.FreezeLot(t.Context(), seen, fault.StopFork); err != nil { // its seq has moved on
		t.Fatal(err)
	}
	seen, err = s.Lot(t.Context(), lot)
	if err != nil || seen.Frozen != string(fault.FreezeOperator) || seen.LotFrozen != string(fault.StopFork) || seen.Status != drop.Paused {
		t.Errorf("the lot is %+v, %v", seen, err)
	}
	// One whose totals are damaged would sell on: it can be frozen all the same.
	if err := s.ThawLot(t.Context(), seen, fault.StopFork); err != nil {
		t.Fatal(err)
	}
	if err := rdb.HSet(t.Context(), s.shardOf(lot).keys.lot(lot), "totals", "x").Err(); err != nil {
		t.Fatal(err)
	}
	states, err := s.LotStates(t.Context(), []drop.LotID{lot})
	if err != nil || states[lot].Damaged == "" {
		t.Fatalf("%+v, %v", states, err)
	}
	if err := s.FreezeLot(t.Context(), states[lot], fault.StopFork); err != nil {
		t.Fatal(err)
	}
	if why, err := rdb.HGet(t.Context(), s.shardOf(lot).keys.lot(lot), "frozen").Result(); err != nil || why != string(fault.StopFork) {
		t.Errorf("frozen for %q, %v", why, err)
	}
	wantCode(t, s.FreezeLot(t.Context(), drop.LotState{Definition: drop.Definition{Lot: "none"}}, fault.StopFork), fault.LotNotLoaded)
}
