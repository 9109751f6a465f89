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
	"fmt"
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
	// ShardState looks at the door of a shard: the server it is open on, the one that is there now, and whether it is frozen.
	ShardState(ctx context.Context, shard int) (drop.ShardState, error)
	// OutboxState tells how many entries of a shard the ledger has not got.
	OutboxState(ctx context.Context, shard int) (drop.OutboxState, error)
	// LotsOf returns every lot that Redis has in these shards.
	LotsOf(ctx context.Context, shards []int) ([]drop.LotID, error)
	// LotStates returns a snapshot of each lot, damaged ones included; a lot that Redis has not is absent.
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	// Freeze shuts a shard; Reopen opens it on the server it was seen on, which has to equal the ledger.
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
	Draining   Action = "draining"   // the ledger has not got every event yet, or a queue may still have some
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
	hint := strings.ReplaceAll(fault.Lookup(f.Reason).Hint, "--lot LOT", "--lot "+names[0]) // which takes one
	return strings.ReplaceAll(hint, "LOT", strings.Join(names, " "))
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
	Barrier      Barrier // of the queue between Redis and the ledger

	ours     bool           // Redis was seen to have our data
	memories map[int]memory // of each shard
	failed   map[drop.LotID]failure
}

// failure is how a rebuild ended that is not tried again for a while.
type failure struct {
	err   error
	until time.Time
}

// memory is what the guardian remembers of a shard from pass to pass.
type memory struct {
	look        string  // of a shard that is shut or lots that are not well: acted on when two passes see the same
	clock       reading // the last one that was right
	frozenClock bool    // the shard was frozen because of its clock
	draining    time.Time
	barrier     barrier
	replication string
	lookAt      time.Time // of a shard that sells: when to look at each of its lots again
	found       []Finding // there
}

const (
	actor = "guardian"

	lookEvery  = 30 * time.Second // at every lot of a shard that sells
	lookSooner = 5 * time.Second  // while some of them are frozen
	retryAfter = time.Minute      // a rebuild that failed for good
	retryBusy  = 10 * time.Second // one of a lot that somebody else works on: to find that out takes time
	rebuildFor = 10 * time.Second // how long one pass begins rebuilds: other shards wait for it
	epochLimit = 20 * time.Second // for one lot's new epoch, which is not broken off in the middle
	drainLimit = 30 * time.Second // for the ledger to get what a shut shard holds, before somebody is called
	askLimit   = 5 * time.Second  // for one question to a queue
	atOnce     = 4                // lots worked on at a time
)

// Pass looks at every shard once, acts, and returns what it found where not everything is in order, or was put in
// order just now. A shard of another installation is left alone; if no shard is ours it returns fault.Foreign, and changes
// nothing. Other errors, joined, are those of shards that did not answer: the others are judged all the same; pass again.
func (g *Guardian) Pass(ctx context.Context) ([]Finding, error) {
	if g.memories == nil {
		g.memories, g.failed = map[int]memory{}, map[drop.LotID]failure{}
	}
	stopped, err := g.stoppedShards(ctx)
	errs := []error{err}
	p := pass{Guardian: g, rebuildsUntil: time.Now().Add(rebuildFor)}
	silent := false
	for shard, seen := range p.looks(ctx) {
		if seen.err == nil {
			p.sort(seen, stopped[shard])
			continue
		}
		silent = true
		g.forget(shard)
		errs = append(errs, seen.err)
	}
	if p.foreign != nil && !p.some && !silent {
		return nil, p.foreign
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
	some             bool  // shards that are ours
	foreign          error // of one that is not
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

// doorLook is a look at a shard's door, and at its server's clock.
type doorLook struct {
	drop.ShardState
	clock reading
	err   error
}

// looks looks at every shard's door, several at a time: a server that does not answer costs seconds.
func (p *pass) looks(ctx context.Context) []doorLook {
	looks := make([]doorLook, p.Shards)
	var g errgroup.Group
	g.SetLimit(4 * atOnce)
	for shard := range looks {
		g.Go(func() error {
			l := &looks[shard]
			l.clock.from = time.Now()
			l.ShardState, l.err = p.Stock.ShardState(ctx, shard)
			l.clock.to, l.clock.server = time.Now(), l.Now
			return nil
		})
	}
	_ = g.Wait()
	return looks
}

// sort sorts a shard by its door. Of a shard that sells, the lots are looked at only now and then.
func (p *pass) sort(seen doorLook, stopped string) {
	st, now, shard := seen.ShardState, seen.clock, seen.Shard
	m := p.memories[shard]
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
	p.some = p.some || kind != doorGone && kind != doorForeign
	p.ours = p.ours || p.some
	switch kind {
	case doorForeign:
		m.look, m.lookAt = "", time.Time{}
		p.foreign = fault.New(fault.Foreign, "shard %d in Redis belongs to another installation", shard)
		p.say(v, Finding{Action: Frozen, Reason: fault.Foreign, Evidence: fmt.Sprintf("it is of the installation %s, cut into %d shards", st.Installation, st.Shards)})
	case doorGone:
		m.lookAt = time.Time{}
		p.gone = append(p.gone, v)
	case doorLeft:
		p.say(v, Finding{Action: Left, Reason: fault.FreezeOperator})
	case doorShut:
		m.lookAt = time.Time{} // once it sells again
		p.shut = append(p.shut, v)
	case doorOpen:
		m.barrier = barrier{}
		history := st.Replication + " " + stopped
		if m.replication != history || !time.Now().Before(m.lookAt) {
			m.replication = history
			p.open = append(p.open, v)
		} else {
			p.findings = append(p.findings, m.found...)
		}
	}
	p.memories[shard] = m
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
	return p.readLots(ctx, lots, present, wanted)
}

// readLots fills in both sides with the lots of the wanted shards.
func (p *pass) readLots(ctx context.Context, recorded []drop.LedgerLot, present []drop.LotID, wanted map[int]bool) error {
	byShard := map[int][]drop.LotID{}
	for _, id := range present {
		byShard[id.Shard(p.Shards)] = append(byShard[id.Shard(p.Shards)], id)
	}
	for _, l := range recorded {
		if shard := l.Lot.Shard(p.Shards); wanted[shard] {
			p.sides.ledger[l.Lot] = l
			// Asked for by name as well: while a slot moves, a scan does not show what has moved already, but this fails.
			byShard[shard] = append(byShard[shard], l.Lot)
		}
	}
	var errs []error
	unknown := map[int]bool{}
	for shard, ids := range byShard {
		slices.Sort(ids)
		states, err := p.Stock.LotStates(ctx, slices.Compact(ids))
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
