package ledger

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/dropctl/dropctl/migrations"
	"github.com/dropctl/dropctl/pkg/fault"
)

// DefaultShards is P where a new installation names none.
const DefaultShards = 16

const (
	versionTable = "dropctl_migrations"
	ddlLockLimit = 3 * time.Second // a waiting ALTER queues everybody behind it, so it gives up soon and tries again
	ddlAttempts  = 5
)

// MigrateOptions say what a migration sets up besides the schema.
type MigrateOptions struct {
	AppRole string // role that dropctl runs as; it gets what it needs and nothing more. "": whoever was named before gets it
	Shards  int    // P of a new installation, 0: DefaultShards; it can never be changed
}

// MigrationStep is one numbered file.
type MigrationStep struct {
	Version   int64
	Name      string
	AppliedAt time.Time     // zero: pending
	Duration  time.Duration // of a step carried out just now
}

// MigrationStatus says which steps the database has. Installation is empty before the first.
type MigrationStatus struct {
	Steps        []MigrationStep
	Pending      int
	Installation Installation
}

// MigrateUp brings the schema up to date and returns the steps it carried out. Concurrent calls wait for
// each other. Errors: fault.Conflict for another P than the installation has, fault.NotFound or
// fault.Invalid for a role that cannot be the runtime role.
func MigrateUp(ctx context.Context, o Options, m MigrateOptions) ([]MigrationStep, error) {
	db, err := openMigrator(o)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if err := db.checkRole(ctx, m.AppRole); err != nil {
		return nil, err
	}
	done, err := db.run(func(p *goose.Provider) ([]*goose.MigrationResult, error) { return p.Up(ctx) })
	if err != nil {
		return done, err
	}
	return done, db.setUp(ctx, m)
}

// MigrateDown takes steps back until the database stands at version `to`; 0 removes everything, the recorded
// sales included. It returns the steps it took back.
func MigrateDown(ctx context.Context, o Options, to int64) ([]MigrationStep, error) {
	db, err := openMigrator(o)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return db.run(func(p *goose.Provider) ([]*goose.MigrationResult, error) { return p.DownTo(ctx, to) })
}

// ReadMigrationStatus looks, and changes nothing.
func ReadMigrationStatus(ctx context.Context, o Options) (MigrationStatus, error) {
	db, err := openMigrator(o)
	if err != nil {
		return MigrationStatus{}, err
	}
	defer db.Close()
	conn, err := pgx.ConnectConfig(ctx, db.config)
	if err != nil {
		return MigrationStatus{}, db.fail(err, "connecting")
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	applied, err := appliedSteps(ctx, conn)
	if err != nil {
		return MigrationStatus{}, db.fail(err, "reading the schema version")
	}
	known, err := knownSteps()
	if err != nil {
		return MigrationStatus{}, db.fail(err, "reading the migrations")
	}
	s := MigrationStatus{Steps: known, Pending: len(pendingSteps(known, applied))}
	for i, step := range s.Steps {
		s.Steps[i].AppliedAt = applied[step.Version]
	}
	if s.Pending < len(s.Steps) {
		s.Installation, err = readInstallation(ctx, conn)
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
	}
	return s, db.fail(err, "reading the installation")
}

type migrator struct {
	*sql.DB
	config *pgx.ConnConfig
	target string
}

func openMigrator(o Options) (*migrator, error) {
	cfg, err := o.poolConfig()
	if err != nil {
		return nil, err
	}
	set := cfg.ConnConfig.RuntimeParams
	set["lock_timeout"] = millisText(ddlLockLimit)
	set["statement_timeout"] = millisText(10 * time.Minute)
	delete(set, "plan_cache_mode")
	return &migrator{stdlib.OpenDB(*cfg.ConnConfig), cfg.ConnConfig, targetOf(cfg.ConnConfig)}, nil
}

func (db *migrator) Close() { _ = db.DB.Close() }

// fail is failure, but a missing right means another role here: only the owner may migrate.
func (db *migrator) fail(err error, doing string) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == stateNoRight {
		return fault.New(fault.Unavailable, "the role of the database URL may not do this at %s (%s): %s", db.target, doing, pg.Message).
			WithHint("name the URL of the role that owns the schema, with --database-url or DROPCTL_DATABASE_URL")
	}
	return failure(db.target, err, doing)
}

// run carries out steps, alone among all processes. A step that waits too long for a table is tried again.
func (db *migrator) run(steps func(*goose.Provider) ([]*goose.MigrationResult, error)) ([]MigrationStep, error) {
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 120), lock.WithUnlockTimeout(1, 5))
	if err != nil {
		return nil, db.fail(err, "locking")
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db.DB, migrations.Files, goose.WithTableName(versionTable),
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, db.fail(err, "reading the migrations")
	}
	var done []MigrationStep
	for attempt := 1; ; attempt++ {
		results, err := steps(p)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
		}
		for _, r := range results {
			done = append(done, MigrationStep{Version: r.Source.Version, Name: stepName(r.Source.Path), AppliedAt: time.Now().UTC(), Duration: r.Duration})
		}
		if err == nil || !hasState(err, stateLockTimeout) || attempt == ddlAttempts {
			return done, db.fail(err, "migrating")
		}
	}
}

// setUp writes the installation once and grants the runtime role its rights.
func (db *migrator) setUp(ctx context.Context, m MigrateOptions) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return db.fail(err, "setting up")
	}
	defer func() { _ = tx.Rollback() }()
	if err := db.setUpIn(ctx, tx, m); err != nil {
		return db.fail(err, "setting up")
	}
	return db.fail(tx.Commit(), "setting up")
}

//go:embed sql/grants.sql
var grantsSQL string

func (db *migrator) setUpIn(ctx context.Context, tx *sql.Tx, m MigrateOptions) error {
	// Concurrent GRANTs on one table would fail, and only one caller may name the installation.
	if _, err := tx.ExecContext(ctx, `LOCK TABLE settings IN EXCLUSIVE MODE`); err != nil {
		return err
	}
	shards := m.Shards
	if shards == 0 {
		shards = DefaultShards
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO settings (installation, shards) VALUES (gen_random_uuid()::text, $1) ON CONFLICT DO NOTHING`, shards); err != nil {
		return err
	}
	var is int
	if err := tx.QueryRowContext(ctx, `SELECT shards FROM settings`).Scan(&is); err != nil {
		return err
	}
	if m.Shards != 0 && m.Shards != is {
		return fault.New(fault.Conflict, "the installation has %d shards, not %d; that cannot be changed", is, m.Shards).WithField("shards")
	}
	roles := []string{m.AppRole}
	if m.AppRole == "" {
		var err error
		if roles, err = appRoles(ctx, tx); err != nil {
			return err
		}
	}
	var schema string
	if err := tx.QueryRowContext(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
		return err
	}
	for _, role := range roles {
		names := strings.NewReplacer("{role}", pgx.Identifier{role}.Sanitize(), "{schema}", pgx.Identifier{schema}.Sanitize())
		if _, err := tx.ExecContext(ctx, names.Replace(grantsSQL)); err != nil {
			return err
		}
	}
	return nil
}

// appRoles finds the roles that were given the rights of dropctl's own: to the journal they may add, and change nothing there.
// Whoever updates without naming them again must not leave them without what a new step needs, nor take a right from anybody else.
func appRoles(ctx context.Context, tx *sql.Tx) (roles []string, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT r.rolname FROM pg_class c, aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
		WHERE c.oid = 'reservation_events'::regclass AND r.oid <> c.relowner AND NOT r.rolsuper
		GROUP BY 1 HAVING array_agg(DISTINCT a.privilege_type ORDER BY a.privilege_type) = '{INSERT,SELECT}' ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var role string
		if err := rows.Scan(&role); err != nil {
			return nil, err
		}
		roles = append(roles, role)
	}
	return roles, rows.Err()
}

// checkRole refuses a role that does not exist or whose rights could not be limited.
func (db *migrator) checkRole(ctx context.Context, role string) error {
	if role == "" {
		return nil
	}
	var super, same bool
	err := db.QueryRowContext(ctx, `SELECT rolsuper, pg_has_role(rolname, current_user, 'USAGE') FROM pg_roles WHERE rolname = $1`, role).Scan(&super, &same)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fault.New(fault.NotFound, "the role %q does not exist", role).WithField("app-role").WithHint("create it first: CREATE ROLE … LOGIN")
	case err != nil:
		return db.fail(err, "looking at the role")
	case super || same:
		return fault.New(fault.Invalid, "the role %q has the rights of the schema's owner", role).WithField("app-role").
			WithHint("use a role of its own, neither superuser nor member of the owner's role")
	}
	return nil
}

// querier is a connection or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func readInstallation(ctx context.Context, q querier) (Installation, error) {
	var i Installation
	err := q.QueryRow(ctx, `SELECT installation, shards FROM settings`).Scan(&i.ID, &i.Shards)
	return i, err
}

// appliedSteps returns when each step was applied; nothing for a database without our schema.
func appliedSteps(ctx context.Context, q querier) (map[int64]time.Time, error) {
	var exists bool
	if err := q.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, versionTable).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	rows, err := q.Query(ctx, `SELECT version_id, max(tstamp AT TIME ZONE 'UTC') FROM `+versionTable+` WHERE is_applied GROUP BY version_id`)
	if err != nil {
		return nil, err
	}
	applied := map[int64]time.Time{}
	var version int64
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&version, &at}, func() error {
		applied[version] = at.UTC()
		return nil
	})
	return applied, err
}

// knownSteps lists the steps this program carries, in order.
func knownSteps() ([]MigrationStep, error) {
	files, err := fs.Glob(migrations.Files, "*.sql")
	steps := make([]MigrationStep, len(files))
	for i, f := range files {
		version, badName := goose.NumericComponent(f)
		if badName != nil {
			err = badName
		}
		steps[i] = MigrationStep{Version: version, Name: stepName(f)}
	}
	return steps, err
}

func stepName(path string) string { return strings.TrimSuffix(path, ".sql") }

func pendingSteps(known []MigrationStep, applied map[int64]time.Time) []MigrationStep {
	return slices.DeleteFunc(slices.Clone(known), func(s MigrationStep) bool {
		_, ok := applied[s.Version]
		return ok
	})
}
