package kafka_test

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

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/broker"
	"github.com/dropctl/dropctl/pkg/worker"
	"github.com/dropctl/dropctl/pkg/worker/kafka"
)

func TestEveryEventIsRecordedOnceWhateverTheBrokersDo(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	lots := s.lots(t, 60)
	s.start(t, worker.Options{Resend: time.Second})

	ctx, cancel := context.WithCancel(t.Context())
	var troubles sync.WaitGroup
	troubles.Go(func() { // a second worker comes and goes: the partitions with it
		for ctx.Err() == nil {
			stop := s.start(t, worker.Options{Only: []worker.Part{worker.Apply}})
			pause(ctx, time.Second)
			stop()
		}
	})
	var sale sync.WaitGroup
	for _, lot := range lots {
		sale.Go(func() {
			for from := 0; from < 60; from += 6 {
				s.sell(t, lot, from, from+6)
				pause(ctx, 200*time.Millisecond)
			}
		})
	}
	s.broker.LoseAcks(5)
	pause(ctx, 500*time.Millisecond)
	s.broker.ShuffleLeaders()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { return s.broker.AcksLost() == 5, "not all acks are lost" })
	s.broker.Kill()
	pause(ctx, 500*time.Millisecond)
	s.broker.Restart()
	pause(ctx, 500*time.Millisecond)
	s.broker.ShuffleLeaders()
	sale.Wait()
	s.arrives(t)
	cancel()
	troubles.Wait()

	// Somebody reads the whole topic once more, and applies all of it.
	before := s.recorded(t, lots)
	o := s.options()
	o.Group = "again"
	applied := receiveAll(t, queue(t, o), func(ctx context.Context, entries []drop.OutboxEntry) error {
		return worker.NewInbox(wire.WorkerLedger(s.ledger), worker.Options{Rate: 1e6}).Deliver(ctx, entries)
	})
	if applied < shards*60 {
		t.Errorf("only %d entries were there to be repeated", applied)
	}
	if after := s.recorded(t, lots); after != before {
		t.Errorf("the repetition changed the ledger from %s to %s", before, after)
	}
	s.arrives(t)
}

func TestTheBrokersMayBeDownForTheWholeDrop(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	lots := s.lots(t, 20)
	s.start(t, worker.Options{Resend: time.Second})
	s.broker.Kill()
	for _, lot := range lots {
		s.sell(t, lot, 0, 20)
	}
	if n := s.pending(t); n < shards*20 {
		t.Errorf("only %d entries wait", n)
	}
	s.broker.Restart()
	s.arrives(t)
}

// As cron runs it: everything that is there goes through the topic, then the worker ends.
func TestUntilIdleDrainsThroughTheTopic(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	for _, lot := range s.lots(t, 10) {
		s.sell(t, lot, 0, 10)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	for range 2 {
		if _, err := s.worker(t, worker.Options{UntilIdle: true}).Run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := s.pending(t); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	}
	s.arrives(t)
	s.broker.Kill()
	s.load(t, "one-more", 1) // which is an event too
	_, err := s.worker(t, worker.Options{UntilIdle: true, Patience: 2 * time.Second}).Run(ctx)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "Kafka at ") {
		t.Errorf("with the brokers down it ended with %v", err)
	}
}

func TestWhatTheTopicLosesIsSentAgain(t *testing.T) {
	testkit.Long(t)
	for name, lose := range map[string]func(t *testing.T, admin *kadm.Client){
		"records": func(t *testing.T, admin *kadm.Client) {
			ends, err := admin.ListEndOffsets(t.Context(), "events")
			if err != nil {
				t.Fatal(err)
			}
			to := kadm.Offsets{}
			ends.Each(func(o kadm.ListedOffset) { to.AddOffset(o.Topic, o.Partition, o.Offset, -1) })
			if gone, err := admin.DeleteRecords(t.Context(), to); err != nil || gone.Error() != nil {
				t.Fatal(err, gone.Error())
			}
		},
		"the topic": func(t *testing.T, admin *kadm.Client) {
			if gone, err := admin.DeleteTopics(t.Context(), "events"); err != nil || gone.Error() != nil {
				t.Fatal(err, gone.Error())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			lots := s.lots(t, 20)
			s.start(t, worker.Options{Only: []worker.Part{worker.Relay, worker.Finalise}, Resend: time.Second})
			s.arrivesDirectly(t) // what was there when the worker first saw the ledger
			admin := kadm.NewClient(client(t, s.options()))
			before := ended(t, admin)
			for _, lot := range lots {
				s.sell(t, lot, 0, 20)
			}
			waiting := s.pending(t)
			testkit.Eventually(t, 60*time.Second, func() (bool, string) {
				n := ended(t, admin) - before
				return n >= waiting, fmt.Sprintf("%d of %d entries are sent", n, waiting)
			})
			lose(t, admin)
			s.start(t, worker.Options{Only: []worker.Part{worker.Apply}})
			s.arrives(t)
		})
	}
}

// arrivesDirectly waits until the ledger has the lots' loads, which upkeep may bring it without the topic.
func (s *shop) arrivesDirectly(t *testing.T) {
	stop := s.start(t, worker.Options{Only: []worker.Part{worker.Apply}})
	s.arrives(t)
	stop()
}

// An independent client finds in the topic what the README says is there.
func TestKcatReadsTheTopic(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	lot := s.lots(t, 4)[0]
	s.start(t, worker.Options{})
	s.sell(t, lot, 0, 4)
	s.arrives(t)

	out, err := exec.CommandContext(t.Context(), "kcat", "-C", "-e", "-q", "-b", strings.Join(s.broker.Addrs(), ","), "-t", "events", "-X", "broker.address.family=v4",
		"-f", "%p|%h|%s\x1e").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s (make deps installs kcat)", err, out)
	}
	holds := 0
	for record := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x1e"), "\x1e") {
		parts := strings.SplitN(record, "|", 3)
		if len(parts) != 3 {
			t.Fatalf("a record is %q", record)
		}
		headers := map[string]string{}
		for h := range strings.SplitSeq(parts[1], ",") {
			name, value, _ := strings.Cut(h, "=")
			headers[name] = value
		}
		if headers["dropctl-barrier"] != "" {
			continue
		}
		if headers["dropctl-installation"] != s.ledger.Installation().ID || headers["dropctl-version"] != drop.SchemaVersion || headers["dropctl-shard"] != parts[0] ||
			headers["dropctl-id"] == "" || headers["dropctl-time"] == "" {
			t.Errorf("partition %s has the headers %v", parts[0], headers)
		}
		if strings.HasPrefix(parts[2], "@\t"+string(lot)+"\t1\n") {
			holds += strings.Count(parts[2], "user-")
		}
	}
	if holds < 4 { // a confirmation names the user too
		t.Errorf("the holds of %s are not all there: %s", lot, out)
	}
}

func TestWhatIsNotOursIsParkedOrRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	lots := s.lots(t, 4)
	s.start(t, worker.Options{})
	s.arrives(t)
	writer := client(t, s.options())
	ours := kgo.RecordHeader{Key: "dropctl-installation", Value: []byte(s.ledger.Installation().ID)}
	if err := writer.ProduceSync(t.Context(),
		&kgo.Record{Topic: "events", Partition: 3, Value: []byte("@\tlot\t1\n"), Headers: []kgo.RecordHeader{{Key: "dropctl-installation", Value: []byte("strangers")}, {Key: "dropctl-version", Value: []byte(drop.SchemaVersion)}}},
		&kgo.Record{Topic: "events", Partition: 0, Value: []byte("somebody's\nnote \x00\xff")},
		&kgo.Record{Topic: "events", Partition: 0, Value: []byte("@\tlot\t1\n"), Headers: []kgo.RecordHeader{ours, {Key: "dropctl-version", Value: []byte("99")}}},
		&kgo.Record{Topic: "events", Partition: 1, Value: nil, Headers: []kgo.RecordHeader{ours, {Key: "dropctl-version", Value: []byte(drop.SchemaVersion)}}},
	).FirstErr(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 60*time.Second, func() (bool, string) {
		st, err := s.ledger.Status(t.Context())
		return err == nil && st.DeadLetters[fault.Invalid] == 4, fmt.Sprintf("dead letters %v: %v", st.DeadLetters, err)
	})

	// The workers go on, and others begin.
	for _, lot := range lots {
		s.sell(t, lot, 0, 4)
	}
	testkit.Eventually(t, 60*time.Second, func() (bool, string) {
		n := s.pending(t)
		return n == 0, fmt.Sprintf("%d entries are not acknowledged", n)
	})
	if err := queue(t, s.options()).Check(t.Context()); err != nil {
		t.Errorf("the topic is not ours any more: %v", err)
	}
	o := s.options()
	o.Installation, o.Group = "somebody-else", "strangers"
	if err := queue(t, o).Check(t.Context()); !fault.Is(err, fault.Foreign) {
		t.Errorf("a topic of another installation: %v", err)
	}
}

func TestATopicIsMadeOnceAndNeverChanged(t *testing.T) {
	t.Parallel()
	b := broker.Start(t)
	o := kafka.Options{Brokers: b.Addrs(), Topic: "events", Group: "workers", Installation: "i", Shards: shards, Replicas: 2}
	if h, err := queue(t, o).Health(t.Context()); err != nil || h.Exists {
		t.Errorf("before it is made: %+v %v", h, err)
	}
	for range 2 {
		if err := queue(t, o).Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	h, err := queue(t, o).Health(t.Context())
	if err != nil || !h.Exists || h.Partitions != shards || h.Replicas != 2 || h.Needed != 1 || h.Compacted || h.NoSettings != "" || len(h.Weak)+len(h.Leaderless) > 0 {
		t.Errorf("its health is %+v: %v", h, err)
	}
	admin := kadm.NewClient(client(t, o))
	topics, err := admin.ListTopics(t.Context(), "events")
	if err != nil || len(topics["events"].Partitions) != shards || topics["events"].Partitions.NumReplicas() != 2 {
		t.Errorf("the topic is %+v: %v", topics["events"], err)
	}
	o.Shards = shards + 1
	err = queue(t, o).Check(t.Context())
	if !fault.Is(err, fault.InvalidConfig) || !strings.Contains(err.Error(), "4 partitions") {
		t.Errorf("a topic with too few partitions: %v", err)
	}
	if again, err := admin.ListTopics(t.Context(), "events"); err != nil || len(again["events"].Partitions) != shards {
		t.Errorf("it was changed: %+v %v", again, err)
	}
}

func TestOptionsThatNoClusterUnderstands(t *testing.T) {
	t.Parallel()
	for field, wrong := range map[string][]func(*kafka.Options){
		"kafka-brokers": {
			func(o *kafka.Options) { o.Brokers = []string{"kafka-1"} }, func(o *kafka.Options) { o.Brokers = []string{"kafka-1:9092", ""} },
			func(o *kafka.Options) { o.Brokers = []string{":9092"} }, func(o *kafka.Options) { o.Brokers = []string{"kafka-1:99999"} }, func(o *kafka.Options) { o.Brokers = []string{"kafka-1:0"} },
		},
		"kafka-topic": {
			func(o *kafka.Options) { o.Topic = "" }, func(o *kafka.Options) { o.Topic = ".." },
			func(o *kafka.Options) { o.Topic = "a b" }, func(o *kafka.Options) { o.Topic = strings.Repeat("t", 250) },
		},
		"kafka-group":    {func(o *kafka.Options) { o.Group = "" }},
		"kafka-sasl":     {func(o *kafka.Options) { o.Username = "ann" }, func(o *kafka.Options) { o.SASL = "md5" }},
		"kafka-username": {func(o *kafka.Options) { o.SASL = kafka.Plain }},
	} {
		for i, change := range wrong {
			o := kafka.Options{Brokers: []string{"kafka-1:9092"}, Topic: "events", Group: "workers", Installation: "i", Shards: shards}
			if _, err := kafka.Open(o); err != nil {
				t.Fatal(err)
			}
			change(&o)
			if _, err := kafka.Open(o); !fault.Is(err, fault.InvalidConfig) || fault.As(err).Field != field {
				t.Errorf("%s, %d: %v", field, i, err)
			}
		}
	}
}

// A broker is being asked for everything but the partition that is worked on; the next question must not wait until that
// one is answered, which takes seconds where nobody buys.
func TestOneEventAfterAnotherIsDeliveredAtOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	b := broker.Start(t)
	k := queue(t, kafka.Options{Brokers: b.Addrs(), Topic: "events", Group: "workers", Installation: "i", Shards: shards})
	arrived, ended := make(chan string), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- k.Receive(ctx, func(ctx context.Context, entries []drop.OutboxEntry) error {
			for _, e := range entries {
				select {
				case arrived <- e.ID:
				case <-ctx.Done():
				}
			}
			return nil
		})
	}()
	send := func(n int) {
		t.Helper()
		id := fmt.Sprintf("1-%d", n)
		if err := k.Send(ctx, 1, []drop.OutboxEntry{{ID: id, Entry: drop.Entry{Installation: "i", Time: time.UnixMilli(1), Body: "event"}}}, 1); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-arrived:
			if got != id {
				t.Errorf("%s arrived, not %s", got, id)
			}
		case <-time.After(60 * time.Second):
			t.Fatalf("%s does not arrive", id)
		}
	}
	send(0) // the group has formed
	start := time.Now()
	for n := range 8 {
		send(n + 1)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("8 events, one after another, took %s", took)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A second shop that is led to the topic of the first by mistake must not end the workers of the first.
func TestWhoComesLaterIsKeptOutOfATopic(t *testing.T) {
	t.Parallel()
	b := broker.Start(t)
	o := kafka.Options{Brokers: b.Addrs(), Topic: "events", Group: "workers", Installation: "first", Shards: shards}
	entry := func(of string) []drop.OutboxEntry {
		return []drop.OutboxEntry{{ID: "1-1", Entry: drop.Entry{Installation: of, Time: time.UnixMilli(1), Body: "event"}}}
	}
	for range 2 {
		if err := queue(t, o).Send(t.Context(), 2, entry("first"), 1); err != nil {
			t.Fatal(err)
		}
	}
	second := o
	second.Installation, second.Group = "second", "others"
	if err := queue(t, second).Send(t.Context(), 0, entry("second"), 1); !fault.Is(err, fault.Foreign) {
		t.Errorf("another installation sends: %v", err)
	}
	if n := ended(t, kadm.NewClient(client(t, o))); n != 2 {
		t.Errorf("the topic has %d records", n)
	}
	second.Topic = "others-events"
	if err := queue(t, second).Send(t.Context(), 0, entry("second"), 1); err != nil {
		t.Error(err)
	}
}

func TestTheBarrierPassesBehindWhatWasSent(t *testing.T) {
	t.Parallel()
	b := broker.Start(t)
	o := kafka.Options{Brokers: b.Addrs(), Topic: "events", Group: "workers", Installation: "i", Shards: shards}
	k := queue(t, o)
	entries := []drop.OutboxEntry{{ID: "1-1", Entry: drop.Entry{Installation: "i", Time: time.UnixMilli(1), Body: "first"}}, {ID: "1-2", Entry: drop.Entry{Installation: "i", Time: time.UnixMilli(2), Body: "second"}}}
	if err := k.Send(t.Context(), 1, entries, 1); err != nil {
		t.Fatal(err)
	}
	passes := func(mark string) bool {
		passed, err := k.Barrier(t.Context(), 1, mark)
		if err != nil {
			t.Fatal(err)
		}
		return passed
	}
	for range 3 {
		if passes("a") {
			t.Fatal("it passed before anybody has read")
		}
	}
	// It does not pass while what is before it cannot be applied.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := make(chan error, 1)
	full := errors.New("the ledger is down")
	go func() {
		refused <- queue(t, o).Receive(ctx, func(context.Context, []drop.OutboxEntry) error { return full })
	}()
	if err := <-refused; !errors.Is(err, full) {
		t.Fatalf("the receiver ended with %v", err)
	}
	if passes("a") {
		t.Error("it passed although nothing was applied")
	}
	var got []drop.OutboxEntry
	received := make(chan error, 1)
	go func() {
		received <- queue(t, o).Receive(ctx, func(_ context.Context, entries []drop.OutboxEntry) error { got = append(got, entries...); return nil })
	}()
	testkit.Eventually(t, 60*time.Second, func() (bool, string) { return passes("a"), "the barrier does not pass" })
	cancel()
	if err := <-received; err != nil {
		t.Error(err)
	}
	for i := range got {
		got[i].Time = got[i].Time.Local()
	}
	if !slices.Equal(got, entries) {
		t.Errorf("received %+v, sent %+v", got, entries)
	}
}

// What is applied is committed in the end, although nothing more is sent that would be committed together with it.
func TestACommitThatFailsIsMadeUpFor(t *testing.T) {
	t.Parallel()
	b := broker.Start(t)
	o := kafka.Options{Brokers: b.Addrs(), Topic: "events", Group: "workers", Installation: "i", Shards: shards}
	k := queue(t, o)
	if err := k.Send(t.Context(), 1, []drop.OutboxEntry{{ID: "1-1", Entry: drop.Entry{Installation: "i", Body: "last"}}}, 1); err != nil {
		t.Fatal(err)
	}
	b.RefuseCommits(3)
	ctx, cancel := context.WithCancel(t.Context())
	var applied atomic.Int32
	received := make(chan error, 1)
	go func() {
		received <- queue(t, o).Receive(ctx, func(context.Context, []drop.OutboxEntry) error { applied.Add(1); return nil })
	}()
	testkit.Eventually(t, 60*time.Second, func() (bool, string) {
		offsets, err := kadm.NewClient(client(t, o)).FetchOffsets(ctx, o.Group)
		at, _ := offsets.Lookup("events", 1)
		return at.At == 1, fmt.Sprintf("committed up to %d: %v", at.At, err)
	})
	cancel()
	if err := <-received; err != nil || applied.Load() != 1 {
		t.Errorf("applied %d times, ended with %v", applied.Load(), err)
	}
}

// A worker that waits gives its partitions up when another one comes, and commits nothing of what it has not applied.
func TestNothingIsCommittedOfAPartitionThatIsTakenAway(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	b := broker.Start(t)
	o := kafka.Options{Brokers: b.Addrs(), Topic: "events", Group: "workers", Installation: "i", Shards: shards}
	k := queue(t, o)
	for shard := range shards {
		if err := k.Send(t.Context(), shard, []drop.OutboxEntry{{ID: "1-1", Entry: drop.Entry{Installation: "i", Body: fmt.Sprint(shard)}}}, 1); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var waiting, applied atomic.Int32
	all.Go(func() {
		_ = queue(t, o).Receive(ctx, func(ctx context.Context, _ []drop.OutboxEntry) error {
			waiting.Add(1)
			<-ctx.Done()
			return ctx.Err()
		})
	})
	testkit.Eventually(t, 60*time.Second, func() (bool, string) { return waiting.Load() >= shards, "not everything is in hand" })
	all.Go(func() {
		_ = queue(t, o).Receive(ctx, func(_ context.Context, entries []drop.OutboxEntry) error {
			applied.Add(int32(len(entries)))
			return nil
		})
	})
	testkit.Eventually(t, 60*time.Second, func() (bool, string) {
		return applied.Load() >= shards/2, fmt.Sprintf("the second has got %d", applied.Load())
	})
	committed := int64(0)
	offsets, err := kadm.NewClient(client(t, o)).FetchOffsets(t.Context(), o.Group)
	if err != nil {
		t.Fatal(err)
	}
	offsets.Each(func(r kadm.OffsetResponse) { committed += max(0, r.At) })
	if got := int64(applied.Load()); committed > got {
		t.Errorf("%d are committed, %d are applied", committed, got)
	}
}

func TestBrokersThatWantTLSAndAUser(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	b := broker.StartSecure(t)
	for _, mechanism := range []string{kafka.Plain, kafka.ScramSHA256, kafka.ScramSHA512} {
		o := secure(t, b)
		o.SASL = mechanism
		k := queue(t, o)
		if err := k.Send(t.Context(), 1, []drop.OutboxEntry{{ID: "1-1", Entry: drop.Entry{Installation: "i", Body: "a"}}}, 1); err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
		o.Password = "wrong horse"
		err := queue(t, o).Check(t.Context())
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), "kafka-username") || strings.Contains(err.Error(), "horse") {
			t.Errorf("%s with a wrong password: %v (%s)", mechanism, err, fault.HintOf(err))
		}
	}
	o := secure(t, b)
	o.TLS = nil
	if err := queue(t, o).Check(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without TLS: %v", err)
	}
	if _, err := kafka.Open(kafka.Options{SASL: kafka.Plain, Username: "dropctl"}); !fault.Is(err, fault.InvalidConfig) {
		t.Errorf("without a password: %v", err)
	}
}

// What an operator sets is what the brokers get to see.
func TestTheSettingsLeadToTheTopic(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	b := broker.StartSecure(t)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(broker.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"DROPCTL_TRANSPORT": "kafka", "DROPCTL_KAFKA_BROKERS": strings.Join(b.Addrs(), ", "), "DROPCTL_KAFKA_TOPIC": "of-the-shop",
		"DROPCTL_KAFKA_CA_FILE": b.CAFile(), "DROPCTL_KAFKA_SASL": "scram-sha-512", "DROPCTL_KAFKA_USERNAME": broker.Username, "DROPCTL_KAFKA_PASSWORD": "file:" + password}
	getenv := func(name string) string { return env[name] }
	open := func() (wire.Queue, error) {
		cfg, err := config.Resolve(config.Sources{Getenv: getenv})
		if err == nil {
			err = wire.CheckTransport(cfg, getenv, true, false)
		}
		if err != nil {
			return wire.Queue{}, err
		}
		return wire.OpenQueue(t.Context(), cfg, getenv, s.ledger, telemetry.NewWorker(nil), slog.New(slog.DiscardHandler))
	}
	q, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	entry := drop.OutboxEntry{ID: "1-1", Entry: drop.Entry{Installation: s.ledger.Installation().ID, Time: time.UnixMilli(1), Body: "a"}}
	if err := q.Queue.Send(t.Context(), shards-1, []drop.OutboxEntry{entry}, 1); err != nil {
		t.Fatal(err)
	}
	o := secure(t, b)
	o.Topic, o.Shards = "of-the-shop", shards+1
	if err := queue(t, o).Check(t.Context()); !fault.Is(err, fault.InvalidConfig) {
		t.Errorf("the topic has not one partition for each shard: %v", err)
	}

	for name, wrong := range map[string]string{"DROPCTL_KAFKA_PASSWORD": "", "DROPCTL_KAFKA_BROKERS": "somewhere", "DROPCTL_KAFKA_CA_FILE": password, "DROPCTL_KAFKA_KEY_FILE": password} {
		right := env[name]
		env[name] = wrong
		if _, err := open(); !fault.Is(err, fault.InvalidConfig) || strings.Contains(err.Error(), broker.Password) {
			t.Errorf("%s=%s: %v", name, wrong, err)
		}
		env[name] = right
	}
}

func secure(t *testing.T, b *broker.Broker) kafka.Options {
	t.Helper()
	return kafka.Options{Brokers: b.Addrs(), Topic: "events", Group: "workers", Installation: "i", Shards: shards, Timeout: 5 * time.Second,
		TLS: b.TLS(), SASL: kafka.ScramSHA256, Username: broker.Username, Password: broker.Password}
}

// receiveAll reads the topic from its beginning to its present end, and returns how many entries there were.
func receiveAll(t *testing.T, k *kafka.Kafka, deliver func(context.Context, []drop.OutboxEntry) error) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var n atomic.Int32
	done := make(chan error, 1)
	go func() {
		done <- k.Receive(ctx, func(ctx context.Context, entries []drop.OutboxEntry) error {
			if err := deliver(ctx, entries); err != nil {
				return err
			}
			n.Add(int32(len(entries)))
			return nil
		})
	}()
	for shard := range shards {
		testkit.Eventually(t, 60*time.Second, func() (bool, string) {
			passed, err := k.Barrier(ctx, shard, "end")
			return passed && err == nil, fmt.Sprintf("shard %d is not read to its end: %v", shard, err)
		})
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return int(n.Load())
}

// client is a plain client, beside ours.
func client(t *testing.T, o kafka.Options) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// ended counts all records ever written.
func ended(t *testing.T, admin *kadm.Client) (n int64) {
	t.Helper()
	ends, err := admin.ListEndOffsets(t.Context(), "events")
	if err != nil {
		t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += max(0, o.Offset) })
	return n
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
