package bars

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

const (
	applyLots  = 100  // enough that the baselines' connections seldom wait for one another's lot
	applyBatch = 1000 // events of one call of Apply, as a worker does it
)

// apply: how fast the ledger records events, against inserting them one by one. PostgreSQL syncs every commit.
func (r *run) apply(ctx context.Context) (_ []Row, err error) {
	r.Progress("starting Redis and PostgreSQL")
	servers, err := lab.Start(ctx, lab.RedisOptions{}, lab.PostgresOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = servers.Stop(context.WithoutCancel(ctx)) }()
	owner := ledger.Options{URL: servers.Postgres.URL(lab.Owner, lab.Database)}
	if _, err := ledger.MigrateUp(ctx, owner, ledger.MigrateOptions{AppRole: string(lab.App)}); err != nil {
		return nil, err
	}
	l, err := ledger.Open(ctx, ledger.Options{URL: servers.Postgres.SocketURL(lab.App, lab.Database)})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	batches, err := r.history(ctx, servers.Redis, l)
	if err != nil {
		return nil, err
	}
	rows, err := openRowByRow(ctx, servers.Postgres.SocketURL(lab.Superuser, lab.Database))
	if err != nil {
		return nil, err
	}
	defer rows.close()

	// The first batches warm up both sides: they carry the loads, fill caches and plan statements.
	if _, err := applyAll(ctx, l, batches[:len(batches)-r.Rounds*r.batches]); err != nil {
		return nil, err
	}
	batches = batches[len(batches)-r.Rounds*r.batches:]
	var ours []float64
	baselines := rowByRowBaselines()
	r.Progress("applying events, and inserting them one by one")
	for round := range r.Rounds {
		mine := batches[round*r.batches : (round+1)*r.batches]
		perSecond, err := applyAll(ctx, l, mine)
		if err != nil {
			return nil, err
		}
		ours = append(ours, perSecond)
		r.Progress("  round %d of %d, apply: %.0f events/s", round+1, r.Rounds, perSecond)
		for _, b := range baselines {
			if err := b.play(ctx, rows, mine, r.rowSpan); err != nil {
				return nil, err
			}
			r.Progress("  round %d of %d, %s: %.0f events/s", round+1, r.Rounds, b.name, b.perSecond[len(b.perSecond)-1])
		}
	}
	return applyRows(Median(ours), baselines), nil
}

func applyRows(ours float64, baselines []*baseline) []Row {
	bar := AtLeast("apply.over-row-by-row", 10, ours/Median(baselines[0].perSecond), "times")
	list := []Row{bar, info("apply.dropctl", ours, "events/s", fmt.Sprintf("one caller, %d events a call", applyBatch))}
	for _, b := range baselines {
		list = append(list, info("apply."+b.name, Median(b.perSecond), "events/s", b.detail))
	}
	return list
}

// applyAll applies the batches one after the other and returns the events a second.
func applyAll(ctx context.Context, l *ledger.Ledger, batches [][]drop.Event) (float64, error) {
	events := 0
	begun := time.Now()
	for _, batch := range batches {
		applied, err := l.Apply(ctx, batch, nil)
		if err != nil {
			return 0, err
		}
		if applied.Folded != len(batch) {
			return 0, fault.New(fault.Failed, "the ledger folded %d of %d events", applied.Folded, len(batch))
		}
		events += len(batch)
	}
	return float64(events) / time.Since(begun).Seconds(), nil
}

// history sells from lots that both sides know and returns what the outbox has of it, in the batches in which a worker
// would apply it: enough for every round and some to warm up.
func (r *run) history(ctx context.Context, server *lab.Redis, l *ledger.Ledger) (_ [][]drop.Event, err error) {
	in := l.Installation()
	s, err := stock.Open(stock.Options{URL: server.SocketURL(), Installation: in.ID, Shards: in.Shards, OutboxMaxBytes: 1 << 40})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	lots := lotNames(applyLots)
	for _, lot := range lots {
		if err := seedLot(ctx, s, l, lot); err != nil {
			return nil, err
		}
	}
	// A shard's last batch may be short and is left out, so there must be more events than are needed.
	needed := (r.Rounds+1)*r.batches + in.Shards
	r.Progress("selling, to have events to record")
	if err := takeUsers(ctx, needed*applyBatch/2, callers, func(ctx context.Context, user string) error { return sell(ctx, s, lots, user) }); err != nil {
		return nil, err
	}
	return outboxBatches(ctx, s)
}

// seedLot puts a lot on sale that never ends.
func seedLot(ctx context.Context, s *stock.Stock, l *ledger.Ledger, lot drop.LotID) error {
	return bench.PutOnSale(ctx, s, l, drop.Definition{Lot: lot, Stock: drop.MaxUnits, Limit: 2}.WithDefaults())
}

// sell holds a unit and confirms it: two events.
func sell(ctx context.Context, s *stock.Stock, lots []drop.LotID, user string) error {
	lot := lots[rand.IntN(len(lots))]
	out, err := s.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: user, Key: user, Qty: 1})
	if err != nil {
		return err
	}
	_, err = s.Settle(ctx, drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActConfirm, Ref: "payment-" + user})
	return err
}

// outboxBatches reads every shard's events in full batches and deals them out in turns, as workers get at them.
func outboxBatches(ctx context.Context, s *stock.Stock) ([][]drop.Event, error) {
	byShard := make([][]drop.Event, s.Shards())
	for shard := range byShard {
		for {
			entries, err := s.ReadNew(ctx, shard, "bench", 500, -1)
			if err != nil {
				return nil, err
			}
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				events, poison := e.Decode()
				if len(poison) > 0 {
					return nil, fault.New(fault.Failed, "the outbox holds what is no event: %s", poison[0].Reason)
				}
				byShard[shard] = append(byShard[shard], events...)
			}
		}
	}
	var batches [][]drop.Event
	for at := 0; ; at += applyBatch {
		dealt := len(batches)
		for _, events := range byShard {
			if at+applyBatch <= len(events) {
				batches = append(batches, events[at:at+applyBatch])
			}
		}
		if len(batches) == dealt {
			return batches, nil
		}
	}
}
