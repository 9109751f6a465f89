package recovery

import (
	"slices"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// equalSides returns a lot that both stores agree on: 10 units, 2 held, 3 sold, at epoch 2, seq 40.
func equalSides(id drop.LotID) (drop.LedgerLot, drop.LotState) {
	d := drop.Definition{Lot: id, Stock: 10}.WithDefaults()
	w := drop.Watermark{Epoch: 2, Seq: 40}
	l := drop.LedgerLot{Definition: d, Held: 2, Sold: 3, Watermark: w, OpenEpoch: 2, Seen: true}
	r := drop.LotState{Definition: d, Totals: drop.Totals{Capacity: 10, Available: 5, Held: 2, Sold: 3}, Watermark: w, Run: "a", OpenRun: "a"}
	return l, r
}

func TestWhatADoorMeans(t *testing.T) {
	const here, shards = "here", 16
	open := drop.ShardState{Exists: true, Installation: here, Shards: shards, Run: "a", OpenRun: "a", Replication: "r1"}
	tests := map[string]struct {
		change func(st *drop.ShardState)
		jumped time.Duration
		want   door
		freeze fault.Code
	}{
		"the server it was opened on":      {func(*drop.ShardState) {}, 0, doorOpen, ""},
		"another replication history":      {func(st *drop.ShardState) { st.Replication = "r2" }, 0, doorOpen, ""},
		"another run":                      {func(st *drop.ShardState) { st.Run = "b" }, 0, doorShut, fault.FreezeClosedDoor},
		"another run, frozen for it":       {func(st *drop.ShardState) { st.Run, st.Frozen = "b", "closed_door" }, 0, doorShut, ""},
		"back on the run, frozen for it":   {func(st *drop.ShardState) { st.Frozen = "closed_door" }, 0, doorShut, ""},
		"its clock jumped on":              {func(*drop.ShardState) {}, time.Hour, doorShut, fault.FreezeClock},
		"its clock ran back":               {func(*drop.ShardState) {}, -time.Minute, doorShut, fault.FreezeClock},
		"another run with another clock":   {func(st *drop.ShardState) { st.Run = "b" }, time.Minute, doorShut, fault.FreezeClock},
		"a jump while frozen for less":     {func(st *drop.ShardState) { st.Frozen = "redis_behind" }, time.Minute, doorShut, fault.FreezeClock},
		"frozen for its clock":             {func(st *drop.ShardState) { st.Frozen = "clock" }, 0, doorShut, ""},
		"frozen for its clock, still off":  {func(st *drop.ShardState) { st.Frozen = "clock" }, time.Hour, doorShut, ""},
		"frozen by an operator":            {func(st *drop.ShardState) { st.Frozen = "operator" }, 0, doorLeft, ""},
		"an operator's, on another run":    {func(st *drop.ShardState) { st.Run, st.Frozen = "b", "operator" }, 0, doorLeft, ""},
		"an operator's, and a jump":        {func(st *drop.ShardState) { st.Frozen = "operator" }, time.Hour, doorLeft, ""},
		"emptied":                          {func(st *drop.ShardState) { *st = drop.ShardState{Run: "a"} }, 0, doorGone, ""},
		"emptied, by another server":       {func(st *drop.ShardState) { *st = drop.ShardState{Run: "b"} }, time.Hour, doorGone, ""},
		"another installation's":           {func(st *drop.ShardState) { st.Installation = "there" }, 0, doorForeign, ""},
		"cut into another number of parts": {func(st *drop.ShardState) { st.Shards = 8 }, 0, doorForeign, ""},
		"another's, frozen, another run":   {func(st *drop.ShardState) { st.Installation, st.Run, st.Frozen = "there", "b", "operator" }, 0, doorForeign, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			st := open
			tt.change(&st)
			if got, freeze := judgeDoor(st, here, shards, tt.jumped); got != tt.want || freeze != tt.freeze {
				t.Errorf("%s, to be frozen for %q; want %s, %q", got, freeze, tt.want, tt.freeze)
			}
		})
	}
}

func TestWhatBecomesOfALot(t *testing.T) {
	type change func(l *drop.LedgerLot, r *drop.LotState)
	tests := map[string]struct {
		change change
		want   verdict
	}{
		"equal":                         {func(*drop.LedgerLot, *drop.LotState) {}, verdict{}},
		"redis has a later seq":         {func(_ *drop.LedgerLot, r *drop.LotState) { r.Seq++ }, verdict{cureByHand, fault.FreezeAhead}},
		"redis has a later epoch":       {func(_ *drop.LedgerLot, r *drop.LotState) { r.Epoch++; r.Seq = 1 }, verdict{cureByHand, fault.FreezeAhead}},
		"redis lost its last change":    {func(_ *drop.LedgerLot, r *drop.LotState) { r.Seq--; r.Held--; r.Available++ }, verdict{cureRebuild, fault.FreezeBehind}},
		"an old snapshot":               {func(_ *drop.LedgerLot, r *drop.LotState) { r.Watermark = drop.Watermark{Epoch: 1, Seq: 3} }, verdict{cureRebuild, fault.FreezeBehind}},
		"old epoch, later seq":          {func(_ *drop.LedgerLot, r *drop.LotState) { r.Epoch--; r.Seq += 5 }, verdict{cureRebuild, fault.FreezeBehind}},
		"an epoch was issued meanwhile": {func(l *drop.LedgerLot, _ *drop.LotState) { l.OpenEpoch++ }, verdict{cureRebuild, fault.FreezeBehind}},
		"one unit moved":                {func(_ *drop.LedgerLot, r *drop.LotState) { r.Held--; r.Available++ }, verdict{cureRebuild, fault.FreezeDiffers}},
		"a unit sold less":              {func(_ *drop.LedgerLot, r *drop.LotState) { r.Sold--; r.Held++ }, verdict{cureRebuild, fault.FreezeDiffers}},
		"a unit appeared":               {func(_ *drop.LedgerLot, r *drop.LotState) { r.Available++ }, verdict{cureRebuild, fault.FreezeDiffers}},
		"another capacity":              {func(_ *drop.LedgerLot, r *drop.LotState) { r.Stock++; r.Capacity++; r.Available++ }, verdict{cureRebuild, fault.FreezeDiffers}},
		"another status":                {func(_ *drop.LedgerLot, r *drop.LotState) { r.Status = drop.Paused }, verdict{cureRebuild, fault.FreezeDiffers}},
		"its shard lost its door":       {func(_ *drop.LedgerLot, r *drop.LotState) { r.OpenRun = "" }, verdict{cureRebuild, fault.FreezeEmptied}},
		"ahead, without a door":         {func(_ *drop.LedgerLot, r *drop.LotState) { r.OpenRun = ""; r.Seq++ }, verdict{cureByHand, fault.FreezeAhead}},
		"damaged":                       {func(_ *drop.LedgerLot, r *drop.LotState) { r.Damaged = "a field cannot be read" }, verdict{cureByHand, fault.FreezeDiffers}},
		"stopped, though equal":         {func(l *drop.LedgerLot, _ *drop.LotState) { l.Stopped = fault.StopFork }, verdict{cureByHand, fault.StopFork}},
		"stopped, redis behind":         {func(l *drop.LedgerLot, r *drop.LotState) { l.Stopped = fault.StopFork; r.Seq-- }, verdict{cureByHand, fault.StopFork}},
		"stopped, redis ahead": {func(l *drop.LedgerLot, r *drop.LotState) { l.Stopped = fault.StopUnfoldable; r.Seq++ },
			verdict{cureByHand, fault.StopUnfoldable}},
		"its load was never recorded": {func(l *drop.LedgerLot, r *drop.LotState) { l.Seen, l.Watermark, r.Seq = false, drop.Watermark{}, 1 }, verdict{cureByHand, fault.FreezeAhead}},
		"frozen for having been ahead": {func(_ *drop.LedgerLot, r *drop.LotState) { r.LotFrozen = string(fault.FreezeAhead) },
			verdict{cureThaw, fault.FreezeAhead}},
		"frozen, and still ahead":   {func(_ *drop.LedgerLot, r *drop.LotState) { r.LotFrozen = string(fault.FreezeAhead); r.Seq++ }, verdict{cureByHand, fault.FreezeAhead}},
		"frozen for a stop, healed": {func(_ *drop.LedgerLot, r *drop.LotState) { r.LotFrozen = string(fault.StopFork) }, verdict{cureThaw, fault.StopFork}},
		"a rebuild was broken off": {func(_ *drop.LedgerLot, r *drop.LotState) { r.LotFrozen = string(fault.FreezeRestoring) },
			verdict{cureRebuild, fault.FreezeRestoring}},
		"changed in the future":     {func(_ *drop.LedgerLot, r *drop.LotState) { r.Mark = r.Now.Add(time.Hour) }, verdict{cureByHand, fault.FreezeClock}},
		"changed a little later":    {func(_ *drop.LedgerLot, r *drop.LotState) { r.Mark = r.Now.Add(time.Second) }, verdict{}},
		"frozen for that, now past": {func(_ *drop.LedgerLot, r *drop.LotState) { r.LotFrozen = string(fault.FreezeClock) }, verdict{cureThaw, fault.FreezeClock}},
		"frozen by an operator":     {func(_ *drop.LedgerLot, r *drop.LotState) { r.LotFrozen = string(fault.FreezeOperator) }, verdict{cureByHand, fault.FreezeOperator}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, r := equalSides("truffle")
			tt.change(&l, &r)
			b := bothSides{shards: 1, ledger: map[drop.LotID]drop.LedgerLot{"truffle": l}, redis: map[drop.LotID]drop.LotState{"truffle": r}}
			if got := b.judge("truffle"); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			// While the shard sells, a lot that sells itself proves one thing only: that it is behind.
			sells := r.LotFrozen == "" && r.Damaged == "" && l.Stopped == ""
			got, lost := b.judgeOpen("truffle")
			if wantLost := sells && tt.want.reason == fault.FreezeBehind; lost != wantLost || sells && got != (verdict{}) || !sells && got != tt.want {
				t.Errorf("in a shard that sells: %+v, lost %t", got, lost)
			}
		})
	}
}

func TestLotsThatOnlyOneSideHas(t *testing.T) {
	l, r := equalSides("truffle")
	b := bothSides{shards: 1, ledger: map[drop.LotID]drop.LedgerLot{"truffle": l}}
	if got := b.judge("truffle"); got != (verdict{cureRebuild, fault.FreezeEmptied}) {
		t.Errorf("without Redis: %+v", got)
	}
	l.Stopped = fault.StopGhost
	b.ledger["truffle"] = l
	if got := b.judge("truffle"); got != (verdict{cureByHand, fault.StopGhost}) {
		t.Errorf("stopped, without Redis: %+v", got)
	}
	b = bothSides{shards: 1, redis: map[drop.LotID]drop.LotState{"truffle": r}}
	if got := b.judge("truffle"); got != (verdict{cureByHand, fault.FreezeAhead}) {
		t.Errorf("without the ledger: %+v", got)
	}
	// A lot that was created and never loaded is nobody's loss.
	l.Seen = false
	b = bothSides{shards: 1, ledger: map[drop.LotID]drop.LedgerLot{"truffle": l}}
	if lots := b.of(0); len(lots) != 0 {
		t.Errorf("a lot that was never loaded counts: %v", lots)
	}
}

func TestLotsOfOtherShardsDoNotCount(t *testing.T) {
	l, _ := equalSides("truffle")
	b := bothSides{shards: 16, ledger: map[drop.LotID]drop.LedgerLot{"truffle": l}}
	for shard := range 16 {
		if got := b.of(shard); (len(got) == 1) != (shard == l.Lot.Shard(16)) {
			t.Errorf("shard %d: %v", shard, got)
		}
	}
}

func TestTheGravestReasonNamesTheShard(t *testing.T) {
	b := bothSides{shards: 1, ledger: map[drop.LotID]drop.LedgerLot{}, redis: map[drop.LotID]drop.LotState{}}
	expect := func(want fault.Code, evidence ...drop.LotID) {
		t.Helper()
		if reason, lots := b.gravest(0); reason != want || !slices.Equal(lots, evidence) {
			t.Errorf("%q because of %v, want %q because of %v", reason, lots, want, evidence)
		}
	}
	add := func(id drop.LotID, seq int64) {
		l, r := equalSides(id)
		r.Seq += seq
		b.ledger[id], b.redis[id] = l, r
	}
	add("a-equal", 0)
	expect("")
	add("b-lost", 0)
	delete(b.redis, "b-lost")
	expect(fault.FreezeEmptied, "b-lost")
	add("c-behind", -1)
	expect(fault.FreezeBehind, "c-behind")
	add("d-ahead", 1)
	expect(fault.FreezeAhead, "d-ahead")
	l := b.ledger["b-lost"]
	l.Stopped = fault.StopUnfoldable
	b.ledger["b-lost"] = l
	expect(fault.StopUnfoldable, "b-lost")
}

func TestAClockAgainstAMonotonicOne(t *testing.T) {
	base := time.Unix(1_790_000_000, 0)
	// A look that began `from` and ended `to` after base by our clock, and read `server` after base.
	look := func(from, to, server time.Duration) reading {
		return reading{from: base.Add(from), to: base.Add(to), server: base.Add(server)}
	}
	first := look(0, 0, 0)
	tests := map[string]struct {
		before, now reading
		jumps       bool
		right       bool // as judged afterwards
	}{
		"it goes on":                       {first, look(time.Second, time.Second, time.Second), false, true},
		"it drifts":                        {first, look(time.Minute, time.Minute, 61*time.Second), false, true},
		"a slow answer proves nothing":     {first, look(time.Second, 20*time.Second, 19*time.Second), false, true},
		"a slow first one neither":         {look(0, 20*time.Second, 0), look(21*time.Second, 21*time.Second, 2*time.Second), false, true},
		"it jumps on":                      {first, look(time.Second, time.Second, time.Hour), true, false},
		"it runs back":                     {first, look(time.Minute, time.Minute, 55*time.Second), true, true}, // by our clock it is right
		"far back":                         {first, look(time.Minute, time.Minute, -time.Hour), true, false},
		"it was off, and is corrected":     {look(0, 0, -time.Hour), look(time.Second, time.Second, time.Second), true, true},
		"it was off for ever, and goes on": {look(0, 0, -time.Hour), look(time.Second, time.Second, time.Second-time.Hour), false, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.now.jump(tt.before); (got != 0) != tt.jumps {
				t.Errorf("jumped by %v", got)
			}
			if got := tt.now.right(tt.before); got != tt.right {
				t.Errorf("right: %t", got)
			}
		})
	}
	if look(0, 0, time.Hour).right(reading{}) || !look(0, 0, time.Second).right(reading{}) {
		t.Error("a first look is judged by our clock")
	}
}
