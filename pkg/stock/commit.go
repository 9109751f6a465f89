package stock

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Group commit: requests that arrive while the shard's lanes are busy are sent together, in one script call for all of
// them. There is no timer: an idle lane sends at once, and a loaded one sends what has gathered meanwhile.
const (
	lanesPerShard = 2   // script calls of one shard in flight
	callsInFlight = 8   // script calls in flight over all shards of a server: with many lots, fewer and larger calls cost less
	maxBatch      = 512 // requests of one kind in a call
)

// kind tells the requests a batch is made of.
type kind int8

const (
	reserveKind kind = iota
	settleKind
	callKind // one script call of its own: load, change, …
)

// request is one caller's wish on its way through the shard.
type request struct {
	kind    kind
	lot     drop.LotID
	rival   string              // two requests with the same rival must not share a batch: the user (reserve), the attempt (settle)
	attempt string              // reserveKind
	reserve drop.ReserveRequest // reserveKind
	row     [7]string           // settleKind: its row, see the script
	call    *invocation         // callKind
	state   atomic.Int32
	done    chan result // capacity 1
}

const (
	waiting int32 = iota
	taken
	gone // its caller went away before it was taken
)

// result is a request's part of the answer.
type result struct {
	reply reply
	head  string // the line of its lot, said once for all its requests
	line  string // its own line; "" for callKind
	err   error
}

// shard gathers the requests of its lots and runs the lanes.
type shard struct {
	stock  *Stock
	number int
	keys   shardKeys
	moves  atomic.Int64         // how often a lane was told that the shard lives elsewhere
	home   atomic.Pointer[node] // where it lives, as far as known
	known  lookups
	seen   seenOutbox

	mu     sync.Mutex
	queue  []*request
	busy   int
	idle   []*lane
	closed bool
}

func newShard(s *Stock, number int) *shard {
	sh := &shard{stock: s, number: number, keys: keysOf(number)}
	sh.known.lane = &lane{shard: sh}
	return sh
}

// requests are answered requests, for those to come: at full speed they are most of the garbage.
var requests = sync.Pool{New: func() any { return &request{done: make(chan result, 1)} }}

// newRequest returns an empty request. do gives it back once it is answered.
func newRequest(k kind, lot drop.LotID) *request {
	r, _ := requests.Get().(*request)
	*r = request{kind: k, lot: lot, done: r.done}
	return r
}

// do hands a request to the shard and waits for its result. When ctx ends first, a request that was not sent yet is
// taken back (unavailable); one that was sent has an unknown outcome.
func (s *Stock) do(ctx context.Context, sh *shard, r *request) (result, error) {
	if err := ctx.Err(); err != nil {
		return result{}, s.notSent(err)
	}
	if err := sh.submit(r); err != nil {
		return result{}, err
	}
	select {
	case res := <-r.done:
		requests.Put(r) // who answers a request is done with it
		return res, res.err
	case <-ctx.Done():
	}
	if r.state.CompareAndSwap(waiting, gone) {
		return result{}, s.notSent(ctx.Err())
	}
	select {
	case res := <-r.done:
		return res, res.err
	default:
	}
	return result{}, fault.Wrap(fault.OutcomeUnknown, ctx.Err(), "no answer came from Redis at %s in time", s.target)
}

func (s *Stock) notSent(err error) error {
	return fault.Wrap(fault.Unavailable, err, "Redis at %s is too slow; the request was not sent", s.target).WithHint("try again")
}

// submit queues a request and sees to it that a lane drives, unless the shard takes no calls.
func (sh *shard) submit(r *request) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.closed {
		return closedFault()
	}
	if err := sh.refused(); err != nil {
		return err
	}
	sh.queue = append(sh.queue, r)
	if sh.busy >= lanesPerShard {
		return nil
	}
	sh.busy++
	l := &lane{shard: sh}
	if n := len(sh.idle); n > 0 {
		l, sh.idle = sh.idle[n-1], sh.idle[:n-1]
	}
	sh.stock.lanes.Add(1)
	go sh.drive(l)
	return nil
}

// drive sends batches on a lane until nothing waits. The connection is made ready before the lane takes one of its
// server's slots.
func (sh *shard) drive(l *lane) {
	defer sh.stock.lanes.Done()
	var b batch
	for {
		// The lane's own limits end a call: dialling and the socket both have timeouts.
		ctx := context.Background()
		err := l.ready(ctx)
		free := l.enter(err)
		more := sh.fill(&b, l)
		if more {
			b.send(ctx, l, err)
		}
		free()
		if !more {
			return
		}
		// Let the callers just answered put their next requests into the batch that follows.
		runtime.Gosched()
	}
}

// fill moves what waits into the batch. If nothing does, the lane becomes idle.
func (sh *shard) fill(b *batch, l *lane) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b.take(sh)
	if b.empty() {
		sh.busy--
		sh.idle = append(sh.idle, l)
		return false
	}
	return true
}

// shut refuses further requests of the shard.
func (sh *shard) shut() {
	sh.mu.Lock()
	sh.closed = true
	sh.mu.Unlock()
}

// batch is what one pipeline carries: a reserve call, a settle call and single calls.
type batch struct {
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
	kind  kind
	lots  []drop.LotID
	byLot map[drop.LotID][]*request
	n     int
	lone  int // how many of the lots, from the first on, go as lots with one request (reserve)
}

func (g *group) add(r *request) {
	if g.byLot == nil {
		g.byLot = make(map[drop.LotID][]*request)
	}
	if _, seen := g.byLot[r.lot]; !seen {
		g.lots = append(g.lots, r.lot)
	}
	g.byLot[r.lot] = append(g.byLot[r.lot], r)
	g.n++
}

func (g *group) reset() {
	g.lots = g.lots[:0]
	clear(g.byLot)
	g.n, g.lone = 0, 0
}

// leadLone moves the lots with one request to the front, as far as they all ask for the same.
func (g *group) leadLone() {
	var asked *drop.ReserveRequest
	for i, lot := range g.lots {
		rs := g.byLot[lot]
		q := &rs[0].reserve
		if len(rs) > 1 || q.Replace || asked != nil && (q.Qty != asked.Qty || q.Hold != asked.Hold) {
			continue
		}
		asked = q
		g.lots[g.lone], g.lots[i] = lot, g.lots[g.lone]
		g.lone++
	}
}

func (b *batch) empty() bool { return b.reserve.n == 0 && b.settle.n == 0 && len(b.calls) == 0 }

// take moves requests from the queue into the batch. What does not fit, or has a rival in it, stays in order.
func (b *batch) take(sh *shard) {
	b.reserve.reset()
	b.settle.reset()
	b.calls = b.calls[:0]
	if b.rivals == nil {
		b.rivals = make(map[rivalry]struct{})
	}
	clear(b.rivals)
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
	switch r.kind {
	case reserveKind:
		if b.reserve.n >= maxBatch {
			return false
		}
	case settleKind:
		if b.settle.n >= maxBatch {
			return false
		}
	default:
		return len(b.calls) < maxBatch
	}
	k := rivalry{r.kind, r.lot, r.rival}
	if _, there := b.rivals[k]; there {
		return false
	}
	b.rivals[k] = struct{}{}
	return true
}

// send runs the batch on the lane and answers every request in it; notReady is why the lane has no connection.
func (b *batch) send(ctx context.Context, l *lane, notReady error) {
	sh := l.shard
	if notReady == nil && l.weak != nil { // buyers are told no, all others what they then have
		for _, g := range []*group{&b.reserve, &b.settle} {
			g.deliver(sh, answer{err: l.weak})
			g.reset()
		}
	}
	var calls []*invocation
	if b.reserve.n > 0 {
		calls = append(calls, b.reserve.invocation(sh, reserveKind))
		sh.stock.opt.Metrics.BatchSize.WithLabelValues(lua.Reserve).Observe(float64(b.reserve.n))
	}
	if b.settle.n > 0 {
		calls = append(calls, b.settle.invocation(sh, settleKind))
		sh.stock.opt.Metrics.BatchSize.WithLabelValues(lua.Settle).Observe(float64(b.settle.n))
	}
	for _, r := range b.calls {
		calls = append(calls, r.call)
	}
	answers := l.run(ctx, calls, notReady)
	i := 0
	for _, g := range []*group{&b.reserve, &b.settle} {
		if g.n > 0 {
			g.deliver(sh, answers[i])
			i++
		}
	}
	for j, r := range b.calls {
		r.done <- result{reply: answers[i+j].reply, err: answers[i+j].fault()}
	}
}

// takeBack is how many due attempts a reserve or settle call looks at in all before it answers `again`.
const takeBack = 1024

// invocation writes the group as ARGV: columns for reserve, rows for settle (see the scripts).
func (g *group) invocation(sh *shard, k kind) *invocation {
	g.kind = k
	if k == reserveKind {
		g.leadLone()
	}
	inv := &invocation{keys: sh.keys.gated(g.lots...)}
	if k == reserveKind {
		inv.script = scripts["reserve"]
		inv.args = []string{strconv.FormatInt(sh.stock.opt.OutboxMaxBytes, 10), strconv.Itoa(takeBack), sh.stock.packReserves(g)}
		return inv
	}
	inv.script = scripts["settle"]
	inv.args = make([]string, 0, 2+2*len(g.lots)+7*g.n)
	inv.args = append(inv.args, strconv.Itoa(takeBack), strconv.Itoa(len(g.lots)))
	for _, lot := range g.lots {
		rs := g.byLot[lot]
		inv.args = append(inv.args, string(lot), strconv.Itoa(len(rs)))
		for _, r := range rs {
			inv.args = append(inv.args, r.row[:]...)
		}
	}
	return inv
}

// deliver gives each request of the group its line. A request told `again` goes back into the queue: due holds are
// left that it may yet get.
func (g *group) deliver(sh *shard, a answer) {
	for i, lot := range g.lots {
		head, lines := g.part(a.reply, i)
		err := a.err
		if err == nil {
			err = a.reply.fault("lot " + string(lot))
		}
		if err == nil && head == "!" {
			code, detail, _ := strings.Cut(lines, "\t")
			err = reply{status: code, detail: detail}.fault("lot " + string(lot))
		}
		next := linesOf(head, lines)
		for _, r := range g.byLot[lot] {
			if err != nil {
				r.done <- result{err: err}
				continue
			}
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

// requeue puts a request back; the driving lane takes it with its next batch.
func (sh *shard) requeue(r *request) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if err := sh.refused(); err != nil {
		r.done <- result{err: err}
		return
	}
	sh.queue = append(sh.queue, r)
}

// script runs one script call of its own on the shard's lanes.
func (s *Stock) script(ctx context.Context, sh *shard, name string, keys, args []string) (reply, error) {
	r := newRequest(callKind, "")
	r.call = &invocation{script: scripts[name], keys: keys, args: args}
	res, err := s.do(ctx, sh, r)
	if name == lua.Snapshot && fault.Is(err, fault.OutcomeUnknown) {
		err = wireFault(s.target, errors.Unwrap(err), false) // a look has no outcome
	}
	return res.reply, err
}
