package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/payment"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/worker"
)

func newWorker(a *app) *cobra.Command {
	var only []string
	var listen string
	var o worker.Options
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run what works behind the sale",
		Long: `Record events and sales in the ledger, take back expired holds and watch over Redis, until Ctrl-C.

  relay     carries events from Redis into the ledger, or into the queue that --transport names
  apply     carries them on from the queue into the ledger
  finalise  records confirmed reservations as sales; with --payment webhook once they are paid
  sweep     takes back holds whose time is up
  guardian  compares a restarted, replaced or emptied Redis with the ledger before it sells again:
            rebuilds what was lost, and keeps shut what needs you
  notify    tells receivers on the web what happens (dropctl hook)

Run as many workers as you like, on as many machines: they share the work and take over from one
that dies. Logs go to stderr. With --listen it answers /metrics, /livez and /readyz there, to
anybody who can reach that address.`,
		Example: `  dropctl worker
  dropctl worker --until-idle -q
  dropctl worker --listen 127.0.0.1:9464
  dropctl worker --only relay,finalise --max-events-per-second 5000`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Only, err = worker.ParseParts(only, wire.HasSource(a.cfg)); err != nil {
				return err
			}
			if err := wire.CheckTransport(a.cfg, a.getenv, true, false); err != nil {
				return err
			}
			return a.runWorker(cmd.Context(), o, listen)
		},
	}
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.Stock, config.Durable, config.Work, config.Tasks, config.Broker, config.Paying, config.Metrics)
	cmd.Flags().StringSliceVar(&only, "only", nil, "do only these parts: relay, apply, finalise, sweep, guardian, notify")
	cmd.Flags().Lookup("only").DefValue = ""
	cmd.Flags().BoolVar(&o.UntilIdle, "until-idle", false, "stop when nothing is left to do; exit 8 if something was parked, 6 if a lot needs you")
	cmd.Flags().StringVar(&listen, "listen", "", "show metrics and health at this address, such as 127.0.0.1:9464")
	_ = cmd.RegisterFlagCompletionFunc("only", completeList(wordsOf(worker.Parts())...))
	_ = cmd.RegisterFlagCompletionFunc("listen", completeWords("127.0.0.1:9464"))
	return cmd
}

func (a *app) runWorker(ctx context.Context, o worker.Options, listen string) (err error) {
	if o.Gateway, err = a.gateway(); err != nil {
		return err
	}
	m := telemetry.New()
	var as []func(*stock.Options)
	var face net.Listener
	if listen != "" {
		if face, err = telemetry.Listen(ctx, listen); err != nil { // before any store is asked
			return err
		}
		defer func() { _ = face.Close() }()
		as = append(as, wire.Service(m))
	}
	l, s, err := a.openStores(ctx, as...)
	if err != nil {
		return err
	}
	defer l.Close()
	defer func() { _ = s.Close() }()
	o.Log = a.logger(!a.cfg.Quiet)
	o.Metrics = m.Worker
	a.note("target: worker on %s, %s", s.Target(), l.Target())
	q, err := wire.OpenQueue(ctx, a.cfg, a.getenv, l, m.Worker, o.Log)
	if err != nil {
		return err
	}
	defer q.Close()
	w := a.workerOn(s, l, q, o)
	if face != nil {
		defer a.showWorker(ctx, face, m, w, o.Only, a.observer(s, wire.Opened(l), m, o.Log))()
	}
	sum, err := w.Run(ctx)
	if !o.UntilIdle {
		return err
	}
	return errors.Join(err, a.print(sum))
}

// gateway is the payment gateway that the settings name; nil if the shop is paid before it confirms.
func (a *app) gateway() (worker.Gateway, error) {
	t, used, err := a.cfg.Gateway(a.getenv)
	if err != nil || !used {
		return nil, err
	}
	g, err := payment.NewWebhook(payment.Options{URL: t.URL.Reveal(), Secret: t.Secret.Reveal(), Timeout: t.Timeout, UserAgent: "dropctl/" + thisVersion().Version})
	if err != nil {
		return nil, err
	}
	if canBeOverheard(t.URL.Reveal()) {
		a.note("warning: who buys what travels to the payment gateway unencrypted; use https://")
	}
	return g, nil
}

// workerOn is a worker on these stores with this queue between, as the settings say.
func (a *app) workerOn(s *stock.Stock, l *ledger.Ledger, q wire.Queue, o worker.Options) *worker.Worker {
	in := l.Installation()
	o.Queue, o.Source, o.Transport = q.Queue, q.Source, a.cfg.Transport
	o.Installation, o.Shards, o.Version = in.ID, in.Shards, thisVersion().Version
	o.Rebuild = wire.RebuildLot(s, l)
	o.Patience = a.cfg.Timeout / 2 // the rest is for the calls that were begun by then
	o.Rate, o.Keep = float64(a.cfg.MaxEventsPerSecond), a.cfg.OutboxKeep
	return worker.New(s, wire.WorkerLedger(l), o)
}

// observer looks at both stores for the metrics of a service.
func (a *app) observer(s *stock.Stock, l func() (*ledger.Ledger, error), m *telemetry.Metrics, log *slog.Logger) *wire.Observer {
	return wire.Observe(s, l, m.Drop, wire.ObserveOptions{Limit: a.cfg.Timeout, Lots: a.cfg.MetricsLots, Ceiling: int64(a.cfg.OutboxMaxBytes), Log: log})
}

// showWorker answers for the metrics and the health of a worker until the returned function is called, which ends it:
// also while the worker stops, so that its last moments can be seen.
func (a *app) showWorker(ctx context.Context, ln net.Listener, m *telemetry.Metrics, w *worker.Worker, parts []worker.Part, o *wire.Observer) (end func()) {
	var h telemetry.Health
	h.Need("redis", o.Redis)
	h.Need("postgres", o.Postgres)
	h.Show("backlog", true, o.Backlog) // a long one is no failure, one that stops the sale is
	for _, part := range parts {
		h.Need(string(part), func() error { return w.Trouble(part) })
	}
	a.note("metrics: http://%s/metrics", ln.Addr())
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var both sync.WaitGroup
	both.Go(func() { o.Run(ctx) })
	both.Go(func() {
		if err := telemetry.Serve(ctx, ln, telemetry.Handler(m, &h)); err != nil {
			a.logger(true).Error("the metrics are shown no more", "error", err)
		}
	})
	return func() { stop(); both.Wait() }
}
