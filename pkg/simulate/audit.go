package simulate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Ledger is what was recorded of the rehearsal.
type Ledger interface {
	// LiveReservations calls fn with every held or confirmed reservation of a lot, in pages.
	LiveReservations(ctx context.Context, lot drop.LotID, fn func(page []drop.Reservation) error) error
	// PaidLate returns the attempts of a lot whose payment came when the hold had ended, and is to go back.
	PaidLate(ctx context.Context, lot drop.LotID) (map[string]bool, error)
	// NetSales returns the units of each sale of a lot, less what of them was refunded, by the reservation's number.
	NetSales(ctx context.Context, lot drop.LotID) (map[int64]int64, error)
}

// Audit holds the book against the ledger once it has caught up, and returns every broken promise: every
// acknowledged confirmation is a sale, nobody was sold to who was not told so, nobody twice under one key,
// no lot sold more than it had, and nobody has more of one than its limit. With a payment gateway, whose questions must all be settled, every unit sold is paid for
// once, and no other one; nil: there is none. What Redis has lost because it was emptied on purpose is told by the summary.
func (b *Book) Audit(ctx context.Context, ledger Ledger, bank *Bank) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong := slices.Clone(b.violations)
	found := func(format string, args ...any) { wrong = append(wrong, violation{text: fmt.Sprintf(format, args...)}) }
	sold := map[string]drop.Reservation{} // by attempt
	for lot, def := range b.lots {
		var units int64
		has := map[string]int64{} // units, by user
		err := ledger.LiveReservations(ctx, lot, func(page []drop.Reservation) error {
			for _, r := range page {
				if r.State == drop.Held || r.State == drop.Confirmed {
					has[r.User] += r.Qty
				}
				if r.State != drop.Confirmed {
					continue
				}
				units += r.Qty
				if first, twice := sold[r.ID.Attempt]; twice && first.ID != r.ID {
					found("sold twice under one key: %s and %s", first.ID, r.ID)
				}
				sold[r.ID.Attempt] = r
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if units > def.Stock {
			found("%s: %d units sold of %d", lot, units, def.Stock)
		}
		for user, n := range has {
			if def.Limit > 0 && n > def.Limit {
				found("%s: %s has %d units, the limit is %d", lot, user, n, def.Limit)
			}
		}
	}
	wrong = append(wrong, b.compare(sold, bank)...)
	late, err := b.auditLate(ctx, ledger)
	if err != nil {
		return nil, err
	}
	paid, err := b.auditPayments(ctx, ledger, bank)
	broken, lost := b.sorted(append(wrong, late...))
	b.lost = lost
	return append(broken, paid...), err
}

// auditLate checks that of everybody who paid in vain it is recorded that the money is to go back.
func (b *Book) auditLate(ctx context.Context, ledger Ledger) (wrong []violation, err error) {
	recorded := map[drop.LotID]map[string]bool{}
	for lot := range b.lots {
		if recorded[lot], err = ledger.PaidLate(ctx, lot); err != nil {
			return nil, err
		}
	}
	b.count.PaidLate = 0
	for name, a := range b.attempts {
		if !a.late || a.confirmed != nil || a.unknown {
			continue
		}
		b.count.PaidLate++
		if !recorded[a.request.Lot][name] {
			wrong = append(wrong, violation{fmt.Sprintf("%s paid for %s when the hold had ended, and it is not recorded that the money is to go back", a.request.User, a.id), a.told, time.Now()})
		}
	}
	return wrong, nil
}

// auditPayments holds the book of the payment gateway against the sales.
func (b *Book) auditPayments(ctx context.Context, ledger Ledger, bank *Bank) (wrong []string, err error) {
	if bank == nil {
		return nil, nil
	}
	for lot := range b.lots {
		sales, err := ledger.NetSales(ctx, lot)
		if err != nil {
			return nil, err
		}
		wrong = append(wrong, bank.compare(lot, sales)...)
	}
	return append(wrong, bank.misunderstood()...), nil
}

// compare holds every acknowledged confirmation against the sales, and every sale against what was told. Those whose payment
// was refused are sold to nobody.
func (b *Book) compare(sold map[string]drop.Reservation, bank *Bank) (wrong []violation) {
	for name, a := range b.attempts {
		sale, ok := sold[name]
		if a.confirmed != nil && !ok && bank.refused(a.confirmed.ID) {
			continue
		}
		if text := a.differs(sale, ok); text != "" {
			wrong = append(wrong, violation{text, a.told, time.Now()})
		}
	}
	for name, sale := range sold {
		if b.attempts[name] == nil {
			wrong = append(wrong, violation{text: fmt.Sprintf("recorded %s as sold, but nobody asked for it", sale.ID)})
		}
	}
	return wrong
}

// differs says how the sale that was recorded of an attempt, if one was, differs from what its user was told; "" if it does
// not. A sale of which all was refunded is none any more.
func (a *attempt) differs(sale drop.Reservation, recorded bool) string {
	user := a.request.User
	if a.confirmed == nil {
		if recorded && !a.unknown {
			return fmt.Sprintf("recorded %s as sold, but %s was never told so", sale.ID, user)
		}
		return ""
	}
	left := a.confirmed.Qty - a.refunded
	switch {
	case !recorded && (left == 0 || a.unsure):
		return ""
	case !recorded:
		return fmt.Sprintf("told %s that %s is sold, but it was not recorded", user, a.confirmed.ID)
	case left == 0:
		return fmt.Sprintf("told %s that %s is refunded, but recorded was a sale of %d", user, a.confirmed.ID, sale.Qty)
	case sale.ID != a.confirmed.ID || sale.Qty > left || sale.Qty < left && !a.unsure:
		return fmt.Sprintf("told %s that %s is sold with %d units, but recorded was %s with %d", user, a.confirmed.ID, left, sale.ID, sale.Qty)
	}
	return ""
}
