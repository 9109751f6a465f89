package stock

import (
	"context"
	"flag"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// TestEveryOperationDoesWhatTheBookSays runs random sequences of all operations and compares the engine with the book
// after every step: the answer, the totals, every record and user counter, the due entries and the events.
func TestEveryOperationDoesWhatTheBookSays(t *testing.T) {
	setFlag(t, "rapid.nofailfile", "true") // the seed it prints is enough to repeat a failure
	if testing.Short() {
		setFlag(t, "rapid.checks", "20")
	}
	s, rdb, _ := newShop(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rt, s, rdb)
		rt.Repeat(map[string]func(*rapid.T){
			"":        m.compare,
			"reserve": m.reserve, "reserve more": m.reserve,
			"crowd": m.crowd, "another crowd": m.crowd,
			"confirm": m.settles(drop.ActConfirm), "confirm more": m.settles(drop.ActConfirm),
			"release": m.settles(drop.ActRelease),
			"extend":  m.settles(drop.ActExtend),
			"refund":  m.settles(drop.ActRefund),
			"adjust":  m.adjust,
			"change":  m.change,
			"sweep":   m.sweep,
			"time":    m.time,
		})
	})
}

// setFlag sets a flag of the test binary for one test, unless the command line has set it.
func setFlag(t *testing.T, name, value string) {
	t.Helper()
	f := flag.Lookup(name)
	if f.Value.String() != f.DefValue {
		return
	}
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set(name, f.DefValue) })
}

// calmSpan is how long nothing falls due while an operation runs, so that book and Redis judge alike.
const calmSpan = 400 * time.Millisecond

type machine struct {
	s     *Stock
	rdb   *redis.Client
	shard int
	lots  []drop.LotID
	books map[drop.LotID]*book
	sums  map[drop.LotID]*drop.Totals // the events, added up
	ids   []drop.ReservationID        // every reservation there has been
	read  string                      // stream id up to which the events are read
	swept bool                        // the last step was a complete sweep
	calm  time.Time                   // until then nothing falls due
}

func newMachine(rt *rapid.T, s *Stock, rdb *redis.Client) *machine {
	m := &machine{s: s, rdb: rdb, books: make(map[drop.LotID]*book), sums: make(map[drop.LotID]*drop.Totals), read: "-"}
	must(rt, rdb.FlushAll(context.Background()).Err())
	for _, lot := range []drop.LotID{"g:one", "g:two"} {
		d := drop.Definition{Lot: lot, Stock: rapid.SampledFrom([]int64{0, 1, 2, 3, 4, 5, 6, 30}).Draw(rt, "stock"), Limit: rapid.Int64Range(0, 3).Draw(rt, "limit"),
			Hold: 2 * time.Second, MaxHold: 10 * time.Second, Late: rapid.SampledFrom([]drop.Late{drop.Refuse, drop.Reclaim}).Draw(rt, "late")}
		must(rt, s.Load(context.Background(), LoadRequest{Definition: d, Epoch: 1, Actor: "seed"}))
		m.lots, m.books[lot], m.sums[lot] = append(m.lots, lot), newBook(d), &drop.Totals{}
		m.shard = lot.Shard(s.Shards())
	}
	for _, e := range m.newEvents(rt) {
		addEvent(m.sums[e.Lot], e)
	}
	return m
}

func must(rt *rapid.T, err error) {
	rt.Helper()
	if err != nil {
		rt.Fatal(err)
	}
}

func (m *machine) now(rt *rapid.T) time.Time {
	now, err := m.rdb.Time(context.Background()).Result()
	must(rt, err)
	return now.Truncate(time.Millisecond)
}

// quiet makes sure that nothing falls due during the next operation.
func (m *machine) quiet(rt *rapid.T) {
	m.swept = false
	now := m.now(rt)
	for m.fallsDue(now, now.Add(calmSpan)) {
		m.pass(rt, calmSpan)
	}
	m.calm = now.Add(calmSpan)
}

// fallsDue reports whether a time of the books lies in (from, to].
func (m *machine) fallsDue(from, to time.Time) bool {
	within := func(ms int64) bool { return from.UnixMilli() < ms && ms <= to.UnixMilli() }
	for _, b := range m.books {
		for _, r := range b.records {
			if r.state == drop.Held && within(r.deadline) || r.state != drop.Held && within(r.since+m.s.opt.KeyRetention.Milliseconds()) {
				return true
			}
		}
		if within(b.def.Opens.UnixMilli()) || within(b.def.Closes.UnixMilli()) {
			return true
		}
	}
	return false
}

// pass lets time pass in Redis and in the books.
func (m *machine) pass(rt *rapid.T, d time.Duration) {
	for _, lot := range m.lots {
		must(rt, m.rdb.Eval(context.Background(), passTimeScript, m.s.shards[m.shard].keys.gated(lot), d.Milliseconds(), string(lot)).Err())
		m.books[lot].passTime(d)
	}
}

func (m *machine) newEvents(rt *rapid.T) []drop.Event {
	messages, err := m.rdb.XRange(context.Background(), m.s.shards[m.shard].keys.outbox, m.read, "+").Result()
	must(rt, err)
	var events []drop.Event
	for _, x := range messages {
		got, poison := entryOf(x).Decode()
		if len(poison) > 0 {
			rt.Fatalf("no event: %+v", poison)
		}
		events = append(events, got...)
		m.read = "(" + x.ID
	}
	return events
}

// settleBooks takes the events of a call into the books. Expiries come first, of any lot; what follows must be what
// the book expected of the call. It returns Redis' time of the call.
func (m *machine) settleBooks(rt *rapid.T, replied time.Time, lot drop.LotID, expect func(b *book, now int64) verdict) verdict {
	if now := m.now(rt); now.After(m.calm) {
		rt.Skip("the machine stalled")
	}
	events := m.newEvents(rt)
	now := replied
	if now.IsZero() {
		now = m.calm.Add(-calmSpan)
		if len(events) > 0 {
			now = events[0].Time
		}
	}
	i := 0
	for ; i < len(events) && events[i].Kind == drop.KindExpired; i++ {
		must(rt, m.books[events[i].Lot].expire(events[i], now.UnixMilli()))
	}
	m.forget(rt, now.UnixMilli())
	var v verdict
	if expect != nil {
		v = expect(m.books[lot], now.UnixMilli())
	}
	if rest := events[i:]; len(rest) != len(v.events) {
		rt.Fatalf("events %+v, the book has %+v", rest, v.events)
	}
	for j, want := range v.events {
		want.Lot, want.Epoch, want.Installation, want.Time, want.Definition.Lot = lot, 1, installation, now, lot
		if got := events[i+j]; got.Lot != lot || got.Epoch != 1 || got.Digest() != want.Digest() {
			rt.Fatalf("event %q of %s, the book has %q", got.Line(), got.Lot, want.Line())
		}
	}
	for _, e := range events {
		if !e.Time.Equal(now) {
			rt.Fatalf("event %q is of %v, the call of %v", e.Line(), e.Time, now)
		}
		addEvent(m.sums[e.Lot], e)
	}
	return v
}

// forget drops from the books what Redis has forgotten. It may do so, with any call, once the retention is over.
func (m *machine) forget(rt *rapid.T, now int64) {
	for lot, b := range m.books {
		for attempt, r := range b.records {
			if !r.forgettable(now, m.s.opt.KeyRetention.Milliseconds()) {
				continue
			}
			found, err := m.s.RecordsOf(context.Background(), lot, []string{attempt})
			must(rt, err)
			if kept, there := found[attempt]; !there || kept.ID.N != r.n && kept.From != r.n {
				delete(b.records, attempt)
			}
		}
	}
}

func (m *machine) lot(rt *rapid.T) drop.LotID { return rapid.SampledFrom(m.lots).Draw(rt, "lot") }

func (m *machine) reserve(rt *rapid.T) {
	q := drop.ReserveRequest{Lot: m.lot(rt), User: rapid.SampledFrom([]string{"ann", "bob", "zoë b"}).Draw(rt, "user"), Key: rapid.SampledFrom([]string{"k1", "k2", "k3"}).Draw(rt, "key"),
		Qty: rapid.SampledFrom([]int64{1, 1, 1, 2, 3}).Draw(rt, "qty"), Hold: rapid.SampledFrom([]time.Duration{0, 0, time.Second, 8 * time.Second, 11 * time.Second}).Draw(rt, "hold"), Actor: "shop",
		Replace: rapid.IntRange(0, 3).Draw(rt, "replace") == 0}
	m.quiet(rt)
	out, err := m.s.Reserve(context.Background(), q)
	b := m.books[q.Lot]
	v := m.settleBooks(rt, out.Now, q.Lot, func(b *book, now int64) verdict { return b.reserve(q, now) })
	m.compareAnswer(rt, b, v, out, err, q.User)
	if err == nil && !out.Replayed {
		m.ids = append(m.ids, out.Reservation.ID)
	}
	if v.code == fault.SoldOut && b.due(out.Now.UnixMilli()) {
		rt.Fatal("sold out while holds were due")
	}
}

// crowd has several users ask for the same lot in one call.
func (m *machine) crowd(rt *rapid.T) {
	users := rapid.Permutation([]string{"ann", "bob", "zoë b", "cy", "dan", "eve", "fay", "gus", "hal"}).Draw(rt, "users")
	qs := make([]drop.ReserveRequest, rapid.IntRange(2, len(users)).Draw(rt, "size"))
	lot, alike := m.lot(rt), rapid.IntRange(0, 4).Draw(rt, "alike") > 0
	for i := range qs {
		qs[i] = drop.ReserveRequest{Lot: lot, User: users[i], Key: rapid.SampledFrom([]string{"k1", "k1", "k2"}).Draw(rt, "key"), Qty: 1, Actor: "shop"}
		if i > 0 && alike {
			qs[i].Qty, qs[i].Hold = qs[0].Qty, qs[0].Hold
			continue
		}
		qs[i].Qty = rapid.SampledFrom([]int64{1, 1, 1, 2}).Draw(rt, "qty")
		qs[i].Hold = rapid.SampledFrom([]time.Duration{0, 0, 0, time.Second, 11 * time.Second}).Draw(rt, "hold")
		qs[i].Replace = rapid.IntRange(0, 3).Draw(rt, "replace") == 0
	}
	m.quiet(rt)
	outs, errs := together(rt, m.s, qs)
	if now := m.now(rt); now.After(m.calm) {
		rt.Skip("the machine stalled")
	}
	b, now := m.books[lot], outs[0].Now
	m.forget(rt, now.UnixMilli())
	verdicts := make(map[int]verdict, len(qs))
	scarcest, swapped := b.Available, false
	var promised []drop.Event // what must follow the last event: who replaces a hold releases the old one first
	for _, e := range m.newEvents(rt) {
		if !e.Time.Equal(now) || e.Lot != lot {
			rt.Fatalf("event %q of %s is of %v, the call about %s of %v", e.Line(), e.Lot, e.Time, lot, now)
		}
		addEvent(m.sums[lot], e)
		if e.Kind == drop.KindExpired {
			must(rt, b.expire(e, now.UnixMilli()))
			continue
		}
		scarcest = min(scarcest, b.Available)
		swapped = swapped || e.Kind == drop.KindReleased
		if len(promised) == 0 {
			i := slices.IndexFunc(qs, func(q drop.ReserveRequest) bool { return q.User == e.User })
			if i < 0 {
				rt.Fatalf("event %q belongs to no request", e.Line())
			}
			verdicts[i] = b.reserve(qs[i], now.UnixMilli())
			if promised = verdicts[i].events; len(promised) == 0 {
				rt.Fatalf("event %q, the book says %+v", e.Line(), verdicts[i])
			}
		}
		want := promised[0]
		promised = promised[1:]
		want.Lot, want.Epoch, want.Installation, want.Time = lot, 1, installation, now
		if e.Digest() != want.Digest() {
			rt.Fatalf("event %q, the book has %q", e.Line(), want.Line())
		}
	}
	if len(promised) > 0 {
		rt.Fatalf("the event %q is missing", promised[0].Line())
	}
	for i, q := range qs {
		v, held := verdicts[i]
		if fault.Is(errs[i], fault.SoldOut) && swapped { // who was refused may have come before a hold was replaced by a smaller one
			if b.records[drop.AttemptOf(lot, q.User, q.Key)] != nil || q.Qty <= min(scarcest, b.Available) {
				rt.Fatalf("%+v was sold out with at least %d units left", q, scarcest)
			}
			continue
		}
		if !held {
			if v = b.reserve(q, now.UnixMilli()); len(v.events) > 0 {
				rt.Fatalf("%+v was answered %+v, %v; the book holds it", q, outs[i], errs[i])
			}
		}
		m.compareAnswer(rt, b, v, outs[i], errs[i], q.User)
		if errs[i] == nil && !outs[i].Replayed {
			m.ids = append(m.ids, outs[i].Reservation.ID)
		}
	}
}

// together makes requests that travel together, for lots of one shard in one call: the engine's lanes have to wait until all
// are there.
func together(rt rapid.TB, s *Stock, qs []drop.ReserveRequest) ([]drop.Outcome, []error) {
	slots := s.shardOf(qs[0].Lot).home.Load().slots
	for range cap(slots) {
		slots <- struct{}{}
	}
	outs, errs := make([]drop.Outcome, len(qs)), make([]error, len(qs))
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() { outs[i], errs[i] = s.Reserve(context.Background(), q) })
	}
	waiting := func() (n int) {
		for _, sh := range s.shards {
			sh.mu.Lock()
			n += len(sh.queue)
			sh.mu.Unlock()
		}
		return n
	}
	for started := time.Now(); waiting() < len(qs); runtime.Gosched() {
		if time.Since(started) > 10*time.Second {
			rt.Fatal("the requests do not come together")
		}
	}
	for range cap(slots) {
		<-slots
	}
	wg.Wait()
	return outs, errs
}

// compareAnswer checks an answer against the verdict. user is known to a reserve, whatever the record says.
func (m *machine) compareAnswer(rt *rapid.T, b *book, v verdict, out drop.Outcome, err error, user string) {
	if fault.CodeOf(err) != v.code {
		rt.Fatalf("answered %q (%v), the book says %q", fault.CodeOf(err), err, v.code)
	}
	if err != nil {
		left, told := fault.As(err).Details["remaining"]
		if unlimited := v.remaining < 0; told && (unlimited && left != nil || !unlimited && left != v.remaining) {
			rt.Fatalf("%v: the user may take %v more, the book says %d", err, left, v.remaining)
		}
		return
	}
	want := b.records[v.attempt].reservation(b.def.Lot, v.attempt)
	if user != "" {
		want.User = user
	}
	if out.Reservation != want || out.Replayed != v.replayed || out.Remaining != v.remaining {
		rt.Fatalf("answered %+v, the book says %+v, %+v", out, want, v)
	}
}

func (m *machine) settles(action drop.Action) func(*rapid.T) {
	return func(rt *rapid.T) {
		if len(m.ids) == 0 {
			rt.Skip("no reservation yet")
		}
		q := drop.SettleRequest{Action: action, ID: rapid.SampledFrom(m.ids).Draw(rt, "id"), Actor: "op", Reason: "so"}
		if rapid.IntRange(0, 19).Draw(rt, "another n") == 0 {
			q.ID.N += rapid.SampledFrom([]int64{-1, 1}).Draw(rt, "n")
			q.ID.N = max(1, q.ID.N)
		}
		switch action {
		case drop.ActConfirm:
			q.Qty = rapid.SampledFrom([]int64{0, 0, 0, 1, 2, 4}).Draw(rt, "qty")
			q.Ref = rapid.SampledFrom([]string{"", "pay-1", "pay-2"}).Draw(rt, "ref")
			q.Late = rapid.SampledFrom([]drop.Late{"", "", drop.Refuse, drop.Reclaim}).Draw(rt, "late")
		case drop.ActRelease:
			q.Keep = rapid.SampledFrom([]int64{0, 0, 1, 2, 4}).Draw(rt, "keep")
		case drop.ActExtend:
			q.By = rapid.SampledFrom([]time.Duration{time.Second, 4 * time.Second, time.Minute}).Draw(rt, "by")
		case drop.ActRefund:
			q.Total = rapid.SampledFrom([]int64{-1, -1, 1, 2, 4}).Draw(rt, "total")
			q.NoRestock = rapid.Bool().Draw(rt, "no restock")
		}
		m.quiet(rt)
		out, err := m.s.Settle(context.Background(), q)
		b := m.books[q.ID.Lot]
		v := m.settleBooks(rt, out.Now, q.ID.Lot, func(b *book, now int64) verdict {
			if r := b.records[q.ID.Attempt]; r != nil && r.n == q.ID.N && r.state == drop.Held && r.deadline <= now {
				rt.Fatal("the hold is due and was not ended")
			}
			return b.settle(q, now)
		})
		m.compareAnswer(rt, b, v, out, err, "")
		if v.code == fault.SoldOut && b.due(out.Now.UnixMilli()) {
			rt.Fatal("sold out while holds were due")
		}
		if err == nil && out.Reservation.ID.N != q.ID.N && !slices.Contains(m.ids, out.Reservation.ID) {
			m.ids = append(m.ids, out.Reservation.ID)
		}
	}
}

func (m *machine) adjust(rt *rapid.T) {
	q := drop.AdjustRequest{Lot: m.lot(rt), Actor: "op", Reason: "count"}
	b := m.books[q.Lot]
	q.Expect = max(0, b.Capacity+rapid.SampledFrom([]int64{0, 0, 0, 1}).Draw(rt, "mistake"))
	if n := rapid.Int64Range(-3, 3).Draw(rt, "by"); rapid.Bool().Draw(rt, "to") {
		q.To = ptr(max(0, b.Capacity+n))
	} else {
		q.By = ptr(n)
	}
	m.quiet(rt)
	state, same, err := m.s.Adjust(context.Background(), q)
	v := m.settleBooks(rt, state.Now, q.Lot, func(b *book, _ int64) verdict { return b.adjust(q) })
	m.compareState(rt, b, v, state, same, err)
	if err != nil && q.Expect == b.Capacity && b.due(m.calm.Add(-calmSpan).UnixMilli()) {
		rt.Fatal("refused for want of units while holds were due")
	}
}

func (m *machine) change(rt *rapid.T) {
	q := drop.ChangeRequest{Lot: m.lot(rt), Actor: "op", Reason: "plan"}
	switch rapid.SampledFrom([]string{"status", "open", "limit", "hold", "max_hold", "window", "no window", "late", "name"}).Draw(rt, "field") {
	case "status":
		q.Status = ptr(rapid.SampledFrom([]drop.Status{drop.Paused, drop.Closed}).Draw(rt, "status"))
	case "open":
		q.Status = ptr(drop.Open)
	case "limit":
		q.Limit = ptr(rapid.Int64Range(0, 4).Draw(rt, "limit"))
	case "hold":
		q.Hold = ptr(rapid.SampledFrom([]time.Duration{time.Second, 2 * time.Second, 3 * time.Second}).Draw(rt, "hold"))
	case "max_hold":
		q.MaxHold = ptr(rapid.SampledFrom([]time.Duration{3 * time.Second, 10 * time.Second, time.Minute}).Draw(rt, "max_hold"))
	case "window":
		opens := m.now(rt).Add(time.Duration(rapid.IntRange(-9, 9).Draw(rt, "opens")) * time.Second).UTC()
		q.Opens, q.Closes = &opens, ptr(opens.Add(8*time.Second))
	case "no window":
		q.Opens, q.Closes = &time.Time{}, &time.Time{}
	case "late":
		q.Late = ptr(rapid.SampledFrom([]drop.Late{drop.Refuse, drop.Reclaim}).Draw(rt, "late"))
	case "name":
		q.Name = ptr(rapid.SampledFrom([]string{"", "White truffle, 99 g"}).Draw(rt, "name"))
	}
	q.DryRun = rapid.IntRange(0, 9).Draw(rt, "dry run") == 0
	m.quiet(rt)
	state, same, err := m.s.Change(context.Background(), q)
	b := m.books[q.Lot]
	if q.DryRun {
		m.settleBooks(rt, state.Now, q.Lot, nil)
		must(rt, err)
		return
	}
	v := m.settleBooks(rt, state.Now, q.Lot, func(b *book, _ int64) verdict { return b.change(q) })
	m.compareState(rt, b, v, state, same, err)
}

func (m *machine) compareState(rt *rapid.T, b *book, v verdict, state drop.LotState, same bool, err error) {
	if fault.CodeOf(err) != v.code {
		rt.Fatalf("answered %v, the book says %q", err, v.code)
	}
	if err == nil && (same != v.replayed || state.Totals != b.Totals || !state.Definition.Equal(b.def)) {
		rt.Fatalf("answered %+v, same %v; the book says %+v, %+v, same %v", state, same, b.def, b.Totals, v.replayed)
	}
}

func (m *machine) sweep(rt *rapid.T) {
	m.quiet(rt)
	held := func() (n int) {
		for _, b := range m.books {
			for _, r := range b.records {
				if r.state == drop.Held {
					n++
				}
			}
		}
		return n
	}
	before := held()
	out, err := m.s.Sweep(context.Background(), m.shard, 1000)
	must(rt, err)
	m.settleBooks(rt, time.Time{}, "", nil)
	if out.Expired != before-held() || out.More {
		rt.Fatalf("the sweep told of %+v, the events of %d", out, before-held())
	}
	m.swept = true
}

func (m *machine) time(rt *rapid.T) {
	m.pass(rt, rapid.SampledFrom([]time.Duration{600 * time.Millisecond, 1700 * time.Millisecond, 3 * time.Second, 9 * time.Second, 25 * time.Hour}).Draw(rt, "time"))
	m.swept = false
}

// compare checks everything Redis has of the lots.
func (m *machine) compare(rt *rapid.T) {
	for _, lot := range m.lots {
		m.compareLot(rt, lot, m.books[lot])
	}
}

func (m *machine) compareLot(rt *rapid.T, lot drop.LotID, b *book) {
	ctx := context.Background()
	state, err := m.s.Lot(ctx, lot)
	must(rt, err)
	if !b.Balanced() || state.Totals != b.Totals || *m.sums[lot] != b.Totals {
		rt.Fatalf("lot %s has %+v, its events add up to %+v, the book has %+v", lot, state.Totals, *m.sums[lot], b.Totals)
	}
	if (state.Watermark != drop.Watermark{Epoch: 1, Seq: b.seq}) || !state.Definition.Equal(b.def) || state.Frozen != "" {
		rt.Fatalf("lot %s is %+v, the book has %+v at seq %d", lot, state, b.def, b.seq)
	}
	m.compareRecords(rt, b, m.records(rt, lot))
	users := make(map[string]drop.UserCount)
	must(rt, m.s.Users(ctx, lot, func(page []drop.UserCount) error {
		for _, u := range page {
			users[u.User] = u
		}
		return nil
	}))
	m.compareUsers(rt, b, users)
	m.compareDue(rt, b)
}

// records returns a lot's records in full, and fails if a batch is kept that no hold needs.
func (m *machine) records(rt *rapid.T, lot drop.LotID) map[string]string {
	ctx := context.Background()
	h, err := m.s.hashOf(ctx, lot)
	must(rt, err)
	fields, err := m.rdb.HGetAll(ctx, h.key).Result()
	must(rt, err)
	records := make(map[string]string)
	for name, value := range fields {
		if attempt, record, ok := recordOf(name, value); ok {
			if _, twice := records[attempt]; twice {
				rt.Fatalf("the record of %s is in two fields", attempt)
			}
			records[attempt] = record
		}
		if batch, ok := strings.CutPrefix(name, batchField); ok && !m.batchHasEntry(rt, lot, batch) {
			rt.Fatalf("the batch %s has no due entry to go with", batch)
		}
	}
	records, err = h.explicit(ctx, records)
	must(rt, err)
	return records
}

func (m *machine) batchHasEntry(rt *rapid.T, lot drop.LotID, batch string) bool {
	members, err := m.rdb.ZRange(context.Background(), m.s.shards[m.shard].keys.due, 0, -1).Result()
	must(rt, err)
	return slices.ContainsFunc(members, func(member string) bool {
		return strings.HasPrefix(member, string(lot)+"\t") && strings.Contains(member, "\t"+batch+"\t")
	})
}

func (m *machine) compareRecords(rt *rapid.T, b *book, got map[string]string) {
	for attempt, r := range b.records {
		text := got[attempt]
		switch {
		case m.swept && r.forgettable(m.calm.Add(-calmSpan).UnixMilli(), m.s.opt.KeyRetention.Milliseconds()):
			rt.Fatalf("the sweep left a record past its retention: %q", text)
		case text != r.text():
			rt.Fatalf("record %q, the book has %q", text, r.text())
		}
		if m.swept && r.state == drop.Held && r.deadline <= m.calm.Add(-calmSpan).UnixMilli() {
			rt.Fatalf("the sweep left a due hold: %q", text)
		}
	}
	if len(got) != len(b.records) {
		rt.Fatalf("%d records %q, the book has %d", len(got), got, len(b.records))
	}
}

func (m *machine) compareUsers(rt *rapid.T, b *book, got map[string]drop.UserCount) {
	for name, u := range b.users {
		if u.held == 0 && u.bought == 0 {
			continue
		}
		if want := (drop.UserCount{Mark: drop.MarkOf(b.def.Lot, name), User: name, Held: u.held, Bought: u.bought, Live: u.live}); got[name] != want {
			rt.Fatalf("user %+v, the book has %+v", got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		rt.Fatalf("users of whom the book has nothing: %+v", got)
	}
}

// compareDue checks that no hold or tombstone can be forgotten: each has a due entry, and the shard looks at the lot
// no later than at its first.
func (m *machine) compareDue(rt *rapid.T, b *book) {
	ctx := context.Background()
	times := make(map[string][]int64)
	var earliest int64
	must(rt, m.s.DueEntries(ctx, b.def.Lot, func(page []drop.DueEntry) error {
		for _, e := range page {
			for _, attempt := range e.Attempts {
				times[attempt] = append(times[attempt], e.At.UnixMilli())
			}
			if at := e.At.UnixMilli(); earliest == 0 || at < earliest {
				earliest = at
			}
		}
		return nil
	}))
	for attempt, r := range b.records {
		at := times[attempt]
		switch {
		case r.state == drop.Held && (len(at) == 0 || slices.Min(at) > r.deadline):
			rt.Fatalf("a hold has no due entry at or before its deadline %d: %v", r.deadline, at)
		case r.state != drop.Held && r.state != drop.Confirmed && (len(at) == 0 || slices.Min(at) > r.since+m.s.opt.KeyRetention.Milliseconds()):
			rt.Fatalf("a tombstone has no due entry at the end of its retention: %q, %v", r.text(), at)
		}
	}
	if earliest == 0 {
		return
	}
	next, err := m.rdb.ZScore(ctx, m.s.shards[m.shard].keys.next, string(b.def.Lot)).Result()
	if err != nil || int64(next) > earliest || m.swept && int64(next) <= m.calm.Add(-calmSpan).UnixMilli() {
		rt.Fatalf("the first due entry is of %d, the shard looks at %.0f (%v); just swept: %v", earliest, next, err, m.swept)
	}
}
