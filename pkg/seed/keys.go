package seed

import "github.com/dropctl/dropctl/pkg/fault"

// keys gathers the members of one JSON or YAML object.
type keys struct {
	b      *reader
	seen   map[string]place
	cells  []cell
	broken bool // a problem was reported: the record cannot be kept
}

func (b *reader) keys() *keys { return &keys{b: b, seen: map[string]place{}} }

// add takes one member. A value that is not plain is a list, an object or a truth value.
func (k *keys) add(name string, at place, text string, valueAt place, plain bool) {
	f, known, err := k.b.in.Map.field(name)
	if first, twice := k.seen[name]; twice {
		err = fault.New(fault.Invalid, "%s stands twice in one lot, first in line %d", quote(name), first.line).WithField(short(name)).WithHint("keep one of them")
	}
	k.seen[name] = at
	if err == nil && known && !plain {
		at, err = valueAt, fault.New(fault.Invalid, "%s is neither text nor a number", quote(name)).WithField(f.String()).WithHint("write it as text, such as \"5m\", or as a whole number")
	}
	if err != nil {
		k.broken = true
		k.b.problem(at, err)
		return
	}
	if known {
		k.cells = append(k.cells, cell{f, text, valueAt})
	}
}

// done ends the object: a lot, or the wrapper around the list of lots.
func (k *keys) done(at place, wrapper bool) {
	switch {
	case wrapper && len(k.seen) > 0:
		k.b.problem(at, fault.New(fault.Invalid, "the object around the lots has other members").WithField("lots").WithHint("keep lots alone, or write the list without an object"))
	case !wrapper && !k.broken:
		k.b.add(at, k.cells)
	}
}
