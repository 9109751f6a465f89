// Package drop is the domain: lots, reservations, events and their rules. It knows no server and imports no driver.
package drop

import (
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Bounds of the domain. Units stay far below 2^53, so that a Lua script counts and prints them exactly.
const (
	MaxUnits = 1_000_000_000       // of a lot's stock, a quantity, a limit
	MaxSeq   = 99_999_999_999_999  // of a lot; Lua prints 14 digits exactly
	MaxHold  = 30 * 24 * time.Hour // of one hold
	MinHold  = time.Second

	DefaultHold    = 5 * time.Minute
	DefaultMaxHold = 30 * time.Minute
)

// Status says whether a lot sells.
type Status string

// The statuses of a lot.
const (
	Open   Status = "open"
	Paused Status = "paused"
	Closed Status = "closed"
)

// ParseStatus checks a status.
func ParseStatus(s string) (Status, error) {
	switch st := Status(s); st {
	case Open, Paused, Closed:
		return st, nil
	}
	return "", fault.New(fault.Invalid, "status %s is not a status", quote(s)).WithField("status").WithHint("use open, paused or closed")
}

// Late says what a confirm after the deadline does: refuse, or reclaim: take the units anew if they are free.
type Late string

// The policies for a late confirm.
const (
	Refuse  Late = "refuse"
	Reclaim Late = "reclaim"
)

// ParseLate checks a late policy.
func ParseLate(s string) (Late, error) {
	switch l := Late(s); l {
	case Refuse, Reclaim:
		return l, nil
	}
	return "", fault.New(fault.Invalid, "late %s is not a policy", quote(s)).WithField("late").WithHint("use refuse or reclaim")
}

// Definition is what an operator says of a lot. Times are UTC with millisecond precision; the window is
// half-open: Opens ≤ now < Closes, a zero time being no bound.
type Definition struct {
	Lot     LotID
	Stock   int64         // target capacity in units
	Limit   int64         // units a user may hold and have bought together; 0: no limit
	Hold    time.Duration // of a hold that names none
	MaxHold time.Duration // the latest deadline, counted from the moment of reserving
	Opens   time.Time
	Closes  time.Time
	Late    Late
	Status  Status
	Name    string // for people; may be empty
}

// WithDefaults returns the definition with the decided default in every field that is zero.
func (d Definition) WithDefaults() Definition {
	if d.Hold == 0 {
		d.Hold = DefaultHold
	}
	if d.MaxHold == 0 {
		d.MaxHold = max(DefaultMaxHold, d.Hold)
	}
	if d.Late == "" {
		d.Late = Refuse
	}
	if d.Status == "" {
		d.Status = Open
	}
	d.Opens, d.Closes = millis(d.Opens), millis(d.Closes)
	return d
}

func millis(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Millisecond)
}

// Check validates every field; the error names the field and the fix.
func (d Definition) Check() error {
	if _, err := ParseLotID(string(d.Lot)); err != nil {
		return err
	}
	if err := CheckUnits("stock", d.Stock, 0); err != nil {
		return err
	}
	if err := CheckUnits("limit", d.Limit, 0); err != nil {
		return err
	}
	if err := CheckHold("hold", d.Hold); err != nil {
		return err
	}
	if err := CheckHold("max_hold", d.MaxHold); err != nil {
		return err
	}
	if d.MaxHold < d.Hold {
		return fault.New(fault.Invalid, "max_hold %s is shorter than hold %s", d.MaxHold, d.Hold).WithField("max_hold").WithHint("make max_hold at least as long as hold")
	}
	if !d.Opens.IsZero() && !d.Closes.IsZero() && !d.Closes.After(d.Opens) {
		return fault.New(fault.Invalid, "closes is not after opens").WithField("closes").WithHint("the window is half-open: opens <= now < closes")
	}
	for field, t := range map[string]time.Time{"opens": d.Opens, "closes": d.Closes} {
		if !t.IsZero() && (t.Year() < 2000 || t.Year() > 2199) {
			return fault.New(fault.Invalid, "%s lies in the year %d", field, t.Year()).WithField(field).WithHint("use a time between the years 2000 and 2199")
		}
	}
	if _, err := ParseLate(string(d.Late)); err != nil {
		return err
	}
	if _, err := ParseStatus(string(d.Status)); err != nil {
		return err
	}
	return CheckText("name", d.Name, false)
}

// CheckUnits checks a number of units: least ≤ n ≤ MaxUnits.
func CheckUnits(field string, n, least int64) error {
	if n < least || n > MaxUnits {
		return fault.New(fault.Invalid, "%s %d is out of range", field, n).WithField(field).WithHint("use a whole number from %d to %d", least, int64(MaxUnits))
	}
	return nil
}

// CheckHold checks the length of a hold: whole milliseconds between MinHold and MaxHold.
func CheckHold(field string, d time.Duration) error {
	if d < MinHold || d > MaxHold || d%time.Millisecond != 0 {
		return fault.New(fault.Invalid, "%s %s is out of range", field, d).WithField(field).WithHint("use a duration from 1s to 720h, in whole milliseconds")
	}
	return nil
}

// Equal reports whether both say the same.
func (d Definition) Equal(o Definition) bool {
	return d.Lot == o.Lot && d.Stock == o.Stock && d.Limit == o.Limit && d.Hold == o.Hold && d.MaxHold == o.MaxHold &&
		d.Opens.Equal(o.Opens) && d.Closes.Equal(o.Closes) && d.Late == o.Late && d.Status == o.Status && d.Name == o.Name
}

// Watermark is a place in a lot's history. It orders by epoch, then seq; seq runs on across epochs.
type Watermark struct {
	Epoch int64 `json:"epoch"`
	Seq   int64 `json:"seq"`
}

// Totals are a lot's counters. Capacity = Available + Held + Sold always holds on the Redis side.
type Totals struct {
	Capacity  int64 `json:"capacity"`
	Available int64 `json:"available"`
	Held      int64 `json:"held"`
	Sold      int64 `json:"sold"`
}

// Balanced reports whether the invariant of the counters holds.
func (t Totals) Balanced() bool {
	return t.Available >= 0 && t.Held >= 0 && t.Sold >= 0 && t.Capacity == t.Available+t.Held+t.Sold
}

// LotState is one atomic look at a lot in Redis.
type LotState struct {
	Definition // Stock is the present capacity
	Totals
	Watermark           // of the newest change
	Mark      time.Time // the lot's time mark
	Now       time.Time // Redis time of the look
	Due       int64     // units of expired holds not swept yet; counted within Held
	Run       string    // run id of the server that answered
	OpenRun   string    // run id the shard is open on
	Frozen    string    // freeze reason of the shard or, where that is not frozen, of the lot; "" if it sells
	LotFrozen string    // freeze reason of the lot alone
	Damaged   string    // why the lot's data cannot be read; the definition and the counters then mean nothing
}

// Sells reports whether the door stands open: not frozen and on the server it was opened on.
func (s LotState) Sells() bool { return s.Frozen == "" && s.Run == s.OpenRun }

// FreezeReason returns why nothing can be sold, or "".
func (s LotState) FreezeReason() fault.Code {
	if s.Frozen != "" {
		return fault.Code(s.Frozen)
	}
	switch s.OpenRun {
	case s.Run:
		return ""
	case "": // the shard has lost its door
		return fault.FreezeEmptied
	}
	return fault.FreezeClosedDoor
}

// JoinLots lists lot ids for people.
func JoinLots(lots []LotID) string {
	parts := make([]string, len(lots))
	for i, l := range lots {
		parts[i] = string(l)
	}
	return strings.Join(parts, ", ")
}

// SomeLots names the first lots for people and counts the rest.
func SomeLots(lots []LotID) string {
	const most = 5
	if len(lots) <= most {
		return JoinLots(lots)
	}
	return JoinLots(lots[:most]) + " and " + strconv.Itoa(len(lots)-most) + " more"
}

// CountUnits writes a number of units as people do: 1 unit, 2 units.
func CountUnits(n int64) string {
	if n == 1 {
		return "1 unit"
	}
	return strconv.FormatInt(n, 10) + " units"
}
