package stock

import (
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// A new epoch changes nothing of a lot but its number, and tells the ledger where the old one ended.
func TestARenewedLotIsTheSameUnderANewEpoch(t *testing.T) {
	sc := newScene(t, false)
	s := sc.s
	was, err := s.Lot(t.Context(), sceneLot)
	if err != nil {
		t.Fatal(err)
	}
	held := reserve(t, s, sceneLot, "bob", "k", 1)
	if err := s.Renew(t.Context(), was, was.Epoch+1, "guardian", "test"); err != nil {
		t.Fatal(err)
	}
	now, err := s.Lot(t.Context(), sceneLot)
	if err != nil || now.Epoch != was.Epoch+1 || now.Seq != was.Seq+1 || now.Totals != was.Totals || !now.Definition.Equal(was.Definition) || now.Mark.Before(was.Mark) {
		t.Errorf("now %+v, %v; it was %+v", now, err, was)
	}
	if again := reserve(t, s, sceneLot, "bob", "k", 1); !again.Replayed || again.Reservation.ID != held.Reservation.ID {
		t.Errorf("the old key gives %+v", again)
	}
	events, err := s.EventsSince(t.Context(), sceneLot.Shard(s.Shards()), map[drop.LotID]drop.Watermark{sceneLot: was.Watermark})
	if err != nil || len(events[sceneLot]) != 1 {
		t.Fatalf("%d events, %v", len(events[sceneLot]), err)
	}
	e := events[sceneLot][0]
	if e.Kind != drop.KindLoaded || e.Closing != was.Watermark || e.Held != was.Held || e.Sold != was.Sold || !e.Definition.Equal(was.Definition) || e.Watermark() != now.Watermark {
		t.Errorf("the event is %+v", e)
	}
}

func TestALotIsRenewedOnlyAsItWasSeen(t *testing.T) {
	sc := newScene(t, false)
	s := sc.s
	seen, err := s.Lot(t.Context(), sceneLot)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(why string, change func(*drop.LotState), epoch int64) {
		t.Helper()
		other := seen
		change(&other)
		if err := s.Renew(t.Context(), other, epoch, "guardian", "test"); !fault.Is(err, fault.Conflict) {
			t.Errorf("%s: %v", why, err)
		}
	}
	refused("another server", func(st *drop.LotState) { st.Run = "another" }, seen.Epoch+1)
	refused("another door", func(st *drop.LotState) { st.OpenRun = "another" }, seen.Epoch+1)
	refused("an older look", func(st *drop.LotState) { st.Seq-- }, seen.Epoch+1)
	refused("another epoch", func(st *drop.LotState) { st.Epoch++ }, seen.Epoch+2)
	refused("an epoch that was", func(*drop.LotState) {}, seen.Epoch)
	if now, err := s.Lot(t.Context(), sceneLot); err != nil || now.Watermark != seen.Watermark {
		t.Errorf("%+v, %v", now.Watermark, err)
	}
	// A frozen lot keeps its freeze, and the ledger hears of the status it really has.
	if err := s.FreezeLot(t.Context(), seen, fault.StopFork); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context(), seen, seen.Epoch+1, "guardian", "test"); err != nil {
		t.Fatal(err)
	}
	now, err := s.Lot(t.Context(), sceneLot)
	if err != nil || now.LotFrozen != string(fault.StopFork) || now.Status != seen.Status || now.Epoch != seen.Epoch+1 {
		t.Errorf("%+v, %v", now, err)
	}
}
