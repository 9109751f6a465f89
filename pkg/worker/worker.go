// Package worker is what runs behind the sale: it carries events from the outbox into the ledger (relay),
// records confirmed reservations as sales (finalise), takes back expired holds (sweep), watches the doors (guardian) and tells
// receivers on the web what happens (notify).
//
// Any number of workers may run at once, on any machine, and any of them may die at any moment: everything
// a worker does is either repeated by another one or was not needed. One file per part; this one starts
// them, keeps them running and stops them.
package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/recovery"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// Stock is what a worker needs of Redis.
type Stock interface {
	recovery.Stock
	Outbox

	// SetUp tells whose data Redis has: ours if any shard's is.
	SetUp(ctx context.Context) (installation string, shards int, err error)
	// Sweep takes back at most limit due holds of a shard.
	Sweep(ctx context.Context, shard, limit int) (drop.SweepOutcome, error)
	// Settle refunds what nobody has paid for.
	Settle(ctx context.Context, q drop.SettleRequest) (drop.Outcome, error)
	// Wakes delivers the numbers of shards that may have due holds, until the context ends. It is a hint:
	// numbers may be missing.
	Wakes(ctx context.Context) (<-chan int, error)
}

// Ledger is what a worker needs of PostgreSQL.
type Ledger interface {
	recovery.Ledger
	Journal
	Sales
	Charges
	Notices

	// Heartbeat records that the worker is alive, and returns the names of those it forgets now because they were
	// silent for a day; Farewell records that it has stopped in good order.
	Heartbeat(ctx context.Context, w Presence) (forgotten []string, err error)
	Farewell(ctx context.Context, name string) error
	// Relaying returns the names of the workers that relay and were alive of late, this one included.
	Relaying(ctx context.Context) ([]string, error)
}

// Presence is what a worker tells the others about itself.
type Presence struct {
	Name    string
	Host    string
	PID     int
	Parts   []Part
	Rate    float64 // events a second that it may write at most; 0: it writes none
	Version string  // of the program
	Started time.Time
}

// Part is one of the things a worker does.
type Part string

// The parts.
const (
	Relay    Part = "relay"
	Apply    Part = "apply" // only where a queue is between
	Finalise Part = "finalise"
	Sweep    Part = "sweep"
	Guardian Part = "guardian"
	Notify   Part = "notify"
)

// Parts lists every part in the order in which they are shown.
func Parts() []Part { return []Part{Relay, Apply, Finalise, Sweep, Guardian, Notify} }

// PartsOf lists the parts that there is work for: apply only if workers read from a queue.
func PartsOf(source bool) []Part {
	return slices.DeleteFunc(Parts(), func(p Part) bool { return p == Apply && !source })
}

// ParseParts checks names of parts; none means all that there is work for.
func ParseParts(names []string, source bool) ([]Part, error) {
	if len(names) == 0 {
		return PartsOf(source), nil
	}
	var parts []Part
	for _, name := range names {
		part := Part(name)
		if !slices.Contains(Parts(), part) {
			return nil, fault.New(fault.Usage, "%q is not a part of the worker", name).WithField("only").WithHint("use relay, apply, finalise, sweep, guardian or notify")
		}
		if !slices.Contains(PartsOf(source), part) {
			return nil, fault.New(fault.Usage, "with this transport there is no part %s: workers read from no queue", name).WithField("only").
				WithHint("leave %s out, or say --transport kafka", name)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// Options says what a worker does. Zero values take the default named with each field.
type Options struct {
	Installation string // of the ledger; events of another one are never taken
	Shards       int    // P
	Only         []Part // default: all
	Rate         float64
	Keep         time.Duration     // how long entries stay in the outbox after the ledger has them; default 15 min
	UntilIdle    bool              // stop when nothing is left to do
	Patience     time.Duration     // with UntilIdle: how long a store may be unreachable; default 30 s
	Takeover     time.Duration     // how long an entry may stay with a silent worker; default 15 s
	Transport    string            // how entries travel, as the metrics call it; default "direct"
	Queue        Queue             // between relay and apply; nil: the relay applies by itself
	Source       Source            // of the queue, for the part apply; nil: there is none
	Resend       time.Duration     // how long the queue may take before entries are sent again, at first; default 10 s
	Gateway      Gateway           // whom finalise asks for the money; nil: the shop has it when it confirms
	ChargePause  time.Duration     // first pause before the gateway is asked again; they grow; default 3 s
	Version      string            // of the program, shown in the list of workers
	Rebuild      recovery.Rebuild  // how the guardian rebuilds a lot; needed if there is one
	Log          *slog.Logger      // default: none
	Metrics      *telemetry.Worker // default: some that nobody sees
}

// DefaultRate is how many events a second all workers together write to the ledger. Where their settings differ, the lowest
// one of those alive holds.
const DefaultRate = 2000

func (o Options) withDefaults() Options {
	if len(o.Only) == 0 {
		o.Only = PartsOf(o.Source != nil)
	}
	if o.Rate <= 0 {
		o.Rate = DefaultRate
	}
	if o.Keep <= 0 {
		o.Keep = 15 * time.Minute
	}
	if o.Transport == "" {
		o.Transport = "direct"
	}
	if o.Patience <= 0 {
		o.Patience = 30 * time.Second
	}
	if o.Takeover <= 0 {
		o.Takeover = 15 * time.Second
	}
	if o.Resend <= 0 {
		o.Resend = 10 * time.Second
	}
	if o.ChargePause <= 0 {
		o.ChargePause = 3 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = telemetry.NewWorker(nil)
	}
	return o
}

// Summary counts what a worker has done.
type Summary struct {
	Entries    int64 `json:"entries" table:"ENTRIES"`       // outbox entries acknowledged
	Events     int64 `json:"events" table:"EVENTS"`         // folded by the ledger
	Duplicates int64 `json:"duplicates" table:"DUPLICATES"` // events the ledger had already
	Parked     int64 `json:"parked" table:"PARKED"`         // put into dead letters
	Finalised  int64 `json:"finalised" table:"FINALISED"`   // confirmed reservations that are sales now
	Expired    int64 `json:"expired" table:"EXPIRED"`       // holds taken back
	Reopened   int64 `json:"reopened" table:"REOPENED"`     // shards
}

// counters is Summary for concurrent use.
type counters struct {
	entries, events, duplicates, parked, finalised, expired, reopened atomic.Int64
}

func (c *counters) summary() Summary {
	return Summary{c.entries.Load(), c.events.Load(), c.duplicates.Load(), c.parked.Load(), c.finalised.Load(), c.expired.Load(), c.reopened.Load()}
}

// Worker is one worker. Run it once.
type Worker struct {
	*recorder
	stock  Stock
	ledger Ledger
	opt    Options
	me     Presence
	health *health

	resending sync.Mutex             // upkeep and until-idle both send again, one after the other
	resent    map[drop.LotID]sentGap // gaps sent again, and when to do so next; behind resending

	open []drop.LotID // lots with gaps, when until-idle looked last; its own

	mu       sync.Mutex
	strange  map[int]time.Time  // shards that are not ours, and when that was said last
	findings []recovery.Finding // of the guardian's last pass
	passed   bool               // the guardian has completed a pass
	crew     []string           // workers that relay, as of the last heartbeat
	answers  chan struct{}      // closed when stores that were away answer again; then there is another one
}

// New returns a worker with a name of its own. It does nothing before Run.
func New(stock Stock, ledger Ledger, opt Options) *Worker {
	opt = opt.withDefaults()
	me := newPresence(opt)
	log := opt.Log.With("worker", me.Name)
	return &Worker{
		recorder: newRecorder(ledger, opt, log), stock: stock, ledger: ledger, opt: opt, me: me,
		health: newHealth(log, opt.Metrics), resent: map[drop.LotID]sentGap{}, strange: map[int]time.Time{}, answers: make(chan struct{}),
	}
}

// newPresence names the process so that no two workers ever share a name, on whatever machine.
func newPresence(o Options) Presence {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	p := Presence{Host: host, PID: os.Getpid(), Parts: o.Only, Version: o.Version, Started: time.Now().UTC()}
	p.Name = fmt.Sprintf("%.60s-%d-%s", host, p.PID, rand.Text()[:8])
	if slices.Contains(o.Only, Relay) || slices.Contains(o.Only, Apply) { // the setting of one that writes nothing must slow nobody down
		p.Rate = o.Rate
	}
	return p
}

// Run works until the context ends, which is a graceful stop and no error: batches in hand are finished
// first. It also ends when UntilIdle is set and nothing is left (fault.Partial if something was parked as
// a dead letter, fault.Finding if there is what no worker can do), or on an error that no retry can heal:
// fault.Foreign, if all of Redis or PostgreSQL is another installation's, or fault.NotMigrated. Everything else, lost
// connections above all, is retried for as long as it takes; a shard with somebody else's data is left alone meanwhile.
func (w *Worker) Run(ctx context.Context) (Summary, error) {
	w.log.Info("worker started", "parts", w.opt.Only, "shards", w.opt.Shards, "events_per_second", w.opt.Rate)
	work, stop := context.WithCancel(ctx)
	defer stop()
	g, work := errgroup.WithContext(work)
	start := func(name string, loop func(context.Context) error) {
		g.Go(func() error { return w.keepRunning(work, name, loop) })
	}
	w.startParts(start)
	if w.opt.UntilIdle {
		g.Go(func() error {
			defer stop()
			return w.waitUntilIdle(work)
		})
	}
	err := g.Wait()
	w.farewell(context.WithoutCancel(ctx), err == nil)

	sum := w.done.summary()
	if err == nil && w.opt.UntilIdle && ctx.Err() == nil {
		err = w.leftOver()
	}
	if fatal(err) {
		w.log.Error("worker stopped: nothing more is acknowledged", "error", err, "code", fault.CodeOf(err), "next", fault.HintOf(err))
		return sum, err
	}
	w.log.Info("worker stopped", "entries", sum.Entries, "events", sum.Events, "finalised", sum.Finalised, "expired", sum.Expired, "parked", sum.Parked)
	return sum, err
}

// Trouble returns why a part does not work at present, or nil; it may be asked at any time.
func (w *Worker) Trouble(p Part) error { return w.health.trouble(p) }

func (w *Worker) startParts(start func(name string, loop func(context.Context) error)) {
	start("heartbeat", w.heartbeat)
	if w.does(Relay) {
		for shard := range w.opt.Shards {
			start(loopName(Relay, shard), w.relay(shard))
		}
		start("upkeep", w.upkeep)
	}
	if w.does(Apply) && w.opt.Source != nil {
		start(string(Apply), w.applyFromSource)
	}
	switch {
	case w.does(Finalise) && w.opt.Gateway != nil:
		c := &cashier{Worker: w}
		start("finalise", c.charge)
	case w.does(Finalise):
		start("finalise", w.finalise)
	}
	if w.does(Sweep) {
		s := newSweeper(w)
		for shard := range w.opt.Shards {
			start(loopName(Sweep, shard), s.sweep(shard))
		}
		start("wakes", s.listen)
	}
	if w.does(Guardian) {
		start("guardian", w.guard)
	}
	if w.does(Notify) {
		start("notify", w.notify)
	}
}

func (w *Worker) does(p Part) bool { return slices.Contains(w.opt.Only, p) }

// keepRunning runs one loop until the context ends. A loop that fails is started again, after a pause that grows or once
// the guardian sees the stores answer; only an error that repetition cannot heal ends the worker.
func (w *Worker) keepRunning(ctx context.Context, name string, loop func(context.Context) error) error {
	pause := backoff{}
	for ctx.Err() == nil {
		started, again := time.Now(), w.answering()
		err := recovered(ctx, loop)
		if fatal(err) {
			return err
		}
		switch {
		case errors.Is(err, errLeftAlone):
			w.health.fine(name)
		case err != nil && ctx.Err() == nil:
			w.health.failed(name, err)
		}
		if time.Since(started) > time.Minute {
			pause = backoff{}
		}
		pause.wait(ctx, again)
	}
	return nil
}

// answering returns a channel that is closed when the guardian sees that stores which were away answer again.
func (w *Worker) answering() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answers
}

// tryAgain ends the pauses of all loops that have failed: a shard stays shut until the relay has emptied its outbox.
func (w *Worker) tryAgain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.answers)
	w.answers = make(chan struct{})
}

// recovered turns a panic into an error, so that a mistake in one part does not stop the others.
func recovered(ctx context.Context, loop func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.Failed, "panic: %v at %s", p, debug.Stack())
		}
	}()
	return loop(ctx)
}

// fatal reports whether no repetition can heal the error: it says that these stores do not belong together.
func fatal(err error) bool { return fault.Is(err, fault.Foreign) || fault.Is(err, fault.NotMigrated) }

const heartbeatEvery = 5 * time.Second

// heartbeat shows that the worker is alive, and clears away after those that died long ago: what they had in
// hand was taken over in the meantime.
func (w *Worker) heartbeat(ctx context.Context) error {
	for {
		forgotten, err := w.ledger.Heartbeat(ctx, w.me)
		if err != nil {
			return err
		}
		for _, name := range forgotten {
			w.leave(ctx, name)
		}
		crew, err := w.ledger.Relaying(ctx)
		if err != nil {
			return err
		}
		w.knowCrew(crew)
		w.health.fine("heartbeat")
		if !sleep(ctx, heartbeatEvery, nil) {
			return nil
		}
	}
}

// farewell takes the worker off the lists of the living. If that fails, its silence will tell. Of stores that have just been
// given up nothing is asked that can as well be left.
func (w *Worker) farewell(ctx context.Context, inOrder bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := w.ledger.Farewell(ctx, w.me.Name); err != nil {
		w.log.Debug("could not sign off", "error", err)
	}
	if inOrder && w.does(Relay) {
		w.leave(ctx, w.me.Name)
	}
}

// leave takes a worker off the readers of every outbox. One that is left on the list costs little.
func (w *Worker) leave(ctx context.Context, name string) {
	for shard := range w.opt.Shards {
		if err := w.stock.Leave(ctx, shard, name); err != nil {
			w.log.Debug("could not take a worker off the readers of an outbox", "shard", shard, "reader", name, "error", err)
			return
		}
	}
}
