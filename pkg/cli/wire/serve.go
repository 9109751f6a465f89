package wire

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/doctor"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// Shop is both stores as a server uses them. Reserving needs Redis alone, so a server starts also while PostgreSQL does
// not answer, and takes it up once it does. It is safe for concurrent use.
type Shop struct {
	Stock *stock.Stock

	cfg    *config.Config
	getenv func(string) string
	log    *slog.Logger
	ledger atomic.Pointer[ledger.Ledger]
	ready  chan struct{} // closed once the ledger is there
}

// ledgerRetry is how often a ledger that did not answer is tried again.
const ledgerRetry = time.Second

// OpenShop opens both stores, or Redis alone if PostgreSQL is unavailable. The caller closes the shop.
func OpenShop(ctx context.Context, cfg *config.Config, getenv func(string) string, m *telemetry.Metrics, log *slog.Logger) (*Shop, error) {
	if _, err := cfg.Redis(getenv); err != nil { // a missing setting is found before anything is dialled
		return nil, err
	}
	s := &Shop{cfg: cfg, getenv: getenv, log: log, ready: make(chan struct{})}
	within, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	l, err := OpenLedger(within, cfg, getenv)
	switch {
	case err == nil:
		if s.Stock, err = OpenStock(cfg, getenv, l.Installation(), Service(m)); err != nil {
			l.Close()
			return nil, err
		}
		s.takeUp(l)
		return s, nil
	case !fault.Is(err, fault.Unavailable):
		return nil, err
	}
	log.Warn("PostgreSQL does not answer; reserving goes on without it", "error", err)
	alone, cancelAlone := context.WithTimeout(ctx, cfg.Timeout)
	defer cancelAlone()
	s.Stock, err = OpenStockAlone(alone, cfg, getenv, Service(m))
	return s, err
}

func (s *Shop) takeUp(l *ledger.Ledger) {
	s.ledger.Store(l)
	close(s.ready)
}

// LedgerTarget names PostgreSQL for people; it holds no secret.
func (s *Shop) LedgerTarget() string {
	if l := s.ledger.Load(); l != nil {
		return l.Target()
	}
	return "PostgreSQL once it answers"
}

// WhenRecording waits until PostgreSQL is there; nil if ctx ends before.
func (s *Shop) WhenRecording(ctx context.Context) *ledger.Ledger {
	select {
	case <-s.ready:
		return s.ledger.Load()
	case <-ctx.Done():
		return nil
	}
}

// Redis is an error while no Redis server takes calls.
func (s *Shop) Redis() error {
	nodes := s.Stock.Nodes()
	for _, n := range nodes {
		if n.Works() {
			return nil
		}
	}
	return fault.New(fault.Unavailable, "Redis takes no calls")
}

// Close closes both stores.
func (s *Shop) Close() {
	_ = s.Stock.Close()
	if l := s.ledger.Load(); l != nil {
		l.Close()
	}
}

// Ledger returns PostgreSQL; unavailable as long as it never answered.
func (s *Shop) Ledger() (*ledger.Ledger, error) {
	if l := s.ledger.Load(); l != nil {
		return l, nil
	}
	return nil, fault.New(fault.Unavailable, "PostgreSQL has not answered yet")
}

// AwaitLedger tries PostgreSQL until it answers, whatever is in the way: reserving goes on meanwhile. It is an error if
// the two stores then turn out not to belong together: nothing of that Redis must be sold.
func (s *Shop) AwaitLedger(ctx context.Context) error {
	retry := time.NewTicker(ledgerRetry)
	defer retry.Stop()
	for told := fault.Unavailable; s.ledger.Load() == nil; {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		}
		err := s.tryLedger(ctx)
		if fault.Is(err, fault.Foreign) {
			return err
		}
		if code := fault.CodeOf(err); err != nil && code != told && ctx.Err() == nil {
			told = code
			s.log.Warn("PostgreSQL cannot be used yet", "error", err)
		}
	}
	return nil
}

// tryLedger takes up PostgreSQL if it answers, and is that of the data in Redis.
func (s *Shop) tryLedger(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	l, err := OpenLedger(ctx, s.cfg, s.getenv)
	if err != nil {
		return err
	}
	if err := s.sameShop(ctx, l.Installation()); err != nil {
		l.Close()
		return err
	}
	s.log.Info("PostgreSQL answers")
	s.takeUp(l)
	return nil
}

// sameShop refuses a ledger that is not that of the data in Redis. A Redis without data becomes the ledger's.
func (s *Shop) sameShop(ctx context.Context, here ledger.Installation) error {
	owner, shards, err := s.Stock.SetUp(ctx)
	switch {
	case err != nil:
		return err
	case owner != "" && (owner != here.ID || shards != here.Shards):
		return fault.New(fault.Foreign, "Redis holds data of the installation %s, the ledger is that of %s", owner, here.ID)
	case s.Stock.Shards() != here.Shards: // Redis was empty at the start, and nothing could tell
		return fault.New(fault.Foreign, "the ledger was set up with %d shards, which this server did not know when it began with %d", here.Shards, s.Stock.Shards()).
			WithHint("start it again")
	}
	s.Stock.Belong(here.ID)
	return nil
}

// ReservationsByID returns what the ledger has of these reservations.
func (s *Shop) ReservationsByID(ctx context.Context, ids []drop.ReservationID) (map[drop.ReservationID]drop.Recorded, error) {
	l, err := s.Ledger()
	if err != nil {
		return nil, err
	}
	return l.ReservationsByID(ctx, ids)
}

// Reservations returns one page of what the ledger has.
func (s *Shop) Reservations(ctx context.Context, f drop.ReservationFilter) ([]drop.Recorded, error) {
	l, err := s.Ledger()
	if err != nil {
		return nil, err
	}
	return l.Reservations(ctx, f)
}

// DueOf returns what is due of a reservation.
func (s *Shop) DueOf(ctx context.Context, id drop.ReservationID) (drop.Due, error) {
	l, err := s.Ledger()
	if err != nil {
		return drop.Due{}, err
	}
	return l.DueOf(ctx, id)
}

// CloseDue records that the money of what is due was given back.
func (s *Shop) CloseDue(ctx context.Context, id drop.ReservationID, actor, reason string) (int64, error) {
	l, err := s.Ledger()
	if err != nil {
		return 0, err
	}
	return l.CloseDue(ctx, id, actor, reason)
}

// calledBack is the pause before a worker makes the next attempt, or asks again, after a gateway has called back.
const calledBack = 10 * time.Second

// TakePayment records what a payment gateway called back with.
func (s *Shop) TakePayment(ctx context.Context, id drop.ReservationID, number int, p drop.Payment) (bool, error) {
	l, err := s.Ledger()
	if err != nil {
		return false, err
	}
	return l.RecordPayment(ctx, id, number, p, calledBack)
}

// WhyAbsent is why Redis rightly has no such lot, by the ledger.
func (s *Shop) WhyAbsent(ctx context.Context, lot drop.LotID) (why, err error) {
	l, err := s.Ledger()
	if err != nil {
		return nil, err
	}
	return l.WhyAbsent(ctx, lot)
}

// Keys returns the API keys.
func (s *Shop) Keys(ctx context.Context) ([]drop.APIKey, error) {
	l, err := s.Ledger()
	if err != nil {
		return nil, err
	}
	return l.Keys(ctx)
}

// Put creates a lot or changes it, as a seed of one lot does. A body that names no stock leaves that of a lot alone, and
// what is known of how it came about.
func (s *Shop) Put(ctx context.Context, lot drop.LotID, body client.LotBody, actor string) (drop.LotState, api.Put, error) {
	l, err := s.Ledger()
	if err != nil {
		return drop.LotState{}, 0, err
	}
	if body.Stock == nil {
		state, same, err := s.change(ctx, changeOf(lot, body, actor))
		switch {
		case fault.Is(err, fault.LotNotLoaded): // the seed says that a new lot needs stock
		case same:
			return state, api.PutSame, err
		default:
			return state, api.PutChanged, err
		}
	}
	row, err := seed.Flags(textsOf(lot, body))
	if err != nil {
		return drop.LotState{}, 0, err
	}
	o := seed.Options{Installation: l.Installation().ID, Actor: actor}
	items, err := seed.Run(ctx, []seed.Row{row}, SeedStock(s.Stock), SeedLedger(l), o)
	if err != nil {
		return drop.LotState{}, 0, err
	}
	state, err := s.Stock.Lot(ctx, lot)
	switch items[0].Action {
	case seed.Unchanged:
		return state, api.PutSame, err
	case seed.Change:
		return state, api.PutChanged, err
	}
	return state, api.PutCreated, err
}

// changeOf is the change of what a body names, its stock aside.
func changeOf(lot drop.LotID, b client.LotBody, actor string) drop.ChangeRequest {
	duration := func(seconds *float64) *time.Duration {
		if seconds == nil {
			return nil
		}
		return new(client.Duration(*seconds))
	}
	q := drop.ChangeRequest{Lot: lot, Limit: b.Limit, Hold: duration(b.Hold), MaxHold: duration(b.MaxHold), Opens: b.Opens, Closes: b.Closes, Name: b.Name, Actor: actor}
	if b.Late != "" {
		q.Late = new(drop.Late(b.Late))
	}
	if b.Status != "" {
		q.Status = new(drop.Status(b.Status))
	}
	return q
}

// textsOf writes what a body says as a seed file does.
func textsOf(lot drop.LotID, b client.LotBody) map[string]string {
	texts := map[string]string{"lot": string(lot)}
	for name, n := range map[string]*int64{"stock": b.Stock, "limit": b.Limit} {
		if n != nil {
			texts[name] = strconv.FormatInt(*n, 10)
		}
	}
	for name, seconds := range map[string]*float64{"hold": b.Hold, "max_hold": b.MaxHold} {
		if seconds != nil {
			texts[name] = strconv.FormatFloat(*seconds, 'f', -1, 64) + "s"
		}
	}
	for name, at := range map[string]*time.Time{"opens": b.Opens, "closes": b.Closes} {
		if at != nil {
			texts[name] = at.Format(time.RFC3339Nano)
		}
	}
	for name, text := range map[string]string{"late": b.Late, "status": b.Status} {
		if text != "" {
			texts[name] = text
		}
	}
	if b.Name != nil {
		texts["name"] = *b.Name
	}
	return texts
}

// OpeningLook is what the look at all Redis servers before lots are opened may take.
const OpeningLook = 300 * time.Millisecond

// Open lets a lot sell, unless its Redis could lose its stock. What cannot be found out in time blocks nothing.
func (s *Shop) Open(ctx context.Context, lot drop.LotID, actor, reason string) (drop.LotState, bool, error) {
	open := drop.Open
	return s.change(ctx, drop.ChangeRequest{Lot: lot, Status: &open, Actor: actor, Reason: reason})
}

// change changes a lot, and looks at its Redis before it lets one sell.
func (s *Shop) change(ctx context.Context, q drop.ChangeRequest) (drop.LotState, bool, error) {
	if q.Status != nil && *q.Status == drop.Open {
		if err := s.mayOpen(ctx, q.Lot); err != nil {
			return drop.LotState{}, false, err
		}
	}
	return s.Stock.Change(ctx, q)
}

// mayOpen is an error if a lot's Redis is known to be one that could lose its stock.
func (s *Shop) mayOpen(ctx context.Context, lot drop.LotID) error {
	ctx, cancel := context.WithTimeout(ctx, OpeningLook)
	defer cancel()
	shard := lot.Shard(s.Stock.Shards())
	nodes, err := s.Stock.Preflight(ctx, []int{shard})
	if err != nil {
		return nil //nolint:nilerr // not found out in time
	}
	var in ledger.Installation
	if l := s.ledger.Load(); l != nil {
		in = l.Installation()
	}
	return doctor.Preflight(nodes, in.ID, in.Shards)[shard]
}
