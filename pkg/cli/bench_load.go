package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/term"
)

// benchFlags are what the command line says of a measurement, whatever is measured.
type benchFlags struct {
	plan   bench.Plan
	load   bench.Load
	failIf []string
}

// defaultRate is what is offered where nothing is said.
const defaultRate = 1000

func (f *benchFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.plan.Mix, "mix", bench.Accept, "what people do: "+strings.Join(bench.Mixes(), ", "))
	flags.Float64Var(&f.load.Rate, "rate", defaultRate, "operations a second, whatever the answers (open loop)")
	flags.IntVar(&f.load.Users, "users", 1024, "without --rate: users who ask again once they are answered (closed loop); with it: the most in flight")
	flags.DurationVar(&f.load.Warmup, "warmup", 2*time.Second, "what comes before the measured span")
	flags.DurationVar(&f.load.Duration, "duration", 10*time.Second, "the measured span")
	flags.IntVar(&f.plan.Lots, "lots", 1, "lots among which people choose")
	flags.Int64Var(&f.plan.Stock, "stock", bench.AsNeeded, "units of each lot")
	flags.Lookup("stock").DefValue = "what the mix needs"
	flags.Int64Var(&f.plan.Qty, "qty", 1, "units that each person takes")
	flags.StringArrayVar(&f.failIf, "fail-if", nil, "exit with 6 if this is so, as in 'accept_p99>10ms' (repeatable)")
	completeNothing(cmd, "rate", "users", "warmup", "duration", "lots", "stock", "qty")
	_ = cmd.RegisterFlagCompletionFunc("mix", completeWords(bench.Mixes()...))
	_ = cmd.RegisterFlagCompletionFunc("fail-if", completeWords(bench.LimitNames()...))
}

// check finds what is mistyped, before anything is dialled, and decides between open and closed loop.
func (f *benchFlags) check(cmd *cobra.Command) ([]bench.Limit, error) {
	given := cmd.Flags().Changed
	switch {
	case given("rate") && f.load.Rate == 0:
		return nil, fault.New(fault.Usage, "a rate of 0 offers nothing").WithField("rate").WithHint("use --users alone for a closed loop")
	case given("users") && !given("rate"):
		f.load.Rate = 0
	}
	if given("stock") && f.plan.Stock < 0 {
		return nil, fault.New(fault.Usage, "a stock of %d is out of range", f.plan.Stock).WithField("stock").WithHint("use 0 or more")
	}
	if err := f.plan.Check(); err != nil {
		return nil, err
	}
	if err := f.load.Check(); err != nil {
		return nil, err
	}
	return bench.ParseLimits(f.failIf)
}

// meter tells what a measurement costs of both stores. Of a PostgreSQL elsewhere nobody knows the processor time.
func (a *app) meter(l *ledger.Ledger, s *stock.Stock) bench.Meter {
	return bench.Meter{Redis: s, Postgres: l, PostgresPID: a.private}
}

// runBench puts the load on a target and says what comes.
func (a *app) runBench(ctx context.Context, f benchFlags, target bench.Target) bench.Result {
	if a.errTerm.TTY && !a.cfg.Quiet {
		f.load.Live = func(s bench.Second) { a.say("%s\n", a.errTerm.Paint(term.Faint, liveLine(s))) }
	}
	asked := fmt.Sprintf("%d users", f.load.Users)
	if f.load.Rate > 0 {
		asked = fmt.Sprintf("%.6g operations a second", f.load.Rate)
	}
	a.note("measuring %s: %s for %s, after %s of warm-up", f.plan.Mix, asked, fault.Duration(f.load.Duration), fault.Duration(f.load.Warmup))
	r := f.load.Run(ctx, target)
	f.plan.Describe(&r)
	return r
}

func liveLine(s bench.Second) string {
	return fmt.Sprintf("%4ds  offered %d  dropped %d  accepted %s  refused %s  errors %d", s.Second, s.Offered, s.Dropped, s.Accepted.Cell(), s.Refused.Cell(), s.Errors)
}

// reportBench prints a result, and returns what is bad about it. A run that was interrupted is held against no limit: it may
// have had no time to meet any.
func (a *app) reportBench(r bench.Result, limits []bench.Limit) error {
	if !r.Interrupted {
		r.Judge(limits)
	}
	if err := a.print(r); err != nil {
		return err
	}
	if r.Behind {
		a.note("the rate was missed: of %.0f operations a second %.0f were answered", r.Offered, r.Achieved)
	}
	err := r.Err()
	if code, n, first := r.MostFrequent(); n > 0 && !fault.Is(err, code) { // else the error says so
		a.note("%d operations failed, %d of them with %s, such as: %v", r.Failed(), n, code, first)
	}
	if r.Interrupted {
		a.note("interrupted: this is what was measured until then")
	}
	return err
}
