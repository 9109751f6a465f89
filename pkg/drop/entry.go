package drop

import (
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Entry is one outbox entry: what one script call changed, in order.
type Entry struct {
	Installation string
	Time         time.Time
	// Body is lines. A line "@ lot epoch" names the lot of those that follow. A line "+ count base qty asked deadline time
	// skipped" stands before count lines "attempt user key actor" of holds taken together: their seqs run on from base,
	// but for those at the skipped places, which were not held. A line "- count qty asked time numbers" stands before count lines
	// "lot attempt user key actor" of holds of as many lots; their numbers are "seq", or "seq/epoch/deadline" where epoch or
	// deadline are not those of the hold before.
	Body string
}

// SchemaVersion is the version of the entry format; a reader refuses newer ones.
const SchemaVersion = "1"

// UnreadableBody is what takes the place of a body that is not ours to read: one line that no event has, so that it is
// parked whole and not lost.
func UnreadableBody(why, body string) string {
	return "?\t" + why + "\t" + strings.ReplaceAll(body, "\n", " ")
}

// Field names of an entry in the stream.
const (
	FieldVersion      = "v"
	FieldInstallation = "i"
	FieldTime         = "t"
	FieldBody         = "d"
)

// Poison is a line of an entry that is not an event. Lot is set where the line's lot is known.
type Poison struct {
	Installation string // as the entry says; "" where it says nothing
	Lot          LotID
	Epoch        int64
	Raw          string
	Reason       string
}

// Decode returns the events of an entry, and what in it is not an event. It accepts only what the scripts write:
// every event returned encodes to the same line again, or is one of a batch.
func (en Entry) Decode() (events []Event, poison []Poison) {
	d := decoder{entry: en}
	body := strings.TrimSuffix(en.Body, "\n")
	for line := range strings.SplitSeq(body, "\n") {
		d.line(line)
	}
	if d.batch.left > 0 {
		d.spoil(d.batch.header, fault.New(fault.Invalid, "%d lines of the batch are missing", d.batch.left))
	}
	if left := len(d.group.numbers); left > 0 {
		d.spoil(d.group.header, fault.New(fault.Invalid, "%d lines of the group are missing", left))
	}
	return d.events, d.poison
}

// decoder is an entry half read.
type decoder struct {
	entry  Entry
	lot    LotID
	epoch  int64
	batch  batch
	group  group
	events []Event
	poison []Poison
}

func (d *decoder) spoil(raw string, err error) {
	d.poison = append(d.poison, Poison{Installation: d.entry.Installation, Lot: d.lot, Epoch: d.epoch, Raw: raw, Reason: err.Error()})
}

func (d *decoder) line(line string) {
	if d.batch.left > 0 {
		d.hold(line)
		return
	}
	if len(d.group.numbers) > 0 {
		d.groupHold(line)
		return
	}
	fields := strings.Split(line, "\t")
	var err error
	switch fields[0] {
	case "@":
		d.lot, d.epoch, err = decodeLotHeader(fields)
	case "+":
		var b batch
		if b, err = decodeBatch(fields, line); err == nil && d.lot == "" {
			err = fault.New(fault.Invalid, "the batch belongs to no lot")
		}
		if err == nil {
			d.batch = b
		}
	case "-":
		d.group, err = decodeGroup(fields, line)
	default:
		ev := d.event()
		err = ev.decodeFields(fields)
		if err == nil && d.lot == "" {
			err = fault.New(fault.Invalid, "the line belongs to no lot")
		}
		if err == nil && ev.Line() != line {
			err = fault.New(fault.Invalid, "the line is not in canonical form")
		}
		if err == nil {
			d.events = append(d.events, ev)
		}
	}
	if err != nil {
		d.spoil(line, err)
	}
}

func (d *decoder) event() Event {
	return Event{Installation: d.entry.Installation, Lot: d.lot, Epoch: d.epoch, Time: d.entry.Time}
}

// hold reads one line of a batch.
func (d *decoder) hold(line string) {
	b := &d.batch
	b.index++
	b.left--
	if len(b.skipped) > 0 && b.skipped[0] == b.index {
		b.skipped = b.skipped[1:]
		return
	}
	b.seq++
	ev := d.event()
	if err := b.decodeHold(&ev, strings.Split(line, "\t")); err != nil {
		d.spoil(b.header+"\n"+line, err)
		return
	}
	d.events = append(d.events, ev)
}

// terms are what all holds under one header share; in a group the deadline is that of the hold read last.
type terms struct {
	qty            int64
	asked          string
	deadline, time time.Time
}

// decodeHold reads "attempt user key actor", from field i on, as a hold on these terms.
func (e *Event) decodeHold(p *fieldParser, i int, t terms) error {
	p.attempt(i)
	e.Kind, e.Reservation = KindHeld, ReservationID{Lot: e.Lot, Attempt: p.fields[i], N: e.Seq}
	e.User, e.Key, e.Actor = p.text(i+1), p.text(i+2), p.text(i+3)
	e.Qty, e.Asked, e.Deadline = t.qty, t.asked, t.deadline
	if !t.time.Equal(e.Time) {
		p.fail("the time of the header above is not the entry's")
	}
	return p.err
}

// batch is the header of holds taken together, and how far its lines are read.
type batch struct {
	terms
	header  string
	left    int64   // lines to come
	index   int64   // of the line read last, from 1
	seq     int64   // of the hold read last
	skipped []int64 // indices still to come, rising
}

// maxBatch bounds the lines of one batch, far above what a script call carries.
const maxBatch = 1 << 16

func decodeBatch(f []string, line string) (batch, error) {
	if len(f) != 8 {
		return batch{}, fault.New(fault.Invalid, "a batch header has %d fields, not 8", len(f))
	}
	p := &fieldParser{fields: f}
	b := batch{header: line, left: p.count(1), seq: p.count(2), terms: terms{qty: p.units(3, 1), asked: p.text(4), deadline: p.time(5), time: p.time(6)}}
	if b.left < 1 || b.left > maxBatch || b.seq > MaxSeq-b.left {
		p.fail("a batch of %d lines from seq %d", b.left, b.seq)
	}
	if f[7] != "" {
		for text := range strings.SplitSeq(f[7], ",") {
			i, err := strconv.ParseInt(text, 10, 64)
			if err != nil || i < 1 || i > b.left || len(b.skipped) > 0 && i <= b.skipped[len(b.skipped)-1] {
				p.fail("the skipped places are %s", quote(f[7]))
				break
			}
			b.skipped = append(b.skipped, i)
		}
	}
	if p.err != nil {
		return batch{}, p.err
	}
	return b, nil
}

// decodeHold reads "attempt user key actor" as the next hold of the batch.
func (b *batch) decodeHold(e *Event, f []string) error {
	if len(f) != 4 {
		return fault.New(fault.Invalid, "a line of a batch has %d fields, not 4", len(f))
	}
	e.Seq = b.seq
	return e.decodeHold(&fieldParser{fields: f}, 0, b.terms)
}

// group is the header of holds of many lots, and how far its lines are read.
type group struct {
	terms
	header  string
	numbers []string // of the lines to come
	epoch   int64    // of the hold read last
}

func decodeGroup(f []string, line string) (group, error) {
	if len(f) != 6 {
		return group{}, fault.New(fault.Invalid, "a group header has %d fields, not 6", len(f))
	}
	p := &fieldParser{fields: f}
	g := group{header: line, numbers: strings.Split(f[5], ","), terms: terms{qty: p.units(2, 1), asked: p.text(3), time: p.time(4)}}
	if n := p.count(1); n != int64(len(g.numbers)) || n > maxBatch {
		p.fail("a group of %d lines with %d numbers", n, len(g.numbers))
	}
	if p.err != nil {
		return group{}, p.err
	}
	return g, nil
}

// groupHold reads one line of a group.
func (d *decoder) groupHold(line string) {
	g, f := &d.group, strings.Split(line, "\t")
	number := g.numbers[0]
	g.numbers = g.numbers[1:]
	ev := d.event()
	err := g.decodeHold(&ev, f, number)
	if err == nil {
		d.events = append(d.events, ev)
		return
	}
	d.parkLine(f, number, g, line, err)
}

// parkLine keeps what is no hold of the group, with the lot that it names.
func (d *decoder) parkLine(f []string, number string, g *group, line string, err error) {
	lot, epoch := d.lot, d.epoch
	if d.lot, d.epoch = "", 0; len(f) == 5 {
		if named, bad := ParseLotID(f[0]); bad == nil {
			d.lot, d.epoch = named, g.epoch
		}
	}
	if number != "" && !strings.Contains(number, "/") && !g.deadline.IsZero() {
		number = strings.Join([]string{number, itoa(g.epoch), msText(g.deadline)}, "/")
	}
	d.spoil(strings.Join([]string{"-", "1", itoa(g.qty), g.asked, msText(g.time), number}, "\t")+"\n"+line, err) // to be read without the others
	d.lot, d.epoch = lot, epoch
}

// decodeHold reads "lot attempt user key actor" as the hold of the group that has this number.
func (g *group) decodeHold(e *Event, f []string, number string) error {
	n := &fieldParser{fields: strings.Split(number, "/")}
	if len(n.fields) == 3 {
		g.epoch, g.deadline = n.count(1), n.time(2)
	}
	if len(n.fields) == 2 || len(n.fields) > 3 || n.err != nil {
		g.deadline = time.Time{} // nor is it known of the holds that follow
	}
	if e.Seq = n.count(0); e.Seq == 0 || g.deadline.IsZero() {
		n.fail("the number %s of a hold is incomplete", quote(number))
	}
	if n.err != nil {
		return n.err
	}
	if len(f) != 5 {
		return fault.New(fault.Invalid, "a line of a group has %d fields, not 5", len(f))
	}
	lot, err := ParseLotID(f[0])
	if err != nil {
		return err
	}
	e.Lot, e.Epoch = lot, g.epoch
	return e.decodeHold(&fieldParser{fields: f}, 1, g.terms)
}

func decodeLotHeader(f []string) (LotID, int64, error) {
	if len(f) != 3 {
		return "", 0, fault.New(fault.Invalid, "a lot header has %d fields, not 3", len(f))
	}
	lot, err := ParseLotID(f[1])
	if err != nil {
		return "", 0, err
	}
	p := fieldParser{fields: f}
	epoch := p.count(2)
	return lot, epoch, p.err
}

// fieldParser reads fields by position and keeps the first error.
type fieldParser struct {
	fields []string
	err    error
}

func (p *fieldParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fault.New(fault.Invalid, format, args...)
	}
}

func (p *fieldParser) count(i int) int64 {
	n, err := strconv.ParseInt(p.fields[i], 10, 64)
	if err != nil || n < 0 || n > MaxSeq {
		p.fail("field %d is not a count: %s", i+1, quote(p.fields[i]))
	}
	return n
}

func (p *fieldParser) units(i int, least int64) int64 {
	n := p.count(i)
	if n < least || n > MaxUnits {
		p.fail("field %d is not a number of units: %s", i+1, quote(p.fields[i]))
	}
	return n
}

func (p *fieldParser) time(i int) time.Time {
	if p.fields[i] == "" {
		return time.Time{}
	}
	return time.UnixMilli(p.count(i)).UTC()
}

func (p *fieldParser) duration(i int) time.Duration {
	n := p.count(i)
	if n > int64(MaxHold/time.Millisecond) {
		p.fail("field %d is not a duration: %s", i+1, quote(p.fields[i]))
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

func (p *fieldParser) text(i int) string {
	if err := CheckText("field "+strconv.Itoa(i+1), p.fields[i], false); err != nil {
		p.fail("%s", err.Error())
	}
	return p.fields[i]
}

func (p *fieldParser) attempt(i int) {
	if f := p.fields[i]; len(f) != AttemptLen || strings.Trim(f, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		p.fail("the attempt %s is malformed", quote(f))
	}
}

var fieldCounts = map[Kind]int{
	KindHeld: 11, KindConfirmed: 10, KindReleased: 9, KindExpired: 8, KindExtended: 9, KindRefunded: 10, KindPaidLate: 9,
	KindAdjusted: 16, KindChanged: 16, KindLoaded: 18, KindVoid: 5,
}

func (e *Event) decodeFields(f []string) error {
	if len(f) < 2 {
		return fault.New(fault.Invalid, "the line has %d fields", len(f))
	}
	e.Kind = kindLetters[f[1]]
	if e.Kind == "" {
		return fault.New(fault.Invalid, "the kind %s is unknown", quote(f[1]))
	}
	if n := fieldCounts[e.Kind]; len(f) != n {
		return fault.New(fault.Invalid, "a %s event has %d fields, not %d", e.Kind, len(f), n)
	}
	p := &fieldParser{fields: f}
	switch {
	case (f[0] == "*") != e.IsLotEvent():
		p.fail("a %s event does not start with %s", e.Kind, quote(f[0]))
	case e.IsLotEvent():
		e.decodeLotEvent(p)
	default:
		e.decodeReservationEvent(p)
	}
	if p.err == nil && e.Seq < 1 {
		p.fail("seq %d is less than 1", e.Seq)
	}
	return p.err
}

func (e *Event) decodeLotEvent(p *fieldParser) {
	e.Seq, e.Actor, e.Reason = p.count(2), p.text(3), p.text(4)
	if e.Kind == KindVoid {
		return
	}
	e.Held, e.Sold = p.units(6, 0), p.units(7, 0)
	e.Definition = Definition{Lot: e.Lot, Stock: p.units(5, 0), Status: Status(p.fields[8]), Limit: p.units(9, 0), Hold: p.duration(10), MaxHold: p.duration(11),
		Opens: p.time(12), Closes: p.time(13), Late: Late(p.fields[14]), Name: p.text(15)}
	if p.err == nil && e.Lot != "" {
		if err := e.Definition.Check(); err != nil {
			p.fail("%s", err.Error())
		}
	}
	if e.Kind == KindLoaded {
		e.Closing = Watermark{p.count(16), p.count(17)}
	}
}

func (e *Event) decodeReservationEvent(p *fieldParser) {
	f := p.fields
	p.attempt(0)
	e.Reservation = ReservationID{Lot: e.Lot, Attempt: f[0]}
	if e.Kind == KindHeld {
		e.User, e.Asked, e.Qty, e.Seq, e.Deadline = p.text(2), p.text(3), p.units(4, 1), p.count(5), p.time(6)
		if at := p.time(7); !at.Equal(e.Time) {
			p.fail("the hold's time is not the entry's")
		}
		e.Key, e.Actor, e.From = p.text(8), p.text(9), p.count(10)
		e.Reservation.N = e.Seq
		return
	}
	e.Seq, e.Reservation.N, e.User, e.Qty, e.Actor, e.Reason = p.count(2), p.count(3), p.text(4), p.units(5, 0), p.text(6), p.text(7)
	switch e.Kind {
	case KindConfirmed:
		e.Rest, e.Ref = p.units(8, 0), p.text(9)
	case KindReleased:
		e.Rest = p.units(8, 0)
	case KindExtended:
		e.Deadline = p.time(8)
	case KindRefunded:
		e.Total = p.units(8, 0)
		if f[9] != "0" && f[9] != "1" {
			p.fail("the restock flag is %s", quote(f[9]))
		}
		e.Restock = f[9] == "1"
	case KindPaidLate:
		e.Ref = p.text(8)
	}
	if e.Reservation.N < 1 || e.Reservation.N > e.Seq {
		p.fail("the reservation's n %d does not fit seq %d", e.Reservation.N, e.Seq)
	}
}
