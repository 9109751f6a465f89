package drop

import (
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// AdjustRequest changes a lot's capacity, by or to a number of units; exactly one of By and To is set. Expect is the
// capacity the caller believes in: with it a repeated call acts once.
type AdjustRequest struct {
	Lot    LotID
	By, To *int64
	Expect int64
	DryRun bool
	Actor  string
	Reason string
}

// Check validates the numbers, so that no script ever meets a capacity out of bounds.
func (q AdjustRequest) Check() error {
	if (q.By == nil) == (q.To == nil) {
		return fault.New(fault.Usage, "an adjustment needs either by or to").WithHint("use --by ±N --expect M or --to N --expect M")
	}
	if err := CheckUnits("expect", q.Expect, 0); err != nil {
		return err
	}
	if q.To != nil {
		return CheckUnits("to", *q.To, 0)
	}
	if *q.By < -MaxUnits || *q.By > MaxUnits-q.Expect {
		return fault.New(fault.Invalid, "by %d leads out of range", *q.By).WithField("by").WithHint("a lot has 0 to %d units", MaxUnits)
	}
	return nil
}

// ChangeRequest sets the fields of a lot's definition that are not nil.
type ChangeRequest struct {
	Lot           LotID
	Status        *Status
	Limit         *int64
	Hold, MaxHold *time.Duration
	Opens, Closes *time.Time // a zero time removes the bound
	Late          *Late
	Name          *string
	DryRun        bool
	Actor         string
	Reason        string
}

// Apply returns the definition with the request's fields set.
func (q ChangeRequest) Apply(d Definition) Definition {
	set(&d.Status, q.Status)
	set(&d.Limit, q.Limit)
	set(&d.Hold, q.Hold)
	set(&d.MaxHold, q.MaxHold)
	set(&d.Opens, q.Opens)
	set(&d.Closes, q.Closes)
	set(&d.Late, q.Late)
	set(&d.Name, q.Name)
	return d
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
