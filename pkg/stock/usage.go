package stock

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Usage is what servers have done since they were started, for whomever.
type Usage struct {
	CPU   time.Duration    // of the server itself, without what it forks to write a file; 0 if it does not tell
	Calls map[string]int64 // of each command, in lower case, those in scripts included; nil if it does not tell
}

// Usage adds up what the primaries tell.
func (s *Stock) Usage(ctx context.Context) (Usage, error) {
	var mu sync.Mutex
	sum := Usage{Calls: map[string]int64{}}
	err := s.server.eachNode(ctx, func(n *redis.Client) error {
		text, err := n.Info(ctx, "cpu", "commandstats").Result()
		if err != nil {
			return err
		}
		u, err := ReadUsage(readInfo(text))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		sum.CPU += u.CPU
		for command, n := range u.Calls {
			sum.Calls[command] += n
		}
		return nil
	})
	if err != nil {
		return Usage{}, wireFault(s.target, err, false)
	}
	if len(sum.Calls) == 0 {
		sum.Calls = nil
	}
	return sum, nil
}

// ReadUsage reads the sections cpu and commandstats of a server's INFO.
func ReadUsage(info map[string]string) (u Usage, err error) {
	for name, value := range info {
		switch command, isCommand := strings.CutPrefix(name, "cmdstat_"); {
		case name == "used_cpu_user", name == "used_cpu_sys":
			seconds, wrong := strconv.ParseFloat(value, 64)
			if wrong != nil {
				return Usage{}, wrong
			}
			u.CPU += time.Duration(seconds * float64(time.Second))
		case isCommand:
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, wrong := strconv.ParseInt(calls, 10, 64)
			if wrong != nil {
				return Usage{}, wrong
			}
			if u.Calls == nil {
				u.Calls = map[string]int64{}
			}
			u.Calls[command] = n
		}
	}
	return u, nil
}

// HasMemory returns fault.OutOfMemory if a primary has reached its maxmemory, where it takes nothing new. One that does not
// tell counts as fine.
func (s *Stock) HasMemory(ctx context.Context) error {
	err := s.server.eachNode(ctx, func(n *redis.Client) error {
		text, err := n.Info(ctx, "memory").Result()
		if err != nil && serverSaid(err) { // some users may not ask
			return nil
		}
		if err == nil && isFull(readInfo(text)) {
			err = fault.New(fault.OutOfMemory, "Redis at %s is out of memory: no new holds are taken", n.Options().Addr)
		}
		return err
	})
	return wireFault(s.target, err, false)
}

// isFull counts as Redis does: what it keeps for replicas and the append-only file is not part of maxmemory.
func isFull(info map[string]string) bool {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(info[name], 10, 64)
		return n
	}
	most := number("maxmemory")
	return most > 0 && number("used_memory")-number("mem_not_counted_for_evict") > most
}
