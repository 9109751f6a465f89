package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

func newBenchEngine(a *app) *cobra.Command {
	f, private := benchFlags{}, false
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Measure what Redis and PostgreSQL carry, from this process",
		Long: `Let people buy through the engine of this process, on the Redis and the PostgreSQL of the settings,
and measure how long each of them waits. A worker of this process records what is sold.

Everything happens in a space of its own, with keys and a schema that the shop does not see, and is
removed at the end, also after Ctrl-C. The servers' time is taken all the same: where a shop has
lots, it has to be confirmed (--yes). --lab measures a private Redis and PostgreSQL instead.

Operations are due at --rate, whatever the answers, and each one's time runs from the moment at
which it was due. What finds --users operations in flight is dropped and counted; a --fail-if about
a percentile is so, too, where more were dropped than may come later. With --users alone, so many
ask again once they are answered: that finds the most that is answered in a second, but not how long
people would wait.

  accept     reserve; there is enough for everybody
  sold-out   reserve where nothing is left
  churn      reserve; half give back at once, the rest let holds of a second expire
  full       reserve, confirm, and wait for the ledger; it keeps to --max-events-per-second

The ceiling of the outbox is raised to a GiB, since a measurement sells more than any drop. The exit
status is 6 if a --fail-if is so, or the stores are not as promised.`,
		Example: `  dropctl bench engine --rate 5000 --yes
  dropctl bench engine --lab --mix full --rate 500 --fail-if 'accept_p99>100ms'
  dropctl bench engine --lab --users 256 --duration 5s -o json > engine.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limits, err := f.check(cmd)
			if err != nil {
				return err
			}
			return a.benchEngine(cmd.Context(), f, limits, private)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&private, "lab", false, "measure a private Redis and PostgreSQL")
	return cmd
}

// manyLots take a while to be put on sale.
const manyLots = 1000

// benchOutbox is the ceiling of a shard's outbox in a measurement.
const benchOutbox = 1 << 30

func (a *app) benchEngine(ctx context.Context, f benchFlags, limits []bench.Limit, private bool) (err error) {
	open, batches := a.spaceStores, bench.NewBatches()
	if private {
		open = a.privateStores
	}
	l, s, closeAll, err := open(ctx, func(o *stock.Options) {
		o.Metrics, o.OutboxMaxBytes = batches.Metrics, max(o.OutboxMaxBytes, benchOutbox)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	if f.plan.Lots >= manyLots {
		a.note("putting %d lots on sale", f.plan.Lots)
	}
	if err := a.putOnSale(ctx, l, s, f.plan.Definitions()); err != nil {
		return err
	}
	r, err := a.measureEngine(ctx, f, l, s)
	r.Batch = batches.Sizes()
	if err == nil {
		err = a.auditBench(ctx, &r, l, s)
	}
	return cmp.Or(err, a.reportBench(r, limits)) // what was measured is worth knowing, whatever came after
}

// measureEngine measures with a worker at work. The worker goes on after an interruption, until all that is in flight has ended.
func (a *app) measureEngine(ctx context.Context, f benchFlags, l *ledger.Ledger, s *stock.Stock) (bench.Result, error) {
	stop := a.startWorker(context.WithoutCancel(ctx), l, s, nil)
	f.load.Meter = a.meter(l, s)
	r := a.runBench(ctx, f, f.plan.Target(bench.NewEngine(s, l)))
	r.Target = "engine"
	return r, stop()
}

// auditBench lets the ledger have everything and looks through both stores. Whoever interrupted a run does not want to wait for
// that.
func (a *app) auditBench(ctx context.Context, r *bench.Result, l *ledger.Ledger, s *stock.Stock) (err error) {
	if r.Interrupted {
		return nil
	}
	a.note("recording what is left, and auditing both stores")
	patience := max(30*time.Second, time.Duration(r.Lots)*3*time.Millisecond)
	if err := wire.Drain(ctx, s, l, patience, a.logger(false)); err != nil {
		return err
	}
	r.Audit, err = wire.AuditShop(ctx, s, l, wire.AuditOptions{Wait: a.cfg.Timeout, Actor: a.cfg.Actor})
	return err
}
