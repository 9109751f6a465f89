package stock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// A server that hangs would hold every caller for the time limit of a socket. So with Options.Breaker each server is
// pinged on a connection of the prober's own. Bad pings open the server's breaker: calls to its shards, and those that
// wait to be sent, are then refused at once. The pings go on, and the first good one lets calls through again. Any
// answer in time is a good ping, whatever it says: where the server answers nothing piles up, and what it answers to a
// call that call tells best. Calls themselves are not counted: a refusal of business could be mistaken for a failure.
const (
	probeEvery = 250 * time.Millisecond
	slowPing   = 100 * time.Millisecond // longer is bad
	pingLimit  = 200 * time.Millisecond // it is not waited for longer
	badPings   = 2                      // in a row, until the breaker opens
	retryAfter = 1                      // seconds, for callers that are refused
)

// node is a Redis server that shards live on.
type node struct {
	name    string
	client  *redis.Client
	lanes   lanes
	slots   chan struct{}               // pipelines in flight, those of looks too
	moves   atomic.Int64                // how often its lanes had to be opened anew
	refusal atomic.Pointer[fault.Error] // what callers are told while the breaker is not closed
	breaker *gobreaker.CircuitBreaker[struct{}]

	waits uint32 // for a connection of the pool, as far as counted

	probing atomic.Bool
	conn    *redis.Conn // the prober's; nil if it has to connect first
	dial    time.Duration

	mu    sync.Mutex
	state drop.NodeState
}

// refused is why no call may go to the shard's server now, or nil.
func (sh *shard) refused() error {
	if n := sh.home.Load(); n != nil {
		return n.refused()
	}
	return nil
}

func (n *node) refused() error {
	if e := n.refusal.Load(); e != nil {
		return e
	}
	return nil
}

// flush answers what waits, and was not sent, with an error.
func (sh *shard) flush(err error) {
	sh.mu.Lock()
	queue, looks := sh.queue, sh.known.queue
	sh.queue, sh.known.queue = nil, nil
	sh.length.Store(0)
	sh.mu.Unlock()
	for _, k := range looks {
		k.done <- known{err: err}
	}
	for _, r := range queue {
		if r.state.CompareAndSwap(waiting, taken) {
			r.done <- result{err: err}
		}
	}
}

// settle notes that a shard lives on the server behind a client, and returns that node.
func (s *Stock) settle(sh *shard, client *redis.Client) *node {
	was := sh.home.Load()
	n := s.move(sh, client)
	if err := n.refusal.Load(); err != nil && n != was {
		sh.flush(err) // calls that wait came with the shard
	}
	return n
}

// move lets a shard live on the node behind a client. Nodes that no shard lives on any more are forgotten.
func (s *Stock) move(sh *shard, client *redis.Client) *node {
	s.nodesMu.Lock()
	defer s.nodesMu.Unlock()
	at := slices.IndexFunc(s.nodes, func(n *node) bool { return n.client == client })
	if at < 0 {
		at = len(s.nodes)
		s.nodes = append(s.nodes, s.newNode(client))
	}
	n := s.nodes[at]
	if sh.home.Swap(n) == n {
		return n
	}
	s.nodes = slices.DeleteFunc(s.nodes, func(n *node) bool {
		unused := !s.hasShard(n)
		if unused {
			n.release()
			s.opt.Metrics.Breaker.DeleteLabelValues(n.name)
		}
		return unused
	})
	return n
}

func (s *Stock) newNode(client *redis.Client) *node {
	n := &node{name: s.target, client: client, slots: make(chan struct{}, lanesPerServer+looksInFlight), dial: s.opt.DialTimeout}
	n.lanes.busy = make(map[*lane]time.Time)
	if _, many := s.server.(clustered); many {
		n.name = client.Options().Addr
	}
	n.state = drop.NodeState{Node: n.name, Breaker: drop.BreakerClosed}
	n.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:          n.name,
		Timeout:       probeEvery / 2, // every ping of an open breaker is a trial
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= badPings },
		OnStateChange: func(_ string, _, to gobreaker.State) { s.turn(n, to) },
	})
	return n
}

func (s *Stock) hasShard(n *node) bool {
	return slices.ContainsFunc(s.shards, func(sh *shard) bool { return sh.home.Load() == n })
}

// turn carries out what a new state of a node's breaker means.
func (s *Stock) turn(n *node, to gobreaker.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.state.Breaker
	switch to {
	case gobreaker.StateHalfOpen:
		n.state.Breaker = drop.BreakerHalfOpen
	case gobreaker.StateClosed:
		n.state.Breaker = drop.BreakerClosed
		n.state.Since = time.Now()
		n.refusal.Store(nil)
	case gobreaker.StateOpen:
		n.state.Breaker = drop.BreakerOpen
		if was == drop.BreakerClosed {
			n.state.Since = time.Now()
		}
		e := fault.New(fault.Unavailable, "Redis at %s does not answer in time since %s: %s", n.name, n.state.Since.UTC().Format(time.RFC3339), n.state.Err).
			With("retry_after_seconds", retryAfter)
		n.refusal.Store(e)
		s.losses.Add(1) // the lanes' connections are doubtful too
		for _, sh := range s.shards {
			if sh.home.Load() == n {
				sh.flush(e)
			}
		}
	}
}

// watch pings each server with shards, until ctx ends.
func (s *Stock) watch(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		for _, n := range s.locate(ctx) {
			if n.probing.CompareAndSwap(false, true) {
				probes.Go(func() {
					defer n.probing.Store(false)
					n.probe(ctx)
				})
			}
		}
		s.sample()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample sets the metrics that no single call can.
func (s *Stock) sample() {
	waiting := 0
	for _, sh := range s.shards {
		sh.mu.Lock()
		waiting += len(sh.queue) + len(sh.known.queue)
		sh.mu.Unlock()
	}
	s.opt.Metrics.Waiting.Set(float64(waiting))
	s.nodesMu.Lock()
	defer s.nodesMu.Unlock()
	for _, n := range s.nodes {
		pool := n.client.PoolStats()
		waits := pool.WaitCount + pool.Timeouts               // the former are those that ended well
		s.opt.Metrics.PoolWaits.Add(float64(waits - n.waits)) // it may run over
		n.waits = waits
		s.opt.Metrics.Breaker.WithLabelValues(n.name).Set(float64(n.breaker.State())) // they are numbered alike
	}
}

// locate finds out where each shard lives. While a server is refused, others may have taken its shards over.
func (s *Stock) locate(ctx context.Context) []*node {
	ctx, cancel := context.WithTimeout(ctx, s.opt.DialTimeout+s.opt.Timeout)
	defer cancel()
	var nodes []*node
	for _, sh := range s.shards {
		client, err := s.server.node(ctx, sh.keys.meta)
		if err != nil {
			break // no node of the cluster has told yet; a lane that asks tells its callers why
		}
		n := s.settle(sh, client)
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	if slices.ContainsFunc(nodes, func(n *node) bool { return n.refusal.Load() != nil }) {
		s.server.moved(ctx)
	}
	return nodes
}

// probe pings the server once and tells its breaker.
func (n *node) probe(ctx context.Context) {
	_, _ = n.breaker.Execute(func() (struct{}, error) {
		took, said, bad := n.ping(ctx)
		if bad != nil && ctx.Err() != nil {
			return struct{}{}, nil // the engine is closing
		}
		if bad == nil && took > slowPing {
			bad = fmt.Errorf("a ping took %v", took.Round(time.Millisecond))
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.state.LastPing, n.state.Err = took, ""
		if why := errors.Join(said, bad); why != nil {
			n.state.Err = why.Error()
		}
		n.state.Refuses = said != nil && !hasAnyPrefix(said.Error(), "NOPERM") // whoever may not ping may do other things
		return struct{}{}, bad
	})
}

// ping measures a ping; said is what the server answered instead of PONG. A connection is made first where there is
// none. It has the time of a dial, which may be slow in a network where pings are quick, unless it is to tell soon that
// the server hangs.
func (n *node) ping(ctx context.Context) (took time.Duration, said, bad error) {
	start := time.Now()
	if n.conn == nil {
		limit := n.dial
		n.mu.Lock()
		if n.state.Breaker == drop.BreakerClosed && n.state.LastPing > 0 {
			limit = pingLimit
		}
		n.mu.Unlock()
		n.conn = n.client.Conn()
		if said, bad = n.try(ctx, limit); bad != nil {
			return time.Since(start), nil, bad
		} else if said != nil {
			return 0, said, nil // without a PONG there is nothing to measure
		}
		start = time.Now()
	}
	said, bad = n.try(ctx, pingLimit)
	return time.Since(start), said, bad
}

func (n *node) try(ctx context.Context, limit time.Duration) (said, bad error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := n.conn.Ping(ctx).Err()
	if err == nil {
		return nil, nil
	}
	_ = n.conn.Close()
	n.conn = nil
	if serverSaid(err) {
		return err, nil
	}
	return nil, err
}

// Nodes tells how each server with shards answers its prober; none without Options.Breaker.
func (s *Stock) Nodes() []drop.NodeState {
	s.nodesMu.Lock()
	nodes := slices.Clone(s.nodes)
	s.nodesMu.Unlock()
	var states []drop.NodeState
	for _, n := range nodes {
		if s.opt.Breaker && s.hasShard(n) {
			n.mu.Lock()
			states = append(states, n.state)
			n.mu.Unlock()
		}
	}
	return states
}
