package worker

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"time"
)

// Every shard has one worker that is preferred to read it: two that read the same one keep each other waiting for the locks
// of its lots, and record events out of order. It is a preference and nothing more. Whoever does not know the others reads,
// and so does everybody else once a shard has entries and nobody gets on with them.

const (
	asidePatience = 3 * time.Second  // without any progress, until others read the shard as well
	helpFor       = 30 * time.Second // as long as a worker that died counts as alive
)

// preferred picks one of the workers for a shard. All who know the same workers pick the same one, and one that comes or
// goes changes nothing but its own share.
func preferred(shard int, crew []string) (name string) {
	var most uint64
	for _, one := range crew {
		sum := sha256.Sum256([]byte(one + "\x00" + strconv.Itoa(shard)))
		if weight := binary.BigEndian.Uint64(sum[:]); name == "" || weight > most {
			name, most = one, weight
		}
	}
	return name
}

// knowCrew takes note of the workers that relay.
func (w *Worker) knowCrew(crew []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.crew = crew
}

// prefers reports whether this worker is to read a shard whatever others do. One that ends as soon as nothing is left
// waits for nobody.
func (w *Worker) prefers(shard int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opt.UntilIdle || !slices.Contains(w.crew, w.me.Name) || preferred(shard, w.crew) == w.me.Name
}

// bystander watches how the preferred worker of a shard gets on.
type bystander struct {
	mark  string
	moved time.Time // when the mark changed last, or nothing was left to do; zero: not looked yet
	helps time.Time // reads as well until then
}

// aside reports whether to leave a shard to the worker that is preferred for it.
func (w *Worker) aside(ctx context.Context, shard int, b *bystander) (bool, error) {
	if w.prefers(shard) || time.Now().Before(b.helps) {
		b.moved = time.Time{}
		return false, nil
	}
	mark, left, err := w.stock.Progress(ctx, shard)
	switch {
	case err != nil:
		return false, err
	case !left || mark != b.mark || b.moved.IsZero():
		b.mark, b.moved = mark, time.Now()
	case time.Since(b.moved) > asidePatience:
		b.helps = time.Now().Add(helpFor)
		w.log.Info("a shard has entries and nobody gets on with them: reading it as well", "shard", shard)
		return false, nil
	}
	return true, nil
}
