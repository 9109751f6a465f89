package report

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Where things are, in pixels.
const (
	width    = 960
	left     = 80 // of the fields of charts
	right    = 24
	field    = 280 // height of a chart
	above    = 40
	below    = 56
	barRow   = 26
	barStart = 200
	barText  = 200 // beside the longest
	legend   = 22
)

// colours are told apart on white and on black, by most of those too who see no red or green. A drawing with more runs begins
// again, with thinner lines.
var colours = []string{"#0b84d8", "#d1671b", "#1a9a6c", "#b35fb0", "#a38a00", "#d2455a", "#5f7fd6", "#7d7d7d"}

const style = `
svg { font: 13px system-ui, sans-serif; background: #ffffff; color: #1f2328; }
text { fill: currentColor; }
.head { font-size: 16px; font-weight: 600; }
.faint { fill: #59636e; }
.grid { stroke: #d8dde3; stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
.dashed { stroke-dasharray: 5 4; }
.thin { stroke-width: 1; }
.spread { stroke: currentColor; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; color: #e6edf3; }
  .faint { fill: #9198a1; }
  .grid { stroke: #30363d; }
}
`

// drawing writes SVG downwards. The first error stays.
type drawing struct {
	w   *bufio.Writer
	top float64 // where there is room yet
}

// Draw writes the drawing: one document, which needs nothing from elsewhere.
func (r Report) Draw(w io.Writer) error {
	d := &drawing{w: bufio.NewWriter(w)}
	d.open(r)
	if len(r.runs) > 0 {
		d.legend(r.runs)
		d.chart(overTime(r.runs))
		d.chart(percentiles(r.runs))
	}
	for _, b := range drawn(r.Models) {
		d.bars(b, r.Models)
	}
	d.put("</svg>\n")
	return d.w.Flush()
}

func (d *drawing) put(format string, args ...any) { _, _ = fmt.Fprintf(d.w, format, args...) }

// escape makes any text safe within an element or an attribute; what XML cannot hold becomes a question mark in a box.
func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // which only fails if the writer does
	return b.String()
}

func (d *drawing) open(r Report) {
	height := 24.0
	if len(r.runs) > 0 {
		height += float64(len(r.runs)*legend+30) + 2*(above+field+below)
	}
	height += float64(len(drawn(r.Models))) * barsHeight(r.Models)
	d.put(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" role="img" aria-labelledby="title desc">`+"\n", width, height, width, height)
	d.put("<title id=\"title\">Measured with dropctl bench</title>\n<desc id=\"desc\">")
	for _, each := range r.runs {
		d.put("%s\n", escape(each.said()))
	}
	for _, m := range r.Models {
		d.put("%s: %.0f accepted a second.\n", escape(m.Model), m.PerSecond)
	}
	d.put("</desc>\n<style>%s</style>\n", style)
	d.top = 12
}

func colour(i int) string { return colours[i%len(colours)] }

func lineClass(i int) string {
	if i/len(colours)%2 == 1 {
		return "line thin"
	}
	return "line"
}

func (d *drawing) text(x, y float64, class, anchor, text string) {
	d.put(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, escape(text))
}

// short cuts a name that is too long to be drawn. The whole is in the description.
func short(name string, most int) string {
	if letters := []rune(name); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return name
}

// shortPath does so at the front: files are told apart by how they end.
func shortPath(name string, most int) string {
	if letters := []rune(name); len(letters) > most {
		return "…" + string(letters[len(letters)-most+1:])
	}
	return name
}

func (d *drawing) legend(runs []run) {
	dashes := false
	for i, r := range runs {
		y := d.top + float64(i*legend) + 10
		d.put(`<path class="%s" stroke="%s" d="M16 %.1f h24"/>`+"\n", lineClass(i), colour(i), y)
		d.text(48, y+4, "", "start", fmt.Sprintf("%s: %s, %s, %s loop", shortPath(r.name, 60), short(r.Target, 20), short(r.Mix, 20), r.Loop))
		dashes = dashes || r.Refused.Count > 0
	}
	d.top += float64(len(runs) * legend)
	if dashes {
		d.put(`<path class="line dashed" stroke="currentColor" d="M16 %.1f h24"/>`+"\n", d.top+10)
		d.text(48, d.top+14, "faint", "start", "refusals")
	}
	d.top += 30
}

func (d *drawing) chart(c chart) {
	d.text(16, d.top+20, "head", "start", c.title)
	top, bottom := d.top+above, d.top+above+field
	x := func(at float64) float64 { return c.xAxis.place(at, left, width-right) }
	y := func(at float64) float64 { return c.yAxis.place(at, bottom, top) }
	for _, t := range c.yAxis.ticks {
		d.put(`<path class="grid" d="M%d %.1f H%d"/>`+"\n", left, y(t.at), width-right)
		d.text(left-8, y(t.at)+4, "faint", "end", t.text)
	}
	for _, t := range c.xAxis.ticks {
		d.put(`<path class="grid" d="M%.1f %.1f v5"/>`+"\n", x(t.at), bottom)
		d.text(x(t.at), bottom+20, "faint", "middle", t.text)
	}
	d.text(width-right, bottom+42, "faint", "end", c.x)
	d.text(width-right, d.top+20, "faint", "end", c.y)
	for _, l := range c.lines {
		class := lineClass(l.run)
		if l.dashed {
			class += " dashed"
		}
		d.put(`<path class="%s" stroke="%s" d="%s"/>`+"\n", class, colour(l.run), path(l.points, x, y))
		for i, p := range l.points {
			if standsAlone(l.points, i) {
				d.put(`<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.x), y(p.y), colour(l.run))
			}
		}
	}
	if len(c.lines) == 0 {
		d.text((left+width-right)/2, (top+bottom)/2, "faint", "middle", "nothing was measured")
	}
	d.top = bottom + below
}

// standsAlone reports whether no line leads to a point.
func standsAlone(points []point, i int) bool {
	return (i == 0 || points[i].gap) && (i+1 == len(points) || points[i+1].gap)
}

// path writes a line.
func path(points []point, x, y func(float64) float64) string {
	var b strings.Builder
	for i, p := range points {
		command := "L"
		if i == 0 || p.gap {
			command = "M"
		}
		_, _ = fmt.Fprintf(&b, "%s%.1f %.1f", command, x(p.x), y(p.y))
	}
	return b.String()
}

// bar is what is drawn of a model. Nothing is drawn of 0.
type bar struct {
	value     float64
	low, high float64 // the worst round and the best; 0: not told
	text      string
}

// drawn are the bars that a comparison has; none without one.
func drawn(models []Model) []bars {
	if len(models) == 0 {
		return nil
	}
	list := []bars{
		{"Accepted a second, and from the worst round to the best", count, func(m Model) bar {
			return bar{m.PerSecond, m.Low, m.High, fmt.Sprintf("%s (%s to %s)", count(m.PerSecond), count(m.Low), count(m.High))}
		}},
		{"99th percentile: less is better", clock, func(m Model) bar {
			if m.P99 == nil {
				return bar{text: "not measured"}
			}
			return bar{value: seconds(*m.P99), text: m.P99.Cell()}
		}},
	}
	if slices.ContainsFunc(models, func(m Model) bool { return m.Leaked != nil || m.Oversold > 0 }) {
		list = append(list, bars{"Units sold twice, or leaked when clients died: none is right", count, func(m Model) bar {
			if m.Leaked == nil {
				return bar{value: float64(m.Oversold), text: fmt.Sprintf("%d oversold; no client died", m.Oversold)}
			}
			return bar{value: float64(m.Oversold + *m.Leaked), text: fmt.Sprintf("%d oversold, %d leaked", m.Oversold, *m.Leaked)}
		}})
	}
	return list
}

// bars are a bar for each model on an axis of decades, since the best is often a thousand times the worst.
type bars struct {
	title string
	tick  func(float64) string
	of    func(Model) bar
}

func (b bars) axis(models []Model) axis {
	var l line
	for _, m := range models {
		one := b.of(m)
		for _, value := range []float64{0.7 * one.value, one.value, one.low, one.high} { // the least bar has a length, too
			if value > 0 {
				l.points = append(l.points, point{y: math.Log10(value)})
			}
		}
	}
	if len(l.points) == 0 { // where all is 0, there is nothing to read off
		return axis{}
	}
	return decades([]line{l}, b.tick)
}

func barsHeight(models []Model) float64 { return float64(above + len(models)*barRow + 44) }

func (d *drawing) bars(b bars, models []Model) {
	d.text(16, d.top+20, "head", "start", b.title)
	a := b.axis(models)
	x := func(value float64) float64 { return a.place(math.Log10(value), barStart, width-right-barText) }
	top, bottom := d.top+above, d.top+above+float64(len(models)*barRow)
	for _, t := range a.ticks {
		at := a.place(t.at, barStart, width-right-barText)
		d.put(`<path class="grid" d="M%.1f %.1f V%.1f"/>`+"\n", at, top-6, bottom)
		d.text(at, bottom+16, "faint", "middle", t.text)
	}
	for i, m := range models {
		one, end, y := b.of(m), float64(barStart), top+float64(i*barRow)
		d.text(barStart-10, y+14, "", "end", short(m.Model, 20))
		if one.value > 0 {
			end = x(one.value)
			d.put(`<rect x="%d" y="%.1f" width="%.1f" height="18" rx="2" fill="%s"/>`+"\n", barStart, y, end-barStart, colour(0))
		}
		if one.low > 0 && one.high > 0 {
			d.put(`<path class="spread" d="M%.1f %.1f H%.1f"/>`+"\n", x(one.low), y+9, x(one.high))
			end = max(end, x(one.high))
		}
		d.text(end+8, y+14, "faint", "start", one.text)
	}
	d.top += barsHeight(models)
}

// count writes a number with its thousands apart, as far as anybody reads them.
func count(n float64) string {
	if n >= 1e7 || n > 0 && n < 1 {
		return strconv.FormatFloat(n, 'g', 3, 64)
	}
	text := strconv.FormatFloat(n, 'f', 0, 64)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
