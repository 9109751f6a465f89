package simulate

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/fault"
)

// The values of a scenario's fields. What cannot be read is a problem, and its value harmless.

// text reads a single value as it is written.
func (p *parser) text(n *yaml.Node, field string) string {
	if n.Kind != yaml.ScalarNode {
		p.problem(n, field, "aliases and lists are not read here", "a single value is expected here")
		return ""
	}
	return n.Value
}

func (p *parser) number(n *yaml.Node, field string, least, most int64) int64 {
	r := p.count(n, field, least, most)
	if r.From != r.To {
		p.problem(n, field, "use one whole number", "%.60q is a range", n.Value)
	}
	return r.From
}

// count reads a whole number, or a range of them as 1..4.
func (p *parser) count(n *yaml.Node, field string, least, most int64) Range[int64] {
	return bounds(p, n, field, p.text(n, field), least, most, "use a whole number or a range such as 1..4", func(s string) (int64, error) {
		return strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	})
}

// span reads a duration of at least so much, or a range of them as 1s..3s.
func (p *parser) span(n *yaml.Node, field string, least time.Duration) Range[time.Duration] {
	return bounds(p, n, field, p.text(n, field), least, maxTime, "use a duration or a range such as 500ms..2s", time.ParseDuration)
}

// spans reads a duration or a range of them, or several with their weights: {100ms..300ms: 95, 5s..20s: 5}.
func (p *parser) spans(n *yaml.Node, field string) Choices[Range[time.Duration]] {
	if n.Kind != yaml.MappingNode {
		return always(p.span(n, field, 0))
	}
	return weights(p, n, field, func(n *yaml.Node, field string) (Range[time.Duration], bool) {
		before := len(p.problems)
		r := p.span(n, field, 0)
		return r, len(p.problems) == before
	})
}

// bounds reads one value, or two as from..to.
func bounds[T int64 | time.Duration](p *parser, n *yaml.Node, field, text string, least, most T, hint string, read func(string) (T, error)) Range[T] {
	from, to, two := strings.Cut(text, "..")
	if !two {
		to = from
	}
	a, errA := read(strings.TrimSpace(from))
	b, errB := read(strings.TrimSpace(to))
	switch {
	case errA != nil || errB != nil:
		p.problem(n, field, hint, "%.60q cannot be read", text)
	case a < least || b > most:
		p.problem(n, field, hint, "%.60q is not within %v and %v", text, least, most)
	case a > b:
		p.problem(n, field, "write the smaller one first", "%.60q ends before it begins", text)
	default:
		return Range[T]{a, b}
	}
	return Range[T]{least, least}
}

// share reads a part of the whole: 10% or 0.1.
func (p *parser) share(n *yaml.Node, field string) float64 {
	text, percent := strings.CutSuffix(p.text(n, field), "%")
	x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if percent {
		x /= 100
	}
	if err != nil || !(x >= 0 && x <= 1) {
		p.problem(n, field, "use a share such as 10% or 0.1", "%.60q is no share between 0%% and 100%%", n.Value)
		return 0
	}
	return x
}

func (p *parser) yes(n *yaml.Node, field string) bool {
	switch p.text(n, field) {
	case "true":
		return true
	case "false":
		return false
	}
	p.problem(n, field, "use true or false", "%.60q is neither true nor false", n.Value)
	return false
}

// weights reads values with their weights: {1: 70, 2: 30}.
func weights[T any](p *parser, n *yaml.Node, field string, read func(n *yaml.Node, field string) (T, bool)) (list Choices[T]) {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		p.problem(n, field, "write {VALUE: WEIGHT, VALUE: WEIGHT}", "values with their weights are expected here")
		return nil
	}
	before, sum := len(p.problems), 0.0
	for i := 0; i+1 < len(n.Content); i += 2 {
		value, fine := read(n.Content[i], field)
		text := strings.TrimSuffix(p.text(n.Content[i+1], field), "%")
		w, err := strconv.ParseFloat(text, 64)
		if err != nil || !(w >= 0 && w <= math.MaxInt32) {
			p.problem(n.Content[i+1], field, "use a number that is not negative", "%.60q is no weight", text)
			fine = false
		}
		if fine {
			list = append(list, Choice[T]{value, w})
		}
		sum += w
	}
	if sum == 0 && len(p.problems) == before {
		p.problem(n, field, "give one of them a weight", "all weights are 0")
	}
	return list
}

// units reads a quantity, or a range of them.
func (p *parser) units(n *yaml.Node, field string) (Range[int64], bool) {
	before := len(p.problems)
	r := p.count(n, field, 1, 1000)
	return r, len(p.problems) == before
}

// lotNamed reads the id of a lot of the scenario.
func (p *parser) lotNamed(n *yaml.Node, field string) (int, bool) {
	for i, l := range p.scenario.Lots {
		if string(l.Lot) == n.Value {
			return i, true
		}
	}
	if len(p.scenario.Lots) == 0 { // they could not be read, which was said
		return 0, true
	}
	p.problem(n, field, "name one of the scenario's lots", "there is no lot %.60q", n.Value)
	return 0, false
}

func (p *parser) ending(n *yaml.Node, field string) (ending, bool) {
	all := []ending{pay, payPart, payLate, giveBack, giveSome, abandon}
	if slices.Contains(all, ending(n.Value)) {
		return ending(n.Value), true
	}
	p.problem(n, field, fmt.Sprintf("use one of %v", all), "%.60q is no way to end", n.Value)
	return pay, false
}

// arrival reads {spike: 5s}, {ramp: 1m, after: 5s} or {replay: FILE, speed: 10}.
func (p *parser) arrival(n *yaml.Node, field string) Arrival {
	a, speed, curves := Arrival{}, 1.0, 0
	curve := func(c Curve) func(*yaml.Node, string) {
		return func(n *yaml.Node, f string) {
			a.Curve = c
			curves++
			if c == Replay {
				a.Times = p.replay(n, f)
				return
			}
			a.Within = p.span(n, f, 0).To
		}
	}
	p.fields(n, field, setters{
		"spike":  curve(Spike),
		"ramp":   curve(Ramp),
		"replay": curve(Replay),
		"after":  func(n *yaml.Node, f string) { a.After = p.span(n, f, 0).To },
		"speed":  func(n *yaml.Node, f string) { speed = p.speed(n, f) },
	})
	if curves != 1 {
		p.problem(n, field, "write {spike: 5s}, {ramp: 1m} or {replay: times.txt}", "one curve is expected: spike, ramp or replay")
	}
	for i := range a.Times {
		a.Times[i] = time.Duration(float64(a.Times[i]) / speed)
		if a.Times[i] > 24*maxTime {
			p.problem(n, field, "raise speed", "the replay takes longer than %s", 24*maxTime)
			break
		}
	}
	return a
}

func (p *parser) speed(n *yaml.Node, field string) float64 {
	x, err := strconv.ParseFloat(p.text(n, field), 64)
	if err != nil || !(x >= 0.001 && x <= 1e6) {
		p.problem(n, field, "use 2 for twice as fast", "%.60q is no speed", n.Value)
		return 1
	}
	return x
}

// replay reads when users came: from a file with one time a line, or a list. The first one is the start.
func (p *parser) replay(n *yaml.Node, field string) []time.Duration {
	var texts []string
	switch {
	case n.Kind == yaml.SequenceNode:
		for _, e := range n.Content {
			texts = append(texts, p.text(e, field))
		}
	case p.text(n, field) != "":
		data, err := p.src.Read(n.Value)
		if err != nil {
			p.problem(n, field, "a path is taken from where the scenario is", "%s", fault.As(err).Error())
			return nil
		}
		texts = strings.Split(string(data), "\n")
	}
	var times []time.Duration
	first := time.Duration(math.MaxInt64)
	for i, text := range texts {
		if text = strings.TrimSpace(text); text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		at, err := moment(text)
		if err != nil {
			p.problem(n, field, "write one time a line: RFC 3339, or seconds", "line %d: %.60q is no time", i+1, text)
			return nil
		}
		times = append(times, at)
		first = min(first, at)
	}
	if len(times) == 0 {
		p.problem(n, field, "write one time a line: RFC 3339, or seconds", "there is no time in it")
	}
	for i := range times {
		times[i] -= first
	}
	return times
}

// moment reads a time as RFC 3339, or as seconds since whenever.
func moment(text string) (time.Duration, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil && t.Year() >= 1970 && t.Year() < 2200 {
		return time.Duration(t.UnixNano()), nil
	}
	x, err := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	if err != nil || !(x >= 0 && x < 7e9) {
		return 0, strconv.ErrSyntax
	}
	return time.Duration(x * float64(time.Second)), nil
}
