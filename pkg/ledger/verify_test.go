package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
)

// soldLot makes a lot with every kind of reservation, all finalised. Its events are: 1 load, 2–5 holds, 6 confirm, 7 confirm,
// 8 release, 9 refund, 10 paid late.
func soldLot(t *testing.T, l *Ledger, lot drop.LotID) {
	t.Helper()
	r := seeded(t, l, lot, 10)
	ada, bob, cy := r.hold("ada", 2), r.hold("bob", 3), r.hold("cy", 1)
	r.hold("dan", 1)
	r.confirm(ada, 2, "pay-ada")
	r.confirm(bob, 3, "pay-bob")
	r.release(cy, 0)
	apply(t, l, r.take()...)
	finaliseOnce(t, l)
	r.refund(bob, 1, true)
	r.paidLate(cy, "pay-cy")
	apply(t, l, r.take()...)
	if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" || v.Events != 10 || v.Units != 4 {
		t.Fatalf("a sound lot: %+v, %v", v, err)
	}
}

// Each kind of damage, done by somebody who owns the tables and has switched their triggers off, is found, and the first row
// that does not fit is named.
func TestVerifyFindsEveryDamage(t *testing.T) {
	l, db := newLedger(t)
	owner := openPool(t, db.URL(lab.Owner))
	journal := `reservation_events WHERE lot = '%[1]s' AND `
	for name, c := range map[string]struct {
		damage string
		seq    int64 // of the row that is named; 0: none of the journal
		n      int64
		says   string
	}{
		"changed row":             {`UPDATE reservation_events SET line = replace(line, 'pay-bob', 'pay-eve') WHERE lot = '%[1]s' AND seq = 7`, 7, 0, "hash does not follow"},
		"changed time":            {`UPDATE reservation_events SET event_at = event_at + interval '1 ms' WHERE lot = '%[1]s' AND seq = 6`, 6, 0, "hash"},
		"changed copy":            {`UPDATE reservation_events SET kind = 'released' WHERE lot = '%[1]s' AND seq = 7`, 7, 0, "calls itself"},
		"changed number":          {`UPDATE reservation_events SET reservation = 2 WHERE lot = '%[1]s' AND seq = 7`, 7, 0, "calls itself"},
		"no event":                {`UPDATE reservation_events SET line = 'x' WHERE lot = '%[1]s' AND seq = 3`, 3, 0, "not an event"},
		"removed row":             {"DELETE FROM " + journal + "seq = 4", 5, 0, "seq 5 does not follow 3"},
		"removed first row":       {"DELETE FROM " + journal + "seq = 1", 2, 0, "does not follow 0"},
		"removed last row":        {"DELETE FROM " + journal + "seq = 10", 0, 0, "the journal adds up to"},
		"removed all rows":        {"DELETE FROM " + journal + "true", 0, 0, "the journal adds up to"},
		"row put in":              {`INSERT INTO reservation_events SELECT lot, epoch, 11, kind, reservation, event_at, line, hash FROM reservation_events WHERE lot = '%[1]s' AND seq = 10`, 11, 0, ""},
		"swapped hashes":          {`UPDATE reservation_events e SET hash = o.hash FROM reservation_events o WHERE e.lot = '%[1]s' AND o.lot = e.lot AND e.seq IN (3, 5) AND o.seq = 8 - e.seq`, 3, 0, "hash"},
		"changed totals":          {`UPDATE lots SET sold = sold - 1 WHERE lot = '%[1]s'`, 0, 0, "3 sold"},
		"changed capacity":        {`UPDATE lots SET capacity = 11 WHERE lot = '%[1]s'`, 0, 0, "of 11"},
		"changed watermark":       {`UPDATE lots SET seq = 9 WHERE lot = '%[1]s'`, 0, 0, "1/9"},
		"changed last hash":       {`UPDATE lots SET hash = '\x00' WHERE lot = '%[1]s'`, 0, 0, "adds up to"},
		"changed reservation":     {`UPDATE reservations SET user_id = 'eve' WHERE lot = '%[1]s' AND n = 3`, 0, 3, "is not what its events add up to"},
		"removed reservation":     {`DELETE FROM reservations WHERE lot = '%[1]s' AND n = 4`, 0, 4, "is not recorded"},
		"removed last one":        {`DELETE FROM reservations WHERE lot = '%[1]s' AND n = 5`, 0, 5, "is not recorded"},
		"invented reservation":    {`INSERT INTO reservations SELECT lot, 99, attempt, user_id, state, qty, refunded, rest, deadline, created_at, changed_at, last_seq, ref, taken_from, key, asked, rejected FROM reservations WHERE lot = '%[1]s' AND n = 5`, 0, 99, "no event of the journal"},
		"order row without event": {`INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref) VALUES ('%[1]s', 77, 1, 'sale', 1, 'a', 'eve', '')`, 0, 77, "does not know"},
		"order row of a hold":     {`INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref) SELECT lot, n, 1, 'sale', 1, attempt, user_id, '' FROM reservations WHERE lot = '%[1]s' AND n = 5`, 0, 5, "has 0 units"},
		"orders that cancel out":  {`UPDATE order_ledger SET units = CASE n WHEN 2 THEN 3 ELSE 2 END WHERE lot = '%[1]s' AND entry = 1`, 0, 2, "has 2 units, but its sales add up to 3"},
		"removed order row":       {`DELETE FROM order_ledger WHERE lot = '%[1]s' AND n = 2`, 0, 2, "sales add up to 0"},
		"another buyer":           {`UPDATE order_ledger SET user_id = 'eve' WHERE lot = '%[1]s' AND n = 3 AND entry = 2`, 0, 3, "another user"},
		"another payment":         {`UPDATE order_ledger SET ref = 'pay-eve' WHERE lot = '%[1]s' AND n = 2`, 0, 2, "another user, payment"},
		"removed allocation":      {`DELETE FROM pending_allocations WHERE lot = '%[1]s' AND n = 2`, 0, 2, "allocation"},
		"another's allocation":    {`UPDATE pending_allocations SET user_id = 'eve' WHERE lot = '%[1]s' AND n = 3`, 0, 3, "allocation"},
		"another attempt's":       {`UPDATE pending_allocations SET attempt = attempt || 'x' WHERE lot = '%[1]s' AND n = 3`, 0, 3, "allocation"},
		"miscounted sales":        {`UPDATE pending_allocations SET entries = 1 WHERE lot = '%[1]s' AND n = 3`, 0, 3, "number of sales"},
		"invented allocation":     {`UPDATE pending_allocations SET n = 99 WHERE lot = '%[1]s' AND n = 2`, 0, 2, "allocation"},
		"never on sale":           {`UPDATE lots SET seen = false WHERE lot = '%[1]s'`, 0, 0, "never on sale"},
	} {
		t.Run(name, func(t *testing.T) {
			lot := newLot()
			soldLot(t, l, lot)
			tables := []string{"reservation_events", "order_ledger"}
			for i := range 8 {
				tables = append(tables, fmt.Sprint("reservation_events_", i), fmt.Sprint("order_ledger_", i))
			}
			statements := "BEGIN;"
			for _, state := range []string{"DISABLE", "ENABLE"} {
				for _, table := range tables {
					statements += "ALTER TABLE " + table + " " + state + " TRIGGER USER;"
				}
				if state == "DISABLE" {
					statements += fmt.Sprintf(c.damage, lot) + ";"
				}
			}
			if _, err := owner.Exec(t.Context(), statements+"COMMIT"); err != nil {
				t.Fatal(err)
			}
			v, err := l.Verify(t.Context(), lot, nil)
			if err != nil || v.Bad == "" || v.At.Seq != c.seq || v.N != c.n || !strings.Contains(v.Bad, c.says) {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

func TestVerifyOfAnUnknownLot(t *testing.T) {
	if _, err := sharedLedger(t).Verify(t.Context(), newLot(), nil); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// A lot with more rows than a page, and a hold that had to be rejected, is read through to its end.
func TestVerifyReadsPageByPage(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 4)
	for i := range verifyPage/2 + 10 {
		r.release(r.hold(fmt.Sprint("user-", i), 1), 0)
	}
	for _, user := range []string{"a", "b"} {
		r.confirm(r.hold(user, 2), 2, "pay-"+user)
	}
	apply(t, l, r.take()...)
	r.hold("twice", 1) // beyond the capacity: the next load ends it
	apply(t, l, r.take()...)
	r.load(issue(t, l, lot))
	apply(t, l, r.take()...)
	var told, of int64
	v, err := l.Verify(t.Context(), lot, func(done, all int64) { told, of = done, all })
	if err != nil || v.Bad != "" || v.Events != r.seq {
		t.Errorf("%+v, %v", v, err)
	}
	if told < r.seq || of != 2*r.seq {
		t.Errorf("told of %d rows of %d", told, of)
	}
}

// A verification that is broken off says so at once, and holds nothing up.
func TestVerifyCanBeBrokenOff(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 4)
	for i := range verifyPage {
		r.release(r.hold(fmt.Sprint("user-", i), 1), 0)
	}
	apply(t, l, r.take()...)
	ctx, stop := context.WithCancel(t.Context())
	if _, err := l.Verify(ctx, lot, func(int64, int64) { stop() }); !errors.Is(err, context.Canceled) {
		t.Errorf("broken off: %v", err)
	}
	wantVerified(t, l, lot)
}

// The epochs of a lot are what `ledger show` finds its rows by, and where a rebuild begins: each kind of damage is found. The
// lot has four: 1 with a journal up to 3, 2 that was never loaded, 3 with rows 4 and 5, and 4, not loaded yet.
func TestVerifyFindsDamagedEpochs(t *testing.T) {
	l, db := newLedger(t)
	owner := openPool(t, db.URL(lab.Owner))
	for name, c := range map[string]struct{ damage, says string }{
		"removed first":   {`DELETE FROM lot_epochs WHERE lot = '%[1]s' AND epoch = 1`, "events of epoch 1, which was not issued"},
		"removed unused":  {`DELETE FROM lot_epochs WHERE lot = '%[1]s' AND epoch = 2`, "epoch 3 was issued next to 1"},
		"removed used":    {`DELETE FROM lot_epochs WHERE lot = '%[1]s' AND epoch = 3`, "events of epoch 3, which was not issued"},
		"removed last":    {`DELETE FROM lot_epochs WHERE lot = '%[1]s' AND epoch = 4`, "the epoch issued last is 3, the lot says 4"},
		"removed newest":  {`DELETE FROM lot_epochs WHERE lot = '%[1]s' AND epoch > 2`, "events of epoch 3, which was not issued"},
		"removed all":     {`DELETE FROM lot_epochs WHERE lot = '%[1]s'`, "events of epoch 3, which was not issued"},
		"put in":          {`INSERT INTO lot_epochs VALUES ('%[1]s', 5, 3, 5, 'eve', '')`, "the epoch issued last is 5, the lot says 4"},
		"put in far away": {`INSERT INTO lot_epochs VALUES ('%[1]s', 9, 3, 5, 'eve', '')`, "epoch 9 was issued next to 4"},
		"another end":     {`UPDATE lot_epochs SET closed_seq = 2 WHERE lot = '%[1]s' AND epoch = 3`, "epoch 3 was issued at 1/2, but the journal before it ends at 1/3"},
		"an unused one's": {`UPDATE lot_epochs SET closed_seq = 4 WHERE lot = '%[1]s' AND epoch = 2`, "epoch 2 was issued at 1/4"},
		"the last one's":  {`UPDATE lot_epochs SET closed_epoch = 1 WHERE lot = '%[1]s' AND epoch = 4`, "epoch 4 was issued at 1/5, but the journal before it ends at 3/5"},
		"the first one's": {`UPDATE lot_epochs SET closed_seq = 1 WHERE lot = '%[1]s' AND epoch = 1`, "epoch 1 was issued at 0/1, but the journal before it ends at 0/0"},
		"the lot's":       {`UPDATE lots SET open_epoch = 3 WHERE lot = '%[1]s'`, "the epoch issued last is 4, the lot says 3"},
	} {
		t.Run(name, func(t *testing.T) {
			lot := newLot()
			r := seeded(t, l, lot, 10)
			ann := r.hold("ann", 1)
			r.confirm(ann, 1, "pay-ann")
			apply(t, l, r.take()...)
			issue(t, l, lot)
			r.load(issue(t, l, lot))
			r.hold("bob", 1)
			apply(t, l, r.take()...)
			issue(t, l, lot)
			wantVerified(t, l, lot)
			if _, err := owner.Exec(t.Context(), fmt.Sprintf(c.damage, lot)); err != nil {
				t.Fatal(err)
			}
			if v, err := l.Verify(t.Context(), lot, nil); err != nil || !strings.Contains(v.Bad, c.says) || v.At != (drop.Watermark{}) || v.N != 0 {
				t.Errorf("%+v, %v; want %q", v, err, c.says)
			}
		})
	}
}

// A database that was put back does not remember the epochs it has issued since. Their events come as dead letters, and the
// next epoch lies behind them: a number that is left out for that reason is no damage.
func TestVerifyKnowsEpochsThatDeadLettersHaveUsed(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	apply(t, l, r.take()...)
	r.epoch = 5 // of a life that this database never issued
	r.hold("eve", 1)
	apply(t, l, r.take()...)
	issued := issue(t, l, lot)
	if issued.Epoch != 6 {
		t.Fatalf("epoch %d was issued", issued.Epoch)
	}
	r.load(issued)
	apply(t, l, r.take()...)
	wantVerified(t, l, lot)
}
