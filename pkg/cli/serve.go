package cli

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/worker"
)

func newServe(a *app) *cobra.Command {
	var s server
	var document bool
	var profiles string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the HTTP API",
		Long: `Answer the HTTP API until Ctrl-C: reservations, lots, streams of availability, /livez, /readyz,
/metrics and /openapi.json. Requests are logged on stderr.

Callers need a key (dropctl key create). As long as there is none, the server answers this machine
only, and anybody on it may do everything. Prometheus is a caller too: /metrics wants the scope
read.

Reserving and settling need Redis alone: the server starts and goes on while PostgreSQL is down. A
confirm waits for the ledger's word, at most --ledger-wait. Somewhere a worker has to run: dropctl
worker, or --with-worker for a small shop.`,
		Example: `  dropctl serve
  dropctl serve --listen :8443 --tls-cert-file shop.crt --tls-key-file shop.key
  dropctl serve --openapi > openapi.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if document {
				return a.printDocument()
			}
			return a.serve(cmd.Context(), s, profiles)
		},
	}
	cmd.Flags().BoolVar(&s.withWorker, "with-worker", false, "run a worker in this process too")
	cmd.Flags().StringVar(&profiles, "pprof", "", "show profiles at this address of the machine itself, such as 127.0.0.1:6060")
	cmd.Flags().BoolVar(&document, "openapi", false, "print the OpenAPI document and end")
	_ = cmd.RegisterFlagCompletionFunc("pprof", completeWords("127.0.0.1:6060"))
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.Stock, config.Durable, config.Serving, config.Work, config.Tasks, config.Broker, config.Paying, config.Metrics)
	return cmd
}

func (a *app) printDocument() error {
	document, err := api.New(api.Options{}).Document()
	if err != nil {
		return err
	}
	return a.out.Text(string(document)+"\n", fileView{"openapi.json", string(document)})
}

// server is what a running server consists of.
type server struct {
	withWorker bool
	gateway    worker.Gateway // nil: the shop is paid before it confirms
	callbacks  string         // the secret that a gateway's calls are signed with; "": there are none

	shop     *wire.Shop
	listener net.Listener
	profiles net.Listener // nil: none are shown
	metrics  *telemetry.Metrics
	access   *api.Access
	taken    api.Deliveries // nil: no queue delivers anything
	log      *slog.Logger
}

// serve listens as the settings say, and serves.
func (a *app) serve(ctx context.Context, s server, profiles string) (err error) {
	if err = api.CheckCertificate(a.cfg.TLSCertFile, a.cfg.TLSKeyFile); err != nil {
		return err
	}
	if err = wire.CheckTransport(a.cfg, a.getenv, s.withWorker, true); err != nil {
		return err
	}
	if s.listener, err = telemetry.Listen(ctx, a.cfg.Listen); err != nil {
		return err
	}
	defer func() { _ = s.listener.Close() }()
	if profiles != "" {
		if s.profiles, err = listenForProfiles(ctx, profiles); err != nil {
			return err
		}
		defer func() { _ = s.profiles.Close() }()
	}
	return a.serveOn(ctx, s)
}

// serveOn opens everything else, and finds every mistake before anything is answered.
func (a *app) serveOn(ctx context.Context, s server) (err error) {
	// A server keeps little and makes much garbage, so it would be collected several times a second, at the cost of the
	// slowest answers. Memory that is never touched, and so never taken, counts as kept: that makes it seldom.
	ballast := make([]byte, 64<<20)
	defer runtime.KeepAlive(ballast)
	if s.gateway, err = a.gateway(); err != nil {
		return err
	}
	if t, used, err := a.cfg.Gateway(a.getenv); err == nil && used {
		s.callbacks = t.Secret.Reveal()
	}
	var flush func()
	s.log, flush = a.serverLog()
	defer flush()
	s.metrics = telemetry.New()
	if s.shop, err = wire.OpenShop(ctx, a.cfg, a.getenv, s.metrics, s.log); err != nil {
		return err
	}
	defer s.shop.Close()
	if s.taken, err = s.shop.Deliveries(s.metrics.Worker); err != nil {
		return err
	}
	if err := a.checkDurability(ctx, s); err != nil {
		return err
	}
	if err := a.openAccess(ctx, &s); err != nil {
		return err
	}
	return a.runServer(ctx, s)
}

// listenForProfiles opens an address that only this machine reaches: profiles tell much, and cost.
func listenForProfiles(ctx context.Context, address string) (net.Listener, error) {
	ln, err := telemetry.Listen(ctx, address)
	if err != nil {
		return nil, fault.As(err).WithField("pprof")
	}
	if !api.IsLoopback(ln) {
		_ = ln.Close()
		return nil, fault.New(fault.Usage, "--pprof %s can be reached from elsewhere", address).WithField("pprof").WithHint("use an address of this machine alone, such as 127.0.0.1:6060")
	}
	return ln, nil
}

// checkDurability refuses a Redis that cannot give what is asked. One that does not answer yet is no reason not to start.
func (a *app) checkDurability(ctx context.Context, s server) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	err := s.shop.Stock.CheckDurability(ctx)
	if err != nil && !fault.Is(err, fault.UnsafeRedis) {
		s.log.Warn("whether Redis is as durable as asked is not known yet", "error", err)
		err = nil
	}
	return err
}

// openAccess reads the keys. Without any key nobody from elsewhere may be answered.
func (a *app) openAccess(ctx context.Context, s *server) error {
	loopback := api.IsLoopback(s.listener)
	s.access = api.NewAccess(api.AccessOptions{Source: s.shop, File: a.cfg.APIKeysFile, Loopback: loopback, Log: s.log})
	if err := s.access.Load(ctx); err != nil {
		return err
	}
	switch {
	case mayHaveKeys(s.access):
	case !loopback:
		return fault.New(fault.Usage, "there is no API key, and --listen %s can be reached from elsewhere", a.cfg.Listen).WithField("listen").
			WithHint("make a key first: dropctl key create --tenant TENANT --scope read,reserve,settle; or listen on 127.0.0.1")
	default:
		a.note("there is no API key: only this machine is answered, and anybody on it may do everything")
	}
	return nil
}

// mayHaveKeys reports whether there are keys, or not all are known yet.
func mayHaveKeys(a *api.Access) bool { return a.Ready() != nil || a.Keys() > 0 }

// runServer runs until ctx ends, then drains.
func (a *app) runServer(ctx context.Context, s server) error {
	observer := a.observer(s.shop.Stock, s.shop.Ledger, s.metrics, s.log)
	health := &telemetry.Health{}
	health.Need("redis", s.shop.Redis)
	health.Need("keys", s.access.Ready)
	health.Watch("postgres", observer.Postgres)
	health.Show("backlog", false, observer.Backlog) // holds are refused at the ceiling, but confirmations must still get through
	face := api.New(api.Options{Stock: s.shop.Stock, Ledger: s.shop, Lots: s.shop, Access: s.access, Limits: a.limits(), Health: health, Metrics: s.metrics,
		Deliveries: s.taken, Payments: s.shop, PaymentSecret: s.callbacks, Log: s.log, Queue: a.cfg.Queue, MaxStreams: a.cfg.MaxStreams, LedgerWait: a.cfg.LedgerWait, Lag: observer.Lag})
	a.note("target: API on %s, %s", s.shop.Stock.Target(), s.shop.LedgerTarget())
	a.note("listening on %s", a.urlOf(s.listener))
	if s.profiles != nil {
		a.note("profiles: http://%s/debug/pprof/", s.profiles.Addr())
	}

	// What runs beside the server goes on until the last request is answered.
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	g, behind := errgroup.WithContext(behind)
	serving, halt := context.WithCancelCause(ctx)
	defer halt(nil)
	beside := func(run func(context.Context) error) {
		g.Go(func() error {
			err := run(behind)
			if err != nil {
				halt(err) // without it the server would be no whole one
			}
			return err
		})
	}
	beside(func(ctx context.Context) error { s.access.Run(ctx); return nil })
	beside(func(ctx context.Context) error { observer.Run(ctx); return nil })
	beside(s.shop.AwaitLedger)
	if s.withWorker {
		beside(func(ctx context.Context) error { return a.workBeside(ctx, s) })
	}
	if s.profiles != nil {
		beside(func(ctx context.Context) error { return telemetry.Serve(ctx, s.profiles, profileHandler()) })
	}
	err := face.Serve(serving, s.listener, api.ServerOptions{CertFile: a.cfg.TLSCertFile, KeyFile: a.cfg.TLSKeyFile, DrainLimit: a.cfg.DrainLimit})
	stop()
	if besideErr := g.Wait(); besideErr != nil {
		return besideErr
	}
	return err
}

// limits are the rates that the settings allow.
func (a *app) limits() *api.Limits {
	return api.NewLimits(api.LimitOptions{Key: api.Rate(a.cfg.LimitKey), User: api.Rate(a.cfg.LimitUser), Address: api.Rate(a.cfg.LimitAddress),
		Tracked: a.cfg.LimitTracked, Proxies: a.cfg.TrustedProxies})
}

func (a *app) urlOf(ln net.Listener) string {
	if a.cfg.TLSCertFile != "" {
		return "https://" + ln.Addr().String()
	}
	return "http://" + ln.Addr().String()
}

// workBeside runs a worker once PostgreSQL answers.
func (a *app) workBeside(ctx context.Context, s server) error {
	l := s.shop.WhenRecording(ctx)
	if l == nil {
		return nil // the server ended before
	}
	q, err := wire.OpenQueue(ctx, a.cfg, a.getenv, l, s.metrics.Worker, s.log)
	if err != nil {
		return err
	}
	defer q.Close()
	o := worker.Options{Log: s.log, Metrics: s.metrics.Worker, Gateway: s.gateway}
	_, err = a.workerOn(s.shop.Stock, l, q, o).Run(ctx)
	return err
}

// profileHandler shows the profiles of the Go runtime.
func profileHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
