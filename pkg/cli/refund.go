package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
)

func newRefund(a *app) *cobra.Command {
	var st settling
	var total *number
	var noRestock, due bool
	cmd := &cobra.Command{
		Use:   "refund ID",
		Short: "Take a sale back",
		Long: `Refund a confirmed reservation. Its units can be sold again, unless --no-restock takes them out of
the lot. --total says how many of its units are refunded in all afterwards; asking again for the
same total changes nothing. A refund cannot be undone: it asks first, or needs --yes.

Of payments that paid for no unit (dropctl ledger show --refund-due) it records who gave the money
back, and why, for all that the reservation has; dropctl never had that money. Where there is a sale
too, say which is meant: --due or --total N. PostgreSQL tells, so it is asked unless --total is
there.`,
		Example: `  dropctl refund truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --reason "arrived broken"
  dropctl refund truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --total 1 --no-restock --yes
  dropctl refund truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --due --reason "bank transfer 4711"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := drop.SettleRequest{Action: drop.ActRefund, Total: total.or(-1), NoRestock: noRestock, Due: due}
			return a.settle(cmd.Context(), args[0], q, st)
		},
	}
	total = numberFlag(cmd, "total", 1, "units refunded in all afterwards (default: all)")
	cmd.Flags().BoolVar(&noRestock, "no-restock", false, "take the units out of the lot instead of selling them again")
	cmd.Flags().BoolVar(&due, "due", false, "record that the payments that paid for no unit were given back")
	a.settleCommand(cmd, &st, drop.Confirmed)
	a.settings(cmd, cmd.Flags(), config.Database)
	completeNothing(cmd, "total")
	return cmd
}
