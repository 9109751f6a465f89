// Package api is the HTTP face of a drop: what shop back ends call while thousands press the button. It admits, limits
// and answers; the engine behind it decides.
package api

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// Stock is the engine as the API sees it, for many requests at once. Its errors carry codes of the table.
type Stock interface {
	// Reserve and Settle may have acted although they return fault.OutcomeUnknown: who asks again in the same way learns it.
	Reserve(ctx context.Context, q drop.ReserveRequest) (drop.Outcome, error)
	Settle(ctx context.Context, q drop.SettleRequest) (drop.Outcome, error)
	// Unknown reports whether a lot has no record of the attempt (lot, user, key), and none of the user.
	Unknown(ctx context.Context, lot drop.LotID, user, key string) (bool, error)
	// Reservation returns a reservation as Redis has it; fault.NotFound if it does not, or no longer.
	Reservation(ctx context.Context, id drop.ReservationID) (drop.Reservation, error)
	// Lot returns one atomic look at a lot; fault.LotNotLoaded if Redis has no such lot.
	Lot(ctx context.Context, lot drop.LotID) (drop.LotState, error)
	// UsersOf returns what some users hold and have bought of a lot; one without a record is absent.
	UsersOf(ctx context.Context, lot drop.LotID, users []string) (map[string]drop.UserCount, error)
	// LotStates returns a look at each of the lots; one that Redis has not is absent.
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	// Lots lists every lot that Redis has, sorted.
	Lots(ctx context.Context) ([]drop.LotID, error)
	// Adjust and Change return the lot as it then is, and whether it was so before.
	Adjust(ctx context.Context, q drop.AdjustRequest) (drop.LotState, bool, error)
	Change(ctx context.Context, q drop.ChangeRequest) (drop.LotState, bool, error)
}

// Ledger is what the API asks PostgreSQL. Reserving and settling never need it.
type Ledger interface {
	// ReservationsByID returns these reservations; one that the ledger does not know is absent.
	ReservationsByID(ctx context.Context, ids []drop.ReservationID) (map[drop.ReservationID]drop.Recorded, error)
	// Reservations returns one page, in the order of lot and age.
	Reservations(ctx context.Context, f drop.ReservationFilter) ([]drop.Recorded, error)
	// WhyAbsent is why Redis rightly has no such lot, nil if it should have it; err is why that is not known.
	WhyAbsent(ctx context.Context, lot drop.LotID) (why, err error)
	// DueOf returns what is due of a reservation for payments that paid for nothing; CloseDue records that their money was
	// given back, and returns of how many payments: 0 if that was known.
	DueOf(ctx context.Context, id drop.ReservationID) (drop.Due, error)
	CloseDue(ctx context.Context, id drop.ReservationID, actor, reason string) (int64, error)
}

// Payments records what a payment gateway says of a charge. replayed: it was known. Errors: fault.NotFound, Conflict.
type Payments interface {
	TakePayment(ctx context.Context, id drop.ReservationID, number int, p drop.Payment) (replayed bool, err error)
}

// Lots creates lots and opens them, which takes both stores.
type Lots interface {
	// Put creates a lot, or changes it to what the body says; what the body leaves out stays, or takes its default.
	Put(ctx context.Context, lot drop.LotID, body client.LotBody, actor string) (drop.LotState, Put, error)
	// Open lets a lot sell, unless its Redis could lose its stock. same: it did already.
	Open(ctx context.Context, lot drop.LotID, actor, reason string) (state drop.LotState, same bool, err error)
}

// Put is what putting a lot has done.
type Put int

// What it may have done.
const (
	PutSame Put = iota // nothing: it was so
	PutChanged
	PutCreated
)

// Options says what the API works with and how much it takes. Zero durations and numbers take the defaults named here.
type Options struct {
	Stock  Stock
	Ledger Ledger
	Lots   Lots

	Payments      Payments
	PaymentSecret string // that a gateway's calls are signed with; "": none is listened to

	Access  *Access
	Limits  *Limits
	Health  *telemetry.Health // for /readyz
	Metrics *telemetry.Metrics
	Log     *slog.Logger
	// Deliveries takes what a queue delivers to POST /internal/outbox; nil: there is no such route.
	Deliveries Deliveries

	Queue      int           // requests within the engine at once, above it 503 overloaded; default 4096
	MaxStreams int           // open streams of availability; default 1000
	Heartbeat  time.Duration // of a stream; default 15s
	LedgerWait time.Duration // how long a confirm waits for the ledger; default 2s
	// Lag estimates how long the ledger needs for what is confirmed now; nil if nobody knows.
	Lag func() time.Duration
}

func (o Options) withDefaults() Options {
	if o.Queue == 0 {
		o.Queue = 4096
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 1000
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 15 * time.Second
	}
	if o.LedgerWait == 0 {
		o.LedgerWait = 2 * time.Second
	}
	if o.Lag == nil {
		o.Lag = func() time.Duration { return 0 }
	}
	if o.Health == nil {
		o.Health = &telemetry.Health{}
	}
	if o.Metrics == nil {
		o.Metrics = telemetry.New()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Access == nil { // nobody is let in
		o.Access = NewAccess(AccessOptions{})
	}
	if o.Limits == nil {
		o.Limits = NewLimits(LimitOptions{})
	}
	return o
}

// API answers the requests of one server. It is safe for concurrent use.
type API struct {
	opt      Options
	metrics  *telemetry.API
	access   *Access
	limits   *Limits
	engine   *admission
	recorded *recorded
	absent   *absentLots
	lots     *catalogue
	pages    chan struct{} // of reservations, being read
	streams  *streams
	document func() ([]byte, error)
	told     sync.Map // fault.Code → *rate.Sometimes: what of trouble with the stores was logged lately
	handler  http.Handler
	closing  chan struct{} // closed when the server stops accepting: streams end then
}

// New returns an API that is ready to serve.
func New(o Options) *API {
	o = o.withDefaults()
	a := &API{opt: o, metrics: o.Metrics.API, access: o.Access, limits: o.Limits, closing: make(chan struct{})}
	a.engine = newAdmission(o.Stock, a.metrics, o.Queue)
	a.recorded = newRecorded(o.Ledger, o.LedgerWait, o.Lag, a.metrics)
	a.document = sync.OnceValues(writeDocument)
	a.absent, a.lots, a.streams = newAbsentLots(o.Ledger), &catalogue{stock: o.Stock}, newStreams(o.Stock, o.MaxStreams)
	a.pages = make(chan struct{}, pagesAtOnce)
	o.Health.Need("serving", a.serving)
	a.limits.refused = a.metrics.RateLimited
	mux := http.NewServeMux()
	a.routes(mux)
	a.handler = a.observed(a.delivered(a.limits.byAddress(a.access.admit(a.limits.byKey(a.tidy(mux), a.fail), a.fail), a.fail)))
	return a
}

// Handler answers every request of the API.
func (a *API) Handler() http.Handler { return a.handler }

// serving is an error once the server stops: what balances the load must send nobody any more.
func (a *API) serving() error {
	select {
	case <-a.closing:
		return fault.New(fault.Unavailable, "the server stops")
	default:
		return nil
	}
}
