package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Everything the guardian decides is decided here, from what was seen alone.

// door says what a look at a shard's door means.
type door string

const (
	doorOpen    door = "open"
	doorShut    door = "shut"    // to be compared with the ledger
	doorGone    door = "gone"    // Redis has no such shard
	doorLeft    door = "left"    // frozen by an operator
	doorForeign door = "foreign" // another installation's
)

// judgeDoor judges a shard's door. A reason besides means that the shard is to be frozen for it first: a door that is
// only closed would open by itself if the server before came back with older data.
func judgeDoor(st drop.ShardState, installation string, shards int, jumped time.Duration) (door, fault.Code) {
	switch {
	case !st.Exists:
		return doorGone, ""
	case st.Installation != installation || st.Shards != shards:
		return doorForeign, ""
	case st.Frozen == string(fault.FreezeOperator):
		return doorLeft, ""
	case jumped != 0 && st.Frozen != string(fault.FreezeClock):
		return doorShut, fault.FreezeClock
	case st.Frozen != "":
		return doorShut, ""
	case st.Closed():
		return doorShut, fault.FreezeClosedDoor
	}
	return doorOpen, ""
}

// cure says what makes a lot sell again.
type cure string

const (
	cureNone    cure = ""        // it equals the ledger
	cureThaw    cure = "thaw"    // it equals the ledger, and was frozen because it did not
	cureRebuild cure = "rebuild" // the ledger has all that ever counted
	cureByHand  cure = "by hand" // it must not sell until somebody has looked
	cureDoubt   cure = "doubt"   // the same, if the ledger still does not know it at the next look: it may just be seeded
)

// verdict is what becomes of one lot, and why it does not equal the ledger.
type verdict struct {
	cure   cure
	reason fault.Code
}

// judge judges a lot at rest: nothing moves in Redis, and the ledger has all of its events.
func (b bothSides) judge(id drop.LotID) verdict {
	r := b.redis[id]
	reason, stopped := b.compareLot(id)
	switch {
	case stopped, reason == fault.FreezeAhead, r.Damaged != "": // of a damaged lot nobody can tell whether it is ahead
		return verdict{cureByHand, reason}
	case reason != "" && b.puttingAway(id): // a rebuild would end the archive
		return verdict{cureByHand, reason}
	case reason != "":
		return verdict{cureRebuild, reason}
	case r.Mark.Sub(r.Now) > clockTolerance: // its last change lies ahead of the server's clock: every script would refuse it
		return verdict{cureByHand, fault.FreezeClock}
	case r.LotFrozen == string(fault.FreezeRestoring): // a rebuild was broken off; one that is at it keeps ours away
		return verdict{cureRebuild, fault.FreezeRestoring}
	case r.LotFrozen == string(fault.FreezeOperator):
		return verdict{cureByHand, fault.FreezeOperator}
	case r.LotFrozen != "":
		return verdict{cureThaw, fault.Code(r.LotFrozen)}
	}
	return verdict{}
}

// compareLot returns how a lot differs between the two sides, "" if it does not. A stopped lot is told by the reason it was
// stopped for.
func (b bothSides) compareLot(id drop.LotID) (reason fault.Code, stopped bool) {
	l, known := b.ledger[id]
	r, present := b.redis[id]
	at := place(l)
	switch {
	case l.Stopped != "":
		return l.Stopped, true
	case !present:
		return fault.FreezeEmptied, false
	case r.Damaged != "":
		return fault.FreezeDiffers, false
	case !known || after(r.Watermark, at):
		return fault.FreezeAhead, false
	case r.OpenRun == "": // its shard has lost its door, and with it all that tells which server's data this is
		return fault.FreezeEmptied, false
	case after(at, r.Watermark):
		return fault.FreezeBehind, false
	case !l.Definition.Equal(r.Definition) || l.Held != r.Held || l.Sold != r.Sold || l.Stock != r.Capacity || !r.Balanced():
		return fault.FreezeDiffers, false
	}
	return "", false
}

// judgeOpen judges a lot whose shard sells. Of one that sells itself, both sides may have moved between the looks; but the
// ledger, which was read first, can never be past Redis. lost says that it is: the server has lost writes, and no lot of
// it can be trusted.
func (b bothSides) judgeOpen(id drop.LotID) (v verdict, lost bool) {
	l, known := b.ledger[id]
	r, present := b.redis[id]
	switch {
	case !present || r.LotFrozen != "" || r.Damaged != "" || l.Stopped != "":
		return b.judge(id), false
	case !known: // such as an archived lot that older data has brought back
		return verdict{cureDoubt, fault.FreezeAhead}, false
	}
	return verdict{}, after(place(l), r.Watermark)
}

// place is where the ledger stands. An epoch that was issued closes the one before, even if its load never came.
func place(l drop.LedgerLot) drop.Watermark {
	return drop.Watermark{Epoch: max(l.Epoch, l.OpenEpoch), Seq: l.Seq}
}

// after reports whether a lies behind b in a lot's history.
func after(a, b drop.Watermark) bool {
	return a.Epoch > b.Epoch || a.Epoch == b.Epoch && a.Seq > b.Seq
}

// bothSides are the lots as each store has them.
type bothSides struct {
	shards int
	ledger map[drop.LotID]drop.LedgerLot
	redis  map[drop.LotID]drop.LotState
}

// puttingAway reports whether an archive of the lot was begun. It still has to equal the ledger where Redis has it: an
// older snapshot may show it as it was when it sold.
func (b bothSides) puttingAway(id drop.LotID) bool { return b.ledger[id].Archive == drop.ArchiveBegun }

// of returns the lots of a shard that either side has, sorted. Left out are a lot that was created but never loaded,
// since nobody ever bought from it and seeding it is safe, and one that an archive has taken out of Redis already.
func (b bothSides) of(shard int) []drop.LotID {
	var ids []drop.LotID
	for id, l := range b.ledger {
		if _, loaded := b.redis[id]; id.Shard(b.shards) == shard && (loaded || l.Seen && !b.puttingAway(id)) {
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

// verdicts judges every lot of a shard at rest.
func (b bothSides) verdicts(shard int) map[drop.LotID]verdict {
	all := map[drop.LotID]verdict{}
	for _, id := range b.of(shard) {
		all[id] = b.judge(id)
	}
	return all
}

// elsewhere reports whether any lot of the shard was read from another server than the one being judged: a
// server took over between the looks, and the next pass judges that one.
func (b bothSides) elsewhere(st drop.ShardState) bool {
	return slices.ContainsFunc(b.of(st.Shard), func(id drop.LotID) bool { r, there := b.redis[id]; return there && r.Run != st.Run })
}

// evidence says where each of some lots stands on both sides, as (epoch, seq).
func (b bothSides) evidence(lots []drop.LotID) string {
	parts := make([]string, 0, len(lots))
	for _, id := range lots {
		ledger, redis := "none", "none"
		if l, known := b.ledger[id]; known {
			ledger = fmt.Sprintf("%d/%d", place(l).Epoch, l.Seq)
		}
		if r, present := b.redis[id]; present {
			redis = fmt.Sprintf("%d/%d", r.Epoch, r.Seq)
		}
		parts = append(parts, fmt.Sprintf("%s ledger %s redis %s", id, ledger, redis))
	}
	return strings.Join(parts, ", ")
}

// with returns the lots that a verdict with this cure was passed on, sorted.
func with(verdicts map[drop.LotID]verdict, c cure) []drop.LotID {
	var lots []drop.LotID
	for id, v := range verdicts {
		if v.cure == c {
			lots = append(lots, id)
		}
	}
	slices.Sort(lots)
	return lots
}

// byReason groups the lots with this cure by their reason.
func byReason(verdicts map[drop.LotID]verdict, c cure) map[fault.Code][]drop.LotID {
	groups := map[fault.Code][]drop.LotID{}
	for _, id := range with(verdicts, c) {
		groups[verdicts[id].reason] = append(groups[verdicts[id].reason], id)
	}
	return groups
}
