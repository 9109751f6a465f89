package cli

import "github.com/spf13/cobra"

func newBench(a *app) *cobra.Command {
	cmd := newGroup("bench", "Measure what a shop carries, and dropctl itself", newBenchEngine(a), newBenchHTTP(a), newBenchBars(a), newBenchCompare(a), newBenchReport(a))
	cmd.Example = `  dropctl bench engine --lab --rate 5000
  dropctl bench bars --only hot-lot
  dropctl bench report monday.json tuesday.json --svg week.svg`
	return cmd
}
