package lab

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// How long we wait for a server at most; a context may end the wait sooner.
const (
	startLimit = 60 * time.Second
	stopLimit  = 30 * time.Second
)

// server is one server process with its folder: what Redis and PostgreSQL have in common.
// Its methods are safe for concurrent use; Start, Stop, Kill and Restart wait for each other.
type server struct {
	program  string // for messages
	home     *home
	command  []string
	stopWith string                          // the signal for a clean stop
	farewell string                          // the signal the watchdog sends when we are gone
	ready    func(ctx context.Context) error // nil error: the server answers

	disk    *disk // nil: everything is in the home folder
	mu      sync.Mutex
	dog     *watchdog // of the running or last run server; nil before the first start and after Stop
	stopped bool      // Stop has removed the folder
	started time.Time // last, by whomever
}

// Dir returns the server's own folder: its data, sockets and log. Stop removes it.
func (s *server) Dir() string { return s.home.dir }

// PID returns the process id of the running server, 0 if it does not run.
func (s *server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return 0
	}
	return s.dog.pid
}

// Started returns when the server was started last.
func (s *server) Started() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

// Start starts the server again after Kill or a crash, on the same data and port, and waits until it
// answers. It does nothing if the server runs. The error is Unavailable and quotes the server's log.
func (s *server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start(ctx)
}

func (s *server) start(ctx context.Context) error {
	if s.stopped {
		return fault.New(fault.Unavailable, "%s was stopped and its folder removed", s.program)
	}
	if s.running() {
		return nil
	}
	dog, err := watch(s.home, s.farewell, s.command...)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "cannot start %s", s.program)
	}
	if s.dog != nil {
		s.dog.leave() // only now, so that the folder is guarded all the time
	}
	s.dog, s.started = dog, time.Now()
	return s.awaitReady(ctx)
}

func (s *server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.dog.exited:
			return fault.New(fault.Unavailable, "%s did not start: exit status %d; its log ends: %s",
				s.program, s.dog.status, s.home.logTail())
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fault.As(ctx.Err())
			}
			return fault.Wrap(fault.Unavailable, err, "%s was not ready in time; its log ends: %s",
				s.program, s.home.logTail())
		case <-poll.C:
		}
	}
}

// Stop stops the server cleanly, by SIGKILL if it takes longer than the context or 30 s allow, and removes
// its folder. A second call does nothing.
func (s *server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	err := s.halt(ctx)
	if s.dog != nil {
		s.dog.close()
		s.dog = nil
	}
	s.home.remove()
	s.stopped = true
	if s.disk != nil {
		err = errors.Join(err, s.disk.Stop(ctx))
	}
	return err
}

// Restart stops the server cleanly and starts it again on the same data and port.
func (s *server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.halt(ctx); err != nil {
		return err
	}
	return s.start(ctx)
}

// Kill ends the server at once, as a crash would (SIGKILL), and waits until all its processes are gone.
// The folder stays, for Start. It does nothing if the server does not run.
func (s *server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

// halt stops the server cleanly. When it has to use SIGKILL it says so.
func (s *server) halt(ctx context.Context) error {
	if !s.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	again := time.NewTicker(500 * time.Millisecond) // a Redis that writes its first append-only file refuses to end
	defer again.Stop()
	for {
		_ = s.dog.signal(s.stopWith)
		_ = s.dog.signal("CONT") // it may be paused
		select {
		case <-s.dog.exited:
			return nil
		case <-ctx.Done():
			if err := s.kill(); err != nil {
				return err
			}
			return fault.New(fault.Unavailable, "%s did not stop in time and was killed", s.program)
		case <-again.C:
		}
	}
}

func (s *server) kill() error {
	if !s.running() {
		return nil
	}
	_ = s.dog.signal("KILL") // an error means that it has just ended, which is what we want
	select {
	case <-s.dog.exited:
		return nil
	case <-time.After(stopLimit):
		return fault.New(fault.Unavailable, "%s (process %d) does not end", s.program, s.dog.pid)
	}
}

// signal sends a signal to the running server.
func (s *server) signal(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return fault.New(fault.Unavailable, "%s is not running", s.program)
	}
	if err := s.dog.signal(name); err != nil {
		return fault.Wrap(fault.Unavailable, err, "cannot send %s to %s", name, s.program)
	}
	return nil
}

func (s *server) running() bool {
	if s.dog == nil {
		return false
	}
	select {
	case <-s.dog.exited:
		return false
	default:
		return true
	}
}

// await asks every few milliseconds until nothing is missing any more. It gives up after 60 s or when the
// context ends, with what was missing last: Unavailable, or Interrupted if the context was cancelled.
func await(ctx context.Context, what string, missing func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	var last error
	for {
		err := missing(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // an error because the time is over explains nothing
			last = err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fault.As(ctx.Err())
			}
			return fault.Wrap(fault.Unavailable, last, "%s: it did not happen in time", what)
		case <-poll.C:
		}
	}
}
