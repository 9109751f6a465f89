package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

func newLotArchive(a *app) *cobra.Command {
	var reason string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "archive LOT…",
		Short: "Put lots away whose sale is over for good",
		Long: `Take lots out of Redis whose sale is over for good. Their journal and sales stay in the ledger; they
are left out of what looks at all lots, and cannot be sold, seeded or restored again. Where an older
state of Redis has brought an archived lot back, it is taken out once more.

A lot has to be closed, without holds, and with everything recorded and finalised. It asks first, or
needs --yes. Broken off, it is finished by running it again.`,
		Example: `  dropctl lot archive truffle-99 --reason "season over" --yes
  dropctl lot archive truffle-98 truffle-97 --dry-run`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeFrom(a.lotIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			lots, err := readLots(args, "", false)
			if err == nil {
				err = drop.CheckText("reason", reason, false)
			}
			if err != nil {
				return err
			}
			return a.archive(cmd.Context(), lots, reason, dryRun)
		},
	}
	reasonFlag(cmd, &reason)
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database)
	return cmd
}

// archiveView is what became of one lot.
type archiveView struct {
	Lot     drop.LotID `json:"lot" table:"LOT,name"`
	Result  string     `json:"result" table:"RESULT"` // archived, unchanged, planned or failed
	Sold    int64      `json:"sold" table:"SOLD"`
	Code    fault.Code `json:"code" table:"CODE"` // of a failure
	Message string     `json:"message" table:"DETAIL"`
	Hint    string     `json:"hint"`
}

func (a *app) archive(ctx context.Context, lots []drop.LotID, reason string, dryRun bool) error {
	l, s, err := a.openOneShop(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	defer func() { _ = s.Close() }()
	if !dryRun {
		a.note("target: %s on %s, %s", countLots(lots), s.Target(), l.Target())
		if err := a.confirm(ctx, fmt.Sprintf("archive %s for good?", countLots(lots))); err != nil {
			return err
		}
	}
	views := make([]archiveView, len(lots))
	errs := make([]error, len(lots))
	for i, lot := range lots {
		views[i] = archiveView{Lot: lot}
		if errs[i] = a.archiveOne(ctx, s, l, &views[i], reason, dryRun); errs[i] != nil {
			e := fault.As(errs[i])
			views[i].Result, views[i].Code, views[i].Message, views[i].Hint = "failed", e.Code, e.Error(), fault.HintOf(e)
		}
	}
	if err := a.print(views); err != nil {
		return err
	}
	return manyFaults(errs, "archived")
}

func (a *app) archiveOne(ctx context.Context, s *stock.Stock, l *ledger.Ledger, v *archiveView, reason string, dryRun bool) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	lot, err := l.PlanArchive(ctx, v.Lot)
	if err != nil {
		return err
	}
	v.Sold = lot.Sold
	seen, err := removable(ctx, s, lot)
	if err != nil {
		return err
	}
	if lot.Archive == drop.Archived && seen == nil {
		v.Result = "unchanged"
		return nil
	}
	if v.Result = "planned"; dryRun {
		return nil
	}
	if reason == "" {
		reason = "archived"
	}
	v.Result = "archived"
	repair := drop.Repair{Lot: v.Lot, What: "archive", Actor: a.cfg.Actor, Reason: reason, Evidence: map[string]any{"ledger": lot.Watermark, "sold": lot.Sold}}
	return l.Repair(ctx, repair, func(ctx context.Context) (bool, string, error) {
		return true, "", a.putAway(ctx, s, l, v.Lot)
	})
}

// putAway takes a lot out of Redis between the two phases of its archive in the ledger.
func (a *app) putAway(ctx context.Context, s *stock.Stock, l *ledger.Ledger, id drop.LotID) error {
	unlock, err := l.LockLots(ctx, []drop.LotID{id})
	if err != nil {
		return err
	}
	defer unlock()
	lot, err := l.BeginArchive(ctx, id, a.cfg.Actor)
	if err != nil {
		return err
	}
	seen, err := removable(ctx, s, lot)
	if err == nil && seen != nil {
		err = s.Remove(ctx, *seen)
	}
	if err != nil {
		return err
	}
	return l.FinishArchive(ctx, id, lot.Watermark)
}

// removable returns the lot as Redis has it, nil if it has not, or why it must stay there. One that is archived was brought
// back by an older state of Redis, and nothing of it can count any more.
func removable(ctx context.Context, s *stock.Stock, lot ledger.Lot) (*drop.LotState, error) {
	states, err := s.LotStates(ctx, []drop.LotID{lot.Lot})
	seen, there := states[lot.Lot]
	switch {
	case err != nil || !there:
		return nil, err
	case lot.Archive == drop.Archived:
	case seen.Damaged != "":
		return nil, fault.New(fault.Conflict, "the lot %s is damaged in Redis: %s", lot.Lot, seen.Damaged).WithHint("rebuild it first: dropctl restore %s", lot.Lot)
	case seen.Seq > lot.Watermark.Seq:
		return nil, fault.New(fault.Conflict, "Redis is ahead of the ledger with the lot %s: it stands at %d/%d, the ledger at %d/%d", lot.Lot,
			seen.Epoch, seen.Seq, lot.Watermark.Epoch, lot.Watermark.Seq).WithHint("dropctl worker --until-idle")
	}
	return &seen, nil
}
