package testkit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dropctl/dropctl/pkg/lab"
)

// Database is one database on a private PostgreSQL server.
type Database struct {
	Server *lab.Postgres
	Name   string
}

// Postgres makes an empty database for the test, on a server that all tests of the process share, and
// drops it when the test ends. The server does not sync: kill one from PostgresServer instead.
func Postgres(t testing.TB) Database {
	t.Helper()
	return makeDatabase(t, func(d Database) error { return d.Server.CreateDatabase(t.Context(), d.Name) })
}

// Migrated is Postgres with the schema, the rights of the runtime role and an installation of its own. It copies a database
// that migrate was called for, once for each number of shards: a copy costs a third of what all the migrations do.
func Migrated(t testing.TB, shards int, migrate func(Database) error) Database {
	t.Helper()
	return makeDatabase(t, func(d Database) error {
		model, err := shared.model(shards, migrate)
		if err != nil {
			return err
		}
		return model.copyTo(t.Context(), d.Name)
	})
}

func makeDatabase(t testing.TB, create func(Database) error) Database {
	t.Helper()
	server, err := shared.get()
	if err != nil {
		t.Fatalf("starting PostgreSQL: %v", err)
	}
	d := Database{Server: server, Name: fmt.Sprintf("test_%d", shared.databases.Add(1))}
	if err := create(d); err != nil {
		t.Fatalf("making a database: %v", err)
	}
	stopAtEnd(t, func(ctx context.Context) error { return server.DropDatabase(ctx, d.Name) })
	return d
}

// URL returns the database's address for a role (lab.Owner, lab.App or lab.Superuser), with its password.
func (d Database) URL(role lab.Role) string { return d.Server.SocketURL(role, d.Name) }

// SQL runs statements in the database as the superuser and returns the rows as text.
func (d Database) SQL(t testing.TB, statements string) string {
	t.Helper()
	out, err := d.Server.SQL(t.Context(), d.Name, statements)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// copyTo makes a database like this one, which nobody may be connected to, with an installation of its own. The files are
// copied: a server that does not sync has that done sooner than the pages written to its log.
func (d Database) copyTo(ctx context.Context, name string) error {
	_, err := d.Server.SQL(ctx, "postgres", fmt.Sprintf(`
		CREATE DATABASE %[1]s OWNER %[2]s TEMPLATE %[3]s STRATEGY file_copy;
		REVOKE ALL ON DATABASE %[1]s FROM PUBLIC;
		GRANT CONNECT ON DATABASE %[1]s TO %[4]s;
		\connect %[1]s
		UPDATE settings SET installation = gen_random_uuid()::text;`, name, lab.Owner, d.Name, lab.App))
	return err
}

// shared is the PostgreSQL server of the process. Its watchdog ends it with the process.
var shared sharedPostgres

type sharedPostgres struct {
	mu        sync.Mutex
	server    *lab.Postgres
	models    map[int]Database // migrated, by their number of shards
	databases atomic.Int64
}

func (s *sharedPostgres) get() (*lab.Postgres, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return s.server, nil
	}
	// Not a test's context: the server outlives the test that happens to be the first.
	p, err := lab.StartPostgres(context.Background(), lab.PostgresOptions{NoFsync: true})
	s.server = p
	return p, err
}

// model returns the migrated database that others are copied from. It goes with the server.
func (s *sharedPostgres) model(shards int, migrate func(Database) error) (Database, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, made := s.models[shards]; made {
		return d, nil
	}
	d := Database{Server: s.server, Name: fmt.Sprintf("model_%d", shards)}
	if err := d.Server.CreateDatabase(context.Background(), d.Name); err != nil {
		return d, err
	}
	if err := migrate(d); err != nil {
		return d, err
	}
	if s.models == nil {
		s.models = map[int]Database{}
	}
	s.models[shards] = d
	return d, nil
}

func (s *sharedPostgres) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		_ = s.server.Stop(context.Background())
	}
}
