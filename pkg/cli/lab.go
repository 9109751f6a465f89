package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

func newLab(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "lab",
		Short: "Run a private Redis and PostgreSQL to try things with",
		Long: `Start a private Redis and a private PostgreSQL, migrated, with the HTTP API and a worker, and print
how another shell reaches them. Nothing of this machine's own servers is touched. Ctrl-C stops
everything and removes the data.`,
		Example: `  dropctl lab
  dropctl lab -q -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runLab(cmd.Context()) },
	}
}

// labView is how to reach a lab. Its passwords are worth nothing elsewhere and end with it.
type labView struct {
	RedisURL    string `json:"redis_url" table:"DROPCTL_REDIS_URL"`
	DatabaseURL string `json:"database_url" table:"DROPCTL_DATABASE_URL"`
	OwnerURL    string `json:"owner_database_url" table:"OWNER'S URL"` // of the role that owns the database: for what the other one may not do
	Server      string `json:"server" table:"SERVER"`                  // of the HTTP API, which needs no key on this machine
}

func (v labView) text() string {
	return "export DROPCTL_REDIS_URL=" + shellQuoted(v.RedisURL) + "\nexport DROPCTL_DATABASE_URL=" + shellQuoted(v.DatabaseURL) +
		"\n# for dropctl migrate, bench engine and simulate --rehearse: export DROPCTL_DATABASE_URL=" + shellQuoted(v.OwnerURL) +
		"\n# the HTTP API: " + v.Server + "\n"
}

func (a *app) runLab(ctx context.Context) (err error) {
	a.note("starting a private Redis and a private PostgreSQL")
	a.onPrivateRedis()
	redis, err := lab.StartRedis(ctx, lab.RedisOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.Stop(context.WithoutCancel(ctx))) }()
	postgres, err := lab.StartPostgres(ctx, lab.PostgresOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop(context.WithoutCancel(ctx))) }()

	ln, err := telemetry.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	v := labView{redis.URL(), postgres.URL(lab.App, lab.Database), postgres.URL(lab.Owner, lab.Database), "http://" + ln.Addr().String()}
	if _, err := ledger.MigrateUp(ctx, ledger.Options{URL: v.OwnerURL}, ledger.MigrateOptions{AppRole: string(lab.App)}); err != nil {
		return err
	}
	if err := a.out.Text(v.text(), v); err != nil {
		return err
	}
	a.note("the lab runs until Ctrl-C; paste the lines above into another shell, then: dropctl seed hat --stock 10")
	here := *a.cfg
	here.RedisURL, here.DatabaseURL = config.NewURL(v.RedisURL), config.NewURL(v.DatabaseURL)
	here.TLSCertFile, here.TLSKeyFile, here.APIKeysFile = "", "", "" // of the operator's own server
	here.Transport, here.Payment = config.Direct, "none"             // what is tried here is none of the real queue's or gateway's business
	a.cfg = &here
	return a.serveOn(ctx, server{withWorker: true, listener: ln})
}
