//go:build unix

package bars

import (
	"syscall"
	"time"
)

// ownCPU returns the processor time that this process has used.
func ownCPU() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
