package worker

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Outbox is what the relay needs of Redis. Entries that were read stay with the consumer until they are
// acknowledged; reading creates what is missing in Redis for that.
type Outbox interface {
	// ReadNew returns entries nobody has read yet, waiting up to block for the first; below 0 it does not wait.
	ReadNew(ctx context.Context, shard int, consumer string, count int, block time.Duration) ([]drop.OutboxEntry, error)
	// ReadPending returns entries behind the id after that this consumer has read and not acknowledged.
	ReadPending(ctx context.Context, shard int, consumer, after string, count int) ([]drop.OutboxEntry, error)
	// Claim takes over entries that a consumer has kept for minIdle without acknowledging them.
	Claim(ctx context.Context, shard int, consumer string, minIdle time.Duration, count int) ([]drop.OutboxEntry, error)
	// Ack acknowledges entries, which lets Trim delete them: only what the ledger has.
	Ack(ctx context.Context, shard int, ids []string) error
	// Keep says that a consumer has entries in hand, so that Claim gives them to nobody else, and returns those that are not
	// acknowledged yet.
	Keep(ctx context.Context, shard int, consumer string, ids []string) ([]string, error)
	// Progress returns a mark that changes whenever a consumer reads or acknowledges something, and whether anything is left
	// to read or acknowledge.
	Progress(ctx context.Context, shard int) (mark string, left bool, err error)
	// Leave forgets a consumer that reads no more, unless entries still stay with it.
	Leave(ctx context.Context, shard int, consumer string) error
	// Trim deletes entries that are acknowledged and older than keep.
	Trim(ctx context.Context, shard int, keep time.Duration) (int64, error)
	// EventsReadSince returns the kept events of each lot that lie behind its watermark, in order, as far as a consumer was
	// given them: the others come to one by themselves.
	EventsReadSince(ctx context.Context, shard int, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error)
}

// Journal is what the relay needs of PostgreSQL.
type Journal interface {
	// Apply records events, and keeps what is none as dead letters. When it returns nil the ledger has all of
	// them, durably. It may be repeated with the same events at any time.
	Apply(ctx context.Context, events []drop.Event, poison []drop.Poison) (drop.Applied, error)
	// Standings returns how far the ledger has come with these lots; one it does not know is absent.
	Standings(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.Standing, error)
	// Missing returns those of the entries of which the ledger has not got everything.
	Missing(ctx context.Context, entries []drop.OutboxEntry) ([]drop.OutboxEntry, error)
	// FoldWaiting folds events that wait although nothing is missing before them, and returns how many.
	FoldWaiting(ctx context.Context) (int, error)
	// Gaps returns places in a lot's history that the ledger has not got although it has had later ones for
	// at least that long.
	Gaps(ctx context.Context, open time.Duration) ([]drop.Gap, error)
	// Server names the server with its timeline and the time it was started, and what SetServer was told last: the server that
	// has all that was acknowledged, and the shards of which it may lack something. now is another one when it was restarted
	// since, a standby has taken over, or the database was put back.
	Server(ctx context.Context) (now, remembered string, unsent []int, err error)
	SetServer(ctx context.Context, server string, unsent []int) error
	// LockResend makes the worker the only one that sends again what a server lacks, until unlock; fault.Busy while
	// another one is.
	LockResend(ctx context.Context) (unlock func(), err error)
	// TakeTokens takes up to want tokens from the bucket that all workers share and that fills at the rate
	// per second. When it grants none it says when to ask again.
	TakeTokens(ctx context.Context, rate float64, want int) (granted int, wait time.Duration, err error)
	// ChargeTokens takes n more, below zero if need be, or gives back -n.
	ChargeTokens(ctx context.Context, n int) error
}

const (
	batchEvents = 1000 // events of one transaction, and of one request for tokens
	maxEntries  = 500  // entries of one read
	redelivered = 50   // entries of one read of what is left over
	idleBlock   = time.Second
	tokenPause  = 100 * time.Millisecond // after which a queue that pushes may offer again at the earliest
	applyLimit  = 30 * time.Second       // for one attempt, so that a dead connection ends too
)

// relayer carries the events of one shard straight into the ledger.
type relayer struct {
	*Worker
	shard   int
	name    string
	window  int       // entries of the next read at most; doubles while there is more, 0 after a quiet spell
	size    float64   // events per entry of late: how many entries the tokens buy
	claimed time.Time // when it last looked for entries of dead workers
	beside  bystander
}

func (w *Worker) relay(shard int) func(context.Context) error {
	if w.opt.Queue != nil {
		return newForwarder(w, shard).run
	}
	r := &relayer{Worker: w, shard: shard, name: loopName(Relay, shard), size: 1}
	return r.run
}

// run starts with what an earlier attempt has read and not acknowledged: a reply may have been lost on the
// way, and such entries are delivered to nobody else for a while. Before the first read, which changes the
// stream, it makes sure that the data is ours.
func (r *relayer) run(ctx context.Context) error {
	r.window, r.claimed = 0, time.Time{}
	if _, err := r.ours(ctx, r.shard); err != nil {
		return err
	}
	if err := r.redeliver(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := r.step(ctx); err != nil {
			return err
		}
		r.health.fine(r.name)
	}
	return nil
}

// judgeStrays looks at entries that do not say that they are ours. If their shard is all the same, they become lines that no
// event has: somebody put them there, they are parked whole and stop nothing. If it is not, that is an error.
func (w *Worker) judgeStrays(ctx context.Context, shard int, entries []drop.OutboxEntry) error {
	for i := range entries {
		e := &entries[i]
		if e.Installation == w.opt.Installation {
			continue
		}
		if events, _ := e.Decode(); e.Installation == "" && len(events) == 0 {
			continue // nothing in it claims to be an event
		}
		if _, err := w.ours(ctx, shard); err != nil {
			return err
		}
		e.Body, e.Installation = drop.UnreadableBody("installation "+e.Installation, e.Body), ""
	}
	return nil
}

func (r *relayer) redeliver(ctx context.Context) error {
	after := "0"
	for ctx.Err() == nil {
		entries, err := r.stock.ReadPending(ctx, r.shard, r.me.Name, after, redelivered)
		if err != nil || len(entries) == 0 {
			return err
		}
		after = entries[len(entries)-1].ID
		if err := r.record(ctx, entries, 0); err != nil {
			return err
		}
	}
	return nil
}

// step takes tokens, reads that much, and records it, unless another worker is preferred for the shard. It takes the
// tokens first: a worker that waits for tokens with entries in hand would look dead to the others. Only the first entry
// after a quiet spell is read on credit, so that idle shards cost the ledger nothing.
func (r *relayer) step(ctx context.Context) error {
	if aside, err := r.aside(ctx, r.shard, &r.beside); aside || err != nil {
		sleep(ctx, idleBlock, nil)
		return err
	}
	if silence := r.silence(r.shard); time.Since(r.claimed) > silence/3 {
		if err := r.takeOver(ctx, silence); err != nil {
			return err
		}
	}
	granted, count, block := 0, 1, idleBlock
	if r.opt.UntilIdle {
		block /= 10 // nobody waits a second for the end
	}
	if r.window > 0 {
		var err error
		want := min(batchEvents, int(float64(r.window)*r.size)) // no more than is read, or they would have to be given back
		if granted, err = r.tokens(ctx, want); err != nil || granted == 0 {
			return err
		}
		count, block = min(max(int(float64(granted)/r.size), 1), r.window), -1
	}
	// What Redis delivers is this worker's to finish, so a stop does not interrupt the read.
	entries, err := r.stock.ReadNew(context.WithoutCancel(ctx), r.shard, r.me.Name, count, block)
	if err != nil {
		return err
	}
	// It starts small: nobody knows how large the entries are that have piled up.
	if len(entries) == 0 {
		r.window = 0
	} else {
		r.window = min(max(2*r.window, 8), maxEntries)
	}
	return r.record(ctx, entries, granted)
}

// takeOver records what dead workers have left behind, as much as there is.
func (r *relayer) takeOver(ctx context.Context, silence time.Duration) error {
	for ctx.Err() == nil {
		entries, err := r.stock.Claim(ctx, r.shard, r.me.Name, silence, redelivered)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			r.claimed = time.Now()
			return nil
		}
		r.log.Info("took over entries from a silent worker", "shard", r.shard, "entries", len(entries))
		if err := r.record(ctx, entries, 0); err != nil {
			return err
		}
	}
	return nil
}

// record brings entries into the ledger, acknowledges them and settles the bill of tokens.
func (r *relayer) record(ctx context.Context, entries []drop.OutboxEntry, granted int) error {
	if err := r.judgeStrays(ctx, r.shard, entries); err != nil {
		return err
	}
	events := 0
	for len(entries) > 0 {
		n, applied, err := r.recordSome(ctx, entries)
		if err != nil {
			return err
		}
		r.size = max(float64(applied)/float64(n), 0.8*r.size, 1)
		events += applied
		entries = entries[n:]
	}
	if events == granted {
		return nil
	}
	return r.ledger.ChargeTokens(context.WithoutCancel(ctx), events-granted)
}

// recordSome applies the first entries, about a transaction's worth, and acknowledges them: only now that the
// ledger has everything in them. It returns how many entries and events they were.
func (r *relayer) recordSome(ctx context.Context, entries []drop.OutboxEntry) (n, applied int, err error) {
	events, poison, n := decodeSome(entries)
	if _, err := r.apply(ctx, events, poison); err != nil {
		return 0, 0, err
	}
	r.relayed("sent", n)
	ids := make([]string, n)
	for i, entry := range entries[:n] {
		ids[i] = entry.ID
	}
	// From here on a stop changes nothing any more: the ledger has it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer cancel()
	if err := r.stock.Ack(ctx, r.shard, ids); err != nil {
		return 0, 0, err
	}
	r.acknowledged(n)
	return n, len(events), nil
}
