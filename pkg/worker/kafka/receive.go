package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dropctl/dropctl/pkg/drop"
)

const (
	fetchPartition = 256 << 10 // bytes of a partition in hand: some thousand events
	fetchAll       = 4 << 20   // of one broker
	// A broker answers a question at the latest after this time. A partition that was worked on is not in the question that
	// is being asked, so it waits for the next one.
	fetchWait      = 200 * time.Millisecond
	sessionLimit   = 10 * time.Second // a worker that is silent for longer loses its partitions
	rebalanceLimit = 45 * time.Second
	revokeLimit    = 35 * time.Second // for what is in hand when a partition is to go: longer than one attempt to apply takes
	commitLimit    = 10 * time.Second
	commitPause    = 500 * time.Millisecond // between two attempts
	commitPatience = 30 * time.Second
)

// Receive implements worker.Source. Each partition is worked on for itself, one batch at a time: while one is in hand, no
// more of it is read.
func (k *Kafka) Receive(ctx context.Context, deliver func(ctx context.Context, entries []drop.OutboxEntry) error) error {
	working, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	r := &receiver{Kafka: k, working: working, giveUp: giveUp, deliver: deliver, hand: map[int32]*batch{}}
	var err error
	r.client, err = k.connect(r.consuming()...)
	if err != nil {
		return err
	}
	defer r.client.CloseAllowingRebalance()
	for working.Err() == nil {
		fetches := r.client.PollFetches(working)
		if err := r.broken(fetches); err != nil {
			giveUp(err)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) > 0 {
				r.begin(p.Partition, p.Records)
			}
		})
		r.client.AllowRebalance()
	}
	r.finish()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(working)
}

// receiver is one Receive.
type receiver struct {
	*Kafka
	client  *kgo.Client
	working context.Context
	giveUp  context.CancelCauseFunc
	deliver func(context.Context, []drop.OutboxEntry) error

	mu   sync.Mutex
	hand map[int32]*batch // by partition
}

// batch is what of a partition is in hand.
type batch struct {
	cancel context.CancelFunc
	done   chan struct{}
	lost   bool // the partition is somebody else's: nothing may be committed
}

func (r *receiver) consuming() []kgo.Opt {
	gone := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) { r.letGo(partitions[r.o.Topic]) }
	return []kgo.Opt{
		kgo.ConsumeTopics(r.o.Topic), kgo.ConsumerGroup(r.o.Group), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // whatever the group has not seen, or does not remember having seen
		kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone),
		kgo.SessionTimeout(sessionLimit), kgo.HeartbeatInterval(sessionLimit / 5), kgo.RebalanceTimeout(rebalanceLimit),
		kgo.FetchMaxPartitionBytes(fetchPartition), kgo.FetchMaxBytes(fetchAll), kgo.FetchMaxWait(fetchWait),
	}
}

// broken returns an error that only a new beginning heals. What the library lost and found again by itself is none: what
// is missing is sent again.
func (r *receiver) broken(fetches kgo.Fetches) error {
	var bad error
	fetches.EachError(func(_ string, partition int32, err error) {
		var lost *kgo.ErrDataLoss
		switch {
		case r.working.Err() != nil:
		case errors.As(err, &lost):
			r.o.Log.Warn("the topic has lost records; what the ledger lacks of them is sent again", "partition", partition, "error", err)
		case !kerr.IsRetriable(err) || errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID):
			bad = err
		}
	})
	if bad == nil {
		return nil
	}
	r.Close() // and with it what is known of the topic
	return r.fail(bad, "receiving")
}

// begin works on records of a partition, of which nothing is read until that is done.
func (r *receiver) begin(partition int32, records []*kgo.Record) {
	r.wait(partition)
	ctx, cancel := context.WithCancel(r.working)
	b := &batch{cancel: cancel, done: make(chan struct{})}
	r.mu.Lock()
	r.hand[partition] = b
	r.mu.Unlock()
	only := map[string][]int32{r.o.Topic: {partition}}
	r.client.PauseFetchPartitions(only)
	go func() {
		defer close(b.done)
		defer cancel()
		if err := r.work(ctx, b, records); err != nil && ctx.Err() == nil {
			r.giveUp(err)
		}
		r.client.ResumeFetchPartitions(only) // before the next batch can begin, which pauses it again
		r.mu.Lock()
		delete(r.hand, partition)
		r.mu.Unlock()
	}()
}

// work delivers records, and only then commits. What another installation has written becomes a dead letter, so that one
// record of a stranger stops nobody.
func (r *receiver) work(ctx context.Context, b *batch, records []*kgo.Record) error {
	entries := make([]drop.OutboxEntry, 0, len(records))
	var foreign error
	for _, record := range records {
		entry, ok, err := r.entry(record)
		if err != nil {
			foreign = err
		}
		if ok || err != nil {
			entries = append(entries, entry)
		}
	}
	if foreign != nil {
		r.o.Log.Error("another installation writes into the topic; what it wrote becomes dead letters", "error", foreign, "next", "dropctl outbox list --state dead")
	}
	if err := r.deliver(ctx, entries); err != nil {
		return err
	}
	return r.commit(ctx, b, records[len(records)-1])
}

// commit records that everything up to a record is done, until the group has noted it or the partition is to go: what is
// applied and not committed would keep a barrier from passing until something else is sent, perhaps for ever. What nobody
// notes for long is an error, and everything begins anew.
func (r *receiver) commit(ctx context.Context, b *batch, last *kgo.Record) error {
	for began := time.Now(); ; {
		r.mu.Lock()
		lost := b.lost
		r.mu.Unlock()
		if lost {
			return nil
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitLimit)
		err := r.client.CommitRecords(within, last)
		cancel()
		if err == nil {
			return nil
		}
		r.o.Log.Debug("an offset could not be committed", "partition", last.Partition, "error", err)
		if time.Since(began) > commitPatience {
			return r.fail(err, "committing an offset")
		}
		select {
		case <-ctx.Done(): // whoever has the partition next applies it once more, which changes nothing
			return nil
		case <-time.After(commitPause):
		}
	}
}

// wait waits until nothing of a partition is in hand.
func (r *receiver) wait(partition int32) {
	r.mu.Lock()
	b := r.hand[partition]
	r.mu.Unlock()
	if b != nil {
		<-b.done
	}
}

// letGo gives partitions up. What waits for tokens is dropped, what is being applied may finish, and is committed if it
// does so in time.
func (r *receiver) letGo(partitions []int32) {
	r.mu.Lock()
	var going []*batch
	for _, p := range partitions {
		if b := r.hand[p]; b != nil {
			b.cancel()
			going = append(going, b)
		}
	}
	r.mu.Unlock()
	late, cancel := context.WithTimeout(context.Background(), revokeLimit)
	defer cancel()
	for _, b := range going {
		select {
		case <-b.done:
		case <-late.Done():
			r.mu.Lock()
			b.lost = true
			r.mu.Unlock()
		}
	}
}

// finish waits until nothing is in hand any more: the context has ended.
func (r *receiver) finish() {
	for p := range int32(r.o.Shards) {
		r.wait(p)
	}
}
