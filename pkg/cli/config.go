package cli

import "github.com/spf13/cobra"

func newConfig(a *app) *cobra.Command {
	cmd := newGroup("config", "Show settings and where they come from", newConfigView(a), newConfigPath(a))
	cmd.Example = `  dropctl config view --origin
  dropctl config path`
	return cmd
}
