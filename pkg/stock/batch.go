package stock

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/drop"
)

// batch is what a pipeline carries for one shard: a reserve call, a settle call and single calls.
type batch struct {
	shard           *shard
	reserve, settle group
	calls           []*request
	rivals          map[rivalry]struct{}
}

type rivalry struct {
	kind kind
	lot  drop.LotID
	name string
}

// group is the requests of one kind, by lot in order of arrival.
type group struct {
	kind kind
	lots []lotRequests
	at   map[drop.LotID]int // where in lots a lot is, while requests are added
	n    int
	lone int // how many of the lots, from the first on, go as lots with one request (reserve)
}

type lotRequests struct {
	lot      drop.LotID
	requests []*request
}

// of returns the requests for a lot so far.
func (g *group) of(lot drop.LotID) []*request {
	if i, there := g.at[lot]; there {
		return g.lots[i].requests
	}
	return nil
}

func (g *group) add(r *request) {
	i, there := g.at[r.lot]
	if !there {
		i = len(g.lots)
		g.at[r.lot] = i
		g.lots = slices.Grow(g.lots, 1)[:i+1] // what was there has a list to use again
		g.lots[i].lot, g.lots[i].requests = r.lot, g.lots[i].requests[:0]
	}
	g.lots[i].requests = append(g.lots[i].requests, r)
	g.n++
}

func (g *group) reset() {
	if g.at == nil {
		g.at = make(map[drop.LotID]int)
	}
	clear(g.at)
	g.lots, g.n, g.lone = g.lots[:0], 0, 0
}

// leadLone moves the lots with one request to the front, as far as they all ask for the same.
func (g *group) leadLone() {
	var asked *drop.ReserveRequest
	for i, l := range g.lots {
		q := &l.requests[0].reserve
		if len(l.requests) > 1 || q.Replace || asked != nil && (q.Qty != asked.Qty || q.Hold != asked.Hold) {
			continue
		}
		asked = q
		g.lots[g.lone], g.lots[i] = l, g.lots[g.lone]
		g.lone++
	}
}

// reset empties the batch, for requests of a shard.
func (b *batch) reset(sh *shard) {
	b.shard = sh
	b.reserve.reset()
	b.settle.reset()
	b.calls = b.calls[:0]
	if b.rivals == nil {
		b.rivals = make(map[rivalry]struct{})
	}
	clear(b.rivals)
}

// take moves requests from the shard's queue into the batch. What does not fit, or has a rival in it, stays in order.
func (b *batch) take() {
	sh := b.shard
	rest := sh.queue[:0]
	for _, r := range sh.queue {
		switch {
		case r.state.Load() == gone:
		case !b.admit(r):
			rest = append(rest, r)
		case !r.state.CompareAndSwap(waiting, taken):
		case r.kind == reserveKind:
			b.reserve.add(r)
		case r.kind == settleKind:
			b.settle.add(r)
		default:
			b.calls = append(b.calls, r)
		}
	}
	clear(sh.queue[len(rest):])
	sh.queue = rest
}

// admit reports whether the batch has room for the request and no rival of it, and notes it.
func (b *batch) admit(r *request) bool {
	g := &b.reserve
	switch r.kind {
	case settleKind:
		g = &b.settle
	case callKind:
		return len(b.calls) < maxBatch
	}
	if g.n >= maxBatch {
		return false
	}
	others := g.of(r.lot)
	switch len(others) {
	case 0: // mostly, with many lots
		return true
	case 1:
		b.rivals[rivalry{r.kind, r.lot, others[0].rival}] = struct{}{}
	}
	k := rivalry{r.kind, r.lot, r.rival}
	if _, there := b.rivals[k]; there {
		return false
	}
	b.rivals[k] = struct{}{}
	return true
}

// send runs batches of some shards on the lane and answers every request in them; notReady is why the lane has no
// connection.
func (l *lane) send(ctx context.Context, batches []*batch, notReady error) {
	var calls []*invocation
	for _, b := range batches {
		if notReady == nil && l.weak != nil { // buyers are told no, all others what they then have
			b.refuse(l.weak)
		}
		calls = b.invocations(calls)
	}
	answers := l.run(ctx, calls, notReady)
	for _, b := range batches {
		answers = b.deliver(answers)
	}
}

// refuse answers everybody who reserves or settles with an error.
func (b *batch) refuse(err error) {
	for _, g := range []*group{&b.reserve, &b.settle} {
		g.deliver(b.shard, answer{err: err})
		g.reset()
	}
}

// invocations appends the batch's script calls to calls.
func (b *batch) invocations(calls []*invocation) []*invocation {
	size := b.shard.stock.opt.Metrics.BatchSize
	if b.reserve.n > 0 {
		calls = append(calls, b.reserve.invocation(b.shard, reserveKind))
		size.WithLabelValues(lua.Reserve).Observe(float64(b.reserve.n))
	}
	if b.settle.n > 0 {
		calls = append(calls, b.settle.invocation(b.shard, settleKind))
		size.WithLabelValues(lua.Settle).Observe(float64(b.settle.n))
	}
	for _, r := range b.calls {
		calls = append(calls, r.call)
	}
	return calls
}

// deliver answers the requests with the answers to the batch's calls, which come first, and returns those behind.
func (b *batch) deliver(answers []answer) []answer {
	for _, g := range []*group{&b.reserve, &b.settle} {
		if g.n > 0 {
			g.deliver(b.shard, answers[0])
			answers = answers[1:]
		}
	}
	for i, r := range b.calls {
		r.done <- result{reply: answers[i].reply, err: answers[i].fault()}
	}
	return answers[len(b.calls):]
}

// takeBack is how many due attempts a reserve or settle call looks at in all before it answers `again`.
const takeBack = 1024

// invocation writes the group as ARGV: columns for reserve, rows for settle (see the scripts).
func (g *group) invocation(sh *shard, k kind) *invocation {
	g.kind = k
	if k == reserveKind {
		g.leadLone()
	}
	inv := &invocation{shard: sh, keys: slices.Grow(sh.keys.gated(), len(g.lots))}
	for _, l := range g.lots {
		inv.keys = append(inv.keys, sh.keys.lot(l.lot))
	}
	if k == reserveKind {
		inv.script = scripts["reserve"]
		inv.args = []string{strconv.FormatInt(sh.stock.opt.OutboxMaxBytes, 10), strconv.Itoa(takeBack), sh.stock.packReserves(g), loneLines(g)}
		return inv
	}
	inv.script = scripts["settle"]
	inv.args = make([]string, 0, 2+2*len(g.lots)+7*g.n)
	inv.args = append(inv.args, strconv.Itoa(takeBack), strconv.Itoa(len(g.lots)))
	for _, l := range g.lots {
		inv.args = append(inv.args, string(l.lot), strconv.Itoa(len(l.requests)))
		for _, r := range l.requests {
			inv.args = append(inv.args, r.row[:]...)
		}
	}
	return inv
}

// deliver gives each request of the group its line. A request told `again` goes back into the queue: due holds are
// left that it may yet get.
func (g *group) deliver(sh *shard, a answer) {
	if a.err == nil && a.reply.status == "ok" && a.reply.detail == manyUnfiled {
		sh.fileSoon()
	}
	for i, l := range g.lots {
		head, lines := g.part(a.reply, i)
		if err := a.lotFault(l.lot, head, lines); err != nil {
			for _, r := range l.requests {
				r.done <- result{err: err}
			}
			continue
		}
		next := func() string { return lines }
		if i >= g.lone {
			next = linesOf(head, lines)
		}
		for _, r := range l.requests {
			line := next()
			if line == "again" {
				r.state.Store(waiting)
				sh.requeue(r)
				continue
			}
			r.done <- result{reply: a.reply, head: head, line: line, err: a.unsafe}
		}
	}
}

// lotFault is why a lot took no call, of whose part in the reply this is head and lines, or nil.
func (a answer) lotFault(lot drop.LotID, head, lines string) error {
	switch {
	case a.err != nil:
		return a.err
	case a.reply.status != "ok":
		return a.reply.fault("lot " + string(lot))
	case head == "!":
		code, detail, _ := strings.Cut(lines, "\t")
		return reply{status: code, detail: detail}.fault("lot " + string(lot))
	}
	return nil
}

// part is what a reply says of the i-th lot: a head and the lines of its requests.
func (g *group) part(r reply, i int) (head, lines string) {
	switch {
	case i >= g.lone && g.kind == settleKind:
		return r.text(2 * i), r.text(2*i + 1)
	case i >= g.lone:
		at := 1 + g.lone + 2*(i-g.lone)
		return r.text(at), r.text(at + 1)
	}
	if why, shut := strings.CutPrefix(r.text(1+i), "!!\t"); shut {
		return "!", why
	}
	return r.text(0), r.text(1 + i)
}

// linesOf returns the requests' lines one by one. Of a batch (its head ends in the base) only those that were not held
// with it have one, starting with their index; the others get their n.
func linesOf(head, lines string) func() string {
	cut := func() (line string) {
		line, lines, _ = strings.Cut(lines, "\n")
		return line
	}
	f := strings.Split(head, "\t")
	if len(f) != 4 {
		return cut
	}
	n, err := strconv.ParseInt(f[3], 10, 64)
	if err != nil {
		return cut
	}
	index := 0
	odd, line, _ := strings.Cut(cut(), "\t")
	return func() string {
		index++
		if odd == strconv.Itoa(index) {
			answer := line
			odd, line, _ = strings.Cut(cut(), "\t")
			return answer
		}
		n++
		return strconv.FormatInt(n, 10)
	}
}
