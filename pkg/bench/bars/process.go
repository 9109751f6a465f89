package bars

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// serve runs a server process of the program until stop is called, and waits until it answers.
func (r *run) serve(ctx context.Context, env []string, args ...string) (_ site, stop func(), err error) {
	dir, err := os.MkdirTemp("", "dropctl-bench-")
	if err != nil {
		return site{}, nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return site{}, nil, err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return site{}, nil, err
	}
	cmd := exec.CommandContext(ctx, r.Program, append(args, "--config", "none", "--listen", address)...)
	cmd.Env, cmd.Stderr = env, log
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		cmd.Env = append(cmd.Env, name+"="+os.Getenv(name))
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return site{}, nil, fault.Wrap(fault.Failed, err, "dropctl %s", args[0])
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ends says nothing: it is told to
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		_ = log.Close()
		_ = os.RemoveAll(dir)
	}
	s := site{address: address}
	if err := s.await(ctx, ended); err != nil {
		text, _ := os.ReadFile(log.Name())
		stop()
		return site{}, nil, fault.Wrap(fault.Failed, err, "dropctl %s: %s", args[0], strings.TrimSpace(string(text)))
	}
	return s, stop, nil
}

// await waits until the server answers; it is an error if that takes too long, or the server ends before.
func (s site) await(ctx context.Context, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for !s.answers(ctx) {
		select {
		case <-ended:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return errors.New("it does not answer on " + s.address)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fault.Wrap(fault.Failed, err, "no port of this machine is free")
	}
	return l.Addr().String(), l.Close()
}

// answers reports whether the server answers anything at all.
func (s site) answers(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/livez", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil
}
