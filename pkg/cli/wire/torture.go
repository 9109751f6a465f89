package wire

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/simulate/torture"
	"github.com/dropctl/dropctl/pkg/stock"
)

// SeedTorture puts the lots to be tortured on sale.
func SeedTorture(ctx context.Context, s *stock.Stock, l *ledger.Ledger) error {
	rows := []seed.Row{}
	for _, d := range torture.Lots() {
		rows = append(rows, seed.Whole(d))
	}
	_, err := seed.Run(ctx, rows, SeedStock(s), SeedLedger(l), seed.Options{Actor: "torture", Installation: l.Installation().ID})
	return err
}

// TortureLedger is PostgreSQL as torture sees it.
func TortureLedger(l *ledger.Ledger) torture.Ledger { return tortureLedger{l} }

type tortureLedger struct{ *ledger.Ledger }

func (l tortureLedger) Lots(ctx context.Context, ids []drop.LotID) ([]drop.LedgerLot, error) {
	return ledgerLots(ctx, l.Ledger, ids)
}

func (l tortureLedger) Booked(ctx context.Context, lot drop.LotID) (map[int64]torture.Booking, error) {
	return bookings(ctx, l.Ledger, lot)
}

// bookings adds up what the order ledger has of each reservation of a lot, by its number.
func bookings(ctx context.Context, l *ledger.Ledger, lot drop.LotID) (map[int64]torture.Booking, error) {
	const page = 1000
	booked := map[int64]torture.Booking{}
	for after := int64(0); ; {
		entries, err := l.Entries(ctx, lot, after, page)
		if err != nil {
			return nil, err
		}
		full := len(entries) == page // then the last reservation may have more
		for _, e := range entries {
			if full && e.Reservation.N == entries[page-1].Reservation.N {
				break
			}
			b := booked[e.Reservation.N]
			if e.Kind == "sale" {
				b.Sales, b.Units = b.Sales+1, b.Units+e.Units
			} else {
				b.Refunded -= e.Units // refunds are written as negative units
			}
			booked[e.Reservation.N], after = b, e.Reservation.N
		}
		if !full {
			return booked, nil
		}
	}
}

// TortureAudit waits until all is recorded and audits both stores, see torture.Options.Audit.
func TortureAudit(s *stock.Stock, l *ledger.Ledger, wait time.Duration) func(ctx context.Context, flushed bool) ([]torture.Finding, error) {
	return func(ctx context.Context, flushed bool) (found []torture.Finding, err error) {
		audit, err := AuditShop(ctx, s, l, AuditOptions{Wait: wait, Actor: "torture", Flushed: flushed})
		for _, text := range audit.Findings {
			f := torture.Finding{What: text}
			if lot, rest, ok := strings.Cut(text, ": "); ok && slices.ContainsFunc(torture.Lots(), func(d drop.Definition) bool { return string(d.Lot) == lot }) {
				f.Lot, f.What = drop.LotID(lot), rest
			}
			found = append(found, f)
		}
		return found, err
	}
}
