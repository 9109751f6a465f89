package stock

import (
	"fmt"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// TestAFullServerWithoutFunctionsSettlesAndIsDrained takes the functions from a server that is full, as a promotion or a
// FUNCTION FLUSH does: it does not take the library, so that every call goes as source. Holds come back, sales go on, the
// outbox is read and trimmed; only new holds are refused. Once there is room again the library is there, too.
func TestAFullServerWithoutFunctionsSettlesAndIsDrained(t *testing.T) {
	t.Parallel()
	s, rdb, r := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 10, Hold: time.Minute, MaxHold: time.Hour})
	ids := map[string]drop.ReservationID{}
	reserve(t, s, lot, "eve", "k", 1)
	passTime(t, s, rdb, 2*time.Minute, lot) // hers is due
	for _, user := range []string{"ann", "bob", "carl", "dora"} {
		ids[user] = reserve(t, s, lot, user, "k", 1).Reservation.ID
	}
	do(t, r, "CONFIG", "SET", "maxmemory", "1")
	do(t, r, "FUNCTION", "FLUSH")

	hold := drop.ReserveRequest{Lot: lot, User: "fay", Key: "k", Qty: 1}
	_, err := s.Reserve(t.Context(), hold)
	wantCode(t, err, fault.OutOfMemory)
	settle(t, s, drop.SettleRequest{ID: ids["ann"], Action: drop.ActConfirm, Ref: "pay"})
	settle(t, s, drop.SettleRequest{ID: ids["ann"], Action: drop.ActRefund, Total: 1})
	settle(t, s, drop.SettleRequest{ID: ids["bob"], Action: drop.ActRelease})
	settle(t, s, drop.SettleRequest{ID: ids["carl"], Action: drop.ActExtend, By: 30 * time.Minute})
	settle(t, s, drop.SettleRequest{ID: ids["dora"], Action: drop.ActConfirm})
	if did, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 100); err != nil || did.Expired != 1 {
		t.Errorf("swept %+v, %v", did, err)
	}
	wantTotals(t, s, lot, 8, 1, 1)
	wantHistory(t, s, rdb, lot)

	shard := lot.Shard(s.Shards())
	entries := read(t, s, shard, "c")
	if err := s.Ack(t.Context(), shard, idsOf(entries)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { // the newest entry may be of this very millisecond
		n, err := s.Trim(t.Context(), shard, 0)
		return err == nil && n > 0, fmt.Sprint(n, " trimmed, ", err)
	})
	if err := s.Leave(t.Context(), shard, "c"); err != nil {
		t.Error(err)
	}
	if there := do(t, r, "FUNCTION", "LIST"); there != "" {
		t.Fatalf("the full server has functions: %s", there)
	}

	do(t, r, "CONFIG", "SET", "maxmemory", "0")
	if _, err := s.Reserve(t.Context(), hold); err != nil {
		t.Error(err)
	}
	if there := do(t, r, "FUNCTION", "LIST"); there == "" {
		t.Error("the library was not loaded again")
	}
}
