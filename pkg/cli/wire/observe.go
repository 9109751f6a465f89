package wire

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// ObserveOptions says how to look at the stores. Zero values take the defaults named here.
type ObserveOptions struct {
	Every   time.Duration // from the end of one look to the next; default 5s, and at least four times what the last one took
	Limit   time.Duration // of one look; default 10s
	Lots    int           // how many lots have gauges of their own
	Ceiling int64         // of a shard's outbox, in bytes
	Log     *slog.Logger
}

// Observer looks at both stores now and then, each on its own, and keeps what they say as gauges. Whoever asks it gets
// what is known, at once. It is safe for concurrent use.
type Observer struct {
	stock  *stock.Stock
	ledger func() (*ledger.Ledger, error)
	opt    ObserveOptions
	gauges *telemetry.Drop

	deadLetters, frozen, stopped, verdicts, parts *family // label values that stay, at 0
	shardBytes, shardOldest                       *family
	available, held, sold                         *family // of lots, which come and go

	mu       sync.Mutex
	redis    look
	postgres look
	progress drop.Progress // of the ledger, without its lots
	backlog  drop.Backlog  // when Redis was looked at last
}

// look is how the last look at a store ended.
type look struct {
	err  error
	fine time.Time // when it answered last
}

// Observe returns an observer that does nothing before Run. The ledger may be one that never answered yet.
func Observe(s *stock.Stock, l func() (*ledger.Ledger, error), gauges *telemetry.Drop, o ObserveOptions) *Observer {
	if o.Every == 0 {
		o.Every = 5 * time.Second
	}
	if o.Limit == 0 {
		o.Limit = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	none := look{err: fault.New(fault.Unavailable, "not looked at yet")}
	return &Observer{
		stock: s, ledger: l, opt: o, gauges: gauges, redis: none, postgres: none,
		deadLetters: newFamily(gauges.DeadLetters, append(codes("stop"), string(fault.Invalid))...), frozen: newFamily(gauges.LotsFrozen, codes("freeze")...),
		stopped: newFamily(gauges.LotsStopped, codes("stop")...), verdicts: newFamily(gauges.ReconcileLots, codes("verdict")...),
		parts:      newFamily(gauges.WorkersAlive, "relay", "finalise", "sweep", "guardian", "notify"),
		shardBytes: newFamily(gauges.ShardOutboxBytes), shardOldest: newFamily(gauges.ShardOutboxOldest),
		available: newFamily(gauges.LotAvailable), held: newFamily(gauges.LotHeld), sold: newFamily(gauges.LotSold),
	}
}

// Opened gives an observer a ledger that is there.
func Opened(l *ledger.Ledger) func() (*ledger.Ledger, error) {
	return func() (*ledger.Ledger, error) { return l, nil }
}

// Run looks until the context ends.
func (o *Observer) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { o.repeat(ctx, "redis", &o.redis, o.lookAtRedis) })
	both.Go(func() { o.repeat(ctx, "postgres", &o.postgres, o.lookAtLedger) })
	both.Wait()
}

// repeat looks at a store again and again, and takes at most a fifth of the time for it.
func (o *Observer) repeat(ctx context.Context, store string, last *look, ask func(context.Context) error) {
	for {
		start := time.Now()
		within, cancel := context.WithTimeout(ctx, o.opt.Limit)
		err := ask(within)
		cancel()
		if ctx.Err() != nil {
			return
		}
		o.keep(store, last, err)
		pause := time.NewTimer(max(o.opt.Every, 4*time.Since(start)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

func (o *Observer) keep(store string, last *look, err error) {
	now := time.Now()
	o.mu.Lock()
	last.err = err
	if err == nil {
		last.fine = now
	}
	o.mu.Unlock()
	if err != nil {
		o.gauges.Up.WithLabelValues(store).Set(0)
		o.opt.Log.Debug("a look for the metrics failed", "store", store, "error", err)
		return
	}
	o.gauges.Up.WithLabelValues(store).Set(1)
	o.gauges.Looked.WithLabelValues(store).Set(seconds(now))
}

// Redis returns why Redis did not answer when it was looked at last, or that one of its servers takes no calls now; nil if
// all is well.
func (o *Observer) Redis() error {
	for _, n := range o.stock.Nodes() {
		if !n.Works() {
			return fault.New(fault.Unavailable, "Redis at %s takes no calls", n.Node)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.redis.err
}

// Postgres returns why PostgreSQL did not answer when it was looked at last, or nil.
func (o *Observer) Postgres() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.postgres.err
}

// Lag estimates how long the ledger needs for what is written now. While PostgreSQL is silent that grows with the time.
func (o *Observer) Lag() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.backlog.Entries == 0 {
		return 0
	}
	since := time.Since(o.redis.fine)
	if o.postgres.err != nil {
		return o.backlog.Age + since
	}
	return max(o.backlog.Age, o.backlog.Wait()-since)
}

// Backlog returns how far the ledger was behind when Redis was looked at last, for programs, and fault.Backpressure if an
// outbox is so full that its shard takes no holds.
func (o *Observer) Backlog() (detail any, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.redis.fine.IsZero() {
		return nil, o.redis.err
	}
	if o.opt.Ceiling > 0 && o.backlog.Fullest >= o.opt.Ceiling {
		err = fault.New(fault.Backpressure, "an outbox is at its ceiling")
	}
	return ViewBacklog(o.backlog, o.opt.Ceiling), err
}

// lookAtLedger reads what PostgreSQL knows of the whole installation.
func (o *Observer) lookAtLedger(ctx context.Context) error {
	l, err := o.ledger()
	if err != nil {
		return err
	}
	st, err := l.Status(ctx)
	if err != nil {
		return err
	}
	verdicts, last, err := l.VerdictCounts(ctx)
	if err != nil {
		return err
	}
	g := o.gauges
	o.mu.Lock()
	o.progress = *st.Progress(nil)
	o.mu.Unlock()
	g.Pace.WithLabelValues("limit").Set(st.Pace.Limit)
	g.Pace.WithLabelValues("seen").Set(st.Pace.Seen)
	g.EventsWaiting.Set(float64(st.Waiting))
	g.RefundsDue.Set(float64(st.RefundsDue))
	g.RefundsDueUnits.Set(float64(st.RefundsUnits))
	g.AllocationsPending.Set(float64(st.Pending))
	g.AllocationsOldest.Set(age(st.PendingSince, st.Now))
	g.ChargesOpen.Set(float64(st.Payments.Open))
	g.ChargesDeclined.Set(float64(st.Payments.Declined))
	g.ReturnsOpen.Set(float64(st.Payments.Returns))
	g.ReturnsRefused.Set(float64(st.Payments.Refused))
	g.PaymentsStuck.Set(float64(st.Payments.Stuck))
	g.ReconcileLast.Set(seconds(last))
	o.showHooks(st.Hooks, st.Now)
	o.deadLetters.set(byCode(st.DeadLetters))
	o.verdicts.set(byCode(verdicts))
	stopped, alive := map[string]float64{}, map[string]float64{}
	for _, lot := range st.Stopped {
		stopped[known(lot.Code)]++
	}
	for _, w := range st.Workers {
		for _, part := range w.Parts {
			if w.Alive && slices.Contains(telemetry.WorkerParts(), part) {
				alive[part]++
			}
		}
	}
	o.stopped.set(stopped)
	o.parts.set(alive)
	return nil
}

func (o *Observer) showHooks(hooks []drop.HookState, now time.Time) {
	var waiting, parked, failing int64
	var oldest time.Time
	for _, h := range hooks {
		waiting, parked = waiting+h.Waiting, parked+h.Parked
		if !h.FailingSince.IsZero() {
			failing++
		}
		if !h.Oldest.IsZero() && (oldest.IsZero() || h.Oldest.Before(oldest)) {
			oldest = h.Oldest
		}
	}
	o.gauges.NoticesWaiting.Set(float64(waiting))
	o.gauges.NoticesOldest.Set(age(oldest, now))
	o.gauges.NoticesParked.Set(float64(parked))
	o.gauges.HooksFailing.Set(float64(failing))
}

// lookAtRedis reads the outboxes and the lots. The ledger's side of the lag is read first, so that what comes between
// counts as lag and never as the opposite.
func (o *Observer) lookAtRedis(ctx context.Context) error {
	progress := o.askProgress(ctx)
	look, err := LookAtStock(ctx, o.stock, nil)
	if err != nil {
		return err
	}
	o.showOutboxes(look.Outboxes)
	lost := 0 // lots of ours in shards that are not
	if progress != nil {
		seen := slices.DeleteFunc(slices.Clone(progress.Lots), func(l drop.LedgerLot) bool { return !l.Seen })
		there := slices.DeleteFunc(slices.Clone(seen), func(l drop.LedgerLot) bool { return look.Strange(l.Lot) })
		lost = len(seen) - len(there)
		o.showNotLoaded(there, look.States)
	}
	o.showLots(look, lost)
	o.showBacklog(drop.BacklogOf(look.Outboxes, look.States, progress, time.Now()))
	return nil
}

// askProgress asks the ledger how far it is; nil: it is silent. Redis' own gauges do not wait long for it.
func (o *Observer) askProgress(ctx context.Context) *drop.Progress {
	l, err := o.ledger()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.opt.Limit/4)
	defer cancel()
	lots, err := ledgerLots(ctx, l, nil)
	if err != nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.progress
	p.Lots = lots
	return &p
}

// shardsShown is for how many shards there are gauges; an installation of more is judged by its fullest and its latest.
const shardsShown = 256

func (o *Observer) showOutboxes(outboxes []drop.OutboxState) {
	var entries, total int64
	now := time.Now()
	sizes, ages := map[string]float64{}, map[string]float64{}
	for _, out := range outboxes {
		entries, total = entries+out.Length, total+out.Bytes
		if out.Shard < shardsShown {
			sizes[strconv.Itoa(out.Shard)], ages[strconv.Itoa(out.Shard)] = float64(out.Bytes), age(out.Oldest, now)
		}
	}
	o.gauges.OutboxEntries.Set(float64(entries))
	o.gauges.OutboxBytes.Set(float64(total))
	o.shardBytes.set(sizes)
	o.shardOldest.set(ages)
}

// showBacklog keeps and shows a backlog. What only the ledger knows stays as it was while that is silent.
func (o *Observer) showBacklog(b drop.Backlog) {
	o.mu.Lock()
	o.backlog = b
	gap := o.progress.Gap
	o.mu.Unlock()
	g := o.gauges
	g.OutboxPending.Set(float64(b.Entries))
	g.OutboxOldest.Set(b.Age.Seconds())
	if o.opt.Ceiling > 0 {
		g.OutboxCeiling.Set(float64(b.Fullest) / float64(o.opt.Ceiling))
	}
	g.LagSeconds.Set(max(b.Lag.Seconds(), age(gap, time.Now())))
	if !b.Known {
		return
	}
	g.LagEvents.Set(float64(b.Events))
	limit, seen := b.Drain()
	for at, d := range map[string]time.Duration{"limit": limit, "seen": seen} {
		seconds := d.Seconds()
		if d == drop.Never {
			seconds = math.Inf(1)
		}
		g.DrainSeconds.WithLabelValues(at).Set(seconds)
	}
}

// showLots shows the lots of Redis. lost is how many there would be more if no shard were another installation's.
func (o *Observer) showLots(look StockLook, lost int) {
	frozen := map[string]float64{}
	if lost > 0 {
		frozen[known(fault.Foreign)] = float64(lost)
	}
	list := make([]drop.LotState, 0, len(look.States))
	for lot, st := range look.States {
		switch why := st.FreezeReason(); {
		case why != "":
			frozen[known(why)]++
		case st.Damaged != "" || look.BrokenAt(lot):
			frozen[known(fault.FreezeDiffers)]++
		}
		st.Lot = lot
		list = append(list, st)
	}
	o.gauges.Lots.Set(float64(len(look.States)))
	o.frozen.set(frozen)

	shown := mostOfInterest(list, o.opt.Lots)
	o.gauges.LotsLeftOut.Set(float64(len(list) - len(shown)))
	available, held, sold := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, st := range shown {
		available[string(st.Lot)], held[string(st.Lot)], sold[string(st.Lot)] = float64(st.Available), float64(st.Held), float64(st.Sold)
	}
	for _, f := range []struct {
		family *family
		values map[string]float64
	}{{o.available, available}, {o.held, held}, {o.sold, sold}} {
		f.family.set(f.values)
		f.family.forget(f.values)
	}
}

// mostOfInterest returns at most n lots that can be read: open ones before others, and within these in the order of their
// ids, so that the same ones are shown each time.
func mostOfInterest(lots []drop.LotState, n int) []drop.LotState {
	readable := slices.DeleteFunc(slices.Clone(lots), func(st drop.LotState) bool { return st.Damaged != "" })
	slices.SortFunc(readable, func(a, b drop.LotState) int {
		if open := a.Status == drop.Open; open != (b.Status == drop.Open) {
			if open {
				return -1
			}
			return 1
		}
		return strings.Compare(string(a.Lot), string(b.Lot))
	})
	return readable[:min(n, len(readable))]
}

func (o *Observer) showNotLoaded(seen []drop.LedgerLot, states map[drop.LotID]drop.LotState) {
	missing := 0
	for _, l := range seen {
		if _, there := states[l.Lot]; !there {
			missing++
		}
	}
	o.gauges.LotsNotLoaded.Set(float64(missing))
}

// family is a gauge with one label, whose values come and go. It is used by one goroutine.
type family struct {
	vec  *prometheus.GaugeVec
	seen map[string]bool
}

func newFamily(vec *prometheus.GaugeVec, labels ...string) *family {
	f := &family{vec: vec, seen: map[string]bool{}}
	for _, label := range labels {
		f.seen[label] = true
	}
	return f
}

// set shows the values, and 0 for a label that has none any more: an alert that fired on it then ends.
func (f *family) set(values map[string]float64) {
	for label := range values {
		f.seen[label] = true
	}
	for label := range f.seen {
		f.vec.WithLabelValues(label).Set(values[label])
	}
}

// forget takes away the labels that have no value.
func (f *family) forget(values map[string]float64) {
	for label := range f.seen {
		if _, there := values[label]; !there {
			f.vec.DeleteLabelValues(label)
			delete(f.seen, label)
		}
	}
}

func byCode(counts map[fault.Code]int64) map[string]float64 {
	values := map[string]float64{}
	for code, n := range counts {
		values[known(code)] += float64(n)
	}
	return values
}

// codes lists the codes of a kind.
func codes(kind string) []string {
	var list []string
	for _, e := range fault.All() {
		if e.Kind == kind {
			list = append(list, string(e.Code))
		}
	}
	return list
}

// known returns a code as a label. What a store says and the table does not know must not make series.
func known(code fault.Code) string { return string(fault.Lookup(code).Code) }

// age returns how long ago that was, in seconds; 0 for never, and for a clock that is ahead.
func age(t, now time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(now.Sub(t).Seconds(), 0)
}

// seconds returns the time as Prometheus writes it; 0 for never.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
