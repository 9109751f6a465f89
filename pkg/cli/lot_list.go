package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
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
	a.settings(cmd, cmd.Flags(), config.Redis, config.API)
	return cmd
}

func (a *app) groupFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "group", "", "only the lots of this group")
	_ = cmd.RegisterFlagCompletionFunc("group", a.completeFrom(a.groups))
}

// groups offers the groups of the lots that the shop has for completion.
func (a *app) groups(ctx context.Context, _ string) ([]candidate, error) {
	s, err := a.openShop(ctx, false)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	lots, err := s.LotIDs(ctx, "")
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
	s, err := a.openShop(ctx, false)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	lots, err := s.Lots(ctx, group)
	if err != nil {
		return err
	}
	return a.print(lots)
}
