package cli

import (
	"context"
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newLotAdjust(a *app) *cobra.Command {
	var q drop.AdjustRequest
	var to, expect *number
	var by signed
	cmd := &cobra.Command{
		Use:   "adjust LOT --by ±N --expect M | --to N --expect M",
		Short: "Change how many units a lot has",
		Long: `Change the capacity of a lot, by a number of units or to one. --expect is the capacity that you
believe it has: so the command acts once, however often it is repeated, and never on top of
somebody else's change. The capacity cannot fall below what is held and sold. Works while
PostgreSQL is down.`,
		Example: `  dropctl lot adjust truffle-99 --by +5 --expect 40 --reason "found another box"
  dropctl lot adjust truffle-99 --by -2 --expect 45
  dropctl lot adjust truffle-99 --to 43 --expect 45 --dry-run`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if q.Lot, err = drop.ParseLotID(args[0]); err != nil {
				return err
			}
			q.By, q.To = by.value, to.value
			if (q.By == nil) == (q.To == nil) {
				return fault.New(fault.Usage, "an adjustment needs either --by or --to").WithField("by").WithHint("use --by ±N --expect M or --to N --expect M")
			}
			if !expect.isSet() {
				return fault.New(fault.Usage, "the expected capacity is missing").WithField("expect").
					WithHint("look it up with dropctl lot show %s --jq .capacity and add --expect", q.Lot)
			}
			q.Expect, q.Actor = expect.or(0), a.cfg.Actor
			if err := drop.CheckText("reason", q.Reason, false); err != nil {
				return err
			}
			return a.adjustLot(cmd.Context(), q)
		},
	}
	cmd.ValidArgsFunction = firstOnly(a.completeFrom(a.lotIDs))
	cmd.Flags().Var(&by, "by", "units to add, or with a minus to take away")
	to = numberFlag(cmd, "to", 0, "units that the lot is to have")
	expect = numberFlag(cmd, "expect", 0, "capacity that the lot has now")
	reasonFlag(cmd, &q.Reason)
	dryRunFlag(cmd, &q.DryRun)
	a.settings(cmd, cmd.Flags(), config.Redis, config.API, config.Durable)
	completeNothing(cmd, "by", "to", "expect")
	return cmd
}

// adjustView is the lot as it is after an adjustment, or with a dry run would be.
type adjustView struct {
	lotView
	Result string `json:"result" table:"RESULT"` // changed, unchanged or planned
}

func (a *app) adjustLot(ctx context.Context, q drop.AdjustRequest) error {
	s, err := a.openShop(ctx, false)
	if err != nil {
		return err
	}
	defer s.Close()
	a.note("target: lot %s on %s", q.Lot, s.Target())
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	same := false
	lot, err := askTwice(ctx, a.again(), func() (v lotView, err error) {
		v, same, err = s.Adjust(ctx, q)
		return v, err
	})
	if err != nil {
		return err
	}
	v := adjustView{lot, "changed"}
	switch {
	case same:
		v.Result = "unchanged"
	case q.DryRun:
		v.Result = "planned"
	}
	return a.print(v)
}

// signed is the value of a flag that takes a whole number with or without a sign.
type signed struct{ value *int64 }

// Set takes a number of units other than 0.
func (n *signed) Set(text string) error {
	v, err := strconv.ParseInt(text, 10, 64)
	bad := fault.New(fault.Invalid, "by is %.40q, which is no whole number", text).WithField("by").WithHint("use a number such as +5 or -2")
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (v == 0 || v < -drop.MaxUnits || v > drop.MaxUnits):
		bad.Message = "by is out of range"
		return bad
	case err != nil:
		return bad
	}
	n.value = &v
	return nil
}

func (n *signed) String() string {
	if n == nil || n.value == nil {
		return ""
	}
	return strconv.FormatInt(*n.value, 10)
}

// Type is what help calls the value.
func (n *signed) Type() string { return "int" }
