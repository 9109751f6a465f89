package stock

import (
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	sliceFields = 1000 // records or user counters written by one call: few enough to hold nobody up
	dueGroup    = 256  // attempts in one due entry
)

// RebuildRequest puts a lot into Redis with all its records. Records and Users hand over everything there is, in pages
// that stay valid until the function given returns; of two records of one attempt the later stays.
type RebuildRequest struct {
	LoadRequest
	Records func(ctx context.Context, fn func(page []drop.Record) error) error
	Users   func(ctx context.Context, fn func(page []drop.UserCount) error) error
}

// PrepareRebuild throws away what an earlier rebuild of the lot left, and finds out whether Redis can be written to:
// OutOfMemory if it has no room.
func (s *Stock) PrepareRebuild(ctx context.Context, lot drop.LotID) error {
	if err := (&staging{stock: s, lot: lot}).write(ctx, nil, nil); err != nil {
		return err
	}
	keys := s.shardOf(lot).keys
	node, err := s.server.node(ctx, keys.meta)
	if err == nil {
		err = node.Unlink(ctx, keys.staged(lot)...).Err()
	}
	return wireFault(s.target, err, false)
}

// Rebuild writes the records beside the lot, where nobody sees them, and then lets the lot appear with them at once. Until
// then nothing of the lot has changed; what a broken off call has written is thrown away by the next. It returns the run
// id of the server that has the lot now, or Conflict, and changes nothing that counts, if Redis is not as planned.
func (s *Stock) Rebuild(ctx context.Context, q RebuildRequest) (run string, err error) {
	st := &staging{stock: s, lot: q.Definition.Lot, epoch: q.Epoch}
	// An empty slice comes first: it throws away what an earlier rebuild left.
	if err := st.write(ctx, nil, nil); err != nil {
		return "", err
	}
	if err := q.Records(ctx, func(page []drop.Record) error { return st.records(ctx, page) }); err != nil {
		return "", err
	}
	if err := q.Users(ctx, func(page []drop.UserCount) error { return st.users(ctx, page) }); err != nil {
		return "", err
	}
	return s.load(ctx, q.LoadRequest, st.slices)
}

// staging is what is being written beside a lot.
type staging struct {
	stock  *Stock
	lot    drop.LotID
	epoch  int64
	slices int // written
}

func (st *staging) records(ctx context.Context, page []drop.Record) error {
	for slice := range slices.Chunk(page, sliceFields) {
		fields := make([]string, 0, 2*len(slice))
		for _, r := range slice {
			fields = append(fields, r.ID.Attempt, recordText(r))
		}
		if err := st.write(ctx, st.dues(slice), fields); err != nil {
			return err
		}
	}
	return nil
}

func (st *staging) users(ctx context.Context, page []drop.UserCount) error {
	for slice := range slices.Chunk(page, sliceFields) {
		fields := make([]string, 0, 2*len(slice))
		for _, u := range slice {
			fields = append(fields, drop.MarkOf(st.lot, u.User), strings.Join([]string{itoa(u.Held), itoa(u.Bought), u.Live, u.User}, "\t"))
		}
		if err := st.write(ctx, nil, fields); err != nil {
			return err
		}
	}
	return nil
}

// write writes the next slice. One whose outcome is unknown is written again: twice is the same as once.
func (st *staging) write(ctx context.Context, dues, fields []string) error {
	s := st.stock
	sh := s.shardOf(st.lot)
	args := append([]string{itoa(st.epoch), strconv.Itoa(st.slices + 1), strconv.Itoa(len(dues))}, dues...)
	args = append(args, fields...)
	const tries = 3
	for try := 1; ; try++ {
		r, err := s.script(ctx, sh, "stage", sh.keys.staging(st.lot), args)
		if fault.Is(err, fault.OutcomeUnknown) && try < tries && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return err
		}
		if fault.Code(r.status) == fault.Conflict {
			return fault.New(fault.Conflict, "what was being rebuilt of lot %s went away in Redis", st.lot).WithHint("run the rebuild again: dropctl restore %s", st.lot)
		}
		st.slices++
		return r.fault("lot " + string(st.lot))
	}
}

// dues groups the attempts of records that time will end: holds by their deadline, ended reservations by the end of
// their retention. A group of holds is looked at when the first of them is due, since no other may be late; one of
// ended reservations when the last is, since none has to be forgotten at once.
func (st *staging) dues(slice []drop.Record) []string {
	type due struct {
		at      int64 // ms
		attempt string
	}
	var holds, ended []due
	for _, r := range slice {
		switch r.State {
		case drop.Held:
			holds = append(holds, due{r.Deadline.UnixMilli(), r.ID.Attempt})
		case drop.Confirmed: // lasts
		default:
			ended = append(ended, due{r.Ended.Add(st.stock.opt.KeyRetention).UnixMilli(), r.ID.Attempt})
		}
	}
	var members []string
	for _, list := range [][]due{holds, ended} {
		slices.SortFunc(list, func(a, b due) int { return cmp.Compare(a.at, b.at) })
	}
	group := func(list []due, at int64) {
		var attempts strings.Builder
		for _, d := range list {
			attempts.WriteString(d.attempt)
		}
		members = append(members, dueMember(st.lot, at, attempts.String()))
	}
	for list := range slices.Chunk(holds, dueGroup) {
		group(list, list[0].at)
	}
	for list := range slices.Chunk(ended, dueGroup) {
		group(list, list[len(list)-1].at)
	}
	return members
}

// dueMember is a member of `due`: see lua/common.lua.
func dueMember(lot drop.LotID, at int64, attempts string) string {
	digits := itoa(max(0, at))
	return string(lot) + "\t" + strings.Repeat("0", max(0, 13-len(digits))) + digits + "\t\t" + attempts
}

// recordText writes a record as Redis keeps it: see lua/common.lua.
func recordText(r drop.Record) string {
	n, last, qty := itoa(r.ID.N), itoa(r.LastSeq), itoa(r.Qty)
	late := digest(r.LateRef)
	switch r.State {
	case drop.Held:
		f := []string{"h", r.User, r.Asked, qty, n, timeMS(r.Deadline), timeMS(r.Created)}
		if r.LastSeq != r.ID.N {
			f = append(f, last)
		}
		return strings.Join(f, "\t")
	case drop.Confirmed:
		return strings.Join([]string{"c", r.User, r.Asked, qty, n, last, itoa(r.Rest), itoa(r.Refunded), itoa(r.From), r.Ref, late, timeMS(r.ConfirmedAt)}, "\t")
	case drop.Released:
		return strings.Join([]string{"r", r.Asked, qty, n, last, timeMS(r.Ended), late}, "\t")
	case drop.Refunded:
		return strings.Join([]string{"f", r.Asked, "0", n, last, timeMS(r.Ended), itoa(r.Refunded), late, itoa(r.From), digest(r.Ref)}, "\t")
	}
	return strings.Join([]string{"x", r.Asked, qty, n, last, timeMS(r.Ended), r.User, late}, "\t")
}

// digest is by what a record remembers a payment reference, as lua/settle.lua makes it.
func digest(ref string) string {
	if ref == "" {
		return ""
	}
	sum := sha1.Sum([]byte(ref))
	return hex.EncodeToString(sum[:])[:10]
}

// EndedSince is how far back ended reservations of a lot are remembered: those that ended before, in Redis time, are
// forgotten.
func (s *Stock) EndedSince(ctx context.Context, lot drop.LotID) (time.Time, error) {
	node, err := s.server.node(ctx, s.shardOf(lot).keys.meta)
	if err != nil {
		return time.Time{}, wireFault(s.target, err, false)
	}
	now, err := node.Time(ctx).Result()
	return now.Add(-s.opt.KeyRetention).UTC(), wireFault(s.target, err, false)
}

// Remove takes a lot out of Redis, if it still is as it was seen, else it returns Conflict. A lot that is not there is
// no error.
func (s *Stock) Remove(ctx context.Context, seen drop.LotState) error {
	sh := s.shardOf(seen.Lot)
	r, err := s.script(ctx, sh, "remove", sh.keys.staging(seen.Lot), []string{string(seen.Lot), PlanOf(seen).text()})
	if err != nil {
		return err
	}
	if fault.Code(r.status) == fault.Conflict {
		return fault.New(fault.Conflict, "lot %s in Redis is no longer as it was seen", seen.Lot).WithHint("run the command again")
	}
	return r.fault("lot " + string(seen.Lot))
}
