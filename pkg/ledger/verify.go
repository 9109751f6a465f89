package ledger

import (
	"bytes"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Verification is what a recomputation of a lot's whole history found.
type Verification struct {
	Lot    drop.LotID
	Events int64          // journal rows read
	Units  int64          // net units of its sales
	Bad    string         // the first thing that does not follow; "" if everything does
	At     drop.Watermark // where; zero if it is not about a journal row
}

// Verify folds a lot's journal from its beginning: each row must carry the hash of the one before and fit it,
// and what comes out must be the recorded totals, reservations and sales. It reads one moment. A long history
// takes a statement a page; only the context bounds the whole.
// Errors: fault.NotFound; a bad history is no error but a finding.
func (l *Ledger) Verify(ctx context.Context, id drop.LotID) (Verification, error) {
	v := Verification{Lot: id}
	err := pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return l.verify(ctx, tx, &v)
	})
	return v, l.fail(err, "verifying a lot")
}

func (l *Ledger) verify(ctx context.Context, tx pgx.Tx, v *Verification) error {
	rows, err := tx.Query(ctx, `SELECT `+lotColumns+` FROM lots WHERE lot = $1`, string(v.Lot))
	if err != nil {
		return err
	}
	lots, err := pgx.CollectRows(rows, scanLot)
	if err != nil {
		return err
	}
	if len(lots) == 0 {
		return fault.New(fault.NotFound, "the ledger does not know the lot %s", v.Lot)
	}
	f, err := l.replay(ctx, tx, v)
	if err != nil || v.Bad != "" {
		return err
	}
	if is, was := f.lot, lots[0]; v.Events > 0 && (is.Watermark != was.Watermark || !bytes.Equal(is.hash, was.hash) || is.Totals() != was.Totals()) {
		v.Bad = fmt.Sprintf("the journal adds up to %+v at (%d, %d), the lot says %+v at (%d, %d)",
			is.Totals(), is.Watermark.Epoch, is.Watermark.Seq, was.Totals(), was.Watermark.Epoch, was.Watermark.Seq)
		return nil
	}
	if err := verifyReservations(ctx, tx, v, f.reservations); err != nil || v.Bad != "" {
		return err
	}
	var pending int64
	err = tx.QueryRow(ctx, `SELECT (SELECT coalesce(sum(units), 0)::bigint FROM order_ledger WHERE lot = $1),
		(SELECT coalesce(sum(units - refunded), 0)::bigint FROM pending_allocations WHERE lot = $1 AND state IN ('PENDING', 'PROCESSING'))`, string(v.Lot)).Scan(&v.Units, &pending)
	if err == nil && v.Units+pending != lots[0].Sold {
		v.Bad = fmt.Sprintf("%d units are sold, but the sales add up to %d and %d are not finalised", lots[0].Sold, v.Units, pending)
	}
	return err
}

const verifyPage = 5000

// replay folds the journal page by page into an empty lot.
func (l *Ledger) replay(ctx context.Context, tx pgx.Tx, v *Verification) (*fold, error) {
	f := newFold(&Lot{LedgerLot: drop.LedgerLot{Definition: drop.Definition{Lot: v.Lot}}})
	for {
		rows, err := tx.Query(ctx, `SELECT lot, epoch, seq, event_at, line, hash FROM reservation_events
			WHERE lot = $1 AND (epoch, seq) > ($2, $3) ORDER BY epoch, seq LIMIT $4`, string(v.Lot), f.lot.Watermark.Epoch, f.lot.Watermark.Seq, verifyPage)
		if err != nil {
			return f, err
		}
		read := 0
		var s stored
		var hash []byte
		_, err = pgx.ForEachRow(rows, []any{&s.lot, &s.Epoch, &s.Seq, &s.at, &s.line, &hash}, func() error {
			read++
			if v.Bad == "" {
				v.Bad, v.At = l.replayOne(f, s, hash), s.Watermark
			}
			return nil
		})
		v.Events += int64(read)
		if err != nil || v.Bad != "" || read < verifyPage {
			if v.Bad == "" {
				v.At = drop.Watermark{}
			}
			return f, err
		}
	}
}

func (l *Ledger) replayOne(f *fold, s stored, hash []byte) (bad string) {
	s.at = s.at.UTC()
	ev, err := s.decode(l.installation.ID)
	if err != nil {
		return err.Error()
	}
	if misfit := f.next(item{ev, s.line}); misfit != nil {
		return misfit.reason
	}
	f.journal = f.journal[:0]
	if !bytes.Equal(f.lot.hash, hash) {
		return "the hash does not follow from the row before and the event"
	}
	return ""
}

func verifyReservations(ctx context.Context, tx pgx.Tx, v *Verification, want map[int64]*drop.Recorded) error {
	rows, err := tx.Query(ctx, `SELECT `+reservationColumns+` FROM reservations WHERE lot = $1`, string(v.Lot))
	if err != nil {
		return err
	}
	n := 0
	for rows.Next() {
		is, err := scanReservation(rows)
		if err != nil {
			return err
		}
		n++
		was := want[is.ID.N]
		if v.Bad == "" && (was == nil || !equalRecorded(is, *was)) {
			v.Bad = fmt.Sprintf("the reservation %s is not what the journal adds up to", is.ID)
		}
	}
	if v.Bad == "" && n != len(want) {
		v.Bad = fmt.Sprintf("%d reservations are recorded, the journal adds up to %d", n, len(want))
	}
	return rows.Err()
}

func equalRecorded(r, o drop.Recorded) bool {
	same := r.Deadline.Equal(o.Deadline) && r.Created.Equal(o.Created) && r.Changed.Equal(o.Changed)
	r.Deadline, r.Created, r.Changed = o.Deadline, o.Created, o.Changed
	return same && r == o
}
