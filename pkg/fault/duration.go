package fault

import (
	"strings"
	"time"
)

// Duration writes a duration as people say it: 5m, 29m32s, without empty units. From a minute on
// it is rounded to seconds, from a second on to milliseconds.
func Duration(d time.Duration) string {
	switch size := d.Abs(); {
	case size >= time.Minute-500*time.Millisecond:
		d = d.Round(time.Second)
	case size >= time.Second:
		d = d.Round(time.Millisecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// readable writes the durations among the arguments of a text in their place.
func readable(args []any) {
	for i, arg := range args {
		if d, ok := arg.(time.Duration); ok {
			args[i] = Duration(d)
		}
	}
}
