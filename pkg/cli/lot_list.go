package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/stock"
)

func newLotList(a *app) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the lots that Redis has",
		Long: `List the lots that Redis has, by id. A lot that the ledger knows and Redis lost is not among them:
see dropctl status.`,
		Example: `  dropctl lot list
  dropctl lot list --group autumn -o wide
  dropctl lot list --jq '.[] | select(.available == 0) | .lot'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkGroup(group); err != nil {
				return err
			}
			return a.listLots(cmd.Context(), group)
		},
	}
	a.groupFlag(cmd, &group)
	a.settings(cmd, cmd.Flags(), config.Redis)
	return cmd
}

func (a *app) groupFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "group", "", "only the lots of this group")
	_ = cmd.RegisterFlagCompletionFunc("group", a.completeFrom(a.groups))
}

// groups offers the groups of the lots that Redis has for completion.
func (a *app) groups(ctx context.Context, _ string) ([]candidate, error) {
	s, err := a.openStock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	lots, err := s.Lots(ctx)
	if err != nil {
		return nil, err
	}
	var list []candidate
	for _, lot := range lots {
		if c := (candidate{word: lot.Group()}); c.word != "" && !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list, nil
}

// checkGroup checks a group; none is fine.
func checkGroup(group string) error {
	if group == "" {
		return nil
	}
	_, err := drop.ParseGroup(group)
	return err
}

func (a *app) listLots(ctx context.Context, group string) error {
	s, err := a.openStock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	lots, err := lotsOf(ctx, s, group)
	if err != nil {
		return err
	}
	states, err := s.LotStates(ctx, lots)
	if err != nil {
		return err
	}
	views := []lotView{}
	for _, lot := range lots {
		if st, ok := states[lot]; ok {
			views = append(views, viewLot(st))
		}
	}
	return a.print(views)
}

// lotsOf returns the lots of a group, or for "" all, sorted.
func lotsOf(ctx context.Context, s *stock.Stock, group string) ([]drop.LotID, error) {
	all, err := s.Lots(ctx)
	if err != nil || group == "" {
		return all, err
	}
	var lots []drop.LotID
	for _, lot := range all {
		if lot.Group() == group {
			lots = append(lots, lot)
		}
	}
	return lots, nil
}
