package render

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/lipgloss/table"

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
		if c.header != "" && (!c.wide || p.o.Format == Wide) {
			s = append(s, c)
		}
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

// record prints one view downwards, where there is room for the wide columns too: its plain fields
// first, then each list among them under its title.
func (p *Printer) record(v reflect.Value, s shape) (string, error) {
	var lines [][]string
	var below strings.Builder
	for _, c := range s {
		if c.header == "" {
			continue
		}
		field := v.FieldByIndex(c.index)
		if !isList(c.typ) {
			lines = append(lines, []string{c.header, p.cell(field)})
			continue
		}
		if field.Len() == 0 {
			continue
		}
		inner, err := shapeOf(field)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&below, "\n%s\n%s", p.o.Stream.Paint(term.Strong, c.header), p.rows(field, inner))
	}
	return p.grid(nil, lines, nil) + below.String(), nil
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

// grid lays out cells: aligned for a terminal, separated by tabs for anything else.
func (p *Printer) grid(headers []string, lines [][]string, s shape) string {
	if p.o.NoHeaders {
		headers = nil
	}
	if len(lines) == 0 && headers == nil {
		return ""
	}
	if !p.o.Stream.TTY {
		var b strings.Builder
		if headers != nil {
			b.WriteString(strings.Join(headers, "\t") + "\n")
		}
		for _, line := range lines {
			b.WriteString(strings.Join(line, "\t") + "\n")
		}
		return b.String()
	}
	t := table.New().Rows(lines...).Border(lipgloss.HiddenBorder()).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).
		BorderHeader(false).BorderColumn(false).BorderRow(false).
		StyleFunc(func(row, col int) lipgloss.Style { return p.style(row, col, s) })
	if headers != nil {
		t = t.Headers(headers...)
	}
	return trimLines(t.Render())
}

func (p *Printer) style(row, col int, s shape) lipgloss.Style {
	tone := term.Plain
	if row == table.HeaderRow || (s == nil && col == 0) {
		tone = term.Strong
	}
	style := p.o.Stream.Style(tone).PaddingRight(2)
	if col < len(s) && isNumber(s[col].typ) {
		style = style.Align(lipgloss.Right)
	}
	return style
}

func isNumber(t reflect.Type) bool {
	return t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64 && t != reflect.TypeFor[time.Duration]()
}

// trimLines drops the padding of last columns, which would wrap on a narrow terminal, and empty lines
// at the end.
func trimLines(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
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
	case time.Time:
		if x.IsZero() {
			return ""
		}
		return x.UTC().Format(time.RFC3339)
	case time.Duration:
		return Duration(x)
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
		return strconv.FormatFloat(x, 'f', -1, 64)
	case object:
		parts := make([]string, len(x))
		for i, m := range x {
			parts[i] = fmt.Sprintf("%s=%v", m.name, m.value)
		}
		return Clean(strings.Join(parts, " "))
	}
	return fmt.Sprint(doc)
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

// Duration writes a duration without empty units: 5m, not 5m0s. Above a second it is cut to milliseconds.
func Duration(d time.Duration) string {
	if d >= time.Second || d <= -time.Second {
		d = d.Round(time.Millisecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// names prints what -o name asks for.
func names(v reflect.Value, s shape) (string, error) {
	var name *column
	for i := range s {
		if s[i].isName {
			name = &s[i]
		}
	}
	if name == nil {
		return "", fault.New(fault.Usage, "this output has no names to list").WithField("output").
			WithHint("use another format, such as -o json")
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
