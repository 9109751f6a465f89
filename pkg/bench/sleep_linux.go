package bench

import (
	"syscall"
	"time"
)

// sleep waits in the kernel. Timers of the Go runtime are up to a millisecond late where the program has nothing else to do,
// since it then waits in epoll, which counts in milliseconds.
func sleep(d time.Duration) {
	left := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&left, nil) // a signal ends it early: who called looks at the clock
}
