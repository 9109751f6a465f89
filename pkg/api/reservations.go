package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// showReservation answers with one reservation as Redis has it and with what the ledger has of it.
func (a *API) showReservation(w http.ResponseWriter, r *http.Request) error {
	c := callOf(r.Context())
	id, err := reservationOf(c, r)
	if err != nil {
		return err
	}
	v, err := a.inStock(r.Context(), id)
	if err == nil {
		id, _ = drop.ParseReservationID(v.ID) // a late confirm may have taken it anew
	}
	known, ledgerErr := a.recordedOf(r.Context(), id)
	switch {
	case err != nil && known != nil:
		v = viewRecorded(*known)
		v.Source = "ledger"
	case fault.Is(err, fault.NotFound) && ledgerErr != nil:
		return ledgerErr // which may have it
	case err != nil:
		return err
	}
	if known != nil {
		v.User, v.Key, v.Created, v.Payment = known.User, known.Key, moment(known.Created), known.Ref
		v.Recorded = &client.Recorded{State: string(known.State), Qty: known.Qty, Refunded: known.Refunded, Rejected: known.Rejected, Seq: known.LastSeq, Changed: known.Changed}
	}
	user, mine := c.mine(v.User)
	if !mine && v.User != "" {
		return noReservation(id)
	}
	v.User = user
	return answerJSON(w, http.StatusOK, v)
}

// inStock returns a reservation as Redis has it now, with its user as the stores know it. A hold whose deadline has
// passed is expired, swept or not.
func (a *API) inStock(ctx context.Context, id drop.ReservationID) (client.Reservation, error) {
	lot, err := a.engine.Lot(ctx, id.Lot)
	if err != nil {
		if fault.Is(err, fault.LotNotLoaded) {
			err = noReservation(id)
		}
		return client.Reservation{}, err
	}
	r, err := a.engine.Reservation(ctx, id)
	if err != nil {
		if fault.Is(err, fault.NotFound) {
			err = noReservation(id)
		}
		return client.Reservation{}, err
	}
	back := int64(0)
	if r.State == drop.Held && !r.Deadline.After(lot.Now) {
		r.State, back = drop.Expired, r.Qty
	}
	v := viewOf(r, r.User, lot.Now)
	v.Source = "redis"
	if lot.Limit > 0 && r.User != "" {
		users, err := a.engine.UsersOf(ctx, id.Lot, []string{r.User})
		if err != nil {
			return v, err
		}
		left := max(0, lot.Limit-users[r.User].Held-users[r.User].Bought+back)
		v.Remaining = &left
	}
	return v, nil
}

// recordedOf returns a reservation as the ledger has it, nil if it has not. The error says that it does not answer.
func (a *API) recordedOf(ctx context.Context, id drop.ReservationID) (*drop.Recorded, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerLook)
	defer cancel()
	found, err := a.opt.Ledger.ReservationsByID(ctx, []drop.ReservationID{id})
	if err != nil {
		return nil, err
	}
	if known, ok := found[id]; ok {
		return &known, nil
	}
	return nil, nil
}

// viewRecorded is a reservation as the ledger has it.
func viewRecorded(r drop.Recorded) client.Reservation {
	v := viewOf(r.Reservation, r.User, time.Time{})
	v.Key = r.Key
	if r.State != drop.Held {
		v.Deadline = nil
	}
	return v
}

// listReservations answers with one page of what the ledger has.
func (a *API) listReservations(w http.ResponseWriter, r *http.Request) error {
	c := callOf(r.Context())
	f, err := filterOf(c, r)
	if err != nil {
		return err
	}
	limit := f.Limit
	f.Limit++ // one more, to know whether there are more
	list, err := a.pageOf(r.Context(), f)
	if err != nil {
		return err
	}
	page := client.Page[client.Reservation]{Items: []client.Reservation{}}
	for _, r := range list[:min(limit, len(list))] {
		v := viewRecorded(r)
		v.User, _ = c.mine(r.User)
		page.Items = append(page.Items, v)
	}
	if len(list) > limit {
		page.Next = page.Items[limit-1].ID
	}
	return answerJSON(w, http.StatusOK, page)
}

// pagesAtOnce is how many pages PostgreSQL reads at a time. They may take long; its other connections are for those who
// confirm.
const pagesAtOnce = 4

// pageOf asks the ledger for a page; overloaded if others are asked for so long that this one is not worth waiting for.
func (a *API) pageOf(ctx context.Context, f drop.ReservationFilter) ([]drop.Recorded, error) {
	patience := time.NewTimer(ledgerLook)
	defer patience.Stop()
	select {
	case a.pages <- struct{}{}:
		defer func() { <-a.pages }()
		return a.opt.Ledger.Reservations(ctx, f)
	case <-patience.C:
		return nil, fault.New(fault.Overloaded, "%d lists are being read already", pagesAtOnce)
	}
}

// filterOf reads which reservations a request wants to see. A tenant sees its own.
func filterOf(c *call, r *http.Request) (f drop.ReservationFilter, err error) {
	q, err := queryOf(r, "lot", "user", "state", "cursor", "limit")
	if err != nil {
		return f, err
	}
	f.Tenant = c.key.Tenant
	if lot := q.Get("lot"); lot != "" {
		if f.Lot, err = drop.ParseLotID(lot); err != nil {
			return f, err
		}
		c.lot = f.Lot
	}
	if user := q.Get("user"); user != "" {
		if err := drop.CheckText("user", user, true); err != nil {
			return f, err
		}
		f.User = c.identity(user)
	}
	if states := q.Get("state"); states != "" {
		for text := range strings.SplitSeq(states, ",") {
			state, err := drop.ParseState(text)
			if err != nil {
				return f, err
			}
			f.States = append(f.States, state)
		}
	}
	if cursor := q.Get("cursor"); cursor != "" {
		if f.After, err = drop.ParseReservationID(cursor); err != nil {
			return f, badCursor()
		}
	}
	f.Limit, err = limitOf(q)
	return f, err
}

// queryOf reads the parameters of a query: each of those known at most once, and no others.
func queryOf(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the query is malformed").WithField("query").WithHint("encode its values")
	}
	for name, values := range q {
		switch {
		case !slices.Contains(known, name):
			hint := "leave it out; fields belong into the body"
			if known != nil {
				hint = "use " + strings.Join(known, ", ")
			}
			return nil, fault.New(fault.Invalid, "%.60s is not a parameter of this call", quoted(name)).WithField(printable(name)).WithHint("%s", hint)
		case len(values) > 1:
			return nil, fault.New(fault.Invalid, "%s comes twice", name).WithField(name).WithHint("name every parameter once")
		}
	}
	return q, nil
}

// Sizes of a page.
const (
	pageSize    = 100
	maxPageSize = 1000
)

func limitOf(q url.Values) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return pageSize, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPageSize {
		return 0, fault.New(fault.Invalid, "limit is out of range").WithField("limit").WithHint("use a whole number from 1 to %d", maxPageSize)
	}
	return n, nil
}

func badCursor() error {
	return fault.New(fault.Invalid, "cursor is not one that a page of this list had as its next").WithField("cursor").WithHint("begin without a cursor")
}
