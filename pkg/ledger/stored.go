package ledger

import (
	"cmp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// place is the identity of an event.
type place struct {
	lot drop.LotID
	drop.Watermark
}

func placeOf(ev drop.Event) place { return place{ev.Lot, ev.Watermark()} }

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.lot, o.lot), compareWatermarks(p.Watermark, o.Watermark))
}

func compareWatermarks(a, b drop.Watermark) int {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Seq, b.Seq))
}

// stored is an event as the tables keep it: its place, its time and its line say everything.
type stored struct {
	place
	at   time.Time
	line string
}

// item is an event in hand together with its line, which is costly to write twice.
type item struct {
	drop.Event
	line string
}

// same reports whether both are one event. The installation is always ours.
func (s stored) same(it item) bool { return s.line == it.line && s.at.Equal(it.Time) }

// decode reads the event back. It fails only for a row that was written by something else.
func (s stored) decode(installation string) (drop.Event, error) {
	body := "@\t" + string(s.lot) + "\t" + strconv.FormatInt(s.Epoch, 10) + "\n" + s.line + "\n"
	events, poison := drop.Entry{Installation: installation, Time: s.at, Body: body}.Decode()
	if len(poison) > 0 || len(events) != 1 {
		return drop.Event{}, fault.Wrap(fault.Failed, errUnreadable, "the event (%s, %d, %d) in the database cannot be read", s.lot, s.Epoch, s.Seq)
	}
	return events[0], nil
}

// collectStored reads rows of lot, epoch, seq, event_at, line.
func collectStored(rows pgx.Rows) ([]stored, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (stored, error) {
		var s stored
		err := row.Scan(&s.lot, &s.Epoch, &s.Seq, &s.at, &s.line)
		s.at = s.at.UTC()
		return s, err
	})
}
