package doctor

import (
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// fatal are the findings that keep a lot from being opened, with the code of the refusal.
var fatal = map[finding]fault.Code{
	canEvict:  fault.UnsafeRedis,
	isReplica: fault.UnsafeRedis,
	diskError: fault.UnsafeRedis,
	tooWeak:   fault.UnsafeRedis,
	foreign:   fault.Foreign,
	shut:      fault.LotFrozen,
}

// Preflight says of each shard on these servers why it must not be sold from; a shard that may be is absent. What is not
// known blocks nothing, an installation "" included.
func Preflight(nodes []drop.NodeHealth, id string, shards int) map[int]error {
	blocked := map[int]error{}
	for _, n := range nodes {
		server := serverFault(n)
		for _, d := range n.Doors {
			err := server
			if err == nil {
				err = doorFault(n, d, id, shards)
			}
			if err != nil {
				blocked[d.Shard] = err
			}
		}
	}
	return blocked
}

func serverFault(n drop.NodeHealth) error {
	for _, judge := range []func(patient) verdict{role, eviction, persistence, durability} {
		if err := refusal(n, judge(patient{NodeHealth: n})); err != nil {
			return err
		}
	}
	return nil
}

func doorFault(n drop.NodeHealth, d drop.ShardState, id string, shards int) error {
	if err := refusal(n, sameOwner(d, id, shards)); err != nil {
		return err
	}
	n.Doors = []drop.ShardState{d}
	return refusal(n, doors(patient{NodeHealth: n}))
}

// refusal makes an error of a verdict that is fatal.
func refusal(n drop.NodeHealth, v verdict) error {
	code, is := fatal[v.found]
	if !is {
		return nil
	}
	return fault.New(code, "Redis %s: %s", n.Name, v.what).WithHint("%s", v.fix)
}
