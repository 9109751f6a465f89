package torture

import (
	"math/rand/v2"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
)

// act is what a caller does in one step.
type act string

const (
	take       act = "reserve"
	again      act = "repeat" // an earlier reservation's request once more, under its key
	swap       act = "replace"
	buy        act = "confirm"
	buyPart    act = "confirm part"
	buyLate    act = "confirm late"
	giveBack   act = "release"
	givePart   act = "release part"
	longer     act = "extend"
	refund     act = "refund"
	race       act = "confirm or release" // both at the same moment
	stray      act = "settle again"       // what has ended already: it has to be refused, or to be the same again
	adjustment act = "adjust"
	pauseLot   act = "pause"
	openLot    act = "open"
)

// weights say how often each act is drawn.
var weights = []struct {
	act    act
	weight int
}{
	{take, 34}, {again, 8}, {swap, 4}, {buy, 13}, {buyPart, 4}, {buyLate, 5}, {giveBack, 5}, {givePart, 3}, {longer, 4},
	{refund, 10}, {race, 3}, {stray, 4}, {adjustment, 2}, {pauseLot, 1}, {openLot, 4},
}

// step is everything that a caller decides at one step. What it is about may depend on answers (which reservation, of
// those it has), the decision does not.
type step struct {
	act     act
	lot     int
	user    int    // of the few that the caller acts for at a time
	pick    uint64 // which reservation
	qty     int64
	hold    time.Duration // 0: the lot's own
	part    int64         // units, of the whole by modulo
	keep    bool          // refund: the units do not come back
	twice   bool          // sent twice at once
	patient bool          // repeats a call without a clear answer until it has one
	pause   time.Duration // before the step
}

// decide draws a step. It depends on seed, caller and number alone, so that a run can be repeated with the same decisions.
func decide(seed uint64, caller, number int) step {
	rng := rand.New(rand.NewPCG(seed, uint64(caller+1)<<40|uint64(number)))
	s := step{lot: rng.IntN(len(lots)), user: rng.IntN(3), pick: rng.Uint64(), qty: 1 + rng.Int64N(3), part: 1 + rng.Int64N(4),
		keep: rng.IntN(10) == 0, twice: rng.IntN(12) == 0, patient: rng.IntN(5) > 0, pause: time.Duration(rng.Int64N(int64(40 * time.Millisecond)))}
	if rng.IntN(3) == 0 {
		s.hold = time.Second + time.Duration(rng.IntN(1000))*time.Millisecond
	}
	total := 0
	for _, w := range weights {
		total += w.weight
	}
	x := rng.IntN(total)
	for _, w := range weights {
		if x -= w.weight; x < 0 {
			s.act = w.act
			break
		}
	}
	return s
}

// trouble is a fault that is drawn, and what comes after it.
type trouble struct {
	fault lab.Fault
	after time.Duration // that passes before the next one
	calm  bool          // the next one waits until every lot sells again
}

// disturb draws fault after fault, from seed and number alone.
func disturb(seed uint64, number int) trouble {
	rng := rand.New(rand.NewPCG(seed, uint64(number)+1<<63))
	ms := func(least, most int) time.Duration {
		return time.Duration(least+rng.IntN(most-least)) * time.Millisecond
	}
	t := trouble{after: ms(200, 2000), calm: rng.IntN(4) > 0}
	f := &t.fault
	switch x := rng.IntN(100); {
	case x < 28:
		*f = lab.Fault{Act: lab.KillAct, Target: lab.RedisTarget}
	case x < 44:
		*f = lab.Fault{Act: lab.KillAct, Target: lab.WorkerTarget}
	case x < 56:
		*f = lab.Fault{Act: lab.PauseAct, Target: lab.RedisTarget, For: ms(100, 3000)}
	case x < 62:
		*f = lab.Fault{Act: lab.PauseAct, Target: lab.WorkerTarget, For: ms(500, 4000)}
	case x < 69:
		*f = lab.Fault{Act: lab.PauseAct, Target: lab.PostgresTarget, For: ms(500, 4000)}
	case x < 77:
		*f = lab.Fault{Act: lab.RestartAct, Target: lab.PostgresTarget}
	case x < 81:
		*f = lab.Fault{Act: lab.KillAct, Target: lab.PostgresTarget}
	case x < 85:
		*f = lab.Fault{Act: lab.RestartAct, Target: lab.RedisTarget}
	case x < 92:
		*f = lab.Fault{Act: lab.DropAct, Target: lab.RedisTarget, Share: float64(1+rng.IntN(20)) / 100, For: ms(500, 3000)}
	case x < 95:
		*f = lab.Fault{Act: lab.DropAct, Target: lab.PostgresTarget, Share: float64(1+rng.IntN(10)) / 100, For: ms(500, 3000)}
	case x < 97:
		*f = lab.Fault{Act: lab.DelayAct, Target: lab.RedisTarget, Delay: ms(1, 30), For: ms(500, 3000)}
	default:
		*f = lab.Fault{Act: lab.FlushAct, Target: lab.RedisTarget}
	}
	return t
}

// lots are what callers fight for: few units and many, short holds, limits, both policies for who comes late, and two
// lots that share a shard.
var lots = []drop.Definition{
	{Lot: "hall:seats", Stock: 120, Hold: 2 * time.Second, MaxHold: 6 * time.Second, Late: drop.Reclaim},
	{Lot: "hall:boxes", Stock: 5, Hold: time.Second, MaxHold: 3 * time.Second, Late: drop.Refuse},
	{Lot: "truffle", Stock: 40, Limit: 3, Hold: 3 * time.Second, MaxHold: 10 * time.Second, Late: drop.Refuse},
	{Lot: "poster", Stock: 5000, Hold: 5 * time.Second, MaxHold: 20 * time.Second, Late: drop.Reclaim},
	{Lot: "last-one", Stock: 1, Hold: time.Second, MaxHold: 3 * time.Second, Late: drop.Reclaim},
	{Lot: "wine", Stock: 300, Limit: 6, Hold: 2 * time.Second, MaxHold: 8 * time.Second, Late: drop.Refuse},
}

// Lots are the lots that must be on sale before Run. The caller owns the slice.
func Lots() []drop.Definition {
	list := make([]drop.Definition, len(lots))
	for i, l := range lots {
		list[i] = l.WithDefaults()
	}
	return list
}
