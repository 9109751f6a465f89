package render

import (
	"slices"
	"strings"

	"github.com/charmbracelet/lipgloss"

	"github.com/dropctl/dropctl/pkg/term"
)

const (
	columnGap = 2  // blanks between columns
	longText  = 24 // up to this a column is neither wrapped nor moved, and nothing is wrapped to less
)

// layout is a table for a terminal. It keeps to the terminal's width if it can: a last column of long text is
// wrapped; where that is not enough, columns of long text go below their rows, from the right. Words stay whole.
type layout struct {
	stream  term.Stream
	headers []string
	lines   [][]string
	widths  []int
	text    []bool // columns of long text, which may be wrapped or go below; never the first
	right   []bool // columns of numbers
	inRow   []int  // the columns that are printed in the row, in order
	below   []int  // the others
	labels  bool   // the first column holds labels
}

func newLayout(stream term.Stream, headers []string, lines [][]string, s shape) *layout {
	l := &layout{stream: stream, headers: headers, lines: lines, labels: s == nil}
	columns := 2 // label and value
	if s != nil {
		columns = len(s)
	}
	for i := range columns {
		number := s != nil && isNumber(s[i].typ)
		l.widths, l.right = append(l.widths, l.widest(i)), append(l.right, number)
		l.text = append(l.text, i > 0 && !number && l.widths[i] > longText)
		l.inRow = append(l.inRow, i)
	}
	for l.tooWide() {
		l.moveBelow()
	}
	return l
}

func (l *layout) widest(column int) int {
	width := 0
	if l.headers != nil {
		width = lipgloss.Width(l.headers[column])
	}
	for _, line := range l.lines {
		width = max(width, lipgloss.Width(line[column]))
	}
	return width
}

// tooWide reports whether the row neither fits nor can be made to fit by wrapping its last column, while
// there is a column that may still go below.
func (l *layout) tooWide() bool {
	last := l.inRow[len(l.inRow)-1]
	if l.start(last)+l.widths[last] <= l.stream.Width || l.text[last] && l.room(last) >= longText {
		return false
	}
	return slices.ContainsFunc(l.inRow, func(c int) bool { return l.text[c] })
}

// moveBelow takes the rightmost column of long text out of the row.
func (l *layout) moveBelow() {
	for i, c := range slices.Backward(l.inRow) {
		if l.text[c] {
			l.inRow = slices.Delete(l.inRow, i, i+1)
			l.below = slices.Insert(l.below, 0, c)
			return
		}
	}
}

// start is where a column of the row begins; room is what the terminal has from there on.
func (l *layout) start(column int) int {
	at := 0
	for _, c := range l.inRow {
		if c == column {
			break
		}
		at += l.widths[c] + columnGap
	}
	return at
}

func (l *layout) room(column int) int { return l.stream.Width - l.start(column) }

func (l *layout) String() string {
	var b strings.Builder
	if l.headers != nil {
		l.row(&b, l.headers, func(int) term.Tone { return term.Strong })
	}
	for _, line := range l.lines {
		l.row(&b, line, func(column int) term.Tone {
			if l.labels && column == 0 {
				return term.Strong
			}
			return term.Plain
		})
		l.notes(&b, line)
	}
	return b.String()
}

func (l *layout) row(b *strings.Builder, line []string, tone func(column int) term.Tone) {
	at := 0 // where the terminal's cursor is
	for _, c := range l.inRow {
		cell, start := line[c], l.start(c)
		last := c == l.inRow[len(l.inRow)-1]
		if last && l.text[c] {
			cell = wrapped(cell, l.room(c), start)
		}
		if l.right[c] {
			start += l.widths[c] - lipgloss.Width(cell)
		}
		b.WriteString(strings.Repeat(" ", start-at) + l.stream.Paint(tone(c), cell))
		at = start + lipgloss.Width(cell)
	}
	b.WriteByte('\n')
}

// notes prints below a row what does not fit into it.
func (l *layout) notes(b *strings.Builder, line []string) {
	for _, c := range l.below {
		if line[c] == "-" || line[c] == "" {
			continue
		}
		label := "  "
		if l.headers != nil {
			label += l.headers[c] + ": "
		}
		b.WriteString(label + wrapped(line[c], l.stream.Width-len(label), len(label)) + "\n")
	}
}

// wrapped breaks text between words into lines of at most width columns; all but the first are indented.
func wrapped(text string, width, indent int) string {
	if lipgloss.Width(text) <= width {
		return text
	}
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		size := lipgloss.Width(word)
		switch {
		case column == 0:
		case column+1+size > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += size
	}
	return b.String()
}
