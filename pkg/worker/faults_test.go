package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

// An entry that was acknowledged although the ledger has lost it, as by a failover of PostgreSQL.
func (s *shop) acknowledgeUnrecorded(t testing.TB, lot drop.LotID) {
	t.Helper()
	key := outboxKey(t, s, lot)
	reply, err := s.redis.Do(t.Context(), "XREADGROUP", "GROUP", "ledger", "lost", "COUNT", "1", "STREAMS", key, ">")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(reply)
	if len(fields) < 2 || !strings.Contains(fields[1], "-") {
		t.Fatalf("no entry: %q", reply)
	}
	s.do(t, "XACK", key, "ledger", fields[1])
}

func TestAMissingEventIsSentAgain(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.mustDrain(t)
	s.sell(t, "truffle", 1, 1)
	s.acknowledgeUnrecorded(t, "truffle")
	s.sell(t, "truffle", 3, 9)
	// A worker that has nothing else to do is idle as soon as it has filled the gap, and does not speak of it any more.
	if _, err := s.drain(t, worker.Options{Only: []worker.Part{worker.Relay}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.drain(t, worker.Options{Only: []worker.Part{worker.Finalise}}); err != nil {
		t.Fatal(err)
	}
	s.mustAgree(t)
}

// A worker dies with an entry in hand, and others record what comes after it. That must not wait until they take the entry over.
func TestWhatADeadWorkerHadInHandHoldsNothingUp(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.mustDrain(t)
	s.sell(t, "truffle", 1, 1)
	s.do(t, "XREADGROUP", "GROUP", "ledger", "dead", "COUNT", "1", "STREAMS", outboxKey(t, s, "truffle"), ">")
	s.sell(t, "truffle", 3, 9)
	s.start(t, worker.Options{Takeover: time.Hour})
	s.agreesWithin(t, 20*time.Second)
}

// The database goes back to what a standby had that was promoted without the newest commits: a new timeline. The
// worker that had them acknowledged is gone, and one that starts afresh must notice. A shard that has another installation's
// data at that time is sent again once it is ours again, by whichever worker runs then.
func TestWhatAPromotedPostgreSQLServerLacksIsSentAgain(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	postgres := testkit.PostgresServer(t)
	s := newShopOn(t, testkit.Redis(t), stores.On(t, postgres, shards))
	s.load(t, "truffle", 40)
	strange := drop.LotID("hat")
	for strange.Shard(shards) == drop.LotID("truffle").Shard(shards) || strange.Shard(shards) == drop.LotID("lost").Shard(shards) {
		strange += "s"
	}
	s.load(t, strange, 40)
	s.mustDrain(t)
	data := filepath.Join(postgres.Dir(), "data")
	s.whileDown(t, func() { run(t, "cp", "-a", data, data+".standby") })
	s.sell(t, "truffle", 1, 20) // nothing follows it, so that no gap shows
	s.sell(t, strange, 1, 10)
	s.load(t, "lost", 5)
	s.mustDrain(t)
	s.whileDown(t, func() {
		run(t, "rm", "-r", data)
		run(t, "mv", data+".standby", data)
		run(t, "cp", "-a", filepath.Join(data, "PG_VERSION"), filepath.Join(data, "recovery.signal"))
		settings, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = settings.WriteString("restore_command = 'false'\n")
			err = errors.Join(err, settings.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	meta := keyOf(t, s, "drop:{*}:lot:"+string(strange), ":lot:"+string(strange), ":meta")
	owner := s.do(t, "HGET", meta, "owner")
	s.do(t, "HSET", meta, "owner", "somebody-else/4")
	sum, err := s.drain(t, worker.Options{})
	if !fault.Is(err, fault.Partial) || sum.Entries != 0 || sum.Events != 20+10 || sum.Parked != 1 {
		t.Errorf("did %+v: %v", sum, err)
	}
	s.do(t, "HSET", meta, "owner", owner)
	sum, err = s.drain(t, worker.Options{Only: []worker.Part{worker.Relay, worker.Finalise}})
	if err != nil || sum.Entries != 0 || sum.Events != 10+5 || sum.Duplicates != 0 {
		t.Errorf("once the shard was back it did %+v: %v", sum, err)
	}
	s.mustAgree(t)
	if dead, err := s.ledger.DeadLetters(t.Context(), "lost", 0, 10); err != nil || len(dead) != 1 || dead[0].Code != fault.NotFound {
		t.Errorf("of the lot that is gone from the ledger, there is %+v, %v", dead, err)
	}
	if again, err := s.drain(t, worker.Options{}); err != nil && !fault.Is(err, fault.Finding) || again.Duplicates != 0 {
		t.Errorf("the next worker did %+v: %v", again, err)
	}
}

// whileDown does something to the files of PostgreSQL. Afterwards all connections are new ones.
func (s *shop) whileDown(t *testing.T, do func()) {
	t.Helper()
	if err := s.postgres.Kill(); err != nil {
		t.Fatal(err)
	}
	do()
	if err := s.postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.close()
	if err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// countingLedger counts the events that Apply is given, and the looks for gaps.
type countingLedger struct {
	worker.Ledger
	given, looks atomic.Int64
}

func (l *countingLedger) Gaps(ctx context.Context, open time.Duration) ([]drop.Gap, error) {
	l.looks.Add(1)
	return l.Ledger.Gaps(ctx, open)
}

func (l *countingLedger) Apply(ctx context.Context, events []drop.Event, poison []drop.Poison) (drop.Applied, error) {
	l.given.Add(int64(len(events)))
	return l.Ledger.Apply(ctx, events, poison)
}

// An event is lost for good: whatever follows it waits, and must not be sent to the ledger over and over.
func TestAGapThatCannotBeFilledCostsNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 400)
	s.mustDrain(t)
	s.sell(t, "truffle", 1, 1)
	s.do(t, "XTRIM", outboxKey(t, s, "truffle"), "MAXLEN", "0")
	s.sell(t, "truffle", 3, 200)
	l := &countingLedger{Ledger: wire.WorkerLedger(s.ledger)}
	if _, err := s.workerOn(l, worker.Options{UntilIdle: true}).Run(t.Context()); !fault.Is(err, fault.Finding) || !strings.Contains(err.Error(), "events of truffle are missing") {
		t.Fatalf("it ended with %v", err)
	}
	if waiting := s.sql(t, `SELECT waiting FROM lots`); waiting != "300" {
		t.Fatalf("%s events wait", waiting)
	}
	s.sql(t, `UPDATE waiting_events SET recorded_at = now() - interval '1 hour'`)
	l.given.Store(0)
	l.looks.Store(0)
	s.startOn(t, l, worker.Options{})
	s.load(t, "other", 400)
	s.sell(t, "other", 0, 200)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		sold := s.sql(t, `SELECT sold FROM lots WHERE lot = 'other'`)
		return sold == "100" && l.looks.Load() >= 3, fmt.Sprintf("the other lot has sold %s; %d looks for gaps", sold, l.looks.Load())
	})
	if given := l.given.Load(); given != 1+200+100 {
		t.Errorf("the ledger was given %d events, of which the other lot has 301", given)
	}
}

// awayStock is a Redis of which one shard does not answer those who send again.
type awayStock struct {
	worker.Stock
	away int
}

func (a awayStock) LotsOf(ctx context.Context, shards []int) ([]drop.LotID, error) {
	if slices.Contains(shards, a.away) {
		return nil, fault.New(fault.Unavailable, "shard %d is away", a.away)
	}
	return a.Stock.LotsOf(ctx, shards)
}

// One shard cannot be sent again. The others are, and in every later pass their gaps are filled.
func TestAShardThatIsAwayStopsNoUpkeepOfTheOthers(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	away, other := apart(t, s, 40)
	s.mustDrain(t)
	start := func() (stop func() (worker.Summary, error)) {
		in := s.ledger.Installation()
		return startWorker(t, worker.New(awayStock{s.stock, away.Shard(shards)}, wire.WorkerLedger(s.ledger),
			worker.Options{Installation: in.ID, Shards: in.Shards, Only: []worker.Part{worker.Relay}}))
	}
	s.sell(t, other, 1, 1)
	s.acknowledgeUnrecorded(t, other) // nothing follows it, so that no gap shows
	s.sql(t, `UPDATE settings SET server = 'the one before'`)
	stop := start()
	s.catchesUp(t, other)
	unsent := fmt.Sprintf("{%d}", away.Shard(shards))
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		left := s.sql(t, `SELECT unsent FROM settings`)
		return left == unsent, "still to be sent: " + left
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	s.sell(t, other, 3, 1)
	s.acknowledgeUnrecorded(t, other)
	s.sell(t, other, 5, 4)
	start()
	s.catchesUp(t, other)
	if left := s.sql(t, `SELECT unsent FROM settings`); left != unsent {
		t.Errorf("to be sent again are %s", left)
	}
}

// lines keeps what a worker logs.
type lines struct {
	mu   sync.Mutex
	text string
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(line)
	return len(line), nil
}

func (l *lines) has(text string) bool { return l.count(text) > 0 }

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text, text)
}

// Redis is away for so long that every loop pauses for seconds between its attempts. The sale is shut until they go on.
func TestEveryPartGoesOnAsSoonAsRedisAnswers(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	var log lines
	s.start(t, worker.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err := s.redis.Kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(8 * time.Second) // how long it is away
	if err := s.redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	goesOn := func(part worker.Part, limit time.Duration) {
		t.Helper()
		testkit.Eventually(t, limit, func() (bool, string) {
			return log.has("part=" + string(part) + " after="), string(part) + " does not go on"
		})
	}
	goesOn(worker.Guardian, 20*time.Second)
	goesOn(worker.Relay, 3*time.Second) // it is fine after a read, which takes a second
	goesOn(worker.Sweep, 3*time.Second)
}

// panicky is a ledger that makes one part of the worker panic, three times.
type panicky struct {
	worker.Ledger
	times atomic.Int32
}

func (l *panicky) FoldWaiting(ctx context.Context) (int, error) {
	if l.times.Add(1) <= 3 {
		panic("a mistake")
	}
	return l.Ledger.FoldWaiting(ctx)
}

func TestAPanicInOnePartStopsNoOther(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.sell(t, "truffle", 0, 20)
	l := &panicky{Ledger: wire.WorkerLedger(s.ledger)}
	stop := s.startOn(t, l, worker.Options{})
	s.agreesWithin(t, 15*time.Second)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		return l.times.Load() > 3, "the part was not started again"
	})
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}

// Twenty lots of one shard lose all their holds within a second while others go on buying.
func TestAMassExpiryHoldsNobodyUp(t *testing.T) {
	testkit.Long(t)
	s := newShop(t)
	const lots = 20
	each, hold := 1000, 5*time.Second
	if testing.Short() {
		each, hold = 100, 2*time.Second
	}
	lot := func(i int) drop.LotID { return drop.LotID(fmt.Sprintf("drop:lot-%d", i)) }
	for i := range lots {
		s.load(t, lot(i), int64(each))
	}
	s.load(t, "drop:busy", 1_000_000)
	s.start(t, worker.Options{})
	var all sync.WaitGroup
	for i := range lots {
		for part := range 8 {
			all.Go(func() {
				for u := part; u < each; u += 8 {
					if _, err := s.hold(t.Context(), lot(i), fmt.Sprintf("user-%d", u), hold); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()

	buying, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var took []time.Duration
	for b := range 8 {
		all.Go(func() {
			for u := 0; buying.Err() == nil; u++ {
				start := time.Now()
				_, err := s.hold(t.Context(), "drop:busy", fmt.Sprintf("buyer-%d-%d", b, u), time.Hour)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
				sleepUntil(buying, 2*time.Millisecond)
			}
		})
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		for i := range lots {
			st, err := s.stock.Lot(t.Context(), lot(i))
			if err != nil || st.Available != int64(each) {
				return false, fmt.Sprintf("lot %d: %+v %v", i, st.Totals, err)
			}
		}
		return true, ""
	})
	stop()
	all.Wait()
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d holds while %d expired: p50 %s, p99 %s, max %s", len(took), lots*each, took[len(took)/2], p99, took[len(took)-1])
	if p99 > time.Second {
		t.Errorf("p99 of buyers is %s", p99)
	}
}

// sleepUntil pauses a buyer for a moment, or until buying ends.
func sleepUntil(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
