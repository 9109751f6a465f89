package ledger

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

//go:embed sql/odd_sales.sql
var oddSalesSQL string

// Verification is what a recomputation of a lot's whole history found.
type Verification struct {
	Lot    drop.LotID
	Events int64          // journal rows read
	Units  int64          // net units of its sales
	Bad    string         // the first thing that does not follow; "" if everything does
	At     drop.Watermark // where; zero if it is not about a journal row
	N      int64          // of the reservation, if it is about one; else 0
}

// Verify recomputes a lot's history. First all journal rows in order: each must carry the hash of the one before, what they
// add up to must be the lot's totals, and the epochs issued must be those of the rows. Then each reservation's events: they must make up the recorded
// reservation, and its sales. It reads one moment, page by page, in memory that does not grow with the lot; progress,
// which may be nil, is told how far it is. Only the context bounds the time.
// Errors: fault.NotFound; a bad history is no error but a finding.
func (l *Ledger) Verify(ctx context.Context, id drop.LotID, progress func(done, of int64)) (Verification, error) {
	a := &audit{Verification: Verification{Lot: id}, installation: l.installation.ID, progress: progress, rejected: map[int64]bool{}}
	err := pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// Sorting a long history takes longer than any statement of the sale may.
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		return a.run(ctx, tx)
	})
	return a.Verification, l.fail(err, "verifying a lot")
}

// Doubled counts the events that a lot's journal has twice of what happens to a reservation only once: that it was held,
// confirmed, expired. (Of sales there can be no two: a constraint is against it.)
func (l *Ledger) Doubled(ctx context.Context, id drop.LotID) (n int64, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	err = l.pool.QueryRow(ctx, `SELECT coalesce(sum(times - 1), 0)::bigint FROM (SELECT count(*) AS times FROM reservation_events
		WHERE lot = $1 AND kind IN ('held', 'confirmed', 'expired') GROUP BY reservation, kind) AS once`, string(id)).Scan(&n)
	return n, l.fail(err, "looking for what is there twice")
}

// audit is a verification under way.
type audit struct {
	Verification
	installation string
	progress     func(done, of int64)
	read, of     int64
	rejected     map[int64]bool   // holds beyond the capacity; none in a sound shop
	loads        []int64          // seqs of the loads, which end rejected holds
	ends         []drop.Watermark // of each epoch that the journal has, where it ends
}

func (a *audit) run(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT `+lotColumns+` FROM lots WHERE lot = $1`, string(a.Lot))
	if err != nil {
		return err
	}
	lot, err := pgx.CollectExactlyOneRow(rows, scanLot)
	if errors.Is(err, pgx.ErrNoRows) {
		return fault.New(fault.NotFound, "the ledger does not know the lot %s", a.Lot).WithHint("list what there is: dropctl lot list")
	}
	if err != nil {
		return err
	}
	a.of = 2 * lot.Watermark.Seq
	steps := []func(context.Context, pgx.Tx, Lot) error{a.journal, a.epochs, a.reservations, a.sales}
	for _, step := range steps {
		if err := step(ctx, tx, lot); err != nil || a.Bad != "" {
			return err
		}
	}
	return nil
}

const verifyPage = 5000

func (a *audit) tell(rows int) {
	if a.read += int64(rows); a.progress != nil {
		a.progress(min(a.read, a.of), a.of)
	}
}

// journal reads all rows in order, and compares what they add up to with the lot.
func (a *audit) journal(ctx context.Context, tx pgx.Tx, was Lot) error {
	f := newFold(&Lot{LedgerLot: drop.LedgerLot{Definition: drop.Definition{Lot: a.Lot}}})
	for read := verifyPage; read == verifyPage; {
		rows, err := tx.Query(ctx, `SELECT lot, epoch, seq, event_at, line, hash, kind, coalesce(reservation, 0) FROM reservation_events
			WHERE lot = $1 AND (epoch, seq) > ($2, $3) ORDER BY epoch, seq LIMIT $4`, string(a.Lot), f.lot.Watermark.Epoch, f.lot.Watermark.Seq, verifyPage)
		if err != nil {
			return err
		}
		var s stored
		var c copies
		read = 0
		_, err = pgx.ForEachRow(rows, []any{&s.lot, &s.Epoch, &s.Seq, &s.at, &s.line, &c.hash, &c.kind, &c.n}, func() error {
			if read++; a.Bad == "" {
				if a.Bad = a.takeRow(f, s, c); a.Bad != "" {
					a.At = s.Watermark
				}
				a.ended(s.Watermark)
			}
			return nil
		})
		a.Events += int64(read)
		a.tell(read)
		if err != nil || a.Bad != "" {
			return err
		}
	}
	is := f.lot
	if is.Watermark.Seq > 0 && !was.Seen {
		a.Bad = "the lot says that it was never on sale, and has a journal: a seed would put it on sale once more"
		return nil
	}
	unsold := is.Watermark == drop.Watermark{} && was.Held == 0 && was.Sold == 0
	if is.Watermark != was.Watermark || !bytes.Equal(is.hash, was.hash) || is.Totals() != was.Totals() && !unsold {
		a.Bad = fmt.Sprintf("the journal adds up to %s at %d/%d, the lot says %s at %d/%d", totalsText(is.Totals()), is.Watermark.Epoch, is.Watermark.Seq,
			totalsText(was.Totals()), was.Watermark.Epoch, was.Watermark.Seq)
	}
	return nil
}

// ended notes where an epoch of the journal ends, as far as it was read.
func (a *audit) ended(at drop.Watermark) {
	if last := len(a.ends) - 1; last >= 0 && a.ends[last].Epoch == at.Epoch {
		a.ends[last] = at
		return
	}
	a.ends = append(a.ends, at)
}

// epochs compares the epochs that were issued with the journal: each has closed the lot where the journal of the ones before
// it ends, and the journal has events of no other. A number is left out only behind one that dead letters have used.
func (a *audit) epochs(ctx context.Context, tx pgx.Tx, was Lot) error {
	rows, err := tx.Query(ctx, `SELECT epoch, closed_epoch, closed_seq, EXISTS (SELECT FROM dead_letters d WHERE d.lot = e.lot AND d.epoch = e.epoch - 1)
		FROM lot_epochs e WHERE lot = $1 ORDER BY epoch`, string(a.Lot))
	if err != nil {
		return err
	}
	var last, epoch int64
	var closed, end drop.Watermark // end: of the journal before the epoch
	var used bool
	ends := a.ends
	_, err = pgx.ForEachRow(rows, []any{&epoch, &closed.Epoch, &closed.Seq, &used}, func() error {
		for ; a.Bad == "" && len(ends) > 0 && ends[0].Epoch < epoch; ends = ends[1:] {
			if end = ends[0]; end.Epoch != last {
				a.Bad = fmt.Sprintf("the journal has events of epoch %d, which was not issued", end.Epoch)
			}
		}
		switch {
		case a.Bad != "":
		case epoch != last+1 && !used:
			a.Bad = fmt.Sprintf("epoch %d was issued next to %d", epoch, last)
		case closed != end:
			a.Bad = fmt.Sprintf("epoch %d was issued at %d/%d, but the journal before it ends at %d/%d", epoch, closed.Epoch, closed.Seq, end.Epoch, end.Seq)
		}
		last = epoch
		return nil
	})
	switch {
	case err != nil || a.Bad != "":
	case len(ends) > 1 || len(ends) == 1 && ends[0].Epoch != last:
		a.Bad = fmt.Sprintf("the journal has events of epoch %d, which was not issued", ends[len(ends)-1].Epoch)
	case last != was.OpenEpoch:
		a.Bad = fmt.Sprintf("the epoch issued last is %d, the lot says %d", last, was.OpenEpoch)
	}
	return err
}

func totalsText(t drop.Totals) string {
	return fmt.Sprintf("%d held and %d sold of %d", t.Held, t.Sold, t.Capacity)
}

// copies are what a row has besides its event.
type copies struct {
	hash []byte
	kind drop.Kind
	n    int64
}

// takeRow adds one row up and returns what is wrong with it.
func (a *audit) takeRow(f *fold, s stored, c copies) string {
	s.at = s.at.UTC()
	ev, err := s.decode(a.installation)
	if err != nil {
		return "its line is not an event"
	}
	if bad := f.follows(ev); bad != nil {
		return bad.reason
	}
	if bad := a.add(f, ev); bad != nil {
		return bad.reason
	}
	f.record(item{ev, s.line})
	f.journal = f.journal[:0]
	switch {
	case !bytes.Equal(f.lot.hash, c.hash):
		return "its hash does not follow from the row before and the event"
	case c.kind != ev.Kind || c.n != ev.Reservation.N:
		return fmt.Sprintf("it calls itself a %s event of reservation %d, and is a %s event of %d", c.kind, c.n, ev.Kind, ev.Reservation.N)
	}
	return ""
}

// add adds an event up without knowing its reservation, apart from whether it was rejected.
func (a *audit) add(f *fold, ev drop.Event) *misfit {
	switch ev.Kind {
	case drop.KindLoaded:
		a.loads = append(a.loads, ev.Seq)
		return f.loaded(ev)
	case drop.KindAdjusted, drop.KindChanged:
		return f.redefined(ev)
	case drop.KindVoid:
		return nil
	case drop.KindHeld:
		if f.lot.Held+f.lot.Sold+ev.Qty > f.lot.Stock {
			a.rejected[ev.Seq] = true
		}
	}
	if a.rejected[ev.Reservation.N] {
		return nil
	}
	held, sold, capacity := ev.Delta()
	f.lot.Held, f.lot.Sold, f.lot.Stock = f.lot.Held+held, f.lot.Sold+sold, f.lot.Stock+capacity
	if f.lot.Held < 0 || f.lot.Sold < 0 || f.lot.Held+f.lot.Sold > f.lot.Stock {
		return unfoldable("it leads to %s", totalsText(f.lot.Totals()))
	}
	return nil
}

// reservations folds each reservation by itself, in the order of n, beside what is recorded of it.
func (a *audit) reservations(ctx context.Context, tx pgx.Tx, _ Lot) error {
	_, err := tx.Exec(ctx, `DECLARE events NO SCROLL CURSOR FOR SELECT lot, epoch, seq, event_at, line FROM reservation_events
		WHERE lot = $1 AND reservation IS NOT NULL ORDER BY reservation, seq`, string(a.Lot))
	if err != nil {
		return err
	}
	events := pages[drop.Event]{read: func() ([]drop.Event, error) { return a.fetchEvents(ctx, tx) }}
	var last int64
	recorded := pages[drop.Recorded]{read: func() ([]drop.Recorded, error) {
		rows, err := tx.Query(ctx, `SELECT `+reservationColumns+` FROM reservations WHERE lot = $1 AND n > $2 ORDER BY n LIMIT $3`, string(a.Lot), last, verifyPage)
		if err != nil {
			return nil, err
		}
		page, err := pgx.CollectRows(rows, scanReservation)
		if len(page) > 0 {
			last = page[len(page)-1].ID.N
		}
		return page, err
	}}
	f := newFold(&Lot{})
	for a.Bad == "" {
		ev, is := events.first(), recorded.first()
		if ev == nil && is == nil || events.err != nil || recorded.err != nil {
			break
		}
		if is == nil || ev != nil && ev.Reservation.N <= is.ID.N {
			a.N = ev.Reservation.N
		} else {
			a.N = is.ID.N
		}
		was := a.foldOne(f, &events)
		if a.Bad != "" {
			break
		}
		a.compare(is, was)
		if is != nil && is.ID.N == a.N {
			recorded.skip()
		}
	}
	if a.Bad == "" {
		a.N = 0
	}
	return errors.Join(events.err, recorded.err)
}

func (a *audit) fetchEvents(ctx context.Context, tx pgx.Tx) ([]drop.Event, error) {
	rows, err := tx.Query(ctx, fmt.Sprintf(`FETCH FORWARD %d FROM events`, verifyPage))
	if err != nil {
		return nil, err
	}
	list, err := collectStored(rows)
	if err != nil {
		return nil, err
	}
	events := make([]drop.Event, len(list))
	for i, s := range list {
		if events[i], err = s.decode(a.installation); err != nil {
			return nil, err
		}
	}
	a.tell(len(list))
	return events, nil
}

// foldOne folds the events of reservation N, and returns what they make of it; nil if there are none.
func (a *audit) foldOne(f *fold, events *pages[drop.Event]) *drop.Recorded {
	clear(f.reservations)
	clear(f.allocations)
	clear(f.touched)
	clear(f.paid)
	f.entries, f.due, f.confirmations = f.entries[:0], f.due[:0], f.confirmations[:0]
	*f.lot = Lot{LedgerLot: drop.LedgerLot{Definition: drop.Definition{Lot: a.Lot, Stock: math.MaxInt64 / 2}}}
	if a.rejected[a.N] {
		f.lot.Stock = 0
	}
	var seq int64
	for ev := events.first(); ev != nil && ev.Reservation.N == a.N; ev = events.first() {
		a.endRejected(f, seq, ev.Seq)
		if bad := f.ofReservation(*ev); bad != nil {
			a.Bad, a.At = bad.reason, ev.Watermark()
			return nil
		}
		seq = ev.Seq
		events.skip()
	}
	a.endRejected(f, seq, math.MaxInt64)
	return f.reservations[a.N]
}

// endRejected ends a rejected hold if the lot was loaded anew between two places.
func (a *audit) endRejected(f *fold, from, to int64) {
	r := f.reservations[a.N]
	if r == nil || !r.Rejected || r.State != drop.Held {
		return
	}
	for _, load := range a.loads {
		if load > from && load < to {
			r.State = drop.Expired
		}
	}
}

func (a *audit) compare(is *drop.Recorded, was *drop.Recorded) {
	has := is != nil && is.ID.N == a.N
	switch {
	case !has && was == nil: // only a payment that came too late is known of it
	case !has:
		a.Bad = fmt.Sprintf("the reservation %s of the journal is not recorded", was.ID)
	case was == nil:
		a.Bad = fmt.Sprintf("the reservation %s is recorded, and no event of the journal is about it", is.ID)
	case !equalRecorded(*is, *was):
		a.Bad = fmt.Sprintf("the reservation %s is not what its events add up to", is.ID)
	}
}

func equalRecorded(r, o drop.Recorded) bool {
	same := r.Deadline.Equal(o.Deadline) && r.Created.Equal(o.Created) && r.Changed.Equal(o.Changed)
	r.Deadline, r.Created, r.Changed = o.Deadline, o.Created, o.Changed
	return same && r == o
}

// sales compares the order ledger with the reservations.
func (a *audit) sales(ctx context.Context, tx pgx.Tx, _ Lot) error {
	if err := tx.QueryRow(ctx, `SELECT coalesce(sum(units), 0)::bigint FROM order_ledger WHERE lot = $1`, string(a.Lot)).Scan(&a.Units); err != nil {
		return err
	}
	var n, units, sold, pending int64
	var known bool
	err := tx.QueryRow(ctx, oddSalesSQL, string(a.Lot)).Scan(&n, &units, &sold, &pending, &known)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	switch a.N = n; {
	case err != nil:
		return err
	case !known:
		a.Bad = fmt.Sprintf("there are sales or an allocation, %d units, of reservation %d, which the journal does not know", sold+pending, n)
	case units != sold+pending:
		a.Bad = fmt.Sprintf("reservation %d has %d units, but its sales add up to %d, and %d are not finalised", n, units, sold, pending)
	default:
		a.Bad = fmt.Sprintf("the sales of reservation %d, or its allocation, name another user, payment, attempt or number of sales", n)
	}
	return nil
}

// pages is a list that is read page by page and looked at one by one.
type pages[T any] struct {
	read func() ([]T, error)
	page []T
	done bool
	err  error
}

// first returns the first of what is left; nil at the end and after an error.
func (p *pages[T]) first() *T {
	if len(p.page) == 0 && !p.done {
		p.page, p.err = p.read()
		p.done = len(p.page) == 0
	}
	if len(p.page) == 0 || p.err != nil {
		return nil
	}
	return &p.page[0]
}

func (p *pages[T]) skip() { p.page = p.page[1:] }
