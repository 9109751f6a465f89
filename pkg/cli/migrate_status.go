package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newMigrateStatus(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which steps of the schema are applied",
		Long:  "Show every step of the schema. The exit status is 6 while a step is pending, 0 when none is.",
		Example: `  dropctl migrate status
  dropctl migrate status -o none && echo up to date`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.showMigrations(cmd.Context()) },
	}
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}

func (a *app) showMigrations(ctx context.Context) error {
	o, err := wire.LedgerOptions(a.cfg, a.getenv)
	if err != nil {
		return err
	}
	status, err := a.migrationStatus(ctx, o)
	if err != nil {
		return err
	}
	views := viewMigrations(status.Steps, "applied")
	for i := range views {
		if views[i].Applied.IsZero() {
			views[i].State = "pending"
		}
	}
	if err := a.print(views); err != nil {
		return err
	}
	if status.Pending > 0 {
		return fault.New(fault.Pending, "%d of %d steps are pending", status.Pending, len(status.Steps))
	}
	a.note("installation %s, %d shards", status.Installation.ID, status.Installation.Shards)
	return nil
}
