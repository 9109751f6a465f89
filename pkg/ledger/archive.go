package ledger

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Archiving a lot takes two phases, and Redis comes between them: BeginArchive writes down what is going to happen,
// then the lot is taken out of Redis if it is not ahead of the watermark returned, then FinishArchive ends it.
// Whoever finds an archive begun, after a crash, does all three again: each does nothing where it was done. Lots
// under work are kept from others with LockLots. A restore ends an archive that was only begun, and so does whoever lets the lot sell again.

// BeginArchive decides that a lot's sale is over for good, and returns the lot. Its Archive says whether it was
// done before; then nothing is left to do.
// Errors: fault.NotFound; fault.Conflict while it is not closed, has holds, or has events to fold or sales to
// finalise.
func (l *Ledger) BeginArchive(ctx context.Context, id drop.LotID, actor string) (Lot, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var lot Lot
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) (err error) {
		if lot, err = lockLot(ctx, tx, id); err != nil || lot.Archive == drop.Archived {
			return err
		}
		if err := archivable(ctx, tx, lot); err != nil {
			return err
		}
		lot.Archive = drop.ArchiveBegun
		_, err = tx.Exec(ctx, `UPDATE lots SET archive = 'begun', archived_by = $2, archived_at = NULL WHERE lot = $1`, string(id), actor)
		return err
	})
	return lot, l.fail(err, "beginning to archive a lot")
}

// PlanArchive returns the lot if BeginArchive would take it, and changes nothing. Errors: as BeginArchive.
func (l *Ledger) PlanArchive(ctx context.Context, id drop.LotID) (Lot, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var lot Lot
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) (err error) {
		if lot, err = lockLot(ctx, tx, id); err != nil || lot.Archive == drop.Archived {
			return err
		}
		return archivable(ctx, tx, lot)
	})
	return lot, l.fail(err, "planning to archive a lot")
}

// archivable checks that nothing of the lot is left to be done.
func archivable(ctx context.Context, tx pgx.Tx, lot Lot) error {
	var holds, unfinished int64
	err := tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM reservations WHERE lot = $1 AND state = 'held'),
		(SELECT count(*) FROM pending_allocations WHERE lot = $1 AND state IN ('PENDING', 'PROCESSING'))`, string(lot.Lot)).Scan(&holds, &unfinished)
	if err != nil {
		return err
	}
	refuse := func(count int64, format string, args ...any) *fault.Error {
		return fault.New(fault.Conflict, "the lot %s "+format, append([]any{lot.Lot}, args...)...).With("count", count)
	}
	switch {
	case lot.Status != drop.Closed:
		return fault.New(fault.Conflict, "the lot %s is recorded as %s", lot.Lot, lot.Status).
			WithHint("dropctl lot close %s; if it is closed already, a worker has to record that first: dropctl worker --until-idle", lot.Lot)
	case lot.Stopped != "":
		return refuse(lot.Waiting, "is stopped (%s) with %s to fold", lot.Stopped, counted(lot.Waiting, "event")).WithHint("dropctl explain %s", lot.Stopped)
	case lot.Waiting > 0:
		return refuse(lot.Waiting, "has %s to fold", counted(lot.Waiting, "event")).WithHint("dropctl worker --until-idle")
	case holds > 0:
		return refuse(holds, "has %s", counted(holds, "hold")).WithHint("wait until they end: dropctl reservation list --lot %s --state held", lot.Lot)
	case unfinished > 0:
		return refuse(unfinished, "has %s to finalise", counted(unfinished, "confirmed reservation")).WithHint("dropctl worker --until-idle")
	}
	return nil
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}

// FinishArchive records that Redis has the lot no more. at is the watermark BeginArchive returned it with. The
// lot's last epoch is closed, so that whatever turns up later is a ghost. Of a lot that was archived before, only what
// reconcile has found is forgotten.
// Errors: fault.NotFound; fault.Conflict if the lot went on meanwhile, or no archive of it was begun.
func (l *Ledger) FinishArchive(ctx context.Context, id drop.LotID, at drop.Watermark) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		lot, err := lockLot(ctx, tx, id)
		if err == nil && lot.Archive != drop.Archived {
			err = l.finishArchive(ctx, tx, lot, at)
		}
		if err != nil {
			return err
		}
		// No reconcile run looks at it again, so that a finding of the last one would stay for ever.
		_, err = tx.Exec(ctx, `DELETE FROM lot_verdicts WHERE lot = $1`, string(id))
		return err
	})
	return l.fail(err, "archiving a lot")
}

func (l *Ledger) finishArchive(ctx context.Context, tx pgx.Tx, lot Lot, at drop.Watermark) error {
	if lot.Archive != drop.ArchiveBegun || lot.Watermark != at || lot.Waiting > 0 {
		return fault.New(fault.Conflict, "the lot %s went on while it was archived", lot.Lot).WithHint("run it again: dropctl lot archive %s", lot.Lot)
	}
	if _, err := l.issue(ctx, tx, lot, IssueRequest{Actor: lot.ArchivedBy, Reason: "archived"}); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE lots SET archive = 'done', archived_by = $2, archived_at = now() WHERE lot = $1`, string(lot.Lot), lot.ArchivedBy)
	return err
}

// lockLot locks one lot that the ledger must know.
func lockLot(ctx context.Context, tx pgx.Tx, id drop.LotID) (Lot, error) {
	lots, err := lockLots(ctx, tx, []drop.LotID{id})
	if err != nil {
		return Lot{}, err
	}
	lot, ok := lots[id]
	if !ok {
		return Lot{}, fault.New(fault.NotFound, "the ledger does not know the lot %s", id)
	}
	return *lot, nil
}
