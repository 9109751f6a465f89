package cli

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	// logDelay is how long a line of the access log may wait to be written: a write of its own for each request would cost
	// more than the rest of its log line.
	logDelay = 200 * time.Millisecond
	logChunk = 64 << 10 // bytes that are written without waiting for more
	logRoom  = 4 << 20  // bytes that may wait while nobody takes them; more are lost
	logEnd   = time.Second
)

// gathered writes lines together, beside those who log: a log that cannot be written, or whose reader hangs, must not stop
// a sale. Lines of the last moments are lost if the process is killed; warnings and errors are in them too.
type gathered struct {
	out  io.Writer
	tell func(lost int) // that lines were lost, once lines can be written again

	mu    sync.Mutex
	lines []byte
	spare []byte // for the next lines, while some are written
	lost  int

	more, done, over chan struct{}
}

func gather(out io.Writer) *gathered {
	return &gathered{out: out, tell: func(int) {}, more: make(chan struct{}, 1), done: make(chan struct{}), over: make(chan struct{})}
}

// run writes what is gathered, until close.
func (g *gathered) run() {
	defer close(g.over)
	tick := time.NewTicker(logDelay)
	defer tick.Stop()
	for {
		select {
		case <-g.done:
			g.flush()
			return
		case <-tick.C:
		case <-g.more:
		}
		g.flush()
	}
}

// Write takes one line.
func (g *gathered) Write(line []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.lines)+len(line) > logRoom {
		g.lost++
		return len(line), nil
	}
	g.lines = append(g.lines, line...)
	if len(g.lines) >= logChunk {
		select {
		case g.more <- struct{}{}:
		default:
		}
	}
	return len(line), nil
}

func (g *gathered) flush() {
	g.mu.Lock()
	if len(g.lines) == 0 { // what was lost is told with the next lines
		g.mu.Unlock()
		return
	}
	lines, lost := g.lines, g.lost
	g.lines, g.spare, g.lost = g.spare[:0], nil, 0
	g.mu.Unlock()
	n, err := g.out.Write(lines)
	if err == nil && lost > 0 {
		g.tell(lost)
		lost = 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lost += lost + bytes.Count(lines[n:], []byte("\n"))
	g.spare = lines[:0]
}

// close writes what is left, if somebody takes it soon; it may be called once.
func (g *gathered) close() {
	close(g.done)
	select {
	case <-g.over:
	case <-time.After(logEnd):
	}
}

// serverLog is the log of a server, and what writes the end of it.
func (a *app) serverLog() (*slog.Logger, func()) {
	lines := gather(a.err)
	log := a.loggerTo(lines, !a.cfg.Quiet)
	lines.tell = func(lost int) {
		log.Warn("lines of the log were lost, because they could not be written", "lines", lost)
	}
	go lines.run()
	return log, lines.close
}
