package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/simulate"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/term"
)

// liveView shows a running rehearsal: redrawn on a terminal, a line every few seconds elsewhere, and not at all where
// programs read.
type liveView struct {
	app      *app
	scenario simulate.Scenario
	ledger   *ledger.Ledger
	stock    *stock.Stock
	end      context.CancelFunc
	looking  sync.WaitGroup

	mu   sync.Mutex
	seen storesSeen

	drawing sync.Mutex
	drawn   int // lines on the terminal
	next    time.Duration
}

// storesSeen is one look at the stores. What could not be seen stays as it was.
type storesSeen struct {
	capacity, available, held, sold int64
	backlog                         drop.Backlog
	lockWaits                       int64
	payments                        drop.Payments
	trouble                         fault.Code // why the newest look failed; "" if it did not
}

const (
	lookEvery  = 500 * time.Millisecond
	lookWithin = 2 * time.Second
	linesEvery = 3 * time.Second
)

func (a *app) newLiveView(l *ledger.Ledger, s *stock.Stock, scenario simulate.Scenario) *liveView {
	return &liveView{app: a, scenario: scenario, ledger: l, stock: s, next: linesEvery}
}

// show begins to look at the stores, and returns what shows the users' progress; nil if nobody would see it.
func (v *liveView) show() func(simulate.Progress) {
	a := v.app
	if a.cfg.Quiet || render.Format(a.cfg.Output).Structured() && !a.errTerm.TTY {
		return nil
	}
	ctx, end := context.WithCancel(context.Background())
	v.end = end
	v.looking.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			v.look(ctx)
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	if a.errTerm.TTY {
		return v.redraw
	}
	return v.line
}

// close ends the looks, and leaves the terminal clean.
func (v *liveView) close() {
	if v.end == nil {
		return
	}
	v.end()
	v.looking.Wait()
	v.wipe()
}

// look asks the stores once. That one is silent is part of what is seen.
func (v *liveView) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	v.mu.Lock()
	seen := v.seen
	v.mu.Unlock()
	err := seen.stock(ctx, v.stock, v.scenario)
	activity, lockErr := v.ledger.Activity(ctx)
	if lockErr == nil {
		seen.lockWaits = activity.Waiting
	}
	if v.scenario.Gateway != nil && lockErr == nil {
		seen.payments, lockErr = v.ledger.Payments(ctx)
	}
	seen.trouble = ""
	if err = cmp.Or(err, lockErr); err != nil {
		seen.trouble = fault.CodeOf(err)
	}
	v.mu.Lock()
	v.seen = seen
	v.mu.Unlock()
}

func (s *storesSeen) stock(ctx context.Context, from *stock.Stock, scenario simulate.Scenario) error {
	lots := make([]drop.LotID, len(scenario.Lots))
	for i, d := range scenario.Lots {
		lots[i] = d.Lot
	}
	states, err := from.LotStates(ctx, lots)
	if err != nil {
		return err
	}
	outboxes := make([]drop.OutboxState, from.Shards())
	for i := range outboxes {
		if outboxes[i], err = from.OutboxState(ctx, i); err != nil {
			return err
		}
	}
	s.capacity, s.available, s.held, s.sold = 0, 0, 0, 0
	for _, st := range states {
		s.capacity, s.available, s.held, s.sold = s.capacity+st.Capacity, s.available+st.Available, s.held+st.Held, s.sold+st.Sold
	}
	s.backlog = drop.BacklogOf(outboxes, states, nil, time.Now())
	return nil
}

// texts are the lines of the view.
func (v *liveView) texts(p simulate.Progress) []string {
	v.mu.Lock()
	s := v.seen
	v.mu.Unlock()
	behind := fmt.Sprintf("outbox %d entries, %.1f s behind  lock waits %d", s.backlog.Entries, s.backlog.Age.Seconds(), s.lockWaits)
	if s.trouble != "" {
		behind += "  stores: " + string(s.trouble)
	}
	users := fmt.Sprintf("%5.1fs  users %d of %d, %d gone", p.Elapsed.Seconds(), p.Users, v.scenario.Users(), p.Gone)
	if p.GaveUp > 0 {
		users += fmt.Sprintf(", %d of them unanswered", p.GaveUp)
	}
	lines := []string{ // each within 80 columns
		users,
		fmt.Sprintf("requests %d  accepted %d  refused %d  units sold %d", p.Requests, p.Accepted, p.Refused, p.Sold),
		fmt.Sprintf("stock %d: available %d, held %d, sold %d", s.capacity, s.available, s.held, s.sold),
		fmt.Sprintf("p99 accepted %.1f ms, refused %.1f ms", p.Accept.P99*1000, p.Refuse.P99*1000),
		behind,
	}
	if v.scenario.Gateway != nil {
		lines = append(lines, fmt.Sprintf("charges open %d, declined %d, refunds open %d", s.payments.Open, s.payments.Declined, s.payments.Returns))
	}
	return lines
}

// line prints a line now and then.
func (v *liveView) line(p simulate.Progress) {
	if p.Elapsed >= v.next {
		v.app.say("%s\n", strings.Join(v.texts(p), "  "))
		v.next += linesEvery
	}
}

// redraw draws the view over the one before.
func (v *liveView) redraw(p simulate.Progress) {
	v.drawing.Lock()
	defer v.drawing.Unlock()
	v.wipe()
	out := &strings.Builder{}
	lines := v.texts(p)
	for _, text := range lines {
		fmt.Fprintf(out, "%s\n", v.app.errTerm.Paint(term.Faint, text[:min(len(text), v.app.errTerm.Width-1)]))
	}
	v.drawn = len(lines)
	v.app.say("%s", out)
}

// note tells a person something above the view.
func (v *liveView) note(format string, args ...any) {
	v.drawing.Lock()
	defer v.drawing.Unlock()
	v.wipe()
	v.app.note(format, args...)
}

// wipe removes the view from the terminal. Whoever else might draw is kept away by the caller.
func (v *liveView) wipe() {
	if v.drawn > 0 {
		v.app.say("\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}
