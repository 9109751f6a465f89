package bench

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

// metered is a stock and a ledger on private servers, with the meter of both. The ledger looks with this role's eyes.
func metered(t *testing.T, role lab.Role) (Meter, *stock.Stock, testkit.Database) {
	t.Helper()
	db := stores.Database(t, 2)
	l, err := ledger.Open(t.Context(), ledger.Options{URL: db.URL(role), MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	s, err := stock.Open(stock.Options{URL: testkit.Redis(t).SocketURL(), Installation: l.Installation().ID, Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return Meter{Redis: s, Postgres: l, PostgresPID: db.Server.PID()}, s, db
}

func connect(t *testing.T, db testkit.Database) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL(lab.Superuser))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestMeterTellsWhatRedisDid(t *testing.T) {
	t.Parallel()
	m, s, _ := metered(t, lab.App)
	d := drop.Definition{Lot: "truffle-99", Stock: 100}
	if err := s.Load(t.Context(), stock.LoadRequest{Definition: d.WithDefaults(), Epoch: 1, Actor: "test", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	metering := m.Begin(t.Context())
	const holds = 40
	for i := range holds { // one after the other, so that each is a script call
		if _, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: d.Lot, User: fmt.Sprint("user", i), Key: fmt.Sprint(i), Qty: 1}); err != nil {
			t.Fatal(err)
		}
	}
	cost, _ := metering.End(t.Context(), holds)
	if cost.CPU == nil || *cost.CPU <= 0 || time.Duration(*cost.CPU) > time.Second {
		t.Errorf("processor time of a hold: %v", cost.CPU)
	}
	if scripts := cost.ByCommand["evalsha"] + cost.ByCommand["fcall"]; scripts < 1 || scripts > 1.5 {
		t.Errorf("script calls of a hold: %+v", cost.ByCommand)
	}
	if cost.Commands == nil || *cost.Commands < 3 || *cost.Commands > 100 {
		t.Errorf("commands of a hold: %v", cost.Commands)
	}
	if _, own := cost.ByCommand["info"]; own {
		t.Error("the meter counts its own question")
	}
}

func TestMeterTellsWhatPostgresDid(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	m, _, db := metered(t, lab.Superuser)
	holder, waiter := connect(t, db), connect(t, db)
	metering := m.Begin(t.Context())
	const transactions, rollbacks = 30, 7
	for range transactions {
		execute(t, holder, `SELECT 1`)
	}
	for range rollbacks {
		execute(t, holder, `BEGIN; SELECT 1; ROLLBACK`)
	}
	waited := waitForLock(t, m, holder, waiter)
	execute(t, holder, `SELECT count(*) FROM generate_series(1, 500000) AS i WHERE md5(i::text) = ''`)
	before := *metering.postgres
	for _, conn := range []*pgx.Conn{holder, waiter} { // a session that ends reports what it did
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var polls int64
	testkit.Eventually(t, time.Minute, func() (bool, string) {
		polls++
		now := m.activity(t.Context())
		return now != nil && now.Rollbacks-before.Rollbacks >= rollbacks, fmt.Sprintf("%+v", now)
	})
	_, cost := metering.End(t.Context(), 1)
	if cost.Transactions == nil || *cost.Transactions < transactions+rollbacks || *cost.Transactions > float64(transactions+rollbacks+polls+60) {
		t.Errorf("%s: and %d looks", cost.Cell(), polls)
	}
	if cost.Rollbacks == nil || *cost.Rollbacks < rollbacks || *cost.Rollbacks > rollbacks+5 {
		t.Errorf("%s", cost.Cell())
	}
	if cost.LockWait == nil || time.Duration(*cost.LockWait) < waited/3 || time.Duration(*cost.LockWait) > 3*waited+time.Second {
		t.Errorf("%s: waited for locks: %v, and it was %s at least", cost.Cell(), cost.LockWait, waited)
	}
	if onLinux := runtime.GOOS == "linux"; (cost.CPU != nil) != onLinux || onLinux && time.Duration(*cost.CPU) < 20*time.Millisecond {
		t.Errorf("processor time: %s", cost.Cell())
	}
}

// waitForLock lets one session wait for another for about a second, and returns how long it surely did.
func waitForLock(t *testing.T, m Meter, holder, waiter *pgx.Conn) time.Duration {
	t.Helper()
	execute(t, holder, `SELECT pg_advisory_lock(1)`)
	got := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(context.Background(), `SELECT pg_advisory_lock(1)`)
		got <- err
	}()
	testkit.Eventually(t, time.Minute, func() (bool, string) {
		now := m.activity(t.Context())
		return now != nil && now.Waiting == 1, fmt.Sprintf("%+v", now)
	})
	since := time.Now()
	time.Sleep(time.Second) // what is measured is this second
	execute(t, holder, `SELECT pg_advisory_unlock(1)`)
	waited := time.Since(since)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	return waited
}

// TestMeterSaysNothingOfWhatItCannotSee: no figure is better than a wrong one.
func TestMeterSaysNothingOfWhatItCannotSee(t *testing.T) {
	t.Parallel()
	m, s, db := metered(t, lab.App)
	other := connect(t, db) // the superuser's session, which the runtime role may not look at
	execute(t, other, `SELECT 1`)
	metering := m.Begin(t.Context())
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		now := m.activity(t.Context())
		return now != nil && now.Hidden, fmt.Sprintf("%+v", now)
	})
	time.Sleep(3 * sampleEvery) // so that it has looked
	metering.stop()
	metering.sampling.Wait()
	if !metering.locks.blind {
		t.Error("it believes it sees who waits")
	}
	if _, cost := metering.End(t.Context(), 1); cost.LockWait != nil || cost.Transactions == nil {
		t.Errorf("%+v", cost)
	}
	if redis, postgres := m.Begin(t.Context()).End(t.Context(), 0); redis.CPU != nil || postgres.CPU != nil {
		t.Errorf("the cost of nothing: %+v, %+v", redis, postgres)
	}
	_ = s.Close()
	gone := Meter{Redis: s}
	if redis, postgres := gone.Begin(t.Context()).End(t.Context(), 9); redis.CPU != nil || redis.Commands != nil || postgres.CPU != nil || postgres.LockWait != nil {
		t.Errorf("%+v, %+v", redis, postgres)
	}
}
