package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/term"
)

// oneWish is how soon after the first signal another one says nothing new: timeout(1) and some supervisors signal a process
// and then its whole group, and a closed terminal sends HUP beside an INT.
const oneWish = 250 * time.Millisecond

// untilSignal returns a context that the first INT, TERM or HUP cancels; its cause carries the exit
// status of that signal. A second one, later than oneWish, ends the process at once.
func untilSignal(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	// Caught and never read: a write to a closed pipe then fails with an error that the printer
	// understands, instead of killing the process. Ignoring it would be inherited by child processes.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	caught := make(chan os.Signal, 2)
	wanted := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup asks to outlive its terminal
		wanted = append(wanted, syscall.SIGHUP)
	}
	signal.Notify(caught, wanted...)
	go func() {
		cancel(causeOf(<-caught))
		heard := time.Now()
		if term.Look(os.Stderr, term.Never, os.Getenv).TTY {
			fmt.Fprintln(os.Stderr, "stopping; press Ctrl-C again to force")
		}
		for again := range caught {
			if time.Since(heard) > oneWish {
				os.Exit(int(fault.ExitOf(causeOf(again))))
			}
		}
	}()
	return ctx, func() {
		signal.Stop(caught)
		cancel(nil)
	}
}

func causeOf(s os.Signal) error {
	if s == os.Interrupt {
		return fault.New(fault.Interrupted, "interrupted")
	}
	return fault.New(fault.Terminated, "stopped by the signal %s", s)
}
