package simulate

import (
	"context"
	"fmt"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Ledger is what was recorded of the rehearsal.
type Ledger interface {
	// LiveReservations calls fn with every held or confirmed reservation of a lot, in pages.
	LiveReservations(ctx context.Context, lot drop.LotID, fn func(page []drop.Reservation) error) error
}

// Audit holds the book against the ledger once it has caught up, and returns every broken promise: every
// acknowledged confirmation is a sale, nobody was sold to who was not told so, nobody twice under one key,
// and no lot sold more than it had.
func (b *Book) Audit(ctx context.Context, ledger Ledger) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong := append([]string{}, b.violations...)
	sold := map[string]drop.Reservation{} // by attempt
	for lot, def := range b.lots {
		var units int64
		err := ledger.LiveReservations(ctx, lot, func(page []drop.Reservation) error {
			for _, r := range page {
				if r.State != drop.Confirmed {
					continue
				}
				units += r.Qty
				if first, twice := sold[r.ID.Attempt]; twice && first.ID != r.ID {
					wrong = append(wrong, fmt.Sprintf("sold twice under one key: %s and %s", first.ID, r.ID))
				}
				sold[r.ID.Attempt] = r
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if units > def.Stock {
			wrong = append(wrong, fmt.Sprintf("%s: %d units sold of %d", lot, units, def.Stock))
		}
	}
	return append(wrong, b.compare(sold)...), nil
}

// compare holds every acknowledged confirmation against the sales, and every sale against what was told.
func (b *Book) compare(sold map[string]drop.Reservation) (wrong []string) {
	for name, a := range b.attempts {
		sale, ok := sold[name]
		if text := a.differs(sale, ok); text != "" {
			wrong = append(wrong, text)
		}
	}
	for name, sale := range sold {
		if b.attempts[name] == nil {
			wrong = append(wrong, fmt.Sprintf("recorded %s as sold, but nobody asked for it", sale.ID))
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
