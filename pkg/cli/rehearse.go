package cli

import (
	"context"
	"errors"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/simulate"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/worker"
)

const (
	drainWithin = 3 * time.Minute  // least time for what is left to be recorded
	drainMargin = 30 * time.Second // beyond what the events need at the worker's pace
)

// privateStores opens both stores on servers of their own, which are gone once they are closed.
func (a *app) privateStores(ctx context.Context, as ...func(*stock.Options)) (l *ledger.Ledger, s *stock.Stock, closeAll func() error, err error) {
	a.note("starting a private Redis and a private PostgreSQL")
	servers, err := lab.Start(ctx, lab.RedisOptions{}, lab.PostgresOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	stop := func() error { return servers.Stop(context.WithoutCancel(ctx)) }
	owner := ledger.Options{URL: servers.Postgres.URL(lab.Owner, lab.Database)}
	if _, err := ledger.MigrateUp(ctx, owner, ledger.MigrateOptions{AppRole: string(lab.App)}); err != nil {
		return nil, nil, nil, errors.Join(err, stop())
	}
	here := *a.cfg
	here.RedisURL, here.DatabaseURL = config.NewURL(servers.Redis.URL()), config.NewURL(servers.Postgres.URL(lab.App, lab.Database))
	here.RedisPasswordFile, here.DatabasePasswordFile, here.RedisUsername = "", "", ""
	a.cfg = &here
	if l, s, err = a.openStores(ctx, as...); err != nil {
		return nil, nil, nil, errors.Join(err, stop())
	}
	return l, s, func() error {
		l.Close()
		return errors.Join(s.Close(), stop())
	}, nil
}

// rehearse puts the lots of a scenario on sale, lets the users in and adds up, with a worker at work all the time. An
// error after the users were let in comes with a summary of what they were told until then.
func (a *app) rehearse(ctx context.Context, l *ledger.Ledger, s *stock.Stock, scenario simulate.Scenario, o simulate.Options, m *mishaps) (summary simulate.Summary, err error) {
	rows := make([]seed.Row, len(scenario.Lots))
	for i, d := range scenario.Lots {
		rows[i] = seed.Whole(d)
	}
	if _, err := seed.Run(ctx, rows, wire.SeedStock(s), wire.SeedLedger(l), seed.Options{Actor: a.cfg.Actor, Installation: l.Installation().ID}); err != nil {
		return summary, err
	}
	if m == nil || m.laboratory.Rig.Worker == nil {
		stop := a.startWorker(ctx, l, s)
		defer func() { err = errors.Join(err, stop()) }()
	}
	a.note("%d lots are on sale, %d users are coming", len(scenario.Lots), scenario.Users())
	view := a.newLiveView(l, s, scenario)
	o.Progress = view.show()
	if m != nil {
		o.Beside = m.happen(a.note)
	}
	book, err := simulate.Run(ctx, s, scenario, o)
	view.close()
	if err != nil {
		return book.SoFar(scenario), err
	}
	if m != nil {
		if err := m.recovered(ctx, s, scenario.Lots, a.note); err != nil {
			return book.SoFar(scenario), err
		}
	}
	a.note("waiting until all is recorded, comparing every record, and what every user was told")
	summary, err = a.addUp(ctx, l, s, scenario, book)
	if err != nil {
		return book.SoFar(scenario), err
	}
	if m != nil {
		summary.Faults = m.done
	}
	return summary, nil
}

// startWorker runs a worker until stop is called, which waits for its good end.
func (a *app) startWorker(ctx context.Context, l *ledger.Ledger, s *stock.Stock) (stop func() error) {
	in := l.Installation()
	w := worker.New(s, wire.WorkerLedger(l), worker.Options{Installation: in.ID, Shards: in.Shards,
		Rate: float64(a.cfg.MaxEventsPerSecond), Keep: a.cfg.OutboxKeep, Rebuild: wire.RebuildLot(s, l), Log: a.logger(false)})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := w.Run(ctx)
		done <- err
	}()
	return func() error {
		cancel()
		return <-done
	}
}

// addUp compares the stores, holds the users' book against the ledger and makes the summary.
func (a *app) addUp(ctx context.Context, l *ledger.Ledger, s *stock.Stock, scenario simulate.Scenario, book *simulate.Book) (simulate.Summary, error) {
	none, records, counts := simulate.Summary{}, wire.ReconcileLedger(l), book.Counts()
	// No accepted call writes more than two events, and each may still have to be recorded.
	most := time.Duration(float64(2*(counts.Requests+counts.Accepted))/float64(a.cfg.MaxEventsPerSecond)*float64(time.Second)) + drainMargin
	report, err := reconcile.Run(ctx, s, records, reconcile.Options{Installation: l.Installation().ID, Deep: true, Wait: max(drainWithin, most), MaxLag: a.cfg.MaxLag, Actor: a.cfg.Actor})
	if err != nil {
		return none, err
	}
	broken, err := book.Audit(ctx, records)
	if err != nil {
		return none, err
	}
	twice, err := wire.AuditHistory(ctx, s, l, report)
	if err != nil {
		return none, err
	}
	var lots []drop.LotID
	for _, def := range scenario.Lots {
		lots = append(lots, def.Lot)
	}
	sales, err := l.SalesOf(ctx, lots)
	if err != nil {
		return none, err
	}
	var ends []simulate.LotEnd
	for _, lot := range lots {
		end := lotEnd(report, lot)
		end.LedgerUnits = sales[lot].Net
		err := l.EachReservation(ctx, drop.ReservationFilter{Lot: lot, States: []drop.State{drop.Expired}}, func(page []drop.Recorded) error {
			end.Expired += int64(len(page))
			return nil
		})
		if err != nil {
			return none, err
		}
		ends = append(ends, end)
	}
	return book.Summarise(scenario, ends, append(broken, twice...)), nil
}

// lotEnd takes over what reconcile saw of a lot. What still lags after all the waiting is a finding like any other.
func lotEnd(report reconcile.Report, lot drop.LotID) simulate.LotEnd {
	end := simulate.LotEnd{Lot: lot, Verdict: fault.VerdictMissing, Finding: "not compared"}
	for _, row := range report.Rows {
		if row.Lot != lot {
			continue
		}
		end.Verdict, end.Finding = row.Verdict, ""
		if row.Verdict != fault.VerdictOK {
			end.Finding = string(row.Verdict) + " " + row.Message
		}
		if row.Redis != nil {
			end.Capacity, end.Available, end.Sold = row.Redis.Capacity, row.Redis.Available, row.Redis.Sold
		}
		if row.Ledger != nil {
			end.Held = row.Ledger.Held
		}
	}
	return end
}
