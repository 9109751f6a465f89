package worker_test

import (
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// crew starts workers in this process, each with connections of its own. stop ends them all and returns what each did.
func (s *shop) crew(t testing.TB, size int, o worker.Options) (stop func() []worker.Summary) {
	t.Helper()
	var stops []func() (worker.Summary, error)
	for range size {
		one := &shop{redis: s.redis, postgres: s.postgres, redisURL: s.redisURL, databaseURL: s.databaseURL}
		if err := one.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(one.close)
		stops = append(stops, one.start(t, o))
	}
	return func() (did []worker.Summary) {
		for _, stop := range stops {
			sum, err := stop()
			if err != nil {
				t.Error(err)
			}
			did = append(did, sum)
		}
		return did
	}
}

// Every worker sees that PostgreSQL was restarted. One sends again what may be missing, and nothing that nobody has read yet.
func TestOneWorkerSendsAgainForAll(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	const lots, buyers = 6, 200
	for i := range lots {
		s.load(t, drop.LotID("lot-"+strconv.Itoa(i)), 2*buyers)
	}
	if _, err := s.drain(t, worker.Options{}); err != nil {
		t.Fatal(err)
	}
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
