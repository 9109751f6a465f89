package wire

import (
	"context"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/doctor"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/worker/cloudtasks"
	"github.com/dropctl/dropctl/pkg/worker/kafka"
)

// DoctorStock is the Redis that the settings name, as doctor sees it. It is opened for the look, in as many shards as it
// says it has, so that a setting which is wrong is a finding too.
func DoctorStock(cfg *config.Config, getenv func(string) string) doctor.Stock {
	return doctorStock{cfg, getenv}
}

type doctorStock struct {
	cfg    *config.Config
	getenv func(string) string
}

func (d doctorStock) Target() string {
	s, err := OpenStock(d.cfg, d.getenv, ledger.Installation{Shards: 1}) // it dials nothing
	if err != nil {
		return ""
	}
	defer func() { _ = s.Close() }()
	return s.Target()
}

func (d doctorStock) Health(ctx context.Context) (drop.StockHealth, error) {
	s, err := OpenStockAlone(ctx, d.cfg, d.getenv)
	if err != nil {
		return drop.StockHealth{}, err
	}
	defer func() { _ = s.Close() }()
	return s.Health(ctx)
}

// DoctorTopic is the topic that the settings name, as doctor sees it; nil if workers use none.
func DoctorTopic(cfg *config.Config, getenv func(string) string) doctor.Topic {
	if cfg.Transport != config.Kafka {
		return nil
	}
	return doctorTopic{cfg, getenv}
}

type doctorTopic struct {
	cfg    *config.Config
	getenv func(string) string
}

func (d doctorTopic) open() (*kafka.Kafka, error) {
	o, err := kafkaOptions(d.cfg, d.getenv)
	if err != nil {
		return nil, err
	}
	return kafka.Open(o) // it dials nothing
}

func (d doctorTopic) Target() string {
	k, err := d.open()
	if err != nil {
		return ""
	}
	return k.Target()
}

func (d doctorTopic) Health(ctx context.Context) (drop.TopicHealth, error) {
	k, err := d.open()
	if err != nil {
		return drop.TopicHealth{}, err
	}
	return k.Health(ctx)
}

// DoctorTasks is the task queue that the settings name, as doctor sees it; nil if workers use none.
func DoctorTasks(cfg *config.Config) doctor.Tasks {
	if cfg.Transport != config.CloudTasks {
		return nil
	}
	return doctorTasks{cfg}
}

type doctorTasks struct{ cfg *config.Config }

func (d doctorTasks) Target() string { return d.cfg.TasksQueue }

func (d doctorTasks) Health(ctx context.Context) (drop.TasksHealth, error) {
	o, err := tasksOptions(d.cfg)
	if err != nil {
		return drop.TasksHealth{}, err
	}
	q, err := cloudtasks.New(ctx, "", o)
	if err != nil {
		return drop.TasksHealth{}, err
	}
	return q.Health(ctx)
}

// DoctorLedger is the PostgreSQL that the settings name, as doctor sees it.
func DoctorLedger(cfg *config.Config, getenv func(string) string) doctor.Ledger {
	return doctorLedger{cfg, getenv}
}

type doctorLedger struct {
	cfg    *config.Config
	getenv func(string) string
}

func (d doctorLedger) Target() string {
	o, err := LedgerOptions(d.cfg, d.getenv)
	if err != nil {
		return ""
	}
	target, _ := o.Target() // "" where it cannot be read
	return target
}

func (d doctorLedger) Health(ctx context.Context) (drop.LedgerHealth, error) {
	o, err := LedgerOptions(d.cfg, d.getenv)
	if err != nil {
		return drop.LedgerHealth{}, err
	}
	return ledger.ReadHealth(ctx, o)
}
