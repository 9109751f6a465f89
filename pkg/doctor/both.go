package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// both checks what the two stores have to agree on.
func (e *exam) both(r drop.StockHealth, p drop.LedgerHealth) {
	target := "redis and postgres"
	if why := p.Unknown["installation"]; why != "" {
		e.say("both", target, "installation", notTold(why, unasked(p)))
		return
	}
	e.say("both", target, "installation", sameInstallation(r, p))
	e.say("both", target, "backlog", backlog(r, p, e.o))
}

// backlog tells how long the ledger needs for what it has not got. How old that may be is judged by outbox-lag.
func backlog(r drop.StockHealth, p drop.LedgerHealth, o Options) verdict {
	if why := cmp.Or(r.Unknown["outbox"], r.Unknown["lots"], p.Unknown["lots"], p.Unknown["pace"]); why != "" {
		return notTold(why, "see the lines about the servers")
	}
	b := drop.BacklogOf(r.Outbox, r.Lots, &p.Progress, o.Now())
	limit, seen := b.Drain()
	switch {
	case b.Travelling == 0:
		return good("nothing is on its way to the ledger")
	case limit == drop.Never:
		return bad(noWorker, "dropctl worker", "%d events are on their way to the ledger, and nobody records them", b.Travelling)
	case seen == drop.Never:
		return good("%d events are on their way; %s at the limit of %.0f/s", b.Travelling, fault.Duration(limit.Round(time.Second)), b.Pace.Limit)
	}
	return good("%d events are on their way; %s at the limit of %.0f/s, %s at the recent pace, %.0f/s",
		b.Travelling, fault.Duration(limit.Round(time.Second)), b.Pace.Limit, fault.Duration(seen.Round(time.Second)), b.Pace.Seen)
}

// sameInstallation compares whose data Redis and the ledger have, and in how many shards.
func sameInstallation(r drop.StockHealth, p drop.LedgerHealth) verdict {
	known, missing, found := 0, 0, ""
	for _, n := range r.Nodes {
		if n.NoDoors != "" || n.Err != nil && !n.Replica {
			missing++
		}
		for _, d := range n.Doors {
			if v := sameOwner(d, p.ID, p.Shards); v.found != fine {
				return v
			}
			if d.Exists {
				known, found = known+1, d.Installation
			}
		}
	}
	switch {
	case p.ID == "":
		return notTold("the ledger has no installation yet", migrateUp)
	case known > 0:
		return good("%s, %d shards, on both sides", found, p.Shards)
	case missing > 0:
		return notTold("whose data Redis has is not known", "see the lines about Redis")
	case p.Seen > 0:
		return bad(emptied, "dropctl restore --all", "Redis has no data of dropctl, but the ledger has recorded events of %d lots", p.Seen)
	}
	return good("%s, %d shards; Redis has no lots yet", p.ID, p.Shards)
}

// sameOwner judges one shard's data. An installation "" is not known, and nothing is foreign to it.
func sameOwner(d drop.ShardState, id string, shards int) verdict {
	const fix = "check --redis-url and --database-url: dropctl config view --origin"
	switch {
	case !d.Exists || id == "":
	case d.Installation != id:
		return bad(foreign, fix, "shard %d has data of another installation: %s, not %s", d.Shard, d.Installation, id)
	case d.Shards != shards:
		return bad(foreign, fix, "shard %d is one of %d in Redis, the ledger has %d", d.Shard, d.Shards, shards)
	}
	return good("it is ours")
}

// maxSkew is how far clocks may differ. Deadlines are judged by Redis alone; windows and alarms are read by people.
const maxSkew = time.Second

// clocks compares every clock with this machine's and with each other.
func (e *exam) clocks(r drop.StockHealth, p drop.LedgerHealth) {
	var all []clock
	for _, n := range r.Nodes {
		if n.Doubt > 0 {
			all = append(all, clock{"Redis " + n.Name, n.Offset, n.Doubt})
		}
	}
	if p.Doubt > 0 {
		all = append(all, clock{"PostgreSQL", p.Offset, p.Doubt})
	}
	if len(all) > 0 {
		e.say("both", "all clocks", "clocks", skew(append(all, clock{name: "this machine"})))
	}
}

// clock is a clock's difference to this machine's; doubt is how far that may be wrong.
type clock struct {
	name          string
	offset, doubt time.Duration
}

// skew judges the two clocks that are furthest apart.
func skew(all []clock) verdict {
	byOffset := func(a, b clock) int { return cmp.Compare(a.offset, b.offset) }
	first, last := slices.MinFunc(all, byOffset), slices.MaxFunc(all, byOffset)
	apart := last.offset - first.offset
	if sure := apart - first.doubt - last.doubt; sure > maxSkew {
		return bad(skewed, "let an NTP service keep the clocks", "%s is %s ahead of %s", last.name, apart.Round(time.Millisecond), first.name)
	}
	return good("no more than %s apart", max(time.Millisecond, (apart+first.doubt+last.doubt).Round(time.Millisecond)))
}

// some names the first of a list and counts the rest.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func someLots(lots []drop.LotID) string {
	var names []string
	for _, l := range lots {
		names = append(names, string(l))
	}
	return some(names)
}

func someNumbers(numbers []int) string {
	var names []string
	for _, n := range numbers {
		names = append(names, strconv.Itoa(n))
	}
	return some(names)
}

// bytes writes a size in the largest unit that leaves a whole part.
func bytes(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size {
			return strconv.FormatFloat(float64(n)/float64(unit.size), 'f', 1, 64) + unit.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
