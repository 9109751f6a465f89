package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newMigrateUp(a *app) *cobra.Command {
	var appRole string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the schema up to date",
		Long: `Create the schema, or bring it up to date. Run it as the role that shall own the tables; name the
role that dropctl runs as with --app-role: it gets the rights it needs and no more, so that it
cannot change what was recorded. A role that was named before gets the rights of new steps, too.
Running it again is safe, and several at once wait for each other.

The number of shards is fixed by the first run.`,
		Example: `  dropctl migrate up --app-role shop
  dropctl migrate up --dry-run
  dropctl migrate up --database-url postgres://owner@db/shop --app-role shop --shards 32`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := ledger.MigrateOptions{AppRole: appRole}
			if a.cfg.Origin("shards") != "default" {
				m.Shards = a.cfg.Shards
			}
			return a.migrateUp(cmd.Context(), m, dryRun)
		},
	}
	cmd.Flags().StringVar(&appRole, "app-role", "", "role that dropctl runs as (default: the one named before; else only the owner may use it)")
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Database, config.First)
	completeNothing(cmd, "app-role")
	return cmd
}

func (a *app) migrateUp(ctx context.Context, m ledger.MigrateOptions, dryRun bool) error {
	o, err := wire.LedgerOptions(a.cfg, a.getenv)
	if err != nil {
		return err
	}
	if dryRun {
		status, err := a.migrationStatus(ctx, o)
		if err != nil {
			return err
		}
		steps := pending(status)
		if len(steps) == 0 {
			a.note("the schema is up to date")
		}
		return a.print(viewMigrations(steps, "planned"))
	}
	target, err := o.Target()
	if err != nil {
		return err
	}
	a.note("target: schema on %s", target)
	// A migration takes as long as it takes; PostgreSQL's own limits end each of its statements.
	steps, err := ledger.MigrateUp(ctx, o, m)
	if err != nil && len(steps) == 0 {
		return err
	}
	if printErr := a.print(viewMigrations(steps, "applied")); printErr != nil {
		return printErr
	}
	if err != nil {
		return fault.Wrap(fault.CodeOf(err), err, "%d steps were carried out, then it failed", len(steps)).WithHint("%s", fault.HintOf(err))
	}
	if len(steps) == 0 {
		a.note("the schema is up to date")
	}
	if m.AppRole != "" {
		a.note("the role %s may use it", m.AppRole)
	}
	return nil
}

func (a *app) migrationStatus(ctx context.Context, o ledger.Options) (ledger.MigrationStatus, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return ledger.ReadMigrationStatus(ctx, o)
}

// pending returns the steps that the database lacks.
func pending(status ledger.MigrationStatus) []ledger.MigrationStep {
	var steps []ledger.MigrationStep
	for _, s := range status.Steps {
		if s.AppliedAt.IsZero() {
			steps = append(steps, s)
		}
	}
	return steps
}
