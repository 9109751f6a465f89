//go:build !windows

package render

import (
	"errors"
	"io"
	"syscall"
)

// IsClosedPipe reports whether a write failed because its reader has gone.
func IsClosedPipe(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}
