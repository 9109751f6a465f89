package cli

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// number is the value of a flag that takes a whole number of units. It is nil in value until the flag is set.
type number struct {
	field string
	least int64
	value *int64
}

// numberFlag registers a flag that takes a whole number from least to drop.MaxUnits.
func numberFlag(cmd *cobra.Command, name string, least int64, usage string) *number {
	n := &number{field: name, least: least}
	cmd.Flags().Var(n, name, usage)
	return n
}

// or returns the number, or def if the flag was not set.
func (n *number) or(def int64) int64 {
	if n.value == nil {
		return def
	}
	return *n.value
}

func (n *number) isSet() bool { return n.value != nil }

// Set takes whole numbers in digits and nothing else: 1.5, 1e3 and "3" are mistakes.
func (n *number) Set(text string) error {
	v, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (v < n.least || v > drop.MaxUnits):
		return n.wrong("is out of range")
	case err != nil:
		return n.wrong("is %.40q, which is no whole number", text)
	}
	n.value = &v
	return nil
}

func (n *number) wrong(format string, args ...any) error {
	return fault.New(fault.Invalid, n.field+" "+format, args...).WithField(n.field).
		WithHint("use a whole number from %d to %d", n.least, int64(drop.MaxUnits))
}

func (n *number) String() string {
	if n == nil || n.value == nil {
		return ""
	}
	return strconv.FormatInt(*n.value, 10)
}

// Type is what help calls the value.
func (n *number) Type() string { return "int" }
