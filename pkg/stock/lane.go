package stock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/fault"
)

// lane is one connection to a shard's server together with the life (see there) that server had when it was last looked at.
// Every script call passes it; the script compares it with the one the shard was opened on. So a restarted, promoted or
// replaced server answers lot_frozen until the guardian has looked, however the connection came about. One that is made a
// replica and a primary again may keep its connections: lanes look again when any of the engine was refused by a replica, and
// after a rest. What remains is that nobody called in between and the next call comes within a second; then the guardian,
// who looks once a second, shuts the door.
// A lane is used by one goroutine at a time.
type lane struct {
	shard  *shard
	conn   *redis.Conn
	home   *node     // where the connection leads
	door   [3]string // life of the server, owner, retention
	used   time.Time
	losses int64 // lost connections of the engine when this one was last known to work
	moves  int64 // of the shard, when this one was opened

	wait    []any     // the command that waits for the level of durability; nil if nothing has to be waited for
	weak    error     // why the server cannot give the level; nil if it can
	assured time.Time // when the server was seen to sync before it answers
}

// idleCheck is how long a connection may rest before its server is looked at again: a dead one found there costs nobody
// an unknown outcome.
const idleCheck = time.Second

// ready makes sure of the connection. One that has rested, or has seen another lane lose its own, is tried first; one that has
// seen another lane sent away is opened anew, since its server answers as well as ever.
func (l *lane) ready(ctx context.Context) error {
	losses := l.shard.stock.losses.Load()
	doubtful := losses != l.losses || time.Since(l.used) > idleCheck
	l.losses = losses
	moves := l.shard.moves.Load()
	if l.conn != nil && (moves != l.moves || doubtful && !l.same(ctx)) {
		l.close()
	}
	l.moves = moves
	var err error
	if l.conn == nil {
		if err = l.shard.refused(); err == nil {
			err = l.open(ctx)
		}
	}
	if err == nil {
		err = l.assure(ctx)
	}
	if err != nil {
		l.shard.stock.lost()
		l.close()
	}
	return err
}

// same reports whether the connection works and leads to what it led to before.
func (l *lane) same(ctx context.Context) bool {
	door, err := l.look(ctx)
	return err == nil && door == l.door
}

// open claims a connection and looks where it leads. A pooled connection may have died with a server that is gone, so it
// tries twice.
func (l *lane) open(ctx context.Context) error {
	s := l.shard.stock
	var err error
	for range 2 {
		l.close()
		var node *redis.Client
		if node, err = s.server.node(ctx, l.shard.keys.meta); err != nil {
			s.server.moved(ctx)
			continue
		}
		l.conn, l.home = node.Conn(), s.settle(l.shard, node)
		l.door, err = l.look(ctx)
		switch {
		case err == nil:
			l.used = time.Now()
			l.wait, l.weak, l.assured = nil, nil, time.Time{}
			return nil
		case wrongType(err):
			return s.commandFault(l.shard.keys.meta, err)
		case isMoved(err):
			s.server.moved(ctx)
		}
	}
	return err
}

// look reads from the connection which life of which server it leads to and, if the installation is not known, whose data
// is there.
func (l *lane) look(ctx context.Context) (door [3]string, err error) {
	s := l.shard.stock
	pipe := l.conn.Pipeline()
	info, meta := pipe.Info(ctx, "server", "replication"), pipe.HMGet(ctx, l.shard.keys.meta, "owner", "run")
	if _, err := pipe.Exec(ctx); err != nil {
		return door, err
	}
	owner, _ := meta.Val()[0].(string)
	openOn, _ := meta.Val()[1].(string)
	door = [3]string{life(readInfo(info.Val()), openOn), cmp.Or(s.owner(), owner), s.retentionMS()}
	if door[0] == "" {
		err = errors.New("the server does not tell its run id (INFO server), without which a replaced server cannot be noticed")
	}
	return door, err
}

func (l *lane) close() {
	if l.conn != nil {
		_ = l.conn.Close() // it goes back to the pool, or is gone
		l.conn = nil
	}
}

// answer is what came back for one invocation.
type answer struct {
	reply  reply
	err    error
	unsafe error // why what the reply tells can still be lost; nil if it is as durable as asked
}

// fault is why the caller must not rely on the reply, or nil.
func (a answer) fault() error { return cmp.Or(a.err, a.unsafe) }

// run sends the invocations as one pipeline and returns an answer for each. What the server has no function for was not
// run: it alone is sent again as source, behind the library for the calls to come. So it does not matter whether the
// server takes the library, which it does not when its memory is full.
func (l *lane) run(ctx context.Context, calls []*invocation, notReady error) []answer {
	target := l.shard.stock.target
	if notReady != nil {
		return slices.Repeat([]answer{{err: wireFault(target, notReady, false)}}, len(calls))
	}
	if len(calls) == 0 {
		return nil
	}
	proof := l.prove(calls)
	sent := calls
	if proof != nil {
		sent = append(slices.Clip(calls), proof.fence)
	}
	start := time.Now()
	cmds := l.send(ctx, sent, false, proof)
	var missing []int
	for i, cmd := range cmds {
		if isNoFunction(cmd.Err()) {
			missing = append(missing, i)
		}
	}
	if len(missing) > 0 {
		l.shard.stock.opt.Metrics.ScriptReloads.Inc() // the library is sent once for all of them
		if proof != nil && missing[len(missing)-1] != len(calls) {
			missing = append(missing, len(calls)) // the fence comes last once more
		}
		again := make([]*invocation, len(missing))
		for i, m := range missing {
			again[i] = sent[m]
		}
		for i, cmd := range l.send(ctx, again, true, proof) {
			cmds[missing[i]] = cmd
		}
	}
	l.measure(calls, time.Since(start))
	answers := make([]answer, len(cmds))
	broken := proof != nil && proof.wait.Err() != nil && !serverSaid(proof.wait.Err())
	for i, cmd := range cmds {
		r, err := parseReply(cmd)
		if err != nil && !serverSaid(err) || isMoved(err) {
			broken = true
		}
		if isMoved(err) {
			l.shard.moves.Add(1)
			l.shard.stock.server.moved(ctx)
		}
		answers[i] = answer{reply: r, err: l.shard.stock.callFault(ctx, l.conn, sent[i].keys, err)}
	}
	unsafe := l.weak
	if proof != nil {
		unsafe = proof.missing(l.shard.stock, answers[len(calls)])
	}
	for i, c := range calls {
		if unsafe != nil && c.promises() && !answers[i].reply.shut() {
			answers[i].unsafe = fault.Wrap(fault.OutcomeUnknown, unsafe, "Redis at %s has it, but may lose it", target)
		}
	}
	if broken {
		l.shard.stock.lost()
		l.close()
	}
	l.used = time.Now()
	return answers[:len(calls)]
}

// send sends the invocations in one pipeline, with the wait of the proof behind them; withSource as source, behind a load of
// the library, which fails where another lane has just loaded it.
func (l *lane) send(ctx context.Context, calls []*invocation, withSource bool, p *proof) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		cmds[i] = c.command(ctx, withSource, l.door)
	}
	if len(cmds) == 1 && p == nil && !withSource {
		_ = l.conn.Process(ctx, cmds[0])
		return cmds
	}
	pipe := l.conn.Pipeline()
	if withSource {
		_ = pipe.Process(ctx, redis.NewCmd(ctx, "FUNCTION", "LOAD", librarySource))
	}
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	if p != nil {
		p.wait = redis.NewCmd(ctx, l.wait...)
		_ = pipe.Process(ctx, p.wait)
	}
	_, _ = pipe.Exec(ctx)
	return cmds
}

// enter waits until another call may go to the lane's server; the lane calls free when it is answered. A lane that is not
// ready sends none.
func (l *lane) enter(notReady error) (free func()) {
	if notReady != nil {
		return func() {}
	}
	slots, inFlight := l.home.slots, l.shard.stock.opt.Metrics.InFlight
	slots <- struct{}{}
	inFlight.Inc()
	return func() {
		inFlight.Dec()
		<-slots
	}
}

// measure notes how long the calls of a pipeline took.
func (l *lane) measure(calls []*invocation, took time.Duration) {
	for _, c := range calls {
		l.shard.stock.opt.Metrics.CallSeconds.WithLabelValues(c.script.name).Observe(took.Seconds())
	}
}

// lost notes that a connection was lost, or could not be had: the others are doubtful too.
func (s *Stock) lost() {
	s.losses.Add(1)
	s.opt.Metrics.ConnectionsLost.Inc()
}

func unixMilli(s string) time.Time {
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func closedFault() error {
	return fault.New(fault.Unavailable, "the engine is shutting down").WithHint("retry with the same key once it is back")
}
