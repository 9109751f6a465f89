package wire_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/reconcile"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// settings are those of a shop's runtime role.
func (s shop) settings() *config.Config {
	return &config.Config{RedisURL: config.NewURL(s.redis.URL()), DatabaseURL: config.NewURL(s.db.URL(lab.App)), Timeout: 20 * time.Second, RedisTimeout: 5 * time.Second, RedisDialTimeout: 5 * time.Second}
}

func noEnv(string) string { return "" }

// openSpace makes a space on a shop's servers, as its runtime role, which was granted that.
func (s shop) openSpace(t *testing.T) *wire.Space {
	t.Helper()
	s.db.SQL(t, `GRANT CREATE ON DATABASE "`+s.db.Name+`" TO "`+string(lab.App)+`"`)
	sp, err := wire.OpenSpace(t.Context(), s.settings(), noEnv, 4)
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

// left are the keys and schemas on a shop's servers.
func (s shop) left(t *testing.T) []string {
	t.Helper()
	keys, err := s.redis.Do(t.Context(), "KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	all := append(strings.Fields(keys), strings.Fields(s.db.SQL(t, `SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%'`))...)
	slices.Sort(all)
	return all
}

// numbers are what a shop's lots stand at on both sides.
func (s shop) numbers(t *testing.T) map[drop.LotID]drop.Totals {
	t.Helper()
	known, err := s.ledger.Lots(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	all := map[drop.LotID]drop.Totals{}
	for _, l := range known {
		all[l.Lot] = l.Totals()
	}
	return all
}

// The same lot sold out in a space while the shop has it on sale: recorded, finalised, compared record by record and verified
// there, without a trace in the shop, which may reconcile meanwhile. Dropped, nothing is left of the space.
func TestASpaceIsNoneOfTheShopsBusiness(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	ctx, s := t.Context(), openShop(t)
	if _, err := wire.OpenSpace(ctx, s.settings(), noEnv, 4); !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), `GRANT CREATE ON DATABASE "`+s.db.Name+`" TO "`+string(lab.App)+`";`) {
		t.Errorf("without the right to it: %v, hint %s", err, fault.HintOf(err))
	}
	s.mustSeed(t, "lot,stock\nhat,3\n", seed.Options{})
	s.sell(t, "hat", 1)
	s.drain(t)
	if shop, err := wire.LookAtShop(ctx, s.settings(), noEnv); err != nil || shop.Lots != 1 || shop.Shards != 4 {
		t.Errorf("the shop is %+v, %v", shop, err)
	}
	left, numbers := s.left(t), s.numbers(t)
	busy, err := s.ledger.StartRun(ctx, "test", nil)
	if err != nil {
		t.Fatal(err)
	}

	sp := s.openSpace(t)
	in := shop{redis: s.redis, db: s.db, stock: sp.Stock, ledger: sp.Ledger}
	if sp.Ledger.Installation() == s.ledger.Installation() {
		t.Error("the space has the shop's installation")
	}
	in.mustSeed(t, "lot,stock\nhat,2\n", seed.Options{})
	in.sell(t, "hat", 2)
	w := worker.New(sp.Stock, wire.WorkerLedger(sp.Ledger), worker.Options{Installation: sp.Ledger.Installation().ID, Shards: 4, UntilIdle: true, Rate: 2000})
	if _, err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	report, err := reconcile.Run(ctx, sp.Stock, wire.ReconcileLedger(sp.Ledger), reconcile.Options{Deep: true, Installation: sp.Ledger.Installation().ID, Wait: 20 * time.Second})
	if err != nil || report.Verdict != fault.VerdictOK || len(report.Rows) != 1 || report.Rows[0].Ledger.Sold != 2 {
		t.Errorf("the space's stores: %+v, %v", report, err)
	}
	if v, err := sp.Ledger.Verify(ctx, "hat", nil); err != nil || v.Bad != "" || v.Units != 2 {
		t.Errorf("the space's history: %+v, %v", v, err)
	}
	if _, err := s.db.Server.SQL(ctx, s.db.Name, `DELETE FROM "dropctl_space_`+sp.Name+`".order_ledger`); err == nil {
		t.Error("sales of a space can be deleted")
	}
	if now := s.numbers(t); !maps.Equal(numbers, now) {
		t.Errorf("the shop's lots were %v and are %v", numbers, now)
	}
	if err := busy.Abandon(ctx, "test"); err != nil {
		t.Fatal(err)
	}
	if err := sp.Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if now := s.left(t); !slices.Equal(left, now) {
		t.Errorf("there were %v and are %v", left, now)
	}
	s.sell(t, "hat", 2)
}

// A run that was killed leaves its space. The next one removes it, but none that is in use, and none of another Redis.
func TestWhatAKilledRunLeftIsSwept(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	ctx, s := t.Context(), openShop(t)
	before := s.left(t)
	sp := s.openSpace(t)
	lives := shop{redis: s.redis, db: s.db, stock: sp.Stock, ledger: sp.Ledger}
	lives.mustSeed(t, "lot,stock\nhat,3\n", seed.Options{})
	sweep := func(redis string) []string {
		t.Helper()
		swept, err := wire.SweepSpaces(ctx, s.settings(), noEnv, redis)
		if err != nil {
			t.Fatal(err)
		}
		return swept
	}
	if swept := sweep(sp.Stock.Target()); len(swept) > 0 {
		t.Fatalf("%v was swept while it is in use", swept)
	}
	// Without a goodbye, as when its process is killed.
	sp.Ledger.Close()
	if err := sp.Stock.Close(); err != nil {
		t.Fatal(err)
	}
	s.db.SQL(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dropctl_space_`+sp.Name+`'`)
	if swept := sweep("elsewhere:6379"); len(swept) > 0 {
		t.Errorf("%v of another Redis was swept", swept)
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		swept := sweep(sp.Stock.Target())
		return slices.Equal(swept, []string{sp.Name}), "the space that was left is not swept"
	})
	if now := s.left(t); !slices.Equal(before, now) {
		t.Errorf("there were %v and are %v", before, now)
	}
}

// While Redis cannot be reached, a space stays listed, so that a later run finds it.
func TestASpaceThatCannotBeDroppedIsFoundAgain(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	ctx, s := t.Context(), openShop(t)
	before := s.left(t)
	sp := s.openSpace(t)
	in := shop{redis: s.redis, db: s.db, stock: sp.Stock, ledger: sp.Ledger}
	in.mustSeed(t, "lot,stock\nhat,3\n", seed.Options{})
	users := func(state string) {
		t.Helper()
		if _, err := s.redis.Do(ctx, "ACL", "SETUSER", "default", state); err != nil {
			t.Fatal(err)
		}
	}
	users("-unlink")
	if err := sp.Drop(ctx); err == nil || !strings.Contains(err.Error(), sp.Name) {
		t.Errorf("dropped without the right to: %v", err)
	}
	users("+unlink")
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		swept, err := wire.SweepSpaces(ctx, s.settings(), noEnv, sp.Stock.Target())
		if err != nil {
			t.Fatal(err)
		}
		return len(swept) == 1, "the space is not found again"
	})
	if now := s.left(t); !slices.Equal(before, now) {
		t.Errorf("there were %v and are %v", before, now)
	}
}
