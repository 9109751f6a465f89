package render

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/term"
)

// table prints a slice as rows and one struct as lines of header and value.
func (p *Printer) table(v reflect.Value, s shape) (string, error) {
	if v.Kind() == reflect.Slice {
		return p.rows(v, s), nil
	}
	return p.record(v, s)
}

func (p *Printer) rows(v reflect.Value, all shape) string {
	var s shape
	for _, c := range all {
		saysNothing := c.ifSet && p.o.Stream.TTY && isUnset(v, c)
		if c.header != "" && (!c.wide || p.o.Format == Wide) && !saysNothing {
			s = append(s, c)
		}
	}
	if len(s) == 0 {
		return ""
	}
	var lines [][]string
	for i := range v.Len() {
		element := reflect.Indirect(v.Index(i))
		line := make([]string, len(s))
		for j, c := range s {
			line[j] = p.cell(element.FieldByIndex(c.index))
		}
		lines = append(lines, line)
	}
	var headers []string
	for _, c := range s {
		headers = append(headers, c.header)
	}
	return p.grid(headers, lines, s)
}

// isUnset reports whether a column says nothing in any row of a list.
func isUnset(list reflect.Value, c column) bool {
	for i := range list.Len() {
		if !isEmpty(reflect.Indirect(list.Index(i)).FieldByIndex(c.index)) {
			return false
		}
	}
	return true
}

// record prints one view downwards, where there is room for the wide columns too: its plain fields
// first, then what has parts of its own, each under its title. What is empty is left out, unless it was
// asked for by name.
func (p *Printer) record(v reflect.Value, s shape) (string, error) {
	var lines [][]string
	var below strings.Builder
	for _, c := range s {
		if c.header == "" {
			continue
		}
		field := v.FieldByIndex(c.index)
		block, isBlock, err := p.block(field)
		if err != nil {
			return "", err
		}
		switch {
		case block != "":
			fmt.Fprintf(&below, "\n%s\n%s", p.o.Stream.Paint(term.Strong, c.header), block)
		case isBlock:
		case len(p.o.Fields) > 0, p.cellText(field) != "" && (!c.ifSet || !isEmpty(field)):
			lines = append(lines, []string{c.header, p.cell(field)})
		}
	}
	return p.grid(nil, lines, nil) + below.String(), nil
}

// block prints a field that has parts: a list of views as a table, a map or struct as lines of name and value.
func (p *Printer) block(field reflect.Value) (text string, isBlock bool, err error) {
	if isList(field.Type()) {
		if field.Len() == 0 {
			return "", true, nil
		}
		inner, err := shapeOf(field)
		if err != nil {
			return "", true, err
		}
		return p.rows(field, inner), true, nil
	}
	if _, own := field.Interface().(Celler); own {
		return "", false, nil
	}
	doc, err := value(field)
	if err != nil {
		return "", false, err
	}
	parts, ok := doc.(object)
	if !ok {
		return "", false, nil
	}
	var lines [][]string
	for _, m := range parts {
		if text := p.cellText(reflect.ValueOf(&m.value).Elem()); text != "" {
			lines = append(lines, []string{m.name, text})
		}
	}
	return p.grid(nil, lines, nil), true, nil
}

// isList reports whether a field is a list of views, to be printed as a table of its own.
func isList(t reflect.Type) bool {
	if t.Kind() != reflect.Slice {
		return false
	}
	t = t.Elem()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[time.Time]()
}

// grid lays out cells: aligned for a terminal, separated by tabs for anything else. Without headers and
// shape the first column holds the labels of the second.
func (p *Printer) grid(headers []string, lines [][]string, s shape) string {
	if p.o.NoHeaders {
		headers = nil
	}
	if len(lines) == 0 && headers == nil {
		return ""
	}
	if p.o.Stream.TTY {
		return newLayout(p.o.Stream, headers, lines, s).String()
	}
	var b strings.Builder
	if headers != nil {
		b.WriteString(strings.Join(headers, "\t") + "\n")
	}
	for _, line := range lines {
		b.WriteString(strings.Join(line, "\t") + "\n")
	}
	return b.String()
}

// Celler is a value that has a text for people besides its value for programs.
type Celler interface {
	Cell() string
}

// cell is one value as a person reads it.
func (p *Printer) cell(v reflect.Value) string {
	text := p.cellText(v)
	if text == "" && p.o.Stream.TTY {
		return "-"
	}
	return text
}

func (p *Printer) cellText(v reflect.Value) string {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case Celler:
		return Clean(x.Cell())
	case time.Time:
		if x.IsZero() {
			return ""
		}
		return x.UTC().Format(time.RFC3339)
	case time.Duration:
		return fault.Duration(x)
	}
	if v.Kind() == reflect.Slice {
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = p.cellText(v.Index(i))
		}
		return strings.Join(parts, ", ")
	}
	doc, err := value(v)
	if err != nil {
		return ""
	}
	switch x := doc.(type) {
	case nil:
		return ""
	case string:
		return Clean(x)
	case float64:
		return digits(x)
	case object:
		parts := make([]string, len(x))
		for i, m := range x {
			parts[i] = fmt.Sprintf("%s=%v", m.name, m.value)
		}
		return Clean(strings.Join(parts, " "))
	}
	return fmt.Sprint(doc)
}

// digits writes a number for people: whole where it is large, else with four digits that count. JSON has all of them.
func digits(x float64) string {
	if math.Abs(x) >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	short, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	return strconv.FormatFloat(short, 'f', -1, 64)
}

// Clean makes text safe for a terminal and a line: control characters, which could move the cursor or
// break a row, become a question mark in a box.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control) || r == '\u2028' || r == '\u2029' {
			return '\uFFFD'
		}
		return r
	}, text)
}

// names prints what -o name asks for.
func names(v reflect.Value, s shape) (string, error) {
	name, err := s.nameColumn()
	if err != nil {
		return "", err
	}
	if v.Kind() != reflect.Slice {
		return plainName(v.FieldByIndex(name.index)), nil
	}
	var b strings.Builder
	for i := range v.Len() {
		b.WriteString(plainName(reflect.Indirect(v.Index(i)).FieldByIndex(name.index)))
	}
	return b.String(), nil
}

func plainName(v reflect.Value) string { return (&Printer{}).cellText(v) + "\n" }
