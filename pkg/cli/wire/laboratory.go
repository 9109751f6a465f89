package wire

import (
	"context"
	"errors"
	"strconv"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// Laboratory is a whole shop on private servers, and what faults can be done to.
type Laboratory struct {
	Ledger *ledger.Ledger
	Stock  *stock.Stock
	Rig    lab.Rig

	servers *lab.Lab
}

// LaboratoryOptions say what is done to it. The zero value is a laboratory without faults.
type LaboratoryOptions struct {
	Redis    lab.RedisOptions
	Postgres lab.PostgresOptions
	Links    []lab.FaultTarget // whose clients go through a proxy, on which replies can be lost
	Shards   int               // 0: the usual number
	// Worker is the command of a worker as a process of its own, so that it can be killed; WorkerConfig stands for its
	// settings in a file. None: there is no worker.
	Worker []string
	// Payment is whom that worker charges through; the zero value: nobody.
	Payment config.PaymentTarget
}

// WorkerConfig stands for the file of settings in the command of a worker.
const WorkerConfig = "dropctl.yaml"

// OpenLaboratory starts private servers, migrates them and opens them as the settings say otherwise. Close ends it all.
func OpenLaboratory(ctx context.Context, cfg *config.Config, getenv func(string) string, o LaboratoryOptions) (_ *Laboratory, err error) {
	l := &Laboratory{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close(context.WithoutCancel(ctx)))
		}
	}()
	if l.servers, err = lab.Start(ctx, o.Redis, o.Postgres); err != nil {
		return nil, err
	}
	l.Rig.Redis, l.Rig.Postgres = l.servers.Redis, l.servers.Postgres
	owner := ledger.Options{URL: l.Rig.Postgres.URL(lab.Owner, lab.Database)}
	if _, err := ledger.MigrateUp(ctx, owner, ledger.MigrateOptions{AppRole: string(lab.App), Shards: o.Shards}); err != nil {
		return nil, err
	}
	redisURL, databaseURL := l.Rig.Redis.URL(), l.Rig.Postgres.URL(lab.App, lab.Database)
	for _, target := range o.Links {
		switch target {
		case lab.RedisTarget:
			l.Rig.RedisLink, redisURL, err = through(l.Rig.Redis.Addr(), redisURL)
		case lab.PostgresTarget:
			l.Rig.PostgresLink, databaseURL, err = through(l.Rig.Postgres.Addr(), databaseURL)
		}
		if err != nil {
			return nil, err
		}
	}
	here := *cfg
	here.RedisURL, here.DatabaseURL = config.NewURL(redisURL), config.NewURL(databaseURL)
	here.RedisPasswordFile, here.DatabasePasswordFile, here.RedisUsername = "", "", ""
	if l.Ledger, err = OpenLedger(ctx, &here, getenv); err != nil {
		return nil, err
	}
	if l.Stock, err = OpenStock(&here, getenv, l.Ledger.Installation()); err != nil {
		return nil, err
	}
	if len(o.Worker) > 0 {
		settings := "redis-url: " + strconv.Quote(redisURL) + "\ndatabase-url: " + strconv.Quote(databaseURL) +
			"\nmax-events-per-second: " + strconv.Itoa(cfg.MaxEventsPerSecond) + "\n"
		if p := o.Payment; p.URL.Reveal() != "" {
			settings += "payment: webhook\npayment-url: " + strconv.Quote(p.URL.Reveal()) + "\npayment-secret: " + strconv.Quote(p.Secret.Reveal()) +
				"\npayment-timeout: " + p.Timeout.String() + "\n"
		}
		l.Rig.Worker, err = lab.StartProgram(ctx, WorkerConfig, settings, o.Worker...)
	}
	return l, err
}

// through leads a server's URL through a proxy.
func through(addr, server string) (*lab.Proxy, string, error) {
	p, err := lab.StartProxy(addr)
	if err != nil {
		return nil, "", err
	}
	led, err := p.URL(server)
	return p, led, err
}

// Check tells whether the worker still runs: one that ends by itself is out of order.
func (l *Laboratory) Check() error {
	if w := l.Rig.Worker; w != nil && w.PID() == 0 {
		return fault.New(fault.Unavailable, "the laboratory's worker has ended; its log ends: %s", w.Log())
	}
	return nil
}

// Close ends the stores, the worker and the servers, and removes their folders.
func (l *Laboratory) Close(ctx context.Context) error {
	var errs []error
	if l.Rig.Worker != nil {
		errs = append(errs, l.Rig.Worker.Stop(ctx))
	}
	if l.Stock != nil {
		errs = append(errs, l.Stock.Close())
	}
	if l.Ledger != nil {
		l.Ledger.Close()
	}
	for _, p := range []*lab.Proxy{l.Rig.RedisLink, l.Rig.PostgresLink} {
		if p != nil {
			p.Stop()
		}
	}
	if l.servers != nil {
		errs = append(errs, l.servers.Stop(ctx))
	}
	return errors.Join(errs...)
}
