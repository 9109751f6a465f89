package lab

import (
	"context"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Program is a process of our own beside the private servers, such as a worker, that faults can be done to. Like them it
// never outlives its parent.
type Program struct{ server }

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
	p := &Program{}
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
	return p, nil
}

// Pause stops the process where it stands (SIGSTOP), as a machine does that hangs.
func (p *Program) Pause() error { return p.signal("STOP") }

// Resume lets a paused process go on (SIGCONT).
func (p *Program) Resume() error { return p.signal("CONT") }

// Log returns the last lines of what the program has written, on one line.
func (p *Program) Log() string { return p.home.logTail() }
