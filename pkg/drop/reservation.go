package drop

import (
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// State is the state of a reservation.
type State string

// The states: held → confirmed | released | expired, confirmed → refunded.
const (
	Held      State = "held"
	Confirmed State = "confirmed"
	Released  State = "released"
	Expired   State = "expired"
	Refunded  State = "refunded"
)

// ParseState checks a state.
func ParseState(s string) (State, error) {
	switch st := State(s); st {
	case Held, Confirmed, Released, Expired, Refunded:
		return st, nil
	}
	return "", fault.New(fault.Invalid, "state %s is not a state", quote(s)).WithField("state").WithHint("use held, confirmed, released, expired or refunded")
}

// Reservation is one reservation as one store knows it.
type Reservation struct {
	ID       ReservationID
	User     string // "" where a tombstone no longer carries it
	State    State
	Qty      int64 // units held, or confirmed and not refunded, or given back at the end
	Refunded int64 // units refunded so far
	Rest     int64 // units given back by a part confirm
	Deadline time.Time
	Created  time.Time
	LastSeq  int64  // seq of its last change
	Ref      string // payment reference of the confirmation
	From     int64  // n of the expired hold that a late confirm took anew; 0: none
	Asked    string // what the request asked for, the key's fingerprint; "" where it was not read
}

// ReserveRequest asks for a hold. Hold 0 takes the lot's own.
type ReserveRequest struct {
	Lot   LotID
	User  string
	Key   string
	Qty   int64
	Hold  time.Duration
	Actor string
	// Replace gives the user's live hold of the lot back and takes this one, both or neither. Without one it is a hold like any.
	Replace bool
}

// Check validates every field.
func (r ReserveRequest) Check() error {
	if _, err := ParseLotID(string(r.Lot)); err != nil {
		return err
	}
	if err := CheckText("user", r.User, true); err != nil {
		return err
	}
	if err := CheckText("key", r.Key, true); err != nil {
		return err
	}
	if err := CheckUnits("qty", r.Qty, 1); err != nil {
		return err
	}
	if r.Hold != 0 {
		if err := CheckHold("hold", r.Hold); err != nil {
			return err
		}
	}
	return CheckText("actor", r.Actor, false)
}

// Action is what a settle request does.
type Action string

// The actions on a reservation.
const (
	ActConfirm Action = "confirm"
	ActRelease Action = "release"
	ActExtend  Action = "extend"
	ActRefund  Action = "refund"
)

// SettleRequest changes one reservation. The fields used depend on the action; the others stay zero.
type SettleRequest struct {
	ID        ReservationID
	Action    Action
	Qty       int64         // confirm: units, 0 for all of the hold; the rest is given back
	Keep      int64         // release: units that stay held, 0 for none
	By        time.Duration // extend: the deadline becomes max(deadline, now + By), up to the lot's cap
	Total     int64         // refund: units refunded in all afterwards; -1 for all
	Due       bool          // refund: of payments that paid for no unit, not of the sale
	NoRestock bool          // refund: the units leave the lot instead of being sold again
	Ref       string        // confirm: payment reference
	Late      Late          // confirm: overrides the lot's policy; "" keeps it
	Actor     string
	Reason    string
}

// Check validates every field.
func (r SettleRequest) Check() error {
	if _, err := ParseReservationID(r.ID.String()); err != nil {
		return err
	}
	for _, f := range []struct{ name, text string }{{"payment", r.Ref}, {"actor", r.Actor}, {"reason", r.Reason}} {
		if err := CheckText(f.name, f.text, false); err != nil {
			return err
		}
	}
	switch r.Action {
	case ActConfirm:
		if r.Late != "" {
			if _, err := ParseLate(string(r.Late)); err != nil {
				return err
			}
		}
		return CheckUnits("qty", r.Qty, 0)
	case ActRelease:
		return CheckUnits("keep", r.Keep, 0)
	case ActExtend:
		return CheckHold("by", r.By)
	case ActRefund:
		if r.Due && (r.Total != -1 || r.NoRestock) {
			return fault.New(fault.Invalid, "due says that nothing of the sale is meant").WithField("due").WithHint("leave out what is said of the sale's units")
		}
		if r.Total != -1 {
			return CheckUnits("total", r.Total, 1)
		}
		return nil
	}
	return fault.New(fault.Invalid, "action %s is unknown", quote(string(r.Action))).WithField("action").WithHint("use confirm, release, extend or refund")
}

// UserCount is what Redis counts for one user of a lot.
type UserCount struct {
	Mark   string // of the user: see MarkOf
	User   string // "" where the counters are damaged
	Held   int64  // units
	Bought int64  // units
	Live   string // attempt of the live hold; "" for none

	Damaged bool // they cannot be read, which counts as none
}

// DueEntry says when attempts are looked at again. The records' own deadlines are what counts.
type DueEntry struct {
	At       time.Time
	Attempts []string // none: the entry is damaged
	Batch    string   // of the holds, if they share one
	Text     string   // the entry as it is stored
}

// Outcome is the answer to a reserve or settle call that did what was wished.
type Outcome struct {
	Reservation Reservation
	Replayed    bool  // it already was so; nothing was changed
	Remaining   int64 // how many more units the user may take; -1: no limit
	Now         time.Time
}
