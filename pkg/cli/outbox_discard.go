package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

func newOutboxDiscard(a *app) *cobra.Command {
	var lot, reason string
	var gap, dryRun bool
	cmd := &cobra.Command{
		Use:   "discard [ID…]",
		Short: "Give up events that cannot be recorded or were lost",
		Long: `Give up events for good, so that the ledger goes on without them. It writes a void in their
place, with who did it and why, and folds what waited behind. Nothing else is changed: reconcile
shows what differs then, and restore makes Redis what the ledger has. The payment of a
confirmation that is discarded becomes due for refund.

An ID is the number of a dead letter, or the place of an event that waits or was lost:
lot/epoch/seq. With --lot and --gap it is every place of the lot that nobody has: neither the
ledger nor the outbox, up to where Redis stands, and lines of the outbox that are no events.
This is the way out where Redis is ahead of the ledger because its events were lost
(redis_ahead):

  dropctl reconcile LOT; dropctl outbox discard --lot LOT --gap --reason WHY; dropctl restore LOT

It asks first, or needs --yes.`,
		Example: `  dropctl outbox discard 17 --reason "counted by hand" --yes
  dropctl outbox discard truffle-99/3/42 --reason "ticket 7" --dry-run
  dropctl outbox discard --lot truffle-99 --gap --reason "outbox was lost" --yes`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeFrom(a.deadLetters),
		RunE: func(cmd *cobra.Command, args []string) error {
			orders, err := readDiscards(args, lot, gap)
			if err == nil {
				err = drop.CheckText("reason", reason, true)
			}
			if err != nil {
				return err
			}
			return a.discard(cmd.Context(), orders, reason, dryRun)
		},
	}
	cmd.Flags().StringVar(&lot, "lot", "", "with --gap: the lot")
	cmd.Flags().BoolVar(&gap, "gap", false, "every event of the lot that is lost")
	reasonFlag(cmd, &reason)
	_ = cmd.MarkFlagRequired("reason")
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database)
	_ = cmd.RegisterFlagCompletionFunc("lot", a.completeFrom(a.recordedLots))
	return cmd
}

// discards are what the command line names.
type discards struct {
	letters []int64
	places  map[drop.LotID][]drop.Watermark
	gap     drop.LotID // "": none
}

func readDiscards(args []string, lot string, gap bool) (d discards, err error) {
	switch {
	case gap != (lot != ""):
		return d, fault.New(fault.Usage, "--lot and --gap go together").WithField("gap").WithHint("dropctl outbox discard --lot LOT --gap --reason WHY")
	case gap && len(args) > 0:
		return d, fault.New(fault.Usage, "an ID and --gap do not go together").WithField("gap")
	case gap:
		d.gap, err = drop.ParseLotID(lot)
		return d, err
	case len(args) == 0:
		return d, fault.New(fault.Usage, "ID is missing").WithHint("name a dead letter or lot/epoch/seq, or use --lot LOT --gap; see what there is: dropctl outbox list")
	}
	d.places = map[drop.LotID][]drop.Watermark{}
	for _, arg := range args {
		if !strings.Contains(arg, "/") {
			id, err := readLetter(arg)
			if err != nil {
				return d, err
			}
			if !slices.Contains(d.letters, id) {
				d.letters = append(d.letters, id)
			}
			continue
		}
		p, err := readPlace(arg)
		if err != nil {
			return d, err
		}
		d.places[p.lot] = append(d.places[p.lot], p.at)
	}
	return d, nil
}

func (a *app) discard(ctx context.Context, d discards, reason string, dryRun bool) error {
	l, s, err := a.openForDiscard(ctx, d)
	if err != nil {
		return err
	}
	defer l.Close()
	if s != nil {
		defer func() { _ = s.Close() }()
	}
	orders, err := a.planDiscard(ctx, l, s, d)
	if err != nil {
		return err
	}
	count, views := 0, []settledView{}
	for i := range orders {
		o := &orders[i]
		o.Actor, o.Reason, o.DryRun = a.cfg.Actor, reason, true
		done, err := a.discardOne(ctx, l, *o)
		if err != nil {
			return err
		}
		for _, item := range done.Items {
			views = append(views, viewSettled(o.Lot, item, true))
			count += discarded(item)
		}
		if dryRun {
			a.sayLot(o.Lot, done, true)
		}
	}
	if dryRun {
		return a.print(views)
	}
	if count > 0 {
		a.note("target: %s on %s", lotsOf(orders), l.Target())
		if err := a.confirm(ctx, fmt.Sprintf("give up %d event%s of %s for good?", count, plural(count), lotsOf(orders))); err != nil {
			return err
		}
	}
	return a.carryOutDiscards(ctx, l, orders)
}

// discarded is how many events an item gives up.
func discarded(s ledger.Settled) int {
	if s.Result != ledger.SettledDiscarded {
		return 0
	}
	return int(s.To - s.From + 1)
}

func lotsOf(orders []ledger.Settlement) string {
	var lots []drop.LotID
	for _, o := range orders {
		if o.Lot == "" {
			return "no known lot"
		}
		lots = append(lots, o.Lot)
	}
	return countLots(lots)
}

// openForDiscard opens the ledger, and Redis where it has to be asked whether an event is lost.
func (a *app) openForDiscard(ctx context.Context, d discards) (*ledger.Ledger, *stock.Stock, error) {
	if d.gap != "" || len(d.places) > 0 {
		return a.openOneShop(ctx)
	}
	l, err := a.openLedger(ctx)
	return l, nil, err
}

// planDiscard sorts what is given up by lot, and looks for what Redis still has of it.
func (a *app) planDiscard(ctx context.Context, l *ledger.Ledger, s *stock.Stock, d discards) ([]ledger.Settlement, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	letters := map[drop.LotID][]int64{}
	if len(d.letters) > 0 {
		var err error
		if letters, err = lettersByLot(ctx, l, d.letters, ""); err != nil {
			return nil, err
		}
	}
	lots := map[drop.LotID]bool{}
	for lot := range letters {
		lots[lot] = true
	}
	for lot := range d.places {
		lots[lot] = true
	}
	if d.gap != "" {
		lots[d.gap] = true
	}
	var orders []ledger.Settlement
	for _, lot := range slices.Sorted(maps.Keys(lots)) {
		o := ledger.Settlement{Lot: lot, Letters: letters[lot], Places: d.places[lot], Gap: lot == d.gap && lot != ""}
		if o.Gap || len(o.Places) > 0 {
			var err error
			if o.Until, o.Kept, err = stillInRedis(ctx, l, s, lot); err != nil {
				return nil, err
			}
		}
		orders = append(orders, o)
	}
	return orders, nil
}

// stillInRedis returns where Redis stands with a lot, and which of its events the outbox has. The lot is read first: an
// event up to there that the outbox has not, and the ledger neither, is lost.
func stillInRedis(ctx context.Context, l *ledger.Ledger, s *stock.Stock, lot drop.LotID) (until drop.Watermark, kept map[drop.Watermark]bool, err error) {
	known, err := l.Lots(ctx, []drop.LotID{lot})
	if err != nil || len(known) == 0 {
		return until, nil, err // the ledger says that it does not know it
	}
	states, err := s.LotStates(ctx, []drop.LotID{lot})
	if err != nil {
		return until, nil, err
	}
	if seen, there := states[lot]; there && seen.Damaged == "" {
		until = seen.Watermark
	}
	events, err := s.EventsSince(ctx, lot.Shard(s.Shards()), map[drop.LotID]drop.Watermark{lot: known[0].Watermark})
	if err != nil {
		return until, nil, err
	}
	kept = make(map[drop.Watermark]bool, len(events[lot]))
	for _, ev := range events[lot] {
		kept[ev.Watermark()] = true
	}
	return until, kept, nil
}

func (a *app) discardOne(ctx context.Context, l *ledger.Ledger, o ledger.Settlement) (ledger.SettledLot, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return l.Discard(ctx, o)
}

func (a *app) carryOutDiscards(ctx context.Context, l *ledger.Ledger, orders []ledger.Settlement) error {
	views := []settledView{}
	errs := make([]error, len(orders))
	for i, o := range orders {
		o.DryRun = false
		done, err := a.discardOne(ctx, l, o)
		if errs[i] = err; err != nil {
			views = append(views, failedSettlement(o, err))
			continue
		}
		for _, item := range done.Items {
			views = append(views, viewSettled(o.Lot, item, false))
		}
		if len(done.Items) == 0 {
			a.note("nothing of the lot %s is lost: nothing was given up", o.Lot)
			continue
		}
		a.sayLot(o.Lot, done, false)
		if done.More {
			a.note("the gap of %s is longer: run it again", o.Lot)
		}
		if o.Lot != "" {
			a.note("next: dropctl reconcile %s; then dropctl restore %s", o.Lot, o.Lot)
		}
	}
	if err := a.print(views); err != nil {
		return err
	}
	return faultsOf(errs, "lots", "settled")
}
