package cli

import (
	"bufio"
	"io"
	"log/slog"
	"sync"
	"time"
)

// logDelay is how long a line of the access log may wait to be written: a write of its own for each request would cost
// more than the rest of its log line.
const logDelay = 200 * time.Millisecond

// gathered writes lines together. Those of the last moments are lost if the process is killed; warnings and errors are
// in them too.
type gathered struct {
	mu   sync.Mutex
	out  *bufio.Writer
	done chan struct{}
	over sync.WaitGroup
}

func gather(out io.Writer) *gathered {
	g := &gathered{out: bufio.NewWriterSize(out, 64<<10), done: make(chan struct{})}
	g.over.Go(func() {
		tick := time.NewTicker(logDelay)
		defer tick.Stop()
		for {
			select {
			case <-g.done:
				g.flush()
				return
			case <-tick.C:
				g.flush()
			}
		}
	})
	return g
}

// Write takes one line.
func (g *gathered) Write(line []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.out.Write(line)
}

func (g *gathered) flush() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.out.Flush() // a log that cannot be written must not stop a sale
}

// close writes what is left; it may be called once.
func (g *gathered) close() {
	close(g.done)
	g.over.Wait()
}

// serverLog is the log of a server, and what writes the end of it.
func (a *app) serverLog() (*slog.Logger, func()) {
	lines := gather(a.err)
	return a.loggerTo(lines, !a.cfg.Quiet), lines.close
}
