package stock

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// dueLook is how many due attempts a snapshot counts for a lot.
const dueLook = 2000

// Lot returns one atomic look at a lot; LotNotLoaded if Redis has no such lot.
func (s *Stock) Lot(ctx context.Context, lot drop.LotID) (drop.LotState, error) {
	states, err := s.LotStates(ctx, []drop.LotID{lot})
	if err != nil {
		return drop.LotState{}, err
	}
	state, ok := states[lot]
	if !ok {
		return state, reply{status: string(fault.LotNotLoaded)}.fault("lot " + string(lot))
	}
	return state, damagedFault(state)
}

// LotStates returns a look at each lot that Redis has, damaged ones included; the others are absent. Each look is atomic, all of them are not.
func (s *Stock) LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error) {
	const page = 100
	out := make(map[drop.LotID]drop.LotState, len(lots))
	var mu sync.Mutex
	err := s.eachShard(lots, func(sh *shard, lots []drop.LotID) error {
		for chunk := range slices.Chunk(lots, page) {
			r, err := s.script(ctx, sh, "snapshot", sh.keys.gated(chunk...), []string{strconv.Itoa(dueLook)})
			if err != nil {
				return err
			}
			mu.Lock()
			err = readSnapshot(r, chunk, out)
			mu.Unlock()
			if err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// eachShard runs fn for the lots of each shard, shards side by side, and returns the first error.
func (s *Stock) eachShard(lots []drop.LotID, fn func(sh *shard, lots []drop.LotID) error) error {
	byShard := make(map[*shard][]drop.LotID)
	for _, l := range lots {
		sh := s.shardOf(l)
		byShard[sh] = append(byShard[sh], l)
	}
	errs := make(chan error, len(byShard))
	for sh, lots := range byShard {
		go func() { errs <- fn(sh, lots) }()
	}
	var first error
	for range byShard {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func readSnapshot(r reply, lots []drop.LotID, out map[drop.LotID]drop.LotState) error {
	at := 7
	for _, lot := range lots {
		n, err := strconv.Atoi(r.text(at))
		if err != nil {
			return fault.New(fault.Failed, "a snapshot cannot be read")
		}
		f := make(map[string]string, n/2)
		for i := at + 1; i < at+n; i += 2 {
			f[r.text(i)] = r.text(i + 1)
		}
		due := r.text(at + n + 1)
		at += n + 2
		if n == 0 {
			continue
		}
		state := lotState(lot, f)
		state.Due, _ = strconv.ParseInt(due, 10, 64)
		state.Now, state.OpenRun, state.Run = unixMilli(r.now), r.text(1), r.text(3)
		if shardFrozen := r.text(2); shardFrozen != "" {
			state.Frozen = shardFrozen
		}
		out[lot] = state
	}
	return nil
}

// Lots lists what Redis has, sorted. It scans the key space, which holds few keys a lot.
func (s *Stock) Lots(ctx context.Context) ([]drop.LotID, error) {
	for _, sh := range s.shards {
		if err := sh.refused(); err != nil {
			return nil, err
		}
	}
	var lots []drop.LotID
	var mu sync.Mutex
	err := s.server.eachNode(ctx, func(n *redis.Client) error {
		found, err := s.scanLots(ctx, n)
		mu.Lock()
		defer mu.Unlock()
		lots = append(lots, found...)
		return err
	})
	if err != nil {
		return nil, wireFault(s.target, err, false)
	}
	slices.Sort(lots)
	return slices.Compact(lots), nil
}

// LotsOf lists what Redis has of some shards, sorted. It asks only the servers that hold these shards.
func (s *Stock) LotsOf(ctx context.Context, shards []int) ([]drop.LotID, error) {
	nodes := make(map[*redis.Client]bool)
	wanted := make(map[*shard]bool, len(shards))
	for _, n := range shards {
		node, _, err := s.nodeOf(ctx, n)
		if err != nil {
			return nil, err
		}
		nodes[node], wanted[s.shards[n]] = true, true
	}
	var lots []drop.LotID
	for node := range nodes {
		found, err := s.scanLots(ctx, node)
		if err != nil {
			return nil, wireFault(s.target, err, false)
		}
		for _, lot := range found {
			if wanted[s.shardOf(lot)] {
				lots = append(lots, lot)
			}
		}
	}
	slices.Sort(lots)
	return slices.Compact(lots), nil
}

// scanLots lists the lots of one server; one may come twice.
func (s *Stock) scanLots(ctx context.Context, node *redis.Client) (lots []drop.LotID, err error) {
	it := node.Scan(ctx, 0, s.opt.prefix()+":{*}:lot:*", 1000).Iterator()
	for it.Next(ctx) {
		if lot := lotOfKey(it.Val()); lot != "" && s.shardOf(lot).keys.lot(lot) == it.Val() {
			lots = append(lots, lot)
		}
	}
	return lots, it.Err()
}

// Plan is what Redis had of a lot when a load was planned; the load does nothing if it has changed since.
type Plan struct {
	Present   bool
	Damaged   bool   // it could not be read; the rest then means nothing
	OpenRun   string // run id its shard was open on
	Watermark drop.Watermark
}

// PlanOf plans on a lot as it was seen.
func PlanOf(seen drop.LotState) Plan {
	return Plan{Present: true, Damaged: seen.Damaged != "", OpenRun: seen.OpenRun, Watermark: seen.Watermark}
}

// text says it as scripts do: see `found` in lua/common.lua.
func (p Plan) text() string {
	switch {
	case !p.Present:
		return "absent"
	case p.Damaged:
		return "damaged"
	}
	return p.OpenRun + "\t" + itoa(p.Watermark.Epoch) + "\t" + itoa(p.Watermark.Seq)
}

// LoadRequest puts a lot into Redis under an epoch that the ledger issued.
type LoadRequest struct {
	Definition drop.Definition
	Epoch      int64
	Closing    drop.Watermark // where the ledger closed the epoch before; the loaded event gets seq Closing.Seq+1
	Held, Sold int64          // units of the records that come with it
	Planned    Plan
	Mark       time.Time // least time mark
	Actor      string
	Reason     string
}

// Load puts a lot without any record into Redis, or does nothing and answers Conflict if Redis is not as planned.
func (s *Stock) Load(ctx context.Context, q LoadRequest) error {
	_, err := s.load(ctx, q, 0)
	return err
}

// load makes the lot appear, with the records of this many slices that were staged for its epoch, and returns the run id of
// the server that has it now.
func (s *Stock) load(ctx context.Context, q LoadRequest, slices int) (run string, err error) {
	d := q.Definition.WithDefaults()
	if err := cmp.Or(d.Check(), checkAccount(q.Actor, q.Reason)); err != nil {
		return "", err
	}
	sh := s.shardOf(d.Lot)
	args := []string{string(d.Lot), q.Planned.text(), itoa(q.Epoch), itoa(q.Closing.Epoch), itoa(q.Closing.Seq), itoa(d.Stock), itoa(q.Held), itoa(q.Sold),
		string(d.Status), itoa(d.Limit), msOf(d.Hold), msOf(d.MaxHold), timeMS(d.Opens), timeMS(d.Closes), string(d.Late), d.Name, q.Actor, q.Reason,
		itoa(max(0, q.Mark.UnixMilli())), strconv.Itoa(slices)}
	r, err := s.script(ctx, sh, "load", sh.keys.staging(d.Lot), args)
	if err != nil {
		return "", err
	}
	if fault.Code(r.status) == fault.Conflict {
		return "", fault.New(fault.Conflict, "lot %s in Redis is not what the load was planned on", d.Lot).WithHint("plan it again by running the command once more")
	}
	return r.text(1), r.fault("lot " + string(d.Lot))
}

// checkAccount validates who acts and why before a script writes it into an event: a tab or a new line there would end
// the field, and nobody could read what follows.
func checkAccount(actor, reason string) error {
	return cmp.Or(drop.CheckText("actor", actor, false), drop.CheckText("reason", reason, false))
}

// Adjust changes the capacity. It returns the lot as it then is (with DryRun: as it would be) and whether it was so before.
func (s *Stock) Adjust(ctx context.Context, q drop.AdjustRequest) (drop.LotState, bool, error) {
	if err := q.Check(); err != nil {
		return drop.LotState{}, false, err
	}
	mode, number := "to", q.To
	if q.By != nil {
		mode, number = "by", q.By
	}
	return s.change(ctx, q.Lot, q.Actor, q.Reason, q.DryRun, []string{mode, itoa(*number), itoa(q.Expect)})
}

// Change sets fields of the definition. It returns the lot as it then is and whether it was so before.
func (s *Stock) Change(ctx context.Context, q drop.ChangeRequest) (drop.LotState, bool, error) {
	now, err := s.Lot(ctx, q.Lot)
	if err != nil {
		return now, false, err
	}
	if err := q.Apply(now.Definition).Check(); err != nil {
		return now, false, err
	}
	return s.change(ctx, q.Lot, q.Actor, q.Reason, q.DryRun, changed(q))
}

// changed returns what is to be set, as change.lua reads it.
func changed(q drop.ChangeRequest) []string {
	var f []string
	if q.Status != nil {
		f = append(f, "status", string(*q.Status))
	}
	if q.Limit != nil {
		f = append(f, "limit", itoa(*q.Limit))
	}
	if q.Hold != nil {
		f = append(f, "hold", msOf(*q.Hold))
	}
	if q.MaxHold != nil {
		f = append(f, "max_hold", msOf(*q.MaxHold))
	}
	if q.Opens != nil {
		f = append(f, "opens", timeMS(*q.Opens))
	}
	if q.Closes != nil {
		f = append(f, "closes", timeMS(*q.Closes))
	}
	if q.Late != nil {
		f = append(f, "late", string(*q.Late))
	}
	if q.Name != nil {
		f = append(f, "name", *q.Name)
	}
	return f
}

func (s *Stock) change(ctx context.Context, lot drop.LotID, actor, reason string, dryRun bool, what []string) (drop.LotState, bool, error) {
	if _, err := drop.ParseLotID(string(lot)); err != nil {
		return drop.LotState{}, false, err
	}
	if err := checkAccount(actor, reason); err != nil {
		return drop.LotState{}, false, err
	}
	sh := s.shardOf(lot)
	trial := "0"
	if dryRun {
		trial = "1"
	}
	args := append([]string{string(lot), actor, reason, strconv.Itoa(takeBack), trial}, what...)
	for {
		r, err := s.script(ctx, sh, "change", sh.keys.gated(lot), args)
		if err != nil {
			return drop.LotState{}, false, err
		}
		switch {
		case r.status == "again":
			continue
		case fault.Code(r.status) == fault.Conflict:
			return drop.LotState{}, false, conflictOfAdjust(lot, r)
		}
		if err := r.fault("lot " + string(lot)); err != nil {
			return drop.LotState{}, false, err
		}
		f := make(map[string]string)
		for i := 1; i+1 < len(r.rest); i += 2 {
			f[r.text(i)] = r.text(i + 1)
		}
		state := lotState(lot, f)
		state.Now = unixMilli(r.now)
		return state, r.text(0) == "same", damagedFault(state)
	}
}

func conflictOfAdjust(lot drop.LotID, r reply) error {
	n := r.now // the third value: a capacity, a number of units or a field
	if r.detail == "expect" {
		return fault.New(fault.Conflict, "lot %s has a capacity of %s, not the one expected", lot, n).WithField("expect").
			WithHint("look again and repeat with --expect %s", n)
	}
	if r.detail == "rule" {
		return fault.New(fault.Conflict, "lot %s was changed meanwhile and %s no longer fits", lot, n).WithField(n).WithHint("look again: dropctl lot show %s", lot)
	}
	return fault.New(fault.Conflict, "lot %s has %s units held or sold: its capacity cannot be lower", lot, n).WithField("stock").
		WithHint("release holds or refund first, or choose at least %s", n)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func msOf(d time.Duration) string { return itoa(d.Milliseconds()) }

func timeMS(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return itoa(t.UnixMilli())
}
