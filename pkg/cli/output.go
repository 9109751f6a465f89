package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/bench/bars"
	"github.com/dropctl/dropctl/pkg/bench/compare"
	"github.com/dropctl/dropctl/pkg/bench/report"
	"github.com/dropctl/dropctl/pkg/doctor"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/simulate"
	"github.com/dropctl/dropctl/pkg/simulate/torture"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/worker"
)

// printed says what each command prints, so that --fields and -o name are checked before it does
// anything, and --fields can be completed. Every command is here, but for help, which prints many things.
var printed = map[string]any{
	"seed":              []seedView{},
	"lot list":          []lotView{},
	"lot show":          lotView{},
	"lot open":          []statusChangeView{},
	"lot pause":         []statusChangeView{},
	"lot close":         []statusChangeView{},
	"lot adjust":        adjustView{},
	"lot archive":       []archiveView{},
	"reserve":           reservationView{},
	"confirm":           reservationView{},
	"release":           reservationView{},
	"extend":            reservationView{},
	"refund":            reservationView{},
	"reservation list":  []reservationView{},
	"reservation show":  reservationShowView{},
	"serve":             fileView{}, // with --openapi
	"worker":            worker.Summary{},
	"reconcile":         reconcile.Report{},
	"restore":           []restoreView{},
	"status":            statusView{},
	"doctor":            doctor.Report{},
	"explain":           []explainView{},
	"outbox list":       []unrecordedView{},
	"outbox retry":      []settledView{},
	"outbox discard":    []settledView{},
	"ledger show":       []journalView{},
	"ledger verify":     []verifyView{},
	"metrics list":      []telemetry.Metric{},
	"metrics rules":     fileView{},
	"metrics dashboard": fileView{},
	"demo":              simulate.Summary{},
	"simulate":          simulate.Summary{},
	"bench engine":      bench.Result{},
	"bench http":        bench.Result{},
	"bench bars":        bars.Report{},
	"bench compare":     compare.Report{},
	"bench report":      report.Report{},
	"lab":               labView{},
	"migrate up":        []migrationView{},
	"migrate down":      []migrationView{},
	"migrate status":    []migrationView{},
	"key create":        keyCreatedView{},
	"key list":          []keyView{},
	"key revoke":        []keyRevokedView{},
	"hook add":          hookAddedView{},
	"hook list":         []hookView{},
	"hook test":         hookTestView{},
	"hook retry":        []hookChangedView{},
	"hook remove":       []hookChangedView{},
	"config view":       []settingView{},
	"config path":       []configPathView{},
	"completion":        completionView{},
	"version":           versionView{},
}

// printedBy returns the view that a command prints.
func printedBy(cmd *cobra.Command) (view any, ok bool) {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	if history, _ := cmd.Flags().GetBool("history"); history {
		return []reconcile.Past{}, true // of reconcile: another thing altogether
	}
	if due, _ := cmd.Flags().GetBool("refund-due"); due {
		return []dueRowView{}, true // of ledger show: no journal
	}
	if list, _ := cmd.Flags().GetBool("list"); list {
		return []scenarioView{}, true // of simulate: those that ship
	}
	if text, _ := cmd.Flags().GetBool("print"); text {
		return fileView{}, true // of simulate: one of them
	}
	if tortured, _ := cmd.Flags().GetBool("torture"); tortured {
		return torture.Report{}, true // of simulate: no scenario
	}
	view, ok = printed[name]
	return view, ok
}

// completeFields offers the fields of what a command prints.
func completeFields(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	view, ok := printedBy(cmd)
	if !ok {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completeList(render.Fields(view)...)(cmd, args, prefix)
}

// checkOutput finds what is wrong with --fields and -o name before a command acts.
func (a *app) checkOutput(cmd *cobra.Command) error {
	if view, ok := printedBy(cmd); ok {
		return a.out.Check(view)
	}
	return nil
}

// print prints a view to stdout in the format that was asked for. If that fails although the command
// has acted, as where --jq does not fit, what was done must not be lost: the error carries it.
func (a *app) print(view any) error {
	err := a.out.Print(view)
	if err == nil || !a.acts || !fault.Is(err, fault.Failed) {
		return err
	}
	answer, lineErr := render.Line(view)
	if lineErr != nil {
		return err
	}
	return fault.Wrap(fault.Failed, err, "it was done, only the output failed; the answer is %s", answer).
		WithHint("do not repeat the command for its output; look the answer up, as with dropctl lot show")
}
