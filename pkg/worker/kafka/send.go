package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dropctl/dropctl/pkg/drop"
)

// deliveryLimit is how long the brokers may take over a record.
const deliveryLimit = 20 * time.Second

// producing are the options of the relay's side. The producer is idempotent and waits for all replicas in sync, as the
// library does by default. It may give a record up whose fate is not known: that one is sent again, and the ledger knows it.
func (k *Kafka) producing() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytes(maxRecord), kgo.RecordDeliveryTimeout(deliveryLimit), kgo.AllowIdempotentProduceCancellation(),
	}
}

// Send implements worker.Queue: each entry is a record in the shard's partition.
func (k *Kafka) Send(ctx context.Context, shard int, entries []drop.OutboxEntry, _ int) error {
	records := make([]*kgo.Record, len(entries))
	for i, entry := range entries {
		records[i] = k.record(shard, entry)
	}
	return k.produce(ctx, records...)
}

// produce returns once every record is written, or one cannot be. With ctx it gives up waiting, whatever the brokers do.
func (k *Kafka) produce(ctx context.Context, records ...*kgo.Record) error {
	client, err := k.checked(ctx)
	if err != nil {
		return err
	}
	written := make(chan error, len(records))
	for _, r := range records {
		client.Produce(ctx, r, func(_ *kgo.Record, err error) { written <- err })
	}
	for range records {
		select {
		case err = <-written:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
				k.Close() // the topic is gone: it has to be looked at, and made, anew
			}
			return k.fail(err, "sending")
		}
	}
	return nil
}

// barrier is a question whether everything sent before it has come through.
type barrier struct {
	shard int
	mark  string
}

// Barrier implements worker.Queue. The first call with a mark writes a record of its own behind everything sent before; it
// has come through when the group has committed an offset beyond it.
func (k *Kafka) Barrier(ctx context.Context, shard int, mark string) (bool, error) {
	b := barrier{shard, mark}
	offset, asked := k.asked(b)
	if !asked {
		r := k.barrierRecord(b)
		if err := k.produce(ctx, r); err != nil {
			return false, err
		}
		k.ask(b, r.Offset)
		return false, nil
	}
	client, err := k.checked(ctx)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, k.o.Timeout)
	defer cancel()
	admin := kadm.NewClient(client)
	committed, err := admin.FetchOffsetsForTopics(ctx, k.o.Group, k.o.Topic)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // nobody has ever received
		return false, k.fail(err, "asking how far the group is")
	}
	if at, ok := committed.Lookup(k.o.Topic, int32(shard)); ok && at.Err == nil && at.At > offset {
		k.forget(b)
		return true, nil
	}
	return false, k.stillThere(ctx, admin, b, offset)
}

// stillThere lets the barrier be written anew if the topic has lost it, and perhaps everything else with it.
func (k *Kafka) stillThere(ctx context.Context, admin *kadm.Client, b barrier, offset int64) error {
	ends, err := admin.ListEndOffsets(ctx, k.o.Topic)
	if err != nil {
		return k.fail(err, "asking for the end of the topic")
	}
	end, ok := ends.Lookup(k.o.Topic, int32(b.shard))
	if ok && end.Err != nil {
		return k.fail(end.Err, "asking for the end of the topic")
	}
	if !ok || end.Offset <= offset {
		k.forget(b)
	}
	return nil
}

func (k *Kafka) asked(b barrier) (offset int64, asked bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	offset, asked = k.barriers[b]
	return offset, asked
}

// maxBarriers is how many questions are remembered; of those that nobody asks any more none is forgotten otherwise.
const maxBarriers = 10_000

func (k *Kafka) ask(b barrier, offset int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.barriers) >= maxBarriers {
		clear(k.barriers)
	}
	k.barriers[b] = offset
}

func (k *Kafka) forget(b barrier) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.barriers, b)
}
