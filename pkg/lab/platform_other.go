//go:build !unix

package lab

import (
	"runtime"
	"syscall"

	"github.com/dropctl/dropctl/pkg/fault"
)

func supported() error {
	return fault.New(fault.Unsupported, "private servers are not supported on %s", runtime.GOOS).
		WithHint("use Linux or macOS, or give the addresses of running servers with --redis-url and --database-url")
}

func detached(*account) *syscall.SysProcAttr { return nil }

func unprivileged() (*account, error) { return nil, supported() }
