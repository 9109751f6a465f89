package bars

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/fault"
)

// memory: what a live hold costs of Redis, everything counted but the outbox, which empties itself behind the ledger.
func (r *run) memory(ctx context.Context) ([]Row, error) {
	a, done, err := r.openArena(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	r.Progress("memory of %d holds, %d callers", r.holds, callers)
	together, err := a.bytesPerHold(ctx, r.holds, callers)
	if err != nil {
		return nil, err
	}
	// A lone caller's holds share nothing with others of the same call: the dearest kind.
	r.Progress("memory of %d holds, a lone caller", r.single)
	alone, err := a.bytesPerHold(ctx, r.single, 1)
	if err != nil {
		return nil, err
	}
	return []Row{
		AtMost("memory.bytes-per-hold", 350, together, "bytes"),
		info("memory.bytes-per-lone-hold", alone, "bytes", "each in a call of its own"),
	}, nil
}

// bytesPerHold takes n holds of one lot and compares the server's memory before and after. No client is connected at
// either moment, so that buffers of connections count nowhere.
func (a *arena) bytesPerHold(ctx context.Context, n, callers int) (float64, error) {
	if err := a.server.Empty(ctx); err != nil {
		return 0, err
	}
	lots := lotNames(1)
	s, err := openEngine(ctx, a.server, lots)
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		return 0, err
	}
	before, err := a.memoryInUse(ctx)
	if err != nil {
		return 0, err
	}
	if s, err = dial(a.server); err != nil {
		return 0, err
	}
	err = takeUsers(ctx, n, callers, func(ctx context.Context, user string) error { return engineHold(s)(ctx, lots[0], user) })
	if err = errors.Join(err, s.Close()); err != nil {
		return 0, err
	}
	after, err := a.memoryInUse(ctx)
	return float64(after-before) / float64(n), err
}

// takeUsers calls do for each of n users, from a number of callers. The first error ends it.
func takeUsers(ctx context.Context, n, callers int, do func(ctx context.Context, user string) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var users atomic.Int64
	for range callers {
		g.Go(func() error {
			for {
				i := users.Add(1)
				if i > int64(n) || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := do(ctx, userName(i)); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// memoryInUse returns what the server uses for everything but the outboxes, in bytes.
func (a *arena) memoryInUse(ctx context.Context) (int64, error) {
	outboxes, err := a.server.Do(ctx, "KEYS", "drop:{*}:outbox")
	if err != nil {
		return 0, err
	}
	var outbox int64
	for key := range strings.FieldsSeq(outboxes) {
		n, err := a.number(ctx, "MEMORY", "USAGE", key, "SAMPLES", "0")
		if err != nil {
			return 0, err
		}
		outbox += n
	}
	info, err := a.server.Info(ctx, "memory")
	if err != nil {
		return 0, err
	}
	used, err := strconv.ParseInt(info["used_memory"], 10, 64)
	if err != nil {
		return 0, fault.New(fault.Failed, "the private Redis does not tell its memory")
	}
	return used - outbox, nil
}

func (a *arena) number(ctx context.Context, command ...string) (int64, error) {
	text, err := a.server.Do(ctx, command...)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fault.New(fault.Failed, "%s answers no number", command[0])
	}
	return n, nil
}
