// Package recovery decides what becomes of a shard whose door is closed.
//
// A restarted, promoted or replaced Redis refuses everything until somebody has compared it with the
// ledger. The guardian is that somebody: it waits until the ledger has every event that the server still
// holds, compares each lot, and reopens the shard only if all of them are equal. Anything else it freezes
// with the reason, for an operator.
package recovery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Stock is what the guardian needs of Redis.
type Stock interface {
	ShardState(ctx context.Context, shard int) (drop.ShardState, error)
	OutboxState(ctx context.Context, shard int) (drop.OutboxState, error)
	Lots(ctx context.Context) ([]drop.LotID, error)
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	// Freeze and Reopen act only if the shard still is as it was seen, else they return fault.Conflict.
	Freeze(ctx context.Context, seen drop.ShardState, reason fault.Code) error
	Reopen(ctx context.Context, seen drop.ShardState) error
}

// Ledger is what the guardian needs of PostgreSQL.
type Ledger interface {
	// Lots returns every lot.
	Lots(ctx context.Context) ([]drop.LedgerLot, error)
}

// Action is what the guardian did about a shard, or waits for.
type Action string

// The actions. Draining and settling pass by themselves, with the passes that follow.
const (
	Draining Action = "draining" // the ledger has not got every event yet
	Settling Action = "settling" // equal once; reopened if the next pass finds the same
	Reopened Action = "reopened"
	Frozen   Action = "frozen" // unequal: an operator must act
	Left     Action = "left"   // frozen by an operator or the clock: not the guardian's to open
)

// Finding is what a pass has to say about one shard that does not sell.
type Finding struct {
	Shard   int
	Action  Action
	Reason  fault.Code   // frozen, left: why
	Lots    []drop.LotID // the lots that gave the reason
	Pending int64        // draining: entries the ledger has not got
	Equal   int          // settling, reopened: lots compared
}

// Passing reports whether a later pass will change the finding without anybody's help.
func (f Finding) Passing() bool { return f.Action == Draining || f.Action == Settling }

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

// Guardian watches the doors of all shards. Its fields are set before the first pass. It is not safe for
// concurrent use, but any number of guardians may watch the same shards: each acts only on what it has
// just seen, so they end in the same state.
type Guardian struct {
	Stock        Stock
	Ledger       Ledger
	Installation string
	Shards       int

	// InHand returns the lock of what this process has read from a shard's outbox but not applied yet. It is
	// held while comparing: a batch from the lost server must not slip into the ledger after the comparison.
	InHand func(shard int) sync.Locker

	equal  map[int]string  // what the last pass found equal, per shard
	absent map[int]Finding // what was found when a shard turned out to be absent
}

// Pass looks at every shard once, reopens or freezes the closed ones and returns a finding for each shard
// that does not sell or was reopened just now. It returns fault.Foreign, and changes nothing more, if a
// shard belongs to another installation; other errors mean that a server did not answer: pass again.
func (g *Guardian) Pass(ctx context.Context) ([]Finding, error) {
	if g.equal == nil {
		g.equal, g.absent = map[int]string{}, map[int]Finding{}
	}
	var findings []Finding
	var closed, gone []drop.ShardState
	for shard := range g.Shards {
		st, err := g.Stock.ShardState(ctx, shard)
		switch {
		case err != nil:
			return findings, err
		case !st.Exists:
			if known, ok := g.absent[shard]; !ok {
				gone = append(gone, st)
			} else if known.Action != "" {
				findings = append(findings, known)
			}
			continue
		case st.Installation != g.Installation || st.Shards != g.Shards:
			return findings, fault.New(fault.Foreign, "shard %d in Redis belongs to another installation", shard)
		case st.Frozen == string(fault.FreezeOperator) || st.Frozen == string(fault.FreezeClock):
			findings = append(findings, Finding{Shard: shard, Action: Left, Reason: fault.Code(st.Frozen)})
		case st.Frozen != "" || st.Run != st.OpenRun:
			closed = append(closed, st)
		default:
			delete(g.equal, shard)
		}
		delete(g.absent, shard)
	}
	more, err := g.judge(ctx, closed, gone)
	return append(findings, more...), err
}

// judge compares the closed and the missing shards with the ledger, and acts.
func (g *Guardian) judge(ctx context.Context, closed, gone []drop.ShardState) ([]Finding, error) {
	if len(closed)+len(gone) == 0 {
		return nil, nil
	}
	for _, st := range closed {
		lock := g.InHand(st.Shard)
		lock.Lock()
		defer lock.Unlock()
	}
	findings, drained, err := g.drained(ctx, closed)
	if err != nil {
		return findings, err
	}
	// The outbox is read before the ledger: what it no longer holds, the ledger must show.
	lots, err := g.lots(ctx)
	if err != nil {
		return findings, err
	}
	for _, st := range gone {
		f := Finding{Shard: st.Shard, Lots: lots.lost(st.Shard)}
		if len(f.Lots) > 0 {
			f.Action, f.Reason = Frozen, fault.FreezeEmptied
			findings = append(findings, f)
		}
		g.absent[st.Shard] = f
	}
	for _, st := range drained {
		f, err := g.decide(ctx, st, lots)
		if err != nil {
			return findings, err
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// drained returns the shards whose every event the ledger has got, and a finding for each of the others.
func (g *Guardian) drained(ctx context.Context, closed []drop.ShardState) (waiting []Finding, drained []drop.ShardState, err error) {
	for _, st := range closed {
		out, err := g.Stock.OutboxState(ctx, st.Shard)
		if err != nil {
			return waiting, nil, err
		}
		if out.Pending > 0 {
			delete(g.equal, st.Shard)
			waiting = append(waiting, Finding{Shard: st.Shard, Action: Draining, Pending: out.Pending})
			continue
		}
		drained = append(drained, st)
	}
	return waiting, drained, nil
}

// decide reopens a drained shard that was found equal twice in a row, and freezes one that is not equal.
// The second look gives other workers, whose batches this process cannot see, the time to apply them.
// Where somebody else was faster, the next pass sees what came of it.
func (g *Guardian) decide(ctx context.Context, st drop.ShardState, lots bothSides) (Finding, error) {
	if reason, unequal := lots.compare(st.Shard); reason != "" {
		delete(g.equal, st.Shard)
		if st.Frozen != string(reason) {
			err := g.Stock.Freeze(ctx, st, reason)
			if fault.Is(err, fault.Conflict) {
				return Finding{Shard: st.Shard, Action: Settling}, nil
			}
			if err != nil {
				return Finding{}, err
			}
		}
		return Finding{Shard: st.Shard, Action: Frozen, Reason: reason, Lots: unequal}, nil
	}
	f := Finding{Shard: st.Shard, Action: Settling, Equal: len(lots.of(st.Shard))}
	look := st.Run + lots.signature(st.Shard)
	if g.equal[st.Shard] != look {
		g.equal[st.Shard] = look
		return f, nil
	}
	delete(g.equal, st.Shard)
	switch err := g.Stock.Reopen(ctx, st); {
	case err == nil:
		f.Action = Reopened
	case !fault.Is(err, fault.Conflict):
		return f, err
	}
	return f, nil
}

// lots reads all lots from both sides, the ledger first.
func (g *Guardian) lots(ctx context.Context) (bothSides, error) {
	b := bothSides{shards: g.Shards, ledger: map[drop.LotID]drop.LedgerLot{}}
	recorded, err := g.Ledger.Lots(ctx)
	if err != nil {
		return b, err
	}
	present, err := g.Stock.Lots(ctx)
	if err != nil {
		return b, err
	}
	for _, l := range recorded {
		b.ledger[l.Lot] = l
	}
	b.redis, err = g.Stock.LotStates(ctx, present)
	return b, err
}

// bothSides are the lots as each store has them.
type bothSides struct {
	shards int
	ledger map[drop.LotID]drop.LedgerLot
	redis  map[drop.LotID]drop.LotState
}

// of returns the lots of a shard that either side has, sorted. A lot that was created but never loaded is
// left out: nobody ever bought from it, and seeding it is safe.
func (b bothSides) of(shard int) []drop.LotID {
	var ids []drop.LotID
	for id, l := range b.ledger {
		if _, loaded := b.redis[id]; id.Shard(b.shards) == shard && (l.Seen || loaded) {
			ids = append(ids, id)
		}
	}
	for id := range b.redis {
		if _, known := b.ledger[id]; id.Shard(b.shards) == shard && !known {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// lost returns the lots of a shard that the ledger has events of and Redis does not have.
func (b bothSides) lost(shard int) []drop.LotID {
	return slices.DeleteFunc(b.of(shard), func(id drop.LotID) bool { _, there := b.redis[id]; return there })
}

// signature sums up where each lot of a shard stands.
func (b bothSides) signature(shard int) string {
	var s strings.Builder
	for _, id := range b.of(shard) {
		w := b.ledger[id].Watermark
		fmt.Fprintf(&s, " %s %d/%d", id, w.Epoch, w.Seq)
	}
	return s.String()
}

// gravity orders the reasons: the first needs the most care and names the shard's reason.
var gravity = []fault.Code{fault.FreezeAhead, fault.FreezeDiffers, fault.FreezeBehind, fault.FreezeEmptied}

// compare returns why a shard must stay shut and the lots that say so, or "" if both sides are equal.
// A stopped lot comes before every other reason.
func (b bothSides) compare(shard int) (fault.Code, []drop.LotID) {
	unequal := map[fault.Code][]drop.LotID{}
	for _, id := range b.of(shard) {
		reason, stopped := b.compareLot(id)
		if stopped {
			return reason, []drop.LotID{id}
		}
		unequal[reason] = append(unequal[reason], id)
	}
	for _, reason := range gravity {
		if len(unequal[reason]) > 0 {
			return reason, unequal[reason]
		}
	}
	return "", nil
}

func (b bothSides) compareLot(id drop.LotID) (reason fault.Code, stopped bool) {
	l, known := b.ledger[id]
	r, present := b.redis[id]
	// An epoch that was issued closes the one before, even if its load never came.
	at := l.Watermark
	at.Epoch = max(at.Epoch, l.OpenEpoch)
	switch {
	case l.Stopped != "":
		return l.Stopped, true
	case !present:
		return fault.FreezeEmptied, false
	case !known || after(r.Watermark, at):
		return fault.FreezeAhead, false
	case after(at, r.Watermark):
		return fault.FreezeBehind, false
	case !l.Definition.Equal(r.Definition) || l.Held != r.Held || l.Sold != r.Sold || l.Stock != r.Capacity || !r.Balanced():
		return fault.FreezeDiffers, false
	}
	return "", false
}

// after reports whether a lies behind b in a lot's history.
func after(a, b drop.Watermark) bool {
	return a.Epoch > b.Epoch || a.Epoch == b.Epoch && a.Seq > b.Seq
}
