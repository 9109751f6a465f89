package seed

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Action is what a seed does about a lot.
type Action string

// The actions.
const (
	Create    Action = "create"
	Change    Action = "change"
	Unchanged Action = "unchanged"
	Load      Action = "load"    // the ledger knows it, but it was never put into Redis: an earlier seed broke off
	Lost      Action = "lost"    // Redis no longer has it: only a restore may bring it back
	Blocked   Action = "blocked" // frozen, stopped, or of another installation
	Refused   Action = "refused" // a rule says no
	Skipped   Action = "skipped" // not looked at: an earlier error ended the run
)

// FieldChange is one field that a seed changes. Units are numbers, everything else is text as in a file.
type FieldChange struct {
	Field string `json:"field"`
	From  any    `json:"from"`
	To    any    `json:"to"`
}

// step is one lot of the plan and how far it got.
type step struct {
	action  Action
	target  drop.Definition
	changes []FieldChange
	state   drop.LotState // Redis' own, as planned on or after the change; zero for a lot it has not
	seeded  *int64        // the stock that the last seed named; nil: not known
	line    int           // of the file; 0: named by flags
	unseen  bool          // the ledger has seen no event of it, or will not have until record
	dry     bool
	err     error

	loadedAfter drop.Watermark // the place in the lot's history before its `loaded` event
}

// stop ends a step with an error.
func (st *step) stop(a Action, err error) *step {
	st.action, st.err = a, err
	return st
}

// plan compares rows with the ledger and Redis, and changes nothing.
func (s *seeder) plan(ctx context.Context, rows []Row, lots []drop.LotID) ([]*step, error) {
	// The ledger first: what Redis does in between is then newer, never missing.
	list, err := s.ledger.Lots(ctx, lots)
	if err != nil {
		return nil, err
	}
	known := make(map[drop.LotID]Lot, len(list))
	for _, l := range list {
		known[l.Lot] = l
	}
	states, err := s.stock.LotStates(ctx, lots)
	if err != nil {
		return nil, err
	}
	steps := make([]*step, len(rows))
	for i, row := range rows {
		id := row.Definition.Lot
		l, inLedger := known[id]
		state, inRedis := states[id]
		switch {
		case inRedis && inLedger:
			steps[i] = planLoaded(row, l, state)
		case inRedis:
			steps[i] = (&step{target: row.over(state.Definition), state: state}).stop(Blocked,
				fault.New(fault.Foreign, "Redis has lot %s, which the ledger does not know", id).With("lot", string(id)))
		default:
			steps[i] = planAbsent(row, l, inLedger, s.doors[id.Shard(len(s.doors))])
		}
		steps[i].dry = s.o.DryRun
	}
	return steps, s.checkAdjustments(ctx, steps, known)
}

// planAbsent plans a lot that Redis has not.
func planAbsent(row Row, l Lot, inLedger bool, shard drop.ShardState) *step {
	id := row.Definition.Lot
	st := &step{action: Create, target: row.over(drop.Definition{Lot: id}), unseen: true}
	if inLedger {
		st.action, st.target, st.changes = Load, row.over(l.Definition), diff(l.Definition, row.over(l.Definition))
	}
	switch {
	case inLedger && l.Archive != drop.NotArchived:
		return st.stop(Refused, fault.New(fault.Conflict, "lot %s is archived: its sale is over for good", id).WithHint("choose another name for a new sale"))
	case inLedger && l.Seen:
		return st.stop(Lost, lost(id))
	case shard.Exists && (shard.Frozen != "" || shard.Run != shard.OpenRun):
		return st.stop(Blocked, frozen(id, fault.Code(shard.Frozen)))
	}
	if err := st.target.Check(); err != nil {
		return st.stop(Refused, err)
	}
	return st
}

// planLoaded plans a lot that Redis has. Redis is the authority for its present values.
func planLoaded(row Row, l Lot, state drop.LotState) *step {
	if state.Damaged != "" {
		return (&step{target: row.Definition, state: state}).stop(Blocked, fault.New(fault.Failed, "what Redis has of lot %s cannot be read: %s", row.Definition.Lot, state.Damaged).
			WithHint("rebuild it from the ledger: dropctl restore %s", row.Definition.Lot))
	}
	present := state.Definition
	present.Stock = state.Capacity
	id := present.Lot
	st := &step{action: Unchanged, target: row.over(present), state: state, seeded: l.Seeded, line: row.Line, unseen: !l.Seen,
		loadedAfter: drop.Watermark{Epoch: state.Epoch, Seq: l.Watermark.Seq}}
	if l.OpenEpoch != state.Epoch {
		return st.stop(Blocked, fault.New(fault.Conflict, "Redis has epoch %d of lot %s, the ledger has issued %d: a restore broke off", state.Epoch, id, l.OpenEpoch).
			WithHint("finish it: dropctl restore %s", id))
	}
	if st.changes = diff(present, st.target); len(st.changes) == 0 {
		return st
	}
	st.action = Change
	if reason := state.FreezeReason(); reason != "" {
		return st.stop(Blocked, frozen(id, reason))
	}
	if l.Stopped != "" {
		return st.stop(Blocked, fault.New(fault.Conflict, "the ledger has stopped lot %s (%s): a change would not be recorded", id, l.Stopped).
			WithHint("see dropctl explain %s; then dropctl restore %s", l.Stopped, id))
	}
	if err := st.target.Check(); err != nil {
		return st.stop(Refused, err)
	}
	// Due holds still count in Redis, but the adjustment takes them back first.
	if taken := state.Held - state.Due + state.Sold; st.target.Stock < state.Capacity && st.target.Stock < taken {
		return st.stop(Refused, fault.New(fault.Conflict, "stock %d of lot %s is less than the %d units held or sold", st.target.Stock, id, taken).
			WithHint("give at least %d, or wait for holds to end: dropctl lot show %s", taken, id))
	}
	return st
}

func lost(id drop.LotID) error {
	return fault.New(fault.Conflict, "Redis no longer has lot %s, which the ledger has seen sell: seeding it anew could sell units twice", id).
		WithHint("rebuild it from the ledger: dropctl restore %s", id)
}

func frozen(id drop.LotID, reason fault.Code) error {
	if reason == "" {
		reason = fault.FreezeClosedDoor
	}
	return fault.New(fault.LotFrozen, "lot %s cannot be seeded: its shard is frozen (%s)", id, reason).With("reason", string(reason)).
		WithHint("see dropctl explain %s; a running worker reopens what equals the ledger", reason)
}

// checkAdjustments refuses to set a stock that somebody else changed since the last seed. Who changed it
// last is known to the ledger, and behind its watermark to the outbox.
func (s *seeder) checkAdjustments(ctx context.Context, steps []*step, known map[drop.LotID]Lot) error {
	if s.o.Overwrite {
		return nil
	}
	from := map[int]map[drop.LotID]drop.Watermark{}
	for _, st := range steps {
		if id := st.target.Lot; st.action == Change && st.target.Stock != st.state.Capacity {
			shard := id.Shard(len(s.doors))
			if from[shard] == nil {
				from[shard] = map[drop.LotID]drop.Watermark{}
			}
			from[shard][id] = known[id].Watermark
		}
	}
	newer := map[drop.LotID][]drop.Event{}
	for shard, lots := range from {
		events, err := s.stock.EventsSince(ctx, shard, lots)
		if err != nil {
			return err
		}
		for id := range lots {
			newer[id] = events[id]
		}
	}
	for _, st := range steps {
		if events, asked := newer[st.target.Lot]; asked {
			if err := adjusted(st, known[st.target.Lot], events); err != nil {
				st.stop(Refused, err)
			}
		}
	}
	return nil
}

// withoutRestock is the reason that the ledger notes for a refund whose units are not sold again.
const withoutRestock = "refund without restock"

// adjusted returns an error if the capacity is not the one that the last seed named and its newest change is not a
// seed's, or if that cannot be told.
func adjusted(st *step, l Lot, newer []drop.Event) error {
	capacity := st.state.Capacity
	if st.seeded != nil && *st.seeded == capacity {
		return nil
	}
	actor, reason := l.AdjustActor, l.AdjustReason
	next := l.Seq + 1
	for _, e := range newer {
		if e.Seq == next {
			next++
		}
		switch {
		case e.Kind == drop.KindAdjusted:
			actor, reason = e.Actor, e.Reason
		case e.Kind == drop.KindRefunded && !e.Restock:
			actor, reason = e.Actor, withoutRestock
		}
	}
	id := st.target.Lot
	if next <= st.state.Seq {
		return fault.New(fault.Conflict, "the ledger is behind lot %s: it cannot be told who set its stock of %d", id, capacity).
			WithHint("let it catch up: dropctl worker --until-idle; or use --overwrite-adjustments")
	}
	if reason == Reason || (reason == "" && actor == "") {
		return nil
	}
	err := fault.New(fault.Conflict, "the stock of lot %s was changed to %d by %s since the last seed%s", id, capacity, cmp.Or(actor, "somebody"), inBrackets(reason))
	if st.seeded != nil && *st.seeded > capacity && reason == withoutRestock {
		gone := *st.seeded - capacity
		return err.WithHint("%s, since %d of its units are not to be sold again; to sell them, repeat with --overwrite-adjustments", st.wayToName(st.target.Stock-gone), gone)
	}
	return err.WithHint("%s to keep it, or repeat with --overwrite-adjustments", st.wayToName(capacity))
}

// wayToName says how the operator names another stock where this one was named.
func (st *step) wayToName(stock int64) string {
	stock = max(stock, 0)
	if st.line == 0 {
		return fmt.Sprintf("use --stock %d", stock)
	}
	return fmt.Sprintf("set the stock of %s to %d in line %d of the file", st.target.Lot, stock, st.line)
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// diff lists the fields in which two definitions of a lot differ.
func diff(from, to drop.Definition) []FieldChange {
	var list []FieldChange
	for f := fieldStock; f <= fieldName; f++ {
		if a, b := valueOf(from, f), valueOf(to, f); a != b {
			list = append(list, FieldChange{f.String(), a, b})
		}
	}
	return list
}

// valueOf returns one field: units as a number, anything else as a file writes it.
func valueOf(d drop.Definition, f field) any {
	switch f {
	case fieldStock:
		return d.Stock
	case fieldLimit:
		return d.Limit
	case fieldHold:
		return d.Hold.String()
	case fieldMaxHold:
		return d.MaxHold.String()
	case fieldOpens:
		return moment(d.Opens)
	case fieldCloses:
		return moment(d.Closes)
	case fieldLate:
		return string(d.Late)
	case fieldStatus:
		return string(d.Status)
	case fieldName:
		return d.Name
	}
	return string(d.Lot)
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
