package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
)

func newLotShow(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show LOT",
		Short: "Show one lot as Redis has it",
		Example: `  dropctl lot show truffle-99
  dropctl lot show truffle-99 --jq .available`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lot, err := drop.ParseLotID(args[0])
			if err != nil {
				return err
			}
			return a.showLot(cmd.Context(), lot)
		},
	}
	cmd.ValidArgsFunction = firstOnly(a.completeFrom(a.lotIDs))
	a.settings(cmd, cmd.Flags(), config.Redis, config.API, config.Database)
	return cmd
}

func (a *app) showLot(ctx context.Context, lot drop.LotID) error {
	s, err := a.openShop(ctx, false)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	v, err := s.Lot(ctx, lot)
	if err != nil {
		return err
	}
	return a.print(v)
}
