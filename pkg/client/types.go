// Package client calls the HTTP API of dropctl. Its types are the bodies of that API: the server answers with them, and
// its OpenAPI document is made from them.
package client

import (
	"math"
	"time"
)

// Duration is a number of seconds of a body, in whole milliseconds: no call takes more exact ones.
func Duration(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds*1000)) * time.Millisecond
}

// Reservation is one reservation. Times are UTC.
type Reservation struct {
	ID        string     `json:"id" doc:"tells its lot and is unique for ever" example:"truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17"`
	Lot       string     `json:"lot" example:"truffle-99"`
	User      string     `json:"user" doc:"empty where an ended reservation no longer carries it" example:"ada"`
	State     string     `json:"state" enum:"held,confirmed,released,expired,refunded" example:"held"`
	Qty       int64      `json:"qty" doc:"units held, or confirmed and not refunded, or given back at the end" example:"2"`
	Refunded  int64      `json:"refunded" doc:"units refunded so far" example:"0"`
	DueClosed int64      `json:"due_closed,omitempty" doc:"of a refund: units of payments that paid for nothing, whose money is recorded as given back; the sale is as it was"`
	Deadline  *time.Time `json:"deadline" nullable:"true" doc:"when the hold ends; null where it no longer counts" example:"2026-12-01T10:05:00Z"`
	Left      *float64   `json:"remaining_seconds" nullable:"true" doc:"until the deadline, by the clock of Redis; null: not held, or Redis was not asked" example:"299.8"`
	Payment   string     `json:"payment" doc:"payment reference" example:"pay-4711"`
	Key       string     `json:"key" doc:"idempotency key; empty where it is not known" example:"order-4711"`
	Created   *time.Time `json:"created" nullable:"true" example:"2026-12-01T10:00:00Z"`
	Seq       int64      `json:"seq" doc:"of its last change, within its lot" example:"17"`
	Replayed  bool       `json:"replayed" doc:"it already was so; nothing was changed" example:"false"`
	Remaining *int64     `json:"remaining" nullable:"true" doc:"units the user may still take of the lot; null: no limit, or not asked" example:"1"`
	Ledger    string     `json:"ledger,omitempty" enum:"recorded,pending" doc:"of a confirm: whether the ledger has decided" example:"recorded"`
	LedgerLag *float64   `json:"ledger_lag_seconds,omitempty" doc:"how long the ledger will need, where it has not decided yet" example:"3.5"`
	Source    string     `json:"source,omitempty" enum:"redis,ledger" doc:"of a single reservation: where it was found; the ledger keeps what Redis has forgotten"`
	Recorded  *Recorded  `json:"recorded,omitempty" doc:"of a single reservation: what the ledger has of it; absent where it has nothing yet or was not reached"`
}

// Recorded is a reservation as the ledger has it.
type Recorded struct {
	State    string    `json:"state" enum:"held,confirmed,released,expired,refunded" example:"held"`
	Qty      int64     `json:"qty" example:"2"`
	Refunded int64     `json:"refunded" example:"0"`
	Rejected bool      `json:"rejected" doc:"Redis held units that the lot does not have" example:"false"`
	Seq      int64     `json:"seq" doc:"of the last change that the ledger has" example:"17"`
	Changed  time.Time `json:"changed" example:"2026-12-01T10:00:00Z"`
}

// Lot is one lot as Redis has it. Capacity = available + held + sold.
type Lot struct {
	Lot       string     `json:"lot" example:"truffle-99"`
	Name      string     `json:"name" doc:"for people" example:"White truffle, 99 g"`
	Status    string     `json:"status" enum:"open,paused,closed" example:"open"`
	Selling   bool       `json:"selling" doc:"open, within its window and not frozen; it may be sold out" example:"true"`
	Capacity  int64      `json:"capacity" example:"100"`
	Available int64      `json:"available" example:"40"`
	Held      int64      `json:"held" example:"35"`
	Sold      int64      `json:"sold" example:"25"`
	Due       int64      `json:"due" doc:"units within held whose deadline has passed: anybody can take them" example:"0"`
	Limit     int64      `json:"limit" doc:"units for one user; 0: no limit" example:"2"`
	Hold      float64    `json:"hold_seconds" doc:"of a hold that names none" example:"300"`
	MaxHold   float64    `json:"max_hold_seconds" example:"1800"`
	Opens     *time.Time `json:"opens" nullable:"true" example:"2026-12-01T10:00:00Z"`
	Closes    *time.Time `json:"closes" nullable:"true" example:"2026-12-01T12:00:00Z"`
	Late      string     `json:"late" enum:"refuse,reclaim" doc:"what a confirm after the deadline does" example:"refuse"`
	Epoch     int64      `json:"epoch" example:"1"`
	Seq       int64      `json:"seq" example:"120"`
	Frozen    string     `json:"frozen" doc:"why nothing can be done with it; empty normally" example:""`
}

// ReserveBody asks for a hold. Its idempotency key is a header of the request.
type ReserveBody struct {
	User    string  `json:"user" minLength:"1" maxLength:"128" doc:"who holds" example:"ada"`
	Qty     int64   `json:"qty,omitempty" minimum:"1" maximum:"1000000000" default:"1" doc:"units" example:"2"`
	Hold    float64 `json:"hold_seconds,omitempty" minimum:"1" maximum:"2592000" doc:"whole milliseconds; default: as the lot says" example:"300"`
	Replace bool    `json:"replace,omitempty" doc:"give back the user's live hold of this lot, if there is one, and take this one, both or neither"`
}

// ConfirmBody turns a hold into a sale.
type ConfirmBody struct {
	Qty     int64  `json:"qty,omitempty" minimum:"1" maximum:"1000000000" doc:"units; default: all of the hold. The rest is given back" example:"2"`
	Payment string `json:"payment,omitempty" maxLength:"128" doc:"payment reference" example:"pay-4711"`
	Late    string `json:"late,omitempty" enum:"refuse,reclaim" doc:"after the deadline; default: as the lot says"`
	Ack     string `json:"ack,omitempty" enum:"ledger,stock" default:"ledger" doc:"whose word to wait for"`
	Reason  string `json:"reason,omitempty" maxLength:"128" doc:"for the journal"`
}

// ReleaseBody gives a hold back, or all of it but keep units.
type ReleaseBody struct {
	Keep   int64  `json:"keep,omitempty" minimum:"0" maximum:"1000000000" doc:"units that stay held; 0: none" example:"1"`
	Reason string `json:"reason,omitempty" maxLength:"128" doc:"for the journal"`
}

// ExtendBody moves a deadline to max(deadline, now + by), as far as the lot allows.
type ExtendBody struct {
	By     float64 `json:"by_seconds" minimum:"1" maximum:"2592000" doc:"from now, whole milliseconds" example:"300"`
	Reason string  `json:"reason,omitempty" maxLength:"128" doc:"for the journal"`
}

// RefundBody takes a sale back, or records that the money of payments that are due was given back.
type RefundBody struct {
	Total     *int64 `json:"total,omitempty" minimum:"1" maximum:"1000000000" doc:"units refunded in all afterwards; default: all" example:"1"`
	NoRestock bool   `json:"no_restock,omitempty" doc:"the units leave the lot instead of being sold again"`
	Due       bool   `json:"due,omitempty" doc:"of the payments that are due because they paid for nothing, not of the sale; with neither due nor total: whichever there is, and a conflict if there are both"`
	Reason    string `json:"reason,omitempty" maxLength:"128" doc:"for the journal"`
}

// PaymentBody is what a payment gateway calls back with, once it has decided about a charge.
type PaymentBody struct {
	_ struct{} `additionalProperties:"true"` // which are not looked at

	Reservation string `json:"reservation" doc:"as in the charge" example:"truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17"`
	Attempt     int64  `json:"attempt" minimum:"1" maximum:"1000000000" doc:"as in the charge" example:"1"`
	Status      string `json:"status" enum:"approved,declined,pending" example:"approved"`
	Reference   string `json:"reference,omitempty" maxLength:"128" doc:"the gateway's own; needed if approved" example:"ch_1027"`
	Reason      string `json:"reason,omitempty" maxLength:"128" doc:"why it is declined"`
}

// PaymentTaken says that a gateway's call is recorded.
type PaymentTaken struct {
	Reservation string `json:"reservation" example:"truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17"`
	Attempt     int64  `json:"attempt" example:"1"`
	Status      string `json:"status" enum:"approved,declined,pending" example:"approved"`
	Replayed    bool   `json:"replayed" doc:"it was known; nothing was changed" example:"false"`
}

// LotBody defines a lot: PUT creates it, or changes it to this. Stock is the capacity it shall have.
type LotBody struct {
	Stock   *int64     `json:"stock,omitempty" minimum:"0" maximum:"1000000000" doc:"units; needed when the lot is new" example:"100"`
	Limit   *int64     `json:"limit,omitempty" minimum:"0" maximum:"1000000000" doc:"units for one user; 0: no limit" example:"2"`
	Hold    *float64   `json:"hold_seconds,omitempty" minimum:"1" maximum:"2592000" doc:"of a hold that names none, whole milliseconds" example:"300"`
	MaxHold *float64   `json:"max_hold_seconds,omitempty" minimum:"1" maximum:"2592000" doc:"the latest deadline, from the moment of reserving" example:"1800"`
	Opens   *time.Time `json:"opens,omitempty" nullable:"true" doc:"null: no bound" example:"2026-12-01T10:00:00Z"`
	Closes  *time.Time `json:"closes,omitempty" nullable:"true" doc:"null: no bound" example:"2026-12-01T12:00:00Z"`
	Late    string     `json:"late,omitempty" enum:"refuse,reclaim"`
	Status  string     `json:"status,omitempty" enum:"open,paused,closed"`
	Name    *string    `json:"name,omitempty" maxLength:"128" doc:"for people" example:"White truffle, 99 g"`
}

// StatusBody says why a lot is opened, paused or closed.
type StatusBody struct {
	Reason string `json:"reason,omitempty" maxLength:"128" doc:"for the journal"`
}

// AdjustBody changes a lot's capacity: by so many units, or to a number; expect is what it is now.
type AdjustBody struct {
	By     *int64 `json:"by,omitempty" minimum:"-1000000000" maximum:"1000000000" doc:"units to add; either this or to" example:"-5"`
	To     *int64 `json:"to,omitempty" minimum:"0" maximum:"1000000000" doc:"units that the lot is to have" example:"95"`
	Expect int64  `json:"expect" minimum:"0" maximum:"1000000000" doc:"capacity as it is now, so that a repeated call acts once" example:"100"`
	Reason string `json:"reason,omitempty" maxLength:"128" doc:"for the journal"`
}

// Page is one page of a list. Next is the cursor of the next one, empty at the end.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next" doc:"cursor of the next page; empty at the end"`
}

// Problem is an error as RFC 9457 writes it, with the members that dropctl adds.
type Problem struct {
	Type      string         `json:"type" doc:"names the code" example:"urn:dropctl:error:sold_out"`
	Title     string         `json:"title" example:"Sold out"`
	Status    int            `json:"status" example:"409"`
	Detail    string         `json:"detail,omitempty" example:"lot truffle-99 has 0 of 1 units left"`
	Instance  string         `json:"instance,omitempty" doc:"id of the request"`
	Code      string         `json:"code" example:"sold_out"`
	Hint      string         `json:"hint,omitempty" doc:"what to do next"`
	Field     string         `json:"field,omitempty" doc:"the input field at fault"`
	Remaining *int64         `json:"remaining,omitempty" doc:"units the user may still take of the lot"`
	Facts     map[string]any `json:"facts,omitempty" doc:"more facts for programs"`
}

// Availability is what a lot's stream tells.
type Availability struct {
	Lot       string `json:"lot"`
	Status    string `json:"status"`
	Selling   bool   `json:"selling"`
	Available int64  `json:"available" doc:"units that can be taken now, those of holds past their deadline included"`
	Held      int64  `json:"held"`
	Sold      int64  `json:"sold"`
	Capacity  int64  `json:"capacity"`
	Seq       int64  `json:"seq"`
	Epoch     int64  `json:"epoch"`
}
