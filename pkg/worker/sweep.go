package worker

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	sweepLimit = 500         // holds taken back by one call: a few milliseconds of Redis, so that buyers never wait
	sweepEvery = time.Second // how often each shard is looked at, whatever the hints say
	sweepSoon  = 5 * time.Millisecond
)

// sweeper takes back expired holds. Looking is what counts; the wake hints of Redis only make it prompt.
type sweeper struct {
	*Worker
	wake []chan struct{} // per shard
}

func newSweeper(w *Worker) *sweeper {
	s := &sweeper{Worker: w, wake: make([]chan struct{}, w.opt.Shards)}
	for i := range s.wake {
		s.wake[i] = make(chan struct{}, 1)
	}
	return s
}

func (s *sweeper) sweep(shard int) func(context.Context) error {
	name := loopName(Sweep, shard)
	return func(ctx context.Context) error {
		for {
			pause, err := s.sweepOnce(ctx, shard)
			if err != nil {
				return err
			}
			s.health.fine(name)
			if !sleep(ctx, pause, s.wake[shard]) {
				return nil
			}
		}
	}
}

// sweepOnce takes back one portion and says when to look again.
func (s *sweeper) sweepOnce(ctx context.Context, shard int) (time.Duration, error) {
	did, err := s.stock.Sweep(ctx, shard, sweepLimit)
	switch err = s.leaveAlone(ctx, shard, err); {
	case shut(err):
		return sweepEvery, nil
	case err != nil:
		return 0, err
	}
	s.expired(did.Expired)
	switch {
	case did.More && did.Expired > 0:
		return 0, nil
	case did.More:
		return sweepSoon, nil
	case did.Next > 0:
		return min(max(did.Next, sweepSoon), sweepEvery), nil
	}
	return sweepEvery, nil
}

// expired counts holds taken back.
func (w *Worker) expired(n int) {
	w.done.expired.Add(int64(n))
	w.metrics.Expired.Add(float64(n))
}

// listen passes the hints of Redis on to the shards' loops.
func (s *sweeper) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hints, err := s.stock.Wakes(ctx)
	if err != nil {
		return err
	}
	s.health.fine("wakes")
	for {
		select {
		case <-ctx.Done():
			return nil
		case shard, ok := <-hints:
			if !ok {
				return fault.New(fault.Unavailable, "the connection for wake hints was lost")
			}
			if shard < 0 || shard >= len(s.wake) {
				continue
			}
			select {
			case s.wake[shard] <- struct{}{}:
			default:
			}
		}
	}
}
