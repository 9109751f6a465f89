package wire

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/worker"
)

// Drain works until nothing is left to be recorded, as fast as PostgreSQL takes it, which is right where nobody else is to be
// spared. Of what cannot be recorded, an audit speaks. A store may be silent for as long as patience says, and so may be the
// worker's first look at all lots.
func Drain(ctx context.Context, s *stock.Stock, l *ledger.Ledger, patience time.Duration, log *slog.Logger) error {
	const unbounded = 1e6 // events a second
	in := l.Installation()
	w := worker.New(s, WorkerLedger(l), worker.Options{Installation: in.ID, Shards: in.Shards, Rate: unbounded, UntilIdle: true, Patience: patience, Rebuild: RebuildLot(s, l), Log: log})
	_, err := w.Run(ctx)
	if fault.Is(err, fault.Partial) {
		return nil
	}
	return err
}

// AuditOptions say how patiently to look.
type AuditOptions struct {
	Wait  time.Duration // how long what is not recorded yet may take, with a worker at work
	Actor string
	// Flushed says that Redis was emptied on purpose: a hold may have expired since the ledger had everything, which is a
	// ghost now and no finding.
	Flushed bool
}

// AuditShop looks through both stores of a shop that nobody uses any more: every unit is available, held or sold, each record
// is the same on both sides, nothing was sold beyond the capacity, no event and no sale is there twice, and the history
// follows from its first row. It changes nothing.
func AuditShop(ctx context.Context, s *stock.Stock, l *ledger.Ledger, o AuditOptions) (bench.Audit, error) {
	a := &shopAudit{stock: s, ledger: l, flushed: o.Flushed, Audit: bench.Audit{Verdict: bench.AuditOK, Findings: []string{}}, suspects: map[drop.LotID]bool{}}
	report, err := reconcile.Run(ctx, s, ReconcileLedger(l), reconcile.Options{Installation: l.Installation().ID, Deep: true, Wait: o.Wait, MaxLag: o.Wait, Actor: o.Actor})
	if err != nil {
		return bench.Audit{Verdict: bench.AuditNone, Findings: []string{}}, err
	}
	late := a.compared(report)
	for _, look := range []func(context.Context, reconcile.Report) error{a.history, a.outboxes, a.parked, a.units} {
		if err := look(ctx, report); err != nil {
			return bench.Audit{Verdict: bench.AuditNone, Findings: a.Findings}, err
		}
	}
	switch {
	case len(a.Findings) > 0:
		a.Verdict = bench.AuditBroken
	case late > 0: // what is not there yet cannot be judged
		a.Verdict = bench.AuditNone
		a.Findings = append(a.Findings, fmt.Sprintf("%d events or sales were not recorded within %s", late, fault.Duration(o.Wait)))
	}
	return a.Audit, nil
}

// AuditHistory looks for what a comparison of both stores does not see: events that are there twice, and a history that does
// not follow from its first row. It is the part of AuditShop that holds also where servers were lost meanwhile.
func AuditHistory(ctx context.Context, s *stock.Stock, l *ledger.Ledger, report reconcile.Report) (findings []string, err error) {
	a := &shopAudit{stock: s, ledger: l, suspects: map[drop.LotID]bool{}}
	if err := a.history(ctx, report); err != nil {
		return nil, err
	}
	err = a.outboxes(ctx, report)
	return a.Findings, err
}

// shopAudit is an audit under way.
type shopAudit struct {
	bench.Audit
	stock    *stock.Stock
	ledger   *ledger.Ledger
	flushed  bool
	suspects map[drop.LotID]bool // lots of which something is not as it should be
}

func (a *shopAudit) found(lot drop.LotID, format string, args ...any) {
	text := strings.TrimSpace(fmt.Sprintf(format, args...))
	if lot != "" {
		a.suspects[lot] = true
		text = string(lot) + ": " + text
	}
	a.Findings = append(a.Findings, text)
}

// compared takes over what a comparison of the stores has found, and returns how much was not recorded yet.
func (a *shopAudit) compared(report reconcile.Report) (late int64) {
	for _, row := range report.Rows {
		switch row.Verdict {
		case fault.VerdictOK:
		case fault.VerdictLagging:
			late += row.LagEvents + row.Unfinished
		default:
			a.found(row.Lot, "%s %s", row.Verdict, row.Reason)
			for _, e := range row.Evidence {
				a.found(row.Lot, "%s", e)
			}
		}
	}
	return late
}

// verifiers is how many lots' histories are recomputed at a time: each waits for PostgreSQL more than it computes.
const verifiers = 6

// history recomputes every lot's journal, reservations and sales.
func (a *shopAudit) history(ctx context.Context, report reconcile.Report) error {
	histories := make([]ledger.Verification, len(report.Rows))
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(verifiers)
	for i, row := range report.Rows {
		if row.Ledger == nil {
			continue
		}
		g.Go(func() (err error) {
			histories[i], err = a.ledger.Verify(within, row.Lot, nil)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, v := range histories {
		if v.Bad == "" {
			continue
		}
		if v.At != (drop.Watermark{}) {
			a.found(v.Lot, "its history at %d/%d: %s", v.At.Epoch, v.At.Seq, v.Bad)
		} else {
			a.found(v.Lot, "its history: %s", v.Bad)
		}
		twice, err := a.ledger.Doubled(ctx, v.Lot)
		if err != nil {
			return err
		}
		if a.Doubled += twice; twice > 0 {
			a.found(v.Lot, "%d events are recorded twice", twice)
		}
	}
	return nil
}

// outboxes looks for events that were written twice. The ledger would take such a one once, and say nothing.
func (a *shopAudit) outboxes(ctx context.Context, _ reconcile.Report) error {
	type life struct {
		lot   drop.LotID
		epoch int64
	}
	for shard := range a.stock.Shards() {
		last := map[life]int64{} // seqs only grow
		err := a.stock.EachEvent(ctx, shard, func(page []drop.Event) error {
			for _, e := range page {
				in := life{e.Lot, e.Epoch}
				if e.Seq <= last[in] {
					a.Doubled++
					a.found(e.Lot, "the outbox has event %d/%d twice", e.Epoch, e.Seq)
				}
				last[in] = max(last[in], e.Seq)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// parked lists what could not be recorded, and payments for units that were not there.
func (a *shopAudit) parked(ctx context.Context, _ reconcile.Report) error {
	const most = 25
	dead, err := a.ledger.DeadLetters(ctx, "", 0, most)
	if err != nil {
		return err
	}
	for _, d := range dead {
		if a.flushed && d.Code == fault.StopGhost && expiredLine(d.Line) {
			continue
		}
		a.found(d.Lot, "the event %d/%d could not be recorded: %s: %s", d.Epoch, d.Seq, d.Code, d.Reason)
	}
	due, err := a.ledger.NewestRefundsDue(ctx, most)
	if err != nil {
		return err
	}
	for _, d := range due {
		if d.Why != ledger.WhyPaidLate { // which is the buyer's doing
			a.found(d.Reservation.Lot, "%s was paid for units that nobody got: %s", d.Reservation, d.Why)
		}
	}
	return nil
}

// expiredLine reports whether an event's line is that of a hold that expired.
func expiredLine(line string) bool {
	events, _ := drop.Entry{Body: "@\tlot\t1\n" + line}.Decode()
	return len(events) == 1 && events[0].Kind == drop.KindExpired
}

// units counts what is wrong with the lots of which anything is.
func (a *shopAudit) units(ctx context.Context, report reconcile.Report) error {
	for _, row := range report.Rows {
		if !a.suspects[row.Lot] {
			continue
		}
		leaked, oversold, err := a.inRedis(ctx, row)
		if err != nil {
			return err
		}
		sales, err := a.ledger.SalesOf(ctx, []drop.LotID{row.Lot})
		if err != nil {
			return err
		}
		if s, known := sales[row.Lot]; known && row.Ledger != nil {
			oversold = max(oversold, max(s.Sold, s.Net+s.Pending)-row.Ledger.Capacity)
		}
		if leaked > 0 {
			a.found(row.Lot, "%d units are neither available, nor held, nor sold", leaked)
		}
		if oversold > 0 {
			a.found(row.Lot, "%d units were sold beyond its capacity", oversold)
		}
		a.Leaked, a.Oversold = a.Leaked+leaked, a.Oversold+oversold
	}
	slices.Sort(a.Findings)
	a.Findings = slices.Compact(a.Findings)
	return nil
}

// inRedis counts the units of a lot that are neither available nor in a record, and those that the records have beyond its
// capacity.
func (a *shopAudit) inRedis(ctx context.Context, row reconcile.Row) (leaked, oversold int64, err error) {
	if row.Redis == nil {
		return 0, 0, nil
	}
	records := map[drop.ReservationID]drop.Reservation{}
	err = a.stock.Records(ctx, row.Lot, func(page []drop.Reservation) error {
		for _, r := range page {
			records[r.ID] = r
		}
		return nil
	})
	if fault.CodeOf(err) == fault.Failed { // a record that is none: the comparison has said so
		return 0, 0, nil
	}
	var taken int64
	for _, r := range records {
		if r.State == drop.Held || r.State == drop.Confirmed {
			taken += r.Qty
		}
	}
	t := row.Redis.Totals
	return max(0, t.Capacity-t.Available-taken), max(0, taken-t.Capacity), err
}
