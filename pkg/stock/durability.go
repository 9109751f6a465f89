package stock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/fault"
)

// level is what a change has outlived when its call is answered. The zero value is `memory`: Redis has carried it out.
type level struct {
	disk     bool // `disk`: the primary has synced it
	replicas int  // `replicas=N`: that many replicas have it in memory
}

// maxReplicas is more than any primary has.
const maxReplicas = 99

func parseLevel(text string) (level, error) {
	switch text {
	case "", "memory":
		return level{}, nil
	case "disk":
		return level{disk: true}, nil
	}
	number, ok := strings.CutPrefix(text, "replicas=")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 1 || n > maxReplicas {
		return level{}, fault.New(fault.InvalidConfig, "durability is %q", text).WithField("durability").
			WithHint("use memory, disk, or replicas=1 to replicas=%d", maxReplicas)
	}
	return level{replicas: n}, nil
}

// recheck is how long a server is believed to sync before it answers, once it was seen to: somebody may change its
// configuration.
const recheck = time.Second

// assure finds out how the lane's server gives the level that is asked for, or why it cannot. Whether there are enough
// replicas every wait tells anew.
func (l *lane) assure(ctx context.Context) error {
	s := l.stock
	if s.level.replicas > 0 {
		l.wait = s.waitReplicas()
	}
	if !s.level.disk || l.wait != nil || time.Since(l.assured) <= recheck {
		return nil
	}
	pipe := l.conn.Pipeline()
	q := s.level.ask(ctx, pipe)
	if _, err := pipe.Exec(ctx); err != nil && !serverSaid(err) {
		return err
	}
	wait, weak := s.judge(q)
	if weak != "" {
		l.weak = s.tooWeak(weak)
		return nil
	}
	l.wait, l.weak, l.assured = wait, nil, time.Now()
	return nil
}

// waitReplicas is the command that waits for the replicas.
func (s *Stock) waitReplicas() []any {
	return []any{"WAIT", s.level.replicas, s.opt.DurabilityWait.Milliseconds()}
}

func (s *Stock) tooWeak(weak string) error {
	return fault.New(fault.Unavailable, "Redis at %s cannot give the durability %s: %s", s.target, s.opt.Durability, weak).WithHint("%s", s.level.remedy())
}

// remedy is what to change on a server that cannot give the level.
func (lv level) remedy() string {
	if lv.disk {
		return "let it have appendonly yes and appendfsync always, or be Redis 8.0 or newer; or choose another --durability"
	}
	return "bring the replicas back, or choose another --durability"
}

// question is what a server is asked, within a pipeline, to know whether it can give a level.
type question struct {
	info    *redis.StringCmd
	config  *redis.MapStringStringCmd
	waitaof *redis.Cmd
}

func (lv level) ask(ctx context.Context, pipe redis.Pipeliner) (q question) {
	switch {
	case lv.disk:
		q.info = pipe.Info(ctx, "server", "persistence")
		q.config = redis.NewMapStringStringCmd(ctx, "CONFIG", "GET", "appendfsync", "no-appendfsync-on-rewrite")
		_ = pipe.Process(ctx, q.config)
		q.waitaof = pipe.Do(ctx, "COMMAND", "INFO", "WAITAOF")
	case lv.replicas > 0:
		q.info = pipe.Info(ctx, "replication")
	}
	return q
}

// judge says why a server cannot give the level, "" if it can, and what has to be waited for; nil for nothing.
func (s *Stock) judge(q question) (wait []any, weak string) {
	switch {
	case s.level == level{}:
		return nil, ""
	case q.info.Err() != nil:
		return nil, "it does not tell how it is (INFO)"
	case s.level.disk:
		return s.judgeDisk(readInfo(q.info.Val()), q)
	}
	online := 0
	for name, value := range readInfo(q.info.Val()) {
		if strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online") {
			online++
		}
	}
	if online < s.level.replicas {
		return nil, fmt.Sprintf("%d replicas follow it", online)
	}
	return s.waitReplicas(), ""
}

func (s *Stock) judgeDisk(info map[string]string, q question) (wait []any, weak string) {
	fsync := q.config.Val()["appendfsync"]
	if q.config.Err() != nil {
		fsync = s.opt.AttestedFsync
	}
	pauses := q.config.Val()["no-appendfsync-on-rewrite"] == "yes" // nothing is synced while the file is rewritten
	canWait, noWait := canWaitForDisk(info, q)
	switch {
	case info["aof_enabled"] != "1":
		return nil, "its append-only file is off"
	case info["aof_rewrite_in_progress"] == "1" && info["aof_base_size"] == "0":
		return nil, "its append-only file was just switched on and is not complete yet"
	case fsync == "always" && !pauses:
		return nil, "" // it syncs before it answers anybody
	case canWait:
		return []any{"WAITAOF", 1, 0, s.opt.DurabilityWait.Milliseconds()}, ""
	case fsync == "":
		return nil, "it does not tell when it syncs its append-only file (CONFIG is forbidden, and redis-appendfsync is not attested), and " + noWait
	case pauses:
		return nil, "it does not sync while it rewrites its append-only file (no-appendfsync-on-rewrite), and " + noWait
	}
	return nil, "it syncs its append-only file later (appendfsync " + fsync + "), and " + noWait
}

// canWaitForDisk reports whether the server's WAITAOF can be relied on, else why not. Before Redis 8.0, and in Valkey, which
// calls itself Redis 7.2.4, it answers within a tenth of a second that all is synced, whatever is (redis/redis#13793).
func canWaitForDisk(info map[string]string, q question) (can bool, whyNot string) {
	if commands, _ := q.waitaof.Slice(); len(commands) != 1 || commands[0] == nil {
		return false, "has no WAITAOF"
	}
	major, _, _ := strings.Cut(info["redis_version"], ".")
	if n, _ := strconv.Atoi(major); n < 8 {
		return false, "its WAITAOF (Redis " + info["redis_version"] + ") answers before anything is synced"
	}
	return true, ""
}

// proof is the end of a pipeline on a lane whose level has to be waited for: a fence for each shard, then the one wait for
// everything before it. Redis promises of a wait no more than that it covers what its own connection wrote; but a replay, or
// a refusal because of somebody's hold, tells of what another connection wrote. A fence is a write of our own behind
// all that the shard's batch has seen, so that no answer tells of a hold that can still be lost.
type proof struct {
	fences []*invocation
	wait   *redis.Cmd // of the newest pipeline; nil without fences
}

// prove prepares the proof for some invocations, without fences if they need none.
func (l *lane) prove(calls []*invocation) *proof {
	p := &proof{}
	if l.wait == nil {
		return p
	}
	for _, c := range calls {
		if c.promises() && p.fence(c.shard) < 0 {
			p.fences = append(p.fences, &invocation{shard: c.shard, script: scripts[lua.Fence], keys: []string{c.shard.keys.meta}})
		}
	}
	return p
}

// fence returns which of the fences is a shard's, -1 for none.
func (p *proof) fence(sh *shard) int {
	return slices.IndexFunc(p.fences, func(f *invocation) bool { return f.shard == sh })
}

// missing says what the batch of a shard lacks to be as durable as asked, given the answers to the fences; nil if nothing.
func (p *proof) missing(s *Stock, sh *shard, fences []answer) error {
	if p.wait == nil {
		return nil
	}
	fence := fences[p.fence(sh)]
	synced, err := reached(p.wait)
	switch {
	case fence.reply.status != "ok": // the wait may have stood behind nothing
		return cmp.Or(fence.err, errors.New("its shard was shut meanwhile"))
	case err != nil:
		return err
	case s.level.disk && synced < 1:
		return fmt.Errorf("it was not synced to the disk within %v", s.opt.DurabilityWait)
	case synced < int64(s.level.replicas):
		return fmt.Errorf("only %d of %d replicas had it within %v", synced, s.level.replicas, s.opt.DurabilityWait)
	}
	return nil
}

// reached returns how many have what was waited for: the answer of WAIT, and the first of WAITAOF's two, which is 1 if
// the primary has synced it.
func reached(wait *redis.Cmd) (int64, error) {
	if err := wait.Err(); err != nil {
		return 0, err
	}
	if both, ok := wait.Val().([]any); ok && len(both) == 2 {
		n, _ := both[0].(int64)
		return n, nil
	}
	return wait.Int64()
}

// CheckDurability reports whether each primary could give the level at the moment: Unavailable, with what to change, if
// one could not.
func (s *Stock) CheckDurability(ctx context.Context) error {
	err := s.server.eachNode(ctx, func(n *redis.Client) error {
		pipe := n.Pipeline()
		q := s.level.ask(ctx, pipe)
		if _, err := pipe.Exec(ctx); err != nil && !serverSaid(err) {
			return err
		}
		if _, weak := s.judge(q); weak != "" {
			return s.tooWeak(weak)
		}
		return nil
	})
	return wireFault(s.target, err, false)
}
