package simulate

import (
	"embed"
	"path"
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
)

// The scenarios that ship, as an operator would write them.
//
//go:embed scenarios
var files embed.FS

// Demo is the scenario behind dropctl demo.
const Demo = "truffle-lot"

const extension = ".yaml"

// Shipped returns the names of the scenarios that ship.
func Shipped() (names []string) {
	entries, _ := files.ReadDir("scenarios") // it is embedded
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), extension); ok {
			names = append(names, name)
		}
	}
	return names
}

// ShippedText returns the text of a scenario that ships, and what reads the files it names; ok is false if there is none of
// this name.
func ShippedText(name string) (text []byte, read func(file string) ([]byte, error), ok bool) {
	read = func(file string) ([]byte, error) {
		data, err := files.ReadFile(path.Join("scenarios", file))
		if err != nil {
			return nil, fault.New(fault.Usage, "%.60q does not ship", file)
		}
		return data, nil
	}
	text, err := read(name + extension)
	return text, read, err == nil
}
