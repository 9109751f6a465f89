package simulate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// shipped returns a scenario that ships, with so many users.
func shipped(t testing.TB, name string, users int) Scenario {
	t.Helper()
	text, read, ok := ShippedText(name)
	if !ok {
		t.Fatalf("%s does not ship", name)
	}
	s, err := Parse(Source{Name: name, Text: text, Read: read, Lots: seedLots})
	if err != nil {
		t.Fatal(err)
	}
	if users > 0 {
		s = s.Scaled(users)
	}
	return s
}

// seedLots reads lots as dropctl seed does.
func seedLots(file string, text []byte) ([]drop.Definition, []fault.Problem) {
	format, err := seed.FormatOf(cmp.Or(file, ".yaml"), "")
	if err != nil {
		return nil, []fault.Problem{{Line: 1, Message: err.Error()}}
	}
	rows, err := seed.Read(bytes.NewReader(text), seed.Input{Name: file, Format: format})
	var lots []drop.Definition
	for _, r := range rows {
		lots = append(lots, r.Definition)
	}
	return lots, fault.ProblemsOf(err)
}

func TestTheDemosLotsDifferInSizeAndRules(t *testing.T) {
	lots := shipped(t, Demo, 0).Lots
	if len(lots) < 20 {
		t.Errorf("%d lots, want at least 20", len(lots))
	}
	seen := map[string]bool{}
	for _, l := range lots {
		seen[string(l.Status)], seen[string(l.Late)] = true, true
		seen["short"] = seen["short"] || l.Hold <= 5*time.Second
		seen["long"] = seen["long"] || l.Hold >= time.Minute
		seen["limit"] = seen["limit"] || l.Limit > 0
		seen["no limit"] = seen["no limit"] || l.Limit == 0
		seen["window"] = seen["window"] || !l.Opens.IsZero() && !l.Closes.IsZero()
		seen["group"] = seen["group"] || l.Lot.Group() != ""
		seen["single"] = seen["single"] || l.Stock == 1
	}
	for _, want := range []string{"open", "paused", "closed", "refuse", "reclaim", "short", "long", "limit", "no limit", "window", "group", "single"} {
		if !seen[want] {
			t.Errorf("no lot has the rule %q", want)
		}
	}
}

// deaf is an engine that never answers.
type deaf struct{}

func (deaf) Reserve(ctx context.Context, _ drop.ReserveRequest) (drop.Outcome, error) {
	<-ctx.Done()
	return drop.Outcome{}, ctx.Err()
}

func (deaf) Settle(ctx context.Context, _ drop.SettleRequest) (drop.Outcome, error) {
	<-ctx.Done()
	return drop.Outcome{}, ctx.Err()
}

func TestARehearsalStopsWhenItIsTold(t *testing.T) {
	why := errors.New("enough")
	ctx, stop := context.WithCancelCause(t.Context())
	if _, err := Run(ctx, deaf{}, shipped(t, Demo, 50), Options{Progress: func(Progress) { stop(why) }}); !errors.Is(err, why) {
		t.Errorf("got %v, want why it was stopped", err)
	}
	fails := Options{Beside: func(context.Context) error { return why }}
	if book, err := Run(t.Context(), deaf{}, shipped(t, Demo, 50), fails); !errors.Is(err, why) || book == nil {
		t.Errorf("got %v, want the error of what ran beside", err)
	}
}

// redisAsLedger lets the audit read what Redis has, as if all of it were recorded.
type redisAsLedger struct{ *stock.Stock }

func (l redisAsLedger) LiveReservations(ctx context.Context, lot drop.LotID, fn func([]drop.Reservation) error) error {
	return l.Records(ctx, lot, fn)
}

// NetSales is not asked for: there is no gateway.
func (l redisAsLedger) NetSales(context.Context, drop.LotID) (map[int64]int64, error) {
	return nil, nil
}

// PaidLate has everything: what is written of late payments is looked at elsewhere.
func (l redisAsLedger) PaidLate(ctx context.Context, lot drop.LotID) (map[string]bool, error) {
	all := map[string]bool{}
	err := l.Records(ctx, lot, func(page []drop.Reservation) error {
		for _, r := range page {
			all[r.ID.Attempt] = true
		}
		return nil
	})
	return all, err
}

func TestARehearsalMeetsEveryAnswerAndKeepsEveryPromise(t *testing.T) {
	s, err := stock.Open(stock.Options{URL: testkit.Redis(t).SocketURL(), Installation: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	scenario := shipped(t, Demo, 600)
	scenario.Seed, scenario.Crowds[0].Arrive.Within = 42, 500*time.Millisecond
	scenario.Crowds[0].Refund = 0.2
	for i := range scenario.Lots {
		lot := &scenario.Lots[i]
		lot.Stock = min(lot.Stock, 40) // few users, so that lots sell out
		if lot.Hold < time.Minute {
			lot.Hold = 1500 * time.Millisecond
		}
		if err := s.Load(t.Context(), stock.LoadRequest{Definition: *lot, Epoch: 1, Actor: "test", Reason: "seed"}); err != nil {
			t.Fatal(err)
		}
	}
	var last Progress
	var besides atomic.Int32
	o := Options{Progress: func(p Progress) { last = p }, Beside: func(ctx context.Context) error {
		besides.Add(1)
		<-ctx.Done()
		besides.Add(1)
		return ctx.Err()
	}}
	book, err := Run(t.Context(), s, scenario, o)
	if err != nil {
		t.Fatal(err)
	}
	if besides.Load() != 2 {
		t.Error("what runs beside did not end with the last user")
	}
	broken, err := book.Audit(t.Context(), redisAsLedger{s}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(broken) > 0 {
		t.Errorf("broken promises: %s", strings.Join(broken, "\n"))
	}
	c := book.Counts()
	for _, code := range []string{"sold_out", "hold_exists", "customer_limit", "hold_expired", "sale_closed", "sale_not_open", "lot_paused"} {
		found := false
		for got, n := range c.Refused {
			found = found || string(got) == code && n > 0
		}
		if !found {
			t.Errorf("nobody met %s: %v", code, c.Refused)
		}
	}
	if last.Users != 600 || last.Gone != last.Users || last.Requests != c.Requests || last.Sold != c.Sold {
		t.Errorf("the last progress was %+v, the counts are %+v", last, c)
	}
	if c.Accepted == 0 || c.Replayed == 0 || c.Refunded == 0 || c.Released == 0 || c.Sold == 0 {
		t.Errorf("counts: %+v", c)
	}
	accept, refuse := book.Latencies()
	if accept.P50 <= 0 || accept.P99 < accept.P50 || refuse.Max < refuse.P99 {
		t.Errorf("latencies %+v, %+v", accept, refuse)
	}
}

func TestTheAuditFindsBrokenPromises(t *testing.T) {
	id := drop.ReservationID{Lot: "truffle", Attempt: drop.AttemptOf("truffle", "u", "k"), N: 3}
	lots := []drop.Definition{{Lot: "truffle", Stock: 2, Limit: 2}}
	request := drop.ReserveRequest{Lot: "truffle", User: "u", Key: "k", Qty: 1}
	now := time.Now()
	hold := drop.Outcome{Reservation: drop.Reservation{ID: id, State: drop.Held, Qty: 1, Deadline: now.Add(time.Minute)}, Now: now}
	confirm := drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: "p"}
	sold := drop.Outcome{Reservation: drop.Reservation{ID: id, State: drop.Confirmed, Qty: 1, Ref: "p"}, Now: now}
	refund := drop.SettleRequest{ID: id, Action: drop.ActRefund, Total: -1}
	back := drop.Outcome{Reservation: drop.Reservation{ID: id, State: drop.Refunded, Qty: 0, Refunded: 1}, Now: now}
	with := func(o drop.Outcome, change func(*drop.Outcome)) drop.Outcome { change(&o); return o }
	for name, c := range map[string]struct {
		happens  func(*Book)
		recorded []drop.Reservation
		want     string
	}{
		"all is well":        {func(b *Book) { b.settled(confirm, sold, nil) }, []drop.Reservation{sold.Reservation}, ""},
		"a sale is lost":     {func(b *Book) { b.settled(confirm, sold, nil) }, nil, "not recorded"},
		"a sale is invented": {func(*Book) {}, []drop.Reservation{sold.Reservation}, "never told so"},
		"the units differ": {func(b *Book) { b.settled(confirm, sold, nil) },
			[]drop.Reservation{{ID: id, State: drop.Confirmed, Qty: 2}}, "with 2"},
		"more than there is": {func(b *Book) { b.settled(confirm, sold, nil) },
			[]drop.Reservation{sold.Reservation, {ID: drop.ReservationID{Lot: "truffle", Attempt: "x", N: 9}, State: drop.Confirmed, Qty: 2}}, "3 units sold of 2"},
		"more than the limit": {func(*Book) {},
			[]drop.Reservation{{ID: drop.ReservationID{Lot: "truffle", Attempt: "x", N: 9}, User: "eve", State: drop.Held, Qty: 3}}, "eve has 3 units, the limit is 2"},
		"sold twice": {func(b *Book) { b.settled(confirm, sold, nil) },
			[]drop.Reservation{sold.Reservation, {ID: drop.ReservationID{Lot: "truffle", Attempt: id.Attempt, N: 9}, State: drop.Confirmed, Qty: 1}}, "sold twice under one key"},
		"granted twice": {func(b *Book) { b.reserved(request, hold, nil, time.Millisecond) }, nil, "granted twice"},
		"another number": {func(b *Book) {
			b.reserved(request, with(hold, func(o *drop.Outcome) { o.Replayed = true; o.Reservation.ID.N = 8 }), nil, 1)
		}, nil, "first told"},
		"another quantity": {func(b *Book) {
			r := request
			r.Qty = 2
			b.reserved(r, with(hold, func(o *drop.Outcome) { o.Replayed = true }), nil, 1)
		}, nil, "another wish"},
		"paid too late": {func(b *Book) {
			b.settled(confirm, with(sold, func(o *drop.Outcome) { o.Now = now.Add(time.Hour) }), nil)
		},
			[]drop.Reservation{sold.Reservation}, "after its deadline"},
		"money came back":  {func(b *Book) { b.settled(confirm, sold, nil); b.settled(refund, back, nil) }, nil, ""},
		"a refund is lost": {func(b *Book) { b.settled(confirm, sold, nil); b.settled(refund, back, nil) }, []drop.Reservation{sold.Reservation}, "is refunded, but recorded was a sale"},
		"a refund is unsure": {func(b *Book) {
			b.settled(confirm, sold, nil)
			b.settled(refund, drop.Outcome{}, fault.New(fault.OutcomeUnknown, ""))
		}, nil, ""},
		"paid in vain": {func(b *Book) { b.settled(confirm, drop.Outcome{}, fault.New(fault.HoldExpired, "")) }, nil, "not recorded that the money is to go back"},
		"given back and sold": {func(b *Book) {
			b.settled(drop.SettleRequest{ID: id, Action: drop.ActRelease}, hold, nil)
			b.settled(confirm, sold, nil)
		}, []drop.Reservation{sold.Reservation}, "after it was given back"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(lots)
			b.reserved(request, hold, nil, time.Millisecond)
			c.happens(b)
			broken, err := b.Audit(t.Context(), recorded(c.recorded), nil)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(broken, "\n")
			if c.want == "" && text != "" || !strings.Contains(text, c.want) {
				t.Errorf("audit says %q, want %q", text, c.want)
			}
		})
	}
}

// What was told before Redis was emptied on purpose is lost, and no broken promise; what was told afterwards, was found to be
// otherwise already before, or is sold beyond the capacity, is one as ever.
func TestTheAuditTellsWhatAFlushHasLost(t *testing.T) {
	flushed := time.Now().Add(-time.Minute)
	before, after := flushed.Add(-time.Second), flushed.Add(time.Second)
	id := drop.ReservationID{Lot: "truffle", Attempt: drop.AttemptOf("truffle", "ann", "k"), N: 3}
	held := drop.Reservation{ID: id, State: drop.Held, Qty: 1, Deadline: flushed.Add(time.Hour)}
	sold := held
	sold.State, sold.Ref = drop.Confirmed, "p"
	reserve := func(b *Book, at time.Time) {
		b.reserved(drop.ReserveRequest{Lot: "truffle", User: "ann", Key: "k", Qty: 1}, drop.Outcome{Reservation: held, Now: at}, nil, time.Millisecond)
	}
	confirm := func(b *Book, at time.Time) {
		b.settled(drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: "p"}, drop.Outcome{Reservation: sold, Now: at}, nil)
	}
	release := func(b *Book, at time.Time) {
		b.settled(drop.SettleRequest{ID: id, Action: drop.ActRelease}, drop.Outcome{Reservation: held, Now: at}, nil)
	}
	refund := func(b *Book, at time.Time) {
		b.settled(drop.SettleRequest{ID: id, Action: drop.ActRefund, Total: -1}, drop.Outcome{Reservation: drop.Reservation{ID: id, State: drop.Refunded, Refunded: 1}, Now: at}, nil)
	}
	for name, c := range map[string]struct {
		happens      func(*Book)
		recorded     recorded
		lost, broken int
	}{
		"told before": {func(b *Book) { reserve(b, before); confirm(b, before) }, nil, 1, 0},
		"told after":  {func(b *Book) { reserve(b, after); confirm(b, after) }, nil, 0, 1},
		"sold too much": {func(b *Book) { reserve(b, before); confirm(b, before) },
			recorded{{ID: drop.ReservationID{Lot: "truffle", Attempt: "x", N: 9}, State: drop.Confirmed, Qty: 3}}, 1, 2},
		"held before, sold after":     {func(b *Book) { reserve(b, before); confirm(b, after) }, nil, 0, 1},
		"sold before, refunded after": {func(b *Book) { reserve(b, before); confirm(b, before); refund(b, after) }, recorded{sold}, 0, 1},
		"refunded before":             {func(b *Book) { reserve(b, before); confirm(b, before); refund(b, before) }, recorded{sold}, 1, 0},
		"given back though sold, noticed before": {func(b *Book) { reserve(b, before); confirm(b, before); release(b, before.Add(time.Millisecond)) },
			recorded{sold}, 0, 1},
		"given back though sold, noticed after": {func(b *Book) { reserve(b, before); confirm(b, before); release(b, after) }, nil, 2, 0},
		"sold though given back after":          {func(b *Book) { reserve(b, before); release(b, after); confirm(b, after) }, recorded{sold}, 0, 1},
		"granted anew":                          {func(b *Book) { reserve(b, before); reserve(b, after); confirm(b, after) }, recorded{sold}, 1, 0},
		"granted anew, and lost":                {func(b *Book) { reserve(b, before); reserve(b, after); confirm(b, after) }, nil, 1, 1},
		"paid in vain after": {func(b *Book) {
			reserve(b, before)
			b.settled(drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: "p"}, drop.Outcome{}, fault.New(fault.HoldExpired, ""))
		}, nil, 0, 1},
	} {
		b := newBook([]drop.Definition{{Lot: "truffle", Stock: 2}})
		b.Flushed(flushed.Add(-100*time.Millisecond), flushed)
		c.happens(b)
		broken, err := b.Audit(t.Context(), c.recorded, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := b.Summarise(Scenario{}, nil, broken); len(s.Lost) != c.lost || len(s.Broken) != c.broken || (s.Verdict == "ok") != (c.broken == 0) {
			t.Errorf("%s: %s, lost %q, broken %q", name, s.Verdict, s.Lost, s.Broken)
		}
	}
}

type recorded []drop.Reservation

func (r recorded) LiveReservations(_ context.Context, _ drop.LotID, fn func([]drop.Reservation) error) error {
	return fn(r)
}

// PaidLate is empty: nobody has written that money is to go back.
func (r recorded) PaidLate(context.Context, drop.LotID) (map[string]bool, error) { return nil, nil }

func (r recorded) NetSales(_ context.Context, lot drop.LotID) (map[int64]int64, error) {
	sales := map[int64]int64{}
	for _, s := range r {
		if s.ID.Lot == lot {
			sales[s.ID.N] = s.Qty
		}
	}
	return sales, nil
}

func TestTheSummaryIsBrokenIfAnyUnitIs(t *testing.T) {
	b := newBook([]drop.Definition{{Lot: "truffle", Stock: 10}})
	good := LotEnd{Lot: "truffle", Verdict: "ok", Capacity: 10, Available: 5, Held: 2, Sold: 3, LedgerUnits: 3}
	for name, c := range map[string]struct {
		change func(*LotEnd)
		broken []string
		want   string
	}{
		"all accounted for":  {func(*LotEnd) {}, nil, "ok"},
		"a unit is lost":     {func(l *LotEnd) { l.Available-- }, nil, "broken"},
		"a unit is made":     {func(l *LotEnd) { l.Available++ }, nil, "broken"},
		"oversold":           {func(l *LotEnd) { l.Sold, l.LedgerUnits, l.Available, l.Held = 11, 11, 0, -1 }, nil, "broken"},
		"a sale is missing":  {func(l *LotEnd) { l.LedgerUnits--; l.Held++ }, nil, "broken"},
		"reconcile found":    {func(l *LotEnd) { l.Finding = "drift" }, nil, "broken"},
		"a promise not kept": {func(*LotEnd) {}, []string{"sold twice"}, "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			l := good
			c.change(&l)
			s := b.Summarise(Scenario{}, []LotEnd{l}, c.broken)
			if s.Verdict != c.want || (s.Err() == nil) != (c.want == "ok") {
				t.Errorf("verdict %s, error %v; want %s", s.Verdict, s.Err(), c.want)
			}
		})
	}
}
