package worker

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	handEntries = 2000   // of a shard that may be under way to the ledger at once
	handEvents  = 20_000 // the same in events

	askEvery   = 100 * time.Millisecond // what the ledger has of what was sent
	askSeldom  = 2 * time.Second        // the same about one entry that is stuck
	askBarrier = 200 * time.Millisecond
	sendLimit  = 30 * time.Second // for one attempt
	stopLimit  = 3 * time.Second  // for one that a stop finds under way
	stuckAfter = time.Minute      // without anything arriving, before somebody is called
)

// forwarder sends the entries of one shard to the queue, and acknowledges each once the ledger has it: the queue's word is
// not enough. Until then they stay in hand, so that no other worker takes them over.
type forwarder struct {
	*Worker
	shard int
	name  string

	hand   []*parcel
	events int     // in hand
	size   float64 // events per entry of late: how many entries fit into the hand
	server string  // run id of the Redis that everything in hand was read from
	after  string  // what is left over from before is read up to here; "": all of it is

	beside bystander
	away   bool // another worker is preferred for the shard, and gets on

	looked, kept, claimed, asked, watched time.Time // when it did so last

	moved  time.Time // when something arrived last, or nothing was in hand
	mark   string    // of the barrier it waits for; "": none
	marked time.Time
	polled time.Time
}

// parcel is an entry in hand.
type parcel struct {
	drop.OutboxEntry
	events  int
	newest  map[drop.LotID]drop.Watermark // event of each lot
	left    bool                          // over from before: nobody knows whether it was sent
	sending int                           // how often it was sent
	overdue time.Time                     // from then on
	ask     time.Time                     // not before
	pause   time.Duration                 // between two questions
}

func newForwarder(w *Worker, shard int) *forwarder {
	return &forwarder{Worker: w, shard: shard, name: loopName(Relay, shard), size: 1, moved: time.Now()}
}

// run goes on with what is in hand, through troubles of every kind, unless Redis is another one now. What an earlier life
// has read and not acknowledged, or was in a reply that got lost, comes into the hand first.
func (f *forwarder) run(ctx context.Context) error {
	if err := f.look(ctx); err != nil {
		return err
	}
	f.after, f.claimed = "0", time.Time{}
	for ctx.Err() == nil {
		if err := f.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (f *forwarder) step(ctx context.Context) error {
	for _, do := range []func(context.Context) error{f.keep, f.readLeft, f.watch, f.takeOver, f.readNew, f.sendNew, f.settle, f.sendOverdue} {
		if err := do(ctx); err != nil {
			return err
		}
	}
	if len(f.hand) == 0 {
		f.moved = time.Now()
	}
	if time.Since(f.moved) > stuckAfter {
		f.health.failed(f.name, fault.New(fault.Unavailable, "%d entries of shard %d were sent and do not arrive in the ledger", len(f.hand), f.shard).
			WithHint("somewhere something has to apply what the queue delivers: dropctl status"))
		return nil
	}
	f.health.fine(f.name)
	return nil
}

// look makes sure that Redis holds our data, and is the one that everything in hand came from: another one may have given
// the same ids to something else.
func (f *forwarder) look(ctx context.Context) error {
	st, err := f.ours(ctx, f.shard)
	if err != nil {
		return err
	}
	f.looked = time.Now()
	if st.Run != f.server {
		f.hand, f.events, f.server, f.after = nil, 0, st.Run, "0"
	}
	return nil
}

// keep keeps others from taking over what is in hand.
func (f *forwarder) keep(ctx context.Context) error {
	if len(f.hand) == 0 {
		f.kept = time.Now()
	}
	if time.Since(f.kept) < f.opt.Takeover/3 {
		return nil
	}
	kept, err := f.stock.Keep(ctx, f.shard, f.me.Name, f.ids(f.hand))
	if err != nil {
		return err
	}
	f.kept = time.Now()
	f.discard(func(p *parcel) bool { return !slices.Contains(kept, p.ID) }) // somebody else has acknowledged them
	return nil
}

// room returns how many more entries fit into the hand.
func (f *forwarder) room() int {
	if f.events >= handEvents {
		return 0
	}
	return min(handEntries-len(f.hand), max(1, int(float64(handEvents-f.events)/f.size)))
}

// readLeft takes in hand what this worker was given and has not acknowledged.
func (f *forwarder) readLeft(ctx context.Context) error {
	for f.after != "" && f.room() > 0 && ctx.Err() == nil {
		entries, err := f.stock.ReadPending(ctx, f.shard, f.me.Name, f.after, min(redelivered, f.room()))
		if err != nil {
			return err
		}
		f.after = ""
		if len(entries) > 0 {
			f.after = entries[len(entries)-1].ID
		}
		if err := f.take(ctx, entries, true); err != nil {
			return err
		}
	}
	return nil
}

// watch looks now and then whether the shard is to be left to another worker.
func (f *forwarder) watch(ctx context.Context) (err error) {
	if time.Since(f.watched) >= idleBlock {
		f.away, err = f.aside(ctx, f.shard, &f.beside)
		f.watched = time.Now()
	}
	return err
}

// takeOver takes in hand what dead workers have left behind.
func (f *forwarder) takeOver(ctx context.Context) error {
	if f.away || time.Since(f.claimed) < f.opt.Takeover/3 {
		return nil
	}
	for f.room() > 0 && ctx.Err() == nil {
		entries, err := f.stock.Claim(ctx, f.shard, f.me.Name, f.opt.Takeover, min(redelivered, f.room()))
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			f.claimed = time.Now()
			return nil
		}
		f.log.Info("took over entries from a silent worker", "shard", f.shard, "entries", len(entries))
		if err := f.take(ctx, entries, true); err != nil {
			return err
		}
	}
	return nil
}

// readNew waits for new entries, not for long while there are some in hand.
func (f *forwarder) readNew(ctx context.Context) error {
	room, block := f.room(), idleBlock
	if f.opt.UntilIdle || len(f.hand) > 0 {
		block = askEvery
	}
	if room == 0 || f.away {
		sleep(ctx, block, nil)
		return nil
	}
	// What Redis delivers is this worker's to bring on its way, so a stop does not interrupt the read.
	entries, err := f.stock.ReadNew(context.WithoutCancel(ctx), f.shard, f.me.Name, min(room, maxEntries), block)
	if err != nil {
		return err
	}
	return f.take(ctx, entries, false)
}

// take takes entries in hand. What does not say that it is ours does not travel: it goes to the ledger, which judges it.
func (f *forwarder) take(ctx context.Context, entries []drop.OutboxEntry, left bool) error {
	if err := f.judgeStrays(ctx, f.shard, entries); err != nil {
		return err
	}
	for _, entry := range entries {
		if left && slices.ContainsFunc(f.hand, func(p *parcel) bool { return p.ID == entry.ID }) {
			continue
		}
		events, poison := entry.Decode()
		if entry.Installation != f.opt.Installation {
			if _, err := f.apply(ctx, events, poison); err != nil {
				return err
			}
		}
		p := &parcel{OutboxEntry: entry, left: left, events: len(events) + len(poison), newest: map[drop.LotID]drop.Watermark{}}
		for _, ev := range events {
			p.newest[ev.Lot] = ev.Watermark() // a script writes them in order
		}
		f.hand = append(f.hand, p)
		f.events += p.events
		f.size = max(float64(p.events), 0.95*f.size, 1)
	}
	return nil
}

// sendNew sends what was not sent yet.
func (f *forwarder) sendNew(ctx context.Context) error {
	return f.send(ctx, func(p *parcel) bool { return p.sending == 0 && !p.left })
}

// send sends some of what is in hand. A stop leaves the attempt a moment to finish.
func (f *forwarder) send(ctx context.Context, which func(*parcel) bool) error {
	stop := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendLimit)
	defer cancel()
	defer context.AfterFunc(stop, func() { time.AfterFunc(stopLimit, cancel) })()
	bySending := map[int][]*parcel{}
	for _, p := range f.hand {
		if which(p) && p.Installation == f.opt.Installation {
			bySending[p.sending+1] = append(bySending[p.sending+1], p)
		}
	}
	for sending, parcels := range bySending {
		if sending > 1 {
			f.log.Warn("what was sent has not arrived in the ledger; sending it again", "shard", f.shard, "entries", len(parcels), "sending", sending)
		}
		entries := make([]drop.OutboxEntry, len(parcels))
		for i, p := range parcels {
			entries[i] = p.OutboxEntry
		}
		if err := f.opt.Queue.Send(ctx, f.shard, entries, sending); err != nil {
			return err
		}
		step := "sent"
		if sending > 1 {
			step = "resent"
		}
		f.relayed(step, len(entries))
		patience := min(f.opt.Resend<<min(sending-1, 16), longestPause)
		for _, p := range parcels {
			p.left, p.sending, p.overdue = false, sending, time.Now().Add(patience)
		}
	}
	return nil
}

// settle acknowledges what the ledger has.
func (f *forwarder) settle(ctx context.Context) error {
	if len(f.hand) == 0 || time.Since(f.asked) < askEvery {
		return nil
	}
	f.asked = time.Now()
	likely, err := f.likely(ctx)
	for err == nil && len(likely) > 0 {
		n, events := 0, 0
		for n < len(likely) && events < batchEvents {
			events += likely[n].events
			n++
		}
		err = f.acknowledge(ctx, likely[:n])
		likely = likely[n:]
	}
	return err
}

// likely returns what the ledger may have by now. Where a lot stands is asked first, which is cheap: while the ledger is
// behind, it says enough.
func (f *forwarder) likely(ctx context.Context) ([]*parcel, error) {
	var lots []drop.LotID
	for _, p := range f.hand {
		for lot := range p.newest {
			lots = append(lots, lot)
		}
	}
	slices.Sort(lots)
	standings, err := f.ledger.Standings(ctx, slices.Compact(lots))
	if err != nil {
		return nil, err
	}
	var likely []*parcel
	for _, p := range f.hand {
		if time.Now().After(p.ask) && !p.ahead(standings) {
			likely = append(likely, p)
		}
	}
	return likely, nil
}

// ahead reports whether the ledger cannot have everything in the entry.
func (p *parcel) ahead(standings map[drop.LotID]drop.Standing) bool {
	for lot, newest := range p.newest {
		st, known := standings[lot]
		if known && !st.Odd && (newest.Epoch > st.Epoch || newest.Epoch == st.Epoch && newest.Seq > st.Seq) {
			return true
		}
	}
	return false
}

// acknowledge asks the ledger for exactly these entries, and acknowledges those it has.
func (f *forwarder) acknowledge(ctx context.Context, parcels []*parcel) error {
	entries := make([]drop.OutboxEntry, len(parcels))
	for i, p := range parcels {
		entries[i] = p.OutboxEntry
	}
	missing, err := f.ledger.Missing(ctx, entries)
	if err != nil {
		return err
	}
	lacks := map[string]bool{}
	for _, entry := range missing {
		lacks[entry.ID] = true
	}
	var there []*parcel
	for _, p := range parcels {
		if !lacks[p.ID] {
			there = append(there, p)
			continue
		}
		p.pause = min(max(2*p.pause, askEvery), askSeldom)
		p.ask = time.Now().Add(p.pause)
	}
	if len(there) == 0 {
		return nil
	}
	if time.Since(f.looked) > time.Second {
		if err := f.look(ctx); err != nil || len(f.hand) == 0 {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer cancel()
	if err := f.stock.Ack(ctx, f.shard, f.ids(there)); err != nil {
		return err
	}
	f.discard(func(p *parcel) bool { return slices.Contains(there, p) })
	f.acknowledged(len(there))
	f.moved = time.Now()
	return nil
}

// sendOverdue sends again what the queue should have brought to the ledger and has not. A queue that keeps the order is
// asked first whether it is only slow.
func (f *forwarder) sendOverdue(ctx context.Context) error {
	now := time.Now()
	if f.mark == "" {
		if !slices.ContainsFunc(f.hand, func(p *parcel) bool { return p.isOverdue(now) }) {
			return nil
		}
		f.mark, f.marked = rand.Text(), now
	}
	if now.Sub(f.polled) < askBarrier {
		return nil
	}
	f.polled = now
	within, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	passed, err := f.opt.Queue.Barrier(within, f.shard, f.mark)
	if err != nil || !passed {
		return err
	}
	marked := f.marked
	f.mark, f.asked = "", time.Time{}
	if err := f.settle(ctx); err != nil { // what came through before the barrier
		return err
	}
	return f.send(ctx, func(p *parcel) bool { return p.isOverdue(marked) })
}

func (p *parcel) isOverdue(at time.Time) bool { return p.left || p.sending > 0 && !p.overdue.After(at) }

func (f *forwarder) ids(parcels []*parcel) []string {
	ids := make([]string, len(parcels))
	for i, p := range parcels {
		ids[i] = p.ID
	}
	return ids
}

func (f *forwarder) discard(which func(*parcel) bool) {
	f.hand = slices.DeleteFunc(f.hand, func(p *parcel) bool {
		if which(p) {
			f.events -= p.events
			return true
		}
		return false
	})
}
