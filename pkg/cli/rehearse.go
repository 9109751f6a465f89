package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/payment"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/retry"
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
	a.onPrivateRedis()
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
	a.cfg, a.private = &here, servers.Postgres.PID()
	if l, s, err = a.openStores(ctx, as...); err != nil {
		return nil, nil, nil, errors.Join(err, stop())
	}
	return l, s, func() error {
		l.Close()
		return errors.Join(s.Close(), stop())
	}, nil
}

// around is what there is around the users of a rehearsal. The zero value is a shop without trouble, that is paid before
// it confirms.
type around struct {
	bank    *simulate.Bank                  // the payment gateway
	mishaps *mishaps                        // what goes wrong on purpose
	beside  func(ctx context.Context) error // runs beside the users
}

// onPrivateRedis asks nothing of a private Redis that only the shop's own can give: with a durability of replicas no call
// would have a sure answer.
func (a *app) onPrivateRedis() {
	if a.cfg.Durability == "" || a.cfg.Durability == "memory" {
		return
	}
	a.note("--durability %s is left out: the private Redis is a single one, without a promise", a.cfg.Durability)
	here := *a.cfg
	here.Durability = "memory"
	a.cfg = &here
}

// rehearse puts the lots of a scenario on sale, lets the users in and adds up, with a worker at work all the time. An
// error after the users were let in comes with a summary of what they were told until then.
func (a *app) rehearse(ctx context.Context, l *ledger.Ledger, s *stock.Stock, scenario simulate.Scenario, with around) (summary simulate.Summary, err error) {
	if err := a.putOnSale(ctx, l, s, scenario.Lots); err != nil {
		return summary, err
	}
	m := with.mishaps
	if m == nil || m.laboratory.Rig.Worker == nil {
		gateway, err := a.chargeThrough(with.bank)
		if err != nil {
			return summary, err
		}
		stop := a.startWorker(ctx, l, s, gateway)
		defer func() { err = errors.Join(err, stop()) }()
		if m != nil {
			m.began = time.Now()
		}
	}
	a.note("%d lots are on sale, %d users are coming", len(scenario.Lots), scenario.Users())
	view := a.newLiveView(l, s, scenario)
	o := simulate.Options{Progress: view.show(), Beside: with.beside}
	if m != nil {
		o.Beside = m.happen(view.note)
	}
	book, err := simulate.Run(ctx, s, scenario, o)
	view.close()
	if m != nil {
		for _, f := range m.flushes {
			book.Flushed(f.from, f.until)
		}
	}
	if err != nil {
		return book.SoFar(scenario), err
	}
	if m != nil {
		if err := m.recovered(ctx, l, s, scenario.Lots, a.note); err != nil {
			return book.SoFar(scenario), err
		}
	}
	a.note("waiting until all is recorded, comparing every record, and what every user was told")
	summary, err = a.addUp(ctx, l, s, scenario, book, with.bank)
	if err != nil {
		return book.SoFar(scenario), err
	}
	if m != nil {
		summary.Faults = m.done
	}
	return summary, nil
}

// putOnSale puts lots on sale where nobody has seen them before, as a seed does: many at a time, and recorded at once.
func (a *app) putOnSale(ctx context.Context, l *ledger.Ledger, s *stock.Stock, lots []drop.Definition) error {
	rows := make([]seed.Row, len(lots))
	for i, d := range lots {
		rows[i] = seed.Whole(d)
	}
	_, err := seed.Run(ctx, rows, wire.SeedStock(s), wire.SeedLedger(l), seed.Options{Actor: a.cfg.Actor, Installation: l.Installation().ID})
	return err
}

// openBank starts the payment gateway of a scenario; nil if it has none.
func (a *app) openBank(s simulate.Scenario) (bank *simulate.Bank, closeBank func() error, err error) {
	if s.Gateway == nil {
		return nil, func() error { return nil }, nil
	}
	if bank, err = simulate.OpenBank(s); err != nil {
		return nil, nil, err
	}
	return bank, bank.Close, nil
}

// paymentTarget is how a worker reaches the gateway of a scenario; zero if there is none.
func (a *app) paymentTarget(bank *simulate.Bank) config.PaymentTarget {
	if bank == nil {
		return config.PaymentTarget{}
	}
	return config.PaymentTarget{URL: config.NewURL(bank.URL()), Secret: config.NewSecret(bank.Secret()), Timeout: cmp.Or(bank.Timeout(), a.cfg.PaymentTimeout)}
}

// chargeThrough is the gateway of a scenario as a worker asks it; nil if there is none. The one of the settings is never asked.
func (a *app) chargeThrough(bank *simulate.Bank) (worker.Gateway, error) {
	if bank == nil {
		return nil, nil
	}
	t := a.paymentTarget(bank)
	return payment.NewWebhook(payment.Options{URL: t.URL.Reveal(), Secret: t.Secret.Reveal(), Timeout: t.Timeout, UserAgent: "dropctl/" + thisVersion().Version})
}

// startWorker runs a worker until stop is called, which waits for its good end.
func (a *app) startWorker(ctx context.Context, l *ledger.Ledger, s *stock.Stock, gateway worker.Gateway) (stop func() error) {
	in := l.Installation()
	w := worker.New(s, wire.WorkerLedger(l), worker.Options{Installation: in.ID, Shards: in.Shards,
		Rate: float64(a.cfg.MaxEventsPerSecond), Keep: a.cfg.OutboxKeep, Rebuild: wire.RebuildLot(s, l), Gateway: gateway, Log: a.logger(false)})
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
func (a *app) addUp(ctx context.Context, l *ledger.Ledger, s *stock.Stock, scenario simulate.Scenario, book *simulate.Book, bank *simulate.Bank) (simulate.Summary, error) {
	none, records, counts := simulate.Summary{}, wire.ReconcileLedger(l), book.Counts()
	// No accepted call writes more than two events, and each may still have to be recorded.
	most := time.Duration(float64(2*(counts.Requests+counts.Accepted))/float64(a.cfg.MaxEventsPerSecond)*float64(time.Second)) + drainMargin + scenario.Settling(counts.Sold)
	if bank != nil { // what nobody pays for is still given back, so that a comparison would soon be out of date
		if err := settled(ctx, l, s, scenario, most); err != nil {
			return none, err
		}
	}
	report, err := reconcile.Run(ctx, s, records, reconcile.Options{Installation: l.Installation().ID, Deep: true, Wait: max(drainWithin, most), MaxLag: a.cfg.MaxLag, Actor: a.cfg.Actor})
	if err != nil {
		return none, err
	}
	broken, err := book.Audit(ctx, wire.SimulateLedger(l), bank)
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
	summary := book.Summarise(scenario, ends, append(broken, twice...))
	if bank != nil {
		paid := bank.Payments()
		summary.Payments = &paid
	}
	return summary, nil
}

// settled waits until all is recorded and the gateway has nothing left to decide or to give back. What is left after so long the
// audit finds.
func settled(ctx context.Context, l *ledger.Ledger, s *stock.Stock, scenario simulate.Scenario, most time.Duration) error {
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	all := false // every confirmation is recorded
	for {
		if !all {
			all = recorded(within, l, s, scenario)
		} else if p, err := l.Payments(within); err == nil && p.Asking+p.Open+p.Declined+p.Returns == 0 {
			return nil
		}
		if retry.Sleep(within, 50*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// recorded reports whether the ledger has folded all that Redis has written.
func recorded(ctx context.Context, l *ledger.Ledger, s *stock.Stock, scenario simulate.Scenario) bool {
	var ids []drop.LotID
	for _, d := range scenario.Lots {
		ids = append(ids, d.Lot)
	}
	states, err := s.LotStates(ctx, ids)
	if err != nil {
		return false
	}
	lots, err := l.Lots(ctx, ids)
	if err != nil || len(lots) != len(ids) {
		return false
	}
	for _, lot := range lots {
		if lot.Watermark != states[lot.Lot].Watermark {
			return false
		}
	}
	return true
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
