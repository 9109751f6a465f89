// Package render prints what commands found. A command collects, fills a view and prints it:
//
//	type lotView struct {
//		Lot     string        `json:"lot" table:"LOT,name"`
//		Stock   int64         `json:"stock" table:"STOCK"`
//		Hold    time.Duration `json:"hold_seconds" table:"HOLD,wide"`
//		History []eventView   `json:"history" table:"HISTORY"`
//	}
//	out.Print([]lotView{…})
//
// The json tags are the contract with programs: every field is printed, in order, under that name. The
// table tag makes a field a column: its header, then `wide` for columns of -o wide only, `name` for the
// field that -o name prints, `ifset` for what is not worth a look while it is empty or false. Printing one struct lists its fields downwards; a slice of views among
// them becomes a table of its own below.
package render

import (
	"context"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/term"
)

// Format is a value of -o.
type Format string

// The formats.
const (
	Table Format = "table" // aligned on a terminal, separated by tabs elsewhere
	Wide  Format = "wide"  // the same with every column
	JSON  Format = "json"  // one indented document
	JSONL Format = "jsonl" // one line for each element
	YAML  Format = "yaml"
	Name  Format = "name" // the names alone, one a line
	None  Format = "none" // nothing: only the exit status counts
)

// Formats lists every format in the order help shows them.
func Formats() []Format { return []Format{Table, Wide, JSON, JSONL, YAML, Name, None} }

// Structured reports whether programs read this format, so that people's notes have to keep away from it.
func (f Format) Structured() bool { return f == JSON || f == JSONL || f == YAML }

// Options say how to print.
type Options struct {
	Format    Format   // empty means Table
	Fields    []string // only these JSON fields, in this order; empty means all
	JQ        string   // a jq expression over the JSON document; replaces the format
	NoHeaders bool     // tables without their header line
	Stream    term.Stream
}

// Printer prints views. It is not safe for concurrent use.
type Printer struct {
	w      io.Writer
	o      Options
	filter filter
	closed bool
}

// New returns a printer to w. It fails with code usage for an unknown format or a broken jq expression. A jq expression
// that finds no end is stopped with ctx.
func New(ctx context.Context, w io.Writer, o Options) (*Printer, error) {
	if o.Format == "" {
		o.Format = Table
	}
	if !slices.Contains(Formats(), o.Format) {
		return nil, fault.New(fault.Usage, "unknown output format %q", string(o.Format)).
			WithField("output").WithHint("use one of: %s", join(Formats()))
	}
	p := &Printer{w: w, o: o}
	if o.JQ != "" {
		f, err := compile(ctx, o.JQ)
		if err != nil {
			return nil, err
		}
		p.filter = f
	}
	return p, nil
}

// Closed reports whether the reader has gone away, as `head` does. Print then does nothing and returns
// nil, because that is no error; a loop that prints for ever has to look here and stop.
func (p *Printer) Closed() bool { return p.closed }

// Check fails with code usage if a view of this type cannot be printed as asked: --fields names a field
// that it has not, or -o name asks for names that it has not. Called before a command acts, it keeps
// such a mistake from being found too late.
func (p *Printer) Check(view any) error {
	_, _, err := p.shape(view)
	return err
}

func (p *Printer) shape(view any) (reflect.Value, shape, error) {
	v := reflect.ValueOf(view)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	s, err := shapeOf(v)
	if err != nil {
		return v, nil, err
	}
	if s, err = s.narrow(p.o.Fields); err == nil && p.o.Format == Name && p.filter == nil {
		_, err = s.nameColumn()
	}
	return v, s, err
}

// Print prints one view: a struct, or a slice of structs. Called again, it goes on below (with jsonl
// that makes a stream). It fails as Check does, and with code failed if --jq cannot work on the view.
func (p *Printer) Print(view any) error {
	v, shape, err := p.shape(view)
	if err != nil {
		return err
	}
	text, err := p.format(v, shape)
	if err != nil {
		return err
	}
	return p.write(text)
}

// Text prints prose, such as a help topic, unless a program is reading; then it is Print(view).
func (p *Printer) Text(text string, view any) error {
	if p.filter != nil || (p.o.Format != Table && p.o.Format != Wide) {
		return p.Print(view)
	}
	return p.write(text)
}

func (p *Printer) format(v reflect.Value, s shape) (string, error) {
	if p.filter != nil {
		doc, err := s.document(v)
		if err != nil {
			return "", err
		}
		return p.filter.run(doc)
	}
	switch p.o.Format {
	case None:
		return "", nil
	case Name:
		return names(v, s)
	case JSON, JSONL, YAML:
		doc, err := s.document(v)
		if err != nil {
			return "", err
		}
		return encode(p.o.Format, doc)
	}
	return p.table(v, s)
}

// Line returns a view as one line of JSON with all its fields, for a text that has to hold it.
func Line(view any) (string, error) {
	var b strings.Builder
	p, err := New(context.Background(), &b, Options{Format: JSONL})
	if err == nil {
		err = p.Print(view)
	}
	return strings.TrimSuffix(b.String(), "\n"), err
}

func (p *Printer) write(text string) error {
	if p.closed || text == "" {
		return nil
	}
	_, err := io.WriteString(p.w, text)
	if IsClosedPipe(err) {
		p.closed = true
		return nil
	}
	if err != nil {
		return fault.Wrap(fault.Failed, err, "the output could not be written")
	}
	return nil
}

func encode(format Format, doc any) (string, error) {
	var b strings.Builder
	switch format {
	case YAML:
		enc := yaml.NewEncoder(&b)
		enc.SetIndent(2)
		if err := enc.Encode(node(doc)); err != nil {
			return "", err
		}
		return b.String(), enc.Close()
	case JSONL:
		list, ok := doc.([]any)
		if !ok {
			list = []any{doc}
		}
		for _, element := range list {
			if err := encoder(&b).Encode(element); err != nil {
				return "", err
			}
		}
		return b.String(), nil
	}
	enc := encoder(&b)
	enc.SetIndent("", "  ")
	err := enc.Encode(doc)
	return b.String(), err
}

// encoder leaves < > & as they are: the output is read by programs and people, never by a browser.
func encoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

func join[T ~string](list []T) string {
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(s))
	}
	return b.String()
}
