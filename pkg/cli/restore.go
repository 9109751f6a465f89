package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/recovery"
)

// restoreFlags are what the command line says of a restore.
type restoreFlags struct {
	lots     []drop.LotID // named one by one, or
	group    string       // a whole group, or
	all      bool
	force    bool
	dryRun   bool
	exitCode bool
	reason   string
}

func newRestore(a *app) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:   "restore [LOT…]",
		Short: "Rebuild lots in Redis from the ledger",
		Long: `Put lots back into Redis as the ledger has recorded them: after Redis was emptied, put back to an
older state or damaged, or where reconcile found drift. What nobody holds or bought is available
again; every hold keeps its deadline, every sale its units, and a request that is repeated gets the
reservation it got before.

  none     both sides stand at the same event with the same totals: nothing to do, unless --force
           is given, as where reconcile --deep found records that differ
  compare  Redis has events that the ledger has not recorded yet; they are recorded first, and
           the lot is rebuilt if the sides still differ
  rebuild  the sides differ
  refuse   the lot is not known, archived, or was never on sale

A lot sells nothing while it is rebuilt. One that Redis is still ahead of after --timeout is left
alone: what only Redis knows would be lost. With --transport kafka the same goes for what the topic
still holds and a worker has not applied; a dry run does not ask for it. Shards that were shut, as
after a restart, are opened if all of their lots are equal then. It may be broken off and run again
at any time.`,
		Example: `  dropctl restore truffle-99
  dropctl restore --all --dry-run --exit-code
  dropctl restore --all --yes --reason "redis was lost"`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeFrom(a.recordedLots),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.read(args); err != nil {
				return err
			}
			if wire.HasSource(a.cfg) {
				if err := wire.CheckTransport(a.cfg, a.getenv, true, false); err != nil {
					return err
				}
			}
			return a.restore(cmd.Context(), f)
		},
	}
	a.groupFlag(cmd, &f.group)
	cmd.Flags().BoolVar(&f.all, "all", false, "all lots that the ledger knows")
	cmd.Flags().BoolVar(&f.force, "force", false, "rebuild also what is equal")
	reasonFlag(cmd, &f.reason)
	dryRunFlag(cmd, &f.dryRun)
	cmd.Flags().BoolVar(&f.exitCode, "exit-code", false, "with --dry-run: exit 6 if something would change")
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.Work, config.Broker)
	return cmd
}

// recordedLots offers the lots that the ledger knows for completion: Redis may have lost them.
func (a *app) recordedLots(ctx context.Context, _ string) ([]candidate, error) {
	l, err := a.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	lots, err := wire.WorkerLedger(l).Lots(ctx)
	list := make([]candidate, len(lots))
	for i, lot := range lots {
		list[i] = candidate{string(lot.Lot), fmt.Sprintf("%d held, %d sold of %d", lot.Held, lot.Sold, lot.Stock)}
	}
	return list, err
}

// read takes the lots from the arguments and checks everything, before anything is dialled.
func (f *restoreFlags) read(args []string) (err error) {
	if f.exitCode && !f.dryRun {
		return fault.New(fault.Usage, "--exit-code is of use with --dry-run only").WithField("exit-code")
	}
	if f.lots, err = readLots(args, f.group, f.all); err != nil {
		return err
	}
	return drop.CheckText("reason", f.reason, false)
}

// restoreView is one lot of the plan or of the outcome.
type restoreView struct {
	Lot       drop.LotID    `json:"lot" table:"LOT,name"`
	Action    recovery.Step `json:"action" table:"ACTION"`
	Result    string        `json:"result" table:"RESULT"` // planned, rebuilt, unchanged or failed
	Records   int64         `json:"records" table:"RECORDS"`
	Capacity  int64         `json:"capacity" table:"CAPACITY"`
	Available int64         `json:"available" table:"AVAILABLE"`
	Held      int64         `json:"held" table:"HELD"`
	Sold      int64         `json:"sold" table:"SOLD"`
	Epoch     int64         `json:"epoch" table:"EPOCH,wide"`         // of the load; before it, the ledger's
	Seq       int64         `json:"seq" table:"SEQ,wide"`             // up to which the ledger has recorded the lot
	RedisSeq  *int64        `json:"redis_seq" table:"REDIS SEQ,wide"` // null: Redis does not have it, or damaged
	Took      time.Duration `json:"took_seconds" table:"TOOK,wide"`
	Code      fault.Code    `json:"code" table:"CODE"` // why it is rebuilt, or of a failure
	Message   string        `json:"message" table:"DETAIL"`
	Hint      string        `json:"hint"`

	err error
}

func (a *app) restore(ctx context.Context, f restoreFlags) error {
	l, s, err := a.openOneShop(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	defer func() { _ = s.Close() }()
	r := wire.Rebuilder(s, l)
	r.Patience = a.cfg.Timeout
	if f.lots, err = a.lotsToRestore(ctx, l, f); err != nil {
		return err
	}
	late, err := a.awaitQueue(ctx, l, f)
	if err != nil {
		return err
	}
	plans, err := a.planRestore(ctx, r, f, late)
	if err != nil {
		return err
	}
	views := make([]restoreView, len(plans))
	for i, p := range plans {
		views[i] = viewPlan(p)
	}
	if f.dryRun {
		if err := a.print(views); err != nil {
			return err
		}
		return plannedError(views, f.exitCode)
	}
	a.note("target: %s on %s, from %s", countLots(f.lots), s.Target(), l.Target())
	if err := a.confirmRestore(ctx, plans, views); err != nil {
		return err
	}
	loaded := a.rebuildEach(ctx, r, f, plans, views)
	shut := r.Record(ctx, slices.Collect(maps.Keys(loaded)))
	if shut == nil {
		shut = a.reopen(ctx, r, wire.Reopener(s, l), f.lots, late, loaded)
	}
	if err := a.print(views); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fault.As(err)
	}
	if err := manyFaults(failures(views), "restored"); err != nil {
		return err
	}
	return shut
}

// lotsToRestore returns the lots that were named, or those of the ledger that were ever on sale. One that is being put away
// is restored only by its name, since that undoes its archive.
func (a *app) lotsToRestore(ctx context.Context, l *ledger.Ledger, f restoreFlags) ([]drop.LotID, error) {
	if len(f.lots) > 0 {
		return f.lots, nil
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	known, err := wire.WorkerLedger(l).Lots(ctx)
	if err != nil {
		return nil, err
	}
	var lots []drop.LotID
	for _, lot := range known {
		if lot.Seen && lot.Archive == drop.NotArchived && (f.all || lot.Lot.Group() == f.group) {
			lots = append(lots, lot.Lot)
		}
	}
	if len(lots) == 0 && f.group != "" {
		return nil, fault.New(fault.NotFound, "no lot of the group %s was ever on sale", f.group).WithHint("see what there is: dropctl lot list")
	}
	return lots, nil
}

// awaitQueue waits until what a queue still holds of the lots' shards is in the ledger: a server that was lost may have sent
// what the one now there never saw. It returns an error for each shard that must not be touched yet.
func (a *app) awaitQueue(ctx context.Context, l *ledger.Ledger, f restoreFlags) (late map[int]error, err error) {
	if f.dryRun { // a question to a queue is written into it
		return nil, nil
	}
	barrier, end, err := wire.OpenBarrier(ctx, a.cfg, a.getenv, l, a.logger(!a.cfg.Quiet))
	if err != nil {
		return nil, err
	}
	defer end()
	if barrier != nil {
		a.note("waiting until a worker has applied what the topic %s holds", a.cfg.KafkaTopic)
	}
	return barrier.Await(ctx, f.lots, l.Installation().Shards, a.cfg.Timeout), nil
}

// restoreParallelism is how many lots are looked at or rebuilt at a time. Most of a small lot's time is spent waiting for
// one of the stores.
const restoreParallelism = 8

// sideBySide runs fn for each of n things, a few at a time.
func sideBySide(n int, fn func(i int)) {
	places := make(chan struct{}, restoreParallelism)
	var wg sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			fn(i)
			<-places
		})
	}
	wg.Wait()
}

// planRestore looks at the lots, and refuses those of shards that must not be touched yet. Where a store does not answer for
// one it asks for no other: that would take a timeout each.
func (a *app) planRestore(ctx context.Context, r *recovery.Rebuilder, f restoreFlags, late map[int]error) ([]recovery.RebuildPlan, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	plans := make([]recovery.RebuildPlan, len(f.lots))
	sideBySide(len(f.lots), func(i int) {
		if ctx.Err() != nil {
			return
		}
		bounded, cancel := a.bounded(ctx)
		defer cancel()
		var err error
		if plans[i], err = r.Plan(bounded, f.lots[i], f.force); err != nil {
			stop(err)
		}
		if err := late[f.lots[i].Shard(r.Stock.Shards())]; err != nil {
			plans[i].Step, plans[i].Err = recovery.StepRefuse, err
		}
	})
	return plans, context.Cause(ctx)
}

func viewPlan(p recovery.RebuildPlan) restoreView {
	v := restoreView{Lot: p.Lot, Action: p.Step, Result: "planned", Records: p.Ledger.Records(), Epoch: p.Ledger.Watermark.Epoch, Seq: p.Ledger.Watermark.Seq, Code: p.Reason}
	v.count(p.Ledger.Totals())
	if p.Redis != nil && p.Redis.Damaged == "" {
		v.RedisSeq = &p.Redis.Seq
	}
	switch {
	case p.Err != nil:
		v.fail(p.Err)
	case p.Step == recovery.StepNone:
		v.unchanged()
	case p.Step == recovery.StepCompare:
		v.Message = fmt.Sprintf("Redis stands at %d/%d, the ledger at %d/%d", p.Redis.Epoch, p.Redis.Seq, v.Epoch, v.Seq)
	case p.Redis != nil && p.Redis.Damaged != "":
		v.Message = p.Redis.Damaged
	case p.Reason != "":
		v.Message = fault.Lookup(p.Reason).Title
	default:
		v.Message = "both sides are equal; forced"
	}
	return v
}

func (v *restoreView) count(t drop.Totals) {
	v.Capacity, v.Available, v.Held, v.Sold = t.Capacity, t.Available, t.Held, t.Sold
}

func (v *restoreView) unchanged() {
	v.Result, v.Code, v.Message = "unchanged", "", "already equal in all totals, nothing to do; its records are compared by: dropctl reconcile --deep"
	v.Hint = fmt.Sprintf("compare its records: dropctl reconcile --deep %s; rebuild it anyway: dropctl restore %s --force", v.Lot, v.Lot)
}

func (v *restoreView) fail(err error) {
	e := fault.As(err)
	v.err, v.Result, v.Code, v.Message, v.Hint = err, "failed", e.Code, e.Error(), fault.HintOf(e)
}

// plannedError says what a dry run found.
func plannedError(views []restoreView, exitCode bool) error {
	if err := manyFaults(failures(views), "restored"); err != nil {
		return err
	}
	changes := 0
	for _, v := range views {
		if v.Action != recovery.StepNone {
			changes++
		}
	}
	if exitCode && changes > 0 {
		return fault.New(fault.WouldChange, "%d of %d lots would be rebuilt", changes, len(views))
	}
	return nil
}

// confirmRestore shows people the plan and asks before a sale is interrupted.
func (a *app) confirmRestore(ctx context.Context, plans []recovery.RebuildPlan, views []restoreView) error {
	const shown = 20
	var selling []drop.LotID
	lines := 0
	for i, p := range plans {
		if p.Selling() {
			selling = append(selling, p.Lot)
		}
		if p.Step == recovery.StepNone || !a.errTerm.TTY {
			continue
		}
		if lines++; lines <= shown {
			a.note("  %s: %s, %d records (%s)", p.Lot, p.Step, views[i].Records, views[i].Message)
		}
	}
	if lines > shown {
		a.note("  and %d more: see --dry-run", lines-shown)
	}
	if len(selling) == 0 {
		return nil
	}
	return a.confirm(ctx, fmt.Sprintf("%s on sale: nothing can be bought until the rebuild ends. Go on?", areOn(selling)))
}

func areOn(lots []drop.LotID) string {
	if len(lots) == 1 {
		return "lot " + string(lots[0]) + " is"
	}
	return countLots(lots) + " are"
}

// rebuildEach carries the plans out, and notes in the views what became of them. It returns the lots that were loaded.
func (a *app) rebuildEach(ctx context.Context, r *recovery.Rebuilder, f restoreFlags, plans []recovery.RebuildPlan, views []restoreView) map[drop.LotID]recovery.Rebuilt {
	progress, end := a.restoreProgress()
	r.Progress = progress
	defer end()
	reason := f.reason
	if reason == "" {
		reason = "restore"
	}
	rebuild := r.Rebuild
	if f.force {
		rebuild = r.RebuildAnyway
	}
	done := make([]recovery.Rebuilt, len(plans))
	one := func(i int) {
		v := &views[i]
		if plans[i].Step != recovery.StepCompare && plans[i].Step != recovery.StepRebuild {
			return
		}
		var err error
		done[i], err = rebuild(ctx, v.Lot, a.cfg.Actor, reason)
		v.note(done[i], err)
	}
	sideBySide(len(plans), one)
	// Lots share a limited number of locks: two of them may have stood in each other's way.
	for i := range views {
		if fault.Is(views[i].err, fault.Busy) {
			one(i)
		}
	}
	loaded := map[drop.LotID]recovery.Rebuilt{}
	for i, v := range views {
		if done[i].Epoch > 0 && v.err == nil {
			loaded[v.Lot] = done[i]
		}
	}
	return loaded
}

// note writes down how the rebuild of a lot ended.
func (v *restoreView) note(done recovery.Rebuilt, err error) {
	v.Took, v.err, v.Hint = done.Took.Round(time.Millisecond), nil, ""
	if err != nil {
		v.fail(err)
		return
	}
	v.count(done.Totals)
	if done.Epoch == 0 {
		v.unchanged()
		return
	}
	v.Result, v.Records, v.Epoch, v.Message = "rebuilt", done.Records, done.Epoch, ""
}

// restoreProgress tells a person at a terminal how far the lots are; end takes the line away again.
func (a *app) restoreProgress() (tell func(lot drop.LotID, records, of int64), end func()) {
	if !a.errTerm.TTY || a.cfg.Quiet || a.jsonErrors() {
		return nil, func() {}
	}
	var mu sync.Mutex
	var last time.Time
	tell = func(lot drop.LotID, records, of int64) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < 100*time.Millisecond {
			return
		}
		last = time.Now()
		line := fmt.Sprintf("%s: %d of %d records", lot, records, of)
		a.say("\r%s\x1b[K", line[:min(len(line), a.errTerm.Width-1)])
	}
	return tell, func() { a.say("\r\x1b[K") }
}

// reopenPause lies between the two looks at a shard that is to be opened.
const reopenPause = time.Second

// reopen opens the shards of these lots that were shut and may be touched, and returns an error if one stays so.
func (a *app) reopen(ctx context.Context, r *recovery.Rebuilder, g *recovery.Guardian, lots []drop.LotID, late map[int]error, loaded map[drop.LotID]recovery.Rebuilt) error {
	byShard := map[int][]drop.LotID{}
	for _, lot := range lots {
		if n := lot.Shard(g.Shards); late[n] == nil {
			byShard[n] = append(byShard[n], lot)
		}
	}
	findings, err := g.Reopen(ctx, slices.Sorted(maps.Keys(byShard)), reopenPause, loaded)
	if err != nil {
		return err
	}
	var shut *recovery.Finding
	for _, f := range findings {
		if f.Action == recovery.Reopened {
			a.note("shard %d is open again", f.Shard)
			if err := r.Record(ctx, byShard[f.Shard]); err != nil { // the epochs they were opened under
				return err
			}
			continue
		}
		a.note("shard %d stays shut: %s %s", f.Shard, f.Reason, drop.JoinLots(f.Lots))
		if shut == nil {
			shut = &f
		}
	}
	if shut == nil {
		return nil
	}
	e := fault.New(fault.LotFrozen, "shard %d stays shut", shut.Shard)
	if shut.Reason != "" {
		e = fault.New(fault.LotFrozen, "shard %d stays shut: %s", shut.Shard, shut.Reason).With("reason", shut.Reason)
	}
	if next := shut.Next(); next != "" {
		return e.WithHint("%s", next)
	}
	return e.WithHint("run it again in a moment; see dropctl status")
}

// failures are the lots' errors, nil where there was none.
func failures(views []restoreView) []error {
	errs := make([]error, len(views))
	for i, v := range views {
		errs[i] = v.err
	}
	return errs
}
