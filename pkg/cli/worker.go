package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/worker"
)

func newWorker(a *app) *cobra.Command {
	var only []string
	var transport string
	var o worker.Options
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run what works behind the sale",
		Long: `Record events in the ledger, book sales, take back expired holds and watch over Redis, until Ctrl-C.

  relay     carries events from Redis into the ledger
  finalise  books confirmed reservations as sales
  sweep     takes back holds whose time is up
  guardian  compares a restarted, replaced or emptied Redis with the ledger before it sells again:
            rebuilds what was lost, and keeps shut what needs you

Run as many workers as you like, on as many machines: they share the work and take over from one
that dies. Logs go to stderr.`,
		Example: `  dropctl worker
  dropctl worker --until-idle -q
  dropctl worker --only relay,finalise --max-events-per-second 5000`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if transport != "direct" {
				return fault.New(fault.Usage, "there is no transport %q", transport).WithField("transport").WithHint("use --transport direct")
			}
			if o.Only, err = worker.ParseParts(only); err != nil {
				return err
			}
			return a.runWorker(cmd.Context(), o)
		},
	}
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.Stock, config.Durable, config.Work)
	cmd.Flags().StringSliceVar(&only, "only", nil, "do only these parts: relay, finalise, sweep, guardian")
	cmd.Flags().Lookup("only").DefValue = ""
	cmd.Flags().BoolVar(&o.UntilIdle, "until-idle", false, "stop when nothing is left to do; exit 8 if something was parked")
	cmd.Flags().StringVar(&transport, "transport", "direct", "how events travel to the ledger")
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions([]string{"relay", "finalise", "sweep", "guardian"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("transport", cobra.FixedCompletions([]string{"direct"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) runWorker(ctx context.Context, o worker.Options) error {
	l, s, err := a.openStores(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	defer func() { _ = s.Close() }()
	in := l.Installation()
	o.Installation, o.Shards, o.Version = in.ID, in.Shards, thisVersion().Version
	o.Rebuild = wire.RebuildLot(s, l)
	o.Rate, o.Keep = float64(a.cfg.MaxEventsPerSecond), a.cfg.OutboxKeep
	o.Log = a.logger(!a.cfg.Quiet)
	a.note("target: worker on %s, %s", s.Target(), l.Target())
	sum, err := worker.New(s, wire.WorkerLedger(l), o).Run(ctx)
	if !o.UntilIdle {
		return err
	}
	return errors.Join(err, a.print(sum))
}
