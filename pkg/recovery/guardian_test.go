package recovery

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// sides are both stores in memory. Shards in dead do not answer.
type sides struct {
	doors  []drop.ShardState
	redis  map[drop.LotID]drop.LotState
	ledger []drop.LedgerLot
	dead   map[int]bool
}

// lotOfShard names a lot that belongs to a shard.
func lotOfShard(shard, shards int) drop.LotID {
	for i := 0; ; i++ {
		if id := drop.LotID("lot-" + string(rune('a'+i%26)) + string(rune('a'+i/26))); id.Shard(shards) == shard {
			return id
		}
	}
}

// restarted returns two shards with a lot each, equal on both sides, behind doors that a restart has closed.
func restarted() *sides {
	s := &sides{redis: map[drop.LotID]drop.LotState{}, dead: map[int]bool{}}
	for shard := range 2 {
		l, r := equalSides(lotOfShard(shard, 2))
		r.Run, r.OpenRun = "new", "old"
		s.ledger, s.redis[l.Lot] = append(s.ledger, l), r
		s.doors = append(s.doors, drop.ShardState{Shard: shard, Exists: true, Installation: "here", Shards: 2, Run: "new", OpenRun: "old"})
	}
	return s
}

func (s *sides) answer(shard int) error {
	if s.dead[shard] {
		return fault.New(fault.Unavailable, "shard %d does not answer", shard)
	}
	return nil
}

func (s *sides) ShardState(_ context.Context, shard int) (drop.ShardState, error) {
	return s.doors[shard], s.answer(shard)
}

func (s *sides) OutboxState(_ context.Context, shard int) (drop.OutboxState, error) {
	return drop.OutboxState{Shard: shard}, s.answer(shard)
}

func (s *sides) LotsOf(_ context.Context, shards []int) (lots []drop.LotID, err error) {
	for _, shard := range shards {
		if err := s.answer(shard); err != nil {
			return nil, err
		}
		for id := range s.redis {
			if id.Shard(len(s.doors)) == shard {
				lots = append(lots, id)
			}
		}
	}
	return lots, nil
}

func (s *sides) LotStates(_ context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error) {
	states := map[drop.LotID]drop.LotState{}
	for _, id := range lots {
		if err := s.answer(id.Shard(len(s.doors))); err != nil {
			return nil, err
		}
		states[id] = s.redis[id]
	}
	return states, nil
}

func (s *sides) move(seen drop.ShardState, change func(*drop.ShardState)) error {
	if s.doors[seen.Shard] != seen {
		return fault.New(fault.Conflict, "the shard was changed")
	}
	change(&s.doors[seen.Shard])
	return s.answer(seen.Shard)
}

func (s *sides) Freeze(_ context.Context, seen drop.ShardState, reason fault.Code) error {
	return s.move(seen, func(st *drop.ShardState) { st.Frozen = string(reason) })
}

func (s *sides) Reopen(_ context.Context, seen drop.ShardState) error {
	return s.move(seen, func(st *drop.ShardState) { st.OpenRun, st.Frozen = st.Run, "" })
}

func (s *sides) Lots(context.Context) ([]drop.LedgerLot, error) { return s.ledger, nil }

// after lets a guardian look n times and returns what it did about each shard in the end, "" where nothing.
func (s *sides) after(t *testing.T, g *Guardian, n int) (last []Action, err error) {
	t.Helper()
	g.Stock, g.Ledger, g.Installation, g.Shards = s, s, "here", len(s.doors)
	for range n {
		var findings []Finding
		findings, err = g.Pass(t.Context())
		last = make([]Action, len(s.doors))
		for _, f := range findings {
			last[f.Shard] = f.Action
		}
	}
	return last, err
}

func TestADeadShardKeepsNoOtherShut(t *testing.T) {
	s := restarted()
	s.dead[0] = true
	last, err := s.after(t, &Guardian{}, 2)
	if !fault.Is(err, fault.Unavailable) || !slices.Equal(last, []Action{"", Reopened}) {
		t.Errorf("%q, %v", last, err)
	}
}

func TestAForeignShardIsFatalAlsoBesideADeadOne(t *testing.T) {
	s := restarted()
	s.dead[0], s.doors[1].Installation = true, "there"
	if last, err := s.after(t, &Guardian{}, 2); !fault.Is(err, fault.Foreign) || s.doors[1].Run == s.doors[1].OpenRun {
		t.Errorf("%q, %v", last, err)
	}
}

// A server takes over between the look at the door and the look at the lots: nothing was compared then.
func TestLotsOfAnotherServerProveNothing(t *testing.T) {
	s := restarted()
	lot := s.ledger[1].Lot
	newer := s.redis[lot]
	newer.Run, newer.Seq = "newest", newer.Seq-1
	s.redis[lot] = newer
	g := &Guardian{}
	if last, err := s.after(t, g, 3); err != nil || !slices.Equal(last, []Action{"", Settling}) || s.doors[1].Frozen != "" {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[1].Frozen)
	}
	s.doors[1].Run = "newest"
	if last, err := s.after(t, g, 1); err != nil || last[1] != Frozen || s.doors[1].Frozen != string(fault.FreezeBehind) {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[1].Frozen)
	}
}

func TestADamagedLotKeepsItsShardShut(t *testing.T) {
	s := restarted()
	lot := s.ledger[0].Lot
	s.redis[lot] = drop.LotState{Definition: drop.Definition{Lot: lot}, Run: "new", Damaged: "a field is not a number"}
	last, err := s.after(t, &Guardian{}, 2)
	if err != nil || !slices.Equal(last, []Action{Frozen, Reopened}) || s.doors[0].Frozen != string(fault.FreezeDiffers) {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[0].Frozen)
	}
}

func TestAClockFreezeEndsWhenTheClockHasCaughtUp(t *testing.T) {
	s := restarted()
	lot := s.ledger[0].Lot
	s.doors[0].OpenRun, s.doors[0].Frozen = "new", string(fault.FreezeClock)
	state := s.redis[lot]
	state.Now = time.UnixMilli(1_790_000_000_000)
	state.Mark = state.Now.Add(time.Millisecond)
	s.redis[lot] = state
	g := &Guardian{}
	if last, err := s.after(t, g, 3); err != nil || last[0] != Waiting || s.doors[0].Frozen != string(fault.FreezeClock) {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[0].Frozen)
	}
	state.Now = state.Mark
	s.redis[lot] = state
	if last, err := s.after(t, g, 2); err != nil || last[0] != Reopened {
		t.Errorf("%q, %v", last, err)
	}
	// A lot that differs stays shut, whatever the clock says.
	s.doors[0].Frozen = string(fault.FreezeClock)
	state.Held, state.Available = state.Held-1, state.Available+1
	s.redis[lot] = state
	if last, err := s.after(t, g, 2); err != nil || last[0] != Frozen || s.doors[0].Frozen != string(fault.FreezeDiffers) {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[0].Frozen)
	}
}

func TestAnOperatorsFreezeIsLeft(t *testing.T) {
	s := restarted()
	s.doors[0].Frozen = string(fault.FreezeOperator)
	if last, err := s.after(t, &Guardian{}, 3); err != nil || last[0] != Left || s.doors[0].Frozen != string(fault.FreezeOperator) {
		t.Errorf("%q, %v", last, err)
	}
}

// Redis is emptied before the ledger has heard of the lot, and the lot's first event comes in afterwards.
func TestALossIsSeenAsSoonAsTheLedgerKnowsOfIt(t *testing.T) {
	s := restarted()
	s.doors[0], s.doors[1] = drop.ShardState{Shard: 0, Run: "new"}, drop.ShardState{Shard: 1, Run: "new"}
	clear(s.redis)
	for i := range s.ledger {
		s.ledger[i].Seen = false
	}
	g := &Guardian{}
	if last, err := s.after(t, g, 2); err != nil || !slices.Equal(last, []Action{"", ""}) {
		t.Errorf("%q, %v", last, err)
	}
	s.ledger[1].Seen = true
	if last, err := s.after(t, g, 1); err != nil || !slices.Equal(last, []Action{"", Frozen}) {
		t.Errorf("%q, %v", last, err)
	}
}
