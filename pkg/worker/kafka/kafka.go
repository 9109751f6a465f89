// Package kafka carries outbox entries through a topic of Apache Kafka, or of what speaks its protocol, such as Redpanda.
//
// A shard is a partition, an entry a record. The relay's side (send.go) produces, the part apply's side (receive.go)
// consumes as one group and commits an offset only after the ledger has what is before it. The ledger absorbs whatever is
// repeated or comes late; what the topic loses, the relay sends again from Redis.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/dropctl/dropctl/pkg/fault"
)

// The ways to prove who one is.
const (
	NoSASL      = "none"
	Plain       = "plain"
	ScramSHA256 = "scram-sha-256"
	ScramSHA512 = "scram-sha-512"
)

// Options says how to reach the topic. Brokers, Topic, Group, Installation and Shards are needed.
type Options struct {
	Brokers      []string // host:port; any of the cluster will do
	Topic        string
	Group        string // of those who apply
	Replicas     int    // of a topic that is made; 0: as many as the cluster makes by itself
	Installation string
	Shards       int         // P: partitions
	TLS          *tls.Config // nil: without
	SASL         string      // one of the constants; "" is NoSASL
	Username     string
	Password     string
	Timeout      time.Duration // for connecting, and for one question; default 10 s
	Log          *slog.Logger  // default: none
}

// Kafka is a topic with its group. Safe for concurrent use.
type Kafka struct {
	o Options

	checking chan struct{} // holds one: who looks at the topic

	mu       sync.Mutex
	client   *kgo.Client // of the relay's side, once the topic is known to be right; nil: not yet
	failed   error       // why it was not, and when it was looked at then
	failedAt time.Time
	barriers map[barrier]int64
}

// Open prepares a topic. It dials nothing. Errors: fault.InvalidConfig.
func Open(o Options) (*Kafka, error) {
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	k := &Kafka{o: o, checking: make(chan struct{}, 1), barriers: map[barrier]int64{}}
	if err := o.check(); err != nil {
		return nil, err
	}
	if _, err := k.mechanism(); err != nil {
		return nil, err
	}
	return k, nil
}

var topicName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

// check refuses what no cluster could make sense of.
func (o Options) check() error {
	for _, broker := range o.Brokers {
		host, port, err := net.SplitHostPort(broker)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			return fault.New(fault.InvalidConfig, "kafka-brokers: %q is not a broker's host:port", broker).WithField("kafka-brokers").
				WithHint("write them as kafka-1:9092,kafka-2:9092")
		}
	}
	switch {
	case !topicName.MatchString(o.Topic) || o.Topic == "." || o.Topic == "..":
		return fault.New(fault.InvalidConfig, "kafka-topic: %.60q cannot be the name of a topic", o.Topic).WithField("kafka-topic").
			WithHint("use 1 to 249 letters, digits, dots, underscores and hyphens")
	case o.Group == "":
		return fault.New(fault.InvalidConfig, "kafka-group is empty").WithField("kafka-group").
			WithHint("name the group that all workers of this shop consume as; it keeps how far they are")
	}
	return nil
}

// Target names the topic for people; it holds no secret.
func (k *Kafka) Target() string {
	return "Kafka at " + strings.Join(k.o.Brokers, ",") + " topic " + k.o.Topic
}

// Close ends the connections of the relay's side; a Receive ends with its context. The next use, if there is one, begins
// with a new look at the topic.
func (k *Kafka) Close() {
	k.mu.Lock()
	client := k.client
	k.client = nil
	k.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// Check makes the topic if there is none, and is an error if the one there is has not one partition for each shard.
// Errors: fault.Unavailable; fault.InvalidConfig for such a topic.
func (k *Kafka) Check(ctx context.Context) error {
	_, err := k.checked(ctx)
	return err
}

// checked returns a client, having looked at the topic first. Of many who ask at once one looks.
func (k *Kafka) checked(ctx context.Context) (*kgo.Client, error) {
	select {
	case k.checking <- struct{}{}:
		defer func() { <-k.checking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if client, err := k.known(); client != nil || err != nil {
		return client, err
	}
	client, err := k.connect(k.producing()...)
	if err != nil {
		return nil, err
	}
	if err = k.checkTopic(ctx, kadm.NewClient(client)); err == nil {
		err = k.checkOwner(ctx, kadm.NewClient(client))
	}
	if err != nil {
		client.Close()
		client = nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.client, k.failed, k.failedAt = client, err, time.Now()
	return client, err
}

// known returns what the last look has shown. A failure counts for a moment: whoever waited meanwhile need not wait again.
func (k *Kafka) known() (*kgo.Client, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failed != nil && time.Since(k.failedAt) < time.Second {
		return nil, k.failed
	}
	return k.client, nil
}

// checkTopic never changes a topic that is there: records already lie where they lie.
func (k *Kafka) checkTopic(ctx context.Context, admin *kadm.Client) error {
	ctx, cancel := context.WithTimeout(ctx, k.o.Timeout)
	defer cancel()
	topics, err := admin.ListTopics(ctx, k.o.Topic)
	if err != nil {
		return k.fail(err, "looking at the topic")
	}
	topic := topics[k.o.Topic]
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		return k.makeTopic(ctx, admin)
	}
	if topic.Err != nil {
		return k.fail(topic.Err, "looking at the topic")
	}
	if n := len(topic.Partitions); n != k.o.Shards {
		return fault.New(fault.InvalidConfig, "the topic %s has %d partitions, and the shop %d shards: each needs a partition of its own", k.o.Topic, n, k.o.Shards).
			WithField("kafka-topic").WithHint("name another topic with --kafka-topic, which is made as it should be; this one is left alone")
	}
	return nil
}

// checkOwner refuses a topic that carries the records of another installation and none of ours: whoever comes later is kept
// out, before he writes anything. It looks at the newest record of each partition; what cannot be read in time says nothing.
func (k *Kafka) checkOwner(ctx context.Context, admin *kadm.Client) error {
	ctx, cancel := context.WithTimeout(ctx, k.o.Timeout/2)
	defer cancel()
	starts, err := admin.ListStartOffsets(ctx, k.o.Topic)
	if err != nil {
		return nil //nolint:nilerr // whoever reads the records finds out in any case
	}
	ends, err := admin.ListEndOffsets(ctx, k.o.Topic)
	if err != nil {
		return nil //nolint:nilerr // the same
	}
	newest := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		if start, ok := starts.Lookup(k.o.Topic, end.Partition); ok && start.Err == nil && end.Err == nil && end.Offset > start.Offset {
			newest[end.Partition] = kgo.NewOffset().At(end.Offset - 1)
		}
	})
	if len(newest) == 0 {
		return nil
	}
	reader, err := k.connect(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{k.o.Topic: newest}), kgo.FetchMaxWait(fetchWait))
	if err != nil {
		return err
	}
	defer reader.Close()
	var foreign error
	ours := false
	for left := len(newest); left > 0 && !ours && ctx.Err() == nil; {
		reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if _, first := newest[r.Partition]; first {
				delete(newest, r.Partition)
				left--
			}
			entry, _, err := k.entry(r)
			ours = ours || entry.Installation == k.o.Installation
			if fault.Is(err, fault.Foreign) {
				foreign = err
			}
		})
	}
	if ours {
		return nil
	}
	return foreign
}

func (k *Kafka) makeTopic(ctx context.Context, admin *kadm.Client) error {
	replicas := int16(-1) // as the cluster's default says
	configs := map[string]*string{"max.message.bytes": new(strconv.Itoa(maxRecord))}
	if k.o.Replicas > 0 {
		replicas = int16(k.o.Replicas)
		configs["min.insync.replicas"] = new(strconv.Itoa(max(1, k.o.Replicas-1)))
	}
	made, err := admin.CreateTopic(ctx, int32(k.o.Shards), replicas, configs, k.o.Topic)
	if err != nil && !errors.Is(made.Err, kerr.TopicAlreadyExists) { // another worker made it just now
		return k.fail(err, "making the topic")
	}
	k.o.Log.Info("made a topic", "topic", k.o.Topic, "partitions", k.o.Shards)
	return nil
}

// maxRecord is the largest record. An entry of one script call stays far below it.
const maxRecord = 4 << 20

// connect prepares a client; it dials when it is used.
func (k *Kafka) connect(more ...kgo.Opt) (*kgo.Client, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(k.o.Brokers...), kgo.ClientID("dropctl"),
		kgo.DialTimeout(k.o.Timeout), kgo.RetryTimeout(k.o.Timeout),
		kgo.MetadataMinAge(250 * time.Millisecond), // a partition has moved: who leads it now?
	}
	if k.o.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(k.o.TLS))
	}
	mechanism, err := k.mechanism()
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	client, err := kgo.NewClient(append(opts, more...)...)
	return client, k.fail(err, "preparing to connect")
}

func (k *Kafka) mechanism() (sasl.Mechanism, error) {
	scramAuth := scram.Auth{User: k.o.Username, Pass: k.o.Password}
	var m sasl.Mechanism
	switch k.o.SASL {
	case "", NoSASL:
		if k.o.Username != "" {
			return nil, fault.New(fault.InvalidConfig, "kafka-username is set, and kafka-sasl none logs nobody in").WithField("kafka-sasl").
				WithHint("say how to log in: --kafka-sasl scram-sha-512; or leave the user out")
		}
		return nil, nil
	case Plain:
		m = plain.Auth{User: k.o.Username, Pass: k.o.Password}.AsMechanism()
	case ScramSHA256:
		m = scramAuth.AsSha256Mechanism()
	case ScramSHA512:
		m = scramAuth.AsSha512Mechanism()
	default:
		return nil, fault.New(fault.InvalidConfig, "there is no SASL mechanism %q", k.o.SASL).WithField("kafka-sasl")
	}
	if k.o.Username == "" || k.o.Password == "" {
		return nil, fault.New(fault.InvalidConfig, "SASL %s needs a user and a password", k.o.SASL).WithField("kafka-username").
			WithHint("set kafka-username, and kafka-password-file or kafka-password")
	}
	return m, nil
}

// fail words an error of the client library.
func (k *Kafka) fail(err error, doing string) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	hint := "check that the brokers run and can be reached from here: " + strings.Join(k.o.Brokers, ", ")
	for _, known := range []struct {
		err  error
		hint string
	}{
		{io.EOF, "a broker closed the connection: check kafka-tls, kafka-sasl, kafka-username and the password, or it is just being restarted"},
		{kerr.SaslAuthenticationFailed, "check kafka-sasl, kafka-username and the password"},
		{kerr.TopicAuthorizationFailed, "let the user read, write, describe and create the topic " + k.o.Topic},
		{kerr.GroupAuthorizationFailed, "let the user read the group " + k.o.Group},
		{kerr.ClusterAuthorizationFailed, "let the user create the topic " + k.o.Topic + ", or create it with one partition for each shard"},
		{kerr.InvalidReplicationFactor, "the cluster has fewer brokers than --kafka-replicas says"},
		{kerr.NotEnoughReplicas, "some replicas are down: fewer than min.insync.replicas of the topic are in sync"},
		{kerr.MessageTooLarge, "raise max.message.bytes of the topic to " + strconv.Itoa(maxRecord)},
	} {
		if errors.Is(err, known.err) {
			hint = known.hint
		}
	}
	return fault.Wrap(fault.Unavailable, err, "%s: %s", k.Target(), doing).WithHint("%s", hint)
}
