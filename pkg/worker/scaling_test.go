//go:build unix

package worker_test

import (
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// Every worker sees that PostgreSQL was restarted. One sends again what may be missing, and nothing that nobody has read yet.
func TestOneWorkerSendsAgainForAll(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	const lots, buyers = 6, 200
	for i := range lots {
		s.load(t, drop.LotID("lot-"+strconv.Itoa(i)), 2*buyers)
	}
	s.mustDrain(t)
	for i := range lots {
		s.sell(t, drop.LotID("lot-"+strconv.Itoa(i)), 0, buyers)
	}
	s.sql(t, `UPDATE settings SET server = 'the one before'`)
	var log lines
	stop := s.crew(t, 3, worker.Options{Rate: 1e6, Log: slog.New(slog.NewTextHandler(&log, nil))})
	s.agreesWithin(t, 30*time.Second)
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		server := s.sql(t, `SELECT server FROM settings`)
		return server != "the one before", "nobody has looked at the server"
	})
	var events int64
	for _, did := range stop() {
		events += did.Events
	}
	if want := int64(lots * (buyers + buyers/2)); events != want {
		t.Errorf("they recorded %d events of %d", events, want)
	}
	if times := log.count("sending again what the ledger has not folded"); times != 1 {
		t.Errorf("it was all sent again %d times", times)
	}
}

// process starts a worker with default settings in a process of its own.
func (s *shop) process(t testing.TB) *exec.Cmd {
	t.Helper()
	s.startProcess(t)
	return s.running
}

// readers returns the process ids of those that were given something of the lot's outbox within the last two seconds.
func (s *shop) readers(t testing.TB, lot drop.LotID) (pids []int) {
	t.Helper()
	const active = `local pids = ''
		for _, c in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], 'ledger')) do
			if c[6] < 2000 then pids = pids .. c[2] .. ' ' end
		end
		return pids`
	reply, err := s.redis.Do(t.Context(), "EVAL", active, "1", outboxKey(t, s, lot))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(reply) {
		parts := strings.Split(name, "-") // host, process id, something random
		pid, err := strconv.Atoi(parts[len(parts)-2])
		if err != nil {
			t.Fatalf("the reader %q", name)
		}
		pids = append(pids, pid)
	}
	return pids
}

// oneReader waits until a single one of the workers reads the lot's outbox, and returns it.
func (s *shop) oneReader(t testing.TB, lot drop.LotID, workers []*exec.Cmd) (one *exec.Cmd) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (bool, string) {
		pids := s.readers(t, lot)
		for _, w := range workers {
			if len(pids) == 1 && pids[0] == w.Process.Pid {
				one = w
			}
		}
		return one != nil, fmt.Sprintf("%s is read by %v", lot, pids)
	})
	return one
}

// Of three workers the one dies, or only stands still, that is preferred for a shard that sells. Its connections to the stores
// stay open in the second case, and it counts as alive for half a minute in both.
func TestTheShardsOfADeadWorkerAreReadByOthersWithinSeconds(t *testing.T) {
	testkit.Long(t)
	for name, end := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.load(t, "truffle", 100_000)
			workers := []*exec.Cmd{s.process(t), s.process(t), s.process(t)}
			testkit.Eventually(t, time.Minute, func() (bool, string) {
				alive := s.sql(t, `SELECT count(*) FROM workers`)
				return alive == "3", alive + " workers are there"
			})
			buyers := s.buyers(t, "truffle")
			victim := s.oneReader(t, "truffle", workers)
			if err := victim.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			ended := time.Now()
			buyers.awaitAccepted(t, 20, time.Minute) // held after its end
			sold := s.redisSeq(t, "truffle")
			testkit.Eventually(t, time.Minute, func() (bool, string) {
				at := s.watermark(t, "truffle")
				return at.Seq >= sold, fmt.Sprintf("the ledger stands at %d, Redis was at %d", at.Seq, sold)
			})
			t.Logf("what was sold after the end was recorded %v after it", time.Since(ended).Round(10*time.Millisecond))
			buyers.stop()
			s.agreesWithin(t, time.Minute)
			s.nothingTwice(t)
		})
	}
}

// redisSeq is the seq of a lot's newest change.
func (s *shop) redisSeq(t testing.TB, lot drop.LotID) int64 {
	t.Helper()
	st, err := s.stock.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	return st.Seq
}

// Workers come and go while a sale runs, killed or asked to end, and the last one records the rest.
func TestWorkersAreAddedAndKilledAtAnyTime(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	var all []*buyers
	for i := range 2 * shards {
		lot := drop.LotID("lot-" + strconv.Itoa(i))
		s.load(t, lot, 100_000)
		if i%2 == 0 {
			all = append(all, s.buyers(t, lot))
		}
	}
	workers := []*exec.Cmd{s.process(t)}
	for round := range 6 {
		workers = append(workers, s.process(t))
		all[round%len(all)].awaitAccepted(t, 60, time.Minute)
		if len(workers) > 2 {
			signal := syscall.SIGKILL
			if round%2 == 0 {
				signal = syscall.SIGTERM
			}
			_ = workers[0].Process.Signal(signal)
			workers = workers[1:]
		}
	}
	for _, b := range all {
		b.stop()
	}
	s.agreesWithin(t, time.Minute)
	s.nothingTwice(t)
	if parked := s.sql(t, `SELECT count(*) FROM dead_letters`); parked != "0" {
		t.Errorf("%s events were parked", parked)
	}
	for _, w := range workers {
		_ = endProcess(w)
	}
	if _, err := s.drain(t, worker.Options{Takeover: time.Second}); err != nil {
		t.Error(err)
	}
	if n := s.pending(t); n != 0 {
		t.Errorf("%d entries are nobody's", n)
	}
}

// Two workers wait for tokens for much longer than entries may stay with a silent worker. Neither is taken for dead.
func TestAWorkerThatWaitsForTokensIsNotTakenForDead(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	const buyers, rate = 120, 12
	s.load(t, "truffle", buyers)
	for from := 0; from < buyers; from += 2 { // small entries: a large one is recorded on credit
		s.sell(t, "truffle", from, 2)
	}
	var log lines
	stop := s.crew(t, 2, worker.Options{Rate: rate, Takeover: 4 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))})
	began := time.Now()
	s.agreesWithin(t, 2*time.Minute)
	if took := time.Since(began); took < 8*time.Second {
		t.Errorf("they had to wait for %s only: the test tested nothing", took)
	}
	stop()
	if times := log.count("took over entries"); times > 0 {
		t.Errorf("%d times somebody took entries over", times)
	}
}
