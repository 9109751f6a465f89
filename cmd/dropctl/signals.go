package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/term"
)

// untilSignal returns a context that the first INT, TERM or HUP cancels; its cause carries the exit
// status of that signal. The second signal ends the process at once.
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
		first := <-caught
		cancel(causeOf(first))
		if term.Look(os.Stderr, term.Never, os.Getenv).TTY {
			fmt.Fprintln(os.Stderr, "stopping; press Ctrl-C again to force")
		}
		os.Exit(int(fault.ExitOf(causeOf(<-caught))))
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
