package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
)

func newHookList(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the hooks, and how their receivers are doing",
		Long: `List the hooks: whom they tell, of what, how many notices wait to be sent (20,000 at most are
counted), how many were given up after three days (parked), and since when a receiver has not
answered. Secrets are never shown, nor is the query of a URL, which may hold one.`,
		Example: `  dropctl hook list
  dropctl hook list -o json --jq '.[] | select(.failing_since != null)'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listHooks(cmd.Context()) },
	}
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}

func (a *app) listHooks(ctx context.Context) error {
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	hooks, err := l.Hooks(ctx)
	if err != nil {
		return err
	}
	views := make([]hookView, len(hooks))
	for i, h := range hooks {
		views[i] = viewHook(h)
	}
	return a.print(views)
}
