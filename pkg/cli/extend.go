package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
)

func newExtend(a *app) *cobra.Command {
	var st settling
	var by time.Duration
	cmd := &cobra.Command{
		Use:   "extend ID --by D",
		Short: "Move the deadline of a hold",
		Long: `Let a hold last at least so long from now on. A deadline is never moved to an earlier time, and
never past the lot's max_hold, counted from when the hold was reserved; stderr says if that cut it.`,
		Example: `  dropctl extend truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --by 5m`,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := drop.SettleRequest{Action: drop.ActExtend, By: by}
			return a.settle(cmd.Context(), args[0], q, st)
		},
	}
	cmd.Flags().DurationVar(&by, "by", 0, "the hold lasts at least this long from now on, such as 5m")
	_ = cmd.MarkFlagRequired("by")
	a.settleCommand(cmd, &st, drop.Held)
	completeNothing(cmd, "by")
	return cmd
}
