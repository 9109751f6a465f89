package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const maxBytes = 8 << 20 // of a scenario

// Source is the text of a scenario, and what reads the files that it names.
type Source struct {
	Name string // of the scenario; for people
	Text []byte
	// Read reads a file, given as the scenario names it.
	Read func(file string) ([]byte, error)
	// Lots reads lots in the notations of dropctl seed. Of a scenario that lists its lots itself the file is "", and the text
	// is that of the scenario with nothing but the lots in it, each in its line.
	Lots func(file string, text []byte) ([]drop.Definition, []fault.Problem)
}

// Parse reads a scenario and checks all of it. The error has code invalid and carries every problem, see fault.ProblemsOf.
func Parse(src Source) (Scenario, error) {
	p := &parser{src: src, scenario: Scenario{Name: src.Name, Seed: 1}}
	if top := p.document(); top != nil {
		p.read(top)
	}
	return p.scenario, p.err()
}

// parser turns a tree of YAML into a scenario and collects what is wrong.
type parser struct {
	src      Source
	scenario Scenario
	problems []fault.Problem
}

func (p *parser) problem(n *yaml.Node, field, hint, format string, args ...any) {
	p.problems = append(p.problems, fault.Problem{Line: n.Line, Column: n.Column, Field: field, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// err sums up the problems; nil if there are none.
func (p *parser) err() error {
	return fault.SumUp(p.problems, func(q fault.Problem) string { return Place(p.src.Name, q) })
}

// Place says a problem with its place in a scenario of this name.
func Place(scenario string, q fault.Problem) string {
	field := q.Field
	if field != "" {
		field += ": "
	}
	return fmt.Sprintf("%s:%d:%d: %s%s", scenario, q.Line, q.Column, field, q.Message)
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// document returns the one mapping that a scenario is; nil if there is none.
func (p *parser) document() *yaml.Node {
	start := &yaml.Node{Line: 1, Column: 1}
	if len(p.src.Text) > maxBytes || !utf8.Valid(p.src.Text) {
		p.problem(start, "", "a scenario is YAML in UTF-8", "it is no text, or larger than %d MiB", maxBytes>>20)
		return nil
	}
	const example = "begin with one that ships: dropctl simulate --print truffle-lot"
	documents := yaml.NewDecoder(bytes.NewReader(p.src.Text))
	var doc, more yaml.Node
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		text := err.Error()
		if m := yamlLine.FindStringSubmatch(text); m != nil {
			_, _ = fmt.Sscan(m[1], &start.Line)
			text = text[len(m[0]):]
		}
		p.problem(start, "", example, "the YAML is malformed: %s", text)
		return nil
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode || doc.Content[0].Style&yaml.FlowStyle != 0 {
		p.problem(start, "", example, "there is no scenario in it: lots and crowds, each in lines of its own")
		return nil
	}
	if err := documents.Decode(&more); !errors.Is(err, io.EOF) {
		p.problem(start, "", "put each scenario into a file of its own", "there is something behind the end of the scenario")
		return nil
	}
	return doc.Content[0]
}

// setters read the fields of a mapping, by name.
type setters map[string]func(n *yaml.Node, field string)

// fields hands each value of a mapping to its setter. A field that is unknown or stands twice is a problem.
func (p *parser) fields(n *yaml.Node, in string, set setters) {
	if n.Kind != yaml.MappingNode {
		p.problem(n, in, "write "+in+": and its fields below", "fields are expected here: %s", strings.Join(slices.Sorted(maps.Keys(set)), ", "))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		field := within(in, name.Value)
		setter, known := set[name.Value]
		switch {
		case !known:
			names := slices.Sorted(maps.Keys(set))
			hint := "use " + strings.Join(names, ", ")
			if near := fault.Nearest(name.Value, names); near != "" {
				hint = "did you mean " + near + "?"
			}
			p.problem(name, field, hint, "unknown field %.60q", name.Value)
		case seen[name.Value]:
			p.problem(name, field, "keep one of them", "it stands twice")
		default:
			seen[name.Value] = true
			setter(value, field)
		}
	}
}

func within(outer, field string) string {
	switch "" {
	case outer:
		return field
	case field:
		return outer
	}
	return outer + "." + field
}

// read reads a whole scenario: the lots first, since crowds name some of them.
func (p *parser) read(top *yaml.Node) {
	var lots, crowds *yaml.Node
	p.fields(top, "", setters{
		"about":   func(n *yaml.Node, f string) { p.scenario.About = p.text(n, f) },
		"seed":    func(n *yaml.Node, f string) { p.scenario.Seed = uint64(p.number(n, f, 0, 1<<53)) },
		"lots":    func(n *yaml.Node, _ string) { lots = n },
		"crowds":  func(n *yaml.Node, _ string) { crowds = n },
		"gateway": p.gateway,
	})
	if lots == nil {
		p.problem(top, "lots", "name a seed file, or list them as dropctl seed reads them", "it is missing")
	} else {
		p.readLots(top, lots)
	}
	if crowds == nil {
		p.problem(top, "crowds", "see how one is written: dropctl simulate --print truffle-lot", "it is missing")
	} else {
		p.readCrowds(crowds)
	}
}

// readLots reads the lots that are for sale, from the scenario or from the file it names.
func (p *parser) readLots(top, n *yaml.Node) {
	var file string
	var text []byte
	switch {
	case n.Kind == yaml.SequenceNode:
		text = p.onlyLots(top)
	case n.Kind == yaml.ScalarNode && n.Value != "":
		file = n.Value
		var err error
		if text, err = p.src.Read(file); err != nil {
			p.problem(n, "lots", "a path is taken from where the scenario is", "%s", fault.As(err).Error())
			return
		}
	default:
		p.problem(n, "lots", "write lots: lots.csv, or a list: - {lot: truffle-99, stock: 250}", "a file or a list is expected here")
		return
	}
	lots, problems := p.src.Lots(file, text)
	for _, q := range problems {
		q.Field = within("lots", q.Field)
		if file != "" {
			q.Message = fmt.Sprintf("%s:%d:%d: %s", file, q.Line, q.Column, q.Message)
			q.Line, q.Column = n.Line, n.Column
		}
		p.problems = append(p.problems, q)
	}
	if len(lots) == 0 && len(problems) == 0 {
		p.problem(n, "lots", "give at least one lot", "there is no lot in it")
	}
	for _, d := range lots {
		p.scenario.Lots = append(p.scenario.Lots, d.WithDefaults())
	}
}

// onlyLots returns the text with all lines emptied but those of the lots, which so keep their numbers.
func (p *parser) onlyLots(top *yaml.Node) []byte {
	from, to := 0, 1<<30
	for i := 0; i < len(top.Content); i += 2 {
		switch line := top.Content[i].Line; {
		case top.Content[i].Value == "lots" && from == 0:
			from = line
		case from > 0:
			to = min(to, line)
		}
	}
	lines := strings.SplitAfter(string(p.src.Text), "\n")
	for i := range lines {
		if i+1 < from || i+1 >= to {
			lines[i] = "\n"
		}
	}
	return []byte(strings.Join(lines, ""))
}

var crowdName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$`)

func (p *parser) readCrowds(n *yaml.Node) {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 || len(n.Content) > 2*maxCrowds {
		p.problem(n, "crowds", "give each a name of its own, and its fields below", "1 to %d crowds are expected here", maxCrowds)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, field := n.Content[i], within("crowds", n.Content[i].Value)
		switch {
		case !crowdName.MatchString(name.Value):
			p.problem(name, "crowds", "use letters, digits, - and _, at most 48", "%.60q is no name for a crowd", name.Value)
		case seen[name.Value]:
			p.problem(name, field, "keep one of them", "it stands twice")
		default:
			seen[name.Value] = true
			p.readCrowd(name.Value, n.Content[i+1], field)
		}
	}
	if users := p.scenario.Users(); users > MaxUsers {
		p.problem(n, "crowds", "take some away", "%d users are more than %d", users, MaxUsers)
	}
}

func (p *parser) readCrowd(name string, n *yaml.Node, field string) {
	c := newCrowd(name)
	span := func(to *Range[time.Duration]) func(*yaml.Node, string) {
		return func(n *yaml.Node, f string) { *to = p.span(n, f, 0) }
	}
	share := func(to *float64) func(*yaml.Node, string) {
		return func(n *yaml.Node, f string) { *to = p.share(n, f) }
	}
	count := func(to *Range[int64], least, most int64) func(*yaml.Node, string) {
		return func(n *yaml.Node, f string) { *to = p.count(n, f, least, most) }
	}
	before := len(p.problems)
	p.fields(n, field, setters{
		"users":         func(n *yaml.Node, f string) { c.Users = int(p.number(n, f, 1, MaxUsers)) },
		"arrive":        func(n *yaml.Node, f string) { c.Arrive = p.arrival(n, f) },
		"visits":        count(&c.Visits, 1, maxVisits),
		"tabs":          func(n *yaml.Node, f string) { c.Tabs = p.number(n, f, 1, maxTabs) },
		"wants":         func(n *yaml.Node, f string) { c.Wants = weights(p, n, f, p.lotNamed) },
		"qty":           func(n *yaml.Node, f string) { c.Qty = weights(p, n, f, p.units) },
		"patience":      span(&c.Patience),
		"insist":        count(&c.Insist, 0, maxVisits),
		"pause":         span(&c.Pause),
		"ignore_limits": func(n *yaml.Node, f string) { c.Fresh = p.yes(n, f) },
		"double_click":  share(&c.DoubleClick),
		"reload":        share(&c.Reload),
		"mistake":       share(&c.Mistake),
		"own_hold":      share(&c.OwnHold),
		"hold":          func(n *yaml.Node, f string) { c.Hold = p.span(n, f, drop.MinHold) },
		"think":         span(&c.Think),
		"ends":          func(n *yaml.Node, f string) { c.Endings = weights(p, n, f, p.ending) },
		"payment":       func(n *yaml.Node, f string) { p.payment(n, f, &c) },
		"pay_twice":     share(&c.PayTwice),
		"regret":        share(&c.Regret),
		"refund":        share(&c.Refund),
		"refund_after":  span(&c.RefundIn),
		"satisfied":     share(&c.Satisfied),
	})
	if c.Users == 0 && c.Arrive.Curve == Replay {
		c.Users = min(len(c.Arrive.Times), MaxUsers)
	}
	if c.Users == 0 && len(p.problems) == before { // or what was to say so is wrong itself
		p.problem(n, within(field, "users"), "say how many come", "it is missing")
	}
	p.checkHolds(n, field, c)
	p.scenario.Crowds = append(p.scenario.Crowds, c)
}

// checkHolds finds holds that a lot would refuse as too long: that would be a mistake of the scenario, not of its people.
func (p *parser) checkHolds(n *yaml.Node, field string, c Crowd) {
	if c.OwnHold == 0 {
		return
	}
	for _, l := range p.scenario.Lots {
		if c.Hold.To > l.MaxHold {
			p.problem(n, within(field, "hold"), fmt.Sprintf("use at most %s, or give the lot a longer max_hold", l.MaxHold), "%s is longer than max_hold of lot %s", c.Hold.To, l.Lot)
			return
		}
	}
}

func (p *parser) payment(n *yaml.Node, field string, c *Crowd) {
	p.fields(n, field, setters{
		"takes":      func(n *yaml.Node, f string) { c.Payment = p.spans(n, f) },
		"declined":   func(n *yaml.Node, f string) { c.Declined = p.share(n, f) },
		"attempts":   func(n *yaml.Node, f string) { c.Attempts = p.number(n, f, 1, 100) },
		"unanswered": func(n *yaml.Node, f string) { c.Unanswered = p.share(n, f) },
		"late":       func(n *yaml.Node, f string) { c.PaidLate = p.share(n, f) },
	})
}

func (p *parser) gateway(n *yaml.Node, field string) {
	g := &Gateway{Answers: always(Range[time.Duration]{}), Decides: Range[time.Duration]{time.Second, 3 * time.Second}}
	p.scenario.Gateway = g
	p.fields(n, field, setters{
		"answers":        func(n *yaml.Node, f string) { g.Answers = p.spans(n, f) },
		"timeout":        func(n *yaml.Node, f string) { g.Timeout = p.span(n, f, time.Millisecond).To },
		"declined":       func(n *yaml.Node, f string) { g.Declined = p.share(n, f) },
		"silent":         func(n *yaml.Node, f string) { g.Silent = p.sometimes(n, f) },
		"undecided":      func(n *yaml.Node, f string) { g.Undecided = p.share(n, f) },
		"decides":        func(n *yaml.Node, f string) { g.Decides = p.span(n, f, 0) },
		"refund_refused": func(n *yaml.Node, f string) { g.RefundRefused = p.sometimes(n, f) },
	})
}

// sometimes is a share of what is tried until it succeeds.
func (p *parser) sometimes(n *yaml.Node, field string) float64 {
	const most = 0.9
	x := p.share(n, field)
	if x > most {
		p.problem(n, field, "use at most 90%", "what is never answered otherwise is asked for ever")
		return 0
	}
	return x
}
