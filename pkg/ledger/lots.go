package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Lot is a lot as the ledger has folded it, and what only the ledger cares about.
type Lot struct {
	drop.LedgerLot
	Waiting       int64     // events the ledger has but cannot fold yet
	EventAt       time.Time // Redis time of the newest event folded; zero: none
	StoppedReason string
	StoppedAt     time.Time
	AdjustActor   string // who changed the capacity last; "" if nobody did since the first load
	AdjustReason  string
	Seeded        *int64 // the stock that the last seed named; nil: not known
	ArchivedBy    string
	ArchivedAt    time.Time // zero: it is not

	hash []byte // of the newest journal row
}

const lotColumns = `lot, name, capacity, user_limit, hold_ms, max_hold_ms, opens, closes, late, status, held, sold, epoch, seq, hash, open_epoch,
	waiting, seen, event_at, stopped, stopped_reason, stopped_at, adjust_actor, adjust_reason, seeded_stock, archive, archived_by, archived_at`

func scanLot(row pgx.CollectableRow) (Lot, error) { return scanLotAnd(row) }

// scanLotAnd reads a row that has more columns behind those of the lot.
func scanLotAnd(row pgx.CollectableRow, more ...any) (Lot, error) {
	var l Lot
	var hold, maxHold int64
	var opens, closes, eventAt, stoppedAt, archivedAt *time.Time
	err := row.Scan(append([]any{&l.Lot, &l.Name, &l.Stock, &l.Limit, &hold, &maxHold, &opens, &closes, &l.Late, &l.Status, &l.Held, &l.Sold, &l.Watermark.Epoch, &l.Watermark.Seq, &l.hash, &l.OpenEpoch,
		&l.Waiting, &l.Seen, &eventAt, &l.Stopped, &l.StoppedReason, &stoppedAt, &l.AdjustActor, &l.AdjustReason, &l.Seeded, &l.Archive, &l.ArchivedBy, &archivedAt}, more...)...)
	l.Hold, l.MaxHold = time.Duration(hold)*time.Millisecond, time.Duration(maxHold)*time.Millisecond
	l.Opens, l.Closes, l.EventAt, l.StoppedAt, l.ArchivedAt = timeOf(opens), timeOf(closes), timeOf(eventAt), timeOf(stoppedAt), timeOf(archivedAt)
	return l, err
}

// timeOf and nullTime translate between SQL's NULL and the zero time.
func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func nullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// texts turns ids into what the driver sends as text[].
func texts[T ~string](ids []T) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// WhyAbsent is why Redis rightly has no such lot, nil if it should have it (drop.WhyAbsent); err is why that is not known.
func (l *Ledger) WhyAbsent(ctx context.Context, lot drop.LotID) (why, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var known drop.LedgerLot
	err = l.pool.QueryRow(ctx, `SELECT archive, status, held FROM lots WHERE lot = $1`, string(lot)).Scan(&known.Archive, &known.Status, &known.Held)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return drop.WhyAbsent(lot, nil), nil
	case err != nil:
		return nil, l.fail(err, "looking for a lot")
	}
	return drop.WhyAbsent(lot, &known), nil
}

// Lots returns these lots, or all that are not archived for nil, sorted by id. One that the ledger does not know is
// absent.
func (l *Ledger) Lots(ctx context.Context, ids []drop.LotID) ([]Lot, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var rows pgx.Rows
	var err error
	if ids == nil {
		rows, err = l.pool.Query(ctx, `SELECT `+lotColumns+` FROM lots WHERE archive <> 'done' ORDER BY lot`)
	} else {
		rows, err = l.pool.Query(ctx, `SELECT `+lotColumns+` FROM lots WHERE lot = ANY($1) ORDER BY lot`, texts(ids))
	}
	if err != nil {
		return nil, l.fail(err, "reading lots")
	}
	lots, err := pgx.CollectRows(rows, scanLot)
	return lots, l.fail(err, "reading lots")
}

// CreateLot records a lot's definition before anything of it exists in Redis. created is false if the ledger
// knew the lot: then the definition replaces the recorded one only if no event of the lot ever arrived, since
// from the first load on the definition comes from Redis alone.
func (l *Ledger) CreateLot(ctx context.Context, def drop.Definition, actor string) (created bool, err error) {
	if err := def.Check(); err != nil {
		return false, err
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	// A dead letter may be all that is known of the lot, so that it counts as an event that arrived.
	// xmax is 0 for a row that this statement inserted.
	const q = `INSERT INTO lots AS l (lot, name, capacity, user_limit, hold_ms, max_hold_ms, opens, closes, late, status, created_by, seeded_stock, seen)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $3, EXISTS (SELECT FROM dead_letters WHERE lot = $1))
		ON CONFLICT (lot) DO UPDATE SET (name, capacity, seeded_stock, user_limit, hold_ms, max_hold_ms, opens, closes, late, status) =
			(EXCLUDED.name, EXCLUDED.capacity, EXCLUDED.seeded_stock, EXCLUDED.user_limit, EXCLUDED.hold_ms, EXCLUDED.max_hold_ms, EXCLUDED.opens, EXCLUDED.closes, EXCLUDED.late, EXCLUDED.status)
			WHERE NOT l.seen AND l.archive = ''
		RETURNING xmax = 0`
	err = l.pool.QueryRow(ctx, q, string(def.Lot), def.Name, def.Stock, def.Limit, def.Hold.Milliseconds(), def.MaxHold.Milliseconds(),
		nullTime(def.Opens), nullTime(def.Closes), string(def.Late), string(def.Status), actor).Scan(&created)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return created, l.fail(err, "creating a lot")
}

// AgreeStocks remembers the stock that a seed names for each lot, so that the next seed can tell whether anybody
// changed it since. A lot that the ledger does not know is left out.
func (l *Ledger) AgreeStocks(ctx context.Context, stocks map[drop.LotID]int64) error {
	lots, units := make([]string, 0, len(stocks)), make([]int64, 0, len(stocks))
	for lot, stock := range stocks {
		lots, units = append(lots, string(lot)), append(units, stock)
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		// Locked in the order of ids, as every writer does.
		if _, err := tx.Exec(ctx, `SELECT FROM lots WHERE lot = ANY($1) ORDER BY lot FOR UPDATE`, lots); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE lots l SET seeded_stock = t.stock FROM unnest($1::text[], $2::bigint[]) AS t(lot, stock) WHERE l.lot = t.lot`, lots, units)
		return err
	})
	return l.fail(err, "remembering what was seeded")
}

// IssueRequest says for whom an epoch is issued.
type IssueRequest struct {
	OnlyUnseen bool            // of a seed: it begins a lot's first life, and never another one
	Expect     *drop.LedgerLot // only if the lot still is as it was seen: at this watermark and open epoch, neither stopped nor put away
	Actor      string
	Reason     string
}

// Issued is an epoch of a lot and what its load must carry.
type Issued struct {
	Epoch   int64
	Closing drop.Watermark // at which the epoch before was closed
	Lot     Lot            // as it was closed; its totals are those of the load
}

// IssueEpoch closes the lot's open epoch at its watermark and issues the next number, never used before.
// What of an older epoch waits, or arrives later, is a ghost: a dead letter and, if it confirmed units or
// brought money, due for refund. A stopped lot is folded again from the new epoch's load on.
//
// With OnlyUnseen it returns fault.Conflict if any event of the lot ever arrived, since a seed must not recreate
// stock. As long as none did, an epoch that was issued before is returned again: its load may have timed out and
// still come through, and what is sold under it must not become a ghost.
// Errors: fault.NotFound; fault.Conflict, also of a lot that is archived.
func (l *Ledger) IssueEpoch(ctx context.Context, lot drop.LotID, r IssueRequest) (Issued, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var issued Issued
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		known, err := lockLot(ctx, tx, lot)
		if err != nil {
			return err
		}
		if known.Archive == drop.Archived || r.OnlyUnseen && known.Archive != drop.NotArchived {
			return fault.New(fault.Conflict, "the lot %s is archived: its sale is over for good", lot).WithHint("choose another name for a new sale")
		}
		if r.OnlyUnseen && known.Seen {
			return fault.New(fault.Conflict, "the ledger already has events of the lot %s", lot).WithHint("rebuild it from the ledger: dropctl restore %s", lot)
		}
		if r.OnlyUnseen && known.OpenEpoch > 0 {
			issued = Issued{Epoch: known.OpenEpoch, Closing: known.Watermark, Lot: known}
			return nil
		}
		if seen := r.Expect; seen != nil && (known.Watermark != seen.Watermark || known.OpenEpoch != seen.OpenEpoch || known.Stopped != "" || known.Archive != drop.NotArchived) {
			return fault.New(fault.Conflict, "the lot %s is no longer as it was seen", lot)
		}
		issued, err = l.issue(ctx, tx, known, r)
		return err
	})
	return issued, l.fail(err, "issuing an epoch")
}

// issue closes the open epoch of a lot that is locked and issues the next one. It ends an archive that was begun.
func (l *Ledger) issue(ctx context.Context, tx pgx.Tx, lot Lot, r IssueRequest) (Issued, error) {
	issued := Issued{Closing: lot.Watermark, Lot: lot}
	var batch pgx.Batch // one journey: a rebuild of many lots waits for nothing else as long
	// A database that was put back to an older state, perhaps in part, may meet numbers it does not remember to have issued.
	batch.Queue(`WITH issued AS (INSERT INTO lot_epochs (lot, epoch, closed_epoch, closed_seq, actor, reason)
			VALUES ($1, 1 + greatest($2, (SELECT max(epoch) FROM dead_letters WHERE lot = $1), (SELECT max(epoch) FROM lot_epochs WHERE lot = $1)), $3, $4, $5, $6) RETURNING epoch)
		UPDATE lots SET open_epoch = issued.epoch, waiting = 0, stopped = '', stopped_reason = '', stopped_at = NULL, archive = '', archived_by = ''
		FROM issued WHERE lot = $1 RETURNING open_epoch`, string(lot.Lot), lot.OpenEpoch, issued.Closing.Epoch, issued.Closing.Seq, r.Actor, r.Reason).
		QueryRow(func(row pgx.Row) error { return row.Scan(&issued.Epoch) })
	var waiting, dead []stored
	batch.Queue(`DELETE FROM waiting_events WHERE lot = $1 RETURNING lot, epoch, seq, event_at, line`, string(lot.Lot)).
		Query(func(rows pgx.Rows) (err error) { waiting, err = collectStored(rows); return err })
	// The events that stopped the lot are dead letters already. What they paid for was open until now.
	batch.Queue(`SELECT lot, epoch, seq, event_at, line FROM dead_letters WHERE lot = $1 AND epoch >= $2 AND (seq > $3 OR code = 'fork')`,
		string(lot.Lot), lot.OpenEpoch, lot.Watermark.Seq).
		Query(func(rows pgx.Rows) (err error) { dead, err = collectStored(rows); return err })
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return issued, err
	}
	return issued, l.bury(ctx, tx, waiting, dead)
}

// bury makes ghosts of what waited behind the point at which an epoch was closed, and notes what they and the dead letters
// beyond it paid for. A row that is no event must not keep the lot from going on.
func (l *Ledger) bury(ctx context.Context, tx pgx.Tx, waiting, dead []stored) error {
	if len(waiting)+len(dead) == 0 {
		return nil
	}
	var w writes
	slices.SortFunc(waiting, func(a, b stored) int { return a.compare(b.place) })
	for _, s := range waiting {
		if ev, err := s.decode(l.installation.ID); err == nil {
			w.ghost(item{ev, s.line})
		} else {
			w.poison(drop.Poison{Lot: s.lot, Epoch: s.Epoch, Raw: s.line, Reason: err.Error()})
		}
	}
	for _, s := range dead {
		if ev, err := s.decode(l.installation.ID); err == nil { // else nobody can tell what it paid for
			w.refundGhost(ev)
		}
	}
	batch := &pgx.Batch{}
	w.queueDead(batch, new(int64))
	w.queueRefundsDue(batch)
	return tx.SendBatch(ctx, batch).Close()
}

// lockLotsSQL locks lots in the order of their ids, which every writer does first, so that none waits in a circle.
const lockLotsSQL = `SELECT ` + lotColumns + ` FROM lots WHERE lot = ANY($1) ORDER BY lot FOR UPDATE`

func lockLots(ctx context.Context, tx pgx.Tx, ids []drop.LotID) (map[drop.LotID]*Lot, error) {
	rows, err := tx.Query(ctx, lockLotsSQL, texts(ids))
	if err != nil {
		return nil, err
	}
	return lotsByID(rows)
}

func lotsByID(rows pgx.Rows) (map[drop.LotID]*Lot, error) {
	list, err := pgx.CollectRows(rows, scanLot)
	lots := make(map[drop.LotID]*Lot, len(list))
	for i := range list {
		lots[list[i].Lot] = &list[i]
	}
	return lots, err
}
