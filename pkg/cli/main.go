// Package cli is the command line of dropctl: the command tree, one file for each command, and the few
// habits they share (settings, output, errors, questions, logs).
//
// A command reads top to bottom: its constructor says what it takes, its run function collects, fills a
// view and prints it. Errors are returned with a code of pkg/fault; nothing here exits or writes past
// the streams it was given.
package cli

import (
	"context"
	"errors"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Streams are what a process offers: its input, its two outputs and its environment.
type Streams struct {
	In     io.Reader
	Out    io.Writer // data
	Err    io.Writer // everything else
	Getenv func(string) string
}

// Main runs one command line (without the program's name) and returns its exit status. When ctx is
// cancelled the command stops gracefully; a cause of code interrupted or terminated decides the status.
func Main(ctx context.Context, args []string, s Streams) int {
	a := newApp(args, s)
	return a.execute(ctx, newRoot(a), args)
}

func (a *app) execute(ctx context.Context, root *cobra.Command, args []string) int {
	// cobra reads os.Args when it is given nil.
	root.SetArgs(append([]string{}, args...))
	err := a.recovered(func() error { return root.ExecuteContext(ctx) })
	if err == nil {
		err = a.helpErr
	}
	if err != nil && !a.started {
		err = usage(err)
	}
	err, silent := stopped(ctx, err)
	if err == nil {
		a.releaseNotes()
		return int(fault.OK)
	}
	if !silent {
		a.printError(err)
	}
	return int(fault.ExitOf(err))
}

// interruptible runs what cannot be told to stop, such as reading a pipe, and leaves it behind when ctx ends first.
func interruptible[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// recovered runs f and turns a panic into an error, so that users never meet a stack trace unasked.
func (a *app) recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if a.wantsDebug() {
				a.say("%s\n", debug.Stack())
			}
			a.started = true
			err = fault.New(fault.Failed, "dropctl met a bug in itself: %v", p).
				WithHint("please report it with what `dropctl version` prints; --debug shows the stack trace")
		}
	}()
	return f()
}

// usage gives cobra's own complaints, all of which come before a command starts, the code usage.
func usage(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return fault.Wrap(fault.Usage, err, "")
}

// stopped gives a command that was cancelled by a signal that signal's status. An error of its own, such
// as an unknown outcome, stays. silent: it stopped as asked and there is nothing to complain about.
func stopped(ctx context.Context, err error) (_ error, silent bool) {
	signal, ok := errors.AsType[*fault.Error](context.Cause(ctx))
	if ctx.Err() == nil || !ok {
		return err, false
	}
	if err == nil {
		return signal, true
	}
	switch fault.CodeOf(err) {
	case fault.Interrupted:
		return signal, false
	case fault.Failed, fault.Unavailable:
		if errors.Is(err, context.Canceled) {
			return signal, false
		}
	}
	return err, false
}
