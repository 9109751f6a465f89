package lab

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	logName = "server.log"

	// Systems limit a socket's path to 104 … 108 bytes.
	maxSocketPath   = 100
	longestSockName = ".s.PGSQL.65535"
)

// account is the user a server runs as; nil means ourselves.
type account struct {
	name     string
	uid, gid int
}

// home is the folder of one server, 0700 and owned by the user the server runs as.
type home struct {
	dir   string
	root  *os.Root // opened while the folder was ours, so its owner cannot lead us elsewhere by a link
	owner *account
}

// newHome makes a folder with a short path that the owner can enter and remove.
func newHome(owner *account) (*home, error) {
	var problems []string
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp", os.Getenv("XDG_RUNTIME_DIR")} {
		if base == "" {
			continue
		}
		h, err := makeHome(base, owner)
		if err == nil {
			return h, nil
		}
		problems = append(problems, err.Error())
	}
	return nil, fault.New(fault.Unavailable, "no folder is fit for the private servers: %s", strings.Join(problems, "; ")).
		WithHint("make /tmp writable, or set TMPDIR to a folder with a short path that every user can enter")
}

func makeHome(base string, owner *account) (*home, error) {
	dir, err := os.MkdirTemp(base, "dropctl-")
	if err != nil {
		return nil, err
	}
	h := &home{dir: dir, owner: owner}
	if len(filepath.Join(dir, longestSockName)) > maxSocketPath {
		err = fmt.Errorf("%s: the path is too long for a socket", base)
	}
	if err == nil {
		h.root, err = os.OpenRoot(dir)
	}
	if err == nil && owner != nil {
		if err = os.Chown(dir, owner.uid, owner.gid); err == nil {
			err = h.tryEntering()
		}
	}
	if err != nil {
		h.remove()
		return nil, err
	}
	return h, nil
}

// tryEntering checks as the owner that the folder can be used, and removed by the watchdog.
func (h *home) tryEntering() error {
	cmd := exec.Command("/bin/sh", "-c", `cd "$1" && test -w . && test -w ..`, "sh", h.dir)
	cmd.SysProcAttr = detached(h.owner)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: user %s cannot use it", filepath.Dir(h.dir), h.owner.name)
	}
	return nil
}

func (h *home) path(name string) string { return filepath.Join(h.dir, name) }

// write makes or replaces a file that only the owner (and root) can read.
func (h *home) write(name, content string) error {
	if err := h.root.Remove(name); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := h.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, content)
	if err == nil && h.owner != nil {
		err = f.Chown(h.owner.uid, h.owner.gid)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// logTail returns the last lines of the server's log on one line.
func (h *home) logTail() string {
	f, err := h.root.Open(logName)
	if err != nil {
		return "(no log)"
	}
	defer func() { _ = f.Close() }()
	const window = 2000
	if info, err := f.Stat(); err == nil && info.Size() > window {
		_, _ = f.Seek(-window, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, window))
	lines := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	lines = lines[max(0, len(lines)-6):]
	return strings.Join(lines, " | ")
}

func (h *home) remove() {
	if h.root != nil {
		_ = h.root.Close()
	}
	_ = os.RemoveAll(h.dir)
}

// newPassword returns a random password that needs no quoting anywhere.
func newPassword() string { return rand.Text() }

// freePort returns a loopback TCP port nobody listens on. It lies below the range from which systems take
// the local ports of outgoing connections: else a client that redials a stopped server could take its port.
func freePort() (int, error) {
	const first, last = 20_000, 32_000
	var b [2]byte
	for range 200 {
		_, _ = rand.Read(b[:])
		port := first + (int(b[0])<<8|int(b[1]))%(last-first)
		if portFree(port) {
			return port, nil
		}
	}
	return 0, fault.New(fault.Unavailable, "no free TCP port on 127.0.0.1 between %d and %d", first, last)
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// cleanEnv is the environment of the servers and their tools: nothing of ours that could change how they
// behave (PGDATA, PGHOST, LC_ALL, …) or that holds a secret.
func cleanEnv(more ...string) []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, more...)
}
