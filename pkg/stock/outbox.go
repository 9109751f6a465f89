package stock

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
)

// consumerGroup is that of the outbox readers.
const consumerGroup = "ledger"

const outboxPage = 200 // entries read at a time: each may have some hundred events

func (s *Stock) nodeOf(ctx context.Context, shard int) (*redis.Client, shardKeys, error) {
	k := s.shards[shard].keys
	n, err := s.server.node(ctx, k.meta)
	return n, k, wireFault(s.target, err, false)
}

// ReadNew returns entries no consumer has been given yet, waiting up to block for the first (block < 0: not at all).
func (s *Stock) ReadNew(ctx context.Context, shard int, consumer string, count int, block time.Duration) ([]drop.OutboxEntry, error) {
	return s.readGroup(ctx, shard, consumer, ">", count, block)
}

// ReadPending returns entries given to this consumer and not acknowledged, behind a stream id ("0": from the first).
func (s *Stock) ReadPending(ctx context.Context, shard int, consumer, after string, count int) ([]drop.OutboxEntry, error) {
	return s.readGroup(ctx, shard, consumer, after, count, -1)
}

func (s *Stock) readGroup(ctx context.Context, shard int, consumer, from string, count int, block time.Duration) ([]drop.OutboxEntry, error) {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return nil, err
	}
	args := &redis.XReadGroupArgs{Group: consumerGroup, Consumer: consumer, Streams: []string{k.outbox, from}, Count: int64(count), Block: block}
	streams, err := node.XReadGroup(ctx, args).Result()
	if err != nil && strings.HasPrefix(err.Error(), "NOGROUP") {
		if err = s.createGroup(ctx, node, k); err == nil {
			streams, err = node.XReadGroup(ctx, args).Result()
		}
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, s.commandFault(k.outbox, err)
	}
	if len(streams) == 0 {
		return nil, nil
	}
	return s.entries(ctx, node, k, streams[0].Messages)
}

// groupScript makes a consumer group on a server that is out of memory, too, where the plain command is refused: to drain the
// outbox is what gives memory back.
const groupScript = "#!lua flags=allow-oom\nreturn redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')"

// createGroup makes the consumer group from the stream's very beginning, so that no event is passed over.
func (s *Stock) createGroup(ctx context.Context, node *redis.Client, k shardKeys) error {
	err := node.Eval(ctx, groupScript, []string{k.outbox}, consumerGroup).Err()
	if err != nil && strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return nil
	}
	return err
}

// entries reads stream messages. One that was deleted while pending has nothing to give: it is acknowledged.
func (s *Stock) entries(ctx context.Context, node *redis.Client, k shardKeys, messages []redis.XMessage) ([]drop.OutboxEntry, error) {
	out := make([]drop.OutboxEntry, 0, len(messages))
	var empty []string
	for _, m := range messages {
		if m.Values == nil {
			empty = append(empty, m.ID)
			continue
		}
		out = append(out, entryOf(m))
	}
	if len(empty) > 0 {
		if err := node.XAck(ctx, k.outbox, consumerGroup, empty...).Err(); err != nil {
			return nil, s.commandFault(k.outbox, err)
		}
	}
	return out, nil
}

func entryOf(m redis.XMessage) drop.OutboxEntry {
	text := func(field string) string { v, _ := m.Values[field].(string); return v }
	e := drop.OutboxEntry{ID: m.ID}
	e.Installation, e.Body, e.Time = text(drop.FieldInstallation), text(drop.FieldBody), unixMilli(text(drop.FieldTime))
	if v := text(drop.FieldVersion); v != drop.SchemaVersion {
		e.Body = drop.UnreadableBody("version "+v, e.Body)
	}
	return e
}

// Claim takes over entries that another consumer was given at least minIdle ago and has not acknowledged.
func (s *Stock) Claim(ctx context.Context, shard int, consumer string, minIdle time.Duration, count int) ([]drop.OutboxEntry, error) {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return nil, err
	}
	messages, _, err := node.XAutoClaim(ctx, &redis.XAutoClaimArgs{Stream: k.outbox, Group: consumerGroup, Consumer: consumer, MinIdle: minIdle, Start: "0", Count: int64(count)}).Result()
	if err != nil && strings.HasPrefix(err.Error(), "NOGROUP") {
		return nil, nil
	}
	if err != nil {
		return nil, s.commandFault(k.outbox, err)
	}
	return s.entries(ctx, node, k, messages)
}

// Keep says that a consumer still has entries in hand, so that nobody takes them over, and returns those that are not
// acknowledged yet.
func (s *Stock) Keep(ctx context.Context, shard int, consumer string, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return nil, err
	}
	kept, err := node.XClaimJustID(ctx, &redis.XClaimArgs{Stream: k.outbox, Group: consumerGroup, Consumer: consumer, Messages: ids}).Result()
	if err != nil && strings.HasPrefix(err.Error(), "NOGROUP") {
		return nil, nil
	}
	return kept, s.commandFault(k.outbox, err)
}

// Ack acknowledges entries. Only what the ledger has may be acknowledged.
func (s *Stock) Ack(ctx context.Context, shard int, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return err
	}
	return s.commandFault(k.outbox, node.XAck(ctx, k.outbox, consumerGroup, ids...).Err())
}

// Progress returns a mark that changes whenever a consumer reads or acknowledges something, and whether anything is left to
// read or acknowledge. It may say so where nothing is left.
func (s *Stock) Progress(ctx context.Context, shard int) (mark string, left bool, err error) {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return "", false, err
	}
	groups, err := node.XInfoGroups(ctx, k.outbox).Result()
	if err != nil && strings.Contains(err.Error(), "no such key") {
		return "", false, nil
	}
	if err != nil {
		return "", false, s.commandFault(k.outbox, err)
	}
	for _, g := range groups {
		if g.Name == consumerGroup {
			return g.LastDeliveredID + "/" + strconv.FormatInt(g.Pending, 10), g.Pending > 0 || g.Lag != 0, nil
		}
	}
	return "", true, nil // nobody has begun to read
}

// Leave forgets a consumer that reads no more, unless entries are still given to it: those wait for Claim, after
// which it may leave.
func (s *Stock) Leave(ctx context.Context, shard int, consumer string) error {
	sh := s.shards[shard]
	r, err := s.script(ctx, sh, "leave", sh.keys.gated(), []string{consumerGroup, consumer})
	if err != nil {
		return err
	}
	return r.fault("shard " + strconv.Itoa(shard))
}

// OutboxState looks at the outbox of a shard.
func (s *Stock) OutboxState(ctx context.Context, shard int) (drop.OutboxState, error) {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return drop.OutboxState{}, err
	}
	p, err := s.position(ctx, node, k)
	if err != nil {
		return drop.OutboxState{}, err
	}
	out := drop.OutboxState{Shard: shard, Length: p.length, Pending: p.pending + p.undelivered}
	meta, err := node.HMGet(ctx, k.meta, "bytes", "trimmed").Result()
	if err != nil {
		return out, s.commandFault(k.meta, err)
	}
	number := func(v any) int64 { t, _ := v.(string); n, _ := strconv.ParseInt(t, 10, 64); return n }
	out.Bytes = number(meta[0]) - number(meta[1])
	if out.Pending > 0 {
		out.Oldest = streamTime(p.oldest)
	}
	return out, nil
}

// position is how far the consumer group has come.
type position struct {
	length, pending, undelivered int64
	oldest                       string // stream id of the oldest entry not acknowledged; "" if there is none
}

func (s *Stock) position(ctx context.Context, node *redis.Client, k shardKeys) (position, error) {
	var p position
	pipe := node.Pipeline()
	length, first := pipe.XLen(ctx, k.outbox), pipe.XRangeN(ctx, k.outbox, "-", "+", 1)
	if _, err := pipe.Exec(ctx); err != nil {
		return p, s.commandFault(k.outbox, err)
	}
	p.length = length.Val()
	if p.length == 0 {
		return p, nil
	}
	groups, err := node.XInfoGroups(ctx, k.outbox).Result()
	if err != nil {
		return p, s.commandFault(k.outbox, err)
	}
	for _, g := range groups {
		if g.Name != consumerGroup {
			continue
		}
		p.pending = g.Pending
		next, err := node.XRangeN(ctx, k.outbox, "("+g.LastDeliveredID, "+", 1).Result()
		if err != nil {
			return p, s.commandFault(k.outbox, err)
		}
		if len(next) > 0 {
			p.oldest = next[0].ID
			p.undelivered = max(g.Lag, 1)
		}
		if g.Pending > 0 {
			summary, err := node.XPending(ctx, k.outbox, consumerGroup).Result()
			if err != nil {
				return p, s.commandFault(k.outbox, err)
			}
			if summary.Lower != "" {
				p.oldest = summary.Lower
			}
		}
		return p, nil
	}
	p.undelivered, p.oldest = p.length, first.Val()[0].ID
	return p, nil
}

func streamTime(id string) time.Time {
	ms, _, _ := strings.Cut(id, "-")
	return unixMilli(ms)
}

// Trim removes entries that are acknowledged and older than keep. The script runs behind the door, so ids read from one
// server are never used to trim another.
func (s *Stock) Trim(ctx context.Context, shard int, keep time.Duration) (int64, error) {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return 0, err
	}
	// The clock is read first: an entry written after the look at the group is then younger than what may go.
	clock, err := node.Time(ctx).Result()
	if err != nil {
		return 0, s.commandFault(k.outbox, err)
	}
	p, err := s.position(ctx, node, k)
	if err != nil || p.length == 0 {
		return 0, err
	}
	least := strconv.FormatInt(clock.Add(-keep).UnixMilli(), 10) + "-0"
	if p.oldest != "" && streamTime(p.oldest).Before(streamTime(least)) {
		least = p.oldest
	}
	sh := s.shards[shard]
	r, err := s.script(ctx, sh, "trim", sh.keys.gated(), []string{least})
	if err != nil {
		return 0, err
	}
	if err := r.fault("shard " + strconv.Itoa(shard)); err != nil {
		return 0, err
	}
	return strconv.ParseInt(r.text(0), 10, 64)
}

// seenOutbox is what was read of a shard's outbox so far.
type seenOutbox struct {
	mu     sync.Mutex
	last   redis.XMessage                // without an ID: nothing was read
	newest map[drop.LotID]drop.Watermark // of each lot
}

// NewestEvent returns the place of a lot's newest event that the outbox has, or had when it was read before; the zero
// Watermark if it has none. It reads on from where the last call for any lot of the shard has stopped: the first
// reads the whole outbox, many others next to nothing.
func (s *Stock) NewestEvent(ctx context.Context, lot drop.LotID) (drop.Watermark, error) {
	sh := s.shardOf(lot)
	seen := &sh.seen
	seen.mu.Lock()
	defer seen.mu.Unlock()
	node, k, err := s.nodeOf(ctx, sh.number)
	if err != nil {
		return drop.Watermark{}, err
	}
	for {
		messages, err := node.XRangeN(ctx, k.outbox, cmp.Or(seen.last.ID, "-"), "+", outboxPage).Result()
		if err != nil {
			return drop.Watermark{}, s.commandFault(k.outbox, err)
		}
		if seen.last.ID != "" {
			// What was read last must still be there, or this is another outbox: emptied, trimmed, or of another server.
			if len(messages) == 0 || messages[0].ID != seen.last.ID || !maps.Equal(messages[0].Values, seen.last.Values) {
				seen.last, seen.newest = redis.XMessage{}, nil
				continue
			}
			messages = messages[1:]
		}
		if len(messages) == 0 {
			return seen.newest[lot], nil
		}
		seen.note(messages)
	}
}

func (s *seenOutbox) note(messages []redis.XMessage) {
	if s.newest == nil {
		s.newest = map[drop.LotID]drop.Watermark{}
	}
	for _, m := range messages {
		events, _ := entryOf(m).Decode()
		for _, e := range events {
			if at := s.newest[e.Lot]; e.Epoch > at.Epoch || e.Epoch == at.Epoch && e.Seq > at.Seq {
				s.newest[e.Lot] = e.Watermark()
			}
		}
	}
	s.last = messages[len(messages)-1]
}

// EventsSince returns the outbox's events of some lots behind a watermark each, in order, as far as they are still kept.
// It reads backwards and stops once every lot's watermark is reached.
func (s *Stock) EventsSince(ctx context.Context, shard int, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error) {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return nil, err
	}
	return s.eventsSince(ctx, node, k, from, "+")
}

// EachEvent calls fn with all events that a shard's outbox still keeps, page by page, in the order in which they are in it.
func (s *Stock) EachEvent(ctx context.Context, shard int, fn func(page []drop.Event) error) error {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return err
	}
	for from := "-"; ; {
		messages, err := node.XRangeN(ctx, k.outbox, from, "+", outboxPage).Result()
		if err != nil {
			return s.commandFault(k.outbox, err)
		}
		var page []drop.Event
		for _, m := range messages {
			events, _ := entryOf(m).Decode()
			page = append(page, events...)
		}
		if err := fn(page); err != nil {
			return err
		}
		if len(messages) < outboxPage {
			return nil
		}
		from = "(" + messages[len(messages)-1].ID
	}
}

// EventsReadSince is EventsSince without the entries that no consumer was given yet.
func (s *Stock) EventsReadSince(ctx context.Context, shard int, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error) {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return nil, err
	}
	last, err := s.readUpTo(ctx, node, k)
	if err != nil || last == "" {
		return nil, err
	}
	return s.eventsSince(ctx, node, k, from, last)
}

// readUpTo returns the id of the newest entry that a consumer was given; "" while nobody has read the outbox, or there is none.
func (s *Stock) readUpTo(ctx context.Context, node *redis.Client, k shardKeys) (string, error) {
	groups, err := node.XInfoGroups(ctx, k.outbox).Result()
	if err != nil && !strings.Contains(err.Error(), "no such key") {
		return "", s.commandFault(k.outbox, err)
	}
	for _, g := range groups {
		if g.Name == consumerGroup {
			return g.LastDeliveredID, nil
		}
	}
	return "", nil
}

// eventsSince reads back from the entry with the id end.
func (s *Stock) eventsSince(ctx context.Context, node *redis.Client, k shardKeys, from map[drop.LotID]drop.Watermark, end string) (map[drop.LotID][]drop.Event, error) {
	open := make(map[drop.LotID]bool, len(from))
	for lot := range from {
		open[lot] = true
	}
	found := make(map[drop.LotID][]drop.Event)
	page := 10 // mostly somebody asks for what was written just now
	for ; len(open) > 0; page = min(4*page, outboxPage) {
		messages, err := node.XRevRangeN(ctx, k.outbox, end, "-", int64(page)).Result()
		if err != nil {
			return nil, s.commandFault(k.outbox, err)
		}
		for _, m := range messages {
			events, _ := entryOf(m).Decode()
			for i := len(events) - 1; i >= 0; i-- {
				e := events[i]
				w, wanted := from[e.Lot]
				switch {
				case !wanted:
				case e.Epoch > w.Epoch || e.Epoch == w.Epoch && e.Seq > w.Seq:
					found[e.Lot] = append(found[e.Lot], e)
					if e.Epoch == w.Epoch && e.Seq == w.Seq+1 {
						delete(open, e.Lot)
					}
				default:
					delete(open, e.Lot)
				}
			}
		}
		if len(messages) < page {
			break
		}
		end = "(" + messages[len(messages)-1].ID
	}
	for _, events := range found {
		for i, j := 0, len(events)-1; i < j; i, j = i+1, j-1 {
			events[i], events[j] = events[j], events[i]
		}
	}
	return found, nil
}
