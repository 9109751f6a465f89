package ledger

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

var (
	//go:embed sql/claim_charges.sql
	claimChargesSQL string
	//go:embed sql/claim_charge_refunds.sql
	claimChargeRefundsSQL string
)

// ClaimCharges gives a worker up to limit charges to ask a payment gateway for, for the length of a lease. Of a charge that
// was asked for before, the attempt keeps its number. The claim is committed when it returns.
func (l *Ledger) ClaimCharges(ctx context.Context, worker string, lease time.Duration, limit int) ([]drop.Charge, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, claimChargesSQL, worker, lease, limit)
	if err != nil {
		return nil, l.fail(err, "claiming charges")
	}
	claimed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (drop.Charge, error) {
		var c drop.Charge
		err := row.Scan(&c.Reservation.Lot, &c.Reservation.N, &c.Reservation.Attempt, &c.Number, &c.User, &c.Units, &c.Ref, &c.Confirmed, &c.Asked)
		c.Confirmed = c.Confirmed.UTC()
		return c, err
	})
	return claimed, l.fail(err, "claiming charges")
}

// PostponeCharge gives a claimed charge back that nobody could be asked for, or whose answer could not be understood. Any
// worker asks again after the pause, under the same number.
func (l *Ledger) PostponeCharge(ctx context.Context, worker string, c drop.Charge, pause time.Duration) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `UPDATE charges SET worker = '', pending = false, due_at = now() + $5::interval
		WHERE lot = $1 AND n = $2 AND number = $3 AND worker = $4 AND state = 'open'`, string(c.Reservation.Lot), c.Reservation.N, c.Number, worker, pause)
	return l.fail(err, "postponing a charge")
}

// RecordPayment records what a gateway says of a charge, whoever was told. An approved one becomes the sale, in the same
// transaction; if the reservation is paid for already, or was refunded meanwhile, the money is noted to go back. After a
// decline the next attempt is made when the pause is over, unless the hold's deadline comes first; what is pending is
// asked for again then. replayed: it was known.
//
// Errors: fault.NotFound if there is no such charge, fault.Conflict if the gateway has said otherwise before, which
// records nothing. Approved after declined is no contradiction: the money has moved.
func (l *Ledger) RecordPayment(ctx context.Context, id drop.ReservationID, number int, p drop.Payment, pause time.Duration) (replayed bool, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		c, err := lockCharge(ctx, tx, id, number)
		if err != nil {
			return err
		}
		switch {
		case c.state == string(p.Decision), c.state != chargeOpen && p.Decision == drop.PaymentPending:
			replayed = true
			if p.Decision == drop.PaymentApproved && c.charged != p.Ref {
				return fault.New(fault.Conflict, "the charge %s.%d is approved under another reference", id, number)
			}
			return nil
		case p.Decision == drop.PaymentApproved:
			return c.approve(ctx, tx, p.Ref)
		case c.state != chargeOpen:
			return fault.New(fault.Conflict, "the charge %s.%d is approved, and cannot be %s any more", id, number, p.Decision)
		case p.Decision == drop.PaymentDeclined:
			return c.decline(ctx, tx, p.Reason, pause)
		}
		_, err = tx.Exec(ctx, `UPDATE charges SET worker = '', pending = true, due_at = now() + $4::interval WHERE lot = $1 AND n = $2 AND number = $3`,
			string(id.Lot), id.N, number, pause)
		return err
	})
	return replayed, l.fail(err, "recording a payment")
}

const chargeOpen = "open"

// charge is a locked charge with its locked allocation.
type charge struct {
	allocation
	current int // number of the allocation's newest charge
	number  int
	of      int64 // units that the charge is for
	state   string
	charged string
}

// lockCharge locks the allocation first, as everybody does who needs both.
func lockCharge(ctx context.Context, tx pgx.Tx, id drop.ReservationID, number int) (*charge, error) {
	c := &charge{number: number}
	c.lot, c.n = id.Lot, id.N
	err := tx.QueryRow(ctx, `SELECT attempt, user_id, units, refunded, ref, state, charge FROM pending_allocations
		WHERE lot = $1 AND n = $2 AND attempt = $3 FOR UPDATE`, string(id.Lot), id.N, id.Attempt).
		Scan(&c.attempt, &c.user, &c.units, &c.refunded, &c.ref, &c.allocation.state, &c.current)
	if err == nil {
		err = tx.QueryRow(ctx, `SELECT units, state, charged FROM charges WHERE lot = $1 AND n = $2 AND number = $3 FOR UPDATE`, string(id.Lot), id.N, number).
			Scan(&c.of, &c.state, &c.charged)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fault.New(fault.NotFound, "nobody was asked for the charge %s.%d", id, number)
	}
	return c, err
}

// approve records the sale and what of it was refunded meanwhile, whose money goes back, or that of the whole charge.
func (c *charge) approve(ctx context.Context, tx pgx.Tx, ref string) error {
	sells := c.allocation.state != allocationProcessed
	if _, err := tx.Exec(ctx, `UPDATE charges SET state = 'approved', sold = $4, charged = $5, reason = '', worker = '', pending = false, decided_at = now()
		WHERE lot = $1 AND n = $2 AND number = $3`, string(c.lot), c.n, c.number, sells, ref); err != nil {
		return err
	}
	if !sells {
		return c.payBack(ctx, tx, 0, c.of)
	}
	stay, entries := c.units-c.refunded, 1
	if c.allocation.state == allocationRejected { // a refund closed it before it was charged
		stay = 0
	}
	if err := c.record(ctx, tx, 1, "sale", c.of); err != nil {
		return err
	}
	if back := c.of - stay; back > 0 {
		entries = 2
		if err := errors.Join(c.record(ctx, tx, entries, "refund", -back), c.payBack(ctx, tx, entries, back)); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `UPDATE pending_allocations SET state = 'PROCESSED', reason = '', units = $3, refunded = $4, entries = $5, due_at = now(), changed_at = now()
		WHERE lot = $1 AND n = $2`, string(c.lot), c.n, c.of, c.of-stay, entries)
	return err
}

// record writes a row of the order ledger, which must not have one in its place.
func (c *charge) record(ctx context.Context, tx pgx.Tx, entry int, kind string, units int64) error {
	tag, err := tx.Exec(ctx, `INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (lot, n, entry) DO NOTHING`, string(c.lot), c.n, entry, kind, units, c.attempt, c.user, c.ref)
	if err == nil && tag.RowsAffected() == 0 {
		id := drop.ReservationID{Lot: c.lot, Attempt: c.attempt, N: c.n}
		return fault.New(fault.Failed, "the order ledger has another sale of the reservation %s", id).WithHint("see what was recorded: dropctl ledger show --reservation %s", id)
	}
	return err
}

// payBack notes money that goes back through the gateway.
func (c *charge) payBack(ctx context.Context, tx pgx.Tx, entry int, units int64) error {
	_, err := tx.Exec(ctx, `INSERT INTO charge_refunds (lot, n, number, entry, units) VALUES ($1, $2, $3, $4, $5)`, string(c.lot), c.n, c.number, entry, units)
	return err
}

// decline ends the attempt. What was refunded while the gateway was asked is simply not charged the next time.
func (c *charge) decline(ctx context.Context, tx pgx.Tx, reason string, pause time.Duration) error {
	if _, err := tx.Exec(ctx, `UPDATE charges SET state = 'declined', reason = $4, worker = '', pending = false, decided_at = now()
		WHERE lot = $1 AND n = $2 AND number = $3`, string(c.lot), c.n, c.number, reason); err != nil {
		return err
	}
	if c.allocation.state != allocationProcessing || c.current != c.number {
		return nil
	}
	if c.units == c.refunded {
		_, err := tx.Exec(ctx, `UPDATE pending_allocations SET state = 'REJECTED', reason = $3, units = 0, refunded = 0, due_at = now(), changed_at = now()
			WHERE lot = $1 AND n = $2`, string(c.lot), c.n, string(drop.Refunded))
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE pending_allocations p SET state = 'PENDING', units = units - refunded, refunded = 0, worker = '', given_up_at = r.deadline,
			due_at = greatest(now(), least(now() + $3::interval, r.deadline)), changed_at = now()
		FROM (SELECT deadline FROM reservations WHERE lot = $1 AND n = $2) r WHERE p.lot = $1 AND p.n = $2`, string(c.lot), c.n, pause)
	return err
}

// ClaimGivenUp returns reservations whose payment was declined and whose hold would be over by now: they are to be
// refunded in Redis, which the ledger then folds. Who does not is followed by another worker after the lease.
func (l *Ledger) ClaimGivenUp(ctx context.Context, lease time.Duration, limit int) ([]drop.ReservationID, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `WITH claimable AS MATERIALIZED (
			SELECT lot, n FROM pending_allocations WHERE state = 'PENDING' AND due_at <= now() AND given_up_at <= now() ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE pending_allocations p SET due_at = now() + $1::interval FROM claimable c WHERE p.lot = c.lot AND p.n = c.n RETURNING p.lot, p.attempt, p.n`, lease, limit)
	if err != nil {
		return nil, l.fail(err, "claiming what is given up")
	}
	ids, err := pgx.CollectRows(rows, pgx.RowToStructByPos[drop.ReservationID])
	return ids, l.fail(err, "claiming what is given up")
}

// ClaimChargeRefunds gives a worker up to limit refunds to ask a payment gateway for, for the length of a lease.
func (l *Ledger) ClaimChargeRefunds(ctx context.Context, worker string, lease time.Duration, limit int) ([]drop.ChargeRefund, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, claimChargeRefundsSQL, worker, lease, limit)
	if err != nil {
		return nil, l.fail(err, "claiming refunds")
	}
	claimed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (drop.ChargeRefund, error) { return scanChargeRefund(row) })
	return claimed, l.fail(err, "claiming refunds")
}

// scanChargeRefund reads the columns of a refund, and what stands behind them.
func scanChargeRefund(row pgx.CollectableRow, more ...any) (r drop.ChargeRefund, err error) {
	err = row.Scan(append([]any{&r.Reservation.Lot, &r.Reservation.N, &r.Reservation.Attempt, &r.Number, &r.Entry, &r.Charged, &r.User, &r.Units, &r.Of, &r.Ref, &r.Asked}, more...)...)
	return r, err
}

// RecordRefund records what a gateway says of a refund. One that is not approved is asked for again after the pause, also
// if the gateway declined it: the money is owed.
func (l *Ledger) RecordRefund(ctx context.Context, r drop.ChargeRefund, p drop.Payment, pause time.Duration) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `UPDATE charge_refunds SET worker = '', returned = $5, refused = $6, pending = $7, due_at = now() + $8::interval,
			done_at = CASE WHEN $9 THEN now() END
		WHERE lot = $1 AND n = $2 AND number = $3 AND entry = $4 AND done_at IS NULL`, string(r.Reservation.Lot), r.Reservation.N, r.Number, r.Entry,
		p.Ref, refusedText(p), p.Decision == drop.PaymentPending, pause, p.Decision == drop.PaymentApproved)
	return l.fail(err, "recording a refund")
}

// refusedText is never empty for a refusal.
func refusedText(p drop.Payment) string {
	switch {
	case p.Decision != drop.PaymentDeclined:
		return ""
	case p.Reason == "":
		return "no reason was given"
	}
	return p.Reason
}

// PostponeRefund gives a claimed refund back that nobody could be asked for. Any worker asks again after the pause.
func (l *Ledger) PostponeRefund(ctx context.Context, worker string, r drop.ChargeRefund, pause time.Duration) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `UPDATE charge_refunds SET worker = '', pending = false, due_at = now() + $6::interval
		WHERE lot = $1 AND n = $2 AND number = $3 AND entry = $4 AND worker = $5 AND done_at IS NULL`,
		string(r.Reservation.Lot), r.Reservation.N, r.Number, r.Entry, worker, pause)
	return l.fail(err, "postponing a refund")
}

// Payments looks at what the gateway still has to decide.
func (l *Ledger) Payments(ctx context.Context) (drop.Payments, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	p, err := readPayments(ctx, l.pool)
	return p, l.fail(err, "looking at payments")
}

//go:embed sql/payments.sql
var paymentsSQL string

func readPayments(ctx context.Context, q querier) (p drop.Payments, err error) {
	err = q.QueryRow(ctx, paymentsSQL).Scan(&p.Asking, &p.Open, &p.Pending, &p.Declined, &p.Returns, &p.Refused, &p.Stuck)
	return p, err
}

// RefusedRefund is money that the gateway will not give back.
type RefusedRefund struct {
	drop.ChargeRefund
	Reason string
	Since  time.Time
}

// RefusedRefunds lists the refunds that the gateway will not make, oldest first.
func (l *Ledger) RefusedRefunds(ctx context.Context, limit int) ([]RefusedRefund, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT r.lot, r.n, p.attempt, r.number, r.entry, c.charged, p.user_id, r.units, c.units, p.ref, r.asked, r.refused, r.begun_at
		FROM charge_refunds r JOIN charges c USING (lot, n, number) JOIN pending_allocations p USING (lot, n)
		WHERE r.done_at IS NULL AND r.refused <> '' ORDER BY r.begun_at, r.lot, r.n LIMIT $1`, limit)
	if err != nil {
		return nil, l.fail(err, "listing refused refunds")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r RefusedRefund, err error) {
		r.ChargeRefund, err = scanChargeRefund(row, &r.Reason, &r.Since)
		r.Since = r.Since.UTC()
		return r, err
	})
	return list, l.fail(err, "listing refused refunds")
}
