//go:build unix

package lab

import (
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/dropctl/dropctl/pkg/fault"
)

func supported() error { return nil }

// detached starts a process in a session of its own, as the account if there is one.
func detached(as *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if as != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}
	}
	return attr
}

// unprivileged returns the user PostgreSQL has to run as: nil for ourselves; it refuses to run as root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if uidErr == nil && gidErr == nil {
			return &account{name: name, uid: uid, gid: gid}, nil
		}
	}
	return nil, fault.New(fault.Unavailable, "PostgreSQL does not run as root, and there is neither a user postgres nor nobody").
		WithHint("run the command as an ordinary user")
}
