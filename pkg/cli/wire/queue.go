package wire

import (
	"context"
	"log/slog"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/worker"
	"github.com/dropctl/dropctl/pkg/worker/kafka"
)

// Queue is what lies between the relay and the ledger; its fields are nil where there is nothing.
type Queue struct {
	Queue  worker.Queue
	Source worker.Source
	close  func()
}

// Close ends the connections.
func (q Queue) Close() {
	if q.close != nil {
		q.close()
	}
}

// HasSource reports whether workers read events from a queue.
func HasSource(cfg *config.Config) bool { return cfg.Transport == config.Kafka }

// CheckTransport finds mistakes in the settings of the queue, as a worker or a server or both use it, before anything is
// dialled.
func CheckTransport(cfg *config.Config, getenv func(string) string, worker, server bool) error {
	if cfg.Transport == config.Kafka && worker {
		o, err := kafkaOptions(cfg, getenv)
		if err == nil {
			_, err = kafka.Open(o)
		}
		return err
	}
	if cfg.Transport != config.CloudTasks {
		return nil
	}
	o, err := tasksOptions(cfg)
	if err == nil && worker {
		err = o.CheckSender()
	}
	if err == nil && server {
		err = o.CheckReceiver()
	}
	return err
}

// OpenQueue opens the queue that the settings name. One that does not answer is no error: it is tried until it does. One
// that is not as it should be is.
func OpenQueue(ctx context.Context, cfg *config.Config, getenv func(string) string, l *ledger.Ledger, m *telemetry.Worker, log *slog.Logger) (Queue, error) {
	switch cfg.Transport {
	case config.Kafka:
		return openKafka(ctx, cfg, getenv, l.Installation(), log)
	case config.CloudTasks:
		q, err := openTasks(ctx, cfg, l, m, log)
		return Queue{Queue: q}, err
	}
	return Queue{}, nil
}
