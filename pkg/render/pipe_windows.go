package render

import (
	"errors"
	"io"
	"syscall"
)

// IsClosedPipe reports whether a write failed because its reader has gone. Windows says so as
// ERROR_BROKEN_PIPE or ERROR_NO_DATA.
func IsClosedPipe(err error) bool {
	const noData = syscall.Errno(232)
	return errors.Is(err, syscall.ERROR_BROKEN_PIPE) || errors.Is(err, noData) || errors.Is(err, io.ErrClosedPipe)
}
