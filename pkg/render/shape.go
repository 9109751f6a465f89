package render

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// shape is what the tags of a view's type say, in the order of its fields.
type shape []column

// column is one field of a view.
type column struct {
	name   string // the JSON name
	index  []int  // for reflect.Value.FieldByIndex
	typ    reflect.Type
	header string // empty: not in tables
	wide   bool   // only in wide tables
	isName bool   // what -o name prints
	omit   bool   // left out when empty
	ifSet  bool   // left out of what people read when empty
}

// shapeOf describes the type of v: a struct or a slice of structs. Anything else is a programmer's error.
func shapeOf(v reflect.Value) (shape, error) {
	if !v.IsValid() {
		return nil, fmt.Errorf("render: nothing to print")
	}
	t := v.Type()
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("render: %s is neither a struct nor a slice of structs", v.Type())
	}
	return columns(t, nil)
}

func columns(t reflect.Type, parent []int) (shape, error) {
	var s shape
	for i := range t.NumField() {
		f := t.Field(i)
		index := append(slices.Clone(parent), i)
		if f.Anonymous && f.Tag.Get("json") == "" && f.Type.Kind() == reflect.Struct {
			inner, err := columns(f.Type, index)
			if err != nil {
				return nil, err
			}
			s = append(s, inner...)
			continue
		}
		if !f.IsExported() || f.Tag.Get("json") == "-" {
			continue
		}
		c, err := columnOf(f, index)
		if err != nil {
			return nil, err
		}
		s = append(s, c)
	}
	return s, nil
}

func columnOf(f reflect.StructField, index []int) (column, error) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" {
		return column{}, fmt.Errorf("render: field %s has no json name", f.Name)
	}
	if f.Type == reflect.TypeFor[time.Duration]() && !strings.HasSuffix(name, "_seconds") {
		return column{}, fmt.Errorf("render: the duration %s must be named …_seconds", f.Name)
	}
	c := column{name: name, index: index, typ: f.Type, omit: strings.Contains(options, "omit")}
	header, marks, _ := strings.Cut(f.Tag.Get("table"), ",")
	c.header = header
	for mark := range strings.SplitSeq(marks, ",") {
		c.wide = c.wide || mark == "wide"
		c.isName = c.isName || mark == "name"
		c.ifSet = c.ifSet || mark == "ifset"
	}
	return c, nil
}

// narrow returns the named columns in the order asked for. Each is then shown in tables too.
func (s shape) narrow(fields []string) (shape, error) {
	if len(fields) == 0 {
		return s, nil
	}
	var out shape
	for _, field := range fields {
		i := slices.IndexFunc(s, func(c column) bool { return c.name == field })
		if i < 0 {
			return nil, fault.New(fault.Usage, "unknown field %q", field).WithField("fields").
				WithHint("the fields are: %s", strings.Join(s.names(), ", "))
		}
		c := s[i]
		c.wide, c.omit, c.ifSet = false, false, false
		if c.header == "" {
			c.header = strings.ToUpper(c.name)
		}
		out = append(out, c)
	}
	return out, nil
}

// nameColumn returns what -o name prints.
func (s shape) nameColumn() (column, error) {
	for _, c := range s {
		if c.isName {
			return c, nil
		}
	}
	return column{}, fault.New(fault.Usage, "this output has no names to list").WithField("output").
		WithHint("use another format, such as -o json")
}

func (s shape) names() []string {
	var list []string
	for _, c := range s {
		list = append(list, c.name)
	}
	return list
}

// Fields returns the JSON names of a view's fields, for completion and contract tests.
func Fields(view any) []string {
	s, err := shapeOf(reflect.ValueOf(view))
	if err != nil {
		return nil
	}
	return s.names()
}

func isNumber(t reflect.Type) bool {
	return t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64 && t != reflect.TypeFor[time.Duration]()
}
