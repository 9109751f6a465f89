package reconcile

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// sight is what one look saw of a lot. The ledger was read before Redis, so Redis is never behind in a sound system.
type sight struct {
	lot    drop.LotID
	ledger *drop.LedgerLot // nil: the ledger does not know the lot
	redis  *drop.LotState  // nil: Redis has not the lot
	events []drop.Event    // behind the ledger's watermark, from the outbox and from what waits in the ledger
}

// span is a run of seqs of which no event was found.
type span struct{ first, last int64 }

func (s span) String() string {
	if s.first == s.last {
		return strconv.FormatInt(s.first, 10)
	}
	return fmt.Sprintf("%d to %d", s.first, s.last)
}

// chain picks the events that lead from one watermark to another, in order, and names the seqs that have none.
// Where a load closed an epoch, what the old epoch still wrote behind that point is not part of the history.
func chain(from, to drop.Watermark, events []drop.Event) (run []drop.Event, missing []span) {
	at := map[drop.Watermark]drop.Event{}
	loads := map[int64]drop.Event{} // by the seq they close
	var seqs []int64
	for _, e := range events {
		if e.Seq <= from.Seq || e.Seq > to.Seq {
			continue
		}
		at[e.Watermark()] = e
		seqs = append(seqs, e.Seq)
		if e.Kind == drop.KindLoaded && e.Epoch <= to.Epoch && e.Seq == e.Closing.Seq+1 && e.Epoch > loads[e.Closing.Seq].Epoch {
			loads[e.Closing.Seq] = e
		}
	}
	slices.Sort(seqs)
	epoch, last := from.Epoch, from.Seq
	for _, seq := range slices.Compact(seqs) {
		if load, ok := loads[seq-1]; ok && load.Epoch > epoch {
			epoch = load.Epoch
		}
		e, ok := at[drop.Watermark{Epoch: epoch, Seq: seq}]
		if !ok {
			continue
		}
		if seq > last+1 {
			missing = append(missing, span{last + 1, seq - 1})
		}
		run, last = append(run, e), seq
	}
	if last < to.Seq {
		missing = append(missing, span{last + 1, to.Seq})
	}
	return run, missing
}

// tally is a lot while events are folded onto it.
type tally struct {
	drop.Definition
	held, sold int64
}

// fold takes in one event as the ledger would, and says if the event contradicts those before it. A lot event
// carries the counters of Redis, but changes only the definition: the counters follow from the other events.
func (t *tally) fold(e drop.Event) (wrong string) {
	if e.Kind == drop.KindVoid {
		return ""
	}
	if e.IsLotEvent() {
		t.Definition = e.Definition
		if e.Held != t.held || e.Sold != t.sold {
			wrong = fmt.Sprintf("the %s event says held %d, sold %d; the events before it add up to held %d, sold %d", e.Kind, e.Held, e.Sold, t.held, t.sold)
		}
		return wrong
	}
	held, sold, capacity := e.Delta()
	t.held, t.sold, t.Stock = t.held+held, t.sold+sold, t.Stock+capacity
	if t.held < 0 || t.sold < 0 || t.held+t.sold > t.Stock {
		wrong = fmt.Sprintf("the %s event of %s leads to held %d, sold %d of capacity %d", e.Kind, e.Reservation, t.held, t.sold, t.Stock)
	}
	return wrong
}

// checkArchived names the evidence that Redis has a lot which was put away.
const checkArchived = "archived"

// judge compares both sides at the watermark of Redis.
func judge(s sight, maxLag time.Duration) Row {
	row := Row{Lot: s.lot, Verdict: fault.VerdictOK}
	if s.ledger != nil {
		row.Ledger = &Side{s.ledger.Watermark, drop.Totals{Capacity: s.ledger.Stock, Held: s.ledger.Held, Sold: s.ledger.Sold, Available: s.ledger.Stock - s.ledger.Held - s.ledger.Sold}}
	}
	archived := s.ledger != nil && s.ledger.Archive == drop.Archived
	damaged := s.redis != nil && s.redis.Damaged != ""
	if s.redis != nil && !damaged {
		row.Redis = &Side{s.redis.Watermark, s.redis.Totals}
	}
	switch {
	case archived && s.redis == nil: // since the lots were listed
	case archived:
		row.Verdict = fault.VerdictDrift
		row.Evidence = []Evidence{{Check: checkArchived, Redis: "has it", Ledger: "archived", Note: "an older state of Redis has brought it back"}}
	case damaged:
		row.Verdict = fault.VerdictDrift
		row.Evidence = []Evidence{{Check: "lot", Note: s.redis.Damaged}}
	case s.ledger == nil:
		row.Verdict = fault.VerdictDrift
		row.Evidence = []Evidence{{Check: "lot", Redis: "has it", Note: "the ledger does not know this lot"}}
	case s.redis == nil:
		row.Verdict = fault.VerdictMissing
		row.Evidence = []Evidence{{Check: "lot", Ledger: "has it", Note: missingNote(*s.ledger)}}
	default:
		compare(&row, s, maxLag)
	}
	row.settle(s)
	return row
}

func missingNote(l drop.LedgerLot) string {
	switch {
	case l.Archive == drop.ArchiveBegun:
		return "its archive was begun and not finished"
	case l.Seen:
		return "Redis lost it"
	}
	return "it was created but never loaded"
}

// compare fills in the verdict on a lot that both sides have.
func compare(row *Row, s sight, maxLag time.Duration) {
	run, missing := chain(s.ledger.Watermark, s.redis.Watermark, s.events)
	row.LagEvents = max(0, s.redis.Seq-s.ledger.Seq)
	if len(run) > 0 {
		row.Lag = max(0, s.redis.Now.Sub(run[0].Time))
	}
	row.Evidence = append(invariants(*s.redis), positions(s, run, missing)...)
	row.lost = len(missing) > 0
	if len(missing) == 0 && !behind(s) {
		row.Evidence = append(row.Evidence, totals(s, run)...)
	}
	switch {
	case s.ledger.Stopped != "":
		row.Verdict, row.Reason = fault.VerdictStopped, string(s.ledger.Stopped)
	case len(row.Evidence) > 0:
		row.Verdict, row.Reason = fault.VerdictDrift, string(s.redis.FreezeReason())
	case !s.redis.Sells():
		row.Verdict, row.Reason = fault.VerdictFrozen, string(s.redis.FreezeReason())
	case row.LagEvents > 0:
		row.Verdict, row.Finding = fault.VerdictLagging, row.Lag > maxLag
	}
}

// invariants are what must hold within Redis alone.
func invariants(r drop.LotState) []Evidence {
	if r.Balanced() {
		return nil
	}
	return []Evidence{{Check: "invariant", Seq: r.Seq, Redis: fmt.Sprintf("capacity %d, available %d + held %d + sold %d = %d", r.Capacity, r.Available, r.Held, r.Sold, r.Available+r.Held+r.Sold),
		Note: "capacity must be available + held + sold, none below zero"}}
}

func behind(s sight) bool {
	return s.redis.Seq < s.ledger.Seq || s.redis.Epoch < max(s.ledger.Epoch, s.ledger.OpenEpoch)
}

// positions are differences in the place that each side has reached.
func positions(s sight, run []drop.Event, missing []span) []Evidence {
	both := Evidence{Redis: place(s.redis.Watermark), Ledger: place(s.ledger.Watermark)}
	switch {
	case s.redis.Epoch < s.ledger.OpenEpoch:
		both.Check, both.Ledger = "epoch", fmt.Sprintf("epoch %d", s.ledger.OpenEpoch)
		both.Note = "the ledger has closed the epoch that Redis is in; the load of the next one did not happen"
	case s.redis.Epoch < s.ledger.Epoch || s.redis.Seq < s.ledger.Seq:
		both.Check, both.Note = "watermark", "Redis is behind the ledger: it has lost its newest changes"
	case len(missing) > 0:
		both.Check = "events"
		both.Note = fmt.Sprintf("neither outbox nor ledger has the events %s", joinSpans(missing))
	case s.redis.Epoch > s.ledger.Epoch && (len(run) == 0 || run[len(run)-1].Epoch != s.redis.Epoch):
		both.Check, both.Note = "epoch", "Redis is in an epoch that no load event began"
	default:
		return nil
	}
	return []Evidence{both}
}

func place(w drop.Watermark) string { return fmt.Sprintf("epoch %d seq %d", w.Epoch, w.Seq) }

func joinSpans(spans []span) string {
	text := ""
	for i, s := range spans {
		switch {
		case i == 5:
			return fmt.Sprintf("%s and %d more runs", text, len(spans)-5)
		case i > 0:
			text += ", "
		}
		text += s.String()
	}
	return text
}

// totals are differences in the counters and the definition once the ledger's side has caught up.
func totals(s sight, run []drop.Event) []Evidence {
	var out []Evidence
	t := tally{s.ledger.Definition, s.ledger.Held, s.ledger.Sold}
	for _, e := range run {
		if wrong := t.fold(e); wrong != "" {
			out = append(out, Evidence{Check: "fold", Seq: e.Seq, Note: wrong})
		}
	}
	r := s.redis
	differs := func(check string, redis, ledger any) {
		if redis != ledger {
			out = append(out, Evidence{Check: check, Redis: fmt.Sprint(redis), Ledger: fmt.Sprint(ledger), Seq: r.Seq})
		}
	}
	differs("capacity", r.Capacity, t.Stock)
	differs("available", r.Available, t.Stock-t.held-t.sold)
	differs("held", r.Held, t.held)
	differs("sold", r.Sold, t.sold)
	differs("status", r.Status, t.Status)
	differs("limit", r.Limit, t.Limit)
	differs("hold", r.Hold, t.Hold)
	differs("max_hold", r.MaxHold, t.MaxHold)
	differs("opens", timeText(r.Opens), timeText(t.Opens))
	differs("closes", timeText(r.Closes), timeText(t.Closes))
	differs("late", r.Late, t.Late)
	differs("name", r.Name, t.Name)
	return out
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// settle fills in what follows from verdict and evidence: whether it is a finding, and the next command.
func (row *Row) settle(s sight) {
	switch row.Verdict {
	case fault.VerdictOK:
	case fault.VerdictLagging:
		row.Next = "dropctl worker --until-idle"
	case fault.VerdictFrozen:
		row.Finding, row.Next = true, "dropctl explain "+row.Reason
	case fault.VerdictStopped:
		row.Finding, row.Next = true, "dropctl explain "+row.Reason
	case fault.VerdictMissing:
		row.Finding, row.Next = true, "dropctl restore "+string(row.Lot)
		switch {
		case s.ledger.Archive == drop.ArchiveBegun:
			row.Next = "dropctl lot archive " + string(row.Lot)
		case !s.ledger.Seen:
			row.Next = "dropctl seed " + string(row.Lot)
		}
	default:
		row.Finding, row.Next = true, row.wayOut()
	}
	if len(row.Evidence) > 0 {
		row.Message = row.Evidence[0].String()
	}
}

// wayOut is the command to run next against drift: derived data is repaired, a lot is rebuilt from the ledger, and
// where the ledger itself is in doubt somebody has to look.
func (row *Row) wayOut() string {
	pause := fmt.Sprintf("dropctl lot pause %s --reason drift; ", row.Lot)
	switch {
	case row.Evidence[0].Check == checkArchived:
		return "dropctl lot archive " + string(row.Lot)
	case row.derivedOnly() && row.Reason != "":
		return "dropctl explain " + row.Reason
	case row.derivedOnly():
		return fmt.Sprintf("dropctl reconcile %s --repair --reason drift", row.Lot)
	case row.Ledger == nil || slices.ContainsFunc(row.Evidence, func(e Evidence) bool { return e.Check == "sales" }):
		return pause + "dropctl explain drift"
	}
	if row.lost { // restore throws nothing away that only Redis knows
		return fmt.Sprintf("%sdropctl outbox discard --lot %s --gap --reason drift; dropctl restore %s", pause, row.Lot, row.Lot)
	}
	if row.equal { // or restore would find nothing to do
		return pause + "dropctl restore " + string(row.Lot) + " --force"
	}
	return pause + "dropctl restore " + string(row.Lot)
}
