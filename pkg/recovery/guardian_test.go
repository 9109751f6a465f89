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
	doors    []drop.ShardState
	redis    map[drop.LotID]drop.LotState
	ledger   []drop.LedgerLot
	dead     map[int]bool
	pending  int64
	rebuilds []drop.LotID
	refusal  error      // of every rebuild
	moving   drop.LotID // its slot moves and it has gone ahead: a scan does not show it, and whoever names it is sent away
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
	return drop.OutboxState{Shard: shard, Pending: s.pending}, s.answer(shard)
}

func (s *sides) LotsOf(_ context.Context, shards []int) (lots []drop.LotID, err error) {
	for _, shard := range shards {
		if err := s.answer(shard); err != nil {
			return nil, err
		}
		for id := range s.redis {
			if id.Shard(len(s.doors)) == shard && id != s.moving {
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
		if id == s.moving {
			return nil, fault.New(fault.Unavailable, "TRYAGAIN")
		}
		if r, present := s.redis[id]; present {
			states[id] = r
		}
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
	return s.move(seen, func(st *drop.ShardState) { st.OpenRun, st.Frozen, st.Opened = st.Run, "", st.Opening() })
}

func (s *sides) Lots(context.Context) ([]drop.LedgerLot, error) { return slices.Clone(s.ledger), nil }

func (s *sides) StoppedLots(context.Context) (stopped []drop.StoppedLot, err error) {
	for _, l := range s.ledger {
		if l.Stopped != "" {
			stopped = append(stopped, drop.StoppedLot{Lot: l.Lot, Code: l.Stopped})
		}
	}
	return stopped, nil
}

func (s *sides) lot(id drop.LotID) *drop.LedgerLot {
	i := slices.IndexFunc(s.ledger, func(l drop.LedgerLot) bool { return l.Lot == id })
	return &s.ledger[i]
}

func (s *sides) NextEpoch(_ context.Context, seen drop.LedgerLot, _, _ string) (int64, error) {
	l := s.lot(seen.Lot)
	if l.Watermark != seen.Watermark || l.OpenEpoch != seen.OpenEpoch || l.Archive != drop.NotArchived {
		return 0, fault.New(fault.Conflict, "the lot went on")
	}
	l.OpenEpoch++
	return l.OpenEpoch, nil
}

func (s *sides) Renew(_ context.Context, seen drop.LotState, epoch int64, _, _ string) error {
	if s.redis[seen.Lot] != seen {
		return fault.New(fault.Conflict, "the lot was changed")
	}
	s.load(seen.Lot, epoch)
	r := s.redis[seen.Lot]
	r.LotFrozen = seen.LotFrozen
	s.redis[seen.Lot] = r
	return nil
}

// load is a lot's load as Redis and, at once, the ledger have it.
func (s *sides) load(id drop.LotID, epoch int64) {
	l := s.lot(id)
	l.OpenEpoch, l.Watermark = epoch, drop.Watermark{Epoch: epoch, Seq: l.Seq + 1}
	r := s.redis[id]
	r.Definition, r.Totals, r.Watermark, r.LotFrozen = l.Definition, l.Totals(), l.Watermark, ""
	r.Run = s.doors[id.Shard(len(s.doors))].Run
	s.redis[id] = r
}

func (s *sides) rebuild(_ context.Context, id drop.LotID, _, _ string) error {
	s.rebuilds = append(s.rebuilds, id)
	if s.refusal != nil {
		return s.refusal
	}
	if door := &s.doors[id.Shard(len(s.doors))]; !door.Exists {
		*door = drop.ShardState{Shard: door.Shard, Exists: true, Installation: "here", Shards: len(s.doors), Run: door.Run, OpenRun: door.Run}
	}
	s.load(id, s.lot(id).OpenEpoch+1)
	return nil
}

func (s *sides) moveLot(seen drop.LotState, reason string) error {
	r, present := s.redis[seen.Lot]
	if !present || r != seen {
		return fault.New(fault.Conflict, "the lot was changed")
	}
	r.LotFrozen = reason
	s.redis[seen.Lot] = r
	return nil
}

func (s *sides) FreezeLot(_ context.Context, seen drop.LotState, reason fault.Code) error {
	return s.moveLot(seen, string(reason))
}

func (s *sides) ThawLot(_ context.Context, seen drop.LotState, _ fault.Code) error {
	return s.moveLot(seen, "")
}

// after lets a guardian look n times and returns what it did in the end: the last finding about each shard, "" where
// there is none.
func (s *sides) after(t *testing.T, g *Guardian, n int) (last []Action, err error) {
	t.Helper()
	g.Stock, g.Ledger, g.Rebuild, g.Installation, g.Shards = s, s, s.rebuild, "here", len(s.doors)
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

// A shard that is not ours is left alone beside one that is, or may be, and is judged anew once it is ours again.
func TestAForeignShardIsLeftAlone(t *testing.T) {
	s := restarted()
	g := &Guardian{}
	s.doors[1].Installation = "there"
	seen := s.doors[1]
	if last, err := s.after(t, g, 2); err != nil || !slices.Equal(last, []Action{Reopened, Frozen}) || s.doors[1] != seen {
		t.Errorf("%q, %v, and then %+v", last, err, s.doors[1])
	}
	s.dead[0] = true
	if last, err := s.after(t, &Guardian{}, 2); !fault.Is(err, fault.Unavailable) || !slices.Equal(last, []Action{"", Frozen}) || s.doors[1] != seen {
		t.Errorf("beside one that is silent: %q, %v", last, err)
	}
	s.dead[0], s.doors[1].Installation = false, "here"
	if last, err := s.after(t, g, 2); err != nil || !slices.Equal(last, []Action{"", Reopened}) {
		t.Errorf("ours again: %q, %v", last, err)
	}
}

func TestARedisWithoutAShardOfOursIsAnError(t *testing.T) {
	s := restarted()
	s.doors[0].Exists, s.doors[1].Installation = false, "there"
	seen := slices.Clone(s.doors)
	if last, err := s.after(t, &Guardian{}, 2); !fault.Is(err, fault.Foreign) || !slices.Equal(s.doors, seen) {
		t.Errorf("%q, %v", last, err)
	}
}

func TestAShardIsFrozenBeforeItIsJudged(t *testing.T) {
	s := restarted()
	s.pending = 1
	last, err := s.after(t, &Guardian{}, 3)
	if err != nil || !slices.Equal(last, []Action{Draining, Draining}) || s.doors[0].Frozen != string(fault.FreezeClosedDoor) {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[0].Frozen)
	}
	s.pending = 0
	if last, err := s.after(t, &Guardian{}, 1); err != nil || !slices.Equal(last, []Action{Settling, Settling}) {
		t.Errorf("%q, %v", last, err)
	}
}

// What somebody still brings of the server before is of an epoch that is closed.
func TestEveryLotOfAReopenedShardHasANewEpoch(t *testing.T) {
	s := restarted()
	if last, err := s.after(t, &Guardian{}, 2); err != nil || !slices.Equal(last, []Action{Reopened, Reopened}) {
		t.Fatalf("%q, %v", last, err)
	}
	for _, l := range s.ledger {
		if r := s.redis[l.Lot]; l.OpenEpoch != 3 || r.Epoch != 3 {
			t.Errorf("%s: open epoch %d, in Redis %d", l.Lot, l.OpenEpoch, r.Epoch)
		}
	}
	if len(s.rebuilds) > 0 {
		t.Errorf("rebuilt though equal: %v", s.rebuilds)
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
	if last, err := s.after(t, g, 4); err != nil || last[1] != Settling || len(s.rebuilds) > 0 {
		t.Errorf("%q, %v, rebuilt %v", last, err, s.rebuilds)
	}
	s.doors[1].Run = "newest"
	if last, err := s.after(t, g, 2); err != nil || last[1] != Reopened || !slices.Equal(s.rebuilds, []drop.LotID{lot}) {
		t.Errorf("%q, %v, rebuilt %v", last, err, s.rebuilds)
	}
}

// One lot of a shard must not sell; the others wait for nobody.
func TestALotThatNeedsSomebodyIsFrozenAlone(t *testing.T) {
	tests := map[string]struct {
		change func(l *drop.LedgerLot, r *drop.LotState)
		want   fault.Code
	}{
		"ahead":   {func(_ *drop.LedgerLot, r *drop.LotState) { r.Seq++ }, fault.FreezeAhead},
		"stopped": {func(l *drop.LedgerLot, _ *drop.LotState) { l.Stopped = fault.StopFork }, fault.StopFork},
		"damaged": {func(_ *drop.LedgerLot, r *drop.LotState) { r.Damaged = "a field is not a number" }, fault.FreezeDiffers},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := restarted()
			lot := s.ledger[0].Lot
			r := s.redis[lot]
			tt.change(&s.ledger[0], &r)
			s.redis[lot] = r
			g := &Guardian{}
			if _, err := s.after(t, g, 2); err != nil || s.doors[0].Frozen != "" || s.doors[0].OpenRun != "new" || s.redis[lot].LotFrozen != string(tt.want) {
				t.Errorf("%v; shard frozen for %q, lot for %q", err, s.doors[0].Frozen, s.redis[lot].LotFrozen)
			}
			// It is said as long as it lasts.
			if last, err := s.after(t, g, 1); err != nil || !slices.Equal(last, []Action{Frozen, ""}) || len(s.rebuilds) > 0 {
				t.Errorf("%q, %v, rebuilt %v", last, err, s.rebuilds)
			}
		})
	}
}

// Another guardian reopens the shard between this one's looks at the two sides: Redis has the load of the new epoch, the
// ledger not yet.
func TestALotThatWasJustReopenedIsNotFrozen(t *testing.T) {
	s := restarted()
	g := &Guardian{}
	lot := s.ledger[0].Lot
	before := s.ledger[0]
	s.load(lot, before.OpenEpoch+1)
	s.ledger[0].Watermark = before.Watermark
	if last, err := s.after(t, g, 1); err != nil || last[0] != Settling || s.redis[lot].LotFrozen != "" {
		t.Errorf("%q, %v, lot frozen for %q", last, err, s.redis[lot].LotFrozen)
	}
	s.doors[0].OpenRun, s.ledger[0].Watermark = "new", s.redis[lot].Watermark
	if last, err := s.after(t, g, 3); err != nil || last[0] == Frozen || s.redis[lot].LotFrozen != "" {
		t.Errorf("%q, %v, lot frozen for %q", last, err, s.redis[lot].LotFrozen)
	}
}

func TestALotThatStopsWhileItsShardSellsIsFrozen(t *testing.T) {
	s := restarted()
	g := &Guardian{}
	if last, err := s.after(t, g, 3); err != nil || !slices.Equal(last, []Action{"", ""}) {
		t.Fatalf("%q, %v", last, err)
	}
	s.ledger[1].Stopped = fault.StopOverCapacity
	if last, err := s.after(t, g, 1); err != nil || !slices.Equal(last, []Action{"", Frozen}) || s.redis[s.ledger[1].Lot].LotFrozen != string(fault.StopOverCapacity) {
		t.Errorf("%q, %v", last, err)
	}
	// Somebody rebuilds it; the guardian finds nothing to do.
	s.ledger[1].Stopped = ""
	if last, err := s.after(t, g, 3); err != nil || last[1] == Frozen || s.redis[s.ledger[1].Lot].LotFrozen != "" {
		t.Errorf("%q, %v", last, err)
	}
}

// A lot that equals the ledger again in a shard that sells begins a new epoch: events of a lost server may still come.
func TestALotIsThawedUnderANewEpoch(t *testing.T) {
	s := restarted()
	g := &Guardian{}
	if _, err := s.after(t, g, 3); err != nil {
		t.Fatal(err)
	}
	lot := s.ledger[0].Lot
	r := s.redis[lot]
	r.LotFrozen = string(fault.FreezeAhead)
	s.redis[lot] = r
	last, err := s.after(t, &Guardian{}, 2)
	if now := s.redis[lot]; err != nil || last[0] != Thawed || now.LotFrozen != "" || now.Epoch != r.Epoch+1 || now.Seq != r.Seq+1 || s.ledger[0].OpenEpoch != now.Epoch {
		t.Errorf("%q, %v: was %+v, is %+v", last, err, r, now)
	}
}

// A server whose history only begins anew, as when a replica attaches, goes on selling.
func TestANewHistoryUnderTheSameRunIsOnlyCompared(t *testing.T) {
	s := restarted()
	g := &Guardian{}
	if _, err := s.after(t, g, 3); err != nil {
		t.Fatal(err)
	}
	epoch := s.redis[s.ledger[0].Lot].Epoch
	s.doors[0].Replication, s.doors[1].Replication = "another", "another"
	if last, err := s.after(t, g, 2); err != nil || !slices.Equal(last, []Action{"", ""}) || s.redis[s.ledger[0].Lot].Epoch != epoch {
		t.Errorf("%q, %v", last, err)
	}
}

// A server that was made a replica and a primary again has the same run id and perhaps older data.
func TestLostWritesUnderTheSameRunAreFound(t *testing.T) {
	s := restarted()
	g := &Guardian{}
	if _, err := s.after(t, g, 3); err != nil {
		t.Fatal(err)
	}
	lot := s.ledger[0].Lot
	r := s.redis[lot]
	r.Seq--
	s.redis[lot] = r
	if last, err := s.after(t, g, 1); err != nil || last[0] != "" {
		t.Errorf("without a sign: %q, %v", last, err)
	}
	s.doors[0].Replication = "another"
	if last, err := s.after(t, g, 1); err != nil || last[0] != Settling || s.doors[0].Frozen != string(fault.FreezeBehind) {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[0].Frozen)
	}
	if last, err := s.after(t, g, 2); err != nil || last[0] != Reopened || !slices.Equal(s.rebuilds, []drop.LotID{lot}) {
		t.Errorf("%q, %v, rebuilt %v", last, err, s.rebuilds)
	}
}

// A clock was ahead for a while. Once it is right, only the lot that was changed meanwhile has to wait.
func TestALotThatWasChangedInTheFutureWaitsAlone(t *testing.T) {
	s := restarted()
	lot := s.ledger[0].Lot
	s.doors[0].OpenRun, s.doors[0].Frozen, s.doors[0].Now = "new", string(fault.FreezeClock), time.Now().Add(time.Hour)
	state := s.redis[lot]
	state.Now = time.Now()
	state.Mark = state.Now.Add(time.Hour)
	s.redis[lot] = state
	g := &Guardian{}
	if last, err := s.after(t, g, 3); err != nil || last[0] != Waiting || s.doors[0].Frozen != string(fault.FreezeClock) {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[0].Frozen)
	}
	s.doors[0].Now = time.Now()
	if last, err := s.after(t, g, 3); err != nil || last[0] != Frozen || s.doors[0].Frozen != "" || s.redis[lot].LotFrozen != string(fault.FreezeClock) {
		t.Errorf("%q, %v, shard frozen for %q, lot for %q", last, err, s.doors[0].Frozen, s.redis[lot].LotFrozen)
	}
	state = s.redis[lot]
	state.Now = state.Mark
	s.redis[lot] = state
	g = &Guardian{} // another one: it looks at once
	if _, err := s.after(t, g, 2); err != nil || s.redis[lot].LotFrozen != "" {
		t.Errorf("%v, lot frozen for %q", err, s.redis[lot].LotFrozen)
	}
}

func TestAClockThatJumpsFreezesItsShard(t *testing.T) {
	s := restarted()
	for i := range s.doors {
		s.doors[i].Now = time.Now()
	}
	g := &Guardian{}
	if last, err := s.after(t, g, 3); err != nil || !slices.Equal(last, []Action{"", ""}) {
		t.Fatalf("%q, %v", last, err)
	}
	s.doors[0].Now = time.Now().Add(time.Hour)
	if last, err := s.after(t, g, 3); err != nil || !slices.Equal(last, []Action{Waiting, ""}) || s.doors[0].Frozen != string(fault.FreezeClock) {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[0].Frozen)
	}
	s.doors[0].Now = time.Now()
	if last, err := s.after(t, g, 2); err != nil || last[0] != Reopened || s.doors[0].Frozen != "" {
		t.Errorf("%q, %v, frozen for %q", last, err, s.doors[0].Frozen)
	}
}

// Whoever restores a lot by hand opens its shard too, but not under a clock that would end holds early, or never.
func TestAShardIsNotReopenedByHandUnderAWrongClock(t *testing.T) {
	for off, want := range map[time.Duration]Action{time.Hour: Waiting, -time.Hour: Waiting, 0: Reopened} {
		s := restarted()
		door := &s.doors[0]
		door.OpenRun, door.Frozen, door.Now = door.Run, string(fault.FreezeClock), time.Now().Add(off)
		g := &Guardian{Stock: s, Ledger: s, Installation: "here", Shards: 2}
		found, err := g.Reopen(t.Context(), []int{0}, 0, nil)
		if err != nil || len(found) != 1 || found[0].Action != want || (door.Frozen == "") != (want == Reopened) {
			t.Errorf("off by %v: %+v, %v, frozen for %q", off, found, err, door.Frozen)
		}
	}
}

func TestAnOperatorsFreezeIsLeft(t *testing.T) {
	s := restarted()
	s.doors[0].Frozen = string(fault.FreezeOperator)
	if last, err := s.after(t, &Guardian{}, 3); err != nil || last[0] != Left || s.doors[0].Frozen != string(fault.FreezeOperator) {
		t.Errorf("%q, %v", last, err)
	}
}

// An empty server may be the wrong one: a guardian that never saw our data there leaves it empty.
func TestAnEmptiedRedisIsFilledOnlyIfItIsKnownToBeOurs(t *testing.T) {
	for name, knew := range map[string]bool{"known": true, "unknown": false} {
		t.Run(name, func(t *testing.T) {
			s, g := restarted(), &Guardian{}
			if knew {
				if _, err := s.after(t, g, 3); err != nil {
					t.Fatal(err)
				}
			}
			s.doors[0], s.doors[1] = drop.ShardState{Shard: 0, Run: "new"}, drop.ShardState{Shard: 1, Run: "new"}
			clear(s.redis)
			want, rebuilds := []Action{Frozen, Frozen}, 0
			if knew {
				want, rebuilds = []Action{Restored, Restored}, 2
			}
			if last, err := s.after(t, g, 2); err != nil || !slices.Equal(last, want) || len(s.rebuilds) != rebuilds {
				t.Errorf("%q, %v, rebuilt %v", last, err, s.rebuilds)
			}
		})
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

// A rebuild that cannot succeed does not keep the other lots of its shard shut, and is not tried every second.
func TestARebuildThatFailsForGoodIsLeftToSomebody(t *testing.T) {
	s := restarted()
	lot := s.ledger[0].Lot
	r := s.redis[lot]
	r.Seq--
	s.redis[lot] = r
	s.refusal = fault.New(fault.Broken, "the reservations do not add up")
	g := &Guardian{}
	if last, err := s.after(t, g, 5); err != nil || last[0] != Frozen || s.doors[0].Frozen != "" || s.redis[lot].LotFrozen != string(fault.FreezeBehind) || len(s.rebuilds) != 1 {
		t.Errorf("%q, %v, shard frozen for %q, lot for %q, tried %d times", last, err, s.doors[0].Frozen, s.redis[lot].LotFrozen, len(s.rebuilds))
	}
}

func TestARebuildThatMeetsTroubleIsTriedAgain(t *testing.T) {
	s := restarted()
	lot := s.ledger[0].Lot
	delete(s.redis, lot)
	s.refusal = fault.New(fault.Unavailable, "PostgreSQL is away")
	g := &Guardian{}
	if last, err := s.after(t, g, 2); !fault.Is(err, fault.Unavailable) || last[0] != Rebuilding || s.doors[0].OpenRun != "old" {
		t.Errorf("%q, %v", last, err)
	}
	s.refusal = nil
	if last, err := s.after(t, g, 2); err != nil || last[0] != Reopened || s.redis[lot].Epoch != 3 {
		t.Errorf("%q, %v", last, err)
	}
}

// An archive that broke off leaves a lot that the ledger neither rebuilds nor renews. It keeps no other lot of its shard
// shut, and sells only as the ledger has it: a server with older data shows it as it was before it was closed.
func TestALotThatIsBeingPutAwayIsNeverSoldFromOlderData(t *testing.T) {
	tests := map[string]struct {
		change func(r *drop.LotState)
		frozen fault.Code
	}{
		"equal":           {func(*drop.LotState) {}, ""},
		"an old snapshot": {func(r *drop.LotState) { r.Seq, r.Sold, r.Available = r.Seq-3, 0, 8 }, fault.FreezeBehind},
		"a unit appeared": {func(r *drop.LotState) { r.Available++ }, fault.FreezeDiffers},
		"ahead":           {func(r *drop.LotState) { r.Seq++ }, fault.FreezeAhead},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := restarted()
			lot := s.ledger[0].Lot
			s.ledger[0].Archive = drop.ArchiveBegun
			r := s.redis[lot]
			tt.change(&r)
			s.redis[lot] = r
			if _, err := s.after(t, &Guardian{}, 2); err != nil || s.doors[0].OpenRun != "new" || s.doors[0].Frozen != "" {
				t.Errorf("the shard is open on %q, frozen for %q, %v", s.doors[0].OpenRun, s.doors[0].Frozen, err)
			}
			if r := s.redis[lot]; r.LotFrozen != string(tt.frozen) || r.Epoch != 2 || s.ledger[0].OpenEpoch != 2 || len(s.rebuilds) > 0 {
				t.Errorf("the lot is frozen for %q at epoch %d of %d, rebuilt %v; want %q", r.LotFrozen, r.Epoch, s.ledger[0].OpenEpoch, s.rebuilds, tt.frozen)
			}
		})
	}
}

// Older data may bring an archived lot back, which the ledger does not list; so does a lot look that is just being seeded.
func TestALotThatTheLedgerDoesNotKnowSellsOnlyUntilTheNextLook(t *testing.T) {
	s := restarted()
	g := &Guardian{}
	if last, err := s.after(t, g, 3); err != nil || !slices.Equal(last, []Action{"", ""}) {
		t.Fatalf("%q, %v", last, err)
	}
	known := s.ledger[0]
	look := func(want Action, frozen fault.Code) {
		t.Helper()
		s.doors[0].Replication += "'" // or every lot is looked at now and then
		r := s.redis[known.Lot]
		r.Seq++ // it sells
		s.redis[known.Lot] = r
		last, err := s.after(t, g, 1)
		if got := s.redis[known.Lot].LotFrozen; err != nil || last[0] != want || got != string(frozen) {
			t.Errorf("%q, %v, frozen for %q; want %q and %q", last, err, got, want, frozen)
		}
	}
	s.ledger = s.ledger[1:]
	look(Settling, "")
	s.ledger = append([]drop.LedgerLot{known}, s.ledger...)
	look("", "")
	s.ledger = s.ledger[1:]
	look(Settling, "")
	look(Frozen, fault.FreezeAhead)
	look(Frozen, fault.FreezeAhead) // as long as it lasts
}

func TestALotThatWasTakenOutForItsArchiveIsLeftAlone(t *testing.T) {
	s := restarted()
	lot := s.ledger[0].Lot
	s.ledger[0].Archive = drop.ArchiveBegun
	delete(s.redis, lot)
	if last, err := s.after(t, &Guardian{}, 2); err != nil || last[0] != Reopened || len(s.rebuilds) > 0 {
		t.Errorf("%q, %v, rebuilt %v", last, err, s.rebuilds)
	}
}

func TestAMovingSlotIsNotTakenForALoss(t *testing.T) {
	s := restarted()
	s.moving = s.ledger[0].Lot
	g := &Guardian{}
	if last, err := s.after(t, g, 4); !fault.Is(err, fault.Unavailable) || !slices.Equal(last, []Action{"", ""}) || s.doors[0].OpenRun != "old" || len(s.rebuilds) > 0 {
		t.Errorf("%q, %v, rebuilt %v", last, err, s.rebuilds)
	}
	s.moving = ""
	if last, err := s.after(t, g, 2); err != nil || last[0] != Reopened || len(s.rebuilds) > 0 {
		t.Errorf("%q, %v, rebuilt %v", last, err, s.rebuilds)
	}
}

// Two guardians, one of which stands still in the middle and goes on with what it saw long ago.
func TestAGuardianThatStoodStillChangesNothing(t *testing.T) {
	s := restarted()
	slow, fast := &Guardian{}, &Guardian{}
	if last, err := s.after(t, slow, 1); err != nil || last[0] != Settling {
		t.Fatalf("%q, %v", last, err)
	}
	if last, err := s.after(t, fast, 2); err != nil || last[0] != Reopened {
		t.Fatalf("%q, %v", last, err)
	}
	before := slices.Clone(s.ledger)
	if last, err := s.after(t, slow, 3); err != nil || !slices.Equal(last, []Action{"", ""}) || !slices.Equal(s.ledger, before) {
		t.Errorf("%q, %v: %+v", last, err, s.ledger)
	}
}
