package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/render"
)

func newLedgerVerify(a *app) *cobra.Command {
	var group string
	var all bool
	cmd := &cobra.Command{
		Use:   "verify [LOT…]",
		Short: "Recompute the journal's hashes and all totals",
		Long: `Read the whole journal of lots and recompute everything that follows from it: each row's hash,
which is made of the row before and the event, the totals of the lot, the epochs it was issued,
every reservation, and the rows of the order ledger. It reads one moment of each lot, needs little
memory however long the journal is, and changes nothing. Selling goes on meanwhile.

If a row was changed, removed or put in, the first one that does not fit is named, with exit
status 6. With -q nothing is printed if all is well. Archived lots are verified by their names
only.`,
		Example: `  dropctl ledger verify truffle-99
  dropctl ledger verify --all -q`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeFrom(a.recordedLots),
		RunE: func(cmd *cobra.Command, args []string) error {
			lots, err := readLots(args, group, all)
			if err != nil {
				return err
			}
			return a.verify(cmd.Context(), lots, group)
		},
	}
	a.groupFlag(cmd, &group)
	cmd.Flags().BoolVar(&all, "all", false, "all lots that the ledger knows")
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}

// verifyView is what was found of one lot.
type verifyView struct {
	Lot         drop.LotID `json:"lot" table:"LOT,name"`
	Result      string     `json:"result" table:"RESULT"`            // ok, bad or failed
	Events      int64      `json:"events" table:"EVENTS"`            // rows of the journal that were read
	Units       int64      `json:"units" table:"UNITS"`              // sold and not refunded, as the order ledger has it
	Row         string     `json:"row" table:"ROW"`                  // the first that does not fit: lot/epoch/seq; "" if it is no row of the journal
	Reservation int64      `json:"reservation" table:"N,wide,ifset"` // its number, if it is about one; else 0
	Code        fault.Code `json:"code" table:"CODE,wide"`
	Message     string     `json:"message" table:"DETAIL"`
}

func (a *app) verify(ctx context.Context, lots []drop.LotID, group string) error {
	l, lots, err := a.lotsToVerify(ctx, lots, group)
	if err != nil {
		return err
	}
	defer l.Close()
	tell, end := a.restoreProgress()
	views := []verifyView{}
	var errs []error
	bad := 0
	for _, lot := range lots {
		v, err := verifyOne(ctx, l, lot, tell)
		if ctx.Err() != nil {
			break
		}
		if v.Result == "bad" {
			bad++
		}
		views, errs = append(views, v), append(errs, err)
	}
	end()
	failed := manyFaults(errs, "verified")
	if !a.cfg.Quiet || bad > 0 || failed != nil || render.Format(a.cfg.Output).Structured() {
		if err := a.print(views); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return fault.As(ctx.Err())
	case bad > 0:
		return fault.New(fault.Finding, "the ledger of %d of %d lots does not add up", bad, len(lots)).
			WithHint("keep the evidence: dropctl ledger verify -o json; look at the row: dropctl ledger show --lot LOT; compare with a backup of the database")
	}
	return failed
}

func (a *app) lotsToVerify(ctx context.Context, lots []drop.LotID, group string) (*ledger.Ledger, []drop.LotID, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, err := a.openLedger(ctx)
	if err != nil || len(lots) > 0 {
		return l, lots, err
	}
	known, err := l.Lots(ctx, nil)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	for _, lot := range known {
		if group == "" || lot.Lot.Group() == group {
			lots = append(lots, lot.Lot)
		}
	}
	return l, lots, nil
}

func verifyOne(ctx context.Context, l *ledger.Ledger, lot drop.LotID, tell func(lot drop.LotID, done, of int64)) (verifyView, error) {
	var progress func(done, of int64)
	if tell != nil {
		progress = func(done, of int64) { tell(lot, done, of) }
	}
	found, err := l.Verify(ctx, lot, progress)
	v := verifyView{Lot: lot, Result: "ok", Events: found.Events, Units: found.Units, Reservation: found.N, Message: found.Bad}
	switch {
	case err != nil:
		v.Result, v.Code, v.Message = "failed", fault.CodeOf(err), fault.As(err).Error()
	case found.Bad != "":
		v.Result, v.Code = "bad", fault.Finding
		if found.At != (drop.Watermark{}) {
			v.Row = fmt.Sprintf("%s/%d/%d", lot, found.At.Epoch, found.At.Seq)
		}
	}
	return v, err
}
