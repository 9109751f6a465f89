package seed

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/fault"
)

// readYAML reads lots from every document of a file: a list of lots, `lots:` with such a list, or one lot.
func (b *reader) readYAML() {
	documents := yaml.NewDecoder(bytes.NewReader(b.data))
	for !b.full() {
		var document yaml.Node
		if err := documents.Decode(&document); err != nil {
			if !errors.Is(err, io.EOF) {
				b.malformedYAML(err)
			}
			return
		}
		for _, n := range document.Content {
			b.yamlDocument(n)
		}
	}
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// malformedYAML reports a syntax error at the first character of its line: the parser tells no column.
func (b *reader) malformedYAML(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	offset := 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1])
		text = text[len(m[0]):]
		offset = skip(b.data, b.starts[max(1, min(line, len(b.starts)))-1], " \t")
	}
	b.problem(b.at(offset), fault.New(fault.Invalid, "the YAML is malformed: %s", text).WithHint("write a list: - {lot: truffle-99, stock: 250}"))
}

func yamlPlace(n *yaml.Node) place { return place{n.Line, n.Column} }

func (b *reader) yamlDocument(n *yaml.Node) {
	switch {
	case n.Kind == yaml.MappingNode:
		b.yamlLot(n, true)
	case n.Kind == yaml.SequenceNode:
		b.yamlList(n)
	case n.ShortTag() != "!!null":
		b.notALot(n)
	}
}

func (b *reader) yamlList(n *yaml.Node) {
	for _, element := range n.Content {
		if b.full() {
			return
		}
		if element.Kind == yaml.MappingNode {
			b.yamlLot(element, false)
		} else {
			b.notALot(element)
		}
	}
}

func (b *reader) notALot(n *yaml.Node) {
	b.problem(yamlPlace(n), fault.New(fault.Invalid, "a lot is expected here").WithHint("write a mapping: {lot: truffle-99, stock: 250}; aliases are not read"))
}

// yamlLot reads one lot, or at the top of a document also `lots:`.
func (b *reader) yamlLot(n *yaml.Node, top bool) {
	keys := b.keys()
	wrapper := false
	for i := 0; i+1 < len(n.Content) && !b.full(); i += 2 {
		name, node := n.Content[i], n.Content[i+1]
		if top && name.Value == "lots" && node.Kind == yaml.SequenceNode && !wrapper {
			wrapper = true
			b.yamlList(node)
			continue
		}
		keys.add(name.Value, yamlPlace(name), yamlValue(node), yamlPlace(node))
	}
	keys.done(yamlPlace(n), wrapper)
}

// yamlValue returns a value as it is written, so that an id such as 007 stays what it is; null is an empty cell.
func yamlValue(n *yaml.Node) value {
	if n.Kind != yaml.ScalarNode {
		return value{kind: nested}
	}
	switch n.ShortTag() {
	case "!!null":
		return value{kind: plain}
	case "!!str":
		if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			return value{n.Value, quoted}
		}
		return value{n.Value, plain}
	case "!!int", "!!float", "!!bool", "!!timestamp":
		return value{n.Value, plain}
	}
	return value{kind: nested}
}
