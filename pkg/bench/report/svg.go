package report

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"math"
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
	legend   = 22
)

// colours are told apart on white and on black, by most of those too who see no red or green. A drawing with more runs begins
// again.
var colours = []string{"#0b84d8", "#d1671b", "#1a9a6c", "#b35fb0", "#a38a00", "#d2455a", "#5f7fd6", "#7d7d7d"}

const style = `
svg { font: 13px system-ui, sans-serif; background: #ffffff; color: #1f2328; }
text { fill: currentColor; }
.head { font-size: 16px; font-weight: 600; }
.faint { fill: #59636e; }
.grid { stroke: #d8dde3; stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
.dashed { stroke-dasharray: 5 4; }
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
	if len(r.Models) > 0 {
		d.bars("Accepted a second", r.Models, func(m Model) (float64, string) {
			return m.PerSecond, fmt.Sprintf("%.0f (%.0f to %.0f)", m.PerSecond, m.Low, m.High)
		})
		d.bars("99th percentile", r.Models, func(m Model) (float64, string) {
			if m.P99 == nil {
				return 0, "not measured"
			}
			return seconds(*m.P99), m.P99.Cell()
		})
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
	if len(r.Models) > 0 {
		height += 2 * float64(above+len(r.Models)*barRow+20)
	}
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

func (d *drawing) legend(runs []run) {
	dashes := false
	for i, r := range runs {
		y := d.top + float64(i*legend) + 10
		d.put(`<path class="line" stroke="%s" d="M16 %.1f h24"/>`+"\n", colour(i), y)
		d.text(48, y+4, "", "start", short(fmt.Sprintf("%s: %s, %s, %s loop", r.name, r.Target, r.Mix, r.Loop), 110))
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
	place := func(a axis, at, from, to float64) float64 {
		if a.to == a.from {
			return from
		}
		return from + (to-from)*min(1, max(0, (at-a.from)/(a.to-a.from)))
	}
	x := func(at float64) float64 { return place(c.xAxis, at, left, width-right) }
	y := func(at float64) float64 { return place(c.yAxis, at, bottom, top) }
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
		class := "line"
		if l.dashed {
			class += " dashed"
		}
		d.put(`<path class="%s" stroke="%s" d="%s"/>`+"\n", class, colour(l.run), path(l.points, x, y))
	}
	d.top = bottom + below
}

// path writes a line; a point that stands alone is a dot.
func path(points []point, x, y func(float64) float64) string {
	var b strings.Builder
	for i, p := range points {
		command := "L"
		if i == 0 || p.gap {
			command = "M"
		}
		_, _ = fmt.Fprintf(&b, "%s%.1f %.1f", command, x(p.x), y(p.y))
		if command == "M" && (i+1 == len(points) || points[i+1].gap) {
			b.WriteString("h0")
		}
	}
	return b.String()
}

// bars draws a bar for each model.
func (d *drawing) bars(title string, models []Model, of func(Model) (value float64, text string)) {
	d.text(16, d.top+20, "head", "start", title)
	most := 0.0
	for _, m := range models {
		value, _ := of(m)
		most = max(most, value)
	}
	for i, m := range models {
		value, text := of(m)
		length := 0.0
		if most > 0 {
			length = math.Max(1, value/most*(width-right-barStart-190))
		}
		y := d.top + above + float64(i*barRow)
		d.text(barStart-10, y+14, "", "end", short(m.Model, 26))
		d.put(`<rect x="%d" y="%.1f" width="%.1f" height="18" rx="2" fill="%s"/>`+"\n", barStart, y, length, colour(0))
		d.text(barStart+length+8, y+14, "faint", "start", text)
	}
	d.top += float64(above + len(models)*barRow + 20)
}
