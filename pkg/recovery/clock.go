package recovery

import "time"

// A server's clock may be off by clockTolerance between two looks, and by wallTolerance from ours when somebody has to
// say whether it is right.
const (
	clockTolerance = 2 * time.Second
	wallTolerance  = 5 * time.Second
)

// reading is one look at a server's clock. The look took place between two times of this process, whose monotonic
// clock never jumps.
type reading struct {
	server   time.Time
	from, to time.Time
}

// jump returns by how much the server's clock has moved too far, or if negative not far enough, since an earlier look;
// 0 if what is known allows that it has not jumped.
func (r reading) jump(earlier reading) time.Duration {
	moved := r.server.Sub(earlier.server)
	if least := r.from.Sub(earlier.to); moved < least-clockTolerance {
		return moved - least
	}
	if most := r.to.Sub(earlier.from); moved > most+clockTolerance {
		return moved - most
	}
	return 0
}

// right reports whether a clock that was seen to jump, or was frozen for, can be trusted: it goes on from where it
// stood before the jump (zero: nobody looked), or agrees with ours, so that the jump was the correction.
func (r reading) right(before reading) bool {
	if !before.server.IsZero() && r.jump(before) == 0 {
		return true
	}
	return r.server.Sub(r.to).Abs() <= wallTolerance
}
