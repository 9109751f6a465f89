package stock

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// seqsOf returns the seqs of a lot's events in entries, in order.
func seqsOf(t testing.TB, entries []drop.OutboxEntry, lot drop.LotID) []int64 {
	t.Helper()
	var seqs []int64
	for _, e := range entries {
		events, poison := e.Decode()
		if len(poison) > 0 {
			t.Fatalf("no event: %+v", poison)
		}
		for _, ev := range events {
			if ev.Lot == lot {
				seqs = append(seqs, ev.Seq)
			}
		}
	}
	return seqs
}

func idsOf(entries []drop.OutboxEntry) []string {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}

func upTo(n int64) []int64 {
	seqs := make([]int64, n)
	for i := range seqs {
		seqs[i] = int64(i) + 1
	}
	return seqs
}

// read returns every entry that no consumer was given yet.
func read(t testing.TB, s *Stock, shard int, consumer string) []drop.OutboxEntry {
	t.Helper()
	entries, err := s.ReadNew(t.Context(), shard, consumer, 10_000, -1)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestAFullOutboxHoldsBackNewHoldsOnly(t *testing.T) {
	s, rdb, _ := newShop(t, func(o *Options) { o.OutboxMaxBytes = 4096 })
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 1000, Hold: time.Minute})
	shard := lot.Shard(s.Shards())
	var held []drop.ReservationID
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		var out drop.Outcome
		out, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("user-%d", i), Key: "k", Qty: 1})
		if err == nil {
			held = append(held, out.Reservation.ID)
		}
	}
	wantCode(t, err, fault.Backpressure)
	if state, err := s.OutboxState(t.Context(), shard); err != nil || state.Bytes < 4096 || state.Bytes > 4096+512 || state.Pending != state.Length || state.Oldest.IsZero() {
		t.Fatalf("%+v, %v", state, err)
	}
	if out := reserve(t, s, lot, "user-0", "k", 1); !out.Replayed {
		t.Fatal("the replay is a new hold")
	}
	settle(t, s, drop.SettleRequest{ID: held[0], Action: drop.ActConfirm})
	settle(t, s, drop.SettleRequest{ID: held[1], Action: drop.ActRelease})
	settle(t, s, drop.SettleRequest{ID: held[2], Action: drop.ActExtend, By: 10 * time.Minute})
	passTime(t, s, rdb, 2*time.Minute, lot)
	if out, err := s.Sweep(t.Context(), shard, 1000); err != nil || out.Expired != len(held)-3 {
		t.Fatalf("sweep: %+v, %v", out, err)
	}
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "new", Key: "k", Qty: 1})
	wantCode(t, err, fault.Backpressure)
	events := wantHistory(t, s, rdb, lot)

	if n, err := s.Trim(t.Context(), shard, 0); err != nil || n != 0 {
		t.Fatalf("trimmed %d that the ledger does not have, %v", n, err)
	}
	entries := read(t, s, shard, "c")
	if got := seqsOf(t, entries, lot); !slices.Equal(got, upTo(int64(len(events)))) {
		t.Fatalf("read events %v", got)
	}
	if err := s.Ack(t.Context(), shard, idsOf(entries)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Trim(t.Context(), shard, time.Hour); err != nil || n != 0 {
		t.Fatalf("trimmed %d that are to be kept for an hour, %v", n, err)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { // the newest entry may be of this very millisecond
		if _, err := s.Trim(context.Background(), shard, 0); err != nil {
			return false, err.Error()
		}
		state, err := s.OutboxState(context.Background(), shard)
		return err == nil && state == (drop.OutboxState{Shard: shard}), fmt.Sprintf("%+v, %v", state, err)
	})
	reserve(t, s, lot, "new", "k", 1)
}

// TestTrimmingNeverOutrunsTheReader trims as hard as it can while events are written, read and acknowledged. The writer
// waits for the reader, so that again and again nothing is pending just before an event comes.
func TestTrimmingNeverOutrunsTheReader(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: drop.MaxUnits})
	shard := lot.Shard(s.Shards())
	ctx, stop := context.WithCancel(t.Context())
	trimmed := make(chan struct{})
	go func() {
		defer close(trimmed)
		for ctx.Err() == nil {
			if _, err := s.Trim(context.Background(), shard, 0); err != nil {
				t.Error(err)
			}
		}
	}()
	defer func() { stop(); <-trimmed }()
	var seqs []int64
	for i := range rounds(1500, 300) {
		if i > 0 {
			reserve(t, s, lot, fmt.Sprintf("user-%d", i), "k", 1)
		}
		want := upTo(int64(i) + 1)
		testkit.Eventually(t, 2*time.Second, func() (bool, string) {
			entries := read(t, s, shard, "c")
			seqs = append(seqs, seqsOf(t, entries, lot)...)
			if err := s.Ack(t.Context(), shard, idsOf(entries)); err != nil {
				t.Fatal(err)
			}
			return slices.Equal(seqs, want), fmt.Sprintf("%d of %d events were read: one was trimmed before", len(seqs), len(want))
		})
	}
}

func TestWhatIsKeptIsNotClaimed(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	shard := lot.Shard(s.Shards())
	if kept, err := s.Keep(t.Context(), shard, "holder", []string{"1-1"}); err != nil || len(kept) != 0 {
		t.Fatalf("kept %v before anybody has read: %v", kept, err)
	}
	for i := range 3 {
		reserve(t, s, lot, fmt.Sprintf("user-%d", i), "k", 1)
	}
	given := read(t, s, shard, "holder")
	ids := idsOf(given)
	if err := s.Ack(t.Context(), shard, ids[:1]); err != nil {
		t.Fatal(err)
	}
	const idle = 300 * time.Millisecond
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		claimed, err := s.Claim(t.Context(), shard, "other", idle, 1)
		return err == nil && len(claimed) == 1, fmt.Sprintf("%v %v", claimed, err)
	})
	kept, err := s.Keep(t.Context(), shard, "holder", ids)
	if err != nil || !slices.Equal(kept, ids[1:]) {
		t.Fatalf("kept %v of %v: %v", kept, ids, err)
	}
	if claimed, err := s.Claim(t.Context(), shard, "other", time.Minute, 100); err != nil || len(claimed) != 0 {
		t.Errorf("claimed what was kept just now: %v %v", claimed, err)
	}
	if mine, err := s.ReadPending(t.Context(), shard, "holder", "0", 100); err != nil || len(mine) != len(ids)-1 {
		t.Errorf("the holder has %v: %v", mine, err)
	}
}

func TestWhatADeadConsumerWasGivenIsClaimed(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	shard := lot.Shard(s.Shards())
	for i := range 4 {
		reserve(t, s, lot, fmt.Sprintf("user-%d", i), "k", 1)
	}
	given := read(t, s, shard, "dead")
	if err := s.Ack(t.Context(), shard, idsOf(given)[:2]); err != nil {
		t.Fatal(err)
	}
	reserve(t, s, lot, "later", "k", 1)
	if got := seqsOf(t, read(t, s, shard, "alive"), lot); !slices.Equal(got, []int64{6}) {
		t.Fatalf("the other consumer was given %v", got)
	}
	if claimed, err := s.Claim(t.Context(), shard, "alive", time.Hour, 100); err != nil || len(claimed) != 0 {
		t.Fatalf("claimed what is not idle: %v, %v", claimed, err)
	}
	claimed, err := s.Claim(t.Context(), shard, "alive", 0, 100)
	if got := seqsOf(t, claimed, lot); err != nil || !slices.Equal(got, []int64{3, 4, 5, 6}) {
		t.Fatalf("claimed %v, %v", got, err)
	}
	pending, err := s.ReadPending(t.Context(), shard, "alive", "0", 2)
	if got := seqsOf(t, pending, lot); err != nil || !slices.Equal(got, []int64{3, 4}) {
		t.Fatalf("pending: %v, %v", got, err)
	}
	pending, err = s.ReadPending(t.Context(), shard, "alive", pending[1].ID, 10)
	if got := seqsOf(t, pending, lot); err != nil || !slices.Equal(got, []int64{5, 6}) {
		t.Fatalf("pending behind those: %v, %v", got, err)
	}
	if pending, err = s.ReadPending(t.Context(), shard, "dead", "0", 10); err != nil || len(pending) != 0 {
		t.Fatalf("the dead consumer still has %v, %v", pending, err)
	}
	if err := s.Ack(t.Context(), shard, idsOf(claimed)); err != nil {
		t.Fatal(err)
	}
	if err := s.Ack(t.Context(), shard, idsOf(claimed)); err != nil {
		t.Fatalf("acknowledging twice: %v", err)
	}
	if state, err := s.OutboxState(t.Context(), shard); err != nil || state.Pending != 0 || !state.Oldest.IsZero() {
		t.Fatalf("%+v, %v", state, err)
	}
}

// TestADeletedEntryIsNotPendingForEver: somebody took an entry out of the stream by hand.
func TestADeletedEntryIsNotPendingForEver(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	shard := lot.Shard(s.Shards())
	reserve(t, s, lot, "ann", "k", 1)
	entries := read(t, s, shard, "c")
	if err := rdb.XDel(t.Context(), s.shards[shard].keys.outbox, entries[0].ID).Err(); err != nil {
		t.Fatal(err)
	}
	pending, err := s.ReadPending(t.Context(), shard, "c", "0", 10)
	if err != nil || len(pending) != 1 || pending[0].ID != entries[1].ID {
		t.Fatalf("%+v, %v", pending, err)
	}
	if state, err := s.OutboxState(t.Context(), shard); err != nil || state.Pending != 1 {
		t.Fatalf("%+v, %v", state, err)
	}
}

func TestEventsSinceAWatermarkAreExact(t *testing.T) {
	s, rdb, _ := newShop(t)
	lots := []drop.LotID{"g:a", "g:b", "g:c"}
	for _, lot := range lots {
		newLot(t, s, drop.Definition{Lot: lot, Stock: 10_000})
	}
	shard := lots[0].Shard(s.Shards())
	inParallel(30, func(i int) { // many entries, each with events of several lots
		for n := range 20 {
			reserve(t, s, lots[(i+n)%2], fmt.Sprintf("user-%d-%d", i, n), "k", 1)
		}
	})
	since := func(from map[drop.LotID]int64) map[drop.LotID][]int64 {
		t.Helper()
		w := make(map[drop.LotID]drop.Watermark)
		for lot, seq := range from {
			w[lot] = drop.Watermark{Epoch: 1, Seq: seq}
		}
		found, err := s.EventsSince(t.Context(), shard, w)
		if err != nil {
			t.Fatal(err)
		}
		out := make(map[drop.LotID][]int64)
		for lot, events := range found {
			for _, e := range events {
				out[lot] = append(out[lot], e.Seq)
			}
		}
		return out
	}
	last := map[drop.LotID]int64{}
	for _, lot := range lots {
		state, err := s.Lot(t.Context(), lot)
		if err != nil {
			t.Fatal(err)
		}
		last[lot] = state.Seq
	}
	for _, from := range []map[drop.LotID]int64{{"g:a": 0}, {"g:a": 1, "g:b": last["g:b"]}, {"g:a": last["g:a"] - 1, "g:b": 5, "g:c": 0}, {"g:a": last["g:a"] - 250, "g:c": 1}, {}} {
		got := since(from)
		for lot, seq := range from {
			if want := upTo(last[lot])[seq:]; !slices.Equal(got[lot], want) {
				t.Fatalf("since %v: lot %s has %v, want %d..%d", from, lot, got[lot], seq+1, last[lot])
			}
			delete(got, lot)
		}
		if len(got) > 0 {
			t.Fatalf("since %v: events of lots not asked for: %v", from, got)
		}
	}

	// What was trimmed is not there; the rest is.
	entries := read(t, s, shard, "c")
	cut := entries[len(entries)/2].ID
	if err := rdb.XTrimMinID(t.Context(), s.shards[shard].keys.outbox, cut).Err(); err != nil {
		t.Fatal(err)
	}
	want := seqsOf(t, entries[len(entries)/2:], "g:a")
	if got := since(map[drop.LotID]int64{"g:a": 0})["g:a"]; !slices.Equal(got, want) {
		t.Fatalf("after trimming: %v, want %v", got, want)
	}

	// A new epoch: everything behind the old watermark, of the new epoch too.
	state, err := s.Lot(t.Context(), "g:c")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context(), LoadRequest{Definition: state.Definition, Epoch: 2, Closing: drop.Watermark{Epoch: 1, Seq: 1}, Planned: Plan{Present: true, OpenRun: state.OpenRun, Watermark: state.Watermark}}); err != nil {
		t.Fatal(err)
	}
	reserve(t, s, "g:c", "ann", "k", 1)
	found, err := s.EventsSince(t.Context(), shard, map[drop.LotID]drop.Watermark{"g:c": {Epoch: 1, Seq: 1}})
	events := found["g:c"]
	if err != nil || len(events) != 2 || events[0].Kind != drop.KindLoaded || events[0].Watermark() != (drop.Watermark{Epoch: 2, Seq: 2}) || events[1].Seq != 3 {
		t.Fatalf("%+v, %v", events, err)
	}
}

func TestOnlyWhatSomebodyHasReadIsReadSince(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 10})
	shard := lot.Shard(s.Shards())
	since := func() []drop.Event {
		t.Helper()
		found, err := s.EventsReadSince(t.Context(), shard, map[drop.LotID]drop.Watermark{lot: {}})
		if err != nil {
			t.Fatal(err)
		}
		return found[lot]
	}
	if events := since(); len(events) != 0 {
		t.Errorf("nobody has read anything, and yet %+v", events)
	}
	given := read(t, s, shard, "c") // the load
	reserve(t, s, lot, "ann", "k", 1)
	if events := since(); len(events) != 1 || events[0].Kind != drop.KindLoaded {
		t.Errorf("of what is in somebody's hand there is %+v", events)
	}
	if err := s.Ack(t.Context(), shard, idsOf(given)); err != nil {
		t.Fatal(err)
	}
	if events := since(); len(events) != 1 {
		t.Errorf("of what is acknowledged there is %+v", events)
	}
	read(t, s, shard, "c")
	if events := since(); len(events) != 2 || events[1].Kind != drop.KindHeld {
		t.Errorf("after all was read there is %+v", events)
	}
	elsewhere := (shard + 1) % s.Shards()
	if found, err := s.EventsReadSince(t.Context(), elsewhere, map[drop.LotID]drop.Watermark{"none": {}}); err != nil || len(found) != 0 {
		t.Errorf("of a shard without an outbox: %+v, %v", found, err)
	}
}

// TestARestartGivesEventsAgainAndLosesNone: what Redis had on disk comes back, acknowledged or not; nothing is new.
func TestARestartGivesEventsAgainAndLosesNone(t *testing.T) {
	r := testkit.Redis(t, lab.RedisOptions{Fsync: "always"})
	s, rdb := openStock(t, r.URL()), rawClient(t, r)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 20})
	shard := lot.Shard(s.Shards())
	for i := range 10 {
		reserve(t, s, lot, fmt.Sprintf("user-%d", i), "k", 1)
	}
	before, err := s.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	given := read(t, s, shard, "c")
	if err := s.Ack(t.Context(), shard, idsOf(given)[:4]); err != nil {
		t.Fatal(err)
	}
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = openStock(t, r.URL())
	var pending []drop.OutboxEntry
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		pending, err = s.ReadPending(context.Background(), shard, "c", "0", 100)
		return err == nil, fmt.Sprint(err)
	})
	again := append(pending, read(t, s, shard, "c")...)
	got := seqsOf(t, again, lot)
	if want := upTo(11)[4:]; len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) {
		t.Fatalf("given again: %v, want at least %v", got, want)
	}
	for i, e := range again { // the same entries, to the byte
		if old := given[len(given)-len(again)+i]; e != old {
			t.Fatalf("entry %+v was %+v", e, old)
		}
	}
	if events := wantHistory(t, s, rdb, lot); len(events) != 11 {
		t.Fatalf("%d events", len(events))
	}
	if after, err := s.Lot(t.Context(), lot); err != nil || after.Totals != before.Totals || after.Watermark != before.Watermark {
		t.Fatalf("%+v, %v; before %+v", after, err, before)
	}
	if _, err := s.Trim(t.Context(), shard, 0); !fault.Is(err, fault.LotFrozen) {
		t.Fatalf("ids of one server's life trimmed another: %v", err)
	}
}

// TestTheNewestEventIsFoundInWhateverOutboxThereIs reads on from where it stopped, and notices when that is another outbox.
func TestTheNewestEventIsFoundInWhateverOutboxThereIs(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "g:l", Stock: 5000, Hold: time.Minute})
	other := newLot(t, s, drop.Definition{Lot: "g:other", Stock: 1})
	outbox := s.shardOf(lot).keys.outbox
	want := func(seq int64) {
		t.Helper()
		if at, err := s.NewestEvent(t.Context(), lot); err != nil || at.Seq != seq {
			t.Errorf("the newest event is %+v, %v; want seq %d", at, err, seq)
		}
	}
	want(1)
	for i := range 2*outboxPage + 1 {
		reserve(t, s, lot, fmt.Sprint("user-", i), "k", 1)
	}
	want(2*outboxPage + 2)
	reserve(t, s, other, "ann", "k", 1)
	if at, err := s.NewestEvent(t.Context(), other); err != nil || at.Seq != 2 {
		t.Errorf("of the other lot it is %+v, %v", at, err)
	}
	if at, err := s.NewestEvent(t.Context(), "g:none"); err != nil || at != (drop.Watermark{}) {
		t.Errorf("of no lot it is %+v, %v", at, err)
	}
	// The same id, another entry: that of a server that went another way.
	last, err := rdb.XRevRangeN(t.Context(), outbox, "+", "-", 1).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.Del(t.Context(), outbox).Err(); err != nil {
		t.Fatal(err)
	}
	last[0].Values[drop.FieldBody] = "@\tg:l\t1\n"
	if err := rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: outbox, ID: last[0].ID, Values: last[0].Values}).Err(); err != nil {
		t.Fatal(err)
	}
	want(0)
	reserve(t, s, lot, "late", "k", 1)
	want(2*outboxPage + 3)
	if err := rdb.XTrimMaxLen(t.Context(), outbox, 0).Err(); err != nil {
		t.Fatal(err)
	}
	want(0)
}

// What is not acknowledged is shown in order, whether a reader was given it or not, and showing it gives it to nobody.
func TestUnacknowledgedShowsAndTakesNothing(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 10})
	shard := lot.Shard(s.Shards())
	shown := func(limit int) []int64 {
		t.Helper()
		entries, err := s.Unacknowledged(t.Context(), shard, limit)
		if err != nil {
			t.Fatal(err)
		}
		return seqsOf(t, entries, lot)
	}
	for i := range 4 {
		reserve(t, s, lot, fmt.Sprint("user-", i), "k", 1)
	}
	if got := shown(100); !slices.Equal(got, upTo(5)) { // the load, and nobody has ever read
		t.Fatalf("at first %v", got)
	}
	given, err := s.ReadNew(t.Context(), shard, "c", 3, -1)
	if err != nil {
		t.Fatal(err)
	}
	if got := shown(100); !slices.Equal(got, upTo(5)) {
		t.Fatalf("with three given to a reader %v", got)
	}
	if err := s.Ack(t.Context(), shard, idsOf(given[:2])); err != nil {
		t.Fatal(err)
	}
	if got := shown(100); !slices.Equal(got, []int64{3, 4, 5}) {
		t.Fatalf("with two acknowledged %v", got)
	}
	if got := shown(2); !slices.Equal(got, []int64{3, 4}) {
		t.Fatalf("two of them %v", got)
	}
	if rest := read(t, s, shard, "other"); !slices.Equal(seqsOf(t, rest, lot), []int64{4, 5}) {
		t.Fatal("looking gave entries away")
	}
	other := (shard + 1) % s.Shards()
	if entries, err := s.Unacknowledged(t.Context(), other, 10); err != nil || len(entries) > 0 {
		t.Errorf("an empty shard: %v, %v", entries, err)
	}
}
