package ledger

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
)

// knownEvent is an event that the ledger has.
type knownEvent struct {
	stored
	dead   bool // as a dead letter
	folded bool // in the journal
}

// isVoid reports whether an operator discarded what had its place.
func (k knownEvent) isVoid() bool { return !k.dead && strings.HasPrefix(k.line, "*\tv\t") }

// readKnown looks for the incoming events that may not be new. In the usual case there are none: what lies
// beyond the watermark of a lot without waiting events has never been seen.
func (a *application) readKnown(ctx context.Context, tx pgx.Tx) (map[place][]knownEvent, error) {
	var lots []string
	var epochs, seqs []int64
	for id, w := range a.lots {
		for _, it := range w.incoming {
			isNew := w.lot == nil || a.retried == nil && it.Epoch == w.lot.OpenEpoch && it.Seq > w.lot.Watermark.Seq && w.lot.Waiting == 0 && w.lot.Stopped == ""
			if !isNew {
				lots, epochs, seqs = append(lots, string(id)), append(epochs, it.Epoch), append(seqs, it.Seq)
			}
		}
	}
	if len(lots) == 0 {
		return nil, nil
	}
	known, err := readPlaces(ctx, tx, lots, epochs, seqs)
	for at, events := range known {
		known[at] = slices.DeleteFunc(events, func(k knownEvent) bool { return k.dead && slices.Contains(a.retried[at], k.line) })
	}
	return known, err
}

// readPlaces returns everything that the ledger has in these places.
func readPlaces(ctx context.Context, q querier, lots []string, epochs, seqs []int64) (map[place][]knownEvent, error) {
	rows, err := q.Query(ctx, `SELECT k.lot, k.epoch, k.seq, e.event_at, e.line, e.dead, e.folded
		FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS t(lot, epoch, seq)) AS k CROSS JOIN LATERAL (
			SELECT event_at, line, false AS dead, true AS folded FROM reservation_events e WHERE e.lot = k.lot AND e.epoch = k.epoch AND e.seq = k.seq
			UNION ALL SELECT event_at, line, false, false FROM waiting_events e WHERE e.lot = k.lot AND e.epoch = k.epoch AND e.seq = k.seq
			UNION ALL SELECT event_at, line, true, false FROM dead_letters e WHERE e.lot = k.lot AND e.epoch = k.epoch AND e.seq = k.seq) AS e`, lots, epochs, seqs)
	if err != nil {
		return nil, err
	}
	known := map[place][]knownEvent{}
	var k knownEvent
	_, err = pgx.ForEachRow(rows, []any{&k.lot, &k.Epoch, &k.Seq, &k.at, &k.line, &k.dead, &k.folded}, func() error {
		known[k.place] = append(known[k.place], k)
		return nil
	})
	return known, err
}

// runLimit is how many waiting events of a lot one call takes up beyond what came in.
const runLimit = 4096

// readWaiting reads the waiting events that may follow the watermark together with what came in.
func (a *application) readWaiting(ctx context.Context, tx pgx.Tx) error {
	var lots []string
	var epochs, after, until []int64
	for id, w := range a.lots {
		if w.lot != nil && w.lot.Waiting > 0 && w.lot.Stopped == "" {
			seq := w.lot.Watermark.Seq
			lots, epochs = append(lots, string(id)), append(epochs, w.lot.OpenEpoch)
			after, until = append(after, seq), append(until, seq+int64(len(w.fresh))+runLimit)
		}
	}
	if len(lots) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `SELECT w.lot, w.epoch, w.seq, w.event_at, w.line
		FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS k(lot, epoch, after, until)
		JOIN waiting_events w ON w.lot = k.lot AND w.epoch = k.epoch AND w.seq > k.after AND w.seq <= k.until`, lots, epochs, after, until)
	if err != nil {
		return err
	}
	list, err := collectStored(rows)
	if err != nil {
		return err
	}
	for _, s := range list {
		if slices.Contains(a.writes.unwait, s.place) { // it was discarded just now
			continue
		}
		ev, err := s.decode(a.installation)
		if err != nil {
			return err
		}
		w := a.lots[s.lot]
		if w.waiting == nil {
			w.waiting = map[int64]item{}
		}
		w.waiting[s.Seq] = item{ev, s.line}
	}
	return nil
}

// readState reads the reservations and allocations that the runs are about, and locks the allocations:
// a worker may be finishing one.
func (a *application) readState(ctx context.Context, tx pgx.Tx) error {
	var lots, refundLots, reloaded []string
	var ns, refundNs []int64
	for id, w := range a.lots {
		for _, it := range w.run {
			switch {
			case it.Kind == drop.KindLoaded && w.lot.Watermark.Seq > 0:
				reloaded = append(reloaded, string(id))
			case it.IsLotEvent() || it.Reservation.N > w.lot.Watermark.Seq: // held within the run, or never
			default:
				lots, ns = append(lots, string(id)), append(ns, it.Reservation.N)
				if it.Kind == drop.KindRefunded {
					refundLots, refundNs = append(refundLots, string(id)), append(refundNs, it.Reservation.N)
				}
			}
		}
	}
	if len(lots) > 0 {
		if err := a.readReservations(ctx, tx, reservationsByKeySQL, lots, ns); err != nil {
			return err
		}
	}
	if len(reloaded) > 0 {
		if err := a.readReservations(ctx, tx, `SELECT `+reservationColumns+` FROM reservations WHERE lot = ANY($1) AND state = 'held' AND rejected`, reloaded); err != nil {
			return err
		}
	}
	if len(refundLots) == 0 {
		return nil
	}
	return a.lockAllocations(ctx, tx, refundLots, refundNs)
}

const reservationColumns = `lot, n, attempt, user_id, state, qty, refunded, rest, deadline, created_at, changed_at, last_seq, ref, taken_from, key, asked, rejected`

func scanReservation(row pgx.CollectableRow) (drop.Recorded, error) {
	var r drop.Recorded
	err := row.Scan(&r.ID.Lot, &r.ID.N, &r.ID.Attempt, &r.User, &r.State, &r.Qty, &r.Refunded, &r.Rest, &r.Deadline, &r.Created, &r.Changed, &r.LastSeq, &r.Ref, &r.From, &r.Key, &r.Asked, &r.Rejected)
	r.Deadline, r.Created, r.Changed = r.Deadline.UTC(), r.Created.UTC(), r.Changed.UTC()
	return r, err
}

// reservationsByKeySQL looks each key up by itself. OFFSET 0 keeps the planner from joining instead: it cannot
// know that a look-up touches one partition only, and would read whole tables.
const reservationsByKeySQL = `SELECT ` + reservationColumns + ` FROM unnest($1::text[], $2::bigint[]) AS k(of, nth)
	CROSS JOIN LATERAL (SELECT * FROM reservations WHERE lot = k.of AND n = k.nth OFFSET 0) AS r`

func (a *application) readReservations(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	list, err := pgx.CollectRows(rows, scanReservation)
	for i := range list {
		a.lots[list[i].ID.Lot].fold.reservations[list[i].ID.N] = &list[i]
	}
	return err
}

func (a *application) lockAllocations(ctx context.Context, tx pgx.Tx, lots []string, ns []int64) error {
	rows, err := tx.Query(ctx, `SELECT lot, n, attempt, user_id, units, refunded, ref, epoch, seq, confirmed_at, state, reason, entries
		FROM pending_allocations WHERE (lot, n) IN (SELECT * FROM unnest($1::text[], $2::bigint[])) ORDER BY lot, n FOR UPDATE`, lots, ns)
	if err != nil {
		return err
	}
	var lot drop.LotID
	var p allocation
	_, err = pgx.ForEachRow(rows, []any{&lot, &p.n, &p.attempt, &p.user, &p.units, &p.refunded, &p.ref, &p.confirmed.Epoch, &p.confirmed.Seq, &p.at, &p.state, &p.reason, &p.entries}, func() error {
		one := p
		one.lot = lot
		a.lots[lot].fold.allocations[p.n] = &one
		return nil
	})
	return err
}
