package fault

import (
	"cmp"
	"fmt"
	"slices"
)

// MostProblems is how many problems are told of one file.
const MostProblems = 20

// Problem is one thing wrong with something that people write, as a file. Line and Column count from 1, columns in characters; 0:
// it stands in no file.
type Problem struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Field   string `json:"field"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// SumUp makes one error of code invalid of what is wrong, worded by say for the first; nil if nothing is. It carries the problems
// in the order of their places, see ProblemsOf.
func SumUp(problems []Problem, say func(Problem) string) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(x, y Problem) int {
		return cmp.Or(cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column))
	})
	problems = problems[:min(len(problems), MostProblems)]
	first, more := problems[0], ""
	switch n := len(problems) - 1; {
	case n+1 == MostProblems: // nobody looks for more
		more = fmt.Sprintf(" (and %d others or more)", n)
	case n > 0:
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return New(Invalid, "%s%s", say(first), more).WithHint("%s", first.Hint).WithField(first.Field).With("problems", problems)
}

// ProblemsOf returns what SumUp has summed up; nil for any other error.
func ProblemsOf(err error) []Problem {
	if err == nil {
		return nil
	}
	list, _ := As(err).Details["problems"].([]Problem)
	return list
}
