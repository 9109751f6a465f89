package wire

import (
	"context"
	"fmt"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
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

// AuditStores waits until all is recorded and returns everything that is not as it should be: what reconcile finds when it
// compares every record, what does not follow in the ledger's history, dead letters, and payments due for refund because
// something was lost. See torture.Options.Audit.
func AuditStores(s *stock.Stock, l *ledger.Ledger, wait time.Duration) func(ctx context.Context, ghosts bool) ([]torture.Finding, error) {
	return func(ctx context.Context, ghosts bool) (found []torture.Finding, err error) {
		report, err := reconcile.Run(ctx, s, ReconcileLedger(l), reconcile.Options{Installation: l.Installation().ID, Deep: true, Wait: wait, MaxLag: time.Minute, Actor: "torture"})
		if err != nil {
			return nil, err
		}
		for _, row := range report.Rows {
			if row.Verdict != fault.VerdictOK {
				found = append(found, torture.Finding{Lot: row.Lot, What: fmt.Sprintf("reconcile: %s %s %s %v", row.Verdict, row.Reason, row.Message, row.Evidence)})
			}
			v, err := l.Verify(ctx, row.Lot, nil)
			if err != nil {
				return nil, err
			}
			if v.Bad != "" {
				found = append(found, torture.Finding{Lot: row.Lot, What: fmt.Sprintf("ledger verify: %s, at epoch %d seq %d", v.Bad, v.At.Epoch, v.At.Seq)})
			}
		}
		more, err := lostAndFound(ctx, l, ghosts)
		return append(found, more...), err
	}
}

// lostAndFound returns dead letters and refunds due that only a loss can explain.
func lostAndFound(ctx context.Context, l *ledger.Ledger, ghosts bool) (found []torture.Finding, err error) {
	const most = 1000
	dead, err := l.DeadLetters(ctx, "", 0, most)
	if err != nil {
		return nil, err
	}
	for _, d := range dead {
		if ghosts && d.Code == fault.StopGhost && expiredLine(d.Line) {
			continue // a hold that expired between the last look and the flush
		}
		found = append(found, torture.Finding{Lot: d.Lot, What: fmt.Sprintf("a dead letter, epoch %d seq %d: %s: %s: %q", d.Epoch, d.Seq, d.Code, d.Reason, d.Line)})
	}
	due, err := l.NewestRefundsDue(ctx, most)
	if err != nil {
		return nil, err
	}
	for _, d := range due {
		if d.Why != ledger.WhyPaidLate {
			found = append(found, torture.Finding{Lot: d.Reservation.Lot, What: fmt.Sprintf("%s was paid for units that nobody got: %s", d.Reservation, d.Why)})
		}
	}
	return found, nil
}

// expiredLine reports whether an event's line is that of a hold that expired.
func expiredLine(line string) bool {
	events, _ := drop.Entry{Body: "@\tlot\t1\n" + line}.Decode()
	return len(events) == 1 && events[0].Kind == drop.KindExpired
}
