package report

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
)

// chart is a field of lines. Both axes run over values as they are drawn: an axis of decades over logarithms.
type chart struct {
	title, x, y  string
	lines        []line
	xAxis, yAxis axis
}

// line belongs to a run, which gives it its colour; a dashed one is of refusals.
type line struct {
	run    int
	dashed bool
	points []point
}

// point is a place in a line; a gap comes before it if nothing was measured there.
type point struct {
	x, y float64
	gap  bool
}

type axis struct {
	from, to float64
	ticks    []tick
}

// place is where a value is between two places; what is beyond the axis is at its end.
func (a axis) place(at, from, to float64) float64 {
	if a.to == a.from {
		return from
	}
	return from + (to-from)*min(1, max(0, (at-a.from)/(a.to-a.from)))
}

type tick struct {
	at   float64
	text string
}

// mostPoints is how many points of a line can be told apart on a screen, and more.
const mostPoints = 1000

// overTime draws the 99th percentile of every second.
func overTime(runs []run) chart {
	c := chart{title: "Latency over time", x: "seconds", y: "99th percentile of a second"}
	for i, r := range runs {
		for _, refused := range []bool{false, true} {
			l := line{run: i, dashed: refused}
			last := 0
			for _, s := range r.Seconds {
				answers := s.Accepted
				if refused {
					answers = s.Refused
				}
				if answers.P99 == nil {
					continue
				}
				l.points = append(l.points, point{float64(s.Second), logOf(*answers.P99), s.Second != last+1})
				last = s.Second
			}
			l.points = thin(l.points)
			c.add(l)
		}
	}
	c.xAxis, c.yAxis = linear(c.lines), decades(c.lines, clock)
	return c
}

// percentiles draws every histogram, with room for the rare: as far as from 0 to 90 % it is from 90 to 99 %, and from there
// to 99.9 %.
func percentiles(runs []run) chart {
	c := chart{title: "Percentiles", x: "percent of the answers", y: "within"}
	most := 2.0
	for i, r := range runs {
		for _, refused := range []bool{false, true} {
			latency := r.Accepted
			if refused {
				latency = r.Refused
			}
			if latency.Count == 0 {
				continue
			}
			end := min(5, math.Log10(float64(latency.Count)))
			l := line{run: i, dashed: refused}
			for nines := 0.0; nines <= end; nines += 0.05 {
				within, _ := latency.At(100 * (1 - math.Pow(10, -nines)))
				l.points = append(l.points, point{nines, logOf(bench.Span(within)), false})
			}
			most = max(most, end)
			c.add(l)
		}
	}
	c.yAxis = decades(c.lines, clock)
	c.xAxis = axis{from: 0, to: most, ticks: []tick{{0, "0"}, {math.Log10(2), "50"}, {1, "90"}, {2, "99"}}}
	for nines, text := range map[float64]string{3: "99.9", 4: "99.99", 5: "99.999"} {
		if nines <= most {
			c.xAxis.ticks = append(c.xAxis.ticks, tick{nines, text})
		}
	}
	return c
}

func (c *chart) add(l line) {
	if len(l.points) > 0 {
		c.lines = append(c.lines, l)
	}
}

// logOf is where a time is on an axis of decades. Histograms tell nothing below a microsecond.
func logOf(s bench.Span) float64 { return math.Log10(max(seconds(s), 1e-6)) }

// thin leaves out points that nobody could see, never the greatest of its neighbours.
func thin(points []point) []point {
	for len(points) > mostPoints {
		half := make([]point, 0, len(points)/2+1)
		for i := 0; i < len(points); i += 2 {
			p := points[i]
			if i+1 < len(points) && points[i+1].y > p.y {
				p.y = points[i+1].y
			}
			half = append(half, p)
		}
		points = half
	}
	return points
}

// linear is an axis of whole numbers from 0.
func linear(lines []line) axis {
	most := 1.0
	for _, l := range lines {
		for _, p := range l.points {
			most = max(most, p.x)
		}
	}
	a := axis{from: 0, to: most}
	step := stepOf(most)
	for at := 0.0; at <= most; at += step {
		a.ticks = append(a.ticks, tick{at, strconv.FormatFloat(at, 'f', -1, 64)})
	}
	return a
}

// stepOf cuts a length into ten parts at most, by 1, 2 or 5 and zeros behind.
func stepOf(length float64) float64 {
	for decade := 1.0; ; decade *= 10 {
		for _, n := range []float64{1, 2, 5} {
			if length <= 10*n*decade {
				return n * decade
			}
		}
	}
}

// clock writes a time of an axis of decades: 1000s is the next after 100s, which 16m40s does not look like.
func clock(inSeconds float64) string {
	if inSeconds >= 1 {
		return strconv.FormatFloat(inSeconds, 'f', -1, 64) + "s"
	}
	return bench.Span(math.Round(inSeconds * float64(time.Second))).Cell()
}

// decades is an axis over logarithms, by 1, 2 and 5 where there is room, else by tens alone; where there is none for these, by
// more.
func decades(lines []line, text func(float64) string) axis {
	least, most := math.Inf(1), math.Inf(-1)
	for _, l := range lines {
		for _, p := range l.points {
			least, most = min(least, p.y), max(most, p.y)
		}
	}
	if least > most {
		least, most = -3, -2
	}
	steps := []float64{1, 2, 5}
	if most-least > 2.5 {
		steps = []float64{1}
	}
	stride := max(1, math.Ceil((most-least)/9))
	var ticks []tick
	for power := math.Floor(least); power < math.Ceil(most)+stride; power += stride {
		for _, n := range steps {
			at := power + math.Log10(n)
			ticks = append(ticks, tick{at, text(n * math.Pow(10, power))})
		}
	}
	first, last := 0, len(ticks)-1
	for first+1 < last && ticks[first+1].at <= least {
		first++
	}
	for last-1 > first && ticks[last-1].at >= most {
		last--
	}
	ticks = ticks[first : last+1]
	return axis{ticks[0].at, ticks[len(ticks)-1].at, ticks}
}

// said sums a run up in a sentence, for those who cannot see it.
func (r run) said() string {
	text := fmt.Sprintf("%s: %s, %s, %s loop, %.0f a second of %.0f offered", r.name, r.Target, r.Mix, r.Loop, r.Achieved, r.Offered)
	if r.Accepted.P50 != nil {
		text += "; accepted " + r.Accepted.Cell()
	}
	if r.Refused.P50 != nil {
		text += "; refused " + r.Refused.Cell()
	}
	return text + "."
}
