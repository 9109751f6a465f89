package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newBenchHTTP(a *app) *cobra.Command {
	f, private := benchFlags{}, false
	cmd := &cobra.Command{
		Use:   "http",
		Short: "Measure what a running server carries",
		Long: `Let people buy through the HTTP API, and measure how long each of them waits. Loop, mixes and
limits are those of bench engine.

The server is that of --server; its API key (--api-key-file) needs the scopes admin, read, reserve
and settle. It sells lots made for the purpose, named bench-…, which are closed at the end and
stay: what was sold of them is recorded for good. (Those of a run that is killed are still on sale;
the next one says so.) So a server with other lots has to be confirmed (--yes). Its rate limits
hold, and what they refuse counts as an error. The stores behind it are seen through the server
alone: every unit of these lots must be available, held or sold. Batches and processor time are
taken from its /metrics, which tell of all that it did meanwhile; what is not known says why.

Without a server, or with --lab, a private server is measured, on a private Redis and PostgreSQL,
with a key and without rate limits. Its processor time is told, and the stores are audited.

Each request in flight has a connection, which is kept: more connections than --users mean that the
server closes them.`,
		Example: `  dropctl bench http --rate 500 --mix full
  dropctl bench http --server https://drops.example:8443 --api-key-file bench.key --rate 2000 --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limits, err := f.check(cmd)
			if err != nil {
				return err
			}
			var r bench.Result
			if private || !a.cfg.ServerURL.IsSet() {
				r, err = a.benchPrivateServer(cmd.Context(), f)
			} else {
				r, err = a.benchServer(cmd.Context(), f)
			}
			if r.Target == "" { // it did not come to that
				return err
			}
			return cmp.Or(err, a.reportBench(r, limits)) // what was measured is worth knowing, whatever came after
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&private, "lab", false, "measure a private server, Redis and PostgreSQL")
	a.settings(cmd, cmd.Flags(), config.API)
	return cmd
}

// benchServer measures a server that runs already.
func (a *app) benchServer(ctx context.Context, f benchFlags) (r bench.Result, err error) {
	target, err := a.cfg.API(a.getenv)
	if err != nil {
		return r, err
	}
	h, err := a.callServer(f, target.URL.Reveal(), target.Key.Reveal())
	if err != nil {
		return r, err
	}
	defer h.Close()
	a.note("target: the server %s", target.URL.Reveal())
	if target.Key.IsSet() && canBeOverheard(target.URL.Reveal()) {
		a.note("warning: the API key travels to %s unencrypted; use https://", target.URL.Reveal())
	}
	others, selling, err := h.Others(ctx)
	if err != nil {
		return r, err
	}
	if len(selling) > 0 {
		a.note("warning: %s on sale from another measurement; if it was killed, close them: dropctl lot close %s", lotsAre(len(selling)), strings.Join(selling[:min(len(selling), 10)], " "))
	}
	if others > 0 {
		question := fmt.Sprintf("put load on %s, which has %d lot%s of its own? its customers will feel it", target.URL.Reveal(), others, plural(others))
		if err := a.confirm(ctx, question); err != nil {
			return r, err
		}
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
		defer cancel()
		err = cmp.Or(err, h.Withdraw(within))
	}()
	if err := h.PutOnSale(ctx, f.plan.Definitions()); err != nil {
		return r, err
	}
	before, unseen := h.Scrape(ctx)
	r = a.runBench(ctx, f, f.plan.Target(h))
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	after, unseenToo := h.Scrape(within)
	did := bench.Between(before, after, cmp.Or(unseen, unseenToo))
	serverDid(&r, h, did)
	for _, store := range []string{"redis", "postgres"} {
		r.Unknown(store, "only its server reaches it; dropctl bench engine measures what it carries")
	}
	r.Audit, err = h.Audit(within)
	return r, err
}

// serverDid enters what a server was seen to do, and why the rest is not known.
func serverDid(r *bench.Result, h *bench.HTTP, did bench.Doing) {
	r.Target, r.Server, r.Batch = "http", h.Cost(did.CPU), did.Batch
	if r.Batch == nil {
		r.Unknown("batch", did.Why)
	}
	if r.Server.CPU == nil {
		r.Unknown("server.cpu_seconds_per_operation", cmp.Or(did.Why, "not a single operation was sent"))
	}
}

// withdrawTime is what the end of a measurement may take, of many lots too.
const withdrawTime = time.Minute

func (a *app) callServer(f benchFlags, url, key string) (*bench.HTTP, error) {
	return bench.NewHTTP(bench.HTTPOptions{URL: url, Key: key, UserAgent: "dropctl-bench/" + thisVersion().Version,
		Users: f.load.Users, Timeout: a.cfg.Timeout, Run: strings.ToLower(rand.Text()[:8])})
}

// benchPrivateServer measures a server process on private stores, with a worker of this process behind it.
func (a *app) benchPrivateServer(ctx context.Context, f benchFlags) (r bench.Result, err error) {
	l, s, closeStores, err := a.privateStores(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, closeStores()) }()
	server, h, err := a.serveBench(ctx, f, l)
	if err != nil {
		return r, err
	}
	defer h.Close()
	defer server.Stop()
	if err := h.PutOnSale(ctx, f.plan.Definitions()); err != nil {
		return r, err
	}
	// The worker goes on after an interruption, until all that is in flight has ended.
	stop := a.startWorker(context.WithoutCancel(ctx), l, s, nil)
	f.load.Meter = a.meter(l, s)
	before, unseen := h.Scrape(ctx)
	r = a.runBench(ctx, f, f.plan.Target(h))
	after, unseenToo := h.Scrape(context.WithoutCancel(ctx))
	did := bench.Between(before, after, cmp.Or(unseen, unseenToo))
	serverDid(&r, h, did)
	if err = stop(); err == nil {
		err = a.auditBench(ctx, &r, l, s)
	}
	return r, err
}

// serveBench runs a server on the stores of the settings, with a key for whoever measures it.
func (a *app) serveBench(ctx context.Context, f benchFlags, l *ledger.Ledger) (*bench.Server, *bench.HTTP, error) {
	token, id := drop.NewToken()
	_, hash, _ := drop.ReadToken(token)
	if _, err := l.CreateKey(ctx, drop.APIKey{ID: id, Tenant: "bench", Scopes: drop.Scopes(), Hash: hash, CreatedBy: a.cfg.Actor}); err != nil {
		return nil, nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, nil, fault.Wrap(fault.Failed, err, "cannot find the program itself, which is to be measured")
	}
	env := []string{"DROPCTL_REDIS_URL=" + a.cfg.RedisURL.Reveal(), "DROPCTL_DATABASE_URL=" + a.cfg.DatabaseURL.Reveal(), "DROPCTL_LOG_FORMAT=json",
		"DROPCTL_LIMIT_KEY=0", "DROPCTL_LIMIT_USER=0", "DROPCTL_LIMIT_ADDRESS=0", fmt.Sprint("DROPCTL_OUTBOX_MAX_BYTES=", benchOutbox)}
	server, err := bench.StartServer(ctx, program, env, "serve")
	if err != nil {
		return nil, nil, err
	}
	h, err := a.callServer(f, "http://"+server.Address, token)
	if err != nil {
		server.Stop()
		return nil, nil, err
	}
	return server, h, nil
}
