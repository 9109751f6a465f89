package cli

import "github.com/spf13/cobra"

func newBench(a *app) *cobra.Command {
	cmd := newGroup("bench", "Measure what a shop carries, and dropctl itself", newBenchBars(a), newBenchCompare(a))
	cmd.Example = `  dropctl bench bars --only hot-lot`
	return cmd
}
