package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/recovery"
)

// statusFacts is what status could find out; what a silent store would have said is missing.
type statusFacts struct {
	now      time.Time
	redis    storeView
	database storeView
	maxLag   time.Duration
	ceiling  int64 // of a shard's outbox, in bytes

	// From Redis.
	full  error // fault.OutOfMemory
	stock wire.StockLook

	// From PostgreSQL.
	lots     []drop.LedgerLot
	listed   bool // whether these are all
	progress *drop.Progress
	counts   ledgerCounts
	payments drop.Payments
	refused  []refusedView
	dead     []deadView
	due      []dueView
	hooks    []drop.HookState
	alive    []workerView
	run      *runView
}

// ledgerCounts are the ledger's lists that should be short.
type ledgerCounts struct {
	DeadLetters map[fault.Code]int64
	RefundsDue  int64
	Waiting     int64 // events behind a gap or of a stopped lot
	Unfinalised int64 // confirmed reservations not finalised yet
}

func (c ledgerCounts) dead() (n int64) {
	for _, of := range c.DeadLetters {
		n += of
	}
	return n
}

// statusView is one look at everything.
type statusView struct {
	Verdict     string            `json:"verdict" table:"VERDICT"` // the level of the worst line
	Checked     time.Time         `json:"checked" table:"CHECKED"`
	Lines       []statusLine      `json:"lines" table:"WORST FIRST"`
	Stores      []storeView       `json:"stores"`
	Lots        lotsView          `json:"lots"`
	Outbox      *outboxView       `json:"outbox"`       // null: Redis was silent
	Backlog     *wire.BacklogView `json:"backlog"`      // the same
	Dead        *int64            `json:"dead_letters"` // null: PostgreSQL was silent; the same below
	Refunds     *int64            `json:"refunds_due"`
	Waiting     *int64            `json:"events_waiting"`
	Unfinalised *int64            `json:"sales_pending"`
	DeadList    []deadView        `json:"newest_dead_letters" table:"DEAD LETTERS"`
	DueList     []dueView         `json:"newest_refunds_due" table:"REFUNDS DUE"`
	Payments    *paymentsView     `json:"payments"`
	Refused     []refusedView     `json:"refused_refunds" table:"REFUNDS THE GATEWAY REFUSES"`
	Hooks       []hookView        `json:"hooks"` // that fail, or have given something up
	Workers     []workerView      `json:"workers"`
	LastRun     *runView          `json:"last_reconcile"`
}

// statusLine is one thing to know, and the command that comes next.
type statusLine struct {
	Level string     `json:"level" table:"LEVEL"` // bad, warn or ok
	Code  fault.Code `json:"code"`                // for explain; "" where there is nothing to explain
	What  string     `json:"what" table:"WHAT,name"`
	Next  string     `json:"next" table:"NEXT"`
}

type storeView struct {
	Store     string `json:"store"`
	Target    string `json:"target"`
	Reachable bool   `json:"reachable"`
	Error     string `json:"error"`

	err error
}

// lotCounts count lots. One lot is counted once, where it is worst.
type lotCounts struct {
	Selling, Paused, Closed, Frozen, Stopped, NotLoaded int

	Unknown int // Redis was silent
}

// lotsView are the counts as far as they are known; null where the store that knows was silent.
type lotsView struct {
	Selling   *int `json:"selling"`
	Paused    *int `json:"paused"`
	Closed    *int `json:"closed"`
	Frozen    *int `json:"frozen"`
	Stopped   *int `json:"stopped"`
	NotLoaded *int `json:"not_loaded"`
	Unknown   int  `json:"unknown"`
}

func (f statusFacts) lotsView(n lotCounts) lotsView {
	v := lotsView{Unknown: n.Unknown}
	if f.redis.Reachable {
		v.Selling, v.Paused, v.Closed, v.Frozen = &n.Selling, &n.Paused, &n.Closed, &n.Frozen
	}
	if f.database.Reachable {
		v.Stopped = &n.Stopped
	}
	if f.redis.Reachable && f.database.Reachable {
		v.NotLoaded = &n.NotLoaded
	}
	return v
}

type outboxView struct {
	Entries int64          `json:"entries"`
	Bytes   int64          `json:"bytes"`
	Pending int64          `json:"pending_entries"` // the ledger has not got them
	Oldest  *time.Duration `json:"oldest_seconds"`  // null: nothing is pending
}

type workerView struct {
	Worker  string    `json:"worker"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Parts   []string  `json:"parts"`
	Rate    float64   `json:"max_events_per_second"` // 0: it writes none
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Seen    time.Time `json:"seen"`
}

// deadView are the dead letters of one lot with one code and reason.
type deadView struct {
	Code   fault.Code `json:"code" table:"CODE,name"`
	Lot    drop.LotID `json:"lot" table:"LOT"`
	Reason string     `json:"reason" table:"REASON"`
	Count  int64      `json:"count" table:"COUNT"`
	Newest time.Time  `json:"newest" table:"NEWEST"`
}

// dueView is a payment to give back.
type dueView struct {
	Reservation string    `json:"reservation" table:"RESERVATION,name"`
	User        string    `json:"user" table:"USER"`
	Units       int64     `json:"units" table:"UNITS"`
	Payment     string    `json:"payment" table:"PAYMENT"`
	Why         string    `json:"why" table:"WHY"`
	At          time.Time `json:"at" table:"AT"`
}

// runView is what reconcile runs have found. A run of some lots leaves what is known of the others.
type runView struct {
	Started  time.Time   `json:"started"` // of the newest run
	Verdict  fault.Code  `json:"verdict"` // ok, or finding if there is one of any lot
	Findings []foundView `json:"findings"`
}

// foundView is a lot whose newest look ended in a finding.
type foundView struct {
	Lot     drop.LotID `json:"lot"`
	Verdict fault.Code `json:"verdict"`
	Checked time.Time  `json:"checked"`
}

// The levels of a line, the worst first.
const (
	levelBad  = "bad"
	levelWarn = "warn"
	levelOK   = "ok"
)

var levels = []string{levelBad, levelWarn, levelOK}

// view turns facts into lines, worst first; within a level they come in the order of the questions below.
func (f statusFacts) view() statusView {
	v := statusView{Verdict: levelOK, Checked: f.now, Stores: []storeView{f.redis, f.database}, Workers: f.alive, LastRun: f.run, DeadList: f.dead, DueList: f.due, Refused: f.refused}
	say := func(level string, code fault.Code, next, format string, args ...any) {
		v.Lines = append(v.Lines, statusLine{level, code, fmt.Sprintf(format, args...), next})
	}
	f.sayStores(say)
	f.sayBroken(say)
	v.Lots = f.lotsView(f.sayLots(say))
	backlog := drop.BacklogOf(f.stock.Outboxes, f.stock.States, f.progress, f.now)
	if f.redis.Reachable {
		v.Outbox, v.Backlog = new(f.outboxTotals()), new(wire.ViewBacklog(backlog, f.ceiling))
		f.sayBacklog(say, backlog)
	}
	if f.database.Reachable {
		v.Dead, v.Refunds, v.Waiting, v.Unfinalised = new(f.counts.dead()), &f.counts.RefundsDue, &f.counts.Waiting, &f.counts.Unfinalised
		v.Payments = new(paymentsView{f.payments.Open, f.payments.Pending, f.payments.Declined, f.payments.Returns, f.payments.Refused, f.payments.Stuck})
		f.sayLedger(say)
		f.sayPayments(say)
		v.Hooks = f.sayHooks(say)
		f.sayWorkers(say, backlog)
		f.sayRun(say)
	}
	slices.SortStableFunc(v.Lines, func(a, b statusLine) int { return slices.Index(levels, a.Level) - slices.Index(levels, b.Level) })
	if len(v.Lines) > 0 {
		v.Verdict = v.Lines[0].Level
	}
	return v
}

// sayFunc adds a line.
type sayFunc func(level string, code fault.Code, next, format string, args ...any)

func (f statusFacts) sayStores(say sayFunc) {
	for _, s := range []storeView{f.redis, f.database} {
		if !s.Reachable {
			say(levelBad, fault.CodeOf(s.err), fault.HintOf(s.err), "%s", s.Error)
		}
	}
	if f.full != nil {
		say(levelBad, fault.CodeOf(f.full), fault.HintOf(f.full), "%s", fault.As(f.full).Error())
	}
}

// sayBroken names the keys of dropctl that something else is in, and the lots that sell nothing for that reason.
func (f statusFacts) sayBroken(say sayFunc) {
	for _, shard := range slices.Sorted(maps.Keys(f.stock.Broken)) {
		var lots []drop.LotID
		for _, l := range f.lots {
			if l.Seen && l.Lot.Shard(f.stock.Shards) == shard {
				lots = append(lots, l.Lot)
			}
		}
		for _, key := range f.stock.Broken[shard] {
			what := key.What
			if len(lots) > 0 {
				what += "; nothing is sold from " + drop.SomeLots(lots)
			}
			say(levelBad, "", key.Fix, "%s", what)
		}
	}
}

// sortedLots are the lots, each where it is worst.
type sortedLots struct {
	lotCounts

	bad          map[fault.Code][]drop.LotID // those that cannot be sold, by what is wrong with them
	damaged      []drop.LotID
	neverLoaded  []drop.LotID
	halfArchived []drop.LotID // whatever else they are
}

func (f statusFacts) sortLots() sortedLots {
	s := sortedLots{bad: map[fault.Code][]drop.LotID{}}
	for _, l := range f.allLots() {
		if l.Archive == drop.ArchiveBegun {
			s.halfArchived = append(s.halfArchived, l.Lot)
		}
		f.sortLot(&s, l)
	}
	return s
}

// sortLot asks the worst first.
func (f statusFacts) sortLot(s *sortedLots, l drop.LedgerLot) {
	bad := func(count *int, code fault.Code) {
		*count++
		s.bad[code] = append(s.bad[code], l.Lot)
	}
	state, loaded := f.stock.States[l.Lot]
	switch {
	case l.Stopped != "":
		bad(&s.Stopped, l.Stopped)
	case !f.redis.Reachable:
		s.Unknown++
	case f.stock.Strange(l.Lot) && l.Seen:
		bad(&s.Frozen, fault.Foreign)
	case f.stock.BrokenAt(l.Lot) && l.Seen: // told by its shard
		s.Frozen++
	case !loaded && l.Archive == drop.ArchiveBegun:
		s.NotLoaded++
	case !loaded && l.Seen:
		bad(&s.NotLoaded, fault.FreezeEmptied)
	case !loaded:
		s.NotLoaded++
		s.neverLoaded = append(s.neverLoaded, l.Lot)
	case state.Damaged != "":
		s.Frozen++
		s.damaged = append(s.damaged, l.Lot)
	case !state.Sells():
		bad(&s.Frozen, state.FreezeReason())
	case state.Status == drop.Paused:
		s.Paused++
	case state.Status == drop.Closed:
		s.Closed++
	default:
		s.Selling++
	}
}

// sayLots names the lots that something is wrong with, and counts the others.
func (f statusFacts) sayLots(say sayFunc) lotCounts {
	lots := f.sortLots()
	for _, code := range sortedKeys(lots.bad) {
		say(levelBad, code, nextFor(code, lots.bad[code]), "%s: %s", strings.ToLower(fault.Lookup(code).Title), drop.SomeLots(lots.bad[code]))
	}
	if len(lots.damaged) > 0 {
		say(levelBad, fault.FreezeDiffers, nextFor(fault.FreezeDiffers, lots.damaged), "damaged in Redis: %s", drop.SomeLots(lots.damaged))
	}
	if len(lots.neverLoaded) > 0 {
		say(levelWarn, fault.LotNotLoaded, "dropctl seed", "created but never loaded: %s", drop.SomeLots(lots.neverLoaded))
	}
	if len(lots.halfArchived) > 0 {
		names := strings.ReplaceAll(drop.JoinLots(lots.halfArchived), ",", "")
		say(levelWarn, "", "dropctl lot archive "+names, "archives begun and not finished: %s", drop.SomeLots(lots.halfArchived))
	}
	if lots.Unknown > 0 {
		say(levelWarn, "", "dropctl status", "%s out of sight: Redis did not answer", lotsAre(lots.Unknown))
	}
	if lots.Paused > 0 {
		say(levelOK, fault.LotPaused, "dropctl lot list", "%s paused", lotsAre(lots.Paused))
	}
	if lots.Selling > 0 {
		say(levelOK, "", "dropctl lot list", "%s open", lotsAre(lots.Selling))
	}
	if f.redis.Reachable && f.database.Reachable && len(f.lots)+len(f.stock.States) == 0 {
		say(levelOK, "", "dropctl seed LOT --stock N", "no lots yet")
	}
	return lots.lotCounts
}

// allLots returns the lots of the ledger and, as far as the ledger was silent or does not know them, of Redis.
func (f statusFacts) allLots() []drop.LedgerLot {
	all := slices.Clone(f.lots)
	known := map[drop.LotID]bool{}
	for _, l := range f.lots {
		known[l.Lot] = true
	}
	for id := range f.stock.States {
		if !known[id] {
			all = append(all, drop.LedgerLot{Definition: drop.Definition{Lot: id}, Seen: true})
		}
	}
	slices.SortFunc(all, func(a, b drop.LedgerLot) int { return strings.Compare(string(a.Lot), string(b.Lot)) })
	return all
}

func (f statusFacts) outboxTotals() outboxView {
	var v outboxView
	for _, o := range f.stock.Outboxes {
		v.Entries, v.Bytes, v.Pending = v.Entries+o.Length, v.Bytes+o.Bytes, v.Pending+o.Pending
		if age := f.now.Sub(o.Oldest); !o.Oldest.IsZero() && (v.Oldest == nil || age > *v.Oldest) {
			age = max(age, 0)
			v.Oldest = &age
		}
	}
	return v
}

func (f statusFacts) sayBacklog(say sayFunc, b drop.Backlog) {
	switch {
	case b.Fullest >= f.ceiling:
		say(levelBad, fault.Backpressure, f.workerCommand(), "an outbox is at its ceiling: its lots take no holds until the ledger has recorded some")
	case b.Fullest >= f.ceiling/2:
		say(levelWarn, fault.Backpressure, f.workerCommand(), "an outbox is at %d%% of its ceiling, where holds are refused", 100*b.Fullest/f.ceiling)
	}
	switch {
	case b.Age > f.maxLag:
		say(levelBad, fault.VerdictLagging, f.workerCommand(), "the ledger is behind by %s", backlogText(b))
	case b.Entries > 0:
		say(levelOK, fault.VerdictLagging, "dropctl status --watch", "the ledger is behind by %s", backlogText(b))
	}
}

// backlogText says how much there is and how long it takes, as far as that is known.
func backlogText(b drop.Backlog) string {
	text := fmt.Sprintf("%s, the oldest is %s old", entriesOf(b.Entries), fault.Duration(b.Age.Round(time.Second)))
	if !b.Known {
		return text
	}
	text += fmt.Sprintf("; events that are not folded: %d", b.Events)
	limit, seen := b.Drain()
	if limit != drop.Never && limit > 0 {
		text += fmt.Sprintf("; done in %s at the limit of %.0f/s", roughly(limit), b.Pace.Limit)
	}
	if seen != drop.Never && seen > 0 {
		text += fmt.Sprintf("; in %s at the recent pace, %.0f/s", roughly(seen), b.Pace.Seen)
	}
	return text
}

// roughly rounds an estimate up to whole seconds.
func roughly(d time.Duration) string {
	return fault.Duration((d + time.Second - 1).Truncate(time.Second))
}

func (f statusFacts) sayLedger(say sayFunc) {
	if n := f.counts.RefundsDue; n > 0 {
		say(levelWarn, "", "dropctl ledger show --refund-due", "payments that paid for no unit and are due for refund: %d", n)
	}
	for _, code := range drop.WorstFirst(f.counts.DeadLetters) {
		say(levelBad, code, "dropctl outbox list --state dead", "events parked as dead letters: %d (%s)", f.counts.DeadLetters[code], code)
	}
	if n := f.counts.Waiting; n > 0 {
		say(levelWarn, "", "dropctl outbox list --state waiting", "events that wait for an earlier one, or for a stopped lot: %d", n)
	}
	if n := f.counts.Unfinalised; n > 0 {
		say(levelOK, "", "dropctl status --watch", "confirmed reservations being finalised: %d", n)
	}
}

// lateNotice is how old the oldest notice of a hook may be before that is worth a look.
const lateNotice = time.Minute

// sayHooks tells of receivers that are not told what they want to know, and returns them. No sale suffers from it.
func (f statusFacts) sayHooks(say sayFunc) (troubled []hookView) {
	var waiting int64
	for _, h := range f.hooks {
		waiting += h.Waiting
		switch {
		case !h.FailingSince.IsZero():
			say(levelWarn, "", "dropctl hook test "+h.ID, "the receiver of the hook %s has failed for %s (%s); notices that wait: %d", h.ID, fault.Duration(f.now.Sub(h.FailingSince).Round(time.Second)), h.LastError, h.Waiting)
		case h.Waiting > 0 && f.now.Sub(h.Oldest) > lateNotice:
			say(levelWarn, "", "dropctl hook test "+h.ID, "%d notices of the hook %s wait, the oldest for %s", h.Waiting, h.ID, fault.Duration(f.now.Sub(h.Oldest).Round(time.Second)))
		case h.Parked == 0:
			continue
		}
		if h.Parked > 0 {
			say(levelWarn, "", "dropctl hook retry "+h.ID, "%d notices of the hook %s were given up", h.Parked, h.ID)
		}
		troubled = append(troubled, viewHook(h))
	}
	if waiting > 0 && len(troubled) == 0 {
		say(levelOK, "", "dropctl hook list", "notices on their way: %d", waiting)
	}
	return troubled
}

func (f statusFacts) sayWorkers(say sayFunc, b drop.Backlog) {
	if p := b.Pace; p.Highest > p.Limit {
		say(levelWarn, "", "dropctl status -o json --jq .workers", "workers were given other limits, from %.0f to %.0f events/s: the lowest holds for all", p.Limit, p.Highest)
	}
	switch {
	case len(f.alive) == 0 && b.Entries+f.counts.Unfinalised+f.payments.Asking > 0:
		say(levelBad, "", f.workerCommand(), "no worker is alive, and there is work for one")
	case len(f.alive) == 0:
		say(levelWarn, "", f.workerCommand(), "no worker is alive")
	default:
		say(levelOK, "", "dropctl status -o json", "%d worker%s alive", len(f.alive), plural(len(f.alive)))
	}
}

// workerCommand starts a worker that can do all there is to do. What the payment gateway was asked for stays with it, also
// once payments are set to none.
func (f statusFacts) workerCommand() string {
	if f.payments.Asking > 0 {
		return "dropctl worker --payment webhook"
	}
	return "dropctl worker"
}

// sayRun tells what reconcile found. Drift shows nowhere else, so it stays bad until a run finds the lot in order;
// the other findings may have passed since, and the lines about lots and outbox tell if they have not.
func (f statusFacts) sayRun(say sayFunc) {
	if f.run == nil {
		say(levelOK, "", "dropctl reconcile", "never reconciled")
		return
	}
	found := map[fault.Code][]drop.LotID{}
	for _, v := range f.run.Findings {
		found[v.Verdict] = append(found[v.Verdict], v.Lot)
	}
	for _, verdict := range sortedKeys(found) {
		lots := found[verdict]
		if verdict == fault.VerdictDrift {
			say(levelBad, verdict, nextFor(verdict, lots), "drift when last reconciled: %s", drop.SomeLots(lots))
			continue
		}
		say(levelWarn, verdict, "dropctl reconcile", "%s when last reconciled: %s", verdict, drop.SomeLots(lots))
	}
	if len(found) == 0 {
		say(levelOK, fault.VerdictOK, "dropctl reconcile", "last reconcile %s ago: ok", fault.Duration(f.now.Sub(f.run.Started).Round(time.Second)))
	}
}

// err is nil if everything is fine or merely worth a look; otherwise it decides the exit status.
func (v statusView) err() error {
	for _, s := range v.Stores {
		if !s.Reachable {
			return s.err
		}
	}
	if v.Verdict != levelBad {
		return nil
	}
	worst := v.Lines[0]
	return fault.New(fault.Finding, "%s", worst.What).WithHint("%s", worst.Next)
}

// nextFor is the table's hint with the lots filled in.
func nextFor(code fault.Code, lots []drop.LotID) string {
	return recovery.Finding{Reason: code, Lots: lots}.Next()
}

func lotsAre(n int) string {
	if n == 1 {
		return "1 lot is"
	}
	return fmt.Sprintf("%d lots are", n)
}

func entriesOf(n int64) string {
	if n == 1 {
		return "1 outbox entry"
	}
	return fmt.Sprintf("%d outbox entries", n)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

func sortedKeys(m map[fault.Code][]drop.LotID) []fault.Code {
	var keys []fault.Code
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
