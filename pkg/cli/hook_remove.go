package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newHookRemove(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "remove ID…",
		Short: "Tell receivers nothing any more",
		Long: `End hooks for good. What their receivers have not been told yet is dropped, and their secrets are
forgotten. It asks first, or needs --yes. Removing again changes nothing.`,
		Example: `  dropctl hook remove k3bt7q2m --yes
  dropctl hook remove k3bt7q2m abcdefgh --dry-run`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeFrom(a.hookIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := eachOnce(args, checked(drop.CheckHookID))
			if err != nil {
				return err
			}
			return a.changeHooks(cmd.Context(), ids, dryRun, hookChange{
				ask: "remove %s for good, with all that was not sent yet?", result: "removed",
				count: func(h drop.HookState) int64 { return h.Waiting + h.Parked },
				do: func(ctx context.Context, l *ledger.Ledger, id string) (bool, error) {
					return l.RemoveHook(ctx, id, a.cfg.Actor)
				},
			})
		},
	}
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}
