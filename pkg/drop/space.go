package drop

import (
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
)

// CheckSpace refuses what cannot name a space: a place apart from the shop on its own servers, for what is measured or
// rehearsed there. The name becomes part of keys in Redis and of a schema's in PostgreSQL, of which it must not need quoting
// in either, nor be cut.
func CheckSpace(name string) error {
	if name == "" || len(name) > 40 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fault.New(fault.Invalid, "%.60q is no name of a space", name).WithHint("use 1 to 40 of a-z, 0-9 and -")
	}
	return nil
}
