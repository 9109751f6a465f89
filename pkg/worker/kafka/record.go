package kafka

import (
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Headers of a record. Its value is the body of the entry, as the script wrote it.
const (
	headerInstallation = "dropctl-installation"
	headerVersion      = "dropctl-version" // of the body
	headerShard        = "dropctl-shard"
	headerID           = "dropctl-id"   // of the entry in the outbox, to find it; never its identity
	headerTime         = "dropctl-time" // of the change, in ms since 1970
	headerBarrier      = "dropctl-barrier"
)

func (k *Kafka) record(shard int, entry drop.OutboxEntry) *kgo.Record {
	return k.headed(shard, []byte(entry.Body),
		kgo.RecordHeader{Key: headerID, Value: []byte(entry.ID)},
		kgo.RecordHeader{Key: headerTime, Value: []byte(strconv.FormatInt(entry.Time.UnixMilli(), 10))})
}

// barrierRecord goes through the topic behind everything sent before, and tells when that has come through.
func (k *Kafka) barrierRecord(b barrier) *kgo.Record {
	return k.headed(b.shard, nil, kgo.RecordHeader{Key: headerBarrier, Value: []byte(b.mark)})
}

func (k *Kafka) headed(shard int, value []byte, more ...kgo.RecordHeader) *kgo.Record {
	headers := []kgo.RecordHeader{
		{Key: headerInstallation, Value: []byte(k.o.Installation)},
		{Key: headerVersion, Value: []byte(drop.SchemaVersion)},
		{Key: headerShard, Value: []byte(strconv.Itoa(shard))},
	}
	return &kgo.Record{Topic: k.o.Topic, Partition: int32(shard), Value: value, Headers: append(headers, more...)}
}

// entry reads a record; ok is false for a barrier, which has nothing for the ledger. What is not ours to read becomes an
// entry that will be parked whole. Errors: fault.Foreign for a record of another installation, with such an entry.
func (k *Kafka) entry(r *kgo.Record) (entry drop.OutboxEntry, ok bool, err error) {
	header := map[string]string{}
	for _, h := range r.Headers {
		header[h.Key] = string(h.Value)
	}
	where := fmt.Sprintf("topic %s partition %d offset %d", r.Topic, r.Partition, r.Offset)
	entry = drop.OutboxEntry{ID: header[headerID], Entry: drop.Entry{Installation: header[headerInstallation], Body: string(r.Value)}}
	switch owner := entry.Installation; {
	case owner == "":
		entry.Body = drop.UnreadableBody("not written by dropctl, "+where, entry.Body)
		return entry, true, nil
	case owner != k.o.Installation:
		entry.Installation, entry.Body = "", drop.UnreadableBody("of another installation, "+where, entry.Body)
		return entry, false, fault.New(fault.Foreign, "%s belongs to the installation %q, this shop is %q", where, owner, k.o.Installation).
			WithHint("every installation needs a topic of its own: --kafka-topic")
	}
	if header[headerBarrier] != "" {
		return entry, false, nil
	}
	ms, err := strconv.ParseInt(header[headerTime], 10, 64)
	switch version := header[headerVersion]; {
	case version != drop.SchemaVersion:
		entry.Body = drop.UnreadableBody("version "+version+", "+where, entry.Body)
	case err != nil:
		entry.Body = drop.UnreadableBody("without a time, "+where, entry.Body)
	default:
		entry.Time = time.UnixMilli(ms).UTC()
	}
	return entry, true, nil
}
