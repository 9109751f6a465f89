package cli

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/bench/compare"
	"github.com/dropctl/dropctl/pkg/bench/report"
)

func newBenchCompare(a *app) *cobra.Command {
	o, svg := compare.Options{}, ""
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare this engine with other ways to sell a lot",
		Long: `Let several models sell the same drop on the same private servers, each at its best number of
connections, in rounds whose order is drawn anew, and print medians and the spread. All promise the
same: no more units than there are, one for each user, held until a deadline.

  pg-for-update      SELECT … FOR UPDATE of the lot's row
  pg-guarded-update  UPDATE … WHERE available > 0, one statement
  pg-unit-rows       a row for each unit, taken with SKIP LOCKED
  pg-optimistic      a version that is compared when writing
  pg-serializable    isolation level SERIALIZABLE
  pg-advisory        pg_advisory_xact_lock of the lot
  redis-watch        WATCH, look, MULTI … EXEC
  redis-lock         SET NX of a lock, look, write, unlock
  redis-script       one EVALSHA a request; the hold is a key with a TTL
  dropctl            this engine; what recording costs afterwards is measured by bench bars
  dropctl-fsync      the same, and every answer waits for the disk

ABORTS, RETRIES, LOCK WAIT and DB CPU are per accepted hold. LOCK WAIT is an estimate: every 50 ms
pg_stat_activity tells how many wait for a lock; a wait for a free connection is not part of it.
OVERSOLD and LEAKED are counted by the callers, not by the models: each lot is sold out in the end.
LEAKED are units that are gone after client processes died in the middle of requests and the time of
their holds was over. LOST are acknowledged holds that are gone after the server ended: Redis loses
all that it had not synced to the disk (which needs a C compiler), PostgreSQL is killed.

PostgreSQL has every commit on the disk before it answers. Of the others only dropctl-fsync has; the
rest sync Redis once a second. Promises of one kind are those of dropctl-fsync and of pg-….

The exit status is 6 if dropctl misses a bar, which are meant for 256 users and a quiet machine. It
takes about six minutes.`,
		Example: `  dropctl bench compare
  dropctl bench compare --models pg-for-update,redis-script,dropctl --rounds 3
  dropctl bench compare --svg models.svg
  dropctl bench compare --no-crash -q -o json --jq '.models[] | {model, accepted_per_second}'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				o.Seed = uint64(time.Now().UnixNano())
			}
			if !a.jsonErrors() { // notes would wait for the end there
				o.Progress = a.note
			}
			r, err := compare.Run(cmd.Context(), o)
			if err != nil && len(r.Models) == 0 {
				return err
			}
			var drawErr error // what took minutes to measure is printed all the same
			if svg != "" {
				if drawErr = drawTo(svg, drawingOf(r)); drawErr == nil {
					r.SVG = svg
				}
			}
			if err := a.print(r); err != nil {
				return err
			}
			if r.Interrupted {
				a.note("ended early: this is what was measured until then, and no bar was judged")
			}
			return cmp.Or(err, drawErr, r.Err())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Models, "models", nil, "compare only these, separated by commas")
	f.IntVar(&o.Rounds, "rounds", 5, "how often each model sells")
	f.IntVar(&o.Users, "users", 256, "callers who ask at once")
	f.DurationVar(&o.Duration, "duration", 2*time.Second, "measured span of a round")
	f.IntVar(&o.Lots, "lots", 1, "lots among which the users spread")
	f.Int64Var(&o.Stock, "stock", 200_000, "units of each lot; a round ends when they are sold")
	f.Uint64Var(&o.Seed, "seed", 0, "draws the order of the rounds and how clients die (default: another each time)")
	f.BoolVar(&o.NoCrash, "no-crash", false, "leave out what happens when clients die and servers end")
	f.StringVar(&svg, "svg", "", "draw a chart to this file, too; what it was before is replaced")
	_ = cmd.MarkFlagFilename("svg", "svg")
	completeNothing(cmd, "users", "duration", "lots", "stock", "seed", "rounds")
	_ = cmd.RegisterFlagCompletionFunc("models", completeWords(compare.Names()...))
	return cmd
}

// drawingOf is what is drawn of a comparison: what bench report draws of its JSON.
func drawingOf(r compare.Report) (drawing report.Report) {
	for _, m := range r.Models {
		drawing.Models = append(drawing.Models, report.Model{Model: m.Model, PerSecond: m.PerSecond, Low: m.Low, High: m.High,
			P50: &m.P50, P99: &m.P99, Oversold: m.Oversold, Leaked: m.Leaked})
	}
	return drawing
}
