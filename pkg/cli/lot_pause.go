package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
)

func newLotPause(a *app) *cobra.Command {
	return a.statusCommand(&cobra.Command{
		Use:   "pause LOT… | --group G | --all",
		Short: "Stop selling for a while",
		Long: `Stop new holds at once; holds that exist can still be confirmed, released and refunded. Works
while PostgreSQL is down; asking again changes nothing. --all and --group leave closed lots alone.
Go on with dropctl lot open.`,
		Example: `  dropctl lot pause truffle-99 --reason "wrong price"
  dropctl lot pause truffle-99 truffle-100
  dropctl lot pause --all --reason audit`,
	}, drop.Paused)
}
