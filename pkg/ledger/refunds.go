package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Why money must be given back; dropctl explain tells of each.
const (
	WhyPaidLate  = fault.DuePaidLate  // the hold had ended, or was paid for before
	WhyRejected  = fault.DueRejected  // confirmed, but the lot has no such unit
	WhyGhost     = fault.StopGhost    // confirmed in a life of the lot that Redis lost
	WhyDiscarded = fault.DueDiscarded // confirmed by an event that an operator discarded
)

// RefundDue is money for units nobody got.
type RefundDue struct {
	Reservation drop.ReservationID
	User        string
	Units       int64
	Ref         string // payment reference; "" if none was given
	Why         fault.Code
	Event       drop.Watermark // the event that showed it
	At          time.Time
}

func refundDue(ev drop.Event, user string, why fault.Code) RefundDue {
	return RefundDue{ev.Reservation, user, ev.Qty, ev.Ref, why, ev.Watermark(), ev.Time}
}

const refundDueColumns = `lot, n, attempt, user_id, units, ref, why, epoch, seq, event_at`

// RefundsDue lists what is still due, oldest first: of one lot or, for "", of all; at most limit (0: all).
func (l *Ledger) RefundsDue(ctx context.Context, lot drop.LotID, limit int) ([]RefundDue, error) {
	return l.refundsDue(ctx, `SELECT `+refundDueColumns+` FROM refunds_due
		WHERE settled_at IS NULL AND ($1 = '' OR lot = $1) ORDER BY id LIMIT nullif($2, 0)`, string(lot), limit)
}

// NewestRefundsDue lists what became due last and still is, newest first.
func (l *Ledger) NewestRefundsDue(ctx context.Context, limit int) ([]RefundDue, error) {
	return l.refundsDue(ctx, `SELECT `+refundDueColumns+` FROM refunds_due WHERE settled_at IS NULL ORDER BY id DESC LIMIT $1`, limit)
}

func (l *Ledger) refundsDue(ctx context.Context, query string, args ...any) ([]RefundDue, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, query, args...)
	if err != nil {
		return nil, l.fail(err, "listing refunds due")
	}
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (RefundDue, error) { return scanRefundDue(row) })
	return due, l.fail(err, "listing refunds due")
}

// scanRefundDue reads refundDueColumns, and what stands behind them.
func scanRefundDue(row pgx.CollectableRow, more ...any) (RefundDue, error) {
	var d RefundDue
	err := row.Scan(append([]any{&d.Reservation.Lot, &d.Reservation.N, &d.Reservation.Attempt, &d.User, &d.Units, &d.Ref, &d.Why, &d.Event.Epoch, &d.Event.Seq, &d.At}, more...)...)
	d.At = d.At.UTC()
	return d, err
}

// DueOf returns what is due of a reservation, and what was.
func (l *Ledger) DueOf(ctx context.Context, id drop.ReservationID) (drop.Due, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var d drop.Due
	// A hold that was taken anew has one attempt with the one it was taken from: a sale of either is a sale.
	err := l.pool.QueryRow(ctx, `SELECT coalesce(max(user_id), ''), count(*) FILTER (WHERE settled_at IS NULL), count(*) FILTER (WHERE settled_why = 'refunded'),
			coalesce(sum(units) FILTER (WHERE settled_why <> 'confirmed'), 0)::bigint,
			EXISTS (SELECT FROM reservations WHERE lot = $1 AND (n = $2 OR taken_from = $2) AND attempt = $3 AND state = 'confirmed')
		FROM refunds_due WHERE lot = $1 AND n = $2 AND attempt = $3`, string(id.Lot), id.N, id.Attempt).Scan(&d.User, &d.Open, &d.Closed, &d.Units, &d.Sale)
	return d, l.fail(err, "looking for what is due")
}

// CloseDue records that somebody has given back the money of everything that is due of a reservation, and returns how many
// payments that were: none if it was known.
func (l *Ledger) CloseDue(ctx context.Context, id drop.ReservationID, actor, reason string) (int64, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	tag, err := l.pool.Exec(ctx, `UPDATE refunds_due SET settled_at = now(), settled_why = 'refunded', settled_by = $4, settled_reason = $5
		WHERE lot = $1 AND n = $2 AND attempt = $3 AND settled_at IS NULL`, string(id.Lot), id.N, id.Attempt, actor, reason)
	return tag.RowsAffected(), l.fail(err, "closing what is due")
}
