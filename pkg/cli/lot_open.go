package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
)

func newLotOpen(a *app) *cobra.Command {
	return a.statusCommand(&cobra.Command{
		Use:   "open LOT… | --group G | --all",
		Short: "Let lots sell",
		Long: `Let lots sell again that were paused or closed. A sales window still counts. Works while
PostgreSQL is down; asking again changes nothing.`,
		Example: `  dropctl lot open truffle-99
  dropctl lot open --group autumn --reason "prices are right now"`,
	}, drop.Open)
}
