package stock

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// ShardState looks at the door of a shard. The lane may be older than what its server is now; then it is opened anew.
func (s *Stock) ShardState(ctx context.Context, n int) (drop.ShardState, error) {
	sh := s.shards[n]
	const tries = 3
	for try := 1; ; try++ {
		r, err := s.script(ctx, sh, "snapshot", sh.keys.gated(), []string{"0"})
		if err != nil {
			return drop.ShardState{}, err
		}
		st := drop.ShardState{Shard: n, Exists: r.text(0) != "", OpenRun: r.text(1), Frozen: r.text(2), Run: r.text(3), Opened: r.text(5), Now: unixMilli(r.now)}
		id, p, _ := strings.Cut(r.text(0), "/")
		st.Installation = id
		st.Shards, _ = strconv.Atoi(p)
		node, _, err := s.nodeOf(ctx, n)
		if err != nil {
			return drop.ShardState{}, err
		}
		text, err := node.Info(ctx, "server", "replication").Result()
		if err != nil {
			return drop.ShardState{}, wireFault(s.target, err, false)
		}
		info := readInfo(text)
		if st.Replication = info["master_replid"]; life(info, st.OpenRun) == st.Run {
			return st, nil
		}
		if try == tries {
			return drop.ShardState{}, fault.New(fault.Unavailable, "the server of shard %d at %s changes its role", n, s.target).WithHint("try again in a moment")
		}
		sh.home.Load().moves.Add(1)
	}
}

// life names one life of a server as a primary: by its run id and, if it was made a primary after it had followed another one,
// by the replication history it followed then. A primary that is made a replica and a primary again keeps its run id and may
// have lost writes. Redis forgets that history once no replica can ask for it any more; then the shard may be open on a life
// that nobody can tell any more, and it is still this one, since another would show.
func life(info map[string]string, openOn string) string {
	run, former := info["run_id"], info["master_replid2"]
	switch {
	case run == "":
		return ""
	case info["role"] == "slave":
		return run + "/replica"
	case strings.Trim(former, "0") != "":
		return run + "/" + former
	case strings.HasPrefix(openOn, run+"/"):
		return openOn
	}
	return run
}

// Renew begins a new epoch, issued by the ledger, of a lot that equals it. It answers Conflict if the lot, or its server, is
// no longer as it was seen.
func (s *Stock) Renew(ctx context.Context, seen drop.LotState, epoch int64, actor, reason string) error {
	if err := checkAccount(actor, reason); err != nil {
		return err
	}
	sh := s.shardOf(seen.Lot)
	r, err := s.script(ctx, sh, "renew", sh.keys.gated(seen.Lot), []string{string(seen.Lot), seen.Run, PlanOf(seen).text(), itoa(epoch), actor, reason})
	if err != nil {
		return err
	}
	if fault.Code(r.status) == fault.Conflict {
		return fault.New(fault.Conflict, "lot %s in Redis is no longer as it was seen", seen.Lot)
	}
	return r.fault("lot " + string(seen.Lot))
}

// SetUp tells whose data Redis has and in how many shards, "" and 0 if it has none. Where shards differ, as after somebody
// has put other data into one, it is ours if any shard's is, else that of most: fault.Foreign if as many have another's. It runs no script, and needs one round trip
// where the number of shards in the options is right.
func (s *Stock) SetUp(ctx context.Context) (installation string, shards int, err error) {
	looks, err := s.readOwners(ctx)
	if err != nil {
		return "", 0, err
	}
	owners := map[string]int{}
	var most string
	var broken error // of a key that is not what it should be, and tells nothing
	for i, look := range looks {
		owner := look.Val()
		switch owners[owner]++; {
		case wrongType(look.Err()):
			broken = cmp.Or(broken, s.commandFault(s.shards[i].keys.meta, look.Err()))
		case owner == "":
		case owner == s.owner():
			return readOwner(owner)
		case most == "" || owners[owner] > owners[most]:
			most = owner
		}
	}
	for owner, n := range owners {
		if owner != "" && owner != most && n == owners[most] && s.owner() == "" {
			return "", 0, fault.New(fault.Foreign, "Redis holds data of several installations (%s, %s), and nobody says which is this one", most, owner).
				WithHint("start PostgreSQL, which knows; see dropctl doctor")
		}
	}
	if most == "" && broken == nil {
		most, err = s.anyOwner(ctx)
	}
	if most == "" {
		return "", 0, cmp.Or(err, broken)
	}
	return readOwner(most)
}

// ForeignShards returns the shards that have another installation's data, or say that there are more or fewer shards. It takes
// one round trip.
func (s *Stock) ForeignShards(ctx context.Context) (shards []int, err error) {
	looks, err := s.readOwners(ctx)
	for i, look := range looks {
		if owner := look.Val(); owner != "" && owner != s.owner() {
			shards = append(shards, i)
		}
	}
	return shards, err
}

// readOwners reads what each shard says. A key of another type is no error but that of its look.
func (s *Stock) readOwners(ctx context.Context) ([]*redis.StringCmd, error) {
	pipe := s.server.Pipeline()
	looks := make([]*redis.StringCmd, len(s.shards))
	for i, sh := range s.shards {
		looks[i] = pipe.HGet(ctx, sh.keys.meta, "owner")
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) && !wrongType(err) {
		return nil, wireFault(s.target, err, false)
	}
	return looks, nil
}

// anyOwner looks for a shard beyond those of the options. It scans the key space.
func (s *Stock) anyOwner(ctx context.Context) (string, error) {
	var mu sync.Mutex
	var owner string
	err := s.server.eachNode(ctx, func(n *redis.Client) error {
		it := n.Scan(ctx, 0, s.opt.prefix()+":{*}:meta", 1000).Iterator()
		for it.Next(ctx) {
			found, err := n.HGet(ctx, it.Val(), "owner").Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return s.commandFault(it.Val(), err)
			}
			if found != "" {
				mu.Lock()
				defer mu.Unlock()
				owner = found
				return nil
			}
		}
		return it.Err()
	})
	return owner, wireFault(s.target, err, false)
}

// readOwner reads what meta says: installation/P.
func readOwner(owner string) (string, int, error) {
	id, p, _ := strings.Cut(owner, "/")
	shards, err := strconv.Atoi(p)
	if err != nil || shards < 1 || shards > MaxShards {
		return "", 0, fault.New(fault.Failed, "Redis does not say in how many shards its data is")
	}
	return id, shards, nil
}

// Freeze shuts a shard for a reason, if it still is as it was seen.
func (s *Stock) Freeze(ctx context.Context, seen drop.ShardState, reason fault.Code) error {
	return s.moveDoor(ctx, seen, "freeze", reason)
}

// Reopen opens a shard on the server it was seen on, if it still is as it was seen there and was not opened meanwhile. Only the guardian may call
// it, after it has found that server equal to the ledger.
func (s *Stock) Reopen(ctx context.Context, seen drop.ShardState) error {
	return s.moveDoor(ctx, seen, "open", "")
}

func (s *Stock) moveDoor(ctx context.Context, seen drop.ShardState, action string, reason fault.Code) error {
	sh := s.shards[seen.Shard]
	r, err := s.script(ctx, sh, "door", []string{sh.keys.meta}, []string{action, string(reason), seen.OpenRun, seen.Frozen, seen.Run, seen.Opened, seen.Opening()})
	if err != nil {
		return err
	}
	return r.fault("shard " + strconv.Itoa(seen.Shard))
}

// sweepLots is how many due lots one sweep call takes.
const sweepLots = 16

// Sweep takes back due holds of a shard, looking at no more than limit attempts in all.
func (s *Stock) Sweep(ctx context.Context, n, limit int) (drop.SweepOutcome, error) {
	sh := s.shards[n]
	node, err := s.server.node(ctx, sh.keys.meta)
	if err != nil {
		return drop.SweepOutcome{}, wireFault(s.target, err, false)
	}
	pipe := node.Pipeline()
	clock, first := pipe.Time(ctx), pipe.ZRangeWithScores(ctx, sh.keys.next, 0, sweepLots-1)
	if _, err := pipe.Exec(ctx); err != nil {
		return drop.SweepOutcome{}, s.commandFault(sh.keys.next, err)
	}
	now := float64(clock.Val().UnixMilli())
	var lots []drop.LotID
	for _, z := range first.Val() {
		if z.Score > now {
			break
		}
		if name, ok := z.Member.(string); ok {
			lots = append(lots, drop.LotID(name))
		}
	}
	if len(lots) == 0 {
		out := drop.SweepOutcome{}
		if zs := first.Val(); len(zs) > 0 {
			out.Next = time.Duration(zs[0].Score-now) * time.Millisecond
		}
		return out, nil
	}
	args := []string{strconv.Itoa(limit)}
	for _, l := range lots {
		args = append(args, string(l))
	}
	r, err := s.script(ctx, sh, "sweep", sh.keys.gated(lots...), args)
	if err != nil {
		return drop.SweepOutcome{}, err
	}
	if err := r.fault("shard " + strconv.Itoa(n)); err != nil {
		return drop.SweepOutcome{}, err
	}
	out := drop.SweepOutcome{More: r.text(1) == "1" || len(lots) == sweepLots}
	out.Expired, _ = strconv.Atoi(r.text(0))
	if due, err := strconv.ParseFloat(r.text(2), 64); err == nil {
		out.Next = max(0, time.Duration(due-now)*time.Millisecond)
	}
	return out, nil
}

// Wakes sends the number of a shard when its wake key expires. It is a hint: notifications may be switched off or lost.
// It ends with ctx.
func (s *Stock) Wakes(ctx context.Context) (<-chan int, error) {
	byKey := make(map[string]int, len(s.shards))
	for _, sh := range s.shards {
		byKey[sh.keys.wake] = sh.number
	}
	out := make(chan int, len(s.shards))
	err := s.server.eachNode(ctx, func(n *redis.Client) error {
		sub := n.PSubscribe(ctx, "__keyevent@*__:expired")
		go func() {
			defer func() { _ = sub.Close() }()
			for {
				select {
				case <-ctx.Done():
					return
				case m, ok := <-sub.Channel():
					if !ok {
						return
					}
					if shard, ours := byKey[m.Payload]; ours {
						select {
						case out <- shard:
						default:
						}
					}
				}
			}
		}()
		return nil
	})
	return out, wireFault(s.target, err, false)
}
