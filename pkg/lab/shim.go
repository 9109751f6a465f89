package lab

import (
	"bytes"
	"context"
	_ "embed" // the shim's source
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Shim is a library that a server runs under (the options have a field Under) so that its clock can be stepped and its
// power be lost. It needs Linux and a C compiler.
type Shim struct{ folder, library string }

//go:embed shim/faults.c
var shimSource string

// controlFile lies in the folder of each server under the shim, which makes it.
const controlFile = "faults"

// control is the content of that file, as laid out in shim/faults.c.
type control struct {
	Clock  int64 // nanoseconds that the wall clock is ahead
	Synced [64]struct {
		Name   [56]byte
		Length int64
	}
}

// BuildShim compiles the library; Remove removes it. Errors: MissingBinary where there is no C compiler, Unavailable.
func BuildShim(ctx context.Context) (_ *Shim, err error) {
	compiler := strings.Fields(os.Getenv("CC"))
	if len(compiler) == 0 {
		compiler = []string{"cc"}
	}
	if _, err := exec.LookPath(compiler[0]); err != nil {
		return nil, fault.Wrap(fault.MissingBinary, err, "faults of clock and disk need a C compiler").WithHint("install one, such as gcc, or name it in CC")
	}
	s := &Shim{}
	if s.folder, err = os.MkdirTemp("", "dropctl-shim-"); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "no folder for the fault shim")
	}
	defer func() {
		if err != nil {
			s.Remove()
		}
	}()
	if err := os.Chmod(s.folder, 0o755); err != nil { // PostgreSQL may run as somebody else
		return nil, fault.Wrap(fault.Unavailable, err, "the folder of the fault shim")
	}
	s.library = filepath.Join(s.folder, "faults.so")
	args := append(compiler[1:], "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-x", "c", "-o", s.library, "-", "-ldl", "-lpthread")
	cmd := exec.CommandContext(ctx, compiler[0], args...)
	cmd.Stdin = strings.NewReader(shimSource)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "compiling the fault shim: %s", oneLine(out)).WithHint("it needs Linux")
	}
	return s, nil
}

// Under is what a server has to run under.
func (s *Shim) Under() []string {
	return []string{"env", "LD_PRELOAD=" + s.library, "DROPCTL_FAULTS=" + controlFile}
}

// Remove removes the library. Servers that run go on; none can be started any more.
func (s *Shim) Remove() { _ = os.RemoveAll(s.folder) }

// StepClock sets the server's wall clock forward, or back if by is negative. Its monotonic clock goes on as before.
// The server has to run under a Shim; the step outlasts its restart.
func (s *server) StepClock(by time.Duration) error {
	c, err := s.control()
	if err != nil {
		return err
	}
	var offset [8]byte
	binary.NativeEndian.PutUint64(offset[:], uint64(c.Clock+by.Nanoseconds()))
	f, err := os.OpenFile(filepath.Join(s.Dir(), controlFile), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(offset[:], 0) // the clock alone: the server writes the rest
		_ = f.Close()
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "stepping the clock of %s", s.program)
	}
	return nil
}

// LosePower ends the server as a power failure would: at once, and everything is lost that was not synced to the disk.
// (A kill alone loses nothing: the system still writes what the process had handed over.) It returns how many bytes
// of the append-only file were lost. The server has to run under a Shim; Start starts it again.
func (r *Redis) LosePower() (lost int64, err error) {
	if err := r.Kill(); err != nil {
		return 0, err
	}
	c, err := r.control()
	if err != nil {
		return 0, err
	}
	logs, err := filepath.Glob(filepath.Join(r.DataDir(), "appendonlydir", "*.incr.aof"))
	if err != nil || len(logs) == 0 {
		return 0, fault.New(fault.Unavailable, "%s has no append-only file", r.program)
	}
	for _, log := range logs {
		info, err := os.Stat(log)
		if err != nil {
			return lost, fault.Wrap(fault.Unavailable, err, "the append-only file of %s", r.program)
		}
		synced := c.synced(filepath.Base(log))
		if synced >= info.Size() {
			continue
		}
		if err := os.Truncate(log, synced); err != nil {
			return lost, fault.Wrap(fault.Unavailable, err, "cutting the append-only file of %s", r.program)
		}
		lost += info.Size() - synced
	}
	return lost, nil
}

// Synced returns how many bytes of the append-only file of that name have reached the disk. The server has to run under a
// Shim.
func (r *Redis) Synced(log string) (int64, error) {
	c, err := r.control()
	if err != nil {
		return 0, err
	}
	return c.synced(log), nil
}

func (c *control) synced(name string) int64 {
	for _, file := range c.Synced {
		if string(bytes.TrimRight(file.Name[:], "\x00")) == name {
			return file.Length
		}
	}
	return 0
}

func (s *server) control() (*control, error) {
	content, err := os.ReadFile(filepath.Join(s.Dir(), controlFile))
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "%s does not run under the fault shim", s.program)
	}
	var c control
	if _, err := binary.Decode(content, binary.NativeEndian, &c); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "the fault shim's file of %s", s.program)
	}
	return &c, nil
}
