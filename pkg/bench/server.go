package bench

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Server is a process of this program that listens at an address of its own, to be measured.
type Server struct {
	Address string // host and port
	PID     int

	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{}
}

// StartServer runs a command of the program that listens, such as serve or worker, and waits until it answers. It gets nothing
// of this process's settings but env. The caller owes Stop.
func StartServer(ctx context.Context, program string, env []string, args ...string) (*Server, error) {
	dir, err := os.MkdirTemp("", "dropctl-bench-")
	if err != nil {
		return nil, fault.Wrap(fault.Failed, err, "a server to be measured needs a folder")
	}
	s := &Server{ended: make(chan struct{})}
	if s.log, err = os.Create(filepath.Join(dir, "log")); err == nil {
		s.Address, err = freeAddress(ctx)
	}
	if err == nil {
		err = s.start(program, env, args)
	}
	if err != nil {
		s.forget(dir)
		return nil, err
	}
	if err := s.await(ctx); err != nil {
		text, _ := os.ReadFile(s.log.Name())
		s.Stop()
		return nil, fault.Wrap(fault.Failed, err, "dropctl %s: %s", args[0], strings.TrimSpace(string(text)))
	}
	return s, nil
}

func (s *Server) start(program string, env, args []string) error {
	s.cmd = exec.Command(program, append(args, "--config", "none", "--listen", s.Address)...) //nolint:noctx // it ends by Stop
	s.cmd.Args[0] = "dropctl"
	s.cmd.Env, s.cmd.Stderr = slices.Clone(env), s.log
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		s.cmd.Env = append(s.cmd.Env, name+"="+os.Getenv(name))
	}
	if err := s.cmd.Start(); err != nil {
		return fault.Wrap(fault.Failed, err, "dropctl %s", args[0])
	}
	s.PID = s.cmd.Process.Pid
	go func() {
		_ = s.cmd.Wait() // how it ends says nothing: it is told to
		close(s.ended)
	}()
	return nil
}

// Stop ends the process, by force if it takes too long, and removes what it wrote.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(os.Interrupt)
	select {
	case <-s.ended:
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	s.forget(filepath.Dir(s.log.Name()))
}

func (s *Server) forget(dir string) {
	if s.log != nil {
		_ = s.log.Close()
	}
	_ = os.RemoveAll(dir)
}

// answerWithin is how long a server may take until it answers, on a machine that is busy.
const answerWithin = 30 * time.Second

// await waits until the server answers; it is an error if that takes too long, or the server ends before.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	for !s.answers(ctx) {
		select {
		case <-s.ended:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return errors.New("it does not answer on " + s.Address)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// answers reports whether the server answers anything at all.
func (s *Server) answers(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Address+"/livez", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fault.Wrap(fault.Failed, err, "no port of this machine is free")
	}
	return l.Addr().String(), l.Close()
}
