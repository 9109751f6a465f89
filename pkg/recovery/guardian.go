// Package recovery decides what becomes of a shard whose door is closed.
//
// A restarted, promoted or replaced Redis refuses everything until somebody has compared it with the
// ledger. The guardian is that somebody: it waits until the ledger has every event that the server still
// holds, compares each lot, and reopens the shard only if all of them are equal. Anything else it freezes
// with the reason, for an operator.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Stock is what the guardian needs of Redis.
type Stock interface {
	ShardState(ctx context.Context, shard int) (drop.ShardState, error)
	OutboxState(ctx context.Context, shard int) (drop.OutboxState, error)
	// LotsOf returns every lot that Redis has in these shards.
	LotsOf(ctx context.Context, shards []int) ([]drop.LotID, error)
	// LotStates returns a snapshot of each lot, damaged ones included; a lot that Redis has not is absent.
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	// Freeze and Reopen act only if the shard still is as it was seen, on the same server, else they return
	// fault.Conflict.
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

// The actions. Draining and settling pass by themselves, with the passes that follow; waiting does as well, but
// only once somebody has corrected the clock.
const (
	Draining Action = "draining" // the ledger has not got every event yet
	Settling Action = "settling" // equal once; reopened if the next pass finds the same
	Reopened Action = "reopened"
	Frozen   Action = "frozen"  // unequal: an operator must act
	Waiting  Action = "waiting" // frozen because of the clock, which is still behind the last change
	Left     Action = "left"    // frozen by an operator: not the guardian's to open
)

// Finding is what a pass has to say about one shard that does not sell.
type Finding struct {
	Shard   int
	Action  Action
	Reason  fault.Code   // frozen, waiting, left: why
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

	equal map[int]string // what the last pass found equal, per shard
}

// Pass looks at every shard once, reopens or freezes the closed ones and returns a finding for each shard
// that does not sell or was reopened just now. It returns fault.Foreign, and changes nothing, if a shard
// belongs to another installation. Other errors, joined, are those of shards that did not answer: the others
// are judged all the same; pass again.
func (g *Guardian) Pass(ctx context.Context) ([]Finding, error) {
	if g.equal == nil {
		g.equal = map[int]string{}
	}
	var findings []Finding
	var errs []error
	var closed, gone []drop.ShardState
	for shard := range g.Shards {
		st, err := g.Stock.ShardState(ctx, shard)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !st.Exists:
			gone = append(gone, st)
		case st.Installation != g.Installation || st.Shards != g.Shards:
			return nil, fault.New(fault.Foreign, "shard %d in Redis belongs to another installation", shard)
		case st.Frozen == string(fault.FreezeOperator):
			findings = append(findings, Finding{Shard: shard, Action: Left, Reason: fault.FreezeOperator})
		case st.Frozen != "" || st.Run != st.OpenRun:
			closed = append(closed, st)
		default:
			delete(g.equal, shard)
		}
	}
	more, err := g.judge(ctx, closed, gone)
	return append(findings, more...), errors.Join(append(errs, err)...)
}

// judge compares the closed and the missing shards with the ledger, and acts.
func (g *Guardian) judge(ctx context.Context, closed, gone []drop.ShardState) ([]Finding, error) {
	if len(closed)+len(gone) == 0 {
		return nil, nil
	}
	findings, drained, err := g.drained(ctx, closed)
	errs := []error{err}
	// The outbox is read before the ledger: what it no longer holds, the ledger must show.
	lots, err := g.lots(ctx, slices.Concat(drained, gone))
	if err != nil {
		return findings, errors.Join(append(errs, err)...)
	}
	for _, st := range gone {
		if lost := lots.lost(st.Shard); len(lost) > 0 {
			findings = append(findings, Finding{Shard: st.Shard, Action: Frozen, Reason: fault.FreezeEmptied, Lots: lost})
		}
	}
	for _, st := range drained {
		f, err := g.decide(ctx, st, lots)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		findings = append(findings, f)
	}
	return findings, errors.Join(errs...)
}

// drained returns the shards whose every event the ledger has got, and a finding for each of the others.
func (g *Guardian) drained(ctx context.Context, closed []drop.ShardState) (waiting []Finding, drained []drop.ShardState, err error) {
	var errs []error
	for _, st := range closed {
		out, err := g.Stock.OutboxState(ctx, st.Shard)
		switch {
		case err != nil:
			delete(g.equal, st.Shard)
			errs = append(errs, err)
		case out.Pending > 0:
			delete(g.equal, st.Shard)
			waiting = append(waiting, Finding{Shard: st.Shard, Action: Draining, Pending: out.Pending})
		default:
			drained = append(drained, st)
		}
	}
	return waiting, drained, errors.Join(errs...)
}

// decide reopens a drained shard that was found equal twice in a row, and freezes one that is not equal.
// The second look gives batches that some worker read from the lost server the time to reach the ledger.
// Where somebody else was faster, the next pass sees what came of it.
func (g *Guardian) decide(ctx context.Context, st drop.ShardState, lots bothSides) (Finding, error) {
	f := Finding{Shard: st.Shard, Action: Settling}
	if lots.elsewhere(st) {
		delete(g.equal, st.Shard)
		return f, nil
	}
	if early := lots.early(st.Shard); st.Frozen == string(fault.FreezeClock) && len(early) > 0 {
		delete(g.equal, st.Shard)
		return Finding{Shard: st.Shard, Action: Waiting, Reason: fault.FreezeClock, Lots: early}, nil
	}
	if reason, unequal := lots.compare(st.Shard); reason != "" {
		delete(g.equal, st.Shard)
		if st.Frozen != string(reason) {
			switch err := g.Stock.Freeze(ctx, st, reason); {
			case fault.Is(err, fault.Conflict):
				return f, nil
			case err != nil:
				return f, err
			}
		}
		return Finding{Shard: st.Shard, Action: Frozen, Reason: reason, Lots: unequal}, nil
	}
	f.Equal = len(lots.of(st.Shard))
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

// lots reads all lots of some shards from both sides, the ledger first. Other shards are left out: their
// servers may not answer.
func (g *Guardian) lots(ctx context.Context, shards []drop.ShardState) (bothSides, error) {
	b := bothSides{shards: g.Shards, ledger: map[drop.LotID]drop.LedgerLot{}}
	if len(shards) == 0 {
		return b, nil
	}
	recorded, err := g.Ledger.Lots(ctx)
	if err != nil {
		return b, err
	}
	for _, l := range recorded {
		b.ledger[l.Lot] = l
	}
	numbers := make([]int, len(shards))
	for i, st := range shards {
		numbers[i] = st.Shard
	}
	present, err := g.Stock.LotsOf(ctx, numbers)
	if err != nil {
		return b, err
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

// elsewhere reports whether any lot of the shard was read from another server than the one being judged: a
// server took over between the looks, and the next pass judges that one.
func (b bothSides) elsewhere(st drop.ShardState) bool {
	return slices.ContainsFunc(b.of(st.Shard), func(id drop.LotID) bool { r, there := b.redis[id]; return there && r.Run != st.Run })
}

// early returns the lots of a shard whose last change lies ahead of the server's clock.
func (b bothSides) early(shard int) []drop.LotID {
	return slices.DeleteFunc(b.of(shard), func(id drop.LotID) bool { r := b.redis[id]; return !r.Now.Before(r.Mark) })
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
	case r.Damaged != "":
		return fault.FreezeDiffers, false
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
