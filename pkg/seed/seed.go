// Package seed reads lots from files and flags, compares them with what is there, and creates or changes
// what differs. It may be run again at any time: what is done stays done, what a crash left half done is
// finished, and stock that Redis lost is never made anew.
package seed

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Reason is the reason that every event of a seed carries. By it a later seed tells its own changes of a
// capacity from an operator's.
const Reason = "seed"

// Stock is what seeding needs of Redis.
type Stock interface {
	Shards() int // P
	// ShardState looks at the door of a shard.
	ShardState(ctx context.Context, shard int) (drop.ShardState, error)
	// LotStates returns a snapshot of each lot; a lot that Redis has not is absent.
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	// EventsSince returns the outbox events of one shard's lots behind each watermark, in order, as far as still kept.
	EventsSince(ctx context.Context, shard int, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error)
	// HasRoom returns fault.OutOfMemory if the server that a lot belongs to takes nothing new.
	HasRoom(ctx context.Context, lot drop.LotID) error
	// Load puts a lot into Redis that Redis has not; fault.Conflict if it has one by now.
	Load(ctx context.Context, r LoadRequest) error
	// Adjust sets a lot's capacity; fault.Conflict unless it is as expected and the new one holds what is held and sold.
	Adjust(ctx context.Context, r AdjustRequest) (drop.LotState, error)
	// Change sets fields of a lot's definition.
	Change(ctx context.Context, r ChangeRequest) (drop.LotState, error)
}

// LoadRequest asks for a new lot with nothing held and nothing sold.
type LoadRequest struct {
	Definition drop.Definition
	Epoch      int64          // issued by the ledger for this load
	Closing    drop.Watermark // at which the ledger closed the epoch before
	Actor      string
	Reason     string
}

// AdjustRequest asks for another capacity.
type AdjustRequest struct {
	Lot    drop.LotID
	To     int64 // units
	Expect int64 // the capacity as it was planned on
	Actor  string
	Reason string
}

// ChangeRequest asks for the named fields of the definition. Stock is never among them.
type ChangeRequest struct {
	Definition drop.Definition // holds the new values
	Fields     []string
	Actor      string
	Reason     string
}

// Ledger is what seeding needs of PostgreSQL.
type Ledger interface {
	// Lots returns these lots; one the ledger does not know is absent.
	Lots(ctx context.Context, lots []drop.LotID) ([]Lot, error)
	// LockLots keeps other seeds and restores of these lots out until unlock is called.
	LockLots(ctx context.Context, lots []drop.LotID) (unlock func(), err error)
	// CreateLot makes the ledger know a lot and what was seeded of it. If it does, the definition replaces the one it has as long as
	// no event of the lot was seen.
	CreateLot(ctx context.Context, d drop.Definition, actor string) (created bool, err error)
	// IssueEpoch issues a lot's first epoch, the same one at every call, but fault.Conflict if the ledger has seen
	// any event of the lot.
	IssueEpoch(ctx context.Context, lot drop.LotID, actor, reason string) (epoch int64, closing drop.Watermark, err error)
	// AgreeStocks remembers the stock that this seed names for lots which the ledger knows.
	AgreeStocks(ctx context.Context, stocks map[drop.LotID]int64) error
	// Record applies events. One that the ledger has already changes nothing.
	Record(ctx context.Context, events []drop.Event) error
}

// Lot is a lot as the ledger has folded it.
type Lot struct {
	drop.LedgerLot
	AdjustActor  string // who changed the capacity last
	AdjustReason string // and why; "" if nobody did since the lot was created
	Seeded       *int64 // the stock that the last seed named; nil: not known
}

// Options say how to seed.
type Options struct {
	Installation string // the ledger's; Redis must not hold another one's data
	Actor        string
	Overwrite    bool // set the stock also where somebody else changed it since the last seed
	DryRun       bool // plan only
	ExitCode     bool // with DryRun: fault.WouldChange if something would change
}

const (
	chunkSize   = 500 // lots planned and locked together: bounds locks, memory and what an interruption leaves undone
	parallelism = 8   // lots or shards in work at the same time
)

// Run plans every row and, unless it is a dry run, carries the plan out. It returns one item for each row,
// in their order, and the error that says how the whole went: nil if all is as the rows say, else the
// common code of what failed, or fault.Partial if some rows are done and some are not. Without any item
// nothing was attempted.
func Run(ctx context.Context, rows []Row, stock Stock, ledger Ledger, o Options) ([]Item, error) {
	s := &seeder{stock: stock, ledger: ledger, o: o, doors: make([]drop.ShardState, stock.Shards())}
	if err := s.lookAtDoors(ctx); err != nil {
		return nil, err
	}
	var items []Item
	for chunk := range slices.Chunk(rows, chunkSize) {
		done, err := s.chunk(ctx, chunk)
		if err != nil {
			if len(items) == 0 {
				return nil, err
			}
			for _, row := range rows[len(items):] {
				items = append(items, skipped(row, err))
			}
			break
		}
		items = append(items, done...)
	}
	return items, summary(ctx, items, o)
}

// seeder carries what one run needs everywhere.
type seeder struct {
	stock  Stock
	ledger Ledger
	o      Options
	doors  []drop.ShardState // of each shard, as the run began
}

// lookAtDoors looks at every shard, also those without a lot to seed: a shard nobody has used yet must not
// take the lots of one installation while its neighbours hold another's.
func (s *seeder) lookAtDoors(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelism)
	for n := range s.doors {
		g.Go(func() (err error) {
			s.doors[n], err = s.stock.ShardState(ctx, n)
			if err == nil && s.doors[n].Exists && s.doors[n].Installation != s.o.Installation {
				return fault.New(fault.Foreign, "Redis holds data of installation %s, the ledger is of %s", s.doors[n].Installation, s.o.Installation)
			}
			return err
		})
	}
	return g.Wait()
}

// chunk plans and applies some rows under their locks. An error means that none of them was attempted.
func (s *seeder) chunk(ctx context.Context, rows []Row) ([]Item, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lots := make([]drop.LotID, len(rows))
	for i, row := range rows {
		lots[i] = row.Definition.Lot
	}
	if !s.o.DryRun {
		unlock, err := s.ledger.LockLots(ctx, slices.Sorted(slices.Values(lots)))
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	steps, err := s.plan(ctx, rows, lots)
	if err != nil {
		return nil, err
	}
	if !s.o.DryRun {
		if err := s.findRoom(ctx, steps); err != nil {
			return nil, err
		}
		if err := s.agree(ctx, steps); err != nil {
			return nil, err
		}
		s.apply(ctx, steps)
	}
	items := make([]Item, len(steps))
	for i, st := range steps {
		items[i] = st.item()
	}
	return items, nil
}

// findRoom stops the new lots of a shard whose server is out of memory, before anything of them is created: Redis would
// take such a small lot, but no hold of it.
func (s *seeder) findRoom(ctx context.Context, steps []*step) error {
	asked := map[int]error{}
	for _, st := range steps {
		if st.err != nil || st.action != Create && st.action != Load {
			continue
		}
		shard := st.target.Lot.Shard(s.stock.Shards())
		err, done := asked[shard]
		if !done {
			err = s.stock.HasRoom(ctx, st.target.Lot)
			asked[shard] = err
		}
		switch {
		case fault.Is(err, fault.OutOfMemory):
			st.stop(Blocked, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// agree remembers the stocks that this seed names, also those that are so already: from now on only a change behind
// this seed counts as made by somebody else. It comes before the changes, so that a crash between them leaves no stock
// of a seed that looks like an operator's.
func (s *seeder) agree(ctx context.Context, steps []*step) error {
	stocks := map[drop.LotID]int64{}
	for _, st := range steps {
		loaded := st.action == Unchanged || st.action == Change
		if st.err == nil && loaded && (st.seeded == nil || *st.seeded != st.target.Stock) {
			stocks[st.target.Lot] = st.target.Stock
		}
	}
	if len(stocks) == 0 {
		return nil
	}
	return s.ledger.AgreeStocks(ctx, stocks)
}

// apply carries out what was planned. Every failure stays with its step.
func (s *seeder) apply(ctx context.Context, steps []*step) {
	var g errgroup.Group
	g.SetLimit(parallelism)
	for _, st := range steps {
		if st.err != nil {
			continue
		}
		g.Go(func() error {
			st.err = s.applyOne(ctx, st)
			return nil
		})
	}
	_ = g.Wait() // no step returns an error
	s.record(ctx, steps)
}

func (s *seeder) applyOne(ctx context.Context, st *step) error {
	switch st.action {
	case Create, Load:
		return s.load(ctx, st)
	case Change:
		return s.change(ctx, st)
	}
	return nil
}

// load makes a new lot: first the ledger knows it, so that nothing can be sold that the ledger has not heard
// of, then it issues an epoch, then Redis gets the lot. A crash between these leaves a lot of which the
// ledger has seen no event; the next seed takes it up again.
func (s *seeder) load(ctx context.Context, st *step) error {
	id := st.target.Lot
	if _, err := s.ledger.CreateLot(ctx, st.target, s.o.Actor); err != nil {
		return err
	}
	epoch, closing, err := s.ledger.IssueEpoch(ctx, id, s.o.Actor, Reason)
	if fault.Is(err, fault.Conflict) {
		st.action = Lost
		return lost(id)
	}
	if err != nil {
		return err
	}
	st.loadedAfter = drop.Watermark{Epoch: epoch, Seq: closing.Seq}
	err = s.stock.Load(ctx, LoadRequest{Definition: st.target, Epoch: epoch, Closing: closing, Actor: s.o.Actor, Reason: Reason})
	if fault.Is(err, fault.Conflict) {
		err = s.loadedBefore(ctx, st, err)
	}
	if err != nil {
		return err
	}
	st.state.Capacity = st.target.Stock
	return nil
}

// loadedBefore returns nil if what Redis has in the place of the load is that very load, of a seed before this
// one that took it for lost, and else the conflict.
func (s *seeder) loadedBefore(ctx context.Context, st *step, conflict error) error {
	id := st.target.Lot
	states, err := s.stock.LotStates(ctx, []drop.LotID{id})
	if err != nil {
		return err
	}
	state, there := states[id]
	just := drop.Watermark{Epoch: st.loadedAfter.Epoch, Seq: st.loadedAfter.Seq + 1}
	if there && state.Damaged == "" && state.Watermark == just && state.Definition.Equal(st.target) {
		return nil
	}
	return fault.Wrap(fault.Conflict, conflict, "lot %s was put into Redis meanwhile", id).WithHint("seed again: what differs is then changed")
}

// change brings a loaded lot to the target. The stock is lowered before and raised after the other
// changes, so that no moment between the two sells more, or under laxer rules, than old and new allow.
func (s *seeder) change(ctx context.Context, st *step) error {
	capacity := st.state.Capacity
	if st.target.Stock < capacity {
		if err := s.adjust(ctx, st, capacity); err != nil {
			return err
		}
	}
	var fields []string
	for _, c := range st.changes {
		if c.Field != fieldStock.String() {
			fields = append(fields, c.Field)
		}
	}
	if len(fields) > 0 {
		state, err := s.stock.Change(ctx, ChangeRequest{Definition: st.target, Fields: fields, Actor: s.o.Actor, Reason: Reason})
		if err != nil {
			return err
		}
		st.state = state
	}
	if st.target.Stock > capacity {
		return s.adjust(ctx, st, capacity)
	}
	return nil
}

func (s *seeder) adjust(ctx context.Context, st *step, expect int64) error {
	id := st.target.Lot
	state, err := s.stock.Adjust(ctx, AdjustRequest{Lot: id, To: st.target.Stock, Expect: expect, Actor: s.o.Actor, Reason: Reason})
	if fault.Is(err, fault.Conflict) {
		return fault.Wrap(fault.Conflict, err, "the stock was not set").WithHint("look at the lot, then seed again: dropctl lot show %s", id)
	}
	if err == nil {
		st.state = state
	}
	return err
}

// record hands the `loaded` events of new lots to the ledger, without waiting for a worker. From then on
// the ledger has seen the lot: even if nothing else is ever recorded and Redis is emptied, no seed makes
// its stock anew.
func (s *seeder) record(ctx context.Context, steps []*step) {
	byShard := map[int][]*step{}
	for _, st := range steps {
		if st.err == nil && st.unseen {
			shard := st.target.Lot.Shard(len(s.doors))
			byShard[shard] = append(byShard[shard], st)
		}
	}
	var loaded []drop.Event
	var recorded []*step
	for shard, list := range byShard {
		from := map[drop.LotID]drop.Watermark{}
		for _, st := range list {
			from[st.target.Lot] = st.loadedAfter
		}
		events, err := s.stock.EventsSince(ctx, shard, from)
		if err != nil {
			fail(list, err)
			continue
		}
		recorded = append(recorded, list...)
		for _, st := range list {
			// None is left if a worker was faster and the outbox was trimmed behind it.
			if of := events[st.target.Lot]; len(of) > 0 && of[0].Kind == drop.KindLoaded {
				loaded = append(loaded, of[0])
			}
		}
	}
	if len(loaded) == 0 {
		return
	}
	if err := s.ledger.Record(ctx, loaded); err != nil {
		fail(recorded, err)
	}
}

func fail(steps []*step, err error) {
	for _, st := range steps {
		st.err = err
	}
}
