package recovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// RebuildStock is what a rebuild needs of Redis.
type RebuildStock interface {
	Shards() int // P
	// LotStates returns a snapshot of each lot, damaged ones included; a lot that Redis has not is absent.
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	// EventsSince returns the outbox events of one shard's lots behind each watermark, in order, as far as still kept.
	EventsSince(ctx context.Context, shard int, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error)
	// NewestEvent returns the place of a lot's newest event that the outbox still has; zero if it has none. Asked for many
	// lots, it reads each shard's outbox once.
	NewestEvent(ctx context.Context, lot drop.LotID) (drop.Watermark, error)
	// EndedSince is how far back Redis remembers reservations that ended, in Redis time.
	EndedSince(ctx context.Context, lot drop.LotID) (time.Time, error)
	// FreezeLot acts only if the lot still has the epoch it was seen with, ThawLot only if it still is as it was seen, else
	// they return fault.Conflict. A lot frozen for another reason keeps that.
	FreezeLot(ctx context.Context, seen drop.LotState, reason fault.Code) error
	ThawLot(ctx context.Context, seen drop.LotState, reason fault.Code) error
	// PrepareRebuild makes sure that there is room to write beside the lot: fault.OutOfMemory if not.
	PrepareRebuild(ctx context.Context, lot drop.LotID) error
	// Rebuild makes the lot appear with all its records at once, and returns the run id of the server that has it;
	// fault.Conflict, and nothing is changed, if Redis is no longer as it was seen.
	Rebuild(ctx context.Context, r LoadRequest) (run string, err error)
}

// LoadRequest asks for a lot with all its records.
type LoadRequest struct {
	Lot     drop.LedgerLot // as it was closed: the definition and the totals
	Epoch   int64
	Closing drop.Watermark // at which the ledger closed the epoch before
	Seen    *drop.LotState // what Redis had; nil: nothing
	Mark    time.Time      // least time mark
	Actor   string
	Reason  string
	Records func(ctx context.Context, fn func([]drop.Record) error) error
	Users   func(ctx context.Context, fn func([]drop.UserCount) error) error
}

// RebuildLedger is what a rebuild needs of PostgreSQL.
type RebuildLedger interface {
	// LotsOf returns these lots, also archived ones; one that the ledger does not know is absent.
	LotsOf(ctx context.Context, lots []drop.LotID) ([]drop.LedgerLot, error)
	// LockLots keeps other seeds and rebuilds of these lots out until unlock is called.
	LockLots(ctx context.Context, lots []drop.LotID) (unlock func(), err error)
	// Record applies events. One that the ledger has already changes nothing.
	Record(ctx context.Context, events []drop.Event) error
	// PlanRebuild counts what a rebuild would load; fault.Broken if the reservations do not add up.
	PlanRebuild(ctx context.Context, lot drop.LotID, endedSince time.Time) (drop.RebuildPlan, error)
	// IssueEpoch closes the lot's open epoch and issues the next.
	IssueEpoch(ctx context.Context, lot drop.LotID, actor, reason string) (Issued, error)
	// EachRecord and EachUser hand over, in pages and from one moment, what the lot stood at when its epoch was issued. They
	// end with the error of fn, if that returns one.
	EachRecord(ctx context.Context, lot drop.LotID, epoch int64, endedSince time.Time, fn func([]drop.Record) error) error
	EachUser(ctx context.Context, lot drop.LotID, epoch int64, endedSince time.Time, fn func([]drop.UserCount) error) error
	// Repair writes down what is going to be done, lets act do it, and writes down how it ended.
	Repair(ctx context.Context, r drop.Repair, act func(ctx context.Context) (did bool, detail string, err error)) error
}

// Issued is an epoch that the ledger has issued for a load.
type Issued struct {
	Epoch   int64
	Closing drop.Watermark // at which the epoch before was closed
	Lot     drop.LedgerLot // as it was closed
	EventAt time.Time      // Redis time of the newest event folded
}

// Step says what a rebuild does, or would do, with a lot.
type Step string

// The steps.
const (
	StepNone    Step = "none"    // both sides are equal
	StepCompare Step = "compare" // Redis has events that the ledger has not yet: rebuilt if both differ once it has them
	StepRebuild Step = "rebuild"
	StepRefuse  Step = "refuse"
)

// RebuildPlan is what a rebuild of one lot would load, and whether it may.
type RebuildPlan struct {
	Lot    drop.LotID
	Step   Step
	Reason fault.Code       // of a rebuild: how the sides differ, or FreezeRestoring if one was broken off; "" if it is forced
	Err    error            // of a refusal
	Ledger drop.RebuildPlan // as the ledger stands
	Redis  *drop.LotState   // nil: Redis does not have it
}

// Selling reports whether carrying the plan out interrupts a sale.
func (p RebuildPlan) Selling() bool {
	return p.Step != StepNone && p.Step != StepRefuse && p.Redis != nil && (p.Redis.Damaged != "" || p.Redis.Sells())
}

// Rebuilt says what a rebuild has loaded.
type Rebuilt struct {
	Epoch   int64  // 0: nothing was loaded, since both sides were equal
	Run     string // run id of the server it was loaded on
	Records int64
	Users   int64
	Totals  drop.Totals
	Took    time.Duration
}

// Rebuilder puts lots back into Redis as the ledger has them: by hand with dropctl restore, or for the guardian. It is
// safe for concurrent use once its fields are set; two rebuilds of one lot take turns.
type Rebuilder struct {
	Stock    RebuildStock
	Ledger   RebuildLedger
	Patience time.Duration                           // how long the ledger may take to get the last events of a frozen lot; default 10s
	Progress func(lot drop.LotID, records, of int64) // told as records are loaded; may be nil
}

// Plan looks at a lot on both sides and changes nothing. With force a lot that is equal is rebuilt as well. An error means
// that a store did not answer; a lot that may not be rebuilt is in the plan.
func (r *Rebuilder) Plan(ctx context.Context, lot drop.LotID, force bool) (RebuildPlan, error) {
	plan := RebuildPlan{Lot: lot}
	known, seen, err := r.look(ctx, lot)
	if err != nil {
		return plan, err
	}
	plan.Redis = seen
	refusal := mayRebuild(lot, known)
	if refusal == nil {
		since, err := r.Stock.EndedSince(ctx, lot)
		if err != nil {
			return plan, err
		}
		plan.Ledger, refusal = r.Ledger.PlanRebuild(ctx, lot, since)
		if refusal != nil && !fault.Is(refusal, fault.Broken) {
			return plan, refusal
		}
	}
	switch {
	case refusal != nil:
		plan.Step, plan.Err = StepRefuse, refusal
	case ahead(*known, seen):
		plan.Step = StepCompare
	default:
		plan.Step, plan.Reason = StepRebuild, differs(*known, seen)
		if plan.Reason == "" && !force {
			plan.Step = StepNone
		}
	}
	return plan, nil
}

// look reads a lot from both sides, the ledger first: what Redis does not show yet, the ledger cannot either. Both are nil
// where there is no such lot.
func (r *Rebuilder) look(ctx context.Context, lot drop.LotID) (known *drop.LedgerLot, seen *drop.LotState, err error) {
	lots, err := r.Ledger.LotsOf(ctx, []drop.LotID{lot})
	if err != nil {
		return nil, nil, err
	}
	if len(lots) > 0 {
		known = &lots[0]
	}
	states, err := r.Stock.LotStates(ctx, []drop.LotID{lot})
	if state, there := states[lot]; there {
		seen = &state
	}
	return known, seen, err
}

// mayRebuild returns why a lot must not be rebuilt, or nil.
func mayRebuild(lot drop.LotID, l *drop.LedgerLot) error {
	switch {
	case l == nil:
		return fault.New(fault.NotFound, "the ledger does not know the lot %s", lot).WithHint("see the lots that it knows: dropctl lot list; create one: dropctl seed %s --stock N", lot)
	case l.Archive == drop.Archived:
		return fault.New(fault.Conflict, "the lot %s is archived: its sale is over for good", lot).WithHint("choose another name for a new sale; if Redis has it again: dropctl lot archive %s", lot)
	case !l.Seen:
		return fault.New(fault.Conflict, "the lot %s was never on sale: there is nothing to rebuild", lot).WithHint("dropctl seed %s --stock %d", lot, l.Stock)
	}
	return nil
}

// ahead reports whether Redis has events that the ledger may still fold. Those of a lot that is stopped, or whose epoch is
// closed, are never folded.
func ahead(l drop.LedgerLot, seen *drop.LotState) bool {
	at := l.Watermark
	at.Epoch = max(at.Epoch, l.OpenEpoch)
	return seen != nil && seen.Damaged == "" && l.Stopped == "" && after(seen.Watermark, at)
}

// differs returns how Redis differs from the ledger, of which it is not ahead; "" if it does not. A lot that is frozen is
// not what it should be either.
func differs(l drop.LedgerLot, seen *drop.LotState) fault.Code {
	both := bothSides{ledger: map[drop.LotID]drop.LedgerLot{l.Lot: l}, redis: map[drop.LotID]drop.LotState{}}
	if seen != nil {
		both.redis[l.Lot] = *seen
	}
	reason, _ := both.compareLot(l.Lot)
	if reason == "" {
		return fault.Code(seen.LotFrozen)
	}
	return reason
}

// Rebuild makes a lot in Redis what the ledger has recorded, under a new epoch; one that sells and is equal, perhaps once the
// ledger has got its last events, stays as it is. The lot is frozen meanwhile and sells again afterwards, if its shard's door
// stands open. A worker, or Record, then tells the ledger of the load. It may be broken off anywhere and run again: until the lot appears anew it stays frozen, or absent, and
// whoever rebuilds it next begins anew.
// Errors: fault.Conflict while Redis has events that the ledger cannot get, and for a lot that is archived or was never on
// sale; fault.NotFound; fault.Broken; fault.Busy while somebody else works on it.
func (r *Rebuilder) Rebuild(ctx context.Context, lot drop.LotID, actor, reason string) (Rebuilt, error) {
	return r.rebuild(ctx, order{lot: lot, actor: actor, reason: reason})
}

// RebuildAnyway is Rebuild also for a lot that is equal: its records may differ where its totals do not.
func (r *Rebuilder) RebuildAnyway(ctx context.Context, lot drop.LotID, actor, reason string) (Rebuilt, error) {
	return r.rebuild(ctx, order{lot: lot, actor: actor, reason: reason, anyway: true})
}

// order is one lot to be rebuilt.
type order struct {
	lot           drop.LotID
	actor, reason string
	anyway        bool // also if it is equal
	frozen        bool // it was, before the rebuild began
}

func (r *Rebuilder) rebuild(ctx context.Context, o order) (done Rebuilt, err error) {
	began := time.Now()
	unlock, err := r.Ledger.LockLots(ctx, []drop.LotID{o.lot})
	if err != nil {
		return done, err
	}
	defer unlock()
	known, seen, err := r.look(ctx, o.lot)
	if err == nil {
		err = mayRebuild(o.lot, known)
	}
	if err != nil {
		return done, err
	}
	if !o.anyway && !ahead(*known, seen) && differs(*known, seen) == "" {
		return Rebuilt{Totals: known.Totals(), Took: time.Since(began)}, nil
	}
	o.frozen = seen != nil && seen.LotFrozen != ""
	if _, err := r.Stock.NewestEvent(ctx, o.lot); err != nil { // a long outbox is read while the lot still sells
		return done, err
	}
	repair := drop.Repair{Lot: o.lot, What: "rebuild", Actor: o.actor, Reason: o.reason, Evidence: evidenceOf(*known, seen)}
	err = r.Ledger.Repair(ctx, repair, func(ctx context.Context) (bool, string, error) {
		done, err = r.carryOut(ctx, o, known, seen)
		if err != nil || done.Epoch == 0 {
			return false, "both sides were equal once the ledger had the newest events", err
		}
		return true, fmt.Sprintf("epoch %d with %d records", done.Epoch, done.Records), nil
	})
	done.Took = time.Since(began)
	return done, err
}

// evidence is what a rebuild was begun on, for the account that is kept of it.
type evidence struct {
	Run      string          `json:"run"`
	Redis    *drop.Watermark `json:"redis"` // null: it has no such lot, or a damaged one
	Totals   *drop.Totals    `json:"redis_totals"`
	Damaged  string          `json:"damaged,omitempty"`
	Frozen   string          `json:"frozen,omitempty"`
	Ledger   drop.Watermark  `json:"ledger"`
	Stopped  fault.Code      `json:"stopped,omitempty"`
	Recorded drop.Totals     `json:"ledger_totals"`
}

func evidenceOf(l drop.LedgerLot, seen *drop.LotState) evidence {
	e := evidence{Ledger: l.Watermark, Stopped: l.Stopped, Recorded: l.Totals()}
	if seen != nil {
		e.Run, e.Damaged, e.Frozen = seen.Run, seen.Damaged, seen.Frozen
		if seen.Damaged == "" {
			e.Redis, e.Totals = &seen.Watermark, &seen.Totals
		}
	}
	return e
}

// carryOut freezes the lot, brings the ledger up to it, and loads it anew unless it turns out to be equal. What was frozen
// before may be on another server since: it sells again under a new epoch, or not.
func (r *Rebuilder) carryOut(ctx context.Context, o order, known *drop.LedgerLot, seen *drop.LotState) (Rebuilt, error) {
	known, seen, plan, err := r.settle(ctx, o.lot, known, seen)
	if err != nil {
		r.giveUp(ctx, o, known, seen)
		return Rebuilt{}, err
	}
	if !o.anyway && !o.frozen && differs(*known, thawed(seen)) == "" {
		return Rebuilt{Totals: known.Totals()}, r.Stock.ThawLot(ctx, *seen, fault.FreezeRestoring)
	}
	// Once the epoch is issued there is no way back to what Redis has: a server that cannot be written to is found before.
	if err := r.Stock.PrepareRebuild(ctx, o.lot); err != nil {
		r.giveUp(ctx, o, known, seen)
		return Rebuilt{}, err
	}
	issued, err := r.Ledger.IssueEpoch(ctx, o.lot, o.actor, o.reason)
	if err != nil {
		if fault.Is(err, fault.Conflict) {
			r.giveUp(ctx, o, known, seen)
		}
		return Rebuilt{}, err // the epoch may have been issued: the lot must not sell under the one before
	}
	done, err := r.load(ctx, LoadRequest{Lot: issued.Lot, Epoch: issued.Epoch, Closing: issued.Closing, Seen: seen, Mark: issued.EventAt, Actor: o.actor, Reason: o.reason}, plan)
	if err != nil {
		err = fault.Wrap(fault.CodeOf(err), err, "the rebuild of the lot %s broke off", o.lot).WithHint("run it again: dropctl restore %s", o.lot)
	}
	return done, err
}

// load stages the lot's records and makes it appear.
func (r *Rebuilder) load(ctx context.Context, q LoadRequest, plan drop.RebuildPlan) (Rebuilt, error) {
	lot := q.Lot.Lot
	done := Rebuilt{Epoch: q.Epoch, Totals: q.Lot.Totals()}
	since, err := r.Stock.EndedSince(ctx, lot)
	if err != nil {
		return done, err
	}
	q.Records = func(ctx context.Context, fn func([]drop.Record) error) error {
		return r.Ledger.EachRecord(ctx, lot, q.Epoch, since, func(page []drop.Record) error {
			done.Records += int64(len(page))
			if r.Progress != nil {
				r.Progress(lot, done.Records, plan.Records())
			}
			return fn(page)
		})
	}
	q.Users = func(ctx context.Context, fn func([]drop.UserCount) error) error {
		err := r.Ledger.EachUser(ctx, lot, q.Epoch, since, func(page []drop.UserCount) error {
			done.Users += int64(len(page))
			return fn(page)
		})
		if err == nil { // all is staged, and the load comes next
			err = r.stillOurs(ctx, q)
		}
		return err
	}
	const tries = 3
	for try := 1; ; try++ {
		done.Records, done.Users = 0, 0
		done.Run, err = r.Stock.Rebuild(ctx, q)
		if err == nil || !fault.Is(err, fault.Conflict) || try == tries || r.stillOurs(ctx, q) != nil {
			return done, err
		}
		// Who worked on the lot before us, and lost its lock without knowing it, may have loaded it under the epoch that
		// ours has closed. What it sold since nobody records: it must stop at once.
		var known *drop.LedgerLot
		if known, q.Seen, err = r.look(ctx, lot); err == nil {
			_, q.Seen, err = r.freeze(ctx, lot, known, q.Seen)
		}
		if err != nil {
			return done, err
		}
	}
}

// stillOurs returns fault.Conflict if a later epoch was issued: a lock ends with its connection, and another rebuild may
// have begun since. What it loads counts, ours would sell what nobody records.
func (r *Rebuilder) stillOurs(ctx context.Context, q LoadRequest) error {
	known, err := r.Ledger.LotsOf(ctx, []drop.LotID{q.Lot.Lot})
	if err == nil && (len(known) == 0 || known[0].OpenEpoch != q.Epoch) {
		err = fault.New(fault.Conflict, "another rebuild of the lot %s has begun since the epoch %d was issued", q.Lot.Lot, q.Epoch)
	}
	return err
}

// settle freezes the lot as it was seen, if it is there, waits until the ledger has every event of it, and checks that it can
// be rebuilt. Also after an error it returns what is known of both sides, for whoever gives up.
func (r *Rebuilder) settle(ctx context.Context, lot drop.LotID, l *drop.LedgerLot, s *drop.LotState) (known *drop.LedgerLot, seen *drop.LotState, plan drop.RebuildPlan, err error) {
	if known, seen, err = r.freeze(ctx, lot, l, s); err != nil {
		return known, seen, plan, err
	}
	patience := r.Patience
	if patience == 0 {
		patience = 10 * time.Second
	}
	for deadline := time.Now().Add(patience); ; {
		recorded, err := r.record(ctx, []drop.LedgerLot{*known})
		if err == nil && (recorded || ahead(*known, seen)) { // by us, or perhaps by a worker
			known, seen, err = r.look(ctx, lot)
		}
		if err != nil {
			return known, seen, plan, err
		}
		if !ahead(*known, seen) {
			break
		}
		if time.Now().After(deadline) {
			return known, seen, plan, aheadFault(*known, *seen)
		}
		select {
		case <-ctx.Done():
			return known, seen, plan, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	since, err := r.Stock.EndedSince(ctx, lot)
	if err == nil {
		plan, err = r.Ledger.PlanRebuild(ctx, lot, since)
	}
	return known, seen, plan, err
}

// freeze stops the sale of the lot as it was seen, if Redis has it, and returns it as it was when it stopped. Where the shard
// has no door nothing sells.
func (r *Rebuilder) freeze(ctx context.Context, lot drop.LotID, known *drop.LedgerLot, seen *drop.LotState) (*drop.LedgerLot, *drop.LotState, error) {
	const tries = 5 // each time somebody else loaded the lot meanwhile, or the door closed
	for try := 1; ; try++ {
		if seen == nil || seen.OpenRun == "" {
			return known, seen, nil
		}
		err := r.Stock.FreezeLot(ctx, *seen, fault.FreezeRestoring)
		stopped := err == nil
		if !stopped && (!fault.Is(err, fault.Conflict) && !fault.Is(err, fault.LotNotLoaded) || try == tries) {
			return known, seen, err
		}
		if known, seen, err = r.look(ctx, lot); stopped || err != nil {
			return known, seen, err
		}
	}
}

func aheadFault(l drop.LedgerLot, seen drop.LotState) error {
	return fault.New(fault.Conflict, "Redis is ahead of the ledger with the lot %s: it stands at %d/%d, the ledger at %d/%d, and the outbox has nothing of what lies between",
		l.Lot, seen.Epoch, seen.Seq, l.Watermark.Epoch, l.Watermark.Seq).
		WithHint("look first: dropctl reconcile %s; then give up what was lost: dropctl outbox discard --lot %s --gap --reason TEXT", l.Lot, l.Lot)
}

// Record hands the ledger what the outbox has of these lots and the ledger has not, without waiting for a worker.
func (r *Rebuilder) Record(ctx context.Context, lots []drop.LotID) error {
	if len(lots) == 0 {
		return nil
	}
	known, err := r.Ledger.LotsOf(ctx, lots)
	if err == nil {
		_, err = r.record(ctx, known)
	}
	return err
}

// record hands the ledger what the outbox has of the lots behind their watermarks. It reports whether there was anything.
func (r *Rebuilder) record(ctx context.Context, lots []drop.LedgerLot) (any bool, err error) {
	behind := map[int]map[drop.LotID]drop.Watermark{} // by shard
	for _, l := range lots {
		newest, err := r.Stock.NewestEvent(ctx, l.Lot)
		if err != nil {
			return false, err
		}
		if shard := l.Lot.Shard(r.Stock.Shards()); after(newest, l.Watermark) {
			if behind[shard] == nil {
				behind[shard] = map[drop.LotID]drop.Watermark{}
			}
			behind[shard][l.Lot] = l.Watermark
		}
	}
	for shard, from := range behind {
		events, err := r.Stock.EventsSince(ctx, shard, from)
		if err == nil && len(events) > 0 {
			any = true
			err = r.Ledger.Record(ctx, slices.Concat(slices.Collect(maps.Values(events))...))
		}
		if err != nil {
			return any, err
		}
	}
	return any, nil
}

// thawed is the lot without the freeze of a rebuild.
func thawed(seen *drop.LotState) *drop.LotState {
	if seen == nil || seen.LotFrozen != string(fault.FreezeRestoring) {
		return seen
	}
	s := *seen
	s.LotFrozen = ""
	return &s
}

// giveUp undoes the freeze of a rebuild that loads nothing. A lot that was frozen before, whose epoch is closed, as by a
// rebuild that was broken off, or that is damaged stays frozen: none of them must sell.
func (r *Rebuilder) giveUp(ctx context.Context, o order, known *drop.LedgerLot, seen *drop.LotState) {
	if o.frozen || known == nil || seen == nil || seen.Damaged != "" || seen.Epoch < known.OpenEpoch {
		return
	}
	// If that fails too, the lot stays frozen, and says for what.
	_ = r.Stock.ThawLot(context.WithoutCancel(ctx), *seen, fault.FreezeRestoring)
}
