package kafka_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/dropctl/dropctl/pkg/cli"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// dropctl runs a command line with this shop's stores and topic.
func (s *shop) dropctl(t *testing.T, args ...string) (exit int, said string) {
	t.Helper()
	env := map[string]string{
		"DROPCTL_CONFIG": "none", "DROPCTL_REDIS_URL": s.redis.SocketURL(), "DROPCTL_DATABASE_URL": s.database, "DROPCTL_TRANSPORT": "kafka",
		"DROPCTL_KAFKA_BROKERS": strings.Join(s.broker.Addrs(), ","), "DROPCTL_KAFKA_TOPIC": s.options().Topic, "DROPCTL_KAFKA_GROUP": s.options().Group,
	}
	var out bytes.Buffer
	exit = cli.Main(t.Context(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(name string) string { return env[name] }})
	return exit, out.String()
}

// TestARestoreWaitsForWhatTheTopicHolds loses Redis when what was sold is in the topic alone: rebuilt from the ledger as it
// is, the lot would sell those units again.
func TestARestoreWaitsForWhatTheTopicHolds(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	s.load(t, "hat", 10)
	if exit, said := s.dropctl(t, "worker", "--until-idle", "-q"); exit != 0 { // the ledger knows that it was loaded
		t.Fatalf("exit %d: %s", exit, said)
	}
	relay := s.start(t, worker.Options{Only: []worker.Part{worker.Relay}})
	s.sell(t, "hat", 0, 4)
	admin := kadm.NewClient(client(t, s.options()))
	testkit.Eventually(t, 60*time.Second, func() (bool, string) { return ended(t, admin) >= 7, "not everything is in the topic" })
	relay()
	if _, err := s.redis.Do(t.Context(), "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	refused := func(exit int, says string, args ...string) {
		t.Helper()
		got, said := s.dropctl(t, append([]string{"restore", "hat"}, args...)...)
		if _, err := s.stock.Lot(t.Context(), "hat"); got != exit || !strings.Contains(said, says) || !fault.Is(err, fault.LotNotLoaded) {
			t.Fatalf("exit %d, and then %v:\n%s", got, err, said)
		}
	}
	refused(4, "dropctl worker", "--timeout", "1s")
	refused(0, "rebuild", "--dry-run") // it asks nothing
	s.broker.Kill()
	refused(5, "--transport direct", "--timeout", "1s")
	s.broker.Restart()

	s.start(t, worker.Options{Only: []worker.Part{worker.Apply}})
	if exit, said := s.dropctl(t, "restore", "hat", "--timeout", "60s"); exit != 0 {
		t.Fatalf("exit %d: %s", exit, said)
	}
	state, err := s.stock.Lot(t.Context(), "hat")
	if want := (drop.Totals{Capacity: 10, Available: 6, Held: 2, Sold: 2}); err != nil || state.Totals != want {
		t.Errorf("restored as %+v, %v", state.Totals, err)
	}
	if exit, said := s.dropctl(t, "reconcile", "--deep"); exit != 0 {
		t.Errorf("reconcile: exit %d: %s", exit, said)
	}
}
