package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/render"
)

// reconcileFlags are what the command line says of a reconcile run, or of the runs to list.
type reconcileFlags struct {
	reconcile.Options
	maxRepair *number
	ifBusy    string
	history   bool
	limit     *number // of the history
}

const reconcileHelp = `Compare what Redis counts with what the ledger has recorded, both at the same event, while the
sale goes on. Nothing is changed unless --repair says so; the run is recorded.

  ok       both sides agree
  lagging  the newest events are not recorded yet; a finding only past --max-lag
  drift    the sides differ although the same events are counted on both
  frozen   nothing can be bought: the shard or lot is shut
  stopped  the ledger folds no more events of the lot
  missing  the ledger knows the lot, Redis does not have it

People get one line and the lots that are not ok; -o wide and -o json have them all.

--deep also compares every reservation, every user's counters, every due hold and the sales; where
no lot is named, it finds due entries that belong to none, told of as (shard N). The exit status is
6 if there is a finding. For cron: with -q it prints nothing while all is well, and with --if-busy
ok a run that meets another one ends quietly.

--repair puts right what Redis derives from its records: due entries, user counters, batches. It
looks at every record as --deep does, acts only on lots whose totals and records are the ledger's,
writes each repair down before it makes it, and looks again: the verdict is that of the last look.
Totals and records are never touched: dropctl restore LOT rebuilds them. The exit status is 0 if
all that was found is repaired, 8 if part of it is, and 6 if nothing is, or if more was found than
--max-repair allows.

--history compares nothing: it lists past runs and repairs, newest first, who ran them and what they
found. It needs PostgreSQL alone.`

func newReconcile(a *app) *cobra.Command {
	var f reconcileFlags
	cmd := &cobra.Command{
		Use:   "reconcile [LOT…]",
		Short: "Compare Redis with the ledger, lot by lot",
		Long:  reconcileHelp,
		Example: `  dropctl reconcile
  dropctl reconcile truffle-99 --deep --wait 30s
  dropctl reconcile -q --if-busy ok --max-lag 5m
  dropctl reconcile truffle-99 --repair --dry-run
  dropctl reconcile truffle-99 --repair --reason "ticket 4711"
  dropctl reconcile --history --limit 5
  dropctl reconcile --group festival -o json --jq '.lots[] | select(.finding)'`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeFrom(a.lotIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkHistory(cmd, args); err != nil {
				return err
			}
			if f.history {
				return a.reconcileHistory(cmd.Context(), int(f.limit.or(20)))
			}
			if err := f.read(cmd, args); err != nil {
				return err
			}
			return a.reconcile(cmd.Context(), f.Options, f.ifBusy == "ok")
		},
	}
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.Lag)
	a.groupFlag(cmd, &f.Group)
	f.register(cmd)
	return cmd
}

func (f *reconcileFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.Deep, "deep", false, "compare every record, not only the totals")
	cmd.Flags().DurationVar(&f.Wait, "wait", 0, "how long to wait for the ledger to catch up")
	cmd.Flags().StringVar(&f.ifBusy, "if-busy", "fail", "when another run is under way: fail (exit 7) or ok (exit 0)")
	_ = cmd.RegisterFlagCompletionFunc("if-busy", completeWords("fail", "ok"))

	cmd.Flags().BoolVar(&f.Repair, "repair", false, "put due entries, user counters and batches right (looks at every record)")
	dryRunFlag(cmd, &f.DryRun)
	reasonFlag(cmd, &f.Reason)
	f.maxRepair = numberFlag(cmd, "max-repair", 1, "with --repair: repair at most this many differences (default 100)")

	cmd.Flags().BoolVar(&f.history, "history", false, "list past runs and repairs instead")
	f.limit = numberFlag(cmd, "limit", 1, "with --history: list at most this many (default 20)")
	completeNothing(cmd, "max-repair", "limit")
}

// read takes the lots from the arguments and checks everything, before anything is dialled.
func (f *reconcileFlags) read(cmd *cobra.Command, args []string) (err error) {
	if f.ifBusy != "fail" && f.ifBusy != "ok" {
		return fault.New(fault.Usage, "--if-busy %q is neither fail nor ok", f.ifBusy).WithField("if-busy").WithHint("use --if-busy fail or --if-busy ok")
	}
	if f.Wait < 0 {
		return fault.New(fault.Usage, "--wait %s is negative", f.Wait).WithField("wait").WithHint("use a duration such as 30s")
	}
	if err := checkGroup(f.Group); err != nil {
		return err
	}
	if f.Group != "" && len(args) > 0 {
		return fault.New(fault.Usage, "lots and --group do not go together").WithField("group").WithHint("leave one of them out")
	}
	if f.Lots, err = eachOnce(args, drop.ParseLotID); err != nil {
		return err
	}
	return f.readRepair(cmd)
}

// readRepair finds what goes with --repair only, and what it needs.
func (f *reconcileFlags) readRepair(cmd *cobra.Command) error {
	if !f.Repair {
		for _, flag := range []string{"dry-run", "reason", "max-repair"} {
			if cmd.Flags().Changed(flag) {
				return fault.New(fault.Usage, "--%s goes with --repair only", flag).WithField(flag).WithHint("add --repair, or leave --%s out", flag)
			}
		}
		return nil
	}
	if f.Reason == "" && !f.DryRun {
		return fault.New(fault.Usage, "--repair needs a reason, which is written down with each repair").WithField("reason").WithHint("add --reason TEXT, or look first with --dry-run")
	}
	f.Deep, f.MaxRepair = true, int(f.maxRepair.or(100))
	return drop.CheckText("reason", f.Reason, false)
}

func (a *app) reconcile(ctx context.Context, o reconcile.Options, busyIsFine bool) error {
	l, s, err := a.openStores(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	defer func() { _ = s.Close() }()
	o.MaxLag, o.Actor, o.Installation = a.cfg.MaxLag, a.cfg.Actor, l.Installation().ID
	a.acts = o.Repair && !o.DryRun
	if o.Repair {
		a.note("target: %s on %s", lotsToRepair(o), s.Target())
	}
	report, err := reconcile.Run(ctx, s, wire.ReconcileLedger(l), o)
	if busyIsFine && fault.Is(err, fault.Busy) {
		a.note("%s", err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	if report.WorkersAlive == 0 {
		a.note("no worker is alive: nothing is recorded and no hold is taken back; run dropctl worker")
	}
	silent := a.cfg.Quiet && report.Err() == nil && report.Repaired == 0 && !render.Format(a.cfg.Output).Structured()
	if !silent {
		report.Took = report.Took.Round(time.Millisecond)
		if err := a.printReport(report); err != nil {
			return err
		}
	}
	return report.Err()
}

// lotsToRepair says whose derived data may be changed.
func lotsToRepair(o reconcile.Options) string {
	switch {
	case o.Group != "":
		return "the lots of the group " + o.Group
	case len(o.Lots) == 0:
		return "all lots"
	}
	return countLots(o.Lots)
}

// printReport spares people what is in order: they get one line, and the rows of the other lots.
func (a *app) printReport(r reconcile.Report) error {
	if render.Format(a.cfg.Output) != render.Table || len(a.fields) > 0 || a.jq != "" {
		return a.print(r)
	}
	if err := a.out.Text(reportLine(r)+"\n", r); err != nil {
		return err
	}
	rows := slices.DeleteFunc(slices.Clone(r.Rows), func(row reconcile.Row) bool {
		return row.Verdict == fault.VerdictOK && len(row.Repairs) == 0
	})
	for _, row := range rows {
		for _, done := range row.Repairs {
			if err := a.out.Text(fmt.Sprintf("%s %s: %s\n", row.Lot, done.Result, done.Before), done); err != nil {
				return err
			}
		}
	}
	rows = slices.DeleteFunc(rows, func(row reconcile.Row) bool { return row.Verdict == fault.VerdictOK })
	if len(rows) == 0 {
		return nil
	}
	return a.print(rows)
}

// reportLine says how many lots ended how; what did not occur is left out.
func reportLine(r reconcile.Report) string {
	text := fmt.Sprintf("%d lot%s ok", r.OK, plural(r.OK))
	for _, part := range []struct {
		n       int
		verdict fault.Code
	}{
		{r.Lagging, fault.VerdictLagging}, {r.Drift, fault.VerdictDrift}, {r.Frozen, fault.VerdictFrozen},
		{r.Stopped, fault.VerdictStopped}, {r.Missing, fault.VerdictMissing},
	} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.verdict)
		}
	}
	if r.Deep {
		text += fmt.Sprintf("; %d record%s proven", r.Records, plural(int(r.Records)))
	}
	for _, part := range []struct {
		n    int
		what string
	}{{r.Repaired, "repaired"}, {r.Planned, "to be repaired"}, {r.Left, "left"}} {
		if part.n > 0 {
			text += fmt.Sprintf("; %d difference%s %s", part.n, plural(part.n), part.what)
		}
	}
	return text + fmt.Sprintf("; took %s", fault.Duration(r.Took))
}
