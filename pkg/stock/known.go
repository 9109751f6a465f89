package stock

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Whoever refuses a reservation from memory first has to know that the refusal is the right answer to this caller: a
// replay of the key, or a user with a hold, has an answer of its own. Those looks are gathered as reservations are, but
// need no script: those that arrive while the shard's one round trip is on its way travel with the next, as one HMGET
// for each lot. They have a connection of their own, so that they wait behind no sale.

// lookups are the looks of a shard. The shard's mutex guards queue and busy; the lane is the driver's alone.
type lookups struct {
	queue []*look
	busy  bool
	lane  *lane
}

// lookName stands for the name of a script in the metrics.
const lookName = "look"

// look asks whether anything is known of an attempt or its user.
type look struct {
	lot     drop.LotID
	attempt string
	gone    atomic.Bool
	done    chan known // capacity 1
}

type known struct {
	known bool
	err   error
}

// looks are answered looks, for those to come.
var looks = sync.Pool{New: func() any { return &look{done: make(chan known, 1)} }}

// Unknown reports whether a lot has no record of an attempt, (lot, user, key), and none of the user: then nobody can be
// owed another answer than everybody gets. What a script would refuse at the door is an error here too: a frozen,
// foreign or missing lot, or a server that was restarted.
func (s *Stock) Unknown(ctx context.Context, lot drop.LotID, user, key string) (bool, error) {
	k, _ := looks.Get().(*look)
	k.lot, k.attempt = lot, drop.AttemptOf(lot, user, key)
	if err := s.shardOf(lot).submitLook(k); err != nil {
		return false, err
	}
	select {
	case answer := <-k.done:
		looks.Put(k) // who answers a look is done with it
		return !answer.known && answer.err == nil, answer.err
	case <-ctx.Done():
		k.gone.Store(true)
		return false, fault.Wrap(fault.Unavailable, ctx.Err(), "Redis at %s is too slow", s.target).WithHint("try again")
	}
}

func (sh *shard) submitLook(k *look) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.closed {
		return closedFault()
	}
	if err := sh.refused(); err != nil {
		return err
	}
	sh.known.queue = append(sh.known.queue, k)
	if !sh.known.busy {
		sh.known.busy = true
		sh.stock.lanes.Go(sh.driveLooks)
	}
	return nil
}

// driveLooks sends looks until none waits.
func (sh *shard) driveLooks() {
	ctx := context.Background() // the connection has time limits of its own
	l := sh.known.lane
	var batch []*look
	for {
		err := sh.seek(ctx)
		if err == nil {
			l.lead(sh.home.Load())
			if err = l.ready(ctx); err == nil {
				err = l.meet(ctx, []*shard{sh})
			} else {
				l.leave(ctx, []*shard{sh})
			}
		}
		free := l.enter(err)
		batch = sh.takeLooks(batch[:0])
		if len(batch) > 0 {
			l.answer(ctx, sh, batch, err)
		}
		free()
		if len(batch) == 0 {
			return
		}
		runtime.Gosched() // as in drive
	}
}

// takeLooks moves what waits, and is still waited for, into the batch. If nothing does, the driver has to end.
func (sh *shard) takeLooks(batch []*look) []*look {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := 0
	for _, k := range sh.known.queue {
		if len(batch) == maxBatch {
			break
		}
		if n++; !k.gone.Load() {
			batch = append(batch, k)
		}
	}
	rest := copy(sh.known.queue, sh.known.queue[n:])
	clear(sh.known.queue[rest:])
	sh.known.queue = sh.known.queue[:rest]
	sh.known.busy = len(batch) > 0
	return batch
}

// answer sends the looks in one pipeline and answers each of them.
func (l *lane) answer(ctx context.Context, sh *shard, batch []*look, notReady error) {
	s, keys := l.stock, sh.keys
	byLot := make(map[drop.LotID][]*look)
	for _, k := range batch {
		byLot[k.lot] = append(byLot[k.lot], k)
	}
	if notReady != nil {
		answerAll(batch, wireFault(s.target, notReady, false))
		return
	}
	pipe := l.conn.Pipeline()
	meta := pipe.HMGet(ctx, keys.meta, "owner", "run", "frozen")
	replies := make(map[drop.LotID]*redis.SliceCmd, len(byLot))
	for lot, ks := range byLot {
		args := make([]any, 0, 4+2*len(ks))
		args = append(args, "HMGET", keys.lot(lot), "live", "frozen")
		for _, k := range ks {
			args = append(args, k.attempt, drop.MarkIn(k.attempt))
		}
		replies[lot] = redis.NewSliceCmd(ctx, args...)
		_ = pipe.Process(ctx, replies[lot])
	}
	start := time.Now()
	_, err := pipe.Exec(ctx)
	s.opt.Metrics.BatchSize.WithLabelValues(lookName).Observe(float64(len(batch)))
	s.opt.Metrics.CallSeconds.WithLabelValues(lookName).Observe(time.Since(start).Seconds())
	l.checked(ctx, sh, err)
	if err := meta.Err(); err != nil {
		answerAll(batch, s.commandFault(keys.meta, err))
		return
	}
	door := atDoor(meta.Val(), l.doors[sh])
	for lot, ks := range byLot {
		s.answerLot(lot, ks, door, replies[lot])
	}
}

// checked gives the connection up after an error on it, and where its server is not the shard's any more.
func (l *lane) checked(ctx context.Context, sh *shard, err error) {
	l.used = time.Now()
	switch {
	case isMoved(err):
		l.sentAway(ctx, sh)
	case err == nil, serverSaid(err):
		return
	}
	l.lose()
}

// answerLot answers the looks at one lot.
func (s *Stock) answerLot(lot drop.LotID, ks []*look, door reply, cmd *redis.SliceCmd) {
	values, err := cmd.Result()
	if err != nil {
		answerAll(ks, s.commandFault(s.shardOf(lot).keys.lot(lot), err))
		return
	}
	if door.status == "ok" {
		if reason, frozen := values[1].(string); frozen {
			door = reply{status: string(fault.LotFrozen), detail: reason}
		} else if values[0] == nil {
			door = reply{status: string(fault.LotNotLoaded)}
		}
	}
	if err := door.fault("lot " + string(lot)); err != nil {
		answerAll(ks, err)
		return
	}
	for i, k := range ks {
		k.done <- known{known: values[2+2*i] != nil || values[3+2*i] != nil}
	}
}

func answerAll(ks []*look, err error) {
	for _, k := range ks {
		k.done <- known{err: err}
	}
}

// atDoor judges owner, run and frozen of a shard's meta, given what is shown at its door, as `door` in lua/common.lua does.
func atDoor(meta []any, shown [3]string) reply {
	text := func(i int) string { t, _ := meta[i].(string); return t }
	switch {
	case meta[0] == nil:
		return reply{status: string(fault.LotNotLoaded), detail: string(fault.FreezeEmptied)}
	case text(0) != shown[1]:
		return reply{status: string(fault.Foreign), detail: text(0)}
	case text(2) != "":
		return reply{status: string(fault.LotFrozen), detail: text(2)}
	case text(1) != shown[0]:
		return reply{status: string(fault.LotFrozen), detail: string(fault.FreezeClosedDoor)}
	}
	return reply{status: "ok"}
}
