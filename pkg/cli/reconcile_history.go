package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/reconcile"
)

// checkHistory finds what does not go together with --history, or only with it.
func (f *reconcileFlags) checkHistory(cmd *cobra.Command, args []string) error {
	if !f.history {
		if cmd.Flags().Changed("limit") {
			return fault.New(fault.Usage, "--limit goes with --history only").WithField("limit").WithHint("dropctl reconcile --history --limit 5")
		}
		return nil
	}
	for _, flag := range []string{"group", "deep", "wait", "if-busy", "max-lag", "repair", "dry-run", "reason", "max-repair"} {
		if cmd.Flags().Changed(flag) {
			return fault.New(fault.Usage, "--%s and --history do not go together", flag).WithField(flag).WithHint("--history compares nothing: leave --%s out", flag)
		}
	}
	if len(args) > 0 {
		return fault.New(fault.Usage, "lots and --history do not go together").WithField("history").
			WithHint(`use -o json --jq '.[] | select(.lots | index("%s"))'`, args[0])
	}
	return nil
}

func (a *app) reconcileHistory(ctx context.Context, limit int) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	past, err := reconcile.History(ctx, wire.ReconcileHistory(l), limit)
	if err != nil {
		return err
	}
	if err := a.print(past); err != nil {
		return err
	}
	if len(past) == 0 && a.errTerm.TTY {
		a.note("nothing was reconciled yet")
	}
	return nil
}
