// Package reconcile compares Redis with the ledger, exactly, while both are at work.
//
// A look at a lot reads the ledger first, then one atomic snapshot of Redis, then the events that lie
// between the two, and folds those onto the ledger's side: both are then compared at one watermark. Events
// not folded yet are lag, which is normal; a difference at equal watermark is drift. Whatever looks bad is
// looked at again before it is reported, so that nothing that happens between two reads (a trim, a new
// epoch, a lot being created) is ever taken for a fault. Nothing is changed but the record of the run,
// unless a repair of derived data is asked for (repair.go).
package reconcile

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Options say what to compare and how patiently.
type Options struct {
	Lots   []drop.LotID  // empty: every lot of either side
	Group  string        // only lots of this group; "" for all
	Deep   bool          // prove every record, not only the totals
	Wait   time.Duration // how long lag may take to pass before it is reported
	MaxLag time.Duration // lag older than this is a finding
	Actor  string

	Repair    bool   // put derived data right; the lots must have been proven, so this goes with Deep only
	DryRun    bool   // say what would be repaired, change nothing
	MaxRepair int    // differences to repair at most, in all lots
	Reason    string // for the account of the repairs

	Installation string // the ledger's
}

// looks bounds how often something bad is looked at again; the pauses between grow from 5 ms to 160 ms.
const looks = 7

func pauseBefore(look int) time.Duration { return 5 * time.Millisecond << (look - 1) }

// Run compares the lots and returns what it found; findings are no error (see Report.Err). It returns
// fault.Busy while another run is on, fault.NotFound for a named lot that neither side knows, and the
// store's own error if any read fails: half a comparison is never reported.
func Run(ctx context.Context, stock Stock, ledger Ledger, o Options) (Report, error) {
	if owner, _, err := stock.SetUp(ctx); err != nil {
		return Report{}, err
	} else if owner != "" && owner != o.Installation {
		return Report{}, fault.New(fault.Foreign, "Redis holds data of the installation %s, the ledger is that of %s: there is nothing to compare", owner, o.Installation)
	}
	id, finish, err := ledger.StartRun(ctx, Start{Actor: o.Actor, Lots: o.Lots, Group: o.Group, Deep: o.Deep, Repair: o.Repair && !o.DryRun})
	if err != nil {
		return Report{}, err
	}
	r := &run{id: id, stock: stock, ledger: ledger, o: o, deadline: time.Now().Add(o.Wait), mayRepair: o.MaxRepair}
	report, err := r.run(ctx)
	if ferr := finish(report, err); err == nil {
		err = ferr
	}
	return report, err
}

type run struct {
	id       int64
	stock    Stock
	ledger   Ledger
	o        Options
	deadline time.Time

	mayRepair int // differences that may still be repaired
}

func (r *run) run(ctx context.Context) (Report, error) {
	report := Report{Verdict: fault.VerdictOK, Deep: r.o.Deep, Started: time.Now().UTC(), Rows: []Row{}}
	lots, err := r.choose(ctx)
	if err != nil {
		return report, err
	}
	rows, err := r.settled(ctx, lots)
	if err != nil {
		return report, err
	}
	if r.o.Deep {
		if err := r.proveAll(ctx, lots, rows); err != nil {
			return report, err
		}
	}
	if r.o.Repair {
		if err := r.repairAll(ctx, lots, rows); err != nil {
			return report, err
		}
	}
	var strays []Row
	if r.o.Deep {
		if strays, err = r.strays(ctx, lots); err != nil {
			return report, err
		}
	}
	if report.WorkersAlive, err = r.ledger.WorkersAlive(ctx); err != nil {
		return report, err
	}
	for _, lot := range lots {
		report.add(rows[lot])
	}
	for _, row := range strays {
		report.add(row)
	}
	slices.SortStableFunc(report.Rows, func(a, b Row) int { return a.rank() - b.rank() })
	report.Took = time.Since(report.Started)
	return report, nil
}

// choose lists the lots to compare, sorted. Redis is asked first: lots are created in the ledger first, so
// one that Redis has and the ledger, asked later, has not, was never created properly.
func (r *run) choose(ctx context.Context) ([]drop.LotID, error) {
	redis, err := r.stock.Lots(ctx)
	if err != nil {
		return nil, err
	}
	known, err := r.ledger.Lots(ctx, nil)
	if err != nil {
		return nil, err
	}
	all := redis
	for _, l := range known {
		all = append(all, l.Lot)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	var chosen []drop.LotID
	for _, lot := range all {
		if (len(r.o.Lots) == 0 || slices.Contains(r.o.Lots, lot)) && (r.o.Group == "" || lot.Group() == r.o.Group) {
			chosen = append(chosen, lot)
		}
	}
	for _, lot := range r.o.Lots {
		if _, found := slices.BinarySearch(all, lot); !found {
			return nil, r.unlisted(ctx, lot)
		}
	}
	if r.o.Group != "" && len(chosen) == 0 {
		return nil, fault.New(fault.NotFound, "there is no lot of the group %s", r.o.Group)
	}
	return chosen, nil
}

// unlisted says why there is nothing to compare of a lot. Only who asks for an archived one by name is shown it.
func (r *run) unlisted(ctx context.Context, lot drop.LotID) error {
	known, err := r.ledger.Lots(ctx, []drop.LotID{lot})
	if err != nil {
		return err
	}
	if len(known) > 0 && known[0].Archive == drop.Archived {
		return fault.New(fault.Conflict, "the lot %s is archived: there is nothing to compare", lot).WithHint("what was sold of it: dropctl reservation list --lot %s", lot)
	}
	return fault.New(fault.NotFound, "neither Redis nor the ledger knows the lot %s", lot)
}

// settled judges the lots, and those that lag again until they no longer do or the wait is over.
func (r *run) settled(ctx context.Context, lots []drop.LotID) (map[drop.LotID]Row, error) {
	rows := map[drop.LotID]Row{}
	open := lots
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		judged, err := r.judged(ctx, open)
		if err != nil {
			return nil, err
		}
		open = nil
		for lot, row := range judged {
			rows[lot] = row
			if row.Verdict == fault.VerdictLagging {
				open = append(open, lot)
			}
		}
		left := time.Until(r.deadline)
		if len(open) == 0 || left <= 0 {
			return rows, nil
		}
		if err := retry.Sleep(ctx, min(pause, left)); err != nil {
			return nil, err
		}
	}
}

// judged judges the lots; a row with evidence against it stands only if every look has some.
func (r *run) judged(ctx context.Context, lots []drop.LotID) (map[drop.LotID]Row, error) {
	rows := map[drop.LotID]Row{}
	open := lots
	for look := 0; look < looks && len(open) > 0; look++ {
		if look > 0 {
			if err := retry.Sleep(ctx, pauseBefore(look)); err != nil {
				return nil, err
			}
		}
		sights, err := r.look(ctx, open)
		if err != nil {
			return nil, err
		}
		open = nil
		for _, s := range sights {
			row := judge(s, r.o.MaxLag)
			rows[s.lot] = row
			if len(row.Evidence) > 0 {
				open = append(open, s.lot)
			}
		}
	}
	return rows, nil
}

// look reads both sides of the lots, the ledger first, in as few round trips as there are shards.
func (r *run) look(ctx context.Context, lots []drop.LotID) ([]sight, error) {
	known, err := r.ledger.Lots(ctx, lots)
	if err != nil {
		return nil, err
	}
	states, err := r.stock.LotStates(ctx, lots)
	if err != nil {
		return nil, err
	}
	sights := make([]sight, len(lots))
	byLot := map[drop.LotID]*sight{}
	for i, lot := range lots {
		sights[i].lot = lot
		byLot[lot] = &sights[i]
		if state, ok := states[lot]; ok {
			sights[i].redis = &state
		}
	}
	for i := range known {
		byLot[known[i].Lot].ledger = &known[i]
	}
	behind := map[drop.LotID]drop.Watermark{}
	for _, s := range sights {
		if s.ledger != nil && s.redis != nil && s.redis.Damaged == "" && s.redis.Seq > s.ledger.Seq {
			behind[s.lot] = s.ledger.Watermark
		}
	}
	events, err := r.eventsSince(ctx, behind)
	if err != nil {
		return nil, err
	}
	for lot := range behind {
		byLot[lot].events = events[lot]
	}
	return sights, nil
}

// eventsSince collects the events behind the watermarks from the outbox, and from what waits in the ledger
// behind a gap.
func (r *run) eventsSince(ctx context.Context, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error) {
	if len(from) == 0 {
		return nil, nil
	}
	shards := map[int]map[drop.LotID]drop.Watermark{}
	var lots []drop.LotID
	for lot, at := range from {
		shard := lot.Shard(r.stock.Shards())
		if shards[shard] == nil {
			shards[shard] = map[drop.LotID]drop.Watermark{}
		}
		shards[shard][lot] = at
		lots = append(lots, lot)
	}
	// Of two claims to one place the later in the list counts: the outbox is what Redis itself wrote.
	all, err := r.ledger.WaitingEvents(ctx, lots)
	if err != nil {
		return nil, err
	}
	if all == nil {
		all = map[drop.LotID][]drop.Event{}
	}
	for shard, from := range shards {
		events, err := r.stock.EventsSince(ctx, shard, from)
		if err != nil {
			return nil, err
		}
		for lot, list := range events {
			all[lot] = append(all[lot], list...)
		}
	}
	return all, nil
}

// proveAll proves the records of every lot that both sides have, a few lots at a time.
func (r *run) proveAll(ctx context.Context, lots []drop.LotID, rows map[drop.LotID]Row) error {
	proven := make([]Row, len(lots))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i, lot := range lots {
		row := rows[lot]
		g.Go(func() (err error) {
			proven[i], err = r.prove(ctx, row)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, lot := range lots {
		rows[lot] = proven[i]
	}
	return nil
}
