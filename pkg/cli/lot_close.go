package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
)

func newLotClose(a *app) *cobra.Command {
	return a.statusCommand(&cobra.Command{
		Use:   "close LOT… | --group G | --all",
		Short: "End the sale",
		Long: `End the sale: no new holds; holds that exist can still be settled. Buyers are told that it is
over, where a pause tells them to come back. Works while PostgreSQL is down. dropctl lot open LOT
takes it back, open --all does not.`,
		Example: `  dropctl lot close truffle-99
  dropctl lot close --group autumn --reason "season over"`,
	}, drop.Closed)
}
