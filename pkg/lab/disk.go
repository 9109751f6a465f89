package lab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// mountScript mounts a small file system in memory and holds it, for as long as it is let live.
const mountScript = `mkdir "$1" && mount -t tmpfs -o size="$2",mode=0700 dropctl "$1" && : >"$1/ready" && exec tail -f /dev/null`

// disk is a small file system that can really run full. It is mounted in a mount namespace that a process
// of its own holds, so nobody needs to be root, nothing of it shows in the machine's mounts, and it ends with
// that process. Servers reach it through the process's folder in /proc and outside it are as any other.
// It needs Linux with user namespaces, and unshare and mount from util-linux.
type disk struct{ server }

// filler is the file that takes the place.
const filler = "filler"

func startDisk(ctx context.Context, size int64, owner *account) (*disk, error) {
	h, err := newHome(owner)
	if err != nil {
		return nil, err
	}
	d := &disk{}
	d.program = "the private disk"
	d.home = h
	d.command = []string{"unshare", "--user", "--map-root-user", "--mount",
		"/bin/sh", "-c", mountScript, "sh", h.path("disk"), strconv.FormatInt(size, 10)}
	d.stopWith, d.farewell = "TERM", "KILL"
	d.ready = func(context.Context) error {
		_, err := os.Stat(filepath.Join(d.path(), "ready"))
		return err
	}
	if err := d.Start(ctx); err != nil {
		_ = d.Stop(context.WithoutCancel(ctx))
		return nil, fault.Wrap(fault.Unavailable, err, "a private disk needs Linux and the right to make user and mount namespaces").
			WithHint("allow it: user.max_user_namespaces > 0 and, where they exist, kernel.unprivileged_userns_clone=1 and " +
				"kernel.apparmor_restrict_unprivileged_userns=0; a container needs --security-opt seccomp=unconfined")
	}
	return d, nil
}

// path is the disk as seen from outside its namespace. Its process never changes: nobody restarts it.
func (d *disk) path() string {
	return filepath.Join("/proc", strconv.Itoa(d.dog.pid), "root", d.home.path("disk"))
}

// addDisk gives the server a disk and makes a folder on it that stands in its home under that name.
func (s *server) addDisk(ctx context.Context, size int64, name string) error {
	d, err := startDisk(ctx, size, s.home.owner)
	if err != nil {
		return err
	}
	s.disk = d
	if err := s.onDisk(ctx, `mkdir "$1/$2"`, name); err != nil {
		return err
	}
	if err := s.home.root.Symlink(filepath.Join(d.path(), name), name); err != nil {
		return fault.Wrap(fault.Unavailable, err, "cannot prepare the folder of %s", s.program)
	}
	return nil
}

// FillDisk takes all that is free on the server's own disk: from now on what makes a file longer fails there
// with "no space left". The server needs a DiskSize. Errors: Invalid, Unavailable.
func (s *server) FillDisk(ctx context.Context) error {
	return s.onDisk(ctx, `cat /dev/zero 2>&1 >"$1/$2" | grep -q "No space left"`, filler)
}

// FreeDisk ends what FillDisk began.
func (s *server) FreeDisk(ctx context.Context) error { return s.onDisk(ctx, `rm -f "$1/$2"`, filler) }

// onDisk runs a shell script as the disk's owner, the only one who may write there, with the disk's path and
// the name of a file on it.
func (s *server) onDisk(ctx context.Context, script, name string) error {
	if s.disk == nil {
		return fault.New(fault.Invalid, "%s has no disk of its own", s.program).WithHint("start it with a DiskSize")
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script, "sh", s.disk.path(), name)
	cmd.Env = cleanEnv()
	cmd.SysProcAttr = detached(s.home.owner)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fault.Wrap(fault.Unavailable, err, "the private disk of %s: %s", s.program, strings.TrimSpace(oneLine(out)))
	}
	return nil
}
