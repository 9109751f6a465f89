package ledger

import (
	"context"
	"hash/fnv"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// A space is a place of its own in a shop's database, for what is measured or rehearsed there: a schema, which is all that
// connections to it look into, with advisory locks of its own. The shop sees nothing of it. A space is in use as long as
// there is a connection to it; what is in use by nobody was left by a process that was killed.

const spaceSchema = "dropctl_space_" // and the space's name

func schemaOf(space string) string { return spaceSchema + space }

// lockClass is the first key of all advisory locks: those of a database are shared by all its schemas.
func (o Options) lockClass() int32 {
	if o.Space == "" {
		return lockClass
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(schemaOf(o.Space)))
	return int32(h.Sum32()) //nolint:gosec // any 32 bits do
}

// spaceTime is what making, listing or dropping a space may take: a schema has over a hundred tables and indexes.
const spaceTime = time.Minute

// MakeSpace makes the space that the options name, empty, and keeps it in use until release is called, which is due once it
// was dropped. stock is the Redis that goes with it, as AbandonedSpaces will name it. The role needs the right to create
// schemas in the database.
func MakeSpace(ctx context.Context, o Options, stock string) (release func(), err error) {
	if err := drop.CheckSpace(o.Space); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, spaceTime)
	defer cancel()
	conn, target, err := o.connect(ctx)
	if err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		schema := pgx.Identifier{schemaOf(o.Space)}.Sanitize()
		if _, err := tx.Exec(ctx, `CREATE SCHEMA `+schema); err != nil {
			return err
		}
		about, err := conn.PgConn().EscapeString(stock) // COMMENT takes no parameters
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `COMMENT ON SCHEMA `+schema+` IS '`+about+`'`)
		return err
	})
	database, role := conn.Config().Database, conn.Config().User
	release = func() { closeSoon(conn) }
	if err == nil {
		return release, nil
	}
	release()
	if hasState(err, stateNoRight) {
		return nil, fault.New(fault.Unavailable, "the role %s may not create a schema in %s", role, target).WithField("database-url").
			WithHint("let the owner of the database grant it: GRANT CREATE ON DATABASE %s TO %s; or name the URL of a role that may",
				pgx.Identifier{database}.Sanitize(), pgx.Identifier{role}.Sanitize())
	}
	return nil, failure(target, err, "making a space")
}

// DropSpace drops the space that the options name with everything in it. One that is not there is no error.
func DropSpace(ctx context.Context, o Options) error {
	if err := drop.CheckSpace(o.Space); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, spaceTime)
	defer cancel()
	conn, target, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer closeSoon(conn)
	_, err = conn.Exec(ctx, `DROP SCHEMA IF EXISTS `+pgx.Identifier{schemaOf(o.Space)}.Sanitize()+` CASCADE`)
	return failure(target, err, "dropping a space")
}

// AbandonedSpaces lists the spaces in a database that nobody uses any more, goes with the Redis that was named when they
// were made, and may be dropped by this role. Until done is called nobody else is given any.
func AbandonedSpaces(ctx context.Context, o Options, stock string) (names []string, done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, spaceTime)
	defer cancel()
	conn, target, err := o.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	done = func() { closeSoon(conn) }
	var alone bool
	if err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, lockClass, lockSpaces).Scan(&alone); err == nil && alone {
		names, err = abandoned(ctx, conn, stock)
	}
	if err != nil {
		done()
		return nil, nil, failure(target, err, "looking for spaces that were left")
	}
	return names, done, nil
}

func abandoned(ctx context.Context, conn *pgx.Conn, stock string) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT substr(nspname, $1) FROM pg_namespace n
		WHERE starts_with(nspname, $2) AND obj_description(n.oid, 'pg_namespace') = $3 AND pg_has_role(nspowner, 'USAGE')
		  AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = nspname)
		ORDER BY 1`, len(spaceSchema)+1, spaceSchema, stock)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return slices.DeleteFunc(names, func(name string) bool { return drop.CheckSpace(name) != nil }), err
}

// connect opens one connection that has the time for large changes.
func (o Options) connect(ctx context.Context) (*pgx.Conn, string, error) {
	cfg, err := o.poolConfig()
	if err != nil {
		return nil, "", err
	}
	set := cfg.ConnConfig.RuntimeParams
	set["statement_timeout"] = millisText(spaceTime)
	set["idle_session_timeout"] = "0"
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	return conn, targetOf(cfg.ConnConfig), failure(targetOf(cfg.ConnConfig), err, "connecting")
}

func closeSoon(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_ = conn.Close(ctx)
}
