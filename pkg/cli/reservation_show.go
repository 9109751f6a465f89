package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newReservationShow(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one reservation",
		Long: `Show a reservation as Redis has it and, if PostgreSQL is named and answers, what the ledger has of
it. Redis forgets a reservation some time after its end (--key-retention); the ledger never does.`,
		Example: `  dropctl reservation show truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17
  dropctl reservation show truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 --jq .recorded.state`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := drop.ParseReservationID(args[0])
			if err != nil {
				return err
			}
			return a.showReservation(cmd.Context(), id)
		},
	}
	cmd.ValidArgsFunction = firstOnly(a.completeFrom(a.reservationIDs()))
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.API)
	return cmd
}

// reservationShowView is a reservation with what the ledger has of it.
type reservationShowView struct {
	reservationView
	Source   string        `json:"source" table:"SOURCE"`     // redis, or ledger if Redis has not got it
	Recorded *recordedView `json:"recorded" table:"RECORDED"` // null: the ledger has not got it, or could not be asked
}

// recordedView is a reservation in the ledger.
type recordedView struct {
	State    drop.State `json:"state"`
	Qty      int64      `json:"qty"`
	Refunded int64      `json:"refunded"`
	Rejected bool       `json:"rejected"` // Redis held units that the lot does not have
	Seq      int64      `json:"seq"`      // of the last change that the ledger has
	Changed  time.Time  `json:"changed"`
}

func (a *app) showReservation(ctx context.Context, id drop.ReservationID) error {
	if served, err := a.cfg.UsesServer("redis-url"); err != nil {
		return err
	} else if served {
		return a.showServed(ctx, id)
	}
	if _, err := a.cfg.Redis(a.getenv); err != nil {
		return err
	}
	v, stockErr := a.reservationInStock(ctx, id)
	if stockErr == nil {
		id = v.ID // a late confirm may have taken it anew
	}
	recorded, ledgerErr := a.reservationInLedger(ctx, id)
	switch {
	case stockErr != nil && recorded != nil:
		v = reservationShowView{reservationView: viewRecorded(*recorded), Source: "ledger"}
		if !fault.Is(stockErr, fault.NotFound) {
			a.note("Redis does not say: %s", stockErr)
		}
	case stockErr != nil && ledgerErr != nil && !fault.Is(ledgerErr, fault.NotFound):
		return fault.As(stockErr).WithHint("the ledger may have it, but: %s", ledgerErr)
	case stockErr != nil:
		return stockErr
	case ledgerErr != nil && !fault.Is(ledgerErr, fault.NotFound) && !fault.Is(ledgerErr, fault.Usage):
		a.note("the ledger does not say: %s", ledgerErr)
	}
	if recorded != nil {
		v.Recorded = &recordedView{recorded.State, recorded.Qty, recorded.Refunded, recorded.Rejected, recorded.LastSeq, recorded.Changed}
		v.User, v.Key, v.Created, v.Payment = recorded.User, recorded.Key, recorded.Created, recorded.Ref
	}
	return a.print(v)
}

// showServed shows a reservation as a server tells of it, which looks into both stores.
func (a *app) showServed(ctx context.Context, id drop.ReservationID) error {
	s, err := a.newServerShop()
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	r, err := s.client.Reservation(ctx, id.String())
	if err != nil {
		return about(id, err)
	}
	v := reservationShowView{Source: r.Source}
	if v.reservationView, err = s.view(r); err != nil {
		return err
	}
	v.Remaining = nil // where the stores are asked nobody looks that up
	if in := r.Recorded; in != nil {
		v.Recorded = &recordedView{drop.State(in.State), in.Qty, in.Refunded, in.Rejected, in.Seq, in.Changed}
	}
	return a.print(v)
}

func (a *app) reservationInStock(ctx context.Context, id drop.ReservationID) (reservationShowView, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	s, err := a.openStock(ctx)
	if err != nil {
		return reservationShowView{}, err
	}
	defer func() { _ = s.Close() }()
	r, lot, err := reservationNow(ctx, s, id)
	if fault.Is(err, fault.LotNotLoaded) || fault.Is(err, fault.NotFound) {
		err = fault.New(fault.NotFound, "there is no reservation %s", id).WithHint("list what there is: dropctl reservation list --lot %s", id.Lot)
	}
	return reservationShowView{reservationView: viewAt(r, lot.Now), Source: "redis"}, err
}

func (a *app) reservationInLedger(ctx context.Context, id drop.ReservationID) (*drop.Recorded, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, err := a.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	found, err := l.ReservationsByID(ctx, []drop.ReservationID{id})
	if err != nil {
		return nil, err
	}
	if r, ok := found[id]; ok {
		return &r, nil
	}
	return nil, fault.New(fault.NotFound, "the ledger has no reservation %s", id)
}
