package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/simulate"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/term"
	"github.com/dropctl/dropctl/pkg/worker"
)

const (
	maxDemoUsers = 200_000         // every user is a goroutine that waits in between
	drainWithin  = 3 * time.Minute // a bound for the largest demo; the usual one needs seconds
)

func newDemo(a *app) *cobra.Command {
	o := simulate.Options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a whole drop on private servers",
		Long: `Start a private Redis and a private PostgreSQL, put lots on sale and let thousands of virtual
users in: they click twice, retry, pay in time or too late, give units back or never return. Then
wait until everything is recorded, compare both stores record by record, hold what every user was
told against the ledger, and print the verdict.

Nothing of this machine's own servers is touched, and nothing is left behind. The exit status is 6
if any guarantee broke. The same --seed makes the users decide the same; who gets what, and so the
totals, still varies with timing.`,
		Example: `  dropctl demo
  dropctl demo --users 2000 --seed 7
  dropctl demo -q -o json --jq .verdict`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Users < 1 || o.Users > maxDemoUsers {
				return fault.New(fault.Usage, "--users %d is out of range", o.Users).WithField("users").WithHint("use 1 to %d", maxDemoUsers)
			}
			return a.demo(cmd.Context(), o)
		},
	}
	cmd.Flags().IntVar(&o.Users, "users", 10_000, "virtual users")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "what their decisions are drawn from")
	return cmd
}

// demo runs one demo on servers of its own, which are gone when it returns.
func (a *app) demo(ctx context.Context, o simulate.Options) (err error) {
	a.note("starting a private Redis and a private PostgreSQL")
	servers, err := lab.Start(ctx, lab.RedisOptions{}, lab.PostgresOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Stop(context.WithoutCancel(ctx))) }()
	owner := ledger.Options{URL: servers.Postgres.URL(lab.Owner, lab.Database)}
	if _, err := ledger.MigrateUp(ctx, owner, ledger.MigrateOptions{AppRole: string(lab.App)}); err != nil {
		return err
	}
	here := *a.cfg
	here.RedisURL, here.DatabaseURL = config.NewURL(servers.Redis.URL()), config.NewURL(servers.Postgres.URL(lab.App, lab.Database))
	here.RedisPasswordFile, here.DatabasePasswordFile, here.RedisUsername = "", "", ""
	a.cfg = &here
	l, s, err := a.openStores(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	defer func() { _ = s.Close() }()
	summary, err := a.rehearse(ctx, l, s, o)
	if err != nil {
		return err
	}
	if err := a.print(summary); err != nil {
		return err
	}
	if err := summary.Err(); err != nil {
		return err
	}
	a.note("every unit is accounted for: %d units sold, as many recorded, none twice, none lost", summary.SoldUnits)
	return nil
}

// rehearse seeds the sample lots, lets the users in and adds up, with a worker at work all the time.
func (a *app) rehearse(ctx context.Context, l *ledger.Ledger, s *stock.Stock, o simulate.Options) (simulate.Summary, error) {
	none := simulate.Summary{}
	rows, err := seed.Read(bytes.NewReader(simulate.LotsCSV), seed.Input{Name: "the sample lots", Format: seed.CSV})
	if err != nil {
		return none, err
	}
	if _, err := seed.Run(ctx, rows, wire.SeedStock(s), wire.SeedLedger(l), seed.Options{Actor: a.cfg.Actor, Installation: l.Installation().ID}); err != nil {
		return none, err
	}
	for _, r := range rows {
		o.Lots = append(o.Lots, r.Definition.WithDefaults())
	}
	stop := a.startWorker(ctx, l, s)
	a.note("%d lots are on sale, %d users are coming", len(o.Lots), o.Users)
	show, clear := a.progress(o.Users)
	o.Progress = show
	book, err := simulate.Run(ctx, s, o)
	clear()
	summary := simulate.Summary{}
	if err == nil {
		a.note("waiting until all is recorded, comparing every record, and what every user was told")
		summary, err = a.addUp(ctx, l, s, o, book)
	}
	return summary, errors.Join(err, stop())
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
func (a *app) addUp(ctx context.Context, l *ledger.Ledger, s *stock.Stock, o simulate.Options, book *simulate.Book) (simulate.Summary, error) {
	records := wire.ReconcileLedger(l)
	report, err := reconcile.Run(ctx, s, records, reconcile.Options{Installation: l.Installation().ID, Deep: true, Wait: drainWithin, MaxLag: a.cfg.MaxLag, Actor: a.cfg.Actor})
	if err != nil {
		return simulate.Summary{}, err
	}
	broken, err := book.Audit(ctx, records)
	if err != nil {
		return simulate.Summary{}, err
	}
	var lots []drop.LotID
	for _, def := range o.Lots {
		lots = append(lots, def.Lot)
	}
	sales, err := l.SalesOf(ctx, lots)
	if err != nil {
		return simulate.Summary{}, err
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
			return simulate.Summary{}, err
		}
		ends = append(ends, end)
	}
	return book.Summarise(o, ends, broken), nil
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

// progress shows a running rehearsal: redrawn on a terminal, a line every few seconds elsewhere, and not at
// all where programs read. clear leaves the terminal clean.
func (a *app) progress(users int) (show func(simulate.Progress), clear func()) {
	const linesEvery = 3 * time.Second
	if a.cfg.Quiet || render.Format(a.cfg.Output).Structured() && !a.errTerm.TTY {
		return nil, func() {}
	}
	text := func(p simulate.Progress) string {
		return fmt.Sprintf("%5.1fs  users %d of %d  requests %d  held %d  refused %d  units sold %d", p.Elapsed.Seconds(), p.Users, users, p.Requests, p.Accepted, p.Refused, p.Sold)
	}
	if a.errTerm.TTY {
		return func(p simulate.Progress) {
			line := text(p)
			a.say("\r%s\x1b[K", a.errTerm.Paint(term.Faint, line[:min(len(line), a.errTerm.Width-1)]))
		}, func() { a.say("\r\x1b[K") }
	}
	next := linesEvery
	return func(p simulate.Progress) {
		if p.Elapsed >= next {
			a.say("%s\n", text(p))
			next += linesEvery
		}
	}, func() {}
}
