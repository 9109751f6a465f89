// Package recovery decides what becomes of a shard whose door is closed, and of lots that must not sell.
//
// A restarted, promoted or replaced Redis refuses everything until somebody has compared it with the
// ledger. The guardian is that somebody: it freezes the shard, waits until the ledger has every event that the
// server still holds, and compares each lot. What equals the ledger begins a new epoch and sells again; what lost
// something is rebuilt from the ledger; what the ledger cannot prove stays frozen on its own, for an operator.
package recovery

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Stock is what the guardian needs of Redis. What changes something acts only if all still is as it was seen, on the
// same server, else it returns fault.Conflict.
type Stock interface {
	ShardState(ctx context.Context, shard int) (drop.ShardState, error)
	OutboxState(ctx context.Context, shard int) (drop.OutboxState, error)
	// LotsOf returns every lot that Redis has in these shards.
	LotsOf(ctx context.Context, shards []int) ([]drop.LotID, error)
	// LotStates returns a snapshot of each lot, damaged ones included; a lot that Redis has not is absent.
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	Freeze(ctx context.Context, seen drop.ShardState, reason fault.Code) error
	Reopen(ctx context.Context, seen drop.ShardState) error
	// FreezeLot and ThawLot shut and open one lot, whatever its shard does.
	FreezeLot(ctx context.Context, seen drop.LotState, reason fault.Code) error
	ThawLot(ctx context.Context, seen drop.LotState, reason fault.Code) error
	// Renew begins a new epoch of a lot with what Redis has of it.
	Renew(ctx context.Context, seen drop.LotState, epoch int64, actor, reason string) error
}

// Ledger is what the guardian needs of PostgreSQL.
type Ledger interface {
	// Lots returns every lot that is not archived.
	Lots(ctx context.Context) ([]drop.LedgerLot, error)
	// StoppedLots returns the lots of which nothing more is folded.
	StoppedLots(ctx context.Context) ([]drop.StoppedLot, error)
	// NextEpoch issues the next epoch of a lot, or returns fault.Conflict if the lot no longer is as it was seen. Events
	// of the epoch before that come later are ghosts.
	NextEpoch(ctx context.Context, seen drop.LedgerLot, actor, reason string) (int64, error)
}

// Rebuild puts a lot into Redis anew, as the ledger has it.
type Rebuild func(ctx context.Context, lot drop.LotID, actor, reason string) error

// Action is what the guardian did about a shard or some of its lots, or waits for.
type Action string

// The actions. Draining, settling and rebuilding pass by themselves, with the passes that follow; waiting does as well,
// but only once somebody has corrected the clock.
const (
	Draining   Action = "draining"   // the ledger has not got every event yet
	Settling   Action = "settling"   // compared once; acted on if the next pass finds the same
	Rebuilding Action = "rebuilding" // some lots are not rebuilt yet
	Restored   Action = "rebuilt"    // lots, from the ledger
	Thawed     Action = "thawed"     // lots that equal the ledger again
	Reopened   Action = "reopened"   // the shard
	Frozen     Action = "frozen"     // lots, or a shard that is gone: an operator must act
	Waiting    Action = "waiting"    // the shard is frozen because of the clock, which is not right yet
	Left       Action = "left"       // frozen by an operator: not the guardian's to open
)

// Finding is what a pass has to say about one shard, or about some of its lots.
type Finding struct {
	Shard    int
	Action   Action
	Reason   fault.Code   // why it does not sell, or did not
	Lots     []drop.LotID // that gave the reason
	Pending  int64        // draining: entries the ledger has not got
	Late     bool         // draining: for longer than drainLimit
	Equal    int          // settling, reopened: lots that equal the ledger
	Evidence string       // where both sides stand
	Run      string       // run id of the server that was looked at
	OpenRun  string       // run id of the server the shard was open on
	Err      error        // why it could not be done
}

// Passing reports whether a later pass will change the finding without anybody's help.
func (f Finding) Passing() bool {
	return f.Action == Draining || f.Action == Settling || f.Action == Rebuilding
}

// Next returns the command to run now, "" if there is none.
func (f Finding) Next() string {
	if f.Reason == "" {
		return ""
	}
	names := make([]string, 0, 3)
	for _, lot := range f.Lots[:min(len(f.Lots), 3)] {
		names = append(names, string(lot))
	}
	if len(names) == 0 {
		names = append(names, "LOT")
	}
	return strings.ReplaceAll(fault.Lookup(f.Reason).Hint, "LOT", strings.Join(names, " "))
}

// Guardian watches over all shards. Its fields are set before the first pass. It is not safe for concurrent use, but any
// number of guardians may watch the same shards: each acts only on what it has just seen, so they end in the same state,
// also if one of them stands still for a while in the middle.
type Guardian struct {
	Stock        Stock
	Ledger       Ledger
	Rebuild      Rebuild
	Installation string
	Shards       int

	ours     bool           // Redis was seen to have our data
	memories map[int]memory // of each shard
	retry    map[drop.LotID]time.Time
}

// memory is what the guardian remembers of a shard from pass to pass.
type memory struct {
	look        string  // of a shard that is shut or lots that are not well: acted on when two passes see the same
	clock       reading // the last one that was right
	frozenClock bool    // the shard was frozen because of its clock
	draining    time.Time
	replication string
	lookAt      time.Time // of a shard that sells: when to look at each of its lots again
	found       []Finding // there
}

const (
	actor = "guardian"

	lookEvery  = 30 * time.Second // at every lot of a shard that sells
	lookSooner = 5 * time.Second  // while some of them are frozen
	retryAfter = time.Minute      // a rebuild that failed for good
	rebuildFor = 10 * time.Second // how long one pass begins rebuilds: other shards wait for it
	epochLimit = 20 * time.Second // for one lot's new epoch, which is not broken off in the middle
	drainLimit = 30 * time.Second // for the ledger to get what a shut shard holds, before somebody is called
	atOnce     = 4                // lots worked on at a time
)

// Pass looks at every shard once, acts, and returns what it found where not everything is in order, or was put in
// order just now. It returns fault.Foreign, and changes nothing, if a shard belongs to another installation. Other
// errors, joined, are those of shards that did not answer: the others are judged all the same; pass again.
func (g *Guardian) Pass(ctx context.Context) ([]Finding, error) {
	if g.memories == nil {
		g.memories, g.retry = map[int]memory{}, map[drop.LotID]time.Time{}
	}
	stopped, err := g.stoppedShards(ctx)
	errs := []error{err}
	p := pass{Guardian: g, rebuildsUntil: time.Now().Add(rebuildFor)}
	for shard := range g.Shards {
		if err := p.look(ctx, shard, stopped[shard]); fault.Is(err, fault.Foreign) {
			return nil, err
		} else if err != nil {
			g.forget(shard)
			errs = append(errs, err)
		}
	}
	errs = append(errs, p.freezeDoors(ctx), p.drain(ctx))
	// The outbox is read before the ledger: what it no longer holds, the ledger must show.
	errs = append(errs, p.compare(ctx))
	for _, v := range p.shut {
		errs = append(errs, p.settle(ctx, v))
	}
	for _, v := range p.gone {
		p.replace(ctx, v)
	}
	for _, v := range p.open {
		errs = append(errs, p.tend(ctx, v))
	}
	return p.findings, errors.Join(errs...)
}

// forget makes sure that a shard is not acted on before two more looks.
func (g *Guardian) forget(shard int) {
	m := g.memories[shard]
	m.look, m.lookAt = "", time.Time{}
	g.memories[shard] = m
}

// sameAgain reports whether the pass before saw the same of the shard. The second look gives batches that some worker
// read from a lost server the time to reach the ledger, and other guardians the time to finish.
func (g *Guardian) sameAgain(shard int, look string) bool {
	m := g.memories[shard]
	same := m.look == look
	m.look = look
	if same {
		m.look = ""
	}
	g.memories[shard] = m
	return same
}

// stoppedShards returns the stopped lots by shard, as text: whether it changes is all that matters.
func (g *Guardian) stoppedShards(ctx context.Context) (map[int]string, error) {
	lots, err := g.Ledger.StoppedLots(ctx)
	stopped := map[int]string{}
	for _, l := range lots {
		stopped[l.Lot.Shard(g.Shards)] += string(l.Lot) + " "
	}
	return stopped, err
}

// pass is one pass of a guardian.
type pass struct {
	*Guardian
	rebuildsUntil time.Time

	shut, gone, open []view
	sides            bothSides
	findings         []Finding
}

// view is a shard as this pass saw it.
type view struct {
	drop.ShardState
	freeze  fault.Code    // the reason to freeze it for first, "" if that is done
	jumped  time.Duration // of the server's clock
	clockOK bool
}

func (p *pass) say(v view, f Finding) {
	f.Shard, f.Run, f.OpenRun = v.Shard, v.Run, v.OpenRun
	if f.Evidence == "" {
		f.Evidence = p.sides.evidence(f.Lots[:min(len(f.Lots), 5)])
	}
	p.findings = append(p.findings, f)
}

// look sorts a shard by its door. Of a shard that sells, the lots are looked at only now and then.
func (p *pass) look(ctx context.Context, shard int, stopped string) error {
	m := p.memories[shard]
	now := reading{from: time.Now()}
	st, err := p.Stock.ShardState(ctx, shard)
	if err != nil {
		return err
	}
	now.to, now.server = time.Now(), st.Now
	v := view{ShardState: st}
	frozenClock := st.Frozen == string(fault.FreezeClock)
	if m.frozenClock && !frozenClock {
		m.clock = reading{} // somebody has judged the clock since
	}
	if !m.clock.server.IsZero() {
		v.jumped = now.jump(m.clock)
	}
	v.clockOK = now.right(m.clock)
	if v.jumped == 0 && !frozenClock || v.clockOK && frozenClock {
		m.clock = now
	}
	var kind door
	kind, v.freeze = judgeDoor(st, p.Installation, p.Shards, v.jumped)
	m.frozenClock = frozenClock || v.freeze == fault.FreezeClock
	p.ours = p.ours || kind != doorGone && kind != doorForeign
	switch kind {
	case doorForeign:
		return fault.New(fault.Foreign, "shard %d in Redis belongs to another installation", shard)
	case doorGone:
		m.lookAt = time.Time{}
		p.gone = append(p.gone, v)
	case doorLeft:
		p.say(v, Finding{Action: Left, Reason: fault.FreezeOperator})
	case doorShut:
		m.lookAt = time.Time{} // once it sells again
		p.shut = append(p.shut, v)
	case doorOpen:
		history := st.Replication + " " + stopped
		if m.replication != history || !time.Now().Before(m.lookAt) {
			m.replication = history
			p.open = append(p.open, v)
		} else {
			p.findings = append(p.findings, m.found...)
		}
	}
	p.memories[shard] = m
	return nil
}

// freezeDoors freezes the shards whose door alone is shut, and those whose clock jumped.
func (p *pass) freezeDoors(ctx context.Context) error {
	var errs []error
	p.shut = slices.DeleteFunc(p.shut, func(v view) bool {
		if v.freeze == "" {
			return false
		}
		err := p.Stock.Freeze(ctx, v.ShardState, v.freeze)
		if err != nil {
			p.forget(v.Shard)
			if fault.Is(err, fault.Conflict) { // somebody else was faster
				p.say(v, Finding{Action: Settling})
			} else {
				errs = append(errs, err)
			}
		}
		return err != nil
	})
	for i, v := range p.shut {
		if v.freeze != "" {
			p.shut[i].Frozen = string(v.freeze)
		}
		p.shut[i].clockOK = v.clockOK && v.freeze != fault.FreezeClock
	}
	return errors.Join(errs...)
}

// drain leaves only those shut shards whose every event the ledger has got.
func (p *pass) drain(ctx context.Context) error {
	var errs []error
	p.shut = slices.DeleteFunc(p.shut, func(v view) bool {
		out, err := p.Stock.OutboxState(ctx, v.Shard)
		switch {
		case err != nil:
			errs = append(errs, err)
		case out.Pending > 0:
			m := p.memories[v.Shard]
			if m.draining.IsZero() {
				m.draining = time.Now()
				p.memories[v.Shard] = m
			}
			p.say(v, Finding{Action: Draining, Reason: fault.Code(v.Frozen), Pending: out.Pending, Late: time.Since(m.draining) > drainLimit})
		default:
			m := p.memories[v.Shard]
			m.draining = time.Time{}
			p.memories[v.Shard] = m
			return false
		}
		p.forget(v.Shard)
		return true
	})
	return errors.Join(errs...)
}

// compare reads all lots of the shards in question from both sides, the ledger first. Shards of which that fails are judged
// in a later pass.
func (p *pass) compare(ctx context.Context) error {
	p.sides = bothSides{shards: p.Shards, ledger: map[drop.LotID]drop.LedgerLot{}, redis: map[drop.LotID]drop.LotState{}}
	wanted := map[int]bool{}
	var there []int
	for _, v := range slices.Concat(p.shut, p.open) {
		there = append(there, v.Shard)
		wanted[v.Shard] = true
	}
	for _, v := range p.gone {
		wanted[v.Shard] = true
	}
	if len(wanted) == 0 {
		return nil
	}
	lots, err := p.Ledger.Lots(ctx)
	var present []drop.LotID
	if err == nil {
		present, err = p.Stock.LotsOf(ctx, there)
	}
	if err != nil {
		for shard := range wanted {
			p.forget(shard)
		}
		p.shut, p.gone, p.open = nil, nil, nil
		return err
	}
	byShard := map[int][]drop.LotID{}
	for _, id := range present {
		byShard[id.Shard(p.Shards)] = append(byShard[id.Shard(p.Shards)], id)
	}
	archived := map[drop.LotID]bool{}
	for _, l := range lots {
		shard := l.Lot.Shard(p.Shards)
		switch {
		case l.Archive != drop.NotArchived:
			archived[l.Lot] = true
		case wanted[shard]:
			p.sides.ledger[l.Lot] = l
			// Asked for by name as well: while a slot moves, a scan does not show what has moved already, but this fails.
			byShard[shard] = append(byShard[shard], l.Lot)
		}
	}
	var errs []error
	unknown := map[int]bool{}
	for shard, ids := range byShard {
		slices.Sort(ids)
		ids = slices.DeleteFunc(slices.Compact(ids), func(id drop.LotID) bool { return archived[id] })
		states, err := p.Stock.LotStates(ctx, ids)
		if err != nil {
			p.forget(shard)
			unknown[shard] = true
			errs = append(errs, err)
		}
		maps.Copy(p.sides.redis, states)
	}
	for _, views := range []*[]view{&p.shut, &p.gone, &p.open} {
		*views = slices.DeleteFunc(*views, func(v view) bool { return unknown[v.Shard] })
	}
	return errors.Join(errs...)
}

// settle deals with a shard that is frozen and drained. It acts only on what two passes have seen. Lots that need
// somebody are frozen on their own, so that the others can sell.
func (p *pass) settle(ctx context.Context, v view) error {
	if p.sides.elsewhere(v.ShardState) {
		p.forget(v.Shard)
		p.say(v, Finding{Action: Settling})
		return nil
	}
	if v.Frozen == string(fault.FreezeClock) && !v.clockOK {
		p.forget(v.Shard)
		p.say(v, Finding{Action: Waiting, Reason: fault.FreezeClock})
		return nil
	}
	verdicts := p.tryable(p.sides.verdicts(v.Shard))
	if err := p.hold(ctx, v, verdicts); err != nil {
		return p.unsettled(v, err)
	}
	lots := p.sides.of(v.Shard)
	equal := slices.Concat(with(verdicts, cureNone), with(verdicts, cureThaw))
	if look := v.Run + p.sides.evidence(lots); !p.sameAgain(v.Shard, look) {
		p.say(v, Finding{Action: Settling, Reason: fault.Code(v.Frozen), Equal: len(equal)})
		return nil
	}
	if done, err := p.rebuild(ctx, v, verdicts); !done {
		return err
	}
	for _, id := range with(verdicts, cureThaw) {
		if err := p.Stock.ThawLot(ctx, p.sides.redis[id], verdicts[id].reason); err != nil {
			return p.unsettled(v, err)
		}
	}
	if err := p.renew(ctx, equal); err != nil {
		return p.unsettled(v, err)
	}
	if err := p.Stock.Reopen(ctx, v.ShardState); err != nil {
		return p.unsettled(v, err)
	}
	m := p.memories[v.Shard]
	m.frozenClock = false // its clock was judged here
	p.memories[v.Shard] = m
	p.say(v, Finding{Action: Reopened, Reason: fault.Code(v.Frozen), Equal: len(equal), Evidence: p.sides.evidence(lots[:min(len(lots), 5)])})
	return nil
}

// unsettled keeps an error, unless it only says that somebody else has acted meanwhile: the next pass sees what came of it.
func (p *pass) unsettled(v view, err error) error {
	p.forget(v.Shard)
	p.say(v, Finding{Action: Settling, Reason: fault.Code(v.Frozen)})
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	return err
}

// hold freezes the lots that nobody but an operator may let sell again.
func (p *pass) hold(ctx context.Context, v view, verdicts map[drop.LotID]verdict) error {
	for reason, lots := range byReason(verdicts, cureByHand) {
		for _, id := range lots {
			r, present := p.sides.redis[id]
			if !present || r.LotFrozen != "" {
				continue
			}
			if err := p.Stock.FreezeLot(ctx, r, reason); err != nil {
				return err
			}
		}
		p.say(v, Finding{Action: Frozen, Reason: reason, Lots: lots})
	}
	return nil
}

// renew begins a new epoch of lots that equal the ledger. What a worker still has in hand of a server that was lost, and might
// bring to the ledger after the sale has gone on, is of the old epoch then: a ghost, and no fork. The first lot goes alone:
// of several guardians only one gets past it.
func (p *pass) renew(ctx context.Context, lots []drop.LotID) error {
	next := func(id drop.LotID) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), epochLimit)
		defer cancel()
		const reason = "reopened by the guardian"
		epoch, err := p.Ledger.NextEpoch(ctx, p.sides.ledger[id], actor, reason)
		if err != nil {
			return err
		}
		return p.Stock.Renew(ctx, p.sides.redis[id], epoch, actor, reason)
	}
	if len(lots) == 0 {
		return nil
	}
	if err := next(lots[0]); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, id := range lots[1:] {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return next(id)
		})
	}
	return g.Wait()
}

// rebuild puts the lots that need it into Redis anew. It reports whether none is left that may still come right by itself:
// one whose rebuild failed for good is frozen.
func (p *pass) rebuild(ctx context.Context, v view, verdicts map[drop.LotID]verdict) (done bool, err error) {
	done = true
	for reason, lots := range byReason(verdicts, cureRebuild) {
		outcomes := p.rebuildLots(ctx, lots, reason)
		var rebuilt, left []drop.LotID
		for i, id := range lots {
			switch {
			case outcomes[i] == nil:
				rebuilt = append(rebuilt, id)
			case passing(outcomes[i]):
				left = append(left, id)
				err = outcomes[i]
			default:
				p.retry[id] = time.Now().Add(retryAfter)
				p.say(v, Finding{Action: Frozen, Reason: reason, Lots: []drop.LotID{id}, Err: outcomes[i]})
				if r, present := p.sides.redis[id]; present && r.LotFrozen == "" {
					if err := p.Stock.FreezeLot(ctx, r, reason); err != nil {
						left = append(left, id)
					}
				}
			}
		}
		if len(rebuilt) > 0 {
			p.say(v, Finding{Action: Restored, Reason: reason, Lots: rebuilt})
		}
		if len(left) > 0 {
			done = false
			p.say(v, Finding{Action: Rebuilding, Reason: reason, Lots: left, Err: err})
		}
	}
	if fault.Is(err, fault.Busy) || fault.Is(err, fault.Conflict) {
		err = nil // somebody else works on it
	}
	return done, err
}

// errLater says that a rebuild was not begun in this pass.
var errLater = fault.New(fault.Busy, "other lots come first")

// passing reports whether a rebuild that failed may come right when it is tried again at once.
func passing(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Busy, fault.Conflict, fault.Unavailable, fault.OutcomeUnknown, fault.LotFrozen, fault.LotNotLoaded, fault.Interrupted:
		return true
	}
	return false
}

func (p *pass) rebuildLots(ctx context.Context, lots []drop.LotID, reason fault.Code) []error {
	outcomes := make([]error, len(lots))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, id := range lots {
		g.Go(func() error {
			outcomes[i] = errLater
			if time.Now().Before(p.rebuildsUntil) {
				outcomes[i] = p.Rebuild(ctx, id, actor, string(reason))
			}
			return nil
		})
	}
	_ = g.Wait()
	return outcomes
}

// replace fills a shard that Redis no longer has from the ledger. It does so only where Redis was seen to have our data:
// an empty server may as well be the wrong one.
func (p *pass) replace(ctx context.Context, v view) {
	lots := p.sides.of(v.Shard)
	if len(lots) == 0 {
		return
	}
	if !p.ours {
		p.say(v, Finding{Action: Frozen, Reason: fault.FreezeEmptied, Lots: lots})
		return
	}
	if !p.sameAgain(v.Shard, v.Run+p.sides.evidence(lots)) {
		p.say(v, Finding{Action: Settling, Reason: fault.FreezeEmptied, Lots: lots})
		return
	}
	verdicts := p.tryable(p.sides.verdicts(v.Shard))
	_ = p.hold(ctx, v, verdicts)       // nothing is there to be frozen
	_, _ = p.rebuild(ctx, v, verdicts) // its findings tell
}

// tend deals with the lots of a shard that sells which must not sell, or could sell again.
func (p *pass) tend(ctx context.Context, v view) error {
	if p.sides.elsewhere(v.ShardState) {
		p.forget(v.Shard)
		return nil
	}
	before := len(p.findings)
	verdicts := map[drop.LotID]verdict{}
	var lost []drop.LotID
	for _, id := range p.sides.of(v.Shard) {
		verdict, behind := p.sides.judgeOpen(id)
		if verdicts[id] = verdict; behind {
			lost = append(lost, id)
		}
	}
	if len(lost) > 0 {
		p.forget(v.Shard)
		p.say(v, Finding{Action: Settling, Reason: fault.FreezeBehind, Lots: lost})
		return ignoreConflict(p.Stock.Freeze(ctx, v.ShardState, fault.FreezeBehind))
	}
	verdicts = p.tryable(verdicts)
	err := errors.Join(p.hold(ctx, v, verdicts), p.heal(ctx, v, verdicts))

	m := p.memories[v.Shard]
	m.found = slices.DeleteFunc(slices.Clone(p.findings[before:]), func(f Finding) bool { return f.Action != Frozen })
	m.lookAt = time.Now().Add(lookEvery)
	switch {
	case m.look != "" || err != nil:
		m.lookAt = time.Time{}
	case len(m.found) > 0:
		m.lookAt = time.Now().Add(lookSooner)
	}
	p.memories[v.Shard] = m
	return ignoreConflict(err)
}

// heal thaws and rebuilds lots of a shard that sells, once two passes have seen the same.
func (p *pass) heal(ctx context.Context, v view, verdicts map[drop.LotID]verdict) error {
	sick := slices.Concat(with(verdicts, cureThaw), with(verdicts, cureRebuild))
	if len(sick) == 0 {
		return nil
	}
	if !p.sameAgain(v.Shard, v.Run+p.sides.evidence(sick)) {
		p.say(v, Finding{Action: Settling, Reason: verdicts[sick[0]].reason, Lots: sick})
		return nil
	}
	for reason, lots := range byReason(verdicts, cureThaw) {
		for _, id := range lots {
			if err := p.Stock.ThawLot(ctx, p.sides.redis[id], reason); err != nil {
				return err
			}
		}
		p.say(v, Finding{Action: Thawed, Reason: reason, Lots: lots})
	}
	_, err := p.rebuild(ctx, v, verdicts)
	return err
}

// tryable puts off the rebuilds that have failed for good not long ago.
func (p *pass) tryable(verdicts map[drop.LotID]verdict) map[drop.LotID]verdict {
	for id, v := range verdicts {
		if v.cure == cureRebuild && time.Now().Before(p.retry[id]) {
			verdicts[id] = verdict{cureByHand, v.reason}
		}
	}
	return verdicts
}

func ignoreConflict(err error) error {
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	return err
}
