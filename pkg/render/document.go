package render

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A document is a view as programs see it. It is made of nil, bool, int64, uint64, float64, string,
// []any and object, so that JSON, YAML and jq all print the same thing.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON writes the members in their order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := encoder(&b).Encode(m.name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := encoder(&b).Encode(m.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// document turns a view of this shape into a document.
func (s shape) document(v reflect.Value) (any, error) {
	if v.Kind() != reflect.Slice {
		return s.object(v)
	}
	list := make([]any, 0, v.Len())
	for i := range v.Len() {
		o, err := s.object(reflect.Indirect(v.Index(i)))
		if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, nil
}

func (s shape) object(v reflect.Value) (any, error) {
	if !v.IsValid() {
		return nil, nil
	}
	o := object{}
	for _, c := range s {
		field := v.FieldByIndex(c.index)
		if c.omit && isEmpty(field) {
			continue
		}
		value, err := value(field)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		o = append(o, member{c.name, value})
	}
	return o, nil
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}

// value turns any Go value into a part of a document.
func value(v reflect.Value) (any, error) {
	if !v.IsValid() {
		return nil, nil
	}
	switch x := v.Interface().(type) {
	case time.Time:
		if x.IsZero() {
			return nil, nil
		}
		return x.UTC().Format(time.RFC3339Nano), nil
	case time.Duration:
		return float64(x.Round(time.Millisecond).Milliseconds()) / 1000, nil
	case json.Number:
		return number(x), nil
	}
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil, nil
		}
		return value(v.Elem())
	}
	switch x := v.Interface().(type) {
	case json.Marshaler:
		return reread(x)
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		return string(text), err
	}
	return plainValue(v)
}

func plainValue(v reflect.Value) (any, error) {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Uint(), nil
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f, nil
		}
		return nil, nil
	case reflect.String:
		return strings.ToValidUTF8(v.String(), "\uFFFD"), nil
	case reflect.Struct:
		s, err := columns(v.Type(), nil)
		if err != nil {
			return nil, err
		}
		return s.object(v)
	case reflect.Map:
		return mapValue(v)
	case reflect.Slice, reflect.Array:
		list := make([]any, 0, v.Len())
		for i := range v.Len() {
			element, err := value(v.Index(i))
			if err != nil {
				return nil, err
			}
			list = append(list, element)
		}
		return list, nil
	}
	return nil, fmt.Errorf("render: cannot print a %s", v.Type())
}

// mapValue sorts by key: the same view must print the same text.
func mapValue(v reflect.Value) (any, error) {
	o := object{}
	for iter := v.MapRange(); iter.Next(); {
		element, err := value(iter.Value())
		if err != nil {
			return nil, err
		}
		o = append(o, member{fmt.Sprint(iter.Key().Interface()), element})
	}
	slices.SortFunc(o, func(a, b member) int { return strings.Compare(a.name, b.name) })
	return o, nil
}

// reread takes what a type's own MarshalJSON writes.
func reread(m json.Marshaler) (any, error) {
	text, err := m.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var x any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&x); err != nil {
		return nil, err
	}
	return value(reflect.ValueOf(x))
}

func number(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		return i
	}
	f, _ := n.Float64()
	return f
}

// node turns a document into YAML, keeping the order of members.
func node(doc any) *yaml.Node {
	switch x := doc.(type) {
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
	case object:
		n := &yaml.Node{Kind: yaml.MappingNode}
		if len(x) == 0 {
			n.Style = yaml.FlowStyle
		}
		for _, m := range x {
			n.Content = append(n.Content, node(m.name), node(m.value))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if len(x) == 0 {
			n.Style = yaml.FlowStyle
		}
		for _, element := range x {
			n.Content = append(n.Content, node(element))
		}
		return n
	case float64:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: strconv.FormatFloat(x, 'f', -1, 64)}
	}
	n := &yaml.Node{}
	// Scalars only: the library quotes strings that would read as something else.
	if err := n.Encode(doc); err != nil {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: fmt.Sprint(doc)}
	}
	return n
}
