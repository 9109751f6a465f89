package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
)

func newKeyList(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys, those that no longer count too",
		Long: `List the keys of the HTTP API. No secret is shown, for none is stored: with -o json there is the
hash of each, and that output is the file that a server takes with --api-keys-file, so that it can
be started while PostgreSQL is down.`,
		Example: `  dropctl key list
  dropctl key list -o json > keys.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listKeys(cmd.Context()) },
	}
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}

func (a *app) listKeys(ctx context.Context) error {
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	keys, err := l.Keys(ctx)
	if err != nil {
		return err
	}
	views := make([]keyView, len(keys))
	for i, k := range keys {
		views[i] = keyView(k)
	}
	if err := a.print(views); err != nil {
		return err
	}
	if len(keys) == 0 && a.errTerm.TTY {
		a.note("there are no keys: the HTTP API serves this machine only, and everybody on it")
	}
	return nil
}
