package ledger

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// Two workers together are granted what has run in by the database's clock, to the token, whoever asks when.
func TestTheBudgetIsShared(t *testing.T) {
	testkit.Long(t)
	one, db := newLedger(t)
	two := open(t, db)
	const rate = 200.0
	db.SQL(t, `UPDATE apply_budget SET tokens = 0, filled_at = clock_timestamp() - interval '200 ms'`)
	begin := budgetClock(t, db)
	take := func(l *Ledger, until time.Time) (total int) {
		for time.Now().Before(until) {
			n, wait, err := l.TakeTokens(t.Context(), rate, 50)
			if err != nil {
				t.Error(err)
				return total
			}
			if n == 0 && (wait <= 0 || wait > time.Second) {
				t.Errorf("nothing granted, wait %v", wait)
			}
			total += n
			time.Sleep(wait)
		}
		return total
	}
	until := time.Now().Add(2 * time.Second)
	var a, b int
	var both sync.WaitGroup
	both.Go(func() { a = take(one, until) })
	both.Go(func() { b = take(two, until) })
	both.Wait()
	var left float64
	if _, err := fmt.Sscan(db.SQL(t, `SELECT tokens FROM apply_budget`), &left); err != nil {
		t.Fatal(err)
	}
	ran := rate * (budgetClock(t, db) - begin) // more than a second's worth at once would have run over
	if got := float64(a+b) + left; got > ran+1e-3 || got < ran/2 || a == 0 || b == 0 {
		t.Errorf("granted %d and %d, left %.3f, run in %.3f", a, b, left, ran)
	}
}

// budgetClock is when the budget was filled last, in seconds.
func budgetClock(t *testing.T, db testkit.Database) (seconds float64) {
	t.Helper()
	if _, err := fmt.Sscan(db.SQL(t, `SELECT extract(epoch FROM filled_at) FROM apply_budget`), &seconds); err != nil {
		t.Fatal(err)
	}
	return seconds
}

func TestTheLowestLimitOfAllWorkersHolds(t *testing.T) {
	l, db := newLedger(t)
	for name, rate := range map[string]float64{"slow": 500, "fast": 3000, "writes nothing": 0} {
		if _, err := l.Heartbeat(t.Context(), Worker{Name: name, Rate: rate, Parts: []string{"relay"}}); err != nil {
			t.Fatal(err)
		}
	}
	granted := func(rate float64) int {
		t.Helper()
		db.SQL(t, `UPDATE apply_budget SET tokens = 0, filled_at = clock_timestamp() - interval '1 minute'`)
		n, _, err := l.TakeTokens(t.Context(), rate, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := granted(3000); n != 500 {
		t.Errorf("a worker that may 3000 is granted %d where another may 500", n)
	}
	if n := granted(200); n != 200 {
		t.Errorf("one that is not on the list yet is granted %d of 200", n)
	}
	if p, err := l.Pace(t.Context()); err != nil || p.Limit != 500 || p.Highest != 3000 {
		t.Errorf("%+v, %v", p, err)
	}
	db.SQL(t, `UPDATE workers SET seen_at = now() - interval '1 minute' WHERE worker = 'slow'`)
	if n := granted(3000); n != 3000 {
		t.Errorf("a dead worker's limit leaves %d of 3000", n)
	}
	if err := l.Farewell(t.Context(), "fast"); err != nil {
		t.Fatal(err)
	}
	if p, err := l.Pace(t.Context()); err != nil || p.Limit != 0 || p.Highest != 0 {
		t.Errorf("without workers: %+v, %v", p, err)
	}
}

// A server's clock that was hours ahead and is put right must not leave the budget empty until it is there again.
func TestTheBudgetSurvivesSteppingClocks(t *testing.T) {
	l, db := newLedger(t)
	db.SQL(t, `UPDATE apply_budget SET tokens = 0, filled_at = clock_timestamp() + interval '3 hours'`)
	if n, wait, err := l.TakeTokens(t.Context(), 100, 1000); err != nil || n != 0 || wait > time.Second {
		t.Errorf("granted %d, wait %v, %v", n, wait, err)
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		n, wait, err := l.TakeTokens(t.Context(), 100, 1000)
		return n > 0 && n <= 100, fmt.Sprintf("granted %d, wait %v, %v", n, wait, err)
	})
	db.SQL(t, `UPDATE apply_budget SET tokens = 0, filled_at = clock_timestamp() - interval '3 years'`)
	if n, _, err := l.TakeTokens(t.Context(), 100, 1000); err != nil || n != 100 {
		t.Errorf("after a step ahead: granted %d, %v", n, err)
	}
}

func TestThePaceIsThatOfTheLastSeconds(t *testing.T) {
	l, db := newLedger(t)
	seen := func() float64 {
		t.Helper()
		p, err := l.Pace(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p.Seen
	}
	db.SQL(t, `UPDATE apply_budget SET tokens = 0, pace = 0, filled_at = clock_timestamp() - interval '1 minute'`)
	if n, _, err := l.TakeTokens(t.Context(), 5000, 5000); err != nil || n != 5000 {
		t.Fatalf("granted %d, %v", n, err)
	}
	if is := seen(); is <= 0 || is > 500 { // 5000 in ten seconds
		t.Errorf("%f", is)
	}
	db.SQL(t, `UPDATE apply_budget SET filled_at = clock_timestamp() - interval '10 s', pace = 500`)
	if is := seen(); is <= 0 || is > 184 { // all but 1/e has faded
		t.Errorf("ten seconds later: %f", is)
	}
	if err := l.ChargeTokens(t.Context(), -5000); err != nil {
		t.Fatal(err)
	}
	if is := seen(); is != 0 {
		t.Errorf("given back: %f", is)
	}
	db.SQL(t, `UPDATE apply_budget SET filled_at = clock_timestamp() - interval '3 years', pace = 500`)
	if is := seen(); is != 0 {
		t.Errorf("years later: %f", is)
	}
}

func TestTheBudgetGoesBelowZeroAndHoldsASecond(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	db.SQL(t, `UPDATE apply_budget SET filled_at = clock_timestamp()`)
	if err := l.ChargeTokens(t.Context(), 10_000); err != nil {
		t.Fatal(err)
	}
	n, wait, err := l.TakeTokens(t.Context(), 1000, 5)
	if err != nil || n != 0 || wait < 5*time.Second || wait > 11*time.Second {
		t.Errorf("granted %d, wait %v, %v", n, wait, err)
	}
	if err := l.ChargeTokens(t.Context(), -1_000_000); err != nil {
		t.Fatal(err)
	}
	if n, _, err := l.TakeTokens(t.Context(), 1000, 5000); err != nil || n != 1000 {
		t.Errorf("granted %d, %v", n, err)
	}
	if n, _, err := l.TakeTokens(t.Context(), 0.5, 0); err != nil || n != 0 {
		t.Errorf("granted %d, %v", n, err)
	}
}

func TestLocksOfLots(t *testing.T) {
	db := migrated(t)
	l, err := Open(t.Context(), Options{URL: db.URL(lab.App), Timeout: 900 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	unlock, err := l.LockLots(t.Context(), []drop.LotID{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.LockLots(t.Context(), []drop.LotID{"b", "a", "a"}); !fault.Is(err, fault.Busy) {
		t.Errorf("got %v", err)
	}
	got := make(chan error)
	go func() {
		again, err := l.LockLots(t.Context(), []drop.LotID{"a"})
		if err == nil {
			again()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	// Many more lots than a server has locks.
	many := make([]drop.LotID, 20_000)
	for i := range many {
		many[i] = newLot()
	}
	unlock, err = l.LockLots(t.Context(), many)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestOneReconcileRunAtATime(t *testing.T) {
	l, db := newLedger(t)
	other := open(t, db)
	if _, err := l.LastRun(t.Context()); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	run, err := l.StartRun(t.Context(), "cron", map[string]any{"deep": true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.StartRun(t.Context(), "olga", nil); !fault.Is(err, fault.Busy) {
		t.Errorf("got %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run.Finish(cancelled, Outcome{Verdict: fault.VerdictOK, Report: map[string]int{"lots": 3}}); err != nil {
		t.Fatal(err)
	}
	last, err := other.LastRun(t.Context())
	if err != nil || last.Verdict != fault.VerdictOK || last.Actor != "cron" || string(last.Report) != `{"lots": 3}` || last.Finished.IsZero() {
		t.Errorf("%+v, %v", last, err)
	}
	again, err := other.StartRun(t.Context(), "olga", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Abandon(cancelled, "Redis is away"); err != nil {
		t.Error(err)
	}
	if last, err := other.LastRun(t.Context()); err != nil || last.Actor != "cron" {
		t.Errorf("a run without a verdict counts as the last: %+v, %v", last, err)
	}
}

// TestARunLeavesWhatItDidNotLookAt goes from a run of all lots over runs of one to a run that misses one.
func TestARunLeavesWhatItDidNotLookAt(t *testing.T) {
	l, _ := newLedger(t)
	finish := func(whole bool, lots ...LotVerdict) (found []drop.LotID) {
		t.Helper()
		run, err := l.StartRun(t.Context(), "cron", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Finish(t.Context(), Outcome{Verdict: fault.VerdictOK, Lots: lots, Whole: whole}); err != nil {
			t.Fatal(err)
		}
		list, err := l.FoundLots(t.Context())
		for _, v := range list {
			found = append(found, v.Lot)
		}
		if err != nil || len(list) > 0 && (list[0].Verdict != fault.VerdictDrift || list[0].Checked.IsZero()) {
			t.Errorf("%+v, %v", list, err)
		}
		return found
	}
	bad := func(lot drop.LotID) LotVerdict {
		return LotVerdict{Lot: lot, Verdict: fault.VerdictDrift, Finding: true}
	}
	good := func(lot drop.LotID) LotVerdict { return LotVerdict{Lot: lot, Verdict: fault.VerdictOK} }
	for i, step := range []struct {
		found []drop.LotID
		want  string
	}{
		{finish(true, bad("a"), bad("b"), good("c")), "a b"},
		{finish(false, good("c")), "a b"},
		{finish(false, good("a")), "b"},
		{finish(false, bad("c")), "b c"},
		{finish(true, good("a"), bad("c")), "c"},
		{finish(true), ""},
	} {
		if got := strings.Join(texts(step.found), " "); got != step.want {
			t.Errorf("step %d: found %q, want %q", i, got, step.want)
		}
	}
}

func TestStatus(t *testing.T) {
	l, db := newLedger(t)
	r := seeded(t, l, "lot", 5)
	a := r.hold("ann", 1)
	r.confirm(a, 1, "pay")
	r.paidLate(a, "twice")
	r.hold("bob", 1)
	events := r.take()
	apply(t, l, events[:4]...)
	r.hold("cid", 1)
	apply(t, l, r.take()...)
	if _, err := l.Apply(t.Context(), nil, []drop.Poison{{Raw: "x"}}); err != nil {
		t.Fatal(err)
	}
	w := Worker{Name: "host-1", Host: "host", PID: 1, Parts: []string{"apply"}, Version: "v", Started: time.Now()}
	for range 2 {
		if _, err := l.Heartbeat(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Lots != 1 || s.Waiting != 1 || len(s.Gaps) != 1 || s.RefundsDue != 1 || s.Pending != 1 || s.PendingSince.IsZero() || s.DeadLetters[fault.Invalid] != 1 ||
		len(s.Stopped) != 0 || len(s.Workers) != 1 || !s.Workers[0].Alive {
		t.Errorf("status %+v", s)
	}
	db.SQL(t, "UPDATE workers SET seen_at = seen_at - interval '1 minute'")
	if ws, err := l.Workers(t.Context()); err != nil || len(ws) != 1 || ws[0].Alive {
		t.Errorf("workers %+v, %v", ws, err)
	}
	if err := l.Farewell(t.Context(), "host-1"); err != nil {
		t.Error(err)
	}
	if ws, err := l.Workers(t.Context()); err != nil || len(ws) != 0 {
		t.Errorf("workers %+v, %v", ws, err)
	}
	now, remembered, _, err := l.Server(t.Context())
	if err != nil || !strings.Contains(now, "/") || remembered != "" {
		t.Errorf("server %q, remembered %q, %v", now, remembered, err)
	}
	for _, unsent := range [][]int{{3, 0}, nil} {
		if err := l.SetServer(t.Context(), now, unsent); err != nil {
			t.Error(err)
		}
		if again, remembered, left, err := l.Server(t.Context()); err != nil || again != now || remembered != now || !slices.Equal(left, unsent) {
			t.Errorf("server %q, remembered %q without %v, %v", again, remembered, left, err)
		}
	}
}

func TestReservationsAreFiltered(t *testing.T) {
	l, _ := newLedger(t)
	for _, lot := range []drop.LotID{"a", "b"} {
		r := seeded(t, l, lot, 50)
		for range 3 {
			r.hold("ann", 1)
			r.confirm(r.hold("bob", 1), 1, "pay")
			r.release(r.hold("cid", 1), 0)
		}
		apply(t, l, r.take()...)
	}
	count := func(f drop.ReservationFilter) int {
		t.Helper()
		n := 0
		f.Limit = 2
		var last drop.ReservationID
		err := l.EachReservation(t.Context(), f, func(page []drop.Recorded) error {
			for _, r := range page {
				if !last.IsZero() && (r.ID.Lot < last.Lot || r.ID.Lot == last.Lot && r.ID.N <= last.N) {
					t.Errorf("%s comes behind %s", r.ID, last)
				}
				last = r.ID
			}
			n += len(page)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for want, f := range map[int]drop.ReservationFilter{
		18: {},
		9:  {Lot: "a"},
		6:  {User: "bob"},
		3:  {Lot: "b", User: "cid"},
		12: {States: []drop.State{drop.Held, drop.Confirmed}},
		0:  {Lot: "none"},
	} {
		if got := count(f); got != want {
			t.Errorf("%+v: %d, want %d", f, got, want)
		}
	}
	if got := count(drop.ReservationFilter{EndedFrom: time.Now().Add(1000 * time.Hour)}); got != 12 {
		t.Errorf("without ended ones: %d", got)
	}
}

// Errors say where and why, and never show a password.
func TestErrorsAreClearAndKeepSecrets(t *testing.T) {
	const secret = "S3cret"
	db := testkit.Postgres(t)
	wrong, err := url.Parse(db.Server.URL(lab.App, db.Name))
	if err != nil {
		t.Fatal(err)
	}
	wrong.User = url.UserPassword("dropctl_app", secret)
	for name, c := range map[string]struct {
		url  string
		code fault.Code
	}{
		"nobody listens":   {"postgres://u:" + secret + "@127.0.0.1:1/db", fault.Unavailable},
		"not a URL":        {"postgres://u:" + secret + "@host:notaport/db", fault.InvalidConfig},
		"wrong password":   {wrong.String(), fault.Unavailable},
		"missing database": {db.Server.URL(lab.Owner, "absent"), fault.Unavailable},
	} {
		_, err := Open(t.Context(), Options{URL: c.url, Timeout: 5 * time.Second})
		if !fault.Is(err, c.code) || strings.Contains(err.Error()+fault.HintOf(err), secret) {
			t.Errorf("%s: %v (%s)", name, err, fault.CodeOf(err))
		}
		if c.code == fault.Unavailable && !strings.Contains(err.Error(), "127.0.0.1:") {
			t.Errorf("%s: the error does not say where: %v", name, err)
		}
	}
	if _, err := Open(t.Context(), Options{URL: wrong.String(), Password: "also wrong"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

// A server that is killed is an error that passes: the same call works when it is back.
func TestAKilledServerIsUnavailableUntilItIsBack(t *testing.T) {
	testkit.Long(t)
	server := testkit.PostgresServer(t)
	if _, err := MigrateUp(t.Context(), Options{URL: server.URL(lab.Owner, lab.Database)}, MigrateOptions{AppRole: string(lab.App)}); err != nil {
		t.Fatal(err)
	}
	l, err := Open(t.Context(), Options{URL: server.URL(lab.App, lab.Database)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := seeded(t, l, "lot", 10)
	r.hold("ann", 1)
	events := r.take()
	if err := l.ChargeTokens(t.Context(), 1_000_000); err != nil {
		t.Fatal(err)
	}
	apply(t, l, events[0])
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(t.Context(), events, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err = l.Apply(t.Context(), events, nil)
		return err == nil, fmt.Sprint("still ", err)
	})
	wantTotals(t, l, "lot", 10, 1, 0)
	if n, _, err := l.TakeTokens(t.Context(), 10, 10); err != nil || n != 0 {
		t.Errorf("the restart filled the budget: granted %d, %v", n, err)
	}
}

// A server that goes silent holds a call no longer than its limit, and what it did unheard is not done twice.
func TestASilentServerIsUnavailable(t *testing.T) {
	testkit.Long(t)
	db := migrated(t)
	direct := open(t, db)
	proxy := testkit.Proxy(t, db.Server.Addr())
	l, err := Open(t.Context(), Options{URL: proxy.URL(t, db.Server.URL(lab.App, db.Name)), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := seeded(t, direct, "lot", 10)
	events := r.take()
	proxy.Delay(6 * time.Second)
	began := time.Now()
	if _, err := l.Apply(t.Context(), events, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the call took %v", took)
	}
	proxy.Heal()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err = l.Apply(t.Context(), events, nil)
		return err == nil, fmt.Sprint("still ", err)
	})
	l.Close()
	wantTotals(t, direct, "lot", 10, 0, 0)
}

// Whoever stops is not held up by a server that hangs, neither by its farewell nor by a call under way.
func TestASilentServerHoldsUpNoEnd(t *testing.T) {
	testkit.Long(t)
	db := migrated(t)
	proxy := testkit.Proxy(t, db.Server.Addr())
	l, err := Open(t.Context(), Options{URL: proxy.URL(t, db.Server.URL(lab.App, db.Name))})
	if err != nil {
		t.Fatal(err)
	}
	proxy.CutReplies()
	hanging := make(chan error, 1)
	go func() {
		_, err := l.WhyAbsent(context.WithoutCancel(t.Context()), "lot")
		hanging <- err
	}()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { return l.pool.Stat().AcquiredConns() > 0, "nothing is asked" })
	began := time.Now()
	l.Close()
	if took := time.Since(began); took > closeLimit+2*time.Second {
		t.Errorf("the end took %v", took)
	}
	proxy.Cut()
	if err := <-hanging; !fault.Is(err, fault.Unavailable) {
		t.Errorf("the call that hung: %v", err)
	}
}

func TestAWrongPasswordIsToldPlainly(t *testing.T) {
	_, db := newLedger(t)
	_, err := Open(t.Context(), Options{URL: db.URL(lab.App), Password: "wrong"})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "refuses the credentials") || !strings.Contains(fault.HintOf(err), "--database-password-file") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
}

func TestDeadLettersAndRefundsAreListedNewestFirst(t *testing.T) {
	l, _ := newLedger(t)
	r := seeded(t, l, "lot", 5)
	a := r.hold("ann", 1)
	r.confirm(a, 1, "pay")
	r.paidLate(a, "twice")
	r.paidLate(a, "thrice")
	apply(t, l, r.take()...)
	for _, raw := range []string{"x", "y"} {
		for range 2 {
			if _, err := l.Apply(t.Context(), nil, []drop.Poison{{Raw: raw, Reason: "it is " + raw}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if due, err := l.NewestRefundsDue(t.Context(), 1); err != nil || len(due) != 1 || due[0].Ref != "thrice" {
		t.Errorf("%+v, %v", due, err)
	}
	groups, err := l.DeadGroups(t.Context(), 10)
	if err != nil || len(groups) != 2 || groups[0].Reason != "it is y" || groups[0].Code != fault.Invalid || groups[0].Count == 0 || groups[0].Newest.IsZero() {
		t.Errorf("%+v, %v", groups, err)
	}
}
