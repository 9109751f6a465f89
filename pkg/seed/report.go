package seed

import (
	"context"
	"fmt"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Result is how a lot ended.
type Result string

// The results.
const (
	ResultCreated   Result = "created"
	ResultChanged   Result = "changed"
	ResultUnchanged Result = "unchanged"
	ResultLoaded    Result = "loaded"
	ResultPlanned   Result = "planned" // of a dry run
	ResultFailed    Result = "failed"
)

// Item is what became of one row.
type Item struct {
	Lot     drop.LotID    `json:"lot" table:"LOT,name"`
	Action  Action        `json:"action" table:"ACTION"`
	Result  Result        `json:"result" table:"RESULT"`
	Stock   int64         `json:"stock" table:"STOCK"` // as it is now, or will be once the plan is carried out
	Held    int64         `json:"held" table:"HELD"`
	Sold    int64         `json:"sold" table:"SOLD"`
	Changes []FieldChange `json:"changes"`
	Code    fault.Code    `json:"code"` // of a failure
	Message string        `json:"message"`
	Hint    string        `json:"hint"`

	err error
}

func (st *step) item() Item {
	it := Item{Lot: st.target.Lot, Action: st.action, Stock: st.target.Stock, Held: st.state.Held, Sold: st.state.Sold, Changes: st.changes}
	if st.err != nil {
		it.Stock = st.state.Capacity
		return it.failed(st.err)
	}
	switch {
	case st.action == Unchanged:
		it.Result = ResultUnchanged
	case st.dry:
		it.Result = ResultPlanned
	case st.action == Create:
		it.Result = ResultCreated
	case st.action == Load:
		it.Result = ResultLoaded
	case st.action == Change:
		it.Result = ResultChanged
	}
	return it
}

// Summary says in one line what changes or what went wrong; "" if there is nothing to say.
func (it Item) Summary() string {
	parts := make([]string, len(it.Changes))
	for i, c := range it.Changes {
		parts[i] = fmt.Sprintf("%s %v -> %v", c.Field, shown(c.From), shown(c.To))
	}
	changes := strings.Join(parts, ", ")
	switch {
	case it.Message == "":
		return changes
	case changes == "":
		return it.Message
	}
	return changes + ": " + it.Message
}

// shown makes an empty value visible.
func shown(value any) any {
	if value == "" {
		return "none"
	}
	return value
}

func (it Item) failed(err error) Item {
	e := fault.As(err)
	it.err, it.Result, it.Code, it.Message, it.Hint = err, ResultFailed, e.Code, e.Error(), fault.HintOf(e)
	return it
}

func skipped(row Row, err error) Item {
	return Item{Lot: row.Definition.Lot, Action: Skipped, Stock: row.Definition.Stock}.failed(err)
}

// summary says in one error how a run went; nil if every lot is as its row says.
func summary(ctx context.Context, items []Item, o Options) error {
	if err := ctx.Err(); err != nil {
		return fault.As(err)
	}
	var first error
	failed, planned := 0, 0
	for _, it := range items {
		switch it.Result {
		case ResultFailed:
			if failed++; first == nil {
				first = it.err
			}
		case ResultPlanned:
			planned++
		}
	}
	switch {
	case failed == 0 && planned > 0 && o.ExitCode:
		return fault.New(fault.WouldChange, "%d of %d lots would change", planned, len(items))
	case failed == 0:
		return nil
	case failed < len(items):
		return fault.New(fault.Partial, "%d of %d lots could not be seeded; the first: %s", failed, len(items), first).
			WithHint("%s; then run it again: what is done stays done", fault.HintOf(first))
	case failed == 1:
		return first
	}
	e := *fault.As(first)
	e.Message, e.Err, e.Hint = fmt.Sprintf("none of %d lots could be seeded; the first: %s", len(items), first), nil, fault.HintOf(first)
	return &e
}
