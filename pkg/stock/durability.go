package stock

import (
	"context"
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

// assure finds out how the lane's server gives the level that is asked for, and refuses if it does not.
func (l *lane) assure(ctx context.Context) error {
	s := l.shard.stock
	switch {
	case s.level.replicas > 0:
		l.wait = s.waitReplicas()
	case s.level.disk && l.wait == nil && time.Since(l.assured) > recheck:
		wait, err := s.waitDisk(ctx, l.conn)
		if err != nil {
			return err
		}
		l.wait, l.assured = wait, time.Now()
	}
	return nil
}

// waitReplicas is the command that waits for the replicas.
func (s *Stock) waitReplicas() []any {
	return []any{"WAIT", s.level.replicas, s.opt.DurabilityWait.Milliseconds()}
}

// waitDisk is the command that waits for the disk; nil where none is needed, because the server syncs before it answers.
// It fails where neither is to be had.
func (s *Stock) waitDisk(ctx context.Context, c interface{ Pipeline() redis.Pipeliner }) ([]any, error) {
	refuse := func(why string) error {
		return fault.New(fault.Unavailable, "Redis at %s cannot give the durability disk: %s", s.target, why).
			WithHint("let it have appendonly yes and appendfsync always, or be Redis 7.2 or newer; or choose another --durability")
	}
	pipe := c.Pipeline()
	info := pipe.Info(ctx, "persistence")
	config := redis.NewMapStringStringCmd(ctx, "CONFIG", "GET", "appendfsync", "no-appendfsync-on-rewrite")
	_ = pipe.Process(ctx, config)
	if _, err := pipe.Exec(ctx); err != nil && !serverSaid(err) {
		return nil, err
	}
	aof := readInfo(info.Val())
	switch {
	case info.Err() != nil:
		return nil, refuse("it does not tell how its data is kept (INFO persistence)")
	case aof["aof_enabled"] != "1":
		return nil, refuse("its append-only file is off")
	case aof["aof_rewrite_in_progress"] == "1" && aof["aof_base_size"] == "0":
		return nil, refuse("its append-only file was just switched on and is not complete yet")
	}
	fsync := config.Val()["appendfsync"]
	if config.Err() != nil {
		fsync = s.opt.AttestedFsync
	}
	// With no-appendfsync-on-rewrite nothing is synced while the file is rewritten.
	if fsync == "always" && config.Val()["no-appendfsync-on-rewrite"] != "yes" {
		return nil, nil
	}
	pipe = c.Pipeline()
	probe := pipe.Do(ctx, "WAITAOF", 1, 0, 1)
	if _, err := pipe.Exec(ctx); err != nil && !serverSaid(err) {
		return nil, err
	}
	if probe.Err() == nil {
		return []any{"WAITAOF", 1, 0, s.opt.DurabilityWait.Milliseconds()}, nil
	}
	switch {
	case fsync == "always":
		return nil, refuse("it does not sync while it rewrites its append-only file (no-appendfsync-on-rewrite), and has no WAITAOF")
	case fsync == "":
		return nil, refuse("it does not tell when it syncs its append-only file (CONFIG is forbidden, and nobody attests redis-appendfsync), and has no WAITAOF")
	}
	return nil, refuse("it syncs its append-only file later (appendfsync " + fsync + "), and has no WAITAOF")
}

// proof is the end of a pipeline on a lane whose level has to be waited for: a fence, then the one wait for everything
// before it. Redis promises of a wait no more than that it covers what its own connection wrote; but a replay, or a
// refusal because of somebody's hold, tells of what another connection wrote. The fence is a write of our own behind
// all that the batch has seen, so that no answer tells of a hold that can still be lost.
type proof struct {
	fence *invocation
	wait  *redis.Cmd // of the newest pipeline
}

// prove prepares the proof for some invocations; nil if they need none.
func (l *lane) prove(calls []*invocation) *proof {
	if l.wait == nil || !slices.ContainsFunc(calls, (*invocation).writes) {
		return nil
	}
	return &proof{fence: &invocation{script: scripts[lua.Fence], keys: []string{l.shard.keys.meta}}}
}

// missing says what the batch lacks to be as durable as asked, given the answer to the fence; nil if nothing.
// What was written stays written: it is the caller who must not rely on it.
func (p *proof) missing(s *Stock, fence answer) error {
	synced, err := reached(p.wait)
	switch {
	case fence.err != nil || fence.reply.status != "ok": // then the wait may have stood behind nothing
		return fault.Wrap(fault.OutcomeUnknown, fence.err, "Redis at %s has it, but may lose it", s.target)
	case err != nil:
		return fault.Wrap(fault.OutcomeUnknown, err, "Redis at %s has it, but may lose it", s.target)
	case s.level.disk && synced < 1:
		return fault.New(fault.OutcomeUnknown, "Redis at %s has it, but had not synced it to its disk within %v", s.target, s.opt.DurabilityWait)
	case synced < int64(s.level.replicas):
		return fault.New(fault.OutcomeUnknown, "Redis at %s has it, but only %d of %d replicas had it within %v", s.target, synced, s.level.replicas, s.opt.DurabilityWait)
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
	if s.level == (level{}) {
		return nil
	}
	err := s.server.eachNode(ctx, func(n *redis.Client) error {
		if s.level.disk {
			_, err := s.waitDisk(ctx, n)
			return err
		}
		text, err := n.Info(ctx, "replication").Result()
		if err != nil {
			return err
		}
		online := 0
		for name, value := range readInfo(text) {
			if strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online") {
				online++
			}
		}
		if online < s.level.replicas {
			return fault.New(fault.Unavailable, "Redis at %s cannot give the durability replicas=%d: it has %d replicas that follow it", s.target, s.level.replicas, online).
				WithHint("bring the replicas back, or choose another --durability")
		}
		return nil
	})
	return wireFault(s.target, err, false)
}
