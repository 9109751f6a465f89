package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/sign"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// route is one call of the API: who answers it, and all that its document says of it.
type route struct {
	method, path string
	id           string
	summary      string
	about        string
	scope        drop.Scope // that the key needs; "" for none
	serve        func(*API, http.ResponseWriter, *http.Request) error
	params       []param
	body         any // an example of it; nil: the call has none
	answers      []answerDoc
	refusals     []fault.Code // beside those that every call may meet
}

// param is a parameter of a query or a header.
type param struct {
	in, name, about string
	example         any // tells its type too
	required        bool
}

// answerDoc is one way in which a call succeeds.
type answerDoc struct {
	status  int
	about   string
	kind    string // content type; "" for JSON
	example any
	headers []param
}

// routes gives every path of the API to who answers it, and all others to a problem.
func (a *API) routes(mux *http.ServeMux) {
	for _, rt := range allRoutes() {
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) {
			if err := a.answer(rt, w, r); err != nil {
				a.fail(w, r, err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.fail(w, r, a.nowhere(mux, w, r)) })
}

func (a *API) answer(rt route, w http.ResponseWriter, r *http.Request) error {
	if rt.scope != "" {
		if err := a.access.need(callOf(r.Context()), rt.scope); err != nil {
			return err
		}
	}
	if r.URL.RawQuery != "" && strings.HasPrefix(rt.path, "/v1/") && !rt.hasQuery() {
		// Fields in the wrong place: without them the call would do something else than was meant.
		if _, err := queryOf(r); err != nil {
			return err
		}
	}
	return rt.serve(a, w, r)
}

func (rt route) hasQuery() bool {
	return slices.ContainsFunc(rt.params, func(p param) bool { return p.in == "query" })
}

// nowhere says why nothing answers a request: wrong method, which it then names in Allow, or wrong path.
func (a *API) nowhere(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if allowed == nil {
		return fault.New(fault.NotFound, "there is nothing at this path").WithHint("see the calls: /openapi.json")
	}
	if slices.Contains(allowed, http.MethodGet) {
		allowed = append(allowed, http.MethodHead)
	}
	w.Header()["Allow"] = []string{strings.Join(allowed, ", ")}
	return fault.New(fault.MethodNotAllowed, "this path has no call %s", printable(r.Method))
}

// tidy refuses paths that mean another one, which the mux would answer with a redirection: nobody who calls an API writes
// them, and no key must travel to a place that somebody else's text names.
func (a *API) tidy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if !strings.HasPrefix(path, "/") || strings.Contains(path, "//") || strings.Contains(path, "/.") || r.Method == http.MethodConnect {
			a.fail(w, r, fault.New(fault.NotFound, "there is nothing at this path").WithHint("see the calls: /openapi.json"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func allRoutes() []route {
	return slices.Concat(reservationRoutes(), settleRoutes(), lotRoutes(), paymentRoutes(), operatorRoutes())
}

// Examples of the document.
const exampleID = "truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17"

func exampleReservation(change func(*client.Reservation)) client.Reservation {
	r := client.Reservation{ID: exampleID, Lot: "truffle-99", User: "ada", State: "held", Qty: 2, Deadline: moment(exampleTime.Add(client.Duration(300))),
		Left: new(299.8), Key: "order-4711", Created: &exampleTime, Seq: 17, Remaining: new(int64(1))}
	if change != nil {
		change(&r)
	}
	return r
}

func exampleSettled(state string, qty, refunded int64) client.Reservation {
	return exampleReservation(func(r *client.Reservation) {
		r.State, r.Qty, r.Refunded, r.Seq, r.Deadline, r.Left, r.Key = state, qty, refunded, 18, nil, nil, ""
	})
}

var (
	keyParam    = param{"header", "Idempotency-Key", "Names this attempt of the user. Asked again with the same lot, user and key, the call answers with the same reservation and takes nothing more.", "order-4711", true}
	cursorParam = param{"query", "cursor", "The page behind the one whose `next` this is.", "", false}
	limitParam  = param{"query", "limit", "At most so many items, 1 to 1000; default 100.", 100, false}

	replayedHeader = param{"", "Idempotency-Replayed", "`true`: it already was so; the call changed nothing.", "true", false}
	locationHeader = param{"", "Location", "Where to look at what was made.", "/v1/reservations/" + exampleID, false}
)

func reservationRoutes() []route {
	return []route{
		{method: http.MethodPost, path: "/v1/lots/{lot}/reservations", id: "reserve", summary: "Hold units of a lot for a user",
			about: "Holds units until a deadline; confirm the reservation before it. A refusal does not use the key up.",
			scope: drop.ScopeReserve, serve: (*API).reserve, params: []param{keyParam}, body: client.ReserveBody{User: "ada", Qty: 2, Hold: 300},
			answers: []answerDoc{
				{http.StatusCreated, "A new hold.", "", exampleReservation(nil), []param{locationHeader}},
				{http.StatusOK, "The key is known: its reservation as it is now.", "", exampleReservation(func(r *client.Reservation) { r.Replayed = true }), []param{replayedHeader}}},
			refusals: []fault.Code{fault.NotFound, fault.SaleNotOpen, fault.SaleClosed, fault.LotPaused, fault.CustomerLimit, fault.SoldOut, fault.HoldExists, fault.KeyReused,
				fault.Overloaded, fault.Backpressure, fault.LotFrozen, fault.LotNotLoaded, fault.OutcomeUnknown, fault.OutOfMemory}},
		{method: http.MethodGet, path: "/v1/reservations", id: "list-reservations", summary: "List reservations",
			about: "Lists reservations by lot and age, as the ledger has them: what happened within the last moments may be missing. A key with a tenant lists those of its tenant.",
			scope: drop.ScopeRead, serve: (*API).listReservations,
			params: []param{{"query", "lot", "Only of this lot.", "truffle-99", false}, {"query", "user", "Only of this user.", "ada", false},
				{"query", "state", "Only in these states, separated by commas.", "held,confirmed", false}, cursorParam, limitParam},
			answers: []answerDoc{{http.StatusOK, "One page.", "", client.Page[client.Reservation]{Items: []client.Reservation{exampleSettled("confirmed", 2, 0)}, Next: exampleID}, nil}}, refusals: []fault.Code{fault.Overloaded}},
		{method: http.MethodGet, path: "/v1/reservations/{id}", id: "show-reservation", summary: "Look at a reservation",
			about: "Answers with the reservation as Redis has it and, in `recorded`, as the ledger has it.",
			scope: drop.ScopeRead, serve: (*API).showReservation,
			answers: []answerDoc{{http.StatusOK, "The reservation.", "", exampleReservation(func(r *client.Reservation) {
				r.Source, r.Recorded = "redis", &client.Recorded{State: "held", Qty: 2, Seq: 17, Changed: exampleTime}
			}), nil}}, refusals: []fault.Code{fault.NotFound, fault.Overloaded}},
	}
}

// What settling may be refused with.
var notSettled = []fault.Code{fault.NotFound, fault.HoldExpired, fault.AlreadyConfirmed, fault.AlreadyReleased, fault.AlreadyRefunded, fault.Conflict,
	fault.Overloaded, fault.LotFrozen, fault.LotNotLoaded, fault.OutcomeUnknown}

func settleRoutes() []route {
	const base = "/v1/reservations/{id}"
	settled := func(about string, example client.Reservation) []answerDoc {
		return []answerDoc{{http.StatusOK, about, "", example, []param{replayedHeader}}}
	}
	return []route{
		{method: http.MethodPost, path: base + "/confirm", id: "confirm", summary: "Turn a hold into a sale",
			about: "Waits for the ledger, up to two seconds; with `ack: stock` it answers at once. Asked again for the same quantity and payment it succeeds again.",
			scope: drop.ScopeSettle, serve: (*API).confirm, body: client.ConfirmBody{Payment: "pay-4711"},
			answers: []answerDoc{
				{http.StatusOK, "Confirmed.", "", exampleReservation(func(r *client.Reservation) {
					*r = exampleSettled("confirmed", 2, 0)
					r.Payment, r.Ledger = "pay-4711", ledgerRecorded
				}), []param{replayedHeader}},
				{http.StatusAccepted, "Confirmed, but the ledger needs longer than the call waits. Ask again to wait on.", "", exampleReservation(func(r *client.Reservation) {
					*r = exampleSettled("confirmed", 2, 0)
					r.Payment, r.Ledger, r.LedgerLag = "pay-4711", ledgerPending, new(3.5)
				}), []param{replayedHeader}}},
			refusals: slices.Concat(notSettled, []fault.Code{fault.LedgerRejected, fault.SoldOut, fault.CustomerLimit, fault.HoldExists})},
		{method: http.MethodPost, path: base + "/release", id: "release", summary: "Give a hold back",
			about: "Gives all units back, or all but `keep`. The number that stays makes a repeated call act once.",
			scope: drop.ScopeSettle, serve: (*API).release, body: client.ReleaseBody{Keep: 1}, answers: settled("Given back.", exampleSettled("released", 2, 0)), refusals: notSettled},
		{method: http.MethodPost, path: base + "/extend", id: "extend", summary: "Let a hold last longer",
			about: "The deadline becomes the later of what it is and so many seconds from now, as far as the lot allows.",
			scope: drop.ScopeSettle, serve: (*API).extend, body: client.ExtendBody{By: 300}, answers: settled("The hold with its deadline.", exampleReservation(nil)), refusals: notSettled},
		{method: http.MethodPost, path: base + "/refund", id: "refund", summary: "Take a sale back",
			about: "Refunds all units, or until `total` are refunded in all, which makes a repeated call act once. Where a payment paid for nothing and is due, it records that the money was given back instead; `due` asks for just that.",
			scope: drop.ScopeSettle, serve: (*API).refund, body: client.RefundBody{Total: new(int64(1))}, answers: settled("Refunded.", exampleSettled("confirmed", 1, 1)),
			refusals: slices.Concat(notSettled, []fault.Code{fault.NotConfirmed})},
	}
}

var exampleLot = client.Lot{Lot: "truffle-99", Name: "White truffle, 99 g", Status: "open", Selling: true, Capacity: 100, Available: 40, Held: 35, Sold: 25, Limit: 3,
	Hold: 300, MaxHold: 1800, Opens: &exampleTime, Late: "refuse", Epoch: 1, Seq: 120}

func lotRoutes() []route {
	const base = "/v1/lots/{lot}"
	trouble := []fault.Code{fault.NotFound, fault.LotFrozen, fault.LotNotLoaded, fault.OutcomeUnknown}
	changed := func(about string) []answerDoc {
		return []answerDoc{{http.StatusOK, about, "", exampleLot, []param{replayedHeader}}}
	}
	return []route{
		{method: http.MethodGet, path: "/v1/lots", id: "list-lots", summary: "List lots", about: "Lists the lots that Redis has, by id.",
			scope: drop.ScopeRead, serve: (*API).listLots, params: []param{cursorParam, limitParam},
			answers: []answerDoc{{http.StatusOK, "One page.", "", client.Page[client.Lot]{Items: []client.Lot{exampleLot}}, nil}}, refusals: []fault.Code{fault.Overloaded}},
		{method: http.MethodGet, path: base, id: "show-lot", summary: "Look at a lot", about: "Answers with the lot as Redis has it at this moment.",
			scope: drop.ScopeRead, serve: (*API).showLot, answers: []answerDoc{{http.StatusOK, "The lot.", "", exampleLot, nil}}, refusals: append(trouble, fault.Overloaded)},
		{method: http.MethodGet, path: base + "/events", id: "watch-lot", summary: "Watch a lot live",
			about: "Streams server-sent events named `availability`, whose data is an Availability: at first what it is, then each change, those within 0.2 s as one. A comment keeps the stream alive. " +
				"Begun again with Last-Event-ID it sends nothing that is known. It ends when the server stops.",
			scope: drop.ScopeRead, serve: (*API).watchLot, params: []param{{"header", "Last-Event-ID", "Id of the last event that was received.", "1-120-40-true", false}},
			answers: []answerDoc{{http.StatusOK, "The stream.", "text/event-stream", "event: availability\nid: 1-120-40-true\ndata: {\"lot\":\"truffle-99\",\"status\":\"open\",\"selling\":true," +
				"\"available\":40,\"held\":35,\"sold\":25,\"capacity\":100,\"seq\":120,\"epoch\":1}\n\n", nil}}, refusals: append(trouble, fault.Overloaded)},
		{method: http.MethodPut, path: base, id: "put-lot", summary: "Create or change a lot",
			about: "Creates the lot if the ledger has never known it, else changes what the body names. Needs both Redis and PostgreSQL.",
			scope: drop.ScopeAdmin, serve: (*API).putLot, body: client.LotBody{Stock: new(int64(100)), Limit: new(int64(3)), Opens: &exampleTime, Name: new("White truffle, 99 g")},
			answers:  []answerDoc{{http.StatusOK, "The lot as it is now.", "", exampleLot, []param{replayedHeader}}, {http.StatusCreated, "The new lot.", "", exampleLot, []param{locationHeader}}},
			refusals: append(trouble, fault.Conflict, fault.Busy, fault.Backpressure, fault.NotMigrated, fault.Foreign, fault.OutOfMemory)},
		{method: http.MethodPost, path: base + "/open", id: "open-lot", summary: "Let a lot sell",
			about: "Lets a lot sell that was paused or closed, unless its Redis could lose its stock. A sales window still counts.",
			scope: drop.ScopeAdmin, serve: (*API).openLot, body: client.StatusBody{Reason: "prices are right now"}, answers: changed("The open lot."), refusals: append(trouble, fault.Conflict, fault.UnsafeRedis, fault.Foreign)},
		{method: http.MethodPost, path: base + "/pause", id: "pause-lot", summary: "Stop new holds for a while", about: "Takes no new holds; those that exist can be settled. Works while PostgreSQL is down.",
			scope: drop.ScopeAdmin, serve: (*API).pauseLot, body: client.StatusBody{Reason: "wrong price"}, answers: changed("The paused lot."), refusals: append(trouble, fault.Conflict)},
		{method: http.MethodPost, path: base + "/close", id: "close-lot", summary: "End the sale of a lot", about: "Takes no new holds any more; those that exist can be settled.",
			scope: drop.ScopeAdmin, serve: (*API).closeLot, body: client.StatusBody{Reason: "the evening is over"}, answers: changed("The closed lot."), refusals: append(trouble, fault.Conflict)},
		{method: http.MethodPost, path: base + "/adjust", id: "adjust-lot", summary: "Change how many units a lot has",
			about: "Changes the capacity by a number of units or to one. `expect` is what it is now: so a repeated call acts once.",
			scope: drop.ScopeAdmin, serve: (*API).adjustLot, body: client.AdjustBody{By: new(int64(-5)), Expect: 100, Reason: "five were bruised"}, answers: changed("The lot with its new capacity."), refusals: append(trouble, fault.Conflict)},
	}
}

func paymentRoutes() []route {
	return []route{{method: http.MethodPost, path: paymentPath, id: "payment-callback", summary: "Say what became of a charge",
		about: "For the payment gateway of `--payment webhook`, which needs no key but signs: the header holds the time in seconds and the HMAC-SHA256 of time, dot and body under the shared secret. " +
			"A call may be repeated. Approved after declined counts, since the money has moved; any other contradiction is a conflict. " +
			"Fields that are not listed here may be there and are not looked at.",
		serve:    (*API).takePayment,
		params:   []param{{"header", sign.HeaderName, "At most five minutes old.", "t=1764583200,v1=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", true}},
		body:     client.PaymentBody{Reservation: exampleID, Attempt: 1, Status: "approved", Reference: "ch_1027"},
		answers:  []answerDoc{{http.StatusOK, "Recorded.", "", client.PaymentTaken{Reservation: exampleID, Attempt: 1, Status: "approved"}, []param{replayedHeader}}},
		refusals: []fault.Code{fault.Unauthorized, fault.NotFound, fault.Conflict, fault.Unavailable}}}
}

func operatorRoutes() []route {
	return []route{
		{method: http.MethodGet, path: "/livez", id: "livez", summary: "Does the server run?", serve: func(_ *API, w http.ResponseWriter, r *http.Request) error {
			telemetry.Livez(w, r)
			return nil
		}, answers: []answerDoc{{http.StatusOK, "It runs.", "", map[string]bool{"alive": true}, nil}}},
		{method: http.MethodGet, path: "/readyz", id: "readyz", summary: "Can the server sell?", serve: func(a *API, w http.ResponseWriter, r *http.Request) error {
			a.opt.Health.Readyz(w, r)
			return nil
		}, answers: []answerDoc{{http.StatusOK, "Everything needed is there.", "", exampleReady, nil}, {http.StatusServiceUnavailable, "Something needed is not there.", "", exampleUnready, nil}}},
		{method: http.MethodGet, path: "/metrics", id: "metrics", summary: "Metrics for Prometheus", scope: drop.ScopeRead, serve: func(a *API, w http.ResponseWriter, r *http.Request) error {
			a.opt.Metrics.Handler().ServeHTTP(w, r)
			return nil
		}, answers: []answerDoc{{http.StatusOK, "The metrics: dropctl metrics list.", "text/plain", "dropctl_api_in_flight_requests 1\n", nil}}},
		{method: http.MethodGet, path: "/openapi.json", id: "openapi", summary: "This document", serve: (*API).showDocument,
			answers: []answerDoc{{http.StatusOK, "The document.", "", map[string]any{"openapi": "3.1.0"}, nil}}},
	}
}

var (
	exampleReady   = telemetry.Readiness{Ready: true, Checks: map[string]telemetry.Checked{"redis": {OK: true, Needed: true}, "postgres": {OK: true}}}
	exampleUnready = telemetry.Readiness{Checks: map[string]telemetry.Checked{"redis": {Needed: true, Code: fault.Unavailable}, "postgres": {OK: true}}}
)
