package seed

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// field is one of the ten things an operator says of a lot.
type field int

const (
	fieldLot field = iota
	fieldStock
	fieldLimit
	fieldHold
	fieldMaxHold
	fieldOpens
	fieldCloses
	fieldLate
	fieldStatus
	fieldName
)

var fieldNames = [...]string{"lot", "stock", "limit", "hold", "max_hold", "opens", "closes", "late", "status", "name"}

func (f field) String() string { return fieldNames[f] }

// required reports whether a lot cannot do without the field.
func (f field) required() bool { return f == fieldLot || f == fieldStock }

// counts reports whether the field holds a number of units.
func (f field) counts() bool { return f == fieldStock || f == fieldLimit }

func fieldOf(name string) (field, bool) {
	i := slices.Index(fieldNames[:], name)
	return field(i), i >= 0
}

// Row is one lot as a file or the flags name it. In Definition a zero field stands for its default.
type Row struct {
	Definition drop.Definition
	Line       int // of the file, counted from 1; 0 for flags

	given [len(fieldNames)]bool // named by the input, be it empty; an existing lot keeps the rest
}

// Whole returns a row that names every field of a definition.
func Whole(d drop.Definition) Row {
	r := Row{Definition: d}
	for f := range r.given {
		r.given[f] = true
	}
	return r
}

// over returns the definition after the row was laid over what the lot has now.
func (r Row) over(present drop.Definition) drop.Definition {
	d, said := present, r.Definition
	for f, given := range r.given {
		if !given {
			continue
		}
		switch field(f) {
		case fieldStock:
			d.Stock = said.Stock
		case fieldLimit:
			d.Limit = said.Limit
		case fieldHold:
			d.Hold = said.Hold
		case fieldMaxHold:
			d.MaxHold = said.MaxHold
		case fieldOpens:
			d.Opens = said.Opens
		case fieldCloses:
			d.Closes = said.Closes
		case fieldLate:
			d.Late = said.Late
		case fieldStatus:
			d.Status = said.Status
		case fieldName:
			d.Name = said.Name
		}
	}
	return d.WithDefaults()
}

// set reads the text of one field. Empty text means the field's default.
func (r *Row) set(f field, text string, clock *zones) error {
	r.given[f] = true
	if text == "" {
		if f.required() {
			return fault.New(fault.Invalid, "%s is empty", f).WithField(f.String()).WithHint("give every lot an id and a stock")
		}
		return nil
	}
	var err error
	d := &r.Definition
	switch f {
	case fieldLot:
		d.Lot, err = drop.ParseLotID(text)
	case fieldStock:
		d.Stock, err = parseUnits(f, text)
	case fieldLimit:
		d.Limit, err = parseUnits(f, text)
	case fieldHold:
		d.Hold, err = parseHold(f, text)
	case fieldMaxHold:
		d.MaxHold, err = parseHold(f, text)
	case fieldOpens:
		d.Opens, err = clock.bound(f.String(), text)
	case fieldCloses:
		d.Closes, err = clock.bound(f.String(), text)
	case fieldLate:
		d.Late, err = drop.ParseLate(text)
	case fieldStatus:
		d.Status, err = drop.ParseStatus(text)
	case fieldName:
		d.Name, err = text, drop.CheckText("name", text, false)
	}
	return err
}

// parseUnits reads a whole number in its plainest form. Anything else (3.0, 1e3, 007, "3 ") may mean
// something other than what it looks like, and stock is not a thing to guess.
func parseUnits(f field, text string) (int64, error) {
	if strings.Trim(text, "0123456789") != "" || (len(text) > 1 && text[0] == '0') {
		return 0, fault.New(fault.Invalid, "%s %s is not a whole number", f, quote(text)).WithField(f.String()).
			WithHint("write digits only, such as 250: no sign, point, exponent, space or leading zero")
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fault.New(fault.Invalid, "%s %s is out of range", f, quote(text)).WithField(f.String()).
			WithHint("use a whole number from 0 to %d", int64(drop.MaxUnits))
	}
	return n, drop.CheckUnits(f.String(), n, 0)
}

func parseHold(f field, text string) (time.Duration, error) {
	bad := fault.New(fault.Invalid, "%s %s is not a duration", f, quote(text)).WithField(f.String())
	if strings.Trim(text, "0123456789") == "" {
		return 0, bad.WithHint("name the unit: %ss for seconds, %sm for minutes", short(text), short(text))
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, bad.WithHint("write it as 90s, 5m or 1h30m")
	}
	return d, drop.CheckHold(f.String(), d)
}

// quote shows hostile input safely and shortly.
func quote(text string) string { return strconv.QuoteToGraphic(short(text)) }

func short(text string) string {
	if r := []rune(text); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return text
}
