package wire

import (
	"context"
	"log/slog"
	"sync"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/worker"
	"github.com/dropctl/dropctl/pkg/worker/cloudtasks"
)

func tasksOptions(cfg *config.Config) (cloudtasks.Options, error) {
	secrets, err := cfg.TasksSecrets()
	return cloudtasks.Options{Queue: cfg.TasksQueue, Endpoint: cfg.TasksEndpoint, Target: cfg.TasksTarget, ServiceAccount: cfg.TasksServiceAccount,
		Audience: cfg.TasksAudience, KeysURL: cfg.TasksKeysURL, Secrets: secrets, PerSecond: cfg.TasksPerSecond}, err
}

// openTasks opens the task queue that the settings name, as a worker uses it.
func openTasks(ctx context.Context, cfg *config.Config, l *ledger.Ledger, m *telemetry.Worker, log *slog.Logger) (worker.Queue, error) {
	o, err := tasksOptions(cfg)
	if err != nil {
		return nil, err
	}
	o.Straight, o.Log = inbox(cfg, l, m, log).Deliver, log
	return cloudtasks.New(ctx, l.Installation().ID, o)
}

func inbox(cfg *config.Config, l *ledger.Ledger, m *telemetry.Worker, log *slog.Logger) *worker.Inbox {
	return worker.NewInbox(WorkerLedger(l), worker.Options{Rate: float64(cfg.MaxEventsPerSecond), Log: log, Metrics: m})
}

// Deliveries is what takes the deliveries of a task queue; nil if the settings name another transport. It can record once
// PostgreSQL is there.
func (s *Shop) Deliveries(m *telemetry.Worker) (api.Deliveries, error) {
	if s.cfg.Transport != config.CloudTasks {
		return nil, nil
	}
	o, err := tasksOptions(s.cfg)
	if err != nil {
		return nil, err
	}
	var once sync.Once
	var in *worker.Inbox
	return cloudtasks.NewReceiver(o, func() (string, cloudtasks.Inbox, error) {
		l, err := s.Ledger()
		if err != nil {
			return "", nil, err
		}
		once.Do(func() { in = inbox(s.cfg, l, m, s.log) })
		return l.Installation().ID, in, nil
	})
}
