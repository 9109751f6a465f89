package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// What people do in a run. An operation is one person with all of his steps.
const (
	Accept  = "accept"   // reserve; there is enough for everybody
	SoldOut = "sold-out" // reserve where nothing is left
	Churn   = "churn"    // reserve; every other one gives back at once, the rest let their holds expire, and others take the units
	Full    = "full"     // reserve, confirm, and wait until the ledger has recorded the sale
)

// Mixes lists them.
func Mixes() []string { return []string{Accept, SoldOut, Churn, Full} }

// Shop is where they do it.
type Shop interface {
	Reserve(ctx context.Context, lot drop.LotID, user string, qty int64) (drop.ReservationID, error)
	// Confirm returns once the ledger has recorded the sale.
	Confirm(ctx context.Context, id drop.ReservationID, payment string) error
	Release(ctx context.Context, id drop.ReservationID) error
}

// Plan says what people do, and with what.
type Plan struct {
	Mix   string
	Lots  int
	Stock int64 // units of each lot; AsNeeded: what the mix needs
	Qty   int64 // units that each person takes
}

// AsNeeded is the stock of a plan that leaves it to the mix: without end, nothing to be sold out, and enough for some seconds
// where units come back.
const AsNeeded = -1

const (
	maxLots   = 100_000
	churnHold = time.Second
	// churnStock is shared by all lots: at 50,000 operations a second half of that waits for its deadline.
	churnStock = 50_000
)

// Check reports what is wrong with a plan: Usage, with the field.
func (p Plan) Check() error {
	switch {
	case !slices.Contains(Mixes(), p.Mix):
		return fault.New(fault.Usage, "there is no mix %.40q", p.Mix).WithField("mix").WithHint("use one of: %s", strings.Join(Mixes(), ", "))
	case p.Lots < 1 || p.Lots > maxLots:
		return fault.New(fault.Usage, "%d lots are out of range", p.Lots).WithField("lots").WithHint("use 1 to %d", maxLots)
	case p.Stock < AsNeeded || p.Stock > drop.MaxUnits:
		return fault.New(fault.Usage, "a stock of %d is out of range", p.Stock).WithField("stock").WithHint("use 0 to %d", int64(drop.MaxUnits))
	case p.Qty < 1 || p.Qty > drop.MaxUnits:
		return fault.New(fault.Usage, "a quantity of %d is out of range", p.Qty).WithField("qty").WithHint("use 1 to %d", int64(drop.MaxUnits))
	}
	return nil
}

// Definitions returns the lots that have to be on sale.
func (p Plan) Definitions() []drop.Definition {
	all := make([]drop.Definition, p.Lots)
	for i := range all {
		// A limit, as real drops have one: to count what each user has is part of the work.
		d := drop.Definition{Lot: p.lot(i), Stock: p.stock(), Limit: p.Qty}
		if p.Mix == Churn {
			d.Hold = churnHold
		}
		all[i] = d.WithDefaults()
	}
	return all
}

func (p Plan) lot(i int) drop.LotID { return drop.LotID(fmt.Sprintf("bench-%05d", i)) }

func (p Plan) stock() int64 {
	switch {
	case p.Stock != AsNeeded:
		return p.Stock
	case p.Mix == SoldOut:
		return 0
	case p.Mix == Churn:
		return min(drop.MaxUnits, max(1, churnStock/int64(p.Lots))*p.Qty)
	}
	return drop.MaxUnits
}

// Describe notes in a result what people did, and with what: results of other plans are no comparison.
func (p Plan) Describe(r *Result) { r.Mix, r.Lots, r.Stock, r.Qty = p.Mix, p.Lots, p.stock(), p.Qty }

// Target lets people do in a shop what is planned. Nobody comes twice, and they are spread evenly over the lots.
func (p Plan) Target(shop Shop) Target {
	lots := make([]drop.LotID, p.Lots)
	for i := range lots {
		lots[i] = p.lot(i)
	}
	reserve := func(ctx context.Context, n int64) (drop.ReservationID, error) {
		return shop.Reserve(ctx, lots[n%int64(len(lots))], "buyer"+strconv.FormatInt(n, 10), p.Qty)
	}
	return TargetFunc(func(ctx context.Context, n int64) error {
		id, err := reserve(ctx, n)
		switch {
		case err != nil:
			return err
		case p.Mix == Full:
			return shop.Confirm(ctx, id, "payment-"+strconv.FormatInt(n, 10))
		case p.Mix == Churn && n/int64(len(lots))%2 == 0: // every other person of a lot, whatever the number of lots
			return shop.Release(ctx, id)
		}
		return nil
	})
}
