package lab

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Program is a process of our own beside the private servers, such as a worker, that faults can be done to. Like them it
// never outlives its parent. When it ends by itself it is started again after a moment, as by a supervisor.
type Program struct {
	server
	killed   atomic.Bool   // on purpose: somebody else starts it again
	stop     chan struct{} // closed by Stop
	stopOnce sync.Once
	keeping  sync.WaitGroup
}

// StartProgram starts a program with a file for it, which only this user can read: the place for addresses with
// passwords. In the command, the name config stands for the file's path. The program runs until Stop.
func StartProgram(ctx context.Context, config, configText string, command ...string) (*Program, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	h, err := newHome(nil)
	if err != nil {
		return nil, err
	}
	p := &Program{stop: make(chan struct{})}
	p.program, p.home = command[0], h
	p.stopWith, p.farewell = "TERM", "KILL"
	p.ready = func(context.Context) error { return nil } // it works when it works: nobody waits for it
	for _, word := range command {
		if word == config {
			word = h.path(config)
		}
		p.command = append(p.command, word)
	}
	if err := h.write(config, configText); err != nil {
		h.remove()
		return nil, fault.Wrap(fault.Unavailable, err, "cannot write the configuration of %s", p.program)
	}
	if err := p.Start(ctx); err != nil {
		_ = p.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	p.keeping.Go(func() { p.keepUp(context.WithoutCancel(ctx)) })
	return p, nil
}

// keepUp starts the program again whenever it has ended by itself. One that cannot be started is tried again.
func (p *Program) keepUp(ctx context.Context) {
	look := time.NewTicker(downTime)
	defer look.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-look.C:
			if !p.killed.Load() && p.PID() == 0 {
				_ = p.server.Start(ctx)
			}
		}
	}
}

// Kill ends the program at once. It stays away until Start.
func (p *Program) Kill() error {
	p.killed.Store(true)
	return p.server.Kill()
}

// Start starts the program again after Kill.
func (p *Program) Start(ctx context.Context) error {
	p.killed.Store(false)
	return p.server.Start(ctx)
}

// Stop ends the program and removes its file. A second call does nothing.
func (p *Program) Stop(ctx context.Context) error {
	p.stopOnce.Do(func() { close(p.stop) })
	p.keeping.Wait()
	return p.server.Stop(ctx)
}

// Pause stops the process where it stands (SIGSTOP), as a machine does that hangs.
func (p *Program) Pause() error { return p.signal("STOP") }

// Resume lets a paused process go on (SIGCONT).
func (p *Program) Resume() error { return p.signal("CONT") }

// Log returns the last lines of what the program has written, on one line.
func (p *Program) Log() string { return p.home.logTail() }
