package stock

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Group commit: requests that arrive while the lanes of a server are busy are sent together, in one script call for all of
// a shard's, and in one pipeline for all shards. There is no timer: an idle lane sends at once, and a loaded one sends
// what has gathered meanwhile.
const (
	lanesPerServer  = 4                      // pipelines of a server in flight, as long as the requests of so many shards wait
	lanesAtLeast    = 2                      // of them, where fewer wait: more would only divide their calls
	hangsAfter      = 100 * time.Millisecond // a pipeline that takes so long counts for neither
	looksInFlight   = 8                      // pipelines of looks, see known.go
	maxBatch        = 512                    // requests of one kind in a call; each is at most 12 values, and Lua unpacks 8,000
	waitingPerTaken = 8                      // of so many shards whose requests wait a pipeline takes one
	fairPipeline    = 32                     // requests with which it takes no more than that, where the server is near
	fairShare       = 32 * time.Microsecond  // and one for so much of the way to the server and back, or it would stand idle meanwhile
	wayMemory       = 256                    // of so many pipelines the quickest tells how long the way is
	fullPipeline    = 512                    // requests with which a pipeline takes no further shard: its callers are answered together
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
	rival   string              // two requests with the same rival must not share a batch: the user's mark (reserve), the attempt (settle)
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

// shard gathers the requests of its lots until a lane of its server takes them.
type shard struct {
	stock  *Stock
	number int
	keys   shardKeys
	home   atomic.Pointer[node] // the server where it lives, as far as known
	moves  atomic.Int64         // how often a server said that it lives elsewhere
	sought atomic.Int64         // moves when it was last found
	known  lookups
	seen   seenOutbox
	filing atomic.Bool // whether what is unfiled is being filed

	mu     sync.Mutex
	queue  []*request
	length atomic.Int64 // of the queue, for those who do not have the mutex
	called bool         // somebody is about to take the queue
	closed bool
}

func newShard(s *Stock, number int) *shard {
	sh := &shard{stock: s, number: number, keys: keysOf(s.opt.prefix(), number)}
	sh.sought.Store(-1)
	sh.known.lane = &lane{stock: s}
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

// submit queues a request and sees to it that a lane takes it, unless the shard takes no calls.
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
	sh.length.Add(1)
	sh.call()
	return nil
}

// call tells the lanes of the shard's server, which may have to be found first, that requests wait. The caller holds the
// shard's mutex.
func (sh *shard) call() {
	if sh.called {
		return
	}
	sh.called = true
	if sh.located() {
		sh.home.Load().serve(sh)
		return
	}
	sh.stock.lanes.Go(func() {
		if err := sh.seek(context.Background()); err != nil {
			sh.mu.Lock()
			sh.called = false
			sh.mu.Unlock()
			sh.flush(wireFault(sh.stock.target, err, false))
			return
		}
		sh.home.Load().serve(sh)
	})
}

// located reports whether it is known where the shard lives.
func (sh *shard) located() bool { return sh.sought.Load() == sh.moves.Load() }

// seek finds out where the shard lives, unless that is known.
func (sh *shard) seek(ctx context.Context) error {
	if err := sh.refused(); err != nil {
		return err
	}
	moves := sh.moves.Load()
	if sh.sought.Load() == moves {
		return nil
	}
	client, err := sh.stock.server.node(ctx, sh.keys.meta)
	if err != nil {
		sh.stock.lost()
		return err
	}
	sh.stock.settle(sh, client)
	sh.sought.Store(moves)
	return nil
}

// lanes are those of a server, and the shards whose requests they have to take.
type lanes struct {
	mu      sync.Mutex
	shards  []*shard            // each once
	busy    map[*lane]time.Time // when it last took requests
	idle    []*lane
	helping bool          // a timer runs, see helpLater
	way     time.Duration // to the server and back, as far as known
}

// fair returns how many requests a pipeline takes before it leaves the other shards alone. took is how long the lane's last one was
// under way. The caller holds the mutex.
func (l *lanes) fair(took time.Duration) int64 {
	switch {
	case l.way == 0:
		l.way = took
	case took > 0 && took < hangsAfter:
		l.way = min(took, l.way+(took-l.way)/wayMemory)
	}
	return max(fairPipeline, int64(l.way/fairShare))
}

// enough reports whether no lane besides this one is needed for what waits. The caller holds the mutex.
func (l *lanes) enough(besides *lane) bool {
	n := 0
	for other, since := range l.busy {
		if other != besides && time.Since(since) < hangsAfter {
			n++
		}
	}
	return n >= min(max(len(l.shards), lanesAtLeast), lanesPerServer)
}

// serve lets a lane take the requests of a shard.
func (n *node) serve(sh *shard) {
	n.lanes.mu.Lock()
	defer n.lanes.mu.Unlock()
	n.lanes.shards = append(n.lanes.shards, sh)
	n.start()
}

// start lets another lane take what waits, if one is needed. The caller holds the mutex.
func (n *node) start() {
	if len(n.lanes.shards) == 0 || len(n.lanes.busy) >= lanesPerServer {
		return
	}
	if n.lanes.enough(nil) {
		n.helpLater()
		return
	}
	s := n.lanes.shards[0].stock
	l := &lane{stock: s, home: n}
	if last := len(n.lanes.idle) - 1; last >= 0 {
		l, n.lanes.idle = n.lanes.idle[last], n.lanes.idle[:last]
	}
	n.lanes.busy[l] = time.Now()
	s.lanes.Add(1)
	go n.drive(l)
}

// drive sends what waits on a lane until nothing does. The connection is made ready first, and what gathers meanwhile goes
// with it.
func (n *node) drive(l *lane) {
	defer l.stock.lanes.Done()
	var shards []*shard
	var batches []*batch
	for {
		// The lane's own limits end a call: dialling and the socket both have timeouts.
		ctx := context.Background()
		err := l.ready(ctx)
		free := l.enter(err)
		shards = n.take(l, shards[:0])
		if len(shards) == 0 { // the lane is idle now, and may be somebody else's already
			free()
			return
		}
		for len(batches) < len(shards) {
			batches = append(batches, &batch{})
		}
		if err == nil {
			err = l.meet(ctx, shards)
		} else {
			l.leave(ctx, shards)
		}
		for i, sh := range shards {
			sh.fill(batches[i], n)
		}
		l.send(ctx, batches[:len(shards)], err)
		free()
		// Let the callers just answered put their next requests into the batches that follow.
		runtime.Gosched()
	}
}

// take moves the first of the shards whose requests wait into a list. Where few requests wait it takes all. Else it takes a part
// of the shards, so that requests of the others gather: a call costs as much as a dozen requests in it. If there are none, or
// other lanes are enough for them, the lane becomes idle.
func (n *node) take(l *lane, list []*shard) []*shard {
	n.lanes.mu.Lock()
	defer n.lanes.mu.Unlock()
	if len(n.lanes.shards) == 0 || n.lanes.enough(l) {
		delete(n.lanes.busy, l)
		n.lanes.idle = append(n.lanes.idle, l)
		if len(n.lanes.shards) > 0 {
			n.helpLater()
		}
		return list
	}
	part := (len(n.lanes.shards) + waitingPerTaken - 1) / waitingPerTaken
	first, requests, fair := 0, int64(0), n.lanes.fair(l.took)
	for first < len(n.lanes.shards) && requests < fullPipeline && (first < part || requests < fair) {
		requests += n.lanes.shards[first].length.Load()
		first++
	}
	n.lanes.busy[l] = time.Now()
	list = append(list, n.lanes.shards[:first]...)
	n.lanes.shards = slices.Delete(n.lanes.shards, 0, first)
	return list
}

// helpLater has what is left to the busy lanes taken by another one, should they hang: no more requests need come that would start
// it. The caller holds the mutex.
func (n *node) helpLater() {
	if n.lanes.helping {
		return
	}
	n.lanes.helping = true
	time.AfterFunc(hangsAfter, func() {
		n.lanes.mu.Lock()
		defer n.lanes.mu.Unlock()
		n.lanes.helping = false
		n.start()
	})
}

// release closes the connections of the lanes that are idle.
func (n *node) release() {
	n.lanes.mu.Lock()
	defer n.lanes.mu.Unlock()
	for _, l := range n.lanes.idle {
		l.close()
	}
}

// fill moves what waits into the batch, unless the shard lives elsewhere by now. What is left calls again.
func (sh *shard) fill(b *batch, n *node) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.called = false
	b.reset(sh)
	if sh.home.Load() == n {
		b.take()
		sh.length.Store(int64(len(sh.queue)))
	}
	if len(sh.queue) > 0 {
		sh.call()
	}
}

// shut refuses further requests of the shard.
func (sh *shard) shut() {
	sh.mu.Lock()
	sh.closed = true
	sh.mu.Unlock()
}

// requeue puts a request back, for a lane to take with its next batch.
func (sh *shard) requeue(r *request) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if err := sh.refused(); err != nil {
		r.done <- result{err: err}
		return
	}
	sh.queue = append(sh.queue, r)
	sh.length.Add(1)
	sh.call()
}

// script runs one script call of its own on the lanes of the shard's server.
func (s *Stock) script(ctx context.Context, sh *shard, name string, keys, args []string) (reply, error) {
	r := newRequest(callKind, "")
	r.call = &invocation{shard: sh, script: scripts[name], keys: keys, args: args}
	res, err := s.do(ctx, sh, r)
	if name == lua.Snapshot && fault.Is(err, fault.OutcomeUnknown) {
		err = wireFault(s.target, errors.Unwrap(err), false) // a look has no outcome
	}
	return res.reply, err
}
