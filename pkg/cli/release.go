package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
)

func newRelease(a *app) *cobra.Command {
	var st settling
	var keep *number
	cmd := &cobra.Command{
		Use:   "release ID",
		Short: "Give a hold back",
		Long: `Give the units of a hold back, so that others can take them at once. With --keep only part of
them; asking again for the same number changes nothing.`,
		Example: `  dropctl release truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17
  dropctl release truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --keep 1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := drop.SettleRequest{Action: drop.ActRelease, Keep: keep.or(0)}
			return a.settle(cmd.Context(), args[0], q, st)
		},
	}
	keep = numberFlag(cmd, "keep", 0, "units that stay held (default 0)")
	a.settleCommand(cmd, &st, drop.Held)
	completeNothing(cmd, "keep")
	return cmd
}
