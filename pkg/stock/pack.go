package stock

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
)

// leastBatch is from how many requests of a lot on a call makes a batch of them: with fewer, the batch's own field
// would cost more than it saves.
const leastBatch = 4

// packer writes values one after the other, as cmsgpack.unpack reads them (MessagePack specification: fixstr, str 8,
// str 16, str 32, positive fixint, negative fixint, int 64).
type packer struct{ strings.Builder }

// header begins a text of n bytes.
func (p *packer) header(n int) {
	var head [5]byte
	switch {
	case n < 1<<5:
		p.WriteByte(0xa0 | byte(n))
	case n < 1<<8:
		p.Write(append(head[:0], 0xd9, byte(n)))
	case n < 1<<16:
		p.Write(binary.BigEndian.AppendUint16(append(head[:0], 0xda), uint16(n)))
	default:
		p.Write(binary.BigEndian.AppendUint32(append(head[:0], 0xdb), uint32(n)))
	}
}

func (p *packer) text(parts ...string) {
	n := 0
	for _, s := range parts {
		n += len(s)
	}
	p.header(n)
	for _, s := range parts {
		p.WriteString(s)
	}
}

func (p *packer) number(n int64) {
	if n >= -32 && n < 1<<7 {
		p.WriteByte(byte(n))
		return
	}
	var head [9]byte
	p.Write(binary.BigEndian.AppendUint64(append(head[:0], 0xd3), uint64(n)))
}

// packReserves writes a group's requests as reserve.lua reads them. Quantity and hold are mostly the same for all of a
// lot: then they are said once, and from leastBatch on the requests are a batch. The lots with one request come first,
// those that ask for something else than the first of them apart.
func (s *Stock) packReserves(g *group) string {
	p := &packer{}
	p.Grow(256*g.n + 64*len(g.lots))
	p.number(int64(g.lone))
	if g.lone > 0 {
		first := &g.lots[0].requests[0].reserve
		p.number(first.Qty)
		p.number(first.Hold.Milliseconds())
		asked := askedOf(*first)
		for _, l := range g.lots[:g.lone] {
			r := l.requests[0]
			p.text(r.attempt)
			p.text(drop.MarkIn(r.attempt))
			p.text("h", r.attempt[drop.MarkLen:], "\t", r.reserve.User, asked)
		}
	}
	for _, l := range g.lots[g.lone:] {
		rs := l.requests
		qty, hold := rs[0].reserve.Qty, rs[0].reserve.Hold.Milliseconds()
		for _, r := range rs {
			if r.reserve.Replace || r.reserve.Qty != qty || r.reserve.Hold.Milliseconds() != hold {
				qty, hold = -1, -1
				break
			}
		}
		batch := ""
		if qty > 0 && len(rs) >= leastBatch {
			batch = s.batchName()
		}
		p.text(string(l.lot))
		p.number(int64(len(rs)))
		p.number(qty)
		p.number(hold)
		p.text(batch)
		p.reserves(rs, batch, qty == -1)
	}
	return p.String()
}

// batchName returns a name that no other batch of any engine has.
func (s *Stock) batchName() string {
	return s.batchPrefix + strconv.FormatUint(s.batches.Add(1), 36)
}

// reserves writes the columns of one lot's requests.
func (p *packer) reserves(rs []*request, batch string, differ bool) {
	for _, r := range rs {
		p.text(r.attempt)
	}
	for _, r := range rs {
		p.text(drop.MarkIn(r.attempt))
	}
	asked := askedOf(rs[0].reserve)
	for i, r := range rs {
		rest := r.attempt[drop.MarkLen:]
		switch {
		case batch != "":
			p.text("b", rest, "\t", r.reserve.User, asked, strconv.Itoa(i+1), "\t", batch)
		case differ:
			p.text("h", rest, "\t", r.reserve.User, askedOf(r.reserve))
		default:
			p.text("h", rest, "\t", r.reserve.User, asked)
		}
	}
	if batch != "" {
		p.events(rs)
		return
	}
	for _, r := range rs {
		p.text("\t", r.reserve.Key, "\t", r.reserve.Actor, "\t0\n")
	}
	if !differ {
		return
	}
	for _, r := range rs {
		p.number(r.reserve.Qty)
	}
	for _, r := range rs {
		p.number(r.reserve.Hold.Milliseconds())
	}
	for _, r := range rs {
		if r.reserve.Replace {
			p.number(1)
		} else {
			p.number(0)
		}
	}
}

// loneLines are the requests of the lots with one request, a line each: what their events say, but for numbers.
func loneLines(g *group) string {
	var b strings.Builder
	b.Grow(96 * g.lone)
	for _, l := range g.lots[:g.lone] {
		r := l.requests[0]
		for _, part := range [...]string{string(l.lot), "\t", r.attempt, "\t", r.reserve.User, "\t", r.reserve.Key, "\t", r.reserve.Actor, "\n"} {
			b.WriteString(part)
		}
	}
	return b.String()
}

// askedOf is the part of a record that says what was asked for.
func askedOf(q drop.ReserveRequest) string {
	qty := strconv.FormatInt(q.Qty, 10)
	return "\t" + qty + "/" + strconv.FormatInt(q.Hold.Milliseconds(), 10) + "\t" + qty + "\t"
}

// events writes the lines of a batch's events as one text.
func (p *packer) events(rs []*request) {
	n := 0
	for _, r := range rs {
		n += len(r.attempt) + len(r.reserve.User) + len(r.reserve.Key) + len(r.reserve.Actor) + 4
	}
	p.header(n)
	for _, r := range rs {
		for _, part := range [...]string{r.attempt, "\t", r.reserve.User, "\t", r.reserve.Key, "\t", r.reserve.Actor, "\n"} {
			p.WriteString(part)
		}
	}
}
