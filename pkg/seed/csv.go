package seed

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"slices"

	"github.com/dropctl/dropctl/pkg/fault"
)

// readCSV reads a header line and one lot a line (RFC 4180, commas).
func (b *reader) readCSV() {
	r := csv.NewReader(bytes.NewReader(b.data))
	r.FieldsPerRecord = -1 // counted here, so that one short line does not hide the problems after it
	r.ReuseRecord = true
	header, ok := b.record(r)
	if !ok {
		return
	}
	columns, ok := b.header(r, slices.Clone(header))
	for ok && !b.full() {
		var record []string
		if record, ok = b.record(r); ok {
			b.csvRow(r, columns, record)
		}
	}
}

// record reads the next record; false at the end and after a syntax error, behind which nothing is certain.
func (b *reader) record(r *csv.Reader) ([]string, bool) {
	record, err := r.Read()
	if err == nil {
		return record, true
	}
	var bad *csv.ParseError
	switch {
	case errors.As(err, &bad):
		b.problem(b.csvPlace(bad.Line, bad.Column), fault.New(fault.Invalid, "the CSV is malformed: %s", bad.Err).
			WithHint(`put a cell that contains a comma, a quote or a line break in quotes, and double the quotes within: "a ""b"" c"`))
	case !errors.Is(err, io.EOF):
		b.problem(place{1, 1}, fault.Wrap(fault.Invalid, err, "the CSV cannot be read"))
	}
	return nil, false
}

func (b *reader) csvPlace(line, column int) place {
	return b.at(b.starts[min(line, len(b.starts))-1] + column - 1)
}

// csvColumn is what one column of the file holds.
type csvColumn struct {
	field field
	used  bool
}

// header reads the first line. With a problem in it no other line can be understood.
func (b *reader) header(r *csv.Reader, names []string) ([]csvColumn, bool) {
	columns := make([]csvColumn, len(names))
	var found [len(fieldNames)]bool
	for i, name := range names {
		at := b.csvPlace(r.FieldPos(i))
		f, known, err := b.in.Map.field("column", name)
		switch {
		case err != nil:
			b.problem(at, err)
		case known && found[f]:
			b.problem(at, fault.New(fault.Invalid, "the column for %s stands twice", f).WithField(f.String()).WithHint("keep one of them"))
		case known:
			columns[i], found[f] = csvColumn{f, true}, true
		}
	}
	for _, f := range []field{fieldLot, fieldStock} {
		if !found[f] && len(b.problems) == 0 {
			b.problem(place{1, 1}, fault.New(fault.Invalid, "there is no column %s", quote(b.in.Map.columnOf(f))).WithField(f.String()).
				WithHint("the first line names the columns; lot and stock are needed, others can be mapped: --map lot=SKU,stock=Available"))
		}
	}
	for _, name := range b.in.Map.missing(names) {
		if f := b.in.Map.columns[name]; !f.required() {
			b.problem(place{1, 1}, fault.New(fault.Invalid, "there is no column %s", quote(name)).WithField(f.String()).WithHint("correct --map"))
		}
	}
	return columns, len(b.problems) == 0
}

func (b *reader) csvRow(r *csv.Reader, columns []csvColumn, record []string) {
	at := b.csvPlace(r.FieldPos(0))
	if len(record) != len(columns) {
		last := min(len(record), len(columns)+1) - 1
		b.problem(b.csvPlace(r.FieldPos(last)), fault.New(fault.Invalid, "the line has %d cells, the header has %d", len(record), len(columns)).
			WithHint("give every line as many cells as the header; an empty cell means the default"))
		return
	}
	var cells []cell
	for i, column := range columns {
		if column.used {
			cells = append(cells, cell{field: column.field, text: record[i], at: b.csvPlace(r.FieldPos(i))})
		}
	}
	b.add(at, cells, len(b.problems))
}
