package ledger

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func stepCount(t testing.TB) int {
	t.Helper()
	steps, err := knownSteps()
	if err != nil || len(steps) == 0 {
		t.Fatalf("%d steps, %v", len(steps), err)
	}
	return len(steps)
}

func TestMigrateUpAndDown(t *testing.T) {
	db := testkit.Postgres(t)
	o := Options{URL: db.URL(lab.Owner)}
	status := func() MigrationStatus {
		t.Helper()
		s, err := ReadMigrationStatus(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	steps := stepCount(t)
	if s := status(); s.Pending != steps || s.Installation.ID != "" {
		t.Errorf("status of an empty database: %+v", s)
	}
	if _, err := Open(t.Context(), o); !fault.Is(err, fault.NotMigrated) {
		t.Errorf("opening an empty database: %v", err)
	}
	done, err := MigrateUp(t.Context(), o, MigrateOptions{Shards: 4})
	if err != nil || len(done) != steps {
		t.Fatalf("migrated %+v, %v", done, err)
	}
	first := status()
	if first.Pending != 0 || first.Installation.Shards != 4 || first.Installation.ID == "" || first.Steps[0].AppliedAt.IsZero() {
		t.Errorf("status %+v", first)
	}
	// Again: nothing to do, and the installation stays.
	if done, err := MigrateUp(t.Context(), o, MigrateOptions{}); err != nil || len(done) != 0 || status().Installation != first.Installation {
		t.Errorf("migrated again: %+v, %v", done, err)
	}
	if _, err := MigrateUp(t.Context(), o, MigrateOptions{Shards: 5}); !fault.Is(err, fault.Conflict) {
		t.Errorf("another P: %v", err)
	}
	// An older schema is refused.
	if done, err := MigrateDown(t.Context(), o, first.Steps[steps-2].Version); err != nil || len(done) != 1 || status().Pending != 1 {
		t.Errorf("taken back: %+v, %v", done, err)
	}
	if _, err := Open(t.Context(), o); !fault.Is(err, fault.NotMigrated) {
		t.Errorf("opening an older schema: %v", err)
	}
	if _, err := MigrateDown(t.Context(), o, 0); err != nil {
		t.Fatal(err)
	}
	left := db.SQL(t, `SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'dropctl_migrations%'
		UNION SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace`)
	if left != "" {
		t.Errorf("left behind: %s", left)
	}
	if done, err := MigrateUp(t.Context(), o, MigrateOptions{}); err != nil || len(done) != steps {
		t.Errorf("migrated once more: %+v, %v", done, err)
	}
	if id := status().Installation.ID; id == first.Installation.ID {
		t.Errorf("a new database has the old installation id")
	}
}

func TestConcurrentMigrationsWaitForEachOther(t *testing.T) {
	testkit.Long(t)
	db := testkit.Postgres(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 4 {
		all.Go(func() {
			done, err := MigrateUp(t.Context(), Options{URL: db.URL(lab.Owner)}, MigrateOptions{AppRole: string(lab.App)})
			mu.Lock()
			defer mu.Unlock()
			if total += len(done); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if total != stepCount(t) {
		t.Errorf("%d steps were carried out", total)
	}
	open(t, db)
}

// A step that waits for a table gives up, lets others through, and tries again.
func TestAMigrationWaitsForALongTransaction(t *testing.T) {
	testkit.Long(t)
	db := migrated(t)
	o := Options{URL: db.URL(lab.Owner)}
	tx, err := openPool(t, db.URL(lab.Owner)).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM workers"); err != nil {
		t.Fatal(err)
	}
	finished := make(chan error)
	go func() {
		_, err := MigrateDown(t.Context(), o, 2)
		finished <- err
	}()
	testkit.Eventually(t, ddlLockLimit*3, func() (bool, string) {
		got := db.SQL(t, "SELECT xact_rollback > 0 FROM pg_stat_database WHERE datname = current_database()")
		return got == "t", "no attempt has given up"
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-finished; err != nil {
		t.Error(err)
	}
}

func TestTheAppRoleIsChecked(t *testing.T) {
	db := testkit.Postgres(t)
	o := Options{URL: db.URL(lab.Owner)}
	for role, code := range map[string]fault.Code{
		"nobody_of_this_name": fault.NotFound, `x"; DROP DATABASE y; --`: fault.NotFound,
		string(lab.Owner): fault.Invalid, string(lab.Superuser): fault.Invalid,
	} {
		if _, err := MigrateUp(t.Context(), o, MigrateOptions{AppRole: role}); !fault.Is(err, code) {
			t.Errorf("role %s: %v", role, err)
		}
	}
	odd := `Odd "role" $role$; DROP TABLE lots`
	db.SQL(t, `CREATE ROLE "Odd ""role"" $role$; DROP TABLE lots"`)
	t.Cleanup(func() {
		_, _ = db.Server.SQL(context.Background(), db.Name, `DROP OWNED BY "Odd ""role"" $role$; DROP TABLE lots"; DROP ROLE "Odd ""role"" $role$; DROP TABLE lots"`)
	})
	if _, err := MigrateUp(t.Context(), o, MigrateOptions{AppRole: odd}); err != nil {
		t.Error(err)
	}
}

// Whoever updates does not have to know the runtime role: it was named once, and needs what the new steps bring.
func TestAnUpdateGrantsTheRuntimeRoleWhatIsNew(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	o := Options{URL: db.URL(lab.Owner)}
	s, err := ReadMigrationStatus(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := MigrateDown(t.Context(), o, s.Steps[len(s.Steps)-2].Version); err != nil {
		t.Fatal(err)
	}
	if done, err := MigrateUp(t.Context(), o, MigrateOptions{}); err != nil || len(done) != 1 {
		t.Fatalf("migrated %+v, %v", done, err)
	}
	if h := healthOf(t, db, lab.App); len(h.Lacking) > 0 {
		t.Errorf("the runtime role lacks %v", h.Lacking)
	}
}

// Somebody else may have been given rights as well, and an update takes none of them.
func TestAnUpdateTakesNoRightsFromOthers(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	db.SQL(t, `CREATE ROLE ops; GRANT ALL ON ALL TABLES IN SCHEMA public TO ops`)
	t.Cleanup(func() {
		_, _ = db.Server.SQL(context.Background(), db.Name, `DROP OWNED BY ops; DROP ROLE ops`)
	})
	rights := func() string {
		t.Helper()
		return db.SQL(t, `SELECT c.relname, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a WHERE a.grantee = 'ops'::regrole ORDER BY 1, 2`)
	}
	before := rights()
	if !strings.Contains(before, "reservation_events|UPDATE") || !strings.Contains(before, "reservation_events|DELETE") {
		t.Fatalf("it has only %s", before)
	}
	if _, err := MigrateUp(t.Context(), Options{URL: db.URL(lab.Owner)}, MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if after := rights(); after != before {
		t.Errorf("it had\n%s\nand has\n%s", before, after)
	}
	if h := healthOf(t, db, lab.App); len(h.Lacking) > 0 {
		t.Errorf("the runtime role lacks %v", h.Lacking)
	}
}

// History and sales cannot be changed: not by the runtime role, and not by the owner, in no partition.
func TestHistoryCannotBeChanged(t *testing.T) {
	testkit.Long(t)
	l, db := newLedger(t)
	for i := range 30 { // enough lots for every partition, always the same ones
		r := seeded(t, l, drop.LotID(fmt.Sprint("history-", i)), 10)
		r.confirm(r.hold("ann", 1), 1, "pay")
		apply(t, l, r.take()...)
	}
	finalise(t, l)
	tables := strings.Fields(db.SQL(t, `SELECT relid::regclass FROM pg_partition_tree('reservation_events') UNION ALL SELECT relid::regclass FROM pg_partition_tree('order_ledger')`))
	if len(tables) != 18 {
		t.Fatalf("%d tables: %v", len(tables), tables)
	}
	state := func(role lab.Role, statement string) string {
		pool := openPool(t, db.URL(role))
		defer pool.Close()
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			for _, state := range []string{"23001", stateNoRight} {
				if hasState(err, state) {
					return state
				}
			}
			return err.Error()
		}
		return "done"
	}
	for _, table := range tables {
		if n := db.SQL(t, "SELECT count(*) FROM "+table); n == "0" {
			t.Errorf("%s is empty: the test tests nothing", table)
		}
		for _, statement := range []string{"UPDATE %s SET lot = lot", "DELETE FROM %s", "TRUNCATE %s", "DELETE FROM %s WHERE false"} {
			statement = fmt.Sprintf(statement, table)
			if got := state(lab.App, statement); got != stateNoRight {
				t.Errorf("%s as app: %s", statement, got)
			}
			if got := state(lab.Owner, statement); got != "23001" {
				t.Errorf("%s as owner: %s", statement, got)
			}
		}
	}
	merge := `MERGE INTO order_ledger o USING lots l ON o.lot = l.lot WHEN MATCHED THEN DELETE`
	if got := state(lab.Owner, merge); got != "23001" {
		t.Errorf("%s: %s", merge, got)
	}
	trick := `SET session_replication_role = replica; DELETE FROM order_ledger_0`
	if got := state(lab.Superuser, trick); got != "23001" {
		t.Errorf("%s: %s", trick, got)
	}
}

func TestTheAppRoleOwnsNothing(t *testing.T) {
	_, db := newLedger(t)
	if got := db.SQL(t, `SELECT relname FROM pg_class WHERE relowner = 'dropctl_app'::regrole`); got != "" {
		t.Errorf("it owns %s", got)
	}
	if got := db.SQL(t, `SELECT DISTINCT c.relname || ' ' || a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
		WHERE a.grantee = 'dropctl_app'::regrole AND a.privilege_type NOT IN ('SELECT', 'INSERT', 'UPDATE')
		AND c.relname NOT IN ('waiting_events', 'workers', 'lot_verdicts', 'hook_deliveries')`); got != "" {
		t.Errorf("it may %s", got)
	}
	pool := openPool(t, db.URL(lab.App))
	for _, statement := range []string{"UPDATE settings SET shards = 1", "DELETE FROM lots", "DELETE FROM dead_letters", "UPDATE refunds_due SET units = 0",
		"DELETE FROM pending_allocations", "CREATE TABLE mine (i int)", "DROP TABLE lots", "ALTER TABLE order_ledger DISABLE TRIGGER ALL", "INSERT INTO dropctl_migrations (version_id, is_applied) VALUES (9, true)"} {
		if _, err := pool.Exec(t.Context(), statement); !hasState(err, stateNoRight) {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

// The constraint is the last resort: not even the owner can record more than there is.
func TestTheTableItselfRefusesOverselling(t *testing.T) {
	l, db := newLedger(t)
	lot := newLot()
	seeded(t, l, lot, 10)
	pool := openPool(t, db.URL(lab.Owner))
	for _, set := range []string{"sold = 11", "held = -1", "sold = 5, held = 6", "capacity = -1"} {
		if _, err := pool.Exec(t.Context(), "UPDATE lots SET "+set); !hasState(err, "23514") {
			t.Errorf("%s: %v", set, err)
		}
	}
}
