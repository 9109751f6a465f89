package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/fault"
)

// result is a run whose accepts all took so long, and which refused nothing but for the last second.
func result(target string, accepts int, took time.Duration) bench.Result {
	histogram := func(n int, took time.Duration) *hdrhistogram.Histogram {
		h := hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)
		for range n {
			_ = h.RecordValue(took.Microseconds())
		}
		return h
	}
	h, refused := histogram(accepts, took), histogram(10, took/10)
	return bench.Result{
		Version: bench.ResultVersion, Target: target, Mix: "accept", Loop: bench.OpenLoop, Users: 8, Took: bench.Span(3 * time.Second), Offered: 100, Achieved: 90,
		Accepted: bench.LatencyOf(h), Refused: bench.LatencyOf(refused), Redis: bench.RedisCost{CPU: new(bench.Span(took / 100))},
		Seconds: []bench.Second{
			{Second: 1, Accepted: bench.AnswersOf(h)}, {Second: 3, Accepted: bench.AnswersOf(h), Refused: bench.AnswersOf(refused)},
		},
		Errors: map[fault.Code]int64{fault.Unavailable: 1}, Audit: bench.Audit{Verdict: bench.AuditOK},
	}
}

func read(t *testing.T, files map[string]any) Report {
	t.Helper()
	var r Report
	for name, content := range files {
		text, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Read(name, bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	r.Sum()
	return r
}

var comparison = map[string]any{"users": 256, "models": []map[string]any{
	{"model": "pg-for-update", "accepted_per_second": 300, "low_per_second": 250, "high_per_second": 320, "p50_seconds": 0.8, "p99_seconds": 1.5, "leaked": 7},
	{"model": "dropctl", "accepted_per_second": 60000, "low_per_second": 55000, "high_per_second": 62000, "p50_seconds": 0.004, "p99_seconds": 0.009, "leaked": nil},
}}

func TestRunsOfAKindAreMerged(t *testing.T) {
	r := read(t, map[string]any{"runs.json": []bench.Result{result("engine", 100, time.Millisecond), result("http", 50, 2*time.Millisecond), result("engine", 300, 9*time.Millisecond)}})
	if len(r.Runs) != 4 || r.Runs[0].Run != "runs.json #1" {
		t.Fatalf("%+v", r.Runs)
	}
	all := r.Runs[3]
	if all.Target != "engine" || all.Results != 2 || all.Accepted != 400 || all.Errors != 2 || all.Achieved != 90 || all.Audit != "ok" || all.Run != "all 2: engine accept" {
		t.Errorf("%+v", all)
	}
	// Of 400 answers 100 took 1 ms and 300 took 9 ms: the mean of both medians would be 5 ms.
	if p50 := time.Duration(*all.AcceptP50); p50 < 8*time.Millisecond || p50 > 10*time.Millisecond {
		t.Errorf("p50 of both: %s", p50)
	}
	if cpu := time.Duration(*all.RedisCPU); cpu < 65*time.Microsecond || cpu > 75*time.Microsecond { // 110 of 10 µs, 310 of 90 µs
		t.Errorf("processor time of both: %s", cpu)
	}
	if other := read(t, map[string]any{"a": result("engine", 1, time.Second), "b": result("http", 1, time.Second)}); len(other.Runs) != 2 {
		t.Errorf("different targets were merged: %+v", other.Runs)
	}
	for what, spread := range map[string]func(*bench.Result){
		"lots": func(r *bench.Result) { r.Lots = 7 }, "stock": func(r *bench.Result) { r.Stock = 7 }, "quantities": func(r *bench.Result) { r.Qty = 7 },
		"users": func(r *bench.Result) { r.Users = 7 }, "rates": func(r *bench.Result) { r.Offered = 7 },
	} {
		one := result("engine", 1, time.Second)
		spread(&one)
		if other := read(t, map[string]any{"a": result("engine", 1, time.Second), "b": one}); len(other.Runs) != 2 {
			t.Errorf("runs of different %s were merged: %+v", what, other.Runs)
		}
	}
}

func TestComparisonsAreRead(t *testing.T) {
	r := read(t, map[string]any{"models.json": comparison})
	if len(r.Models) != 2 || len(r.Runs) != 0 || r.Models[0].File != "models.json" || r.Models[1].PerSecond != 60000 || *r.Models[0].Leaked != 7 || r.Models[1].Leaked != nil {
		t.Errorf("%+v", r)
	}
	for file, field := range map[string]string{
		`{"models": [{"model": "x", "accepted_per_second": -1}]}`: "models[0]",
		`{"models": [{"accepted_per_second": 1}]}`:                "models[0]",
		`{"models": [{"model": "x", "p99_seconds": "quick"}]}`:    "models",
		`{"models": []}`: "version",
		`{"models": [{`:  "",
	} {
		var r Report
		if err := r.Read("models.json", strings.NewReader(file)); !fault.Is(err, fault.Invalid) || fault.As(err).Field != field || !strings.Contains(err.Error(), "models.json") {
			t.Errorf("%s: %v (%s)", file, err, fault.As(err).Field)
		}
	}
}

// element is a part of a drawing.
type element struct {
	name, text string
	attributes map[string]string
}

// parse reads a drawing as strictly as a browser reads a file of its own, and returns all its elements.
func parse(t *testing.T, r Report) []element {
	t.Helper()
	var b bytes.Buffer
	if err := r.Draw(&b); err != nil {
		t.Fatal(err)
	}
	var all []element
	var open []int
	for dec := xml.NewDecoder(&b); ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			e := element{x.Name.Local, "", map[string]string{}}
			for _, a := range x.Attr {
				e.attributes[a.Name.Local] = a.Value
			}
			open = append(open, len(all))
			all = append(all, e)
		case xml.CharData:
			if len(open) > 0 {
				all[open[len(open)-1]].text += string(x)
			}
		case xml.EndElement:
			open = open[:len(open)-1]
		}
	}
}

func number(all []element, name string, is func(element) bool) (n int) {
	for _, e := range all {
		if e.name == name && is(e) {
			n++
		}
	}
	return n
}

func TestDrawingShowsEveryRunAndModel(t *testing.T) {
	r := read(t, map[string]any{"monday.json": result("engine", 5000, 3*time.Millisecond)})
	if err := r.Read("models.json", strings.NewReader(`{"models": [{"model": "dropctl", "accepted_per_second": 5}, {"model": "redis-lock"}]}`)); err != nil {
		t.Fatal(err)
	}
	all := parse(t, r)
	root := all[0]
	if root.name != "svg" || root.attributes["role"] != "img" || root.attributes["aria-labelledby"] != "title desc" || root.attributes["viewBox"] == "" {
		t.Errorf("%+v", root)
	}
	if number(all, "title", func(e element) bool { return e.attributes["id"] == "title" && e.text != "" }) != 1 {
		t.Error("it has no title")
	}
	if number(all, "desc", func(e element) bool {
		return e.attributes["id"] == "desc" && strings.Contains(e.text, "monday.json") && strings.Contains(e.text, "p99 3ms") && strings.Contains(e.text, "redis-lock")
	}) != 1 {
		t.Error("it does not say in words what it shows")
	}
	if number(all, "style", func(e element) bool { return strings.Contains(e.text, "prefers-color-scheme: dark") }) != 1 {
		t.Error("it knows no dark")
	}
	isLine := func(e element) bool {
		return e.attributes["class"] == "line" && strings.Contains(e.attributes["d"], ".")
	}
	if n := number(all, "path", isLine); n != 3 { // a legend, over time, percentiles
		t.Errorf("%d lines of accepts", n)
	}
	if n := number(all, "path", func(e element) bool { return e.attributes["class"] == "line dashed" }); n != 3 {
		t.Errorf("%d lines of refusals", n)
	}
	if n := number(all, "rect", func(element) bool { return true }); n != 1 { // nothing else was measured
		t.Errorf("%d bars", n)
	}
	// Nothing was measured in the second second: what stands alone beside the gap, and the only second of refusals, are dots.
	if n := number(all, "circle", func(element) bool { return true }); n != 3 {
		t.Errorf("%d dots", n)
	}
	for _, e := range all {
		for name, value := range e.attributes {
			if strings.Contains(value, "NaN") || strings.Contains(value, "Inf") || strings.Contains(value, "http") && name != "xmlns" {
				t.Errorf("%s of %s: %s", name, e.name, value)
			}
		}
	}
}

// TestNamesCannotBreakADrawing: a result may come from anybody, and a browser runs what a drawing tells it to.
func TestNamesCannotBreakADrawing(t *testing.T) {
	const hostile = `</text><script>alert(1)</script>"'&]]><!--` + "\x00\x1b[31m\u202e"
	bad := result("engine", 10, time.Millisecond)
	bad.Target, bad.Mix = hostile, hostile
	r := read(t, map[string]any{hostile: bad})
	r.Models = []Model{{Model: hostile + strings.Repeat("long", 50), PerSecond: 1}}
	all := parse(t, r)
	for _, e := range all {
		if e.name == "script" || e.name == "foreignObject" {
			t.Errorf("a name became an element: %+v", e)
		}
	}
	if n := number(all, "text", func(e element) bool { return strings.Contains(e.text, "</text><script>") }); n < 2 {
		t.Errorf("the name is in %d texts", n)
	}
}

// A model a thousand times slower than another has a bar that can be seen, and what is wrong with it is drawn as well.
func TestModelsAreDrawnWhateverTheirSpeed(t *testing.T) {
	r := read(t, map[string]any{"models.json": comparison})
	all := parse(t, r)
	if n := number(all, "rect", func(e element) bool { return len(e.attributes["width"]) >= 4 }); n != 5 { // two, two, and one leak; 10.0 is four
		t.Errorf("%d bars", n)
	}
	if n := number(all, "path", func(e element) bool { return e.attributes["class"] == "spread" }); n != 2 {
		t.Errorf("%d spreads", n)
	}
	for _, want := range []string{"60,000 (55,000 to 62,000)", "1.5s", "0 oversold, 7 leaked", "0 oversold; no client died"} {
		if number(all, "text", func(e element) bool { return e.text == want }) != 1 {
			t.Errorf("%q is missing", want)
		}
	}
}

// Where nobody lost anything there is no scale of what was lost.
func TestNothingLostNeedsNoScale(t *testing.T) {
	r := Report{Models: []Model{{Model: "dropctl", PerSecond: 5, P99: new(bench.Span(time.Millisecond)), Leaked: new(int64(0))}}}
	all := parse(t, r)
	if number(all, "text", func(e element) bool { return e.text == "0 oversold, 0 leaked" }) != 1 {
		t.Error("it is not said that nothing was lost")
	}
	if n := number(all, "text", func(e element) bool { return strings.HasPrefix(e.text, "0.00") }); n != 0 {
		t.Errorf("%d ticks of less than a unit", n)
	}
}

// TestDrawingOfLittleAndOfMuch: nothing measured, one answer, and more seconds than a screen has pixels.
func TestDrawingOfLittleAndOfMuch(t *testing.T) {
	nothing := bench.Result{Version: 1, Target: "engine", Loop: bench.ClosedLoop, Audit: bench.Audit{Verdict: bench.AuditNone}}
	long := result("engine", 10, time.Minute)
	long.Seconds = nil
	for i := range 10_000 {
		long.Seconds = append(long.Seconds, bench.Second{Second: i + 1, Accepted: bench.Answers{Count: 1, P99: new(bench.Span(time.Duration(i%7+1) * time.Millisecond))}})
	}
	long.Seconds[5001].Accepted.P99 = new(bench.Span(time.Hour))
	for name, r := range map[string]bench.Result{"nothing": nothing, "one": result("engine", 1, 0), "long": long} {
		t.Run(name, func(t *testing.T) {
			for _, e := range parse(t, read(t, map[string]any{name: r})) {
				if d := e.attributes["d"]; strings.Contains(d, "NaN") || strings.Count(d, "L") > mostPoints {
					t.Errorf("%.100s", d)
				}
			}
		})
	}
	c := overTime([]run{{"long", 1, long}})
	highest := 0.0
	for _, p := range c.lines[0].points {
		highest = max(highest, p.y)
	}
	if highest < 3.5 { // of seconds, as a power of ten
		t.Errorf("the peak of an hour was thinned out: %v", highest)
	}
}

func TestAxesHaveAFewTicks(t *testing.T) {
	for _, span := range [][2]float64{{-6, -6}, {-5.2, -5.1}, {-4, -1}, {-6, 3.5}, {0, 0}, {0, 14}} {
		a := decades([]line{{points: []point{{0, span[0], false}, {1, span[1], false}}}}, clock)
		if a.from > span[0] || a.to < span[1] || len(a.ticks) < 2 || len(a.ticks) > 12 {
			t.Errorf("%v: %+v", span, a)
		}
	}
	for _, most := range []float64{0, 1, 9, 60, 3599, 1e9} {
		if a := linear([]line{{points: []point{{most, 0, false}}}}); a.to < most || len(a.ticks) > 11 {
			t.Errorf("%v: %d ticks", most, len(a.ticks))
		}
	}
	if got := fmt.Sprint(stepOf(30), stepOf(600)); got != "5 100" {
		t.Error(got)
	}
}
