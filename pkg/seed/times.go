package seed

import (
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // zones work on machines that have no zone files

	"github.com/dropctl/dropctl/pkg/fault"
)

// zones reads times and remembers the zones it has looked up: a file names the same few again and again.
type zones struct{ known map[string]*time.Location }

const localForms = "2006-01-02 15:04|2006-01-02 15:04:05|2006-01-02T15:04|2006-01-02T15:04:05"

// bound reads when a sale begins or ends. The year 1 would say that it has no bound.
func (z *zones) bound(field, text string) (time.Time, error) {
	t, err := z.parse(field, text)
	if err == nil && t.IsZero() {
		err = fault.New(fault.Invalid, "%s lies in the year 1", field).WithField(field).WithHint("use a time between the years 2000 and 2199")
	}
	return t, err
}

// parse reads RFC 3339, or a local time followed by an IANA zone, as a UTC time in whole milliseconds.
// A local time that the zone skips or has twice is an error: nobody can tell which moment was meant.
func (z *zones) parse(field, text string) (time.Time, error) {
	bad := func(is string) *fault.Error {
		return fault.New(fault.Invalid, "%s %s %s", field, quote(text), is).WithField(field).
			WithHint("write 2026-12-01T10:00:00+01:00 or 2026-12-01 10:00 Europe/Rome")
	}
	var t time.Time
	if t.UnmarshalText([]byte(text)) == nil {
		if t.Nanosecond()%int(time.Millisecond) != 0 {
			return time.Time{}, bad("is finer than a millisecond").WithHint("use at most three digits behind the point")
		}
		return t.UTC(), nil
	}
	i := strings.LastIndexByte(text, ' ')
	if i < 0 {
		return time.Time{}, bad("is not a time")
	}
	wall, ok := parseWall(text[:i])
	if !ok {
		if _, ok := parseWall(text); ok {
			return time.Time{}, bad("names no time zone").WithHint("add one: %s Europe/Rome", text)
		}
		return time.Time{}, bad("is not a time")
	}
	zone, err := z.load(text[i+1:])
	if err != nil {
		return time.Time{}, bad("names an unknown time zone").WithHint("use a zone of the IANA list, such as Europe/Rome or UTC")
	}
	moments := momentsOf(wall, zone)
	switch len(moments) {
	case 0:
		return time.Time{}, bad("does not exist: the clock is put forward over it").WithHint("use an earlier or later time, or RFC 3339")
	case 2:
		return time.Time{}, bad("happens twice: the clock is put back over it").
			WithHint("write %s or %s", moments[0].Format(time.RFC3339), moments[1].Format(time.RFC3339))
	}
	return moments[0].UTC(), nil
}

// parseWall reads a local time as if it were UTC.
func parseWall(text string) (time.Time, bool) {
	for form := range strings.SplitSeq(localForms, "|") {
		// Comparing the text catches what time.Parse lets pass, such as one-digit hours.
		if t, err := time.Parse(form, text); err == nil && t.Format(form) == text {
			return t, true
		}
	}
	return time.Time{}, false
}

// momentsOf returns, in order, every moment at which the clock of the zone shows the wall time: none, one or two.
func momentsOf(wall time.Time, zone *time.Location) []time.Time {
	guess := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, zone)
	start, end := guess.ZoneBounds()
	offsets := []int{offsetOf(guess)}
	if !start.IsZero() {
		offsets = append(offsets, offsetOf(start.Add(-time.Second)))
	}
	if !end.IsZero() {
		offsets = append(offsets, offsetOf(end))
	}
	var moments []time.Time
	for _, offset := range offsets {
		t := wall.Add(-time.Duration(offset) * time.Second).In(zone)
		if offsetOf(t) == offset && !slices.ContainsFunc(moments, t.Equal) {
			moments = append(moments, t)
		}
	}
	slices.SortFunc(moments, time.Time.Compare)
	return moments
}

func offsetOf(t time.Time) int {
	_, offset := t.Zone()
	return offset
}

func (z *zones) load(name string) (*time.Location, error) {
	if zone, ok := z.known[name]; ok {
		return zone, nil
	}
	if name == "" || name == "Local" {
		// Both would mean whatever the machine is set to.
		return nil, fault.New(fault.Invalid, "the zone %s depends on the machine", quote(name))
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, err
	}
	if z.known == nil {
		z.known = map[string]*time.Location{}
	}
	z.known[name] = zone
	return zone, nil
}
