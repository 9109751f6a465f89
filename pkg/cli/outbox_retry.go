package cli

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newOutboxRetry(a *app) *cobra.Command {
	var lot, reason string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "retry [ID…]",
		Short: "Apply dead letters again",
		Long: `Hand dead letters to the ledger again, as if they came just now: after a lot was created that
was not known, or a newer version reads what an older one could not. A lot that they had stopped
goes on if they fit now, and is stopped again if they do not. It may be repeated; nothing is
recorded twice.

  applied    it is folded, or the ledger had it already
  waiting    one before it is missing, or its lot is stopped for something else
  dead       it does not fit now either, or is no event at all
  unchanged  it was settled before`,
		Example: `  dropctl outbox retry 17 18
  dropctl outbox retry --lot truffle-99 --dry-run`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeFrom(a.deadLetters),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := eachOnce(args, readLetter)
			if err != nil {
				return err
			}
			var id drop.LotID
			switch {
			case (lot == "") == (len(ids) == 0):
				return fault.New(fault.Usage, "either name dead letters or use --lot").WithField("lot").WithHint("see what there is: dropctl outbox list --state dead")
			case lot != "":
				if id, err = drop.ParseLotID(lot); err != nil {
					return err
				}
			}
			if err := drop.CheckText("reason", reason, false); err != nil {
				return err
			}
			return a.retryLetters(cmd.Context(), ids, id, ledger.Settlement{Reason: reason, DryRun: dryRun})
		},
	}
	cmd.Flags().StringVar(&lot, "lot", "", "all dead letters of this lot")
	reasonFlag(cmd, &reason)
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Database)
	_ = cmd.RegisterFlagCompletionFunc("lot", a.completeFrom(a.recordedLots))
	return cmd
}

// lettersByLot returns the letters sorted by lot: those that are named, or all of a lot.
func lettersByLot(ctx context.Context, l *ledger.Ledger, ids []int64, lot drop.LotID) (map[drop.LotID][]int64, error) {
	var letters []ledger.DeadLetter
	var err error
	if len(ids) > 0 {
		letters, err = l.DeadLettersByID(ctx, ids)
	} else {
		letters, err = l.DeadLetters(ctx, lot, 0, 10_000)
		slices.Reverse(letters)
	}
	if err != nil {
		return nil, err
	}
	byLot := map[drop.LotID][]int64{}
	for _, d := range letters {
		byLot[d.Lot] = append(byLot[d.Lot], d.ID)
	}
	for _, id := range ids {
		if !slices.ContainsFunc(letters, func(d ledger.DeadLetter) bool { return d.ID == id }) {
			return nil, fault.New(fault.NotFound, "there is no dead letter %d", id).WithHint("see what there is: dropctl outbox list --state dead")
		}
	}
	return byLot, nil
}

func (a *app) retryLetters(ctx context.Context, ids []int64, lot drop.LotID, s ledger.Settlement) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	byLot, err := lettersByLot(ctx, l, ids, lot)
	if err != nil {
		return err
	}
	if len(byLot) == 0 {
		a.note("there are no dead letters of the lot %s", lot)
		return a.print([]settledView{})
	}
	if s.Actor = a.cfg.Actor; s.Reason == "" {
		s.Reason = "tried again"
	}
	if !s.DryRun {
		a.note("target: dead letters of %s on %s", countLots(slices.Sorted(maps.Keys(byLot))), l.Target())
	}
	views := []settledView{}
	var errs []error
	for _, lot := range slices.Sorted(maps.Keys(byLot)) {
		s.Lot, s.Letters = lot, byLot[lot]
		done, err := l.Retry(ctx, s)
		if err != nil {
			views, errs = append(views, failedSettlement(s, err)), append(errs, err)
			continue
		}
		for _, item := range done.Items {
			views, errs = append(views, viewSettled(lot, item, s.DryRun)), append(errs, staysDead(item))
		}
		a.sayLot(lot, done, s.DryRun)
	}
	if err := a.print(views); err != nil {
		return err
	}
	return faultsOf(errs, "dead letters", "recorded")
}

func failedSettlement(s ledger.Settlement, err error) settledView {
	e := fault.As(err)
	return settledView{ID: string(s.Lot), Lot: s.Lot, Result: "failed", Planned: s.DryRun, Code: e.Code, Message: e.Error(), Hint: fault.HintOf(e)}
}

// staysDead is the error of a letter that could not be recorded; nil for any other.
func staysDead(s ledger.Settled) error {
	if s.Result != ledger.SettledDead {
		return nil
	}
	return fault.New(fault.Conflict, "the dead letter %d cannot be recorded: %s", s.ID, s.Reason).
		WithHint("give it up: dropctl outbox discard %d --reason TEXT", s.ID)
}
