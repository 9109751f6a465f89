package wire

import (
	"bytes"
	"cmp"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/simulate"
)

// ScenarioLots reads the lots of a scenario as seed does, see simulate.Source.
func ScenarioLots(file string, text []byte) ([]drop.Definition, []simulate.Problem) {
	format, err := seed.FormatOf(cmp.Or(file, ".yaml"), "")
	rows := []seed.Row{}
	if err == nil {
		rows, err = seed.Read(bytes.NewReader(text), seed.Input{Name: file, Format: format})
	}
	var problems []simulate.Problem
	for _, p := range seed.Problems(err) {
		problems = append(problems, simulate.Problem(p))
	}
	if err != nil && len(problems) == 0 {
		problems = []simulate.Problem{{Line: 1, Column: 1, Message: fault.As(err).Error(), Hint: fault.HintOf(err)}}
	}
	lots := make([]drop.Definition, len(rows))
	for i, r := range rows {
		lots[i] = r.Definition
	}
	return lots, problems
}
