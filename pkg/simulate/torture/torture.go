// Package torture makes callers do everything at once that can be done to lots, in random order, while servers are killed,
// paused, cut off and emptied under them, and checks all the time that no promise is broken. What callers and faults decide
// is drawn from a seed alone, so that a run can be repeated with the same decisions.
package torture

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Engine is what callers call, and where the lots are looked at. It is called by many goroutines at once.
type Engine interface {
	Reserve(ctx context.Context, r drop.ReserveRequest) (drop.Outcome, error)
	Settle(ctx context.Context, r drop.SettleRequest) (drop.Outcome, error)
	Adjust(ctx context.Context, r drop.AdjustRequest) (drop.LotState, bool, error)
	Change(ctx context.Context, r drop.ChangeRequest) (drop.LotState, bool, error)
	// LotStates returns a snapshot of each lot; a lot that Redis has not is absent.
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	Shards() int
	OutboxState(ctx context.Context, shard int) (drop.OutboxState, error)
	// EventsSince returns the outbox events of one shard's lots behind each watermark, as far as still kept.
	EventsSince(ctx context.Context, shard int, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error)
}

// Ledger is what is recorded.
type Ledger interface {
	Lots(ctx context.Context, lots []drop.LotID) ([]drop.LedgerLot, error)
	EachReservation(ctx context.Context, f drop.ReservationFilter, fn func(page []drop.Recorded) error) error
	// Journal returns a page of a lot's events in order.
	Journal(ctx context.Context, lot drop.LotID, after drop.Watermark, limit int) ([]drop.Event, error)
	// Booked returns what the order ledger has of each reservation of a lot, by its n.
	Booked(ctx context.Context, lot drop.LotID) (map[int64]Booking, error)
}

// Booking is what the order ledger has of one reservation.
type Booking struct {
	Sales    int   // entries; more than one is a sale recorded twice
	Units    int64 // of these
	Refunded int64 // units
}

// Finding is what an audit of the stores found. Lot is "" if it is of no one lot.
type Finding struct {
	Lot  drop.LotID
	What string
}

// Options say how long and how hard.
type Options struct {
	Seed    uint64
	For     time.Duration
	Callers int // 0: 24

	// Audit waits until all is recorded, compares both stores, recomputes the ledger's history, and returns what does not
	// agree. Flushed says that Redis was emptied: holds that expired since the ledger had everything are then lost.
	Audit    func(ctx context.Context, flushed bool) ([]Finding, error)
	Progress func(Progress) // called every second; may be nil
}

const (
	defaultCallers = 24
	actor          = "torture"
	lookEvery      = 100 * time.Millisecond
	recoverWithin  = 3 * time.Minute  // after the last fault, until every lot sells
	drainWithin    = 30 * time.Second // before a flush
)

// Progress is one look at a run.
type Progress struct {
	Elapsed    time.Duration
	Calls      int64
	Faults     int64
	Looks      int64
	Violations int64
}

// run is a run under way.
type run struct {
	opt    Options
	engine Engine
	ledger Ledger
	rig    *lab.Rig
	ids    []drop.LotID
	book   *book
	start  time.Time
	world  sync.RWMutex // held for writing while nobody may call
	looks  atomic.Int64

	faultsMu sync.Mutex
	faults   []FaultLine
	flushed  bool
}

// Run tortures the lots of Lots, which must be on sale in a shop of their own with a worker alive, until the time is over
// or a promise is broken. Then it lets the shop recover and audits it. The error is the context's, or of servers that do
// not come back; broken promises are in the report.
func Run(ctx context.Context, engine Engine, ledger Ledger, rig *lab.Rig, o Options) (Report, error) {
	if o.Callers == 0 {
		o.Callers = defaultCallers
	}
	r := &run{opt: o, engine: engine, ledger: ledger, rig: rig, book: newBook(), start: time.Now()}
	for _, l := range lots {
		r.ids = append(r.ids, l.Lot)
	}
	err := r.torture(ctx)
	took := time.Since(r.start)
	if err == nil {
		err = r.recover(ctx)
	}
	recovered := time.Since(r.start) - took
	if err == nil {
		err = r.audit(ctx)
	}
	report := r.report(ctx)
	report.Took, report.Recovery = took.Round(time.Millisecond), recovered.Round(time.Millisecond)
	if err != nil && report.Verdict == verdictOK {
		report.Verdict = "none" // it was not audited to the end
	}
	return report, err
}

// torture lets callers and faults loose until the time is over, or for a moment longer than it takes to find something.
func (r *run) torture(ctx context.Context) error {
	within, over := context.WithTimeout(ctx, r.opt.For)
	defer over()
	var all sync.WaitGroup
	for n := range r.opt.Callers {
		c := &caller{run: r, n: n}
		all.Go(func() { c.work(within) })
	}
	var faultErr error
	all.Go(func() {
		if faultErr = r.disturb(within); faultErr != nil {
			over()
		}
	})
	watching, unwatch := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(watching, over) })
	watch.Go(func() { r.show(watching) })
	all.Wait()
	unwatch()
	watch.Wait()
	return errors.Join(ctx.Err(), faultErr)
}

func (r *run) show(ctx context.Context) {
	for r.opt.Progress != nil && retry.Sleep(ctx, time.Second) == nil {
		p := Progress{Elapsed: time.Since(r.start), Looks: r.looks.Load()}
		_, p.Calls = r.book.operations()
		_, p.Violations = r.book.found()
		r.faultsMu.Lock()
		p.Faults = int64(len(r.faults))
		r.faultsMu.Unlock()
		r.opt.Progress(p)
	}
}

// disturb does fault after fault. Its error is that of a server which does not come back.
func (r *run) disturb(ctx context.Context) error {
	for number := 0; ; number++ {
		t := disturb(r.opt.Seed, number)
		if t.calm {
			r.awaitCalm(ctx)
		}
		if !rested(ctx, t.after) {
			return nil
		}
		var err error
		if t.fault.Act == lab.FlushAct {
			err = r.flush(ctx, t.fault)
		} else {
			r.begun(t.fault)
			err = r.rig.Do(ctx, t.fault)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// rested waits between two faults; false: the time is over.
func rested(ctx context.Context, d time.Duration) bool { return retry.Sleep(ctx, d) == nil }

func (r *run) begun(f lab.Fault) {
	r.faultsMu.Lock()
	defer r.faultsMu.Unlock()
	r.faults = append(r.faults, FaultLine{time.Now().UTC(), f})
}

// flush empties Redis when the ledger has all that callers were told: what it has not got, nobody could bring back.
func (r *run) flush(ctx context.Context, f lab.Fault) error {
	r.world.Lock()
	defer r.world.Unlock()
	limited, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	for drained := false; !drained; drained = r.drained(limited) {
		_ = retry.Sleep(limited, 20*time.Millisecond)
		if limited.Err() != nil {
			return nil // the ledger was not ready in time; the next fault will do
		}
	}
	r.begun(f)
	r.faultsMu.Lock()
	r.flushed = true
	r.faultsMu.Unlock()
	return r.rig.Do(ctx, f)
}

// drained reports whether the ledger has all that was written.
func (r *run) drained(ctx context.Context) bool {
	states, err := r.engine.LotStates(ctx, r.ids)
	if err != nil {
		return false
	}
	folded, err := r.ledger.Lots(ctx, r.ids)
	if err != nil || len(folded) != len(r.ids) || len(states) != len(r.ids) {
		return false
	}
	for _, l := range folded {
		if l.Watermark != states[l.Lot].Watermark {
			return false
		}
	}
	return true
}

// awaitCalm waits until every lot can be sold, or for a minute.
func (r *run) awaitCalm(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for r.shut(limited) != "" && retry.Sleep(limited, lookEvery) == nil {
	}
}

// shut says which lot cannot be sold, and why; "" if all can.
func (r *run) shut(ctx context.Context) string {
	states, err := r.engine.LotStates(ctx, r.ids)
	if err != nil {
		return err.Error()
	}
	for _, id := range r.ids {
		st, there := states[id]
		switch {
		case !there:
			return string(id) + " is not there"
		case !st.Sells():
			return string(id) + " is shut: " + string(st.FreezeReason())
		}
	}
	return ""
}

// recover waits until every lot sells again. That one does not is a broken promise.
func (r *run) recover(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	why := r.shut(limited)
	for why != "" {
		if retry.Sleep(limited, lookEvery) != nil {
			if ctx.Err() == nil {
				r.book.violate("", "", "the shop did not recover by itself within %s: %s", fault.Duration(recoverWithin), why)
			}
			return ctx.Err()
		}
		if now := r.shut(limited); limited.Err() == nil {
			why = now
		}
	}
	return nil
}
