package seed

import "github.com/dropctl/dropctl/pkg/fault"

// value is what a member of a JSON or YAML object holds.
type value struct {
	text string
	kind kind
}

// kind says how a value is written.
type kind int

const (
	plain  kind = iota
	quoted      // text in quotes: a number in quotes is text, and stock is not a thing to guess
	nested      // a list, an object or a truth value
)

// keys gathers the members of one JSON or YAML object.
type keys struct {
	b      *reader
	seen   map[string]place
	cells  []cell
	before int // problems that are not this object's
}

func (b *reader) keys() *keys {
	return &keys{b: b, seen: map[string]place{}, before: len(b.problems)}
}

// add takes one member. A problem with it does not hide those of the others.
func (k *keys) add(name string, at place, v value, valueAt place) {
	f, known, err := k.b.in.Map.field("field", name)
	first, twice := k.seen[name]
	switch {
	case twice:
		err = fault.New(fault.Invalid, "%s stands twice in one lot, first in line %d", quote(name), first.line).WithField(short(name)).WithHint("keep one of them")
	case known && v.kind == nested:
		at, err = valueAt, fault.New(fault.Invalid, "%s is neither text nor a number", quote(name)).WithField(f.String()).WithHint("write it as text, such as \"5m\", or as a whole number")
	case known && v.kind == quoted && v.text != "" && f.counts():
		at, err = valueAt, fault.New(fault.Invalid, "%s is text, not a number", quote(name)).WithField(f.String()).WithHint("write the number without quotes, such as 250")
	}
	k.seen[name] = at
	if err != nil {
		k.b.problem(at, err)
	}
	if known && !twice {
		k.cells = append(k.cells, cell{f, v.text, valueAt, err != nil})
	}
}

// done ends the object: a lot, or the wrapper around the list of lots.
func (k *keys) done(at place, wrapper bool) {
	switch {
	case wrapper && len(k.seen) > 0:
		k.b.problem(at, fault.New(fault.Invalid, "the object around the lots has other members").WithField("lots").WithHint("keep lots alone, or write the list without an object"))
	case !wrapper:
		k.b.add(at, k.cells, k.before)
	}
}
