package seed

import (
	"maps"
	"slices"
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Mapping says which of a foreign file's columns hold which fields. The zero value maps nothing.
type Mapping struct {
	columns map[string]field // by the foreign name
	mapped  [len(fieldNames)]bool
}

// ParseMap reads pairs such as `stock=Available`. A field's own name stays valid unless it is mapped;
// `status=` says that the file has no such field, even if a column is called so.
func ParseMap(pairs []string) (Mapping, error) {
	m := Mapping{columns: map[string]field{}}
	for _, pair := range pairs {
		name, column, ok := strings.Cut(pair, "=")
		bad := func(format string, args ...any) *fault.Error {
			return fault.New(fault.Usage, format, args...).WithField("map").WithHint("write field=column, such as lot=SKU,stock=Available")
		}
		if !ok {
			return Mapping{}, bad("map %s has no equals sign", quote(pair))
		}
		f, ok := fieldOf(name)
		if !ok {
			return Mapping{}, unknownName("field", name, fieldNames[:], fault.Usage).WithField("map")
		}
		if m.mapped[f] {
			return Mapping{}, bad("map names the field %s twice", f)
		}
		m.mapped[f] = true
		if column == "" {
			if f.required() {
				return Mapping{}, bad("map gives %s no column", f)
			}
			continue
		}
		if other, taken := m.columns[column]; taken {
			return Mapping{}, bad("map takes both %s and %s from column %s", other, f, quote(column))
		}
		m.columns[column] = f
	}
	return m, nil
}

// field returns the field that a column holds. Without a mapping an unknown column is an error, because
// it may be a misspelt one; with a mapping it is left out. what is how the error calls it: column or field.
func (m Mapping) field(what, column string) (f field, known bool, err error) {
	if f, ok := m.columns[column]; ok {
		return f, true, nil
	}
	if f, ok := fieldOf(column); ok && !m.mapped[f] {
		return f, true, nil
	}
	if len(m.columns) > 0 {
		return 0, false, nil
	}
	return 0, false, unknownName(what, column, fieldNames[:], fault.Invalid)
}

// missing returns the mapped columns that are not among those given.
func (m Mapping) missing(columns []string) []string {
	var list []string
	for _, column := range slices.Sorted(maps.Keys(m.columns)) {
		if !slices.Contains(columns, column) {
			list = append(list, column)
		}
	}
	return list
}

// columnOf returns the name under which a file holds the field.
func (m Mapping) columnOf(f field) string {
	for column, mapped := range m.columns {
		if mapped == f {
			return column
		}
	}
	return f.String()
}

func unknownName(what, name string, known []string, code fault.Code) *fault.Error {
	e := fault.New(code, "unknown %s %s", what, quote(name)).WithField(short(name))
	if strings.ContainsAny(name, ";\t") {
		return e.WithHint("separate the columns of a CSV file with commas")
	}
	if near := fault.Nearest(strings.ToLower(short(name)), known); near != "" {
		return e.WithHint("did you mean %s?", near)
	}
	return e.WithHint("the names are %s; a foreign file's can be mapped: --map lot=SKU,stock=Available", strings.Join(known, ", "))
}
