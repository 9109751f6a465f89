package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

func TestUntilIdleRecordsEverythingAndEnds(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for i := range 6 {
		lot := drop.LotID("lot-" + strconv.Itoa(i))
		s.load(t, lot, 40)
		s.sell(t, lot, 0, 30)
	}
	sum, err := s.drain(t, worker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(6 * (1 + 30 + 15)); sum.Events != want || sum.Finalised != 6*15 || sum.Parked != 0 {
		t.Errorf("did %+v, want %d events and 90 finalised", sum, want)
	}
	s.mustAgree(t)
	if again, err := s.drain(t, worker.Options{}); err != nil || again.Entries != 0 {
		t.Errorf("a second run did %+v: %v", again, err)
	}
}

func TestRedeliveredEntriesChangeNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	s.sell(t, "truffle", 0, 30)
	s.mustDrain(t)
	if _, err := s.redis.Do(t.Context(), "XGROUP", "SETID", outboxKey(t, s, "truffle"), "ledger", "0"); err != nil {
		t.Fatal(err)
	}
	sum, err := s.drain(t, worker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Events != 0 || sum.Duplicates != 1+30+15 || sum.Finalised != 0 {
		t.Errorf("did %+v, want 46 duplicates and nothing else", sum)
	}
	s.mustAgree(t)
}

func TestWhatIsNoEventIsParkedAndReported(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 10)
	installation := s.ledger.Installation().ID
	if _, err := s.redis.Do(t.Context(), "XADD", outboxKey(t, s, "truffle"), "*", "v", "1", "i", installation, "t", "1", "o", "0", "d", "nonsense"); err != nil {
		t.Fatal(err)
	}
	sum, err := s.drain(t, worker.Options{})
	if !fault.Is(err, fault.Partial) || fault.ExitOf(err) != fault.ExitPartial || sum.Parked != 1 {
		t.Fatalf("did %+v: %v", sum, err)
	}
	s.mustAgree(t)
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Errorf("it is parked once; the next run said %v", err)
	}
}

func TestAnotherInstallationsDatabaseGetsNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 10)
	s.sell(t, "truffle", 0, 10)
	other := newShop(t)
	foreign := &shop{redisURL: s.redisURL, databaseURL: other.databaseURL}
	if err := foreign.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer foreign.close()

	before := s.pending(t)
	for _, parts := range [][]worker.Part{{worker.Relay}, {worker.Guardian}, nil} {
		_, err := foreign.drain(t, worker.Options{Only: parts})
		if !fault.Is(err, fault.Foreign) || fault.ExitOf(err) != fault.ExitUnavailable {
			t.Errorf("%v ended with %v", parts, err)
		}
	}
	if now := s.pending(t); now != before {
		t.Errorf("%d entries were acknowledged", before-now)
	}
	if st := s.door(t, "truffle"); st.Frozen != "" {
		t.Errorf("it froze the shard: %q", st.Frozen)
	}
	if groups, err := s.redis.Do(t.Context(), "XINFO", "GROUPS", outboxKey(t, s, "truffle")); err != nil || groups != "" {
		t.Errorf("it began to read: %q %v", groups, err)
	}
	// The rightful worker finds everything.
	s.mustDrain(t)
	s.mustAgree(t)
}

func TestAKilledWorkersEntriesAreTakenOver(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 400)
	s.mustDrain(t)
	s.sell(t, "truffle", 0, 200)
	unlock := s.lockLot(t, "truffle")

	victim := exec.Command(os.Args[0])
	victim.Env = append(os.Environ(), envRedis+"="+s.redisURL, envDatabase+"="+s.databaseURL)
	victim.Stderr = os.Stderr
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		waiting := s.sql(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'worker-test'`)
		return waiting != "0", "the worker has not come to the middle of Apply"
	})
	_ = victim.Process.Kill()
	_ = victim.Wait()
	unlock()

	sum, err := s.drain(t, worker.Options{Takeover: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s.mustAgree(t)
	if sum.Events+sum.Duplicates != 200+100 {
		t.Errorf("the second worker did %+v, want 300 events in all", sum)
	}
}

func TestAGracefulStopLeavesNothingHalfDone(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 2000)
	stop := s.start(t, worker.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var buyers sync.WaitGroup
	for b := range 4 {
		buyers.Go(func() {
			for i := 0; ctx.Err() == nil && i < 400; i++ {
				id, err := s.hold(context.WithoutCancel(ctx), "truffle", fmt.Sprintf("user-%d-%d", b, i), time.Hour)
				if err == nil {
					_, err = s.stock.Settle(context.WithoutCancel(ctx), drop.SettleRequest{ID: id, Action: drop.ActConfirm})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		return s.sql(t, `SELECT count(*) > 20 FROM order_ledger`) == "t", "nothing is finalised"
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	cancel()
	buyers.Wait()
	if given, err := s.redis.Do(t.Context(), "XPENDING", outboxKey(t, s, "truffle"), "ledger"); err != nil || strings.Split(given, "\n")[0] != "0" {
		t.Errorf("entries are read and not acknowledged: %q %v", given, err)
	}
	if leased := s.sql(t, `SELECT count(*) FROM pending_allocations WHERE state = 'PROCESSING'`); leased != "0" {
		t.Errorf("%s reservations are claimed and not finalised", leased)
	}
	if alive := s.sql(t, `SELECT count(*) FROM workers`); alive != "0" {
		t.Errorf("%s workers have not signed off", alive)
	}
	s.mustDrain(t)
	s.mustAgree(t)
}

// Workers come and go; what they leave behind in Redis must not add up, and entries in hand must not go with them.
func TestWorkersLeaveNoReadersBehind(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "truffle", 40)
	for from := range 3 {
		s.sell(t, "truffle", 10*from, 10)
		s.mustDrain(t)
	}
	key := outboxKey(t, s, "truffle")
	readers := func() string {
		reply, err := s.redis.Do(t.Context(), "XINFO", "CONSUMERS", key, "ledger")
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if got := readers(); got != "" {
		t.Errorf("readers are left: %q", got)
	}
	// Two workers died long ago. One had an entry in hand, which waits for Claim.
	s.do(t, "XGROUP", "CREATECONSUMER", key, "ledger", "died-empty")
	s.sell(t, "truffle", 35, 1)
	if _, err := s.redis.Do(t.Context(), "XREADGROUP", "GROUP", "ledger", "died-busy", "STREAMS", key, ">"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"died-empty", "died-busy"} {
		s.sql(t, `INSERT INTO workers VALUES ('`+name+`', 'host', 1, '{}', '', now(), now() - interval '2 days')`)
	}
	s.start(t, worker.Options{Takeover: time.Hour})
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		got := readers()
		return !strings.Contains(got, "died-empty"), got
	})
	if got := readers(); !strings.Contains(got, "died-busy") {
		t.Errorf("the entry of the dead worker went with it: %q", got)
	}
}

func TestAllWorkersTogetherKeepToTheRate(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	for i := range shards {
		lot := drop.LotID("lot-" + strconv.Itoa(i))
		s.load(t, lot, 300)
		for from := 0; from < 300; from += 20 { // small entries, so that a batch is not one huge one
			s.sell(t, lot, from, 20)
		}
	}
	const rate = 600
	start := time.Now()
	s.start(t, worker.Options{Rate: rate})
	s.start(t, worker.Options{Rate: rate})
	s.agreesWithin(t, 30*time.Second)
	events := shards * (300 + 150 + 1)
	// A second's worth may have been saved up before, and the last batch is on credit.
	if took, least := time.Since(start), time.Duration(events-2*rate)*time.Second/rate; took < least {
		t.Errorf("%d events took %s, at %d a second it should be at least %s", events, took, rate, least)
	}
}

func TestPostgreSQLMayRestartInTheMiddle(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	postgres := testkit.PostgresServer(t)
	s := newShopOn(t, testkit.Redis(t), stores.On(t, postgres, shards))
	s.load(t, "truffle", 2000)
	for from := 0; from < 1000; from += 50 {
		s.sell(t, "truffle", from, 50)
	}
	s.start(t, worker.Options{Rate: 1000, Log: testLog(t)})
	for kill := range 3 { // each in the middle of something
		recorded := fmt.Sprintf(`SELECT count(*) > %d FROM reservation_events`, 100+300*kill)
		testkit.Eventually(t, 60*time.Second, func() (bool, string) {
			enough, err := postgres.SQL(t.Context(), s.databaseName(), recorded)
			return err == nil && strings.TrimSpace(enough) == "t", "nothing is recorded"
		})
		if err := postgres.Kill(); err != nil {
			t.Fatal(err)
		}
		s.sell(t, "truffle", 1000+30*kill, 30) // selling needs no ledger
		if err := postgres.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.agreesWithin(t, 60*time.Second)
	s.journalIsOutbox(t, "truffle")
	if sales := s.sql(t, `SELECT count(*), count(DISTINCT n), sum(units) FROM order_ledger`); sales != "545|545|545" {
		t.Errorf("sales, reservations and units: %s", sales)
	}
}

func TestExpiredHoldsComeBackPromptly(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	for name, notify := range map[string]string{"with hints": "Ex", "without hints": ""} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			if _, err := s.redis.Do(t.Context(), "CONFIG", "SET", "notify-keyspace-events", notify); err != nil {
				t.Fatal(err)
			}
			users := 3000
			if testing.Short() {
				users = 300
			}
			s.load(t, "truffle", int64(users))
			s.start(t, worker.Options{Only: []worker.Part{worker.Sweep}})
			var all sync.WaitGroup
			for i := range users {
				all.Go(func() {
					if _, err := s.hold(t.Context(), "truffle", "user-"+strconv.Itoa(i), time.Second); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			testkit.Eventually(t, 30*time.Second, func() (bool, string) {
				st, err := s.stock.Lot(t.Context(), "truffle")
				return err == nil && st.Available == int64(users), fmt.Sprintf("%+v %v", st.Totals, err)
			})
		})
	}
}

func TestUntilIdleGivesUpOnASilentStore(t *testing.T) {
	testkit.Long(t)
	for name, silence := range map[string]func(*lab.Redis) error{"killed": (*lab.Redis).Kill, "hanging": (*lab.Redis).Pause} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.load(t, "truffle", 10)
			if err := silence(s.redis); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, err := s.drain(t, worker.Options{Patience: 5 * time.Second})
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "gave up after 5s") || !strings.Contains(err.Error(), "Redis at ") {
				t.Errorf("ended with %v", err)
			}
			// What was begun before a server fell silent ends with the limits of its calls.
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// lockLot keeps Apply waiting in the middle of its transaction until unlock.
func (s *shop) lockLot(t testing.TB, lot drop.LotID) (unlock func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.postgres.SQL(context.Background(), s.databaseName(), fmt.Sprintf(
			`SET application_name = 'locker'; BEGIN; SELECT 1 FROM lots WHERE lot = '%s' FOR UPDATE; SELECT pg_sleep(60)`, lot))
	}()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		return s.sql(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'locker' AND wait_event = 'PgSleep'`) == "1", "the lot is not locked"
	})
	return func() {
		s.sql(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'locker'`)
		<-done
	}
}

func (s *shop) databaseName() string {
	path, _, _ := strings.Cut(s.databaseURL, "?")
	return path[strings.LastIndex(path, "/")+1:]
}

func (s *shop) sql(t testing.TB, statement string) string {
	t.Helper()
	out, err := s.postgres.SQL(t.Context(), s.databaseName(), statement)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// outboxKey finds the stream of the lot's shard.
func outboxKey(t testing.TB, s *shop, lot drop.LotID) string {
	t.Helper()
	return keyOf(t, s, "drop:{*}:lot:"+string(lot), ":lot:"+string(lot), ":outbox")
}

func keyOf(t testing.TB, s *shop, pattern, suffix, other string) string {
	t.Helper()
	key, err := s.redis.Do(t.Context(), "KEYS", pattern)
	if err != nil || !strings.HasSuffix(key, suffix) {
		t.Fatalf("no key like %s: %q %v", pattern, key, err)
	}
	return strings.TrimSuffix(key, suffix) + other
}

// testLog shows the worker's log lines with the test that failed.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, nil))
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(line)))
	return len(line), nil
}
