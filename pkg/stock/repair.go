package stock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// fixesPerCall bounds how long a repair keeps Redis from other calls.
const fixesPerCall = 200

// Repair carries out fixes of a lot and says of each how it went. seen is the lot as it was with the evidence: on
// another server or in another epoch every fix is a conflict. An error may come after some fixes were carried out; to
// repeat them does no harm.
func (s *Stock) Repair(ctx context.Context, seen drop.LotState, fixes []drop.Fix) ([]drop.FixOutcome, error) {
	sh := s.shardOf(seen.Lot)
	outcomes := make([]drop.FixOutcome, 0, len(fixes))
	for chunk := range slices.Chunk(fixes, fixesPerCall) {
		args := []string{string(seen.Lot), seen.Run, itoa(seen.Epoch), itoa(seen.Seq), itoa(drop.LatestDue.Milliseconds())}
		for _, f := range chunk {
			args = append(args, fixArgs(f)...)
		}
		r, err := s.script(ctx, sh, lua.Repair, sh.keys.gated(seen.Lot), args)
		if err != nil {
			return outcomes, err
		}
		conflict := fault.Code(r.status) == fault.Conflict
		if err := r.fault("lot " + string(seen.Lot)); err != nil && !conflict {
			return outcomes, err
		}
		for i := range chunk {
			outcome := drop.FixOutcome(r.text(i))
			if conflict {
				outcome = drop.FixConflict
			}
			outcomes = append(outcomes, outcome)
		}
	}
	return outcomes, nil
}

// fixArgs writes a fix as repair.lua reads it.
func fixArgs(f drop.Fix) []string {
	switch f.Kind {
	case drop.FixDue:
		return append([]string{"due"}, lastSeqs(f.Records)...)
	case drop.FixStray:
		return []string{"stray", f.Subject}
	case drop.FixBatch:
		return []string{"batch", f.Subject}
	case drop.FixUser:
		seen := itoa(f.Seen.Held) + "\t" + itoa(f.Seen.Bought) + "\t" + f.Seen.Live
		if f.Seen.Damaged {
			seen = "damaged"
		}
		return append([]string{"user", f.Seen.Mark, f.Subject, seen, strconv.Itoa(len(f.Records))}, lastSeqs(f.Records)...)
	}
	return []string{"next"}
}

func lastSeqs(records []drop.Reservation) []string {
	args := make([]string, 0, 2*len(records))
	for _, r := range records {
		args = append(args, r.ID.Attempt, itoa(r.LastSeq))
	}
	return args
}

// NextLook returns when the sweep will look at a lot, and when its first due entry is; each is zero where there is none.
// Where both go on changing, first is zero. It asks without MULTI, which a server out of memory refuses even for reads.
func (s *Stock) NextLook(ctx context.Context, lot drop.LotID) (filed, first time.Time, err error) {
	keys := s.shardOf(lot).keys
	node, err := s.server.node(ctx, keys.meta)
	if err != nil {
		return filed, first, wireFault(s.target, err, false)
	}
	const tries = 5
	for range tries {
		pipe := node.Pipeline()
		score := pipe.ZScore(ctx, keys.next, string(lot))
		entries := pipe.ZRangeArgs(ctx, redis.ZRangeArgs{Key: keys.due, Start: "[" + string(lot) + "\t0", Stop: "(" + string(lot) + "\t:", ByLex: true, Count: 1})
		again := pipe.ZScore(ctx, keys.next, string(lot))
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			if wrongType(score.Err()) {
				return filed, first, s.commandFault(keys.next, score.Err())
			}
			return filed, first, s.commandFault(keys.due, err)
		}
		if score.Val() != again.Val() {
			continue // a script came between, and the entries may be from before it or after
		}
		if score.Err() == nil {
			filed = time.UnixMilli(int64(score.Val())).UTC()
		}
		for _, member := range entries.Val() {
			first = parseDue(member).At
		}
		break
	}
	return filed, first, nil
}

// StrayBatches lists a lot's batches, but for those that are filed in a due entry, to which no record refers.
func (s *Stock) StrayBatches(ctx context.Context, lot drop.LotID, filed map[string]bool) ([]string, error) {
	h, err := s.hashOf(ctx, lot)
	if err != nil {
		return nil, err
	}
	stray := make(map[string]bool)
	err = h.scanNames(ctx, batchField+"*", func(fields map[string]string) error {
		for name := range fields {
			if batch := strings.TrimPrefix(name, batchField); !filed[batch] {
				stray[batch] = true
			}
		}
		return nil
	})
	if err != nil || len(stray) == 0 {
		return nil, err
	}
	// Whether a record refers to one is seldom asked: a sound lot has each of its batches in a due entry.
	err = h.scan(ctx, func(fields map[string]string) error {
		for name, value := range fields {
			if _, record, ok := recordOf(name, value); ok && strings.HasPrefix(record, "b\t") {
				delete(stray, record[strings.LastIndexByte(record, '\t')+1:])
			}
		}
		return nil
	})
	names := make([]string, 0, len(stray))
	for name := range stray {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, err
}
