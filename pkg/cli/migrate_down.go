package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newMigrateDown(a *app) *cobra.Command {
	var to *number
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take steps of the schema back",
		Long: `Take the newest step of the schema back, or all behind a version. What those steps created is
lost: with --to 0 that is everything, the recorded sales included. It asks first, or needs --yes.`,
		Example: `  dropctl migrate down --dry-run
  dropctl migrate down --to 2 --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateDown(cmd.Context(), to, dryRun) },
	}
	to = numberFlag(cmd, "to", 0, "version to stop at (default: the one before the newest)")
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Database)
	completeNothing(cmd, "to")
	return cmd
}

func (a *app) migrateDown(ctx context.Context, to *number, dryRun bool) error {
	o, err := wire.LedgerOptions(a.cfg, a.getenv)
	if err != nil {
		return err
	}
	target, err := o.Target()
	if err != nil {
		return err
	}
	status, err := a.migrationStatus(ctx, o)
	if err != nil {
		return err
	}
	steps, version := stepsDown(status, to)
	if dryRun {
		return a.print(viewMigrations(steps, "planned"))
	}
	if len(steps) == 0 {
		a.note("there is no step to take back")
		return a.print([]migrationView{})
	}
	a.note("target: schema on %s", target)
	if err := a.confirm(ctx, fmt.Sprintf("take %d of %d steps of the schema on %s back, and lose what is in their tables", len(steps), len(status.Steps), target)); err != nil {
		return err
	}
	done, err := ledger.MigrateDown(ctx, o, version)
	if err != nil && len(done) == 0 {
		return err
	}
	if printErr := a.print(viewMigrations(done, "reverted")); printErr != nil {
		return printErr
	}
	if err != nil {
		return fault.Wrap(fault.CodeOf(err), err, "%d steps were taken back, then it failed", len(done)).WithHint("%s", fault.HintOf(err))
	}
	return nil
}

// stepsDown returns the applied steps behind a version, newest first, and that version: the one asked for, or the one
// before the newest.
func stepsDown(status ledger.MigrationStatus, to *number) ([]ledger.MigrationStep, int64) {
	var applied []ledger.MigrationStep
	for _, s := range status.Steps {
		if !s.AppliedAt.IsZero() {
			applied = append(applied, s)
		}
	}
	version := int64(0)
	if n := len(applied); n > 1 {
		version = applied[n-2].Version
	}
	version = to.or(version)
	applied = slices.DeleteFunc(applied, func(s ledger.MigrationStep) bool { return s.Version <= version })
	slices.Reverse(applied)
	return applied, version
}
