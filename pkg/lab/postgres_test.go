//go:build unix

package lab

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/fault"
)

func startTestPostgres(t *testing.T, o PostgresOptions) *Postgres {
	t.Helper()
	p, err := StartPostgres(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func pgExec(t *testing.T, address, sql string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), sql)
	return err
}

// TestSharedMemoryGoesWithTheData: a server that is killed clears nothing away, so its memory is a file in its own folder.
func TestSharedMemoryGoesWithTheData(t *testing.T) {
	t.Parallel()
	p := startTestPostgres(t, PostgresOptions{NoFsync: true})
	if files, err := filepath.Glob(filepath.Join(p.home.path("data"), "pg_dynshmem", "mmap.*")); err != nil || len(files) == 0 {
		t.Fatalf("no shared memory in the folder of the data: %v, %v", files, err)
	}
}

func TestPostgresRoles(t *testing.T) {
	t.Parallel()
	p := startTestPostgres(t, PostgresOptions{NoFsync: true, Settings: map[string]string{"max_connections": "33"}})
	for _, address := range []func(Role, string) string{p.URL, p.SocketURL} {
		if err := pgExec(t, address(Owner, Database), "CREATE TABLE t (id int); DROP TABLE t"); err != nil {
			t.Errorf("the owner cannot make tables: %v", err)
		}
		if err := pgExec(t, address(App, Database), "SELECT 1"); err != nil {
			t.Errorf("the application cannot connect: %v", err)
		}
		if err := pgExec(t, address(App, Database), "CREATE TABLE t (id int)"); err == nil {
			t.Error("the application can make tables")
		}
		if err := pgExec(t, strings.Replace(address(App, Database), p.passwords[App], "wrong", 1), "SELECT 1"); err == nil {
			t.Error("a wrong password is accepted")
		}
	}
	if got, err := p.SQL(t.Context(), Database, "SHOW max_connections; SHOW server_encoding; SELECT 1, 2"); err != nil || got != "33\nUTF8\n1|2" {
		t.Errorf("got %q, %v", got, err)
	}
	if os.Geteuid() == 0 {
		info, err := os.Stat(p.Dir())
		if err != nil {
			t.Fatal(err)
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid == 0 || info.Mode().Perm() != 0o700 {
			t.Errorf("the folder has owner %d and mode %v", uid, info.Mode())
		}
	}
}

func TestPostgresDatabases(t *testing.T) {
	long(t)
	t.Parallel()
	p := startTestPostgres(t, PostgresOptions{NoFsync: true})
	if err := p.CreateDatabase(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	if err := pgExec(t, p.URL(Owner, "second"), "CREATE TABLE t (id int)"); err != nil {
		t.Error(err)
	}
	if err := p.DropDatabase(t.Context(), "second"); err != nil {
		t.Error(err)
	}
	if err := pgExec(t, p.URL(Owner, "second"), "SELECT 1"); err == nil {
		t.Error("a dropped database accepts connections")
	}
	for _, name := range []string{"", "a b", "x;drop", "Ä", strings.Repeat("a", 64)} {
		if err := p.CreateDatabase(t.Context(), name); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q gives %v", name, err)
		}
	}
	_, err := p.SQL(t.Context(), Database, "SELECT nonsense")
	if err == nil {
		t.Fatal("no error")
	}
	mustContain(t, err.Error(), `column "nonsense" does not exist`)
}

func TestPostgresKeepsDataAndAddress(t *testing.T) {
	long(t)
	t.Parallel()
	p := startTestPostgres(t, PostgresOptions{NoFsync: true})
	address := p.URL(Owner, Database)
	if err := pgExec(t, address, "CREATE TABLE sales (n int)"); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pgExec(t, address, "INSERT INTO sales VALUES (7)"); err != nil {
		t.Fatal(err)
	}

	// A statement that runs while the server is killed must not keep it from starting again.
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	running := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(600)")
		running <- err
	}()
	first := p.PID()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-running; err == nil {
		t.Error("the statement survived the kill")
	}
	if processExists(first) {
		t.Error("it still runs")
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := p.SQL(t.Context(), Database, "SELECT n FROM sales"); err != nil || got != "7" {
		t.Errorf("got %q, %v", got, err)
	}
	if p.URL(Owner, Database) != address {
		t.Error("the address changed")
	}
}

func TestPostgresStartFailureQuotesTheLog(t *testing.T) {
	long(t)
	t.Parallel()
	_, err := StartPostgres(t.Context(), PostgresOptions{NoFsync: true, Settings: map[string]string{"no_such_setting": "1"}})
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("got %v", err)
	}
	mustContain(t, err.Error(), "did not start: exit status", "no_such_setting")
}

func TestPostgresPasswordsAreNotInTheProcessList(t *testing.T) {
	long(t)
	t.Parallel()
	p := startTestPostgres(t, PostgresOptions{NoFsync: true})
	for _, password := range p.passwords {
		for _, arg := range append(p.command, p.dog.shell.Args...) {
			if strings.Contains(arg, password) {
				t.Errorf("argument %q has a password", arg)
			}
		}
		if log := p.home.logTail(); strings.Contains(log, password) {
			t.Error("the log has a password")
		}
	}
	if _, err := os.Stat(p.home.path("password")); !os.IsNotExist(err) {
		t.Errorf("the password file is still there: %v", err)
	}
}
