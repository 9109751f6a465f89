package cli

import (
	"cmp"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/bench/bars"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newBenchBars(a *app) *cobra.Command {
	o := bars.Options{}
	cmd := &cobra.Command{
		Use:   "bars",
		Short: "Measure speed and memory against what others do",
		Long: `Measure on private servers what dropctl promises of its speed and memory, and print one table: the
bars, what they require, what was measured, and the figures behind them. A bar compares medians
over the rounds, in which the contenders take turns. The exit status is 6 if a bar is missed.

  hot-lot    one lot, 256 callers, against the usual script, one call a request, and AutoPipeline
  many-lots  1,000 lots, 256 and 10,000 callers
  memory     what a live hold costs of Redis
  apply      recording events in PostgreSQL, against one insert and one transaction an event
  pipeline   a worker from outbox to PostgreSQL: its pace, its limit, and what a sale costs there
  http       a server with keys, access log and metrics, against a bare net/http handler
  generator  what the load generator of bench engine and bench http carries by itself
  cli        script calls of a reserve, time of a version
  soak       a server under an even load for --soak; only if it is asked for with --only

It takes about five minutes and needs a quiet machine: nothing else may want its processors.`,
		Example: `  dropctl bench bars
  dropctl bench bars --only hot-lot,memory --rounds 9
  dropctl bench bars -q -o json --jq '.bars[] | select(.ok == false)'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			program, err := os.Executable()
			if err != nil {
				return fault.Wrap(fault.Failed, err, "cannot find the program itself, which is to be measured")
			}
			o.Program = program
			if !a.jsonErrors() { // notes would wait for the end there
				o.Progress = a.note
			}
			report, err := bars.Run(cmd.Context(), o)
			if err != nil && len(report.Rows) == 0 {
				return err
			}
			return cmp.Or(a.print(report), err, report.Err())
		},
	}
	cmd.Flags().IntVar(&o.Rounds, "rounds", 5, "how often each contender runs")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "measure only these parts, separated by commas")
	cmd.Flags().DurationVar(&o.Soak, "soak", 10*time.Minute, "how long the soak takes")
	completeNothing(cmd, "soak")
	_ = cmd.RegisterFlagCompletionFunc("rounds", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("only", completeWords(bars.Parts()...))
	return cmd
}
