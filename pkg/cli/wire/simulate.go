package wire

import (
	"bytes"
	"cmp"
	"context"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/simulate"
)

// SimulateLedger is PostgreSQL as the audit of a rehearsal sees it.
func SimulateLedger(l *ledger.Ledger) simulate.Ledger { return simulateLedger{reconcileLedger{l}} }

type simulateLedger struct{ reconcileLedger }

func (l simulateLedger) PaidLate(ctx context.Context, lot drop.LotID) (map[string]bool, error) {
	due, err := l.RefundsDue(ctx, lot, 0)
	attempts := map[string]bool{}
	for _, d := range due {
		attempts[d.Reservation.Attempt] = true
	}
	return attempts, err
}

func (l simulateLedger) NetSales(ctx context.Context, lot drop.LotID) (map[int64]int64, error) {
	booked, err := bookings(ctx, l.Ledger, lot)
	sales := map[int64]int64{}
	for n, b := range booked {
		sales[n] = b.Units - b.Refunded
	}
	return sales, err
}

// ScenarioLots reads the lots of a scenario as seed does, see simulate.Source.
func ScenarioLots(file string, text []byte) ([]drop.Definition, []fault.Problem) {
	format, err := seed.FormatOf(cmp.Or(file, ".yaml"), "")
	rows := []seed.Row{}
	if err == nil {
		rows, err = seed.Read(bytes.NewReader(text), seed.Input{Name: file, Format: format})
	}
	problems := fault.ProblemsOf(err)
	if err != nil && len(problems) == 0 {
		problems = []fault.Problem{{Line: 1, Column: 1, Message: fault.As(err).Error(), Hint: fault.HintOf(err)}}
	}
	lots := make([]drop.Definition, len(rows))
	for i, r := range rows {
		lots[i] = r.Definition
	}
	return lots, problems
}
