package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newHookRetry(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "retry ID…",
		Short: "Send again what was given up",
		Long: `Take up again the notices that were given up after three days (parked), for three days more. They
keep the ids that they had. Parked notices are kept for a month.`,
		Example: `  dropctl hook retry k3bt7q2m
  dropctl hook retry k3bt7q2m --dry-run`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeFrom(a.hookIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := eachOnce(args, checked(drop.CheckHookID))
			if err != nil {
				return err
			}
			return a.changeHooks(cmd.Context(), ids, dryRun, hookChange{
				result: "retried",
				count:  func(h drop.HookState) int64 { return h.Parked },
				do: func(ctx context.Context, l *ledger.Ledger, id string) (bool, error) {
					n, err := l.RetryParked(ctx, id)
					return n > 0, err
				},
			})
		},
	}
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}
