package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// A bad queue is one in memory that does everything a queue may do: it repeats, reorders, delays and loses.
type badQueue struct {
	lose    func(entry drop.OutboxEntry, sending int) bool // nil: nothing
	twice   bool
	reverse bool

	mu        sync.Mutex
	stopped   bool
	away      bool
	checks    int
	waiting   [shards][]drop.OutboxEntry
	sent      int
	sendings  map[string]int // of each entry, the highest
	delivered [shards]int
	put       [shards]int
	marks     map[string]int // how much was put when it was first asked for
}

func newBadQueue() *badQueue {
	return &badQueue{sendings: map[string]int{}, marks: map[string]int{}}
}

func (q *badQueue) Send(_ context.Context, shard int, entries []drop.OutboxEntry, sending int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, entry := range entries {
		q.sent++
		q.sendings[entry.ID+"/"+strconv.Itoa(shard)] = sending
		if q.lose != nil && q.lose(entry, sending) {
			continue
		}
		q.waiting[shard] = append(q.waiting[shard], entry)
		q.put[shard]++
	}
	return nil
}

func (q *badQueue) Barrier(_ context.Context, shard int, mark string) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, asked := q.marks[mark]; !asked {
		q.marks[mark] = q.put[shard]
	}
	return q.delivered[shard] >= q.marks[mark], nil
}

func (q *badQueue) stop(stopped bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = stopped
}

func (q *badQueue) Check(context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.checks++
	if q.away {
		return fault.New(fault.Unavailable, "the queue is away")
	}
	return nil
}

func (q *badQueue) Receive(ctx context.Context, deliver func(context.Context, []drop.OutboxEntry) error) error {
	for ctx.Err() == nil {
		for shard := range shards {
			q.mu.Lock()
			var batch []drop.OutboxEntry
			if !q.stopped {
				batch = slices.Clone(q.waiting[shard][:min(7, len(q.waiting[shard]))])
			}
			q.mu.Unlock()
			n := len(batch)
			if n == 0 {
				continue
			}
			if q.reverse {
				slices.Reverse(batch)
			}
			times := 1
			if q.twice {
				times = 2
			}
			for range times {
				if err := deliver(ctx, batch); err != nil {
					return err
				}
			}
			q.mu.Lock()
			q.waiting[shard] = q.waiting[shard][n:]
			q.delivered[shard] += n
			q.mu.Unlock()
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (q *badQueue) counts() (sent, highest int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, n := range q.sendings {
		highest = max(highest, n)
	}
	return q.sent, highest
}

func (s *shop) allAcknowledged(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (bool, string) {
		n := s.pending(t)
		return n == 0, fmt.Sprintf("%d entries are not acknowledged", n)
	})
}

// A trouble is logged when it begins and when it is over, not at every attempt between.
func TestAQueueThatIsAwayIsToldOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	q := newBadQueue()
	q.away = true
	var log lines
	s.start(t, worker.Options{Queue: q, Source: q, Only: []worker.Part{worker.Apply}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	testkit.Eventually(t, 60*time.Second, func() (bool, string) {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.checks >= 4, fmt.Sprintf("looked at it %d times", q.checks)
	})
	if began, over := log.count("the queue is away"), log.count("works again"); began != 1 || over != 0 {
		t.Errorf("the trouble was logged %d times, and %d times that it is over", began, over)
	}
	q.mu.Lock()
	q.away = false
	q.mu.Unlock()
	testkit.Eventually(t, 60*time.Second, func() (bool, string) { return log.has("works again"), "it is not told that it works again" })
}

func TestWhateverTheQueueDoesTheLedgerGetsEachEventOnce(t *testing.T) {
	t.Parallel()
	third, lost := 0, false // of the queue alone that loses
	for name, q := range map[string]*badQueue{
		"orderly":              newBadQueue(),
		"twice and in reverse": {twice: true, reverse: true, sendings: map[string]int{}, marks: map[string]int{}},
		"loses every third": {sendings: map[string]int{}, marks: map[string]int{}, lose: func(_ drop.OutboxEntry, sending int) bool {
			third++
			lose := sending == 1 && third%3 == 0
			lost = lost || lose
			return lose
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			metrics := telemetry.NewWorker(nil)
			relayed := func(step string) int {
				var d dto.Metric
				if err := metrics.Relayed.WithLabelValues("bad", step).Write(&d); err != nil {
					t.Fatal(err)
				}
				return int(d.GetCounter().GetValue())
			}
			stop := s.start(t, worker.Options{Queue: q, Source: q, Transport: "bad", Resend: 300 * time.Millisecond, Log: testLog(t), Metrics: metrics})
			for i := range shards {
				lot := drop.LotID("lot-" + strconv.Itoa(i))
				s.load(t, lot, 40)
				for from := 0; from < 40; from += 10 {
					s.sell(t, lot, from, 10)
				}
			}
			s.agreesWithin(t, 60*time.Second)
			s.allAcknowledged(t)
			sum, err := stop()
			if err != nil {
				t.Fatal(err)
			}
			if want := int64(shards * (1 + 40 + 20)); sum.Events != want || sum.Parked != 0 || sum.Finalised != shards*20 {
				t.Errorf("did %+v, want %d events and %d finalised", sum, want, shards*20)
			}
			// What is lost comes again, or a later event shows the gap and it is fetched.
			if _, highest := q.counts(); q.lose != nil && !lost {
				t.Error("nothing was lost: the test tests nothing")
			} else if highest > 1 && relayed("resent") == 0 {
				t.Error("what was sent again is not counted")
			}
			if sent, acknowledged := relayed("sent"), relayed("acknowledged"); sent == 0 || sent != acknowledged {
				t.Errorf("counted %d entries sent, %d acknowledged", sent, acknowledged)
			}
		})
	}
}

// While a shop goes over from one transport to the other, both are at work: the journal is what the outbox has, in order.
func TestTwoTransportsAtOnceRecordEachEventOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	q := &badQueue{twice: true, reverse: true, sendings: map[string]int{}, marks: map[string]int{}}
	s.crew(t, 1, worker.Options{})
	s.crew(t, 1, worker.Options{Queue: q, Source: q, Resend: 300 * time.Millisecond})
	const lots, buyers = 2 * shards, 60
	var all sync.WaitGroup
	for i := range lots {
		lot := drop.LotID("lot-" + strconv.Itoa(i))
		s.load(t, lot, buyers)
		all.Go(func() {
			for from := 0; from < buyers; from += 6 {
				s.sell(t, lot, from, 6)
			}
		})
	}
	all.Wait()
	s.agreesWithin(t, time.Minute)
	s.allAcknowledged(t)
	// Everything once more, by whoever gets it: an hour later it is no different.
	for i := range lots {
		s.do(t, "XGROUP", "SETID", outboxKey(t, s, drop.LotID("lot-"+strconv.Itoa(i))), "ledger", "0")
	}
	s.allAcknowledged(t)
	s.mustAgree(t)
	for i := range lots {
		s.journalIsOutbox(t, drop.LotID("lot-"+strconv.Itoa(i)))
	}
	if sent, _ := q.counts(); sent == 0 {
		t.Error("the queue was given nothing: the test tested nothing")
	}
	if dead := s.sql(t, `SELECT count(*) FROM dead_letters`); dead != "0" {
		t.Errorf("%s events were parked", dead)
	}
}

// journalIsOutbox checks that the ledger has recorded of a lot what Redis wrote, each event once and in order.
func (s *shop) journalIsOutbox(t testing.TB, lot drop.LotID) {
	t.Helper()
	events, err := s.stock.EventsSince(t.Context(), lot.Shard(shards), map[drop.LotID]drop.Watermark{lot: {}})
	if err != nil {
		t.Fatal(err)
	}
	var wrote []string
	for _, ev := range events[lot] {
		wrote = append(wrote, ev.Line())
	}
	recorded := strings.Split(s.sql(t, `SELECT line FROM reservation_events WHERE lot = '`+string(lot)+`' ORDER BY epoch, seq`), "\n")
	if !slices.Equal(recorded, wrote) {
		t.Errorf("%s: %d events are recorded, %d were written, or they differ", lot, len(recorded), len(wrote))
	}
	if v, err := s.ledger.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" || v.Events != int64(len(wrote)) {
		t.Errorf("%s: verify says %+v, %v", lot, v, err)
	}
}

// The word of the queue is not enough: it may lose what it has confirmed.
func TestAnEntryIsAcknowledgedOnlyWhenTheLedgerHasIt(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	q := newBadQueue()
	q.stopped = true
	s.load(t, "truffle", 40)
	if _, err := s.drain(t, worker.Options{}); err != nil { // a first worker sends everything there is to a ledger it does not know
		t.Fatal(err)
	}
	o := worker.Options{Queue: q, Source: q, Takeover: 600 * time.Millisecond, Resend: time.Hour}
	stop := s.start(t, o)
	s.sell(t, "truffle", 0, 20)
	entries := s.pending(t)
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		sent, _ := q.counts()
		return int64(sent) >= entries, fmt.Sprintf("%d of %d entries are sent", sent, entries)
	})
	// A second worker does not take over what the first one waits for, however long that takes.
	second := o
	second.Only = []worker.Part{worker.Relay}
	stopSecond := s.start(t, second)
	time.Sleep(3 * o.Takeover)
	if sent, _ := q.counts(); int64(sent) != entries || s.pending(t) != entries {
		t.Errorf("%d entries were sent and %d are acknowledged, of %d", sent, entries-s.pending(t), entries)
	}
	// The first one goes. What it has sent is acknowledged by the other once it arrives, and sent no second time.
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	q.stop(false)
	s.start(t, worker.Options{Queue: q, Source: q, Only: []worker.Part{worker.Apply, worker.Finalise}})
	s.allAcknowledged(t)
	s.agreesWithin(t, 20*time.Second)
	if sum, err := stopSecond(); err != nil || sum.Entries != entries {
		t.Errorf("the second worker did %+v: %v", sum, err)
	}
	if sent, _ := q.counts(); int64(sent) != entries {
		t.Errorf("%d sendings of %d entries", sent, entries)
	}
}

// Redis is emptied while the queue still has what it had sold: the rebuild must not miss that.
func TestTheGuardianWaitsForWhatTheQueueStillHas(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	q := newBadQueue()
	s.load(t, "truffle", 40)
	s.start(t, worker.Options{Queue: q, Source: q, Log: testLog(t)})
	s.sell(t, "truffle", 0, 10)
	s.allAcknowledged(t)
	q.stop(true)
	before, _ := q.counts()
	s.sell(t, "truffle", 10, 10)
	entries := s.pending(t)
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		sent, _ := q.counts()
		return int64(sent-before) >= entries, "not everything is sent"
	})
	s.do(t, "FLUSHALL")
	time.Sleep(3 * time.Second) // it rebuilds a second after it has seen that
	if _, err := s.stock.Lot(t.Context(), "truffle"); !fault.Is(err, fault.LotNotLoaded) {
		t.Errorf("the lot was rebuilt before the queue was empty: %v", err)
	}
	q.stop(false)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		st, err := s.stock.Lot(t.Context(), "truffle")
		return err == nil && st.Held == 10 && st.Sold == 10, fmt.Sprintf("%+v %v", st.Totals, err)
	})
	s.agreesWithin(t, 20*time.Second)
}

func TestForeignEntriesAreRefusedByTheInbox(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	b := worker.NewInbox(wire.WorkerLedger(s.ledger), worker.Options{})
	err := b.Deliver(t.Context(), []drop.OutboxEntry{{ID: "1-1", Entry: drop.Entry{Installation: "somebody", Body: "nonsense"}}})
	if !fault.Is(err, fault.Foreign) {
		t.Errorf("ended with %v", err)
	}
	if n := s.sql(t, `SELECT count(*) FROM dead_letters`); n != "0" {
		t.Errorf("%s dead letters", n)
	}
}

func TestAnInboxOffersToComeBackWhenThereAreNoTokens(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.sql(t, `UPDATE apply_budget SET tokens = -50, filled_at = now()`)
	b := worker.NewInbox(wire.WorkerLedger(s.ledger), worker.Options{Rate: 10})
	garbage := []drop.OutboxEntry{{ID: "1-1", Entry: drop.Entry{Installation: s.ledger.Installation().ID, Body: "nonsense"}}}
	wait, err := b.Offer(t.Context(), garbage)
	if err != nil || wait < time.Second || wait > time.Minute {
		t.Errorf("it says wait %s: %v", wait, err)
	}
	if n := s.sql(t, `SELECT count(*) FROM dead_letters`); n != "0" {
		t.Errorf("%s dead letters", n)
	}
	s.sql(t, `UPDATE apply_budget SET tokens = 5`)
	if wait, err := b.Offer(t.Context(), garbage); err != nil || wait != 0 {
		t.Errorf("with tokens it says wait %s: %v", wait, err)
	}
	if n := s.sql(t, `SELECT count(*) FROM dead_letters`); n != "1" {
		t.Errorf("%s dead letters", n)
	}
}
