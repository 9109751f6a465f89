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

// lane is one connection to a server together with the life (see there) that server had when it was last looked at.
// Every script call passes it; the script compares it with the one its shard was opened on. So a restarted, promoted or
// replaced server answers lot_frozen until the guardian has looked, however the connection came about. One that is made a
// replica and a primary again may keep its connections: lanes look again when any of the engine was refused by a replica, and
// after a rest. What remains is that nobody called in between and the next call comes within a second; then the guardian,
// who looks once a second, shuts the door.
// A lane is used by one goroutine at a time.
type lane struct {
	stock  *Stock
	home   *node // where the connection leads
	conn   *redis.Conn
	server map[string]string    // what the server told of itself when it was last looked at
	doors  map[*shard][3]string // what calls show at the doors of shards, as far as looked at since: life of the server, owner, retention
	used   time.Time
	took   time.Duration // the last pipeline was under way
	losses int64         // lost connections of the engine when this one was last known to work
	moves  int64         // of the server, when this one was opened

	wait    []any     // the command that waits for the level of durability; nil if nothing has to be waited for
	weak    error     // why the server cannot give the level; nil if it can
	assured time.Time // when the server was seen to sync before it answers
}

// idleCheck is how long a connection may rest before its server is looked at again: a dead one found there costs nobody
// an unknown outcome.
const idleCheck = time.Second

// ready makes sure of the connection. One that has rested, or has seen another lane lose its own, is tried first; one whose
// server has sent a shard away is opened anew, since that answers as well as ever.
func (l *lane) ready(ctx context.Context) error {
	losses := l.stock.losses.Load()
	doubtful := losses != l.losses || time.Since(l.used) > idleCheck
	l.losses = losses
	moves := l.home.moves.Load()
	if l.conn != nil && (moves != l.moves || doubtful && !l.same(ctx)) {
		l.close()
	}
	l.moves = moves
	var err error
	if l.conn == nil {
		if err = l.home.refused(); err == nil {
			err = l.open(ctx)
		}
	}
	if err == nil {
		err = l.assure(ctx)
	}
	if err != nil {
		l.stock.lost()
		l.close()
	}
	return err
}

// same reports whether the connection works and leads to the life of the server that it led to before.
func (l *lane) same(ctx context.Context) bool {
	before := l.server
	if l.look(ctx) != nil {
		return false
	}
	for _, field := range []string{"run_id", "role", "master_replid2"} {
		if l.server[field] != before[field] {
			return false
		}
	}
	return true
}

// open claims a connection and looks where it leads. A pooled connection may have died with a server that is gone, so it
// tries twice.
func (l *lane) open(ctx context.Context) error {
	var err error
	for range 2 {
		l.close()
		l.conn = l.home.client.Conn()
		if err = l.look(ctx); err == nil {
			l.used = time.Now()
			l.wait, l.weak, l.assured = nil, nil, time.Time{}
			return nil
		}
	}
	return err
}

// look reads from the connection which server it leads to. The doors of its shards have to be looked at again then.
func (l *lane) look(ctx context.Context) error {
	info, err := l.conn.Info(ctx, "server", "replication").Result()
	if err != nil {
		return err
	}
	l.server, l.doors = readInfo(info), make(map[*shard][3]string)
	if l.server["run_id"] == "" {
		return errors.New("the server does not tell its run id (INFO server), without which a replaced server cannot be noticed")
	}
	return nil
}

// meet looks at the doors of shards that the lane has not been to since it has looked at its server: which life of it they are
// open on and, if the installation is not known, whose data is there. What a shard's server refuses here it refuses the
// calls too, which tell why.
func (l *lane) meet(ctx context.Context, shards []*shard) error {
	pipe := l.conn.Pipeline()
	metas := make(map[*shard]*redis.SliceCmd)
	for _, sh := range shards {
		if _, met := l.doors[sh]; !met {
			metas[sh] = pipe.HMGet(ctx, sh.keys.meta, "owner", "run")
		}
	}
	if len(metas) == 0 {
		return nil
	}
	if _, err := pipe.Exec(ctx); err != nil && !serverSaid(err) {
		l.lose()
		return err
	}
	for sh, meta := range metas {
		if meta.Err() == nil {
			owner, _ := meta.Val()[0].(string)
			openOn, _ := meta.Val()[1].(string)
			l.doors[sh] = [3]string{life(l.server, openOn), cmp.Or(l.stock.owner(), owner), l.stock.retentionMS()}
		}
	}
	return nil
}

// lead lets the lane lead to a server.
func (l *lane) lead(home *node) {
	if l.home != home {
		l.close()
		l.home = home
	}
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
	if notReady != nil {
		return slices.Repeat([]answer{{err: wireFault(l.stock.target, notReady, false)}}, len(calls))
	}
	if len(calls) == 0 {
		return nil
	}
	proof := l.prove(calls)
	sent := append(slices.Clip(calls), proof.fences...)
	start := time.Now()
	cmds := l.exchange(ctx, sent, false, proof)
	var missing []int
	for i, cmd := range cmds {
		if isNoFunction(cmd.Err()) {
			missing = append(missing, i)
		}
	}
	if len(missing) > 0 {
		l.stock.opt.Metrics.ScriptReloads.Inc() // the library is sent once for all of them
		missing = slices.DeleteFunc(missing, func(i int) bool { return i >= len(calls) })
		for i := len(calls); i < len(sent); i++ {
			missing = append(missing, i) // the fences come last once more
		}
		again := make([]*invocation, len(missing))
		for i, m := range missing {
			again[i] = sent[m]
		}
		for i, cmd := range l.exchange(ctx, again, true, proof) {
			cmds[missing[i]] = cmd
		}
	}
	l.took = time.Since(start)
	l.measure(calls, l.took)
	answers := l.answers(ctx, sent, cmds)
	for i, c := range calls {
		if !c.promises() || answers[i].reply.shut() {
			continue
		}
		if unsafe := cmp.Or(l.weak, proof.missing(l.stock, c.shard, answers[len(calls):])); unsafe != nil {
			l.stock.opt.Metrics.Unproven.Inc()
			answers[i].unsafe = fault.Wrap(fault.OutcomeUnknown, unsafe, "Redis at %s has it, but may lose it", l.stock.target)
		}
	}
	if proof.wait != nil && proof.wait.Err() != nil && !serverSaid(proof.wait.Err()) {
		l.lose()
	}
	l.used = time.Now()
	return answers[:len(calls)]
}

// answers reads what came back for the invocations. It gives the connection up where it failed, or its server is no longer
// that of a shard.
func (l *lane) answers(ctx context.Context, sent []*invocation, cmds []*redis.Cmd) []answer {
	answers := make([]answer, len(cmds))
	broken := false
	for i, cmd := range cmds {
		r, err := parseReply(cmd)
		if isMoved(err) {
			l.sentAway(ctx, sent[i].shard)
		}
		broken = broken || isMoved(err) || err != nil && !serverSaid(err)
		answers[i] = answer{reply: r, err: l.stock.callFault(ctx, l.conn, sent[i].keys, err)}
	}
	if broken {
		l.lose()
	}
	return answers
}

// leave has shards sought before they are sent here again: the server cannot be reached, and another may have taken them over.
func (l *lane) leave(ctx context.Context, shards []*shard) {
	for _, sh := range shards {
		sh.moves.Add(1)
	}
	if len(shards) > 0 {
		l.stock.server.moved(ctx)
	}
}

// sentAway notes that the lane's server said that a shard lives elsewhere, or that it is no primary any more.
func (l *lane) sentAway(ctx context.Context, sh *shard) {
	sh.moves.Add(1)
	l.home.moves.Add(1)
	l.stock.server.moved(ctx)
}

// lose gives the connection up.
func (l *lane) lose() {
	l.stock.lost()
	l.close()
}

// exchange sends the invocations in one pipeline, with the wait of the proof behind them; withSource as source, behind a load
// of the library, which fails where another lane has just loaded it.
func (l *lane) exchange(ctx context.Context, calls []*invocation, withSource bool, p *proof) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		cmds[i] = c.command(ctx, withSource, l.doors[c.shard])
	}
	if len(cmds) == 1 && !withSource {
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
	if len(p.fences) > 0 {
		p.wait = redis.NewCmd(ctx, l.wait...)
		_ = pipe.Process(ctx, p.wait)
	}
	_, _ = pipe.Exec(ctx)
	return cmds
}

// enter waits until another pipeline may go to the lane's server; the lane calls free when it is answered. A lane that is not
// ready sends none.
func (l *lane) enter(notReady error) (free func()) {
	if notReady != nil {
		return func() {}
	}
	slots, inFlight := l.home.slots, l.stock.opt.Metrics.InFlight
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
		l.stock.opt.Metrics.CallSeconds.WithLabelValues(c.script.name).Observe(took.Seconds())
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
