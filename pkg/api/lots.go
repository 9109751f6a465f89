package api

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// listLots answers with one page of the lots that Redis has, by id.
func (a *API) listLots(w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r, "cursor", "limit")
	if err != nil {
		return err
	}
	limit, err := limitOf(q)
	if err != nil {
		return err
	}
	lots, err := a.lots.list(r.Context())
	if err != nil {
		return err
	}
	if cursor := q.Get("cursor"); cursor != "" {
		after, err := drop.ParseLotID(cursor)
		if err != nil {
			return badCursor()
		}
		at, found := slices.BinarySearch(lots, after)
		if found {
			at++
		}
		lots = lots[at:]
	}
	page := client.Page[client.Lot]{Items: []client.Lot{}}
	if len(lots) > limit {
		lots = lots[:limit]
		page.Next = string(lots[limit-1])
	}
	states, err := a.engine.LotStates(r.Context(), lots)
	if err != nil {
		return err
	}
	for _, lot := range lots {
		if st, ok := states[lot]; ok && st.Damaged == "" { // one that is gone or damaged has no numbers to show
			page.Items = append(page.Items, viewLot(st))
		}
	}
	return answerJSON(w, http.StatusOK, page)
}

// catalogue lists the lots that Redis has. That takes a walk through its key space, so whoever asks within a moment of
// another gets the same list, or the same error: those who wait must not try one after the other.
type catalogue struct {
	stock Stock

	mu    sync.Mutex
	lots  []drop.LotID
	err   error
	until time.Time
}

// catalogueFor is how old a list may be.
const catalogueFor = 500 * time.Millisecond

func (l *catalogue) list(ctx context.Context) ([]drop.LotID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().After(l.until) {
		l.lots, l.err = l.stock.Lots(ctx)
		l.until = time.Now().Add(catalogueFor)
	}
	return l.lots, l.err
}

func (a *API) showLot(w http.ResponseWriter, r *http.Request) error {
	lot, err := lotOf(callOf(r.Context()), r)
	if err != nil {
		return err
	}
	state, err := a.engine.Lot(r.Context(), lot)
	if err != nil {
		return a.aboutLot(r.Context(), lot, err)
	}
	return answerJSON(w, http.StatusOK, viewLot(state))
}

// putLot creates a lot or changes it.
func (a *API) putLot(w http.ResponseWriter, r *http.Request) error {
	c := callOf(r.Context())
	lot, err := lotOf(c, r)
	if err != nil {
		return err
	}
	body, err := read(r, parseLot)
	if err != nil {
		return err
	}
	state, done, err := a.opt.Lots.Put(r.Context(), lot, body, c.actor())
	if err != nil {
		return err
	}
	if done == PutCreated {
		w.Header()["Location"] = []string{"/v1/lots/" + string(lot)}
		return answerJSON(w, http.StatusCreated, viewLot(state))
	}
	return a.answerChanged(w, r, state, done == PutSame)
}

func parseLot(o *object) (b client.LotBody) {
	for o.next() {
		switch o.name {
		case "stock":
			b.Stock = new(o.units(0))
		case "limit":
			b.Limit = new(o.units(0))
		case "hold_seconds":
			b.Hold = new(o.seconds())
		case "max_hold_seconds":
			b.MaxHold = new(o.seconds())
		case "opens":
			b.Opens = o.time()
		case "closes":
			b.Closes = o.time()
		case "late":
			b.Late = o.oneOf(string(drop.Refuse), string(drop.Reclaim))
		case "status":
			b.Status = o.oneOf(string(drop.Open), string(drop.Paused), string(drop.Closed))
		case "name":
			b.Name = new(o.line())
		default:
			o.unknown()
		}
	}
	return b
}

// openLot lets a lot sell, unless its Redis could lose its stock.
func (a *API) openLot(w http.ResponseWriter, r *http.Request) error {
	return a.changeLot(w, r, a.opt.Lots.Open)
}

func (a *API) pauseLot(w http.ResponseWriter, r *http.Request) error {
	return a.changeLot(w, r, a.setStatus(drop.Paused))
}

func (a *API) closeLot(w http.ResponseWriter, r *http.Request) error {
	return a.changeLot(w, r, a.setStatus(drop.Closed))
}

// setStatus is the change of a lot's status alone, which needs Redis only.
func (a *API) setStatus(status drop.Status) lotChange {
	return func(ctx context.Context, lot drop.LotID, actor, reason string) (drop.LotState, bool, error) {
		return a.engine.Change(ctx, drop.ChangeRequest{Lot: lot, Status: &status, Actor: actor, Reason: reason})
	}
}

// lotChange changes a lot and reports whether it was so before.
type lotChange func(ctx context.Context, lot drop.LotID, actor, reason string) (drop.LotState, bool, error)

// changeLot reads why a lot is to be changed, does it, and answers with the lot as it then is.
func (a *API) changeLot(w http.ResponseWriter, r *http.Request, change lotChange) error {
	c := callOf(r.Context())
	lot, err := lotOf(c, r)
	if err != nil {
		return err
	}
	body, err := read(r, parseStatus)
	if err != nil {
		return err
	}
	state, same, err := change(r.Context(), lot, c.actor(), body.Reason)
	if err != nil {
		return a.aboutLot(r.Context(), lot, err)
	}
	return a.answerChanged(w, r, state, same)
}

func parseStatus(o *object) (b client.StatusBody) {
	for o.next() {
		if o.name == "reason" {
			b.Reason = o.line()
		} else {
			o.unknown()
		}
	}
	return b
}

func (a *API) adjustLot(w http.ResponseWriter, r *http.Request) error {
	c := callOf(r.Context())
	lot, err := lotOf(c, r)
	if err != nil {
		return err
	}
	body, err := read(r, parseAdjust)
	if err != nil {
		return err
	}
	q := drop.AdjustRequest{Lot: lot, By: body.By, To: body.To, Expect: body.Expect, Actor: c.actor(), Reason: body.Reason}
	state, same, err := a.engine.Adjust(r.Context(), q)
	if err != nil {
		return a.aboutLot(r.Context(), lot, err)
	}
	return a.answerChanged(w, r, state, same)
}

func parseAdjust(o *object) (b client.AdjustBody) {
	expected := false
	for o.next() {
		switch o.name {
		case "by":
			b.By = new(o.units(-drop.MaxUnits))
		case "to":
			b.To = new(o.units(0))
		case "expect":
			b.Expect, expected = o.units(0), true
		case "reason":
			b.Reason = o.line()
		default:
			o.unknown()
		}
	}
	switch {
	case !expected:
		o.missing("expect")
	case b.By == nil && b.To == nil:
		o.missing("by")
	case b.By != nil && b.To != nil:
		o.name = "to"
		o.refuse("does not go together with by", "say by how many units or to what number, not both")
	case b.By != nil && *b.By == 0:
		o.name = "by"
		o.refuse("is 0", "say how many units to add; a minus takes away")
	}
	return b
}

// answerChanged answers with a lot as it is after a change that may have been made before.
func (a *API) answerChanged(w http.ResponseWriter, r *http.Request, state drop.LotState, same bool) error {
	if same {
		callOf(r.Context()).replayed = true
		w.Header()["Idempotency-Replayed"] = replayed
	}
	return answerJSON(w, http.StatusOK, viewLot(state))
}

func viewLot(s drop.LotState) client.Lot {
	return client.Lot{Lot: string(s.Lot), Name: s.Name, Status: string(s.Status), Selling: sells(s),
		Capacity: s.Capacity, Available: s.Available, Held: s.Held, Sold: s.Sold, Due: s.Due, Limit: s.Limit,
		Hold: s.Hold.Seconds(), MaxHold: s.MaxHold.Seconds(), Opens: moment(s.Opens), Closes: moment(s.Closes), Late: string(s.Late),
		Epoch: s.Epoch, Seq: s.Seq, Frozen: string(s.FreezeReason())}
}

// sells reports whether a lot takes holds, if it has units.
func sells(s drop.LotState) bool {
	inWindow := !s.Now.Before(s.Opens) && (s.Closes.IsZero() || s.Now.Before(s.Closes))
	return s.Status == drop.Open && inWindow && s.Sells()
}

// aboutLot says more about a lot that Redis has not got: by the ledger it may be archived, or have never been. Where the
// ledger does not answer in time, Redis' word stays.
func (a *API) aboutLot(ctx context.Context, lot drop.LotID, err error) error {
	if !fault.Is(err, fault.LotNotLoaded) {
		return err
	}
	if why := a.absent.ask(ctx, lot); why != nil {
		return why
	}
	return err
}

// absentLots asks the ledger why Redis has no such lot. Somebody who makes ids up must not keep PostgreSQL busy: few ask
// at a time, and an answer serves all who ask within a second.
type absentLots struct {
	ledger Ledger
	places chan struct{}

	mu      sync.Mutex
	answers map[drop.LotID]error
	until   time.Time
}

const (
	absentFor  = time.Second
	absentMost = 10_000 // answers kept
	absentAsk  = 8      // questions at a time
)

func newAbsentLots(l Ledger) *absentLots {
	return &absentLots{ledger: l, places: make(chan struct{}, absentAsk)}
}

// ask returns why Redis rightly has no such lot; nil if it should have it, or if the ledger does not say in time.
func (k *absentLots) ask(ctx context.Context, lot drop.LotID) error {
	if why, asked := k.remembered(lot); asked {
		return why
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerLook)
	defer cancel()
	select {
	case k.places <- struct{}{}:
		defer func() { <-k.places }()
	case <-ctx.Done():
		return nil
	}
	why, err := k.ledger.WhyAbsent(ctx, lot)
	if err != nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.answers) < absentMost {
		k.answers[lot] = why
	}
	return why
}

func (k *absentLots) remembered(lot drop.LotID) (why error, asked bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); !now.Before(k.until) {
		k.answers, k.until = make(map[drop.LotID]error), now.Add(absentFor)
	}
	why, asked = k.answers[lot]
	return why, asked
}
