package cli

import (
	"context"

	"github.com/dropctl/dropctl/pkg/drop"
)

// shop is what the commands of a sale ask: the stores themselves, or a server that stands before them. It answers with
// what the commands print, and its errors name the lot or reservation they are about. The caller closes it.
type shop interface {
	Target() string // for people
	Close()

	Lots(ctx context.Context, group string) ([]lotView, error) // "" for all
	LotIDs(ctx context.Context, group string) ([]drop.LotID, error)
	Lot(ctx context.Context, lot drop.LotID) (lotView, error)
	Adjust(ctx context.Context, q drop.AdjustRequest) (v lotView, same bool, err error)
	SetStatus(ctx context.Context, q statusRequest) (same bool, err error)
	// Blocked says of lots why they must not be opened, as far as that is known before it is tried.
	Blocked(ctx context.Context, lots []drop.LotID) map[drop.LotID]error

	Reserve(ctx context.Context, q drop.ReserveRequest) (reservationView, error)
	PlanReserve(ctx context.Context, q drop.ReserveRequest) (reservationView, error)
	Reservation(ctx context.Context, id drop.ReservationID) (reservationView, error)
	Settle(ctx context.Context, q drop.SettleRequest) (reservationView, error)
	// MeansDue reports whether a refund is about payments that paid for nothing, as far as that is known before it is tried.
	MeansDue(ctx context.Context, q drop.SettleRequest) (bool, error)
	PlanSettle(ctx context.Context, q drop.SettleRequest) (reservationView, error)
	// AwaitRecorded waits until the ledger has decided about a confirmation that was carried out.
	AwaitRecorded(ctx context.Context, q drop.SettleRequest, confirmed reservationView) error
	// Offer lists reservations whose ids begin so, for completion.
	Offer(ctx context.Context, prefix string, states []drop.State) ([]candidate, error)
}

// openShop opens the server if one is to be used, else Redis, and PostgreSQL only where its answer is waited for: before
// anything is changed.
func (a *app) openShop(ctx context.Context, withLedger bool) (shop, error) {
	served, err := a.cfg.UsesServer("redis-url")
	switch {
	case err != nil:
		return nil, err
	case served:
		return a.openServer()
	case withLedger:
		l, s, err := a.openStores(ctx)
		if err != nil {
			return nil, err
		}
		return storeShop{a, s, l}, nil
	}
	s, err := a.openStock(ctx)
	if err != nil {
		return nil, err
	}
	return storeShop{a, s, nil}, nil
}
