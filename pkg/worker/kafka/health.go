package kafka

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Health looks at the topic and changes nothing; of the options it needs only how to reach it. Errors: fault.Unavailable.
func (k *Kafka) Health(ctx context.Context) (drop.TopicHealth, error) {
	client, err := k.connect()
	if err != nil {
		return drop.TopicHealth{}, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, k.o.Timeout)
	defer cancel()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx, k.o.Topic)
	if err != nil {
		return drop.TopicHealth{}, k.fail(err, "looking at the topic")
	}
	topic := topics[k.o.Topic]
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		return drop.TopicHealth{}, nil
	}
	if topic.Err != nil {
		return drop.TopicHealth{}, k.fail(topic.Err, "looking at the topic")
	}
	h := drop.TopicHealth{Exists: true, Partitions: len(topic.Partitions)}
	if err := k.readSettings(ctx, admin, &h); err != nil {
		h.NoSettings = err.Error()
	}
	for _, p := range topic.Partitions.Sorted() {
		if n := len(p.Replicas); h.Replicas == 0 || n < h.Replicas {
			h.Replicas = n
		}
		switch {
		case p.Leader < 0:
			h.Leaderless = append(h.Leaderless, int(p.Partition))
		case len(p.ISR) < h.Needed:
			h.Weak = append(h.Weak, int(p.Partition))
		}
	}
	return h, nil
}

// readSettings reads those settings of the topic that matter here.
func (k *Kafka) readSettings(ctx context.Context, admin *kadm.Client, h *drop.TopicHealth) error {
	described, err := admin.DescribeTopicConfigs(ctx, k.o.Topic)
	if err != nil {
		return err
	}
	settings, err := described.On(k.o.Topic, nil)
	if err == nil {
		err = settings.Err
	}
	if err != nil {
		return err
	}
	for _, c := range settings.Configs {
		switch c.Key {
		case "min.insync.replicas":
			h.Needed, err = strconv.Atoi(c.MaybeValue())
		case "cleanup.policy":
			h.Compacted = strings.Contains(c.MaybeValue(), "compact")
		}
	}
	return err
}
