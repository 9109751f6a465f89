package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// StartReplica starts a Redis that copies r, with r's password, and waits until it has the whole copy. It finds
// r where r announces itself, perhaps at a proxy. The context bounds the start only. Errors are those of StartRedis.
func (r *Redis) StartReplica(ctx context.Context, o RedisOptions) (*Redis, error) {
	host, port := r.announced()
	o.Directives = append([]string{"replicaof " + host + " " + port}, o.Directives...)
	replica, err := startRedis(ctx, o, r.password)
	if err != nil {
		return nil, err
	}
	if err := replica.AwaitCopy(ctx, r); err != nil {
		_ = replica.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return replica, nil
}

// Announced is where other servers find this one, "host:port".
func (r *Redis) Announced() string { return cmp.Or(r.announce, r.Addr()) }

func (r *Redis) announced() (host, port string) {
	host, port, _ = net.SplitHostPort(r.Announced())
	return host, port
}

// AwaitCopy waits until the replica r has all that the primary had written when the call began, and the primary counts it.
// It gives up with Unavailable after 60 s.
func (r *Redis) AwaitCopy(ctx context.Context, primary *Redis) error {
	state, err := primary.replication(ctx)
	if err != nil {
		return err
	}
	target, err := strconv.ParseInt(state["master_repl_offset"], 10, 64)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "the primary does not tell its offset")
	}
	return await(ctx, "the copy of the primary", func(ctx context.Context) error {
		theirs, err := primary.replication(ctx) // its first replica gives it a new id
		if err != nil {
			return err
		}
		ours, err := r.replication(ctx)
		if err != nil {
			return err
		}
		offset, _ := strconv.ParseInt(ours["slave_repl_offset"], 10, 64)
		sameHistory := ours["master_replid"] == theirs["master_replid"] // else the offsets say nothing
		if state := theirs.stateOf(r); state != "online" || ours["master_link_status"] != "up" || !sameHistory || offset < target {
			return fmt.Errorf("state %q, link %q, same history %t, offset %d of %d",
				state, ours["master_link_status"], sameHistory, offset, target)
		}
		return nil
	})
}

// CutReplication lets the replica r have every write of the primary up to now and none that comes later, until
// HealReplication or a restart. Both servers go on and can be reached, by Sentinels, too; the primary counts one
// replica less. Clients that write wait for some milliseconds meanwhile.
func (r *Redis) CutReplication(ctx context.Context, primary *Redis) error {
	// No write may come between the copy and the cut. The pause ends by itself should we not be able to end it.
	const pause = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if _, err := primary.Do(ctx, "CLIENT", "PAUSE", strconv.FormatInt(pause.Milliseconds(), 10), "WRITE"); err != nil {
		return err
	}
	defer func() { _, _ = primary.Do(context.WithoutCancel(ctx), "CLIENT", "UNPAUSE") }()
	if err := r.AwaitCopy(ctx, primary); err != nil {
		return err
	}
	// The primary turns the replica away; unlike a broken network this does not keep anybody else from either.
	if _, err := r.Do(ctx, "CONFIG", "SET", "masterauth", newPassword()); err != nil {
		return err
	}
	return await(ctx, "the end of the replication", func(ctx context.Context) error {
		if _, err := r.Do(ctx, "CLIENT", "KILL", "TYPE", "master"); err != nil {
			return err
		}
		ours, err := r.replication(ctx)
		if err != nil {
			return err
		}
		theirs, err := primary.replication(ctx)
		if err == nil && (ours["master_link_status"] != "down" || theirs.stateOf(r) != "") {
			err = errors.New("the link is still up")
		}
		return err
	})
}

// HealReplication ends what CutReplication began. The replica catches up on its own; see AwaitCopy.
func (r *Redis) HealReplication(ctx context.Context) error {
	_, err := r.Do(ctx, "CONFIG", "SET", "masterauth", r.password)
	return err
}

// Promote makes the replica a primary with what it has, for good. The former primary is not told.
func (r *Redis) Promote(ctx context.Context) error { return r.follow(ctx, "NO", "ONE") }

// Follow makes the server a replica of the primary, for good: it throws away what it has. See AwaitCopy.
func (r *Redis) Follow(ctx context.Context, primary *Redis) error {
	host, port := primary.announced()
	return r.follow(ctx, host, port)
}

func (r *Redis) follow(ctx context.Context, host, port string) error {
	for _, command := range [][]string{
		{"CONFIG", "SET", "masterauth", r.password}, // it may be cut off, which is not to be kept
		{"REPLICAOF", host, port},
		{"CONFIG", "REWRITE"}, // as Sentinels do: it stays so after a restart
	} {
		if _, err := r.Do(ctx, command...); err != nil {
			return err
		}
	}
	return nil
}

// IsPrimary tells whether the server is a primary at the moment, in its own opinion.
func (r *Redis) IsPrimary(ctx context.Context) (bool, error) {
	state, err := r.replication(ctx)
	return state["role"] == "master", err
}

// AwaitPromotion waits until the replica was made a primary, by Sentinels or by its Redis Cluster.
// It gives up with Unavailable after 60 s.
func (r *Redis) AwaitPromotion(ctx context.Context) error {
	return await(ctx, "the promotion of the replica", func(ctx context.Context) error {
		promoted, err := r.IsPrimary(ctx)
		if err == nil && !promoted {
			err = errors.New("it is still a replica")
		}
		return err
	})
}

// replication is what a server says about its replication.
type replication map[string]string

func (r *Redis) replication(ctx context.Context) (replication, error) {
	return r.Info(ctx, "replication")
}

// stateOf returns what a primary says about this replica, "online" when it counts; empty: it does not see it.
func (s replication) stateOf(replica *Redis) string {
	_, port := replica.announced()
	for _, value := range s { // "ip=127.0.0.1,port=20001,state=online,offset=…"
		if _, rest, ok := strings.Cut(value, ",port="+port+",state="); ok {
			state, _, _ := strings.Cut(rest, ",")
			return state
		}
	}
	return ""
}
