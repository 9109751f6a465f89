package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// What the ledger has of a lot can be damaged: somebody with the owner's rights planted or changed rows, or put only some of
// them back. PostgreSQL refuses what would follow, and with it everything else in the transaction. Then the lots part.

// errUnreadable says that a row holds what dropctl never wrote.
var errUnreadable = errors.New("its line is not an event")

// damaged reports whether an error says so: a row is where the next one belongs, counts leave their bounds, or an event
// cannot be read. It must not be one that any lot could meet, as after a mistake in a statement.
func damaged(err error) bool {
	return hasState(err, stateNotUnique) || hasState(err, stateCheck) || hasState(err, stateOutOfRange) || errors.Is(err, errUnreadable)
}

// applyApart does again what could not be done at once, each lot in a transaction of its own. One that cannot be done even
// then is set aside.
func (l *Ledger) applyApart(ctx context.Context, all *application) (sum drop.Applied, err error) {
	for _, lot := range append(all.ids(), "") { // "": lines that name none
		a := all.only(lot)
		err := l.inTransaction(ctx, a, a.take)
		if damaged(err) {
			why := err
			a = all.only(lot)
			err = l.inTransaction(ctx, a, func(ctx context.Context, tx pgx.Tx) error { return a.setAside(ctx, tx, why) })
		}
		if err != nil {
			return sum, l.fail(err, "applying events")
		}
		sum = plus(sum, a.result)
	}
	return sum, nil
}

// only returns a fresh application of what came in for one lot.
func (a *application) only(lot drop.LotID) *application {
	one := newApplication(a.installation, nil, nil)
	if w := a.lots[lot]; w != nil {
		one.work(lot).incoming = w.incoming
	}
	one.poison = slices.DeleteFunc(slices.Clone(a.poison), func(p drop.Poison) bool { return p.Lot != lot })
	return one
}

func plus(a, b drop.Applied) drop.Applied {
	return drop.Applied{Duplicates: a.Duplicates + b.Duplicates, Folded: a.Folded + b.Folded, Waiting: a.Waiting + b.Waiting, Dead: a.Dead + b.Dead,
		Notices: a.Notices + b.Notices, Stopped: append(a.Stopped, b.Stopped...)}
}

// setAside stops a damaged lot, and keeps what would have been folded as dead letters: there it can be seen, tried again
// once the damage is mended, or given up.
func (a *application) setAside(ctx context.Context, tx pgx.Tx, why error) error {
	if err := a.sort(ctx, tx); err != nil {
		return err
	}
	reason := damage(damageText(why))
	for _, w := range a.lots {
		if w.lot == nil {
			continue
		}
		for _, seq := range slices.Sorted(maps.Keys(w.fresh)) {
			a.stopAt(w, w.fresh[seq], fault.StopUnfoldable, reason)
		}
		w.changed = true
		w.lot.stop(fault.StopUnfoldable, reason)
	}
	return a.write(ctx, tx)
}

func damage(what string) string { return "what the ledger has of the lot is damaged: " + what }

// damageText says which row is in the way, where PostgreSQL names it by its key.
func damageText(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return err.Error()
	case pg.Code == stateNotUnique && pg.Detail != "":
		return pg.Message + ": " + pg.Detail
	}
	return pg.Message
}
