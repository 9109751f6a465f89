package stock

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// What a lot's hash has beside the lot itself (layout in lua/common.lua): attempts and marks, told by their length, and batches.
const batchField = "#" // starts the name of a batch's field

// recordOf returns the record that a field has, and its attempt.
func recordOf(name, value string) (attempt, record string, ok bool) {
	switch {
	case strings.HasPrefix(name, batchField):
		return "", "", false
	case len(name) == drop.MarkLen:
		return onlyHold(name, value)
	}
	return name, value, len(name) == drop.AttemptLen
}

const scanPage = 1000

// RecordsOf returns the records of attempts; those Redis does not have are absent.
func (s *Stock) RecordsOf(ctx context.Context, lot drop.LotID, attempts []string) (map[string]drop.Reservation, error) {
	out := make(map[string]drop.Reservation, len(attempts))
	h, err := s.hashOf(ctx, lot)
	if err != nil {
		return nil, err
	}
	records, err := h.records(ctx, attempts)
	if err == nil {
		records, err = h.explicit(ctx, records)
	}
	if err != nil {
		return nil, err
	}
	for attempt, record := range records {
		if out[attempt], err = parseRecord(lot, attempt, record); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Records hands every record of a lot to fn, in pages, with what was asked for. A record may come twice, and one that changes meanwhile may come
// in either state: HSCAN promises no more. One that leaves its user's field meanwhile for one of its own, which may be
// among those read before, comes with a second look at those; that one passes over reservations that have ended.
func (s *Stock) Records(ctx context.Context, lot drop.LotID, fn func([]drop.Reservation) error) error {
	h, err := s.hashOf(ctx, lot)
	if err != nil {
		return err
	}
	hand := func(fields map[string]string, letters string) error {
		records := make(map[string]string, len(fields))
		for name, value := range fields {
			attempt, record, ok := recordOf(name, value)
			ok = ok && (letters == "" || strings.ContainsAny(record[:min(1, len(record))], letters))
			if _, twice := records[attempt]; ok && (!twice || name == attempt) { // a field of its own counts, as for the scripts
				records[attempt] = record
			}
		}
		records, err := h.explicit(ctx, records)
		if err != nil {
			return err
		}
		page := make([]drop.Reservation, 0, len(records))
		for attempt, record := range records {
			r, err := parseRecord(lot, attempt, record)
			if err != nil {
				return err
			}
			r.Asked = askedIn(record)
			page = append(page, r)
		}
		return fn(page)
	}
	before, err := h.get(ctx, []string{"live"})
	if err == nil {
		err = h.scan(ctx, func(fields map[string]string) error { return hand(fields, "") })
	}
	if err != nil {
		return err
	}
	if after, err := h.get(ctx, []string{"live"}); err != nil || after["live"] == before["live"] {
		return err
	}
	return h.scanNames(ctx, strings.Repeat("?", drop.AttemptLen), func(fields map[string]string) error { return hand(fields, "hbc") })
}

// askedIn returns what the request of a record in full has asked for. No answer to a buyer has it: the scripts compare it.
func askedIn(record string) string {
	f := strings.SplitN(record, "\t", 4)
	if len(f) < 4 {
		return ""
	}
	if f[0] == "h" || f[0] == "c" { // their user comes first
		return f[2]
	}
	return f[1]
}

// Users hands every user record of a lot to fn, in pages.
func (s *Stock) Users(ctx context.Context, lot drop.LotID, fn func([]drop.UserCount) error) error {
	h, err := s.hashOf(ctx, lot)
	if err != nil {
		return err
	}
	return h.scan(ctx, func(fields map[string]string) error {
		page := make([]drop.UserCount, 0, len(fields)/2)
		for name, value := range fields {
			if len(name) == drop.MarkLen && !strings.HasPrefix(name, batchField) {
				page = append(page, parseUser(name, value))
			}
		}
		return fn(page)
	})
}

// UsersOf returns the counters of some users; those without a record are absent.
func (s *Stock) UsersOf(ctx context.Context, lot drop.LotID, users []string) (map[string]drop.UserCount, error) {
	h, err := s.hashOf(ctx, lot)
	if err != nil {
		return nil, err
	}
	marks := make([]string, len(users))
	for i, user := range users {
		marks[i] = drop.MarkOf(lot, user)
	}
	fields, err := h.get(ctx, marks)
	out := make(map[string]drop.UserCount, len(fields))
	for i, user := range users {
		if value, ok := fields[marks[i]]; ok {
			out[user] = parseUser(marks[i], value)
		}
	}
	return out, err
}

// hash is a lot's hash, read past the scripts.
type hash struct {
	stock *Stock
	node  *redis.Client
	key   string
}

func (s *Stock) hashOf(ctx context.Context, lot drop.LotID) (hash, error) {
	sh := s.shardOf(lot)
	if err := sh.refused(); err != nil {
		return hash{}, err
	}
	node, err := s.server.node(ctx, sh.keys.meta)
	return hash{s, node, sh.keys.lot(lot)}, wireFault(s.target, err, false)
}

// get returns the fields that are there.
func (h hash) get(ctx context.Context, names []string) (map[string]string, error) {
	out := make(map[string]string, len(names))
	if len(names) == 0 {
		return out, nil
	}
	values, err := h.node.HMGet(ctx, h.key, names...).Result()
	for i, v := range values {
		if text, ok := v.(string); ok {
			out[names[i]] = text
		}
	}
	return out, h.stock.commandFault(h.key, err)
}

// records returns the records of attempts, as they are stored; those that are not there are absent.
func (h hash) records(ctx context.Context, attempts []string) (map[string]string, error) {
	attempts = slices.DeleteFunc(slices.Clone(attempts), func(a string) bool { return len(a) != drop.AttemptLen }) // as damaged counters may name one
	names := make([]string, 0, 2*len(attempts))
	for _, attempt := range attempts {
		names = append(names, attempt, drop.MarkIn(attempt))
	}
	fields, err := h.get(ctx, names)
	out := make(map[string]string, len(attempts))
	for _, attempt := range attempts {
		for _, name := range []string{drop.MarkIn(attempt), attempt} {
			if a, record, ok := recordOf(name, fields[name]); ok && a == attempt && record != "" {
				out[attempt] = record
			}
		}
	}
	return out, err
}

// scan hands all fields to fn, in pages.
func (h hash) scan(ctx context.Context, fn func(map[string]string) error) error {
	return h.scanNames(ctx, "", fn)
}

// scanNames hands the fields to fn whose names match a pattern, in pages.
func (h hash) scanNames(ctx context.Context, pattern string, fn func(map[string]string) error) error {
	for cursor := uint64(0); ; {
		kv, next, err := h.node.HScan(ctx, h.key, cursor, pattern, scanPage).Result()
		if err != nil {
			return h.stock.commandFault(h.key, err)
		}
		page := make(map[string]string, len(kv)/2)
		for i := 0; i+1 < len(kv); i += 2 {
			page[kv[i]] = kv[i+1]
		}
		if err := fn(page); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// explicit returns the records in full: those of a batch with what the batch's field says. A batch may be gone by the
// time it is asked for; then its records have changed too and are read again.
func (h hash) explicit(ctx context.Context, records map[string]string) (map[string]string, error) {
	const looks = 3
	for look := 1; ; look++ {
		var short, batches []string
		seen := make(map[string]bool)
		for attempt, record := range records {
			if !strings.HasPrefix(record, "b\t") {
				continue
			}
			short = append(short, attempt)
			if name := batchField + record[strings.LastIndexByte(record, '\t')+1:]; !seen[name] {
				seen[name] = true
				batches = append(batches, name)
			}
		}
		shared, err := h.get(ctx, batches)
		if err != nil {
			return nil, err
		}
		var lost []string
		for _, attempt := range short {
			record, ok := inFull(records[attempt], shared)
			if !ok {
				lost = append(lost, attempt)
				continue
			}
			records[attempt] = record
		}
		if len(lost) == 0 || look == looks {
			return records, nil
		}
		again, err := h.records(ctx, lost)
		if err != nil {
			return nil, err
		}
		for _, attempt := range lost {
			delete(records, attempt)
			if record, ok := again[attempt]; ok {
				records[attempt] = record
			}
		}
	}
}

// inFull writes a hold of a batch as a hold of its own; false if its batch is not there.
func inFull(record string, batches map[string]string) (string, bool) {
	f := strings.Split(record, "\t") // b user asked qty index batch
	if len(f) != 6 {
		return record, false
	}
	shared, ok := batches[batchField+f[5]]
	b := strings.Split(shared, "\t") // base deadline created skipped
	if !ok || len(b) != 4 {
		return record, false
	}
	index, err1 := strconv.ParseInt(f[4], 10, 64)
	base, err2 := strconv.ParseInt(b[0], 10, 64)
	if err1 != nil || err2 != nil {
		return record, false
	}
	n := base + index
	for text := range strings.SplitSeq(b[3], ",") {
		if i, err := strconv.ParseInt(text, 10, 64); err == nil && i < index {
			n--
		}
	}
	return strings.Join([]string{"h", f[1], f[2], f[3], itoa(n), b[1], b[2]}, "\t"), true
}

// DueEntries hands every due entry of a lot to fn, in pages, and what is to become one (unfiled, see lua/common.lua) as such.
func (s *Stock) DueEntries(ctx context.Context, lot drop.LotID, fn func([]drop.DueEntry) error) error {
	keys := s.shardOf(lot).keys
	node, err := s.server.node(ctx, keys.meta)
	if err != nil {
		return wireFault(s.target, err, false)
	}
	// What is unfiled is read first: what is filed meanwhile is found among the entries.
	if err := s.unfiledOf(ctx, node, keys, lot, fn); err != nil {
		return err
	}
	from, to := "["+string(lot)+"\t", "("+string(lot)+"\n"
	for {
		members, err := node.ZRangeArgs(ctx, redis.ZRangeArgs{Key: keys.due, Start: from, Stop: to, ByLex: true, Count: scanPage}).Result()
		if err != nil {
			return s.commandFault(keys.due, err)
		}
		if len(members) == 0 {
			return nil
		}
		page := make([]drop.DueEntry, 0, len(members))
		for _, member := range members {
			page = append(page, parseDue(member))
		}
		if err := fn(page); err != nil || len(members) < scanPage {
			return err
		}
		from = "(" + members[len(members)-1]
	}
}

// StrayDues hands every due entry of a shard to fn that is of none of the known lots. What is of a known lot is passed over
// at once, however much there is of it.
func (s *Stock) StrayDues(ctx context.Context, shard int, known func(drop.LotID) bool, fn func(entry string)) error {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return err
	}
	for from := "-"; ; {
		page := int64(scanPage)
		if from == "-" || strings.HasSuffix(from, "\n") {
			page = 1 // mostly of a known lot
		}
		members, err := node.ZRangeArgs(ctx, redis.ZRangeArgs{Key: k.due, Start: from, Stop: "+", ByLex: true, Count: page}).Result()
		if err != nil {
			return s.commandFault(k.due, err)
		}
		if len(members) == 0 {
			return nil
		}
		for _, member := range members {
			lot, _, ok := strings.Cut(member, "\t")
			if ok && known(drop.LotID(lot)) {
				from = "(" + lot + "\n"
				break
			}
			fn(member)
			from = "(" + member
		}
	}
}

// DropDues takes due entries away that belong to no lot, and says of each how it went. No script keeps others away
// meanwhile: what nobody looks at may go at any time.
func (s *Stock) DropDues(ctx context.Context, shard int, entries []string) ([]drop.FixOutcome, error) {
	st, err := s.ShardState(ctx, shard)
	switch {
	case err != nil:
		return nil, err
	case st.Frozen != "" || st.Closed():
		return nil, reply{status: string(fault.LotFrozen), detail: cmp.Or(st.Frozen, string(fault.FreezeClosedDoor))}.fault("shard " + strconv.Itoa(shard))
	}
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return nil, err
	}
	outcomes := make([]drop.FixOutcome, 0, len(entries))
	for _, entry := range entries {
		gone, err := node.ZRem(ctx, k.due, entry).Result()
		if err != nil {
			return outcomes, s.commandFault(k.due, err)
		}
		if gone == 0 {
			outcomes = append(outcomes, drop.FixSame)
		} else {
			outcomes = append(outcomes, drop.FixDone)
		}
	}
	return outcomes, nil
}

// parseDue reads "lot time batch attempts"; a damaged entry has no attempts.
func parseDue(member string) drop.DueEntry {
	const digits = 13 // of a time: entries are in the order of their text
	e := drop.DueEntry{Text: member}
	f := strings.Split(member, "\t")
	if len(f) != 4 || len(f[1]) != digits {
		return e
	}
	at, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return e
	}
	e.At, e.Batch = time.UnixMilli(at).UTC(), f[2]
	for attempts := f[3]; len(attempts) >= drop.AttemptLen; attempts = attempts[drop.AttemptLen:] {
		e.Attempts = append(e.Attempts, attempts[:drop.AttemptLen])
	}
	return e
}

// Reservation returns a reservation as Redis knows it; NotFound if it does not (any more).
func (s *Stock) Reservation(ctx context.Context, id drop.ReservationID) (drop.Reservation, error) {
	found, err := s.RecordsOf(ctx, id.Lot, []string{id.Attempt})
	if err != nil {
		return drop.Reservation{}, err
	}
	r, ok := found[id.Attempt]
	if !ok || (r.ID.N != id.N && r.From != id.N) {
		return drop.Reservation{}, fault.New(fault.NotFound, "reservation %s is not in Redis", id).WithHint("ended ones are kept for the key retention; the ledger has all: dropctl reservation show %s", id)
	}
	return r, nil
}
