package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/simulate/torture"
)

const (
	longestTorture  = 24 * 60 // minutes
	tortureRate     = 20_000  // events a second: nobody else needs this PostgreSQL
	tortureDrain    = 3 * time.Minute
	defaultTortured = 1 // seed
)

// tortureAlone checks that nothing else is asked for, and tortures.
func (a *app) tortureAlone(cmd *cobra.Command, args []string, f simulateFlags, minutes float64) error {
	for _, flag := range []string{"users", "fault", "rehearse", "list", "print"} {
		if cmd.Flags().Changed(flag) || len(args) > 0 {
			return fault.New(fault.Usage, "--torture goes with --seed and --minutes alone").WithField("torture").WithHint("its lots, callers and faults are its own")
		}
	}
	long, err := tortureTime(minutes)
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("seed") {
		f.seed = defaultTortured
	}
	return a.torture(cmd.Context(), f.seed, long)
}

// tortureTime checks how long it is to take. Minutes may be a fraction.
func tortureTime(minutes float64) (time.Duration, error) {
	if !(minutes >= 0.05 && minutes <= longestTorture) {
		return 0, fault.New(fault.Usage, "--minutes %g is out of range", minutes).WithField("minutes").WithHint("use 0.05 to %d", longestTorture)
	}
	return time.Duration(minutes * float64(time.Minute)).Round(time.Second), nil
}

// torture tortures a shop on private servers, and prints what came of it, be it only what was until an interruption.
func (a *app) torture(ctx context.Context, seed uint64, long time.Duration) (err error) {
	worker, err := ownWorker()
	if err != nil {
		return err
	}
	a.onPrivateRedis()
	here := *a.cfg
	here.MaxEventsPerSecond = tortureRate
	a.cfg = &here
	a.note("starting a private Redis, a private PostgreSQL and a worker, and torturing them for %s with the seed %d", fault.Duration(long), seed)
	l, err := wire.OpenLaboratory(ctx, a.cfg, a.getenv, wire.LaboratoryOptions{Redis: lab.RedisOptions{Fsync: "always"},
		Links: []lab.FaultTarget{lab.RedisTarget, lab.PostgresTarget}, Worker: worker})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(ctx))) }()
	if err := wire.SeedTorture(ctx, l.Stock, l.Ledger); err != nil {
		return err
	}
	report, err := torture.Run(ctx, l.Stock, wire.TortureLedger(l.Ledger), &l.Rig,
		torture.Options{Seed: seed, For: long, Audit: wire.TortureAudit(l.Stock, l.Ledger, tortureDrain), Progress: a.tortureProgress(long)})
	err = cmp.Or(err, l.Check())
	printErr := a.print(report)
	if err = cmp.Or(err, printErr, report.Err()); err != nil {
		return err
	}
	a.note("no promise was broken: %d calls, %d attempts, and every one is what its caller was told", report.Calls, report.Attempts)
	return nil
}

// tortureProgress says every now and then how far it is; nil where programs read.
func (a *app) tortureProgress(long time.Duration) func(torture.Progress) {
	if a.cfg.Quiet || render.Format(a.cfg.Output).Structured() && !a.errTerm.TTY {
		return nil
	}
	every := max(linesEvery, min(30*time.Second, long/20))
	next := every
	return func(p torture.Progress) {
		if p.Elapsed < next {
			return
		}
		next = p.Elapsed + every
		a.say("%5.0fs of %s  calls %d  faults %d  looks %d  violations %d\n", p.Elapsed.Seconds(), fault.Duration(long), p.Calls, p.Faults, p.Looks, p.Violations)
	}
}
