package worker

import (
	"context"
	"errors"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Somebody may put other data into a shard of Redis: another installation with the same address, a backup of one. As long as
// any other shard is ours, that one is left alone until it is ours again, and the rest goes on. If none is, this is somebody
// else's Redis, and the worker ends.

// errLeftAlone says that a shard is not ours and others are.
var errLeftAlone = errors.New("the shard has another installation's data and is left alone")

// sayAgain is how often it is said that a shard is left alone, and what else waits for somebody.
const sayAgain = time.Minute

// ours looks at a shard. Errors: errLeftAlone if it holds another installation's data; fault.Foreign if all of Redis does.
func (w *Worker) ours(ctx context.Context, shard int) (drop.ShardState, error) {
	st, err := w.stock.ShardState(ctx, shard)
	if err == nil && st.Exists && (st.Installation != w.opt.Installation || st.Shards != w.opt.Shards) {
		err = fault.New(fault.Foreign, "shard %d in Redis belongs to another installation: %s, cut into %d", shard, st.Installation, st.Shards)
	}
	return st, w.leaveAlone(ctx, shard, err)
}

// leaveAlone judges what a call to a shard ended with: fault.Foreign becomes errLeftAlone as long as another shard is ours.
func (w *Worker) leaveAlone(ctx context.Context, shard int, err error) error {
	if !fault.Is(err, fault.Foreign) {
		return err
	}
	owner, shards, lookErr := w.stock.SetUp(ctx)
	switch {
	case lookErr != nil:
		return lookErr
	case owner != w.opt.Installation || shards != w.opt.Shards:
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.strange[shard]) >= sayAgain {
		w.strange[shard] = time.Now()
		w.log.Error("a shard of Redis has another installation's data and is left alone; the others go on", "shard", shard, "error", err, "next", "dropctl doctor")
	}
	return errLeftAlone
}
