package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newConfirm(a *app) *cobra.Command {
	var st settling
	var qty *number
	var payment, late, ack string
	cmd := &cobra.Command{
		Use:   "confirm ID",
		Short: "Turn a hold into a sale",
		Long: `Confirm a hold before its deadline. With --qty only part of it; the rest is given back at once.

After the deadline a confirm is refused, unless --late reclaim or the lot says to take the units
anew if they are still free; that is a new reservation, which is printed. A payment reference of a
refused confirm is kept, so that the money is listed as refund due.

Redis admits, the ledger decides. --ack ledger waits (at most --timeout) for the ledger's word; it
needs PostgreSQL and a running worker.`,
		Example: `  dropctl confirm truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --payment pay-4711
  dropctl confirm truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --qty 1
  dropctl confirm truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --ack ledger`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch ack {
			case "stock":
			case "ledger":
				st.ackLedger = true
			default:
				return fault.New(fault.Usage, "there is no acknowledgement by %q", ack).WithField("ack").WithHint("use --ack stock or --ack ledger")
			}
			q := drop.SettleRequest{Action: drop.ActConfirm, Qty: qty.or(0), Ref: payment, Late: drop.Late(late)}
			return a.settle(cmd.Context(), args[0], q, st)
		},
	}
	cmd.Flags().StringVar(&payment, "payment", "", "payment reference")
	qty = numberFlag(cmd, "qty", 1, "units to confirm (default: all of the hold)")
	cmd.Flags().StringVar(&late, "late", "", "after the deadline: refuse or reclaim (default: as the lot says)")
	cmd.Flags().StringVar(&ack, "ack", "stock", "whose word to wait for: stock or ledger")
	_ = cmd.RegisterFlagCompletionFunc("late", completeWords(string(drop.Refuse), string(drop.Reclaim)))
	_ = cmd.RegisterFlagCompletionFunc("ack", completeWords("stock", "ledger"))
	a.settleCommand(cmd, &st, drop.Held)
	a.settings(cmd, cmd.Flags(), config.Database)
	completeNothing(cmd, "payment", "qty")
	return cmd
}
