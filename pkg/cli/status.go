package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/stock"
)

func newStatus(a *app) *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the shop is doing, worst first",
		Long: `Show how the shop is doing, worst first; each line ends in the command to run next.

What a store that is down, or not named, would have said is left out; in JSON it is null. The newest
dead letters and payments due for refund are listed. The exit status is 0 if nothing is bad, 5 if a
store did not answer and 6 if something needs attention.

With --watch a terminal shows it anew each time; a pipe or a file gets one line of JSON each.`,
		Example: `  dropctl status
  dropctl status --watch
  dropctl status -o json --jq .lots`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("watch") {
				return a.watchStatus(cmd.Context(), every)
			}
			v, err := a.status(cmd.Context())
			if err != nil {
				return err
			}
			if err := a.print(v); err != nil {
				return err
			}
			return v.err()
		},
	}
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database)
	watchEveryFlag(cmd, &every)
	return cmd
}

// clearScreen moves a terminal's cursor home and empties what is below.
const clearScreen = "\x1b[H\x1b[2J"

// watchStatus shows the status again and again: redrawn on a terminal, as a stream of JSON lines elsewhere.
func (a *app) watchStatus(ctx context.Context, every time.Duration) error {
	if every < time.Second {
		return fault.New(fault.Usage, "--watch %s is too often", every).WithField("watch").WithHint("use at least 1s")
	}
	format := render.Format(a.cfg.Output)
	redraw := a.outTerm.TTY && a.jq == "" && (format == render.Table || format == render.Wide)
	if !redraw {
		out, err := render.New(ctx, a.stdout, render.Options{Format: render.JSONL, Fields: a.fields, JQ: a.jq, Stream: a.outTerm})
		if err != nil {
			return err
		}
		a.out = out
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		v, err := a.status(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if redraw {
			if err := a.out.Text(clearScreen, v); err != nil {
				return err
			}
		}
		if err := a.print(v); err != nil || a.out.Closed() {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// status takes one look. It fails only if neither store can be asked because of a setting; a store that is down or
// not named is part of the answer.
func (a *app) status(ctx context.Context) (statusView, error) {
	redis, noRedis := a.cfg.Redis(a.getenv)
	database, noDatabase := a.cfg.Database(a.getenv)
	if noRedis != nil && noDatabase != nil {
		return statusView{}, noRedis
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	f := statusFacts{now: time.Now().UTC(), maxLag: a.cfg.MaxLag, ceiling: int64(a.cfg.OutboxMaxBytes)}
	in, err := a.askLedger(ctx, &f)
	f.database = storeOf("PostgreSQL", database.URL, err)
	f.redis = storeOf("Redis", redis.URL, a.askStock(ctx, &f, in))
	return f.view(), nil
}

// storeOf words how a store answered. A look changes nothing, so that an unknown outcome is a silent server. The other
// store was asked, so that a setting which is missing or wrong is no wrong usage, but a store that cannot be asked.
func storeOf(store string, url config.Secret, err error) storeView {
	v := storeView{Store: store, Target: url.String(), Reachable: err == nil}
	if err == nil {
		return v
	}
	v.Error = fault.As(err).Error()
	v.err = err
	switch fault.CodeOf(err) {
	case fault.Unavailable, fault.OutcomeUnknown:
		v.err = fault.New(fault.Unavailable, "%s", v.Error).WithHint("%s", hintOr(err, "check the server and its address: dropctl config view --origin"))
	case fault.Usage, fault.Invalid, fault.InvalidConfig:
		v.err = fault.New(fault.Unavailable, "%s", v.Error).WithHint("%s", fault.HintOf(err))
	}
	return v
}

// hintOr returns the error's own hint, or else this one, which knows more than the table's.
func hintOr(err error, hint string) string {
	if own := fault.As(err).Hint; own != "" {
		return own
	}
	return hint
}

// askLedger fills in what PostgreSQL knows. It takes half the time, so that a server which swallows every
// packet leaves the other half to Redis.
func (a *app) askLedger(ctx context.Context, f *statusFacts) (ledger.Installation, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout/2)
	defer cancel()
	l, err := a.openLedger(ctx)
	if err != nil {
		return ledger.Installation{}, err
	}
	defer l.Close()
	if f.lots, err = wire.WorkerLedger(l).Lots(ctx); err != nil {
		return l.Installation(), err
	}
	f.listed = true
	return l.Installation(), f.readLedgerStatus(ctx, l)
}

// askStock fills in what Redis knows: of the ledger's lots or, when the ledger was silent, of all it has.
func (a *app) askStock(ctx context.Context, f *statusFacts, in ledger.Installation) (err error) {
	var s *stock.Stock
	if in.ID != "" {
		s, err = wire.OpenStock(a.cfg, a.getenv, in)
	} else {
		s, err = wire.OpenStockAlone(ctx, a.cfg, a.getenv)
	}
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if f.full = s.HasMemory(ctx); f.full != nil && !fault.Is(f.full, fault.OutOfMemory) {
		err, f.full = f.full, nil
		return err
	}
	if owner, _, err := s.SetUp(ctx); err != nil {
		return err
	} else if owner != "" && in.ID != "" && owner != in.ID {
		return fault.New(fault.Foreign, "its data belongs to another installation than PostgreSQL's")
	}
	var ids []drop.LotID // nil, too, where PostgreSQL fell silent before it had named them
	if f.listed {
		ids = make([]drop.LotID, len(f.lots))
		for i, lot := range f.lots {
			ids[i] = lot.Lot
		}
	}
	f.stock, err = wire.LookAtStock(ctx, s, ids)
	return err
}

// readLedgerStatus fills in the ledger's lists. Only workers that are alive count.
func (f *statusFacts) readLedgerStatus(ctx context.Context, l *ledger.Ledger) error {
	st, err := l.Status(ctx)
	if err != nil {
		return err
	}
	f.progress = st.Progress(f.lots)
	f.payments = st.Payments
	f.hooks = st.Hooks
	f.counts = ledgerCounts{DeadLetters: st.DeadLetters, RefundsDue: st.RefundsDue, Waiting: st.Waiting, Unfinalised: st.Pending}
	for _, w := range st.Workers {
		if w.Alive {
			f.alive = append(f.alive, workerView{w.Name, w.Host, w.PID, w.Parts, w.Rate, w.Version, w.Started, w.Seen})
		}
	}
	if err := f.readParked(ctx, l); err != nil {
		return err
	}
	if err := f.readRefused(ctx, l); err != nil {
		return err
	}
	return f.readRun(ctx, l)
}

// newest is how many dead letters and refunds due are listed.
const newest = 10

func (f *statusFacts) readParked(ctx context.Context, l *ledger.Ledger) error {
	dead, err := l.DeadGroups(ctx, newest)
	if err != nil {
		return err
	}
	for _, g := range dead {
		f.dead = append(f.dead, deadView(g))
	}
	due, err := l.NewestRefundsDue(ctx, newest)
	for _, d := range due {
		f.due = append(f.due, dueView{d.Reservation.String(), d.User, d.Units, d.Ref, string(d.Why), d.At})
	}
	return err
}

// readRun reads what is known from reconcile runs: of each lot what the newest run that looked at it found.
func (f *statusFacts) readRun(ctx context.Context, l *ledger.Ledger) error {
	run, err := l.LastRun(ctx)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	found, err := l.FoundLots(ctx)
	f.run = &runView{Started: run.Started, Verdict: fault.VerdictOK}
	for _, v := range found {
		f.run.Verdict = fault.Finding
		f.run.Findings = append(f.run.Findings, foundView{v.Lot, v.Verdict, v.Checked})
	}
	return err
}
