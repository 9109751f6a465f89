package ledger

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func healthOf(t *testing.T, db testkit.Database, role lab.Role) drop.LedgerHealth {
	t.Helper()
	h, err := ReadHealth(t.Context(), Options{URL: db.URL(role), Timeout: 12 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHealthOfTheRuntimeRole(t *testing.T) {
	l, db := newLedger(t)
	if _, err := l.Heartbeat(t.Context(), Worker{Name: "w", Host: "h", PID: 1, Parts: []string{"relay", "sweep"}, Version: "1.0", Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	h := healthOf(t, db, lab.App)
	if h.Number < 150000 || h.Standby || h.Superuser || h.Role != string(lab.App) || h.ID != l.Installation().ID || h.Shards != DefaultShards || len(h.Unknown) != 0 {
		t.Errorf("%+v", h)
	}
	if len(h.Owned)+len(h.Changeable)+len(h.Unguarded)+len(h.Pending)+len(h.Newer)+len(h.Stopped)+len(h.Dead) != 0 {
		t.Errorf("%+v", h)
	}
	if h.Settings["statement_timeout"] != "12s" || h.Settings["lock_timeout"] != "4s" || h.MaxConns != 197 || h.Backends < 1 || h.PoolConns <= lockConns {
		t.Errorf("%+v", h)
	}
	if !slices.Equal(h.Parts, []string{"relay", "sweep"}) || !slices.Equal(h.Versions, []string{"1.0"}) || h.Doubt <= 0 || h.Offset > time.Second || h.Offset < -time.Second {
		t.Errorf("%+v", h)
	}
}

// TestHealthFindsWhatWasTakenAway damages a schema the way people do.
func TestHealthFindsWhatWasTakenAway(t *testing.T) {
	_, db := newLedger(t)
	db.SQL(t, `DROP TRIGGER append_only ON reservation_events_3;
		ALTER TABLE order_ledger_5 DISABLE TRIGGER append_only_row;
		GRANT DELETE ON order_ledger TO dropctl_app;
		INSERT INTO dropctl_migrations (version_id, is_applied) VALUES (999, true);
		INSERT INTO lots (lot, name, capacity, user_limit, hold_ms, max_hold_ms, late, status, stopped, stopped_reason, stopped_at, seen, created_by)
			VALUES ('hat', '', 1, 0, 1, 1, 'refuse', 'open', 'fork', 'two of them', now(), true, 'ci');
		INSERT INTO dead_letters (digest, lot, epoch, seq, code, reason, line) VALUES ('x', 'hat', 1, 1, 'fork', '', '')`)
	h := healthOf(t, db, lab.App)
	if !slices.Equal(h.Unguarded, []string{"order_ledger_5", "reservation_events_3"}) || !slices.Equal(h.Changeable, []string{"order_ledger"}) {
		t.Errorf("unguarded %v, changeable %v", h.Unguarded, h.Changeable)
	}
	if !slices.Equal(h.Newer, []int64{999}) || len(h.Stopped) != 1 || h.Stopped[0].Code != fault.StopFork || h.Dead[fault.StopFork] != 1 || h.Seen != 1 {
		t.Errorf("%+v", h)
	}
	owner := healthOf(t, db, lab.Owner)
	if !slices.Contains(owner.Owned, "order_ledger_7") || !slices.Contains(owner.Owned, "lots") || owner.Superuser {
		t.Errorf("the owner owns %v", owner.Owned)
	}
	if !healthOf(t, db, lab.Superuser).Superuser {
		t.Error("the superuser passes for an ordinary role")
	}
}

// TestHealthFindsWhatTheRoleMayNotDo takes rights away: one of a table, one of a column, and the schema.
func TestHealthFindsWhatTheRoleMayNotDo(t *testing.T) {
	testkit.Long(t)
	_, db := newLedger(t)
	if h := healthOf(t, db, lab.App); len(h.Lacking) != 0 {
		t.Errorf("the runtime role lacks %v", h.Lacking)
	}
	if h := healthOf(t, db, lab.Owner); len(h.Lacking) != 0 {
		t.Errorf("the owner lacks %v", h.Lacking)
	}
	db.SQL(t, `REVOKE INSERT ON reservation_events FROM dropctl_app; REVOKE UPDATE (server) ON settings FROM dropctl_app`)
	if h := healthOf(t, db, lab.App); !slices.Equal(h.Lacking, []string{"UPDATE on settings (server)", "INSERT on reservation_events"}) {
		t.Errorf("the role lacks %q", h.Lacking)
	}
	db.SQL(t, `REVOKE ALL ON ALL TABLES IN SCHEMA public FROM dropctl_app`)
	if h := healthOf(t, db, lab.App); len(h.Lacking) < 30 || len(h.Unknown["grants"]) != 0 {
		t.Errorf("the role lacks %q; %v", h.Lacking, h.Unknown)
	}
	db.SQL(t, `REVOKE ALL ON SCHEMA public FROM dropctl_app, public`)
	if h := healthOf(t, db, lab.App); len(h.Lacking) == 0 || h.Lacking[0] != "USAGE on the schema public" {
		t.Errorf("the role lacks %q", h.Lacking)
	}
}

func TestHealthWithoutSchemaOrServer(t *testing.T) {
	db := testkit.Postgres(t)
	h := healthOf(t, db, lab.App)
	known, err := knownSteps()
	if err != nil || len(h.Pending) != len(known) || h.ID != "" || h.Unknown["triggers"] == "" || h.Unknown["rights"] == "" || h.Unknown["connections"] != "" {
		t.Errorf("%+v, %v", h, err)
	}
	_, err = ReadHealth(t.Context(), Options{URL: "postgres://app:secret@127.0.0.1:1/shop", Timeout: time.Second})
	if !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("without a server: %v", err)
	}
}

func TestHealthTellsPrimaryFromStandby(t *testing.T) {
	testkit.Long(t)
	server := testkit.PostgresServer(t)
	if _, err := MigrateUp(t.Context(), Options{URL: server.SocketURL(lab.Owner, lab.Database)}, MigrateOptions{AppRole: string(lab.App)}); err != nil {
		t.Fatal(err)
	}
	primary := testkit.Database{Server: server, Name: lab.Database}
	standby := testkit.Database{Server: testkit.Standby(t, server, true), Name: lab.Database}
	if h := healthOf(t, primary, lab.App); h.Standby || h.Replicas != 1 || h.Settings["synchronous_standby_names"] == "" || h.Settings["fsync"] != "on" {
		t.Errorf("the primary: %+v", h)
	}
	if h := healthOf(t, standby, lab.App); !h.Standby || h.Replicas != 0 || len(h.Pending) != 0 || len(h.Unknown) != 0 {
		t.Errorf("the standby: %+v", h)
	}
}
