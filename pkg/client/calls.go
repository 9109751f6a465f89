package client

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"strconv"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Reserve holds units of a lot for a user. The key names this attempt: with the same lot, user and key the same
// reservation is returned, marked as replayed, however often it is asked for. A refusal does not use the key up.
//
// Refusals: fault.SoldOut, HoldExists (its details name the hold), CustomerLimit, SaleNotOpen, SaleClosed, LotPaused,
// KeyReused (the key named a request with other fields).
func (c *Client) Reserve(ctx context.Context, lot, key string, body ReserveBody) (Reservation, error) {
	x := act(http.MethodPost, body, "v1", "lots", lot, "reservations")
	x.header.Set("Idempotency-Key", key)
	x.err = cmp.Or(x.err, checkLot(lot), checkKey(key))
	r, _, err := call[Reservation](ctx, c, x)
	return r, err
}

// checkLot checks an id before it becomes part of a path.
func checkLot(lot string) error {
	_, err := drop.ParseLotID(lot)
	return err
}

func checkReservation(id string) error {
	_, err := drop.ParseReservationID(id)
	return err
}

// checkKey also refuses spaces at either end: HTTP drops them, and the key would be another one.
func checkKey(key string) error {
	if key != strings.Trim(key, " ") {
		return fault.New(fault.Invalid, "key begins or ends with a space").WithField("key").WithHint("leave it out")
	}
	return drop.CheckText("key", key, true)
}

// Confirm turns a hold into a sale. Unless the body says Ack "stock", the server waits a moment for the ledger; Ledger
// of the answer then is "recorded", or "pending": confirm again to wait on. Refusals: fault.HoldExpired,
// AlreadyConfirmed, AlreadyReleased, AlreadyRefunded, LedgerRejected.
func (c *Client) Confirm(ctx context.Context, id string, body ConfirmBody) (Reservation, error) {
	return c.settle(ctx, id, "confirm", body)
}

// Release gives a hold back, all of it or all but some units. Refusals: fault.HoldExpired, AlreadyConfirmed,
// AlreadyReleased, Conflict.
func (c *Client) Release(ctx context.Context, id string, body ReleaseBody) (Reservation, error) {
	return c.settle(ctx, id, "release", body)
}

// Extend lets a hold last at least so long from now on, as far as the lot allows. Refusals are those of Release.
func (c *Client) Extend(ctx context.Context, id string, body ExtendBody) (Reservation, error) {
	return c.settle(ctx, id, "extend", body)
}

// Refund takes a sale back, or closes what is due. Refusals: fault.NotConfirmed, AlreadyRefunded (to another total),
// Conflict (also if there are both and the body names neither).
func (c *Client) Refund(ctx context.Context, id string, body RefundBody) (Reservation, error) {
	return c.settle(ctx, id, "refund", body)
}

func (c *Client) settle(ctx context.Context, id, action string, body any) (Reservation, error) {
	x := act(http.MethodPost, body, "v1", "reservations", id, action)
	x.err = cmp.Or(x.err, checkReservation(id))
	r, _, err := call[Reservation](ctx, c, x)
	return r, err
}

// Reservation returns one reservation as it is now; fault.NotFound if there is none.
func (c *Client) Reservation(ctx context.Context, id string) (Reservation, error) {
	x := get("v1", "reservations", id)
	x.err = checkReservation(id)
	r, _, err := call[Reservation](ctx, c, x)
	return r, err
}

// Filter says which reservations to list; the zero value lists all.
type Filter struct {
	Lot    string
	User   string
	States []string // held, confirmed, released, expired, refunded; none: any
	Cursor string   // Next of the page before; "": from the start
	Limit  int      // most of a page; 0: as the server likes
}

// Reservations returns one page of the reservations that the ledger has, by lot and age. What happened within the last
// moments may be missing.
func (c *Client) Reservations(ctx context.Context, f Filter) (Page[Reservation], error) {
	x := get("v1", "reservations")
	x.page(f.Cursor, f.Limit)
	for name, value := range map[string]string{"lot": f.Lot, "user": f.User, "state": strings.Join(f.States, ",")} {
		if value != "" {
			x.query.Set(name, value)
		}
	}
	p, _, err := call[Page[Reservation]](ctx, c, x)
	return p, err
}

// AllReservations returns the reservations of a filter one by one, page after page, in the order of Reservations. An
// error ends it.
func (c *Client) AllReservations(ctx context.Context, f Filter) iter.Seq2[Reservation, error] {
	return all(f.Cursor, func(cursor string) (Page[Reservation], error) {
		f.Cursor = cursor
		return c.Reservations(ctx, f)
	})
}

// Lots returns one page of the lots that Redis has, by id: those behind a cursor, "" for the start, and at most limit; 0
// leaves that to the server.
func (c *Client) Lots(ctx context.Context, cursor string, limit int) (Page[Lot], error) {
	x := get("v1", "lots")
	x.page(cursor, limit)
	p, _, err := call[Page[Lot]](ctx, c, x)
	return p, err
}

// pageOfLots is how many lots a server gives at once, at most.
const pageOfLots = 1000

// AllLots returns the lots that Redis has one by one, by id. An error ends it.
func (c *Client) AllLots(ctx context.Context) iter.Seq2[Lot, error] {
	return all("", func(cursor string) (Page[Lot], error) { return c.Lots(ctx, cursor, pageOfLots) })
}

// Lot returns one lot as it is now.
func (c *Client) Lot(ctx context.Context, lot string) (Lot, error) {
	x := get("v1", "lots", lot)
	x.err = checkLot(lot)
	l, _, err := call[Lot](ctx, c, x)
	return l, err
}

// PutLot creates a lot, or changes it to what the body says. It takes the scope admin, as every call does that changes a
// lot.
func (c *Client) PutLot(ctx context.Context, lot string, body LotBody) (l Lot, created bool, err error) {
	l, told, err := c.sendLot(ctx, http.MethodPut, lot, body)
	return l, told.created, err
}

// OpenLot lets a lot sell again, PauseLot stops new holds for a while, CloseLot ends the sale; holds that exist can still
// be settled. changed is false if it was so already.
func (c *Client) OpenLot(ctx context.Context, lot string, body StatusBody) (l Lot, changed bool, err error) {
	return c.changeLot(ctx, lot, "open", body)
}

// PauseLot stops new holds for a while (see OpenLot).
func (c *Client) PauseLot(ctx context.Context, lot string, body StatusBody) (l Lot, changed bool, err error) {
	return c.changeLot(ctx, lot, "pause", body)
}

// CloseLot ends the sale (see OpenLot).
func (c *Client) CloseLot(ctx context.Context, lot string, body StatusBody) (l Lot, changed bool, err error) {
	return c.changeLot(ctx, lot, "close", body)
}

// AdjustLot changes the capacity of a lot, once: changed is false if the call, or one like it, was carried out before.
// fault.Conflict if the capacity is not what the body expects, or would fall below what is held and sold.
func (c *Client) AdjustLot(ctx context.Context, lot string, body AdjustBody) (l Lot, changed bool, err error) {
	return c.changeLot(ctx, lot, "adjust", body)
}

func (c *Client) changeLot(ctx context.Context, lot, action string, body any) (Lot, bool, error) {
	l, told, err := c.sendLot(ctx, http.MethodPost, lot, body, action)
	return l, err == nil && !told.replayed, err
}

func (c *Client) sendLot(ctx context.Context, method, lot string, body any, action ...string) (Lot, head, error) {
	x := act(method, body, append([]string{"v1", "lots", lot}, action...)...)
	x.err = cmp.Or(x.err, checkLot(lot))
	return call[Lot](ctx, c, x)
}

// page asks for one page of a list.
func (x exchange) page(cursor string, limit int) {
	if cursor != "" {
		x.query.Set("cursor", cursor)
	}
	if limit != 0 {
		x.query.Set("limit", strconv.Itoa(limit))
	}
}

// all walks through the pages of a list.
func all[T any](cursor string, next func(cursor string) (Page[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for at := cursor; ; {
			p, err := next(at)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range p.Items {
				if !yield(item, nil) {
					return
				}
			}
			if p.Next == "" || p.Next == at { // the same cursor again would go on for ever
				return
			}
			at = p.Next
		}
	}
}
