package testkit

import (
	"bytes"
	_ "embed" // the shim's source
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/lab"
)

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

// Faulty is what a server has to run under (lab.RedisOptions and lab.PostgresOptions have a field Under) for
// StepClock and LosePower to work on it. It needs Linux and a C compiler.
func Faulty(t testing.TB) []string {
	t.Helper()
	library, err := shim.build()
	if err != nil {
		t.Fatalf("building the fault shim, which needs Linux and a C compiler: %v", err)
	}
	return []string{"env", "LD_PRELOAD=" + library, "DROPCTL_FAULTS=" + controlFile}
}

// StepClock sets a server's wall clock forward, or back if by is negative. Its monotonic clock goes on as before.
// The server has to run under Faulty; the step outlasts its restart.
func StepClock(t testing.TB, server interface{ Dir() string }, by time.Duration) {
	t.Helper()
	c := readControl(t, server.Dir())
	var offset [8]byte
	binary.NativeEndian.PutUint64(offset[:], uint64(c.Clock+by.Nanoseconds()))
	f, err := os.OpenFile(filepath.Join(server.Dir(), controlFile), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(offset[:], 0) // the clock alone: the server writes the rest
		_ = f.Close()
	}
	if err != nil {
		t.Fatalf("stepping the clock: %v", err)
	}
}

// LosePower ends a Redis as a power failure would: at once, and everything is lost that was not synced to the disk.
// (A kill alone loses nothing: the system still writes what the process had handed over.) It returns how many bytes
// of the append-only file were lost. The server has to run under Faulty; Start starts it again.
func LosePower(t testing.TB, r *lab.Redis) (lost int64) {
	t.Helper()
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	c := readControl(t, r.Dir())
	logs, err := filepath.Glob(filepath.Join(r.DataDir(), "appendonlydir", "*.incr.aof"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("the server has no append-only file (%v)", err)
	}
	for _, log := range logs {
		info, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		if synced := c.synced(filepath.Base(log)); synced < info.Size() {
			lost += info.Size() - synced
			if err := os.Truncate(log, synced); err != nil {
				t.Fatal(err)
			}
		}
	}
	return lost
}

// synced returns how many bytes of the append-only file of that name have reached the disk.
func (c *control) synced(name string) int64 {
	for _, file := range c.Synced {
		if string(bytes.TrimRight(file.Name[:], "\x00")) == name {
			return file.Length
		}
	}
	return 0
}

func readControl(t testing.TB, dir string) *control {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, controlFile))
	if err != nil {
		t.Fatalf("the server does not run under Faulty: %v", err)
	}
	var c control
	if _, err := binary.Decode(content, binary.NativeEndian, &c); err != nil {
		t.Fatalf("the shim's file: %v", err)
	}
	return &c
}

//go:embed shim/faults.c
var shimSource string

// shim is the library of the process: built for the first test that wants it, removed by Main.
var shim sharedShim

type sharedShim struct {
	mu      sync.Mutex
	folder  string
	library string
}

func (s *sharedShim) build() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.library != "" {
		return s.library, nil
	}
	if s.folder == "" {
		folder, err := os.MkdirTemp("", "dropctl-shim-")
		if err != nil {
			return "", err
		}
		s.folder = folder
	}
	if err := os.Chmod(s.folder, 0o755); err != nil { // PostgreSQL may run as somebody else
		return "", err
	}
	library := filepath.Join(s.folder, "faults.so")
	compiler := strings.Fields(os.Getenv("CC"))
	if len(compiler) == 0 {
		compiler = []string{"cc"}
	}
	args := append(compiler[1:], "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-x", "c", "-o", library, "-", "-ldl", "-lpthread")
	cmd := exec.Command(compiler[0], args...)
	cmd.Stdin = strings.NewReader(shimSource)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	s.library = library
	return library, nil
}

func (s *sharedShim) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folder != "" {
		_ = os.RemoveAll(s.folder)
	}
	s.folder, s.library = "", ""
}
