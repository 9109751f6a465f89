package seed

import (
	"context"
	"slices"
	"sync"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const installation = "here"

// shop is a Redis and a ledger in memory that keep the rules seeding relies on. Any call can be made to
// fail, before it acts or after, as when the reply is lost.
type shop struct {
	mu     sync.Mutex
	redis  map[drop.LotID]*drop.LotState
	outbox []drop.Event
	ledger map[drop.LotID]*Lot
	door   drop.ShardState
	loads  map[drop.LotID]int // how often stock was put on sale
	locked map[drop.LotID]bool

	calls   int
	failAt  int  // number of the call that fails; 0: none
	fromOn  bool // all calls from failAt on fail
	late    bool // the failing call acts first
	atFails func()
}

func newShop() *shop {
	return &shop{redis: map[drop.LotID]*drop.LotState{}, ledger: map[drop.LotID]*Lot{}, loads: map[drop.LotID]int{}, locked: map[drop.LotID]bool{},
		door: drop.ShardState{Run: "r1"}}
}

// call runs one call under the lock, failing where it is to fail.
func (s *shop) call(ctx context.Context, act func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	s.calls++
	fails := s.failAt > 0 && (s.calls == s.failAt || s.fromOn && s.calls > s.failAt)
	if fails && s.atFails != nil {
		s.atFails()
	}
	if fails && !s.late {
		return fault.New(fault.Unavailable, "the call failed before it acted")
	}
	if err := act(); err != nil {
		return err
	}
	if fails {
		return fault.New(fault.OutcomeUnknown, "the reply was lost")
	}
	return nil
}

func (s *shop) emit(st *drop.LotState, e drop.Event) {
	st.Seq++
	e.Installation, e.Lot, e.Epoch, e.Seq, e.Definition = installation, st.Lot, st.Epoch, st.Seq, st.Definition
	e.Definition.Stock = st.Capacity
	s.outbox = append(s.outbox, e)
}

// Redis.

type fakeStock struct{ *shop }

func (s fakeStock) Shards() int { return 4 }

func (s fakeStock) ShardState(ctx context.Context, shard int) (state drop.ShardState, err error) {
	err = s.call(ctx, func() error { state = s.door; state.Shard = shard; return nil })
	return state, err
}

func (s fakeStock) LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error) {
	out := map[drop.LotID]drop.LotState{}
	return out, s.call(ctx, func() error {
		for _, id := range lots {
			if st, ok := s.redis[id]; ok {
				out[id] = *st
			}
		}
		return nil
	})
}

func (s fakeStock) EventsSince(ctx context.Context, shard int, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error) {
	out := map[drop.LotID][]drop.Event{}
	return out, s.call(ctx, func() error {
		for _, e := range s.outbox {
			if w, ok := from[e.Lot]; ok && (e.Epoch > w.Epoch || e.Epoch == w.Epoch && e.Seq > w.Seq) {
				out[e.Lot] = append(out[e.Lot], e)
			}
		}
		return nil
	})
}

func (s fakeStock) HasRoom(ctx context.Context, _ drop.LotID) error {
	return s.call(ctx, func() error { return nil })
}

func (s fakeStock) Load(ctx context.Context, r LoadRequest) error {
	return s.call(ctx, func() error {
		id := r.Definition.Lot
		if s.redis[id] != nil {
			return fault.New(fault.Conflict, "lot %s is there", id)
		}
		if !s.door.Exists {
			s.door.Exists, s.door.OpenRun, s.door.Installation = true, s.door.Run, installation
		}
		st := &drop.LotState{Definition: r.Definition, Totals: drop.Totals{Capacity: r.Definition.Stock, Available: r.Definition.Stock},
			Watermark: drop.Watermark{Epoch: r.Epoch, Seq: r.Closing.Seq}, Run: s.door.Run, OpenRun: s.door.OpenRun}
		s.redis[id] = st
		s.loads[id]++
		s.emit(st, drop.Event{Kind: drop.KindLoaded, Actor: r.Actor, Reason: r.Reason, Closing: r.Closing})
		return nil
	})
}

func (s fakeStock) Adjust(ctx context.Context, r AdjustRequest) (state drop.LotState, err error) {
	err = s.call(ctx, func() error {
		st := s.redis[r.Lot]
		if st.Capacity != r.To {
			if st.Capacity != r.Expect || r.To < st.Held+st.Sold {
				return fault.New(fault.Conflict, "capacity %d", st.Capacity)
			}
			st.Available += r.To - st.Capacity
			st.Capacity, st.Stock = r.To, r.To
			s.emit(st, drop.Event{Kind: drop.KindAdjusted, Actor: r.Actor, Reason: r.Reason})
		}
		state = *st
		return nil
	})
	return state, err
}

func (s fakeStock) Change(ctx context.Context, r ChangeRequest) (state drop.LotState, err error) {
	err = s.call(ctx, func() error {
		st := s.redis[r.Definition.Lot]
		row := Row{Definition: r.Definition}
		for _, name := range r.Fields {
			f, _ := fieldOf(name)
			if f == fieldStock {
				panic("Change was asked to change the stock")
			}
			row.given[f] = true
		}
		st.Definition = row.over(st.Definition)
		s.emit(st, drop.Event{Kind: drop.KindChanged, Actor: r.Actor, Reason: r.Reason})
		state = *st
		return nil
	})
	return state, err
}

// The ledger.

type fakeLedger struct{ *shop }

func (l fakeLedger) Lots(ctx context.Context, lots []drop.LotID) (out []Lot, err error) {
	err = l.call(ctx, func() error {
		for _, id := range lots {
			if known := l.ledger[id]; known != nil {
				out = append(out, *known)
			}
		}
		return nil
	})
	return out, err
}

func (l fakeLedger) LockLots(ctx context.Context, lots []drop.LotID) (func(), error) {
	err := l.call(ctx, func() error {
		if !slices.IsSorted(lots) {
			panic("the lots to lock are not in order")
		}
		for _, id := range lots {
			if l.locked[id] {
				return fault.New(fault.Busy, "%s is locked", id)
			}
		}
		for _, id := range lots {
			l.locked[id] = true
		}
		return nil
	})
	if fault.Is(err, fault.OutcomeUnknown) { // a lost session loses its locks
		clear(l.locked)
	}
	return func() { l.mu.Lock(); defer l.mu.Unlock(); clear(l.locked) }, err
}

func (l fakeLedger) CreateLot(ctx context.Context, d drop.Definition, _ string) (created bool, err error) {
	err = l.call(ctx, func() error {
		known := l.ledger[d.Lot]
		if created = known == nil; created {
			l.ledger[d.Lot] = &Lot{LedgerLot: drop.LedgerLot{Definition: d}, Seeded: &d.Stock}
		} else if !known.Seen {
			known.Definition, known.Seeded = d, &d.Stock
		}
		return nil
	})
	return created, err
}

func (l fakeLedger) IssueEpoch(ctx context.Context, id drop.LotID, _, _ string) (epoch int64, closing drop.Watermark, err error) {
	err = l.call(ctx, func() error {
		known := l.ledger[id]
		if known.Seen {
			return fault.New(fault.Conflict, "%s was seen", id)
		}
		known.OpenEpoch = max(known.OpenEpoch, 1)
		epoch, closing = known.OpenEpoch, known.Watermark
		return nil
	})
	return epoch, closing, err
}

func (l fakeLedger) AgreeStocks(ctx context.Context, stocks map[drop.LotID]int64) error {
	return l.call(ctx, func() error {
		for id, stock := range stocks {
			l.ledger[id].Seeded = &stock
		}
		return nil
	})
}

func (l fakeLedger) Record(ctx context.Context, events []drop.Event) error {
	return l.call(ctx, func() error {
		for _, e := range events {
			known := l.ledger[e.Lot]
			if known.Seen = true; e.Seq != known.Seq+1 || e.Epoch != known.OpenEpoch {
				continue
			}
			known.Watermark, known.Definition = e.Watermark(), e.Definition
			if e.Kind == drop.KindAdjusted {
				known.AdjustActor, known.AdjustReason = e.Actor, e.Reason
			}
		}
		return nil
	})
}

// drain is a worker that catches up.
func (s *shop) drain() { _ = fakeLedger{s}.Record(context.Background(), slices.Clone(s.outbox)) }

// sell takes units, half of them held, half sold.
func (s *shop) sell(id drop.LotID, n int64) {
	st := s.redis[id]
	st.Available, st.Held, st.Sold = st.Available-n, st.Held+n/2, st.Sold+n-n/2
}

// operator changes a capacity by hand.
func (s *shop) operator(id drop.LotID, to int64) {
	_, err := fakeStock{s}.Adjust(context.Background(), AdjustRequest{Lot: id, To: to, Expect: s.redis[id].Capacity, Actor: "alice", Reason: "recount"})
	if err != nil {
		panic(err)
	}
}

func (s *shop) flush() {
	s.redis, s.outbox, s.door = map[drop.LotID]*drop.LotState{}, nil, drop.ShardState{Run: "r1"}
}
