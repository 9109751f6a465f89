package cli

import (
	"context"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

// showFlags are what the command line says of ledger show.
type showFlags struct {
	lot, user, reservation, after string
	refundDue                     bool
	limit                         *number
}

func newLedgerShow(a *app) *cobra.Command {
	var f showFlags
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the journal and orders of a lot or user",
		Long: `Show what the ledger has folded of a lot, a user or a reservation: its events in order, and
behind each confirmation the rows of the order ledger, the sale and what was refunded of it. The
journal is written once and never changed; ledger verify proves it.

With --refund-due it lists the payments that paid for no unit and have to be given back: of all
lots, or of those that are selected. If there are more than --limit, stderr says how to go on.`,
		Example: `  dropctl ledger show --lot truffle-99
  dropctl ledger show --user ada -o json
  dropctl ledger show --reservation truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17
  dropctl ledger show --lot truffle-99 --limit 1000 --after truffle-99/1/1000 -o jsonl
  dropctl ledger show --refund-due`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.refundDue {
				due, err := f.dueFilter()
				if err != nil {
					return err
				}
				return a.showDue(cmd.Context(), due)
			}
			filter, err := f.filter()
			if err != nil {
				return err
			}
			return a.showJournal(cmd.Context(), filter)
		},
	}
	cmd.Flags().StringVar(&f.lot, "lot", "", "of this lot")
	cmd.Flags().StringVar(&f.user, "user", "", "of this user")
	cmd.Flags().StringVar(&f.reservation, "reservation", "", "of this reservation")
	cmd.Flags().BoolVar(&f.refundDue, "refund-due", false, "the payments that are due for refund")
	f.limit = numberFlag(cmd, "limit", 1, "show at most this many events (default 100)")
	cmd.Flags().StringVar(&f.after, "after", "", "go on behind this row")
	a.settings(cmd, cmd.Flags(), config.Database)
	_ = cmd.RegisterFlagCompletionFunc("lot", a.completeFrom(a.recordedLots))
	completeNothing(cmd, "user", "reservation", "limit", "after")
	return cmd
}

// chosen reads the flags that both lists have.
func (f showFlags) chosen() (lot drop.LotID, id drop.ReservationID, err error) {
	if f.lot != "" {
		if lot, err = drop.ParseLotID(f.lot); err != nil {
			return lot, id, err
		}
	}
	if f.reservation != "" {
		if id, err = drop.ParseReservationID(f.reservation); err != nil {
			return lot, id, err
		}
	}
	return lot, id, drop.CheckText("user", f.user, false)
}

func (f showFlags) filter() (ledger.ShowFilter, error) {
	lot, id, err := f.chosen()
	if err != nil {
		return ledger.ShowFilter{}, err
	}
	if lot == "" && f.user == "" && id.IsZero() {
		return ledger.ShowFilter{}, fault.New(fault.Usage, "--lot is missing").WithField("lot").
			WithHint("say whose rows: --lot LOT, --user USER or --reservation ID; or see what money is due: dropctl ledger show --refund-due")
	}
	filter := ledger.ShowFilter{Lot: lot, User: f.user, ID: id, Limit: int(f.limit.or(100))}
	if f.after != "" {
		after, err := readPlace(f.after)
		if err != nil {
			return filter, fault.As(err).WithField("after")
		}
		if lot != "" && after.lot != lot {
			return filter, fault.New(fault.Usage, "--after is of the lot %s, --lot is %s", after.lot, lot).WithField("after")
		}
		filter.After, filter.Mark = after.lot, after.at
	}
	return filter, nil
}

func (f showFlags) dueFilter() (ledger.DueFilter, error) {
	lot, id, err := f.chosen()
	if err != nil {
		return ledger.DueFilter{}, err
	}
	filter := ledger.DueFilter{Lot: lot, User: f.user, ID: id, Limit: int(f.limit.or(100))}
	if f.after != "" {
		if filter.After, err = readLetter(f.after); err != nil {
			return filter, fault.New(fault.Invalid, "--after is %.40q, which is no number of a refund due", f.after).WithField("after")
		}
	}
	return filter, nil
}

// journalView is the contract of one row: an event of the journal, or a row of the order ledger behind the
// confirmation it belongs to.
type journalView struct {
	ID          string             `json:"id" table:"ID,name"`    // lot/epoch/seq, of an order row with its entry behind
	Record      string             `json:"record" table:"RECORD"` // event or order
	Kind        string             `json:"kind" table:"KIND"`     // of an event; sale or refund
	Lot         drop.LotID         `json:"lot" table:"LOT,wide"`
	Epoch       int64              `json:"epoch" table:"EPOCH,wide"`
	Seq         int64              `json:"seq" table:"SEQ,wide"`
	Entry       *int               `json:"entry" table:"ENTRY,wide"` // of an order row; null: an event
	Reservation drop.ReservationID `json:"reservation" table:"RESERVATION"`
	User        string             `json:"user" table:"USER"`
	Units       int64              `json:"units" table:"UNITS"` // of an event about the lot itself: its capacity
	Payment     string             `json:"payment" table:"PAYMENT"`
	Charge      string             `json:"charge" table:"CHARGE,wide"` // of an order row: the payment gateway's own reference
	Time        time.Time          `json:"time" table:"TIME"`          // of an event: Redis' time of the change; of an order row: when it was recorded
	Recorded    time.Time          `json:"recorded" table:"RECORDED,wide"`
	Actor       string             `json:"actor" table:"ACTOR,wide"`
	Reason      string             `json:"reason" table:"REASON,wide"`
	Hash        string             `json:"hash"` // of an event: of the row before and this one, in hex
	Content     string             `json:"content"`
}

func viewJournal(r ledger.JournalRow) []journalView {
	v := journalView{ID: placeText(r.Lot, r.Watermark()), Record: "event", Kind: string(r.Kind), Lot: r.Lot, Epoch: r.Epoch, Seq: r.Seq,
		Reservation: r.Reservation, User: r.User, Units: r.Qty, Payment: r.Ref, Time: r.Time, Recorded: r.RecordedAt,
		Actor: r.Actor, Reason: r.Reason, Hash: hex.EncodeToString(r.Hash), Content: r.Line()}
	if r.IsLotEvent() {
		v.Units = r.Definition.Stock
	}
	views := []journalView{v}
	for _, e := range r.Orders {
		views = append(views, journalView{ID: v.ID + "/" + strconv.Itoa(e.Entry), Record: "order", Kind: e.Kind, Lot: r.Lot, Epoch: r.Epoch, Seq: r.Seq,
			Entry: &e.Entry, Reservation: e.Reservation, User: e.User, Units: e.Units, Payment: e.Ref, Charge: e.Charge, Time: e.RecordedAt, Recorded: e.RecordedAt})
	}
	return views
}

func (a *app) showJournal(ctx context.Context, f ledger.ShowFilter) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	limit := f.Limit
	f.Limit++ // one more, to know whether there are more
	rows, err := l.Show(ctx, f)
	if err != nil {
		return err
	}
	more := len(rows) > limit
	rows = rows[:min(limit, len(rows))]
	views := []journalView{}
	for _, r := range rows {
		views = append(views, viewJournal(r)...)
	}
	if err := a.print(views); err != nil {
		return err
	}
	if len(rows) == 0 && a.errTerm.TTY {
		a.note("the ledger has nothing of it; how far it is behind: dropctl status")
	}
	if more {
		last := rows[limit-1]
		a.note("there are more: add --limit %d --after %s", limit, placeText(last.Lot, last.Watermark()))
	}
	return nil
}

// dueRowView is the contract of a payment that is due for refund.
type dueRowView struct {
	ID          int64              `json:"id" table:"ID,name"`
	Reservation drop.ReservationID `json:"reservation" table:"RESERVATION"`
	Lot         drop.LotID         `json:"lot" table:"LOT,wide"`
	User        string             `json:"user" table:"USER"`
	Units       int64              `json:"units" table:"UNITS"`
	Payment     string             `json:"payment" table:"PAYMENT"` // "" if none was named
	Why         fault.Code         `json:"why" table:"WHY"`         // paid_late, rejected, ghost or discarded
	Epoch       int64              `json:"epoch" table:"EPOCH,wide"`
	Seq         int64              `json:"seq" table:"SEQ,wide"`
	Time        time.Time          `json:"time" table:"TIME"` // of the event that showed it
	Recorded    time.Time          `json:"recorded" table:"RECORDED,wide"`
}

func (a *app) showDue(ctx context.Context, f ledger.DueFilter) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	limit := f.Limit
	f.Limit++
	rows, err := l.ShowDue(ctx, f)
	if err != nil {
		return err
	}
	more := len(rows) > limit
	views := []dueRowView{}
	for _, d := range rows[:min(limit, len(rows))] {
		views = append(views, dueRowView{d.ID, d.Reservation, d.Reservation.Lot, d.User, d.Units, d.Ref, d.Why, d.Event.Epoch, d.Event.Seq, d.At, d.RecordedAt})
	}
	if err := a.print(views); err != nil {
		return err
	}
	if len(views) == 0 && a.errTerm.TTY {
		a.note("no payment is due for refund")
	}
	if more {
		a.note("there are more: add --limit %d --after %d", limit, views[limit-1].ID)
	}
	return nil
}
