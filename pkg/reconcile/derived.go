package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// derived checks what Redis keeps beside the records: every user's counters, a due entry for every hold and a look
// when it is due, and nothing that has no use. What changes while it is read is left to the next look.
func (r *run) derived(ctx context.Context, p *proof, redis records, at drop.LotState) error {
	users := map[string]drop.UserCount{}
	err := r.stock.Users(ctx, at.Lot, func(page []drop.UserCount) error {
		for _, u := range page {
			users[u.Mark] = u
		}
		return nil
	})
	if err != nil {
		return err
	}
	due, batches := map[string]time.Time{}, map[string]bool{}
	err = r.stock.DueEntries(ctx, at.Lot, func(page []drop.DueEntry) error {
		for _, d := range page {
			for _, a := range d.Attempts {
				if t, ok := due[a]; !ok || d.At.Before(t) {
					due[a] = d.At
				}
			}
			batches[d.Batch] = true
			p.stray(d, at)
		}
		return nil
	})
	if err != nil {
		return err
	}
	moved, err := r.movedSince(ctx, at)
	if err != nil {
		return err
	}
	p.users(redis, users, moved, at.Seq)
	p.dues(redis, due, moved, at.Seq)
	if err := r.batches(ctx, p, batches, at); err != nil {
		return err
	}
	return r.nextLook(ctx, p, at)
}

// stray says of a due entry if it is none: the scripts pass over it, or never come to it.
func (p *proof) stray(d drop.DueEntry, at drop.LotState) {
	e := Evidence{Check: "stray_due", Subject: shortened(d.Text), Seq: at.Seq}
	switch {
	case len(d.Attempts) == 0:
		e.Note = "the due entry is damaged"
	case d.At.After(at.Now.Add(drop.LatestDue)):
		e.Note = "nothing can be due as late as " + timeText(d.At)
	default:
		return
	}
	e.fix = &drop.Fix{Kind: drop.FixStray, Subject: d.Text}
	p.evidence = append(p.evidence, e)
}

// batches checks that each batch has a due entry, with which it goes, or at least a hold that needs it.
func (r *run) batches(ctx context.Context, p *proof, filed map[string]bool, at drop.LotState) error {
	stray, err := r.stock.StrayBatches(ctx, at.Lot, filed)
	for _, name := range stray {
		p.evidence = append(p.evidence, Evidence{Check: "batch", Subject: strings.ToValidUTF8(name, "?"), Seq: at.Seq, Note: "no hold needs it any more, and no due entry will take it away",
			fix: &drop.Fix{Kind: drop.FixBatch, Subject: name}})
	}
	return err
}

// nextLook checks that the sweep looks at the lot when its first entry is due. Nobody looks at a frozen lot.
func (r *run) nextLook(ctx context.Context, p *proof, at drop.LotState) error {
	if at.LotFrozen != "" {
		return nil
	}
	filed, first, err := r.stock.NextLook(ctx, at.Lot)
	if err != nil || first.IsZero() || !filed.IsZero() && !filed.After(first) {
		return err
	}
	p.evidence = append(p.evidence, Evidence{Check: "next_look", Redis: timeText(filed), Seq: at.Seq, Note: "the first due entry is of " + timeText(first),
		fix: &drop.Fix{Kind: drop.FixNext}})
	return nil
}

// moved are the users, by their marks, and attempts that changed while something was read.
type moved struct {
	all      bool // nothing can be said
	users    map[string]bool
	attempts map[string]bool
}

func (r *run) movedSince(ctx context.Context, at drop.LotState) (moved, error) {
	states, err := r.stock.LotStates(ctx, []drop.LotID{at.Lot})
	if err != nil {
		return moved{}, err
	}
	m := moved{users: map[string]bool{}, attempts: map[string]bool{}}
	now, ok := states[at.Lot]
	if !ok || now.Epoch != at.Epoch {
		m.all = true
		return m, nil
	}
	if now.Seq == at.Seq {
		return m, nil
	}
	found, err := r.eventsSince(ctx, map[drop.LotID]drop.Watermark{at.Lot: at.Watermark})
	if err != nil {
		return moved{}, err
	}
	events, missing := chain(at.Watermark, now.Watermark, found[at.Lot])
	m.all = len(missing) > 0
	for _, e := range events {
		if attempt := e.Reservation.Attempt; attempt != "" {
			m.users[drop.MarkIn(attempt)], m.attempts[attempt] = true, true
		}
	}
	return m, nil
}

func (p *proof) users(redis records, counted map[string]drop.UserCount, m moved, seq int64) {
	want := make(map[string]drop.UserCount, len(counted))
	for _, r := range redis {
		mark := drop.MarkIn(r.ID.Attempt)
		u := want[mark]
		u.Mark, u.User = mark, r.User
		if r.State == drop.Held {
			// A user has one hold at a time. Where there are more, every look and the repair must say the same.
			u.Held, u.Live = u.Held+r.Qty, max(u.Live, r.ID.Attempt)
		} else {
			u.Bought += r.Qty
		}
		want[mark] = u
	}
	for mark, u := range counted {
		if _, ok := want[mark]; !ok {
			want[mark] = drop.UserCount{Mark: mark, User: u.User}
		}
	}
	wrong := map[string]*drop.Fix{}
	for mark, w := range want {
		got, there := counted[mark]
		if got.Mark = mark; !there || got.Damaged {
			got.User = w.User
		}
		if got == w {
			continue
		}
		wrong[mark] = &drop.Fix{Kind: drop.FixUser, Subject: w.User, Seen: got}
		p.note(m.all || m.users[mark], Evidence{Check: "user", Subject: cmp.Or(w.User, "mark "+mark), Seq: seq, Redis: countText(got), Note: "the records of Redis add up to " + countText(w), fix: wrong[mark]})
	}
	redis.attach(wrong)
}

// attach gives the fixes of users the records that they follow from.
func (rs records) attach(wrong map[string]*drop.Fix) {
	if len(wrong) == 0 {
		return
	}
	for _, r := range rs {
		if f := wrong[drop.MarkIn(r.ID.Attempt)]; f != nil {
			f.Records = append(f.Records, r)
		}
	}
	for _, f := range wrong {
		slices.SortFunc(f.Records, func(a, b drop.Reservation) int { return cmp.Compare(a.ID.Attempt, b.ID.Attempt) })
	}
}

// note keeps a difference as proof, or as a movement if its subject changed while it was read.
func (p *proof) note(moving bool, e Evidence) {
	if moving {
		p.moving = append(p.moving, e)
	} else {
		p.evidence = append(p.evidence, e)
	}
}

func countText(u drop.UserCount) string {
	if u.Damaged {
		return "damaged"
	}
	return fmt.Sprintf("held %d, bought %d, live hold %s", u.Held, u.Bought, orNone(u.Live))
}

func (p *proof) dues(redis records, due map[string]time.Time, m moved, seq int64) {
	for id, r := range redis {
		at, ok := due[id.Attempt]
		if r.State != drop.Held || ok && !at.After(r.Deadline) {
			continue
		}
		found := "none"
		if ok {
			found = timeText(at)
		}
		p.note(m.all || m.attempts[id.Attempt], Evidence{Check: "due", Subject: id.String(), Seq: seq, Redis: found, Note: "the hold needs a due entry at or before its deadline " + timeText(r.Deadline),
			fix: &drop.Fix{Kind: drop.FixDue, Subject: id.Attempt, Records: []drop.Reservation{r}}})
	}
}
