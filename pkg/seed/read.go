package seed

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Bounds of a file.
const (
	MaxBytes = 64 << 20
	MaxLots  = 100_000
)

// Format is the notation of a file.
type Format string

// The formats. JSON also reads one object a line.
const (
	CSV  Format = "csv"
	JSON Format = "json"
	YAML Format = "yaml"
)

// FormatOf returns the format that was asked for, or else the one the path's extension tells.
func FormatOf(path, asked string) (Format, error) {
	switch asked {
	case "csv", "json", "yaml":
		return Format(asked), nil
	case "":
	default:
		return "", fault.New(fault.Usage, "unknown file format %s", quote(asked)).WithField("format").WithHint("use csv, json or yaml")
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".csv":
		return CSV, nil
	case ".json", ".jsonl", ".ndjson":
		return JSON, nil
	case ".yaml", ".yml":
		return YAML, nil
	}
	return "", fault.New(fault.Usage, "the format of %s cannot be told from its name", quote(path)).WithField("format").
		WithHint("name it: --format csv, json or yaml")
}

// Input says what is read.
type Input struct {
	Name   string // of the file, for messages
	Format Format
	Map    Mapping
}

// Read reads every lot of a file. It collects the problems of the whole file, up to fault.MostProblems, and
// returns either all lots or none: the error has code invalid and carries the list, see fault.ProblemsOf.
func Read(r io.Reader, in Input) ([]Row, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fault.Wrap(fault.Usage, err, "%s could not be read", in.Name)
	}
	if len(data) > MaxBytes {
		return nil, fault.New(fault.Invalid, "%s is larger than %d MiB", in.Name, MaxBytes>>20).WithHint("split it and seed the parts one after another")
	}
	b := newReader(in, bytes.TrimPrefix(data, []byte("\ufeff")))
	if !b.checkEncoding() {
		return nil, b.err()
	}
	switch in.Format {
	case CSV:
		b.readCSV()
	case JSON:
		b.readJSON()
	case YAML:
		b.readYAML()
	default:
		return nil, fault.New(fault.Usage, "unknown file format %s", quote(string(in.Format))).WithField("format").WithHint("use csv, json or yaml")
	}
	if len(b.rows) == 0 && len(b.problems) == 0 {
		b.problem(place{1, 1}, fault.New(fault.Invalid, "there is no lot in it").WithHint("give at least one lot"))
	}
	if err := b.err(); err != nil {
		return nil, err
	}
	return b.rows, nil
}

// Flags reads one lot from flags: texts by field name, as in a file.
func Flags(texts map[string]string) (Row, error) {
	b := newReader(Input{}, nil)
	var cells []cell
	for f, name := range fieldNames {
		if text, given := texts[name]; given {
			cells = append(cells, cell{field: field(f), text: text})
		}
	}
	b.add(place{}, cells, 0)
	if err := b.err(); err != nil {
		return Row{}, err
	}
	return b.rows[0], nil
}

// place is where something stands in a file; zero for flags.
type place struct{ line, column int }

// cell is the text of one field and where it stands.
type cell struct {
	field  field
	text   string
	at     place
	broken bool // a problem of it was reported already
}

// reader turns records of any format into rows and collects what is wrong.
type reader struct {
	in       Input
	data     []byte
	starts   []int // offset of each line
	offset   int   // the newest one that was turned into a place
	column   int   // its column
	clock    zones
	rows     []Row
	seen     map[drop.LotID]place // where each lot is named
	problems []fault.Problem
}

func newReader(in Input, data []byte) *reader {
	b := &reader{in: in, data: data, starts: []int{0}, column: 1, seen: map[drop.LotID]place{}}
	for i, c := range data {
		if c == '\n' {
			b.starts = append(b.starts, i+1)
		}
	}
	return b
}

// at turns an offset into the data into a place. It counts on from the last one where it can, because a
// whole JSON file may be one line.
func (b *reader) at(offset int) place {
	offset = max(0, min(offset, len(b.data)))
	line := sort.SearchInts(b.starts, offset+1)
	if start := b.starts[line-1]; b.offset < start || b.offset > offset {
		b.offset, b.column = start, 1
	}
	b.column += utf8.RuneCount(b.data[b.offset:offset])
	b.offset = offset
	return place{line, b.column}
}

func (b *reader) checkEncoding() bool {
	if utf8.Valid(b.data) {
		return true
	}
	offset := 0
	for {
		r, size := utf8.DecodeRune(b.data[offset:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		offset += size
	}
	b.problem(b.at(offset), fault.New(fault.Invalid, "the file is not UTF-8").WithHint("save it as UTF-8; spreadsheets call that CSV UTF-8"))
	return false
}

// full reports whether reading on is of no use.
func (b *reader) full() bool { return len(b.problems) >= fault.MostProblems || len(b.seen) > MaxLots }

// problem keeps an error with its place, as long as there is room.
func (b *reader) problem(at place, err error) {
	if len(b.problems) >= fault.MostProblems {
		return
	}
	e := fault.As(err)
	b.problems = append(b.problems, fault.Problem{Line: at.line, Column: at.column, Field: e.Field, Message: e.Error(), Hint: fault.HintOf(e)})
}

// add takes one record, before which there were so many problems. A record with a problem is not kept, but is looked
// at to its end.
func (b *reader) add(at place, cells []cell, before int) {
	row := Row{Line: at.line}
	places := map[field]place{}
	for _, c := range cells {
		places[c.field] = c.at
		if c.broken {
			row.given[c.field] = true
			continue
		}
		if err := row.set(c.field, c.text, &b.clock); err != nil {
			b.problem(c.at, err)
		}
	}
	for _, f := range []field{fieldLot, fieldStock} {
		if !row.given[f] {
			b.problem(at, fault.New(fault.Invalid, "%s is missing", f).WithField(f.String()).WithHint("give every lot an id and a stock"))
		}
	}
	if len(b.problems) == before {
		b.checkWhole(at, row, places)
	}
	id := row.Definition.Lot
	if id == "" || b.full() {
		return
	}
	here := places[fieldLot]
	if first, twice := b.seen[id]; twice {
		where := fmt.Sprintf("in lines %d and %d", first.line, here.line)
		if first.line == here.line {
			where = fmt.Sprintf("twice in line %d, in columns %d and %d", here.line, first.column, here.column)
		}
		b.problem(here, fault.New(fault.Invalid, "lot %s stands %s", id, where).
			WithField("lot").WithHint("keep one of them"))
		return
	}
	b.seen[id] = here
	if len(b.problems) == before {
		b.rows = append(b.rows, row)
	}
	if len(b.seen) > MaxLots {
		b.problem(at, fault.New(fault.Invalid, "there are more than %d lots", MaxLots).WithHint("split the file and seed the parts one after another"))
	}
}

// checkWhole checks how the fields of a row fit together.
func (b *reader) checkWhole(at place, row Row, places map[field]place) {
	err := row.Definition.WithDefaults().Check()
	if err == nil {
		return
	}
	if f, ok := fieldOf(fault.As(err).Field); ok && row.given[f] {
		at = places[f]
	}
	b.problem(at, err)
}

// err sums up the problems in one error; nil if there are none.
func (b *reader) err() error {
	return fault.SumUp(b.problems, func(p fault.Problem) string {
		if p.Line == 0 {
			return p.Message
		}
		return fmt.Sprintf("%s:%d:%d: %s", b.in.Name, p.Line, p.Column, p.Message)
	})
}
