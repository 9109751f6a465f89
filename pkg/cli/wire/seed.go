package wire

import (
	"context"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/stock"
)

// SeedStock is Redis as a seed sees it.
func SeedStock(s *stock.Stock) seed.Stock { return seedStock{s} }

type seedStock struct{ *stock.Stock }

// Load puts a lot into Redis as long as Redis has none of that id: a plan that was never present.
func (s seedStock) Load(ctx context.Context, r seed.LoadRequest) error {
	return s.Stock.Load(ctx, stock.LoadRequest{Definition: r.Definition, Epoch: r.Epoch, Closing: r.Closing, Actor: r.Actor, Reason: r.Reason})
}

func (s seedStock) HasRoom(ctx context.Context, lot drop.LotID) error {
	return s.PrepareRebuild(ctx, lot)
}

func (s seedStock) Adjust(ctx context.Context, r seed.AdjustRequest) (drop.LotState, error) {
	state, _, err := s.Stock.Adjust(ctx, drop.AdjustRequest{Lot: r.Lot, To: &r.To, Expect: r.Expect, Actor: r.Actor, Reason: r.Reason})
	return state, err
}

func (s seedStock) Change(ctx context.Context, r seed.ChangeRequest) (drop.LotState, error) {
	d := r.Definition
	q := drop.ChangeRequest{Lot: d.Lot, Actor: r.Actor, Reason: r.Reason}
	for _, field := range r.Fields {
		switch field {
		case "limit":
			q.Limit = &d.Limit
		case "hold":
			q.Hold = &d.Hold
		case "max_hold":
			q.MaxHold = &d.MaxHold
		case "opens":
			q.Opens = &d.Opens
		case "closes":
			q.Closes = &d.Closes
		case "late":
			q.Late = &d.Late
		case "status":
			q.Status = &d.Status
		case "name":
			q.Name = &d.Name
		}
	}
	state, _, err := s.Stock.Change(ctx, q)
	return state, err
}

// SeedLedger is PostgreSQL as a seed sees it.
func SeedLedger(l *ledger.Ledger) seed.Ledger { return seedLedger{l} }

type seedLedger struct{ *ledger.Ledger }

func (l seedLedger) Lots(ctx context.Context, ids []drop.LotID) ([]seed.Lot, error) {
	lots, err := l.Ledger.Lots(ctx, ids)
	out := make([]seed.Lot, len(lots))
	for i, lot := range lots {
		out[i] = seed.Lot{LedgerLot: lot.LedgerLot, AdjustActor: lot.AdjustActor, AdjustReason: lot.AdjustReason, Seeded: lot.Seeded}
	}
	return out, err
}

// IssueEpoch refuses a lot of which the ledger has seen anything: a seed must not make stock anew.
func (l seedLedger) IssueEpoch(ctx context.Context, lot drop.LotID, actor, reason string) (int64, drop.Watermark, error) {
	issued, err := l.Ledger.IssueEpoch(ctx, lot, ledger.IssueRequest{OnlyUnseen: true, Actor: actor, Reason: reason})
	return issued.Epoch, issued.Closing, err
}

func (l seedLedger) Record(ctx context.Context, events []drop.Event) error {
	_, err := l.Apply(ctx, events, nil)
	return err
}
