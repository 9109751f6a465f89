package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Role is one of the three users every private PostgreSQL server has.
type Role string

// The roles. Owner owns the database and its schema and runs the migrations; App is what dropctl runs as:
// it may connect and owns nothing; Superuser is for set-up and faults.
const (
	Superuser Role = "postgres"
	Owner     Role = "dropctl_owner"
	App       Role = "dropctl_app"
)

// Database is the database every private server has; more are made with CreateDatabase.
const Database = "dropctl"

const pgpass = "pgpass" // the file psql takes the superuser's password from

// PostgresOptions says how the PostgreSQL server differs from the usual one. The zero value is fine.
type PostgresOptions struct {
	NoFsync     bool              // faster; commits survive kill -9 but not a crash of the machine
	Host        string            // an address besides 127.0.0.1 on which it listens, and where others find it; empty: none
	Settings    map[string]string // of postgresql.conf; they win over ours
	Under       []string          // a program with arguments that executes the server, such as env with variables
	WALDiskSize int64             // bytes of a disk of its own for the write-ahead log (see FillDisk), at least 40 MB; 0: none
}

// Postgres is a private PostgreSQL server. As root it runs as the user postgres, else nobody.
type Postgres struct {
	server
	port      int
	bin, psql string // the folder of its programs, the path of one
	options   PostgresOptions
	passwords map[Role]string
	upstream  string // of a standby: how it connects to its primary
}

// StartPostgres makes a new database cluster, starts a private server on it and waits until it answers. The
// context bounds the start only; the server runs until Stop. Errors: MissingBinary, Unsupported, Unavailable.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	passwords := map[Role]string{Superuser: newPassword(), Owner: newPassword(), App: newPassword()}
	p, err := newPostgres(ctx, o, passwords)
	if err != nil {
		return nil, err
	}
	if err := p.create(ctx); err != nil {
		_ = p.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return p, nil
}

// newPostgres finds the programs and makes the folder of a server; nothing runs yet.
func newPostgres(ctx context.Context, o PostgresOptions, passwords map[Role]string) (*Postgres, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	program, err := postgresProduct.find(ctx)
	if err != nil {
		return nil, err
	}
	p := &Postgres{options: o, passwords: passwords}
	p.program = "postgres"
	p.stopWith, p.farewell = "INT", "QUIT" // fast and immediate shutdown; SIGKILL would leak its shared memory
	p.ready = p.answers
	if p.bin, err = programFolder(program); err != nil {
		return nil, err
	}
	if p.psql, err = sibling(p.bin, "psql"); err != nil {
		return nil, err
	}
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	if p.home, err = newHome(owner); err != nil {
		return nil, err
	}
	if err := p.home.write(pgpass, "*:*:*:*:"+passwords[Superuser]+"\n"); err != nil {
		p.home.remove()
		return nil, fault.Wrap(fault.Unavailable, err, "cannot prepare psql")
	}
	return p, nil
}

func (p *Postgres) create(ctx context.Context) error {
	if p.options.WALDiskSize > 0 {
		if err := p.addDisk(ctx, p.options.WALDiskSize, "wal"); err != nil {
			return err
		}
	}
	if err := p.initialise(ctx); err != nil {
		return err
	}
	if err := p.startOnFreePort(ctx); err != nil {
		return err
	}
	return p.createRoles(ctx)
}

func (p *Postgres) startOnFreePort(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return err
		}
		p.port = port
		p.command = p.commandLine()
		if err = p.Start(ctx); err == nil {
			return nil
		}
		portTaken := p.PID() == 0 && !portFree(p.port) // taken between our look and the server's start
		if !portTaken || attempt == 3 {
			return err
		}
	}
}

// initialise makes the data folder. The password goes through a file that is removed afterwards.
func (p *Postgres) initialise(ctx context.Context) error {
	if err := p.home.write("password", p.passwords[Superuser]); err != nil {
		return fault.Wrap(fault.Unavailable, err, "cannot prepare PostgreSQL's folder")
	}
	defer func() { _ = p.home.root.Remove("password") }()

	args := []string{"--no-locale", "-E", "UTF8", "--no-sync", "-A", "scram-sha-256",
		"-U", string(Superuser), "--pwfile", p.home.path("password"), "-D", p.home.path("data")}
	if p.disk != nil {
		args = append(args, "--waldir", p.home.path("wal"))
	}
	if err := p.tool(ctx, "initdb", args...); err != nil || p.options.Host == "" {
		return err
	}
	const admitted = "local all all scram-sha-256\nhost all all samenet scram-sha-256\nlocal replication all scram-sha-256\n"
	if err := p.home.write("data/pg_hba.conf", admitted); err != nil {
		return fault.Wrap(fault.Unavailable, err, "cannot admit clients of another network")
	}
	return nil
}

// tool runs a program that comes with the server, as the server's user.
func (p *Postgres) tool(ctx context.Context, program string, args ...string) error {
	path, err := sibling(p.bin, program)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = p.home.dir
	cmd.Env = cleanEnv("PGPASSFILE="+p.home.path(pgpass), "PGCONNECT_TIMEOUT=10")
	cmd.SysProcAttr = detached(p.home.owner)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fault.As(ctx.Err())
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "%s failed: %s", program, oneLine(complaints(out))).
			WithHint("see that %s has room for a private server, or set TMPDIR to a folder that has", filepath.Dir(p.home.dir))
	}
	return nil
}

func (p *Postgres) commandLine() []string {
	settings := map[string]string{
		"listen_addresses":        loopback,
		"port":                    strconv.Itoa(p.port),
		"unix_socket_directories": p.Dir(),
		"unix_socket_permissions": "0700",
		"logging_collector":       "off",
		"log_destination":         "stderr",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"max_connections":         "200",
		// In the folder of the data, so that nothing is left elsewhere of a server that was killed.
		"dynamic_shared_memory_type": "mmap",
	}
	if p.options.Host != "" {
		settings["listen_addresses"] += "," + p.options.Host
	}
	if p.options.NoFsync {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, p.options.Settings)
	command := slices.Concat(p.options.Under, []string{filepath.Join(p.bin, "postgres"), "-D", p.home.path("data")})
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		command = append(command, "-c", name+"="+settings[name])
	}
	return command
}

// answers is nil once the server runs statements. Until its pid file says so it is not worth asking.
func (p *Postgres) answers(ctx context.Context) error {
	state, err := p.home.root.ReadFile("data/postmaster.pid")
	if err != nil || !bytes.Contains(state, []byte("\nready")) {
		return errors.New("it is still starting")
	}
	_, err = p.SQL(ctx, "postgres", "SELECT 1")
	return err
}

func (p *Postgres) createRoles(ctx context.Context) error {
	_, err := p.SQL(ctx, "postgres", fmt.Sprintf(`
		SET log_min_error_statement = panic; -- no password in the log, whatever happens
		CREATE ROLE %s LOGIN PASSWORD '%s';
		CREATE ROLE %s LOGIN PASSWORD '%s';`,
		Owner, p.passwords[Owner], App, p.passwords[App]))
	if err != nil {
		return err
	}
	return p.CreateDatabase(ctx, Database)
}

var databaseName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// CreateDatabase makes an empty database that Owner owns and App may connect to.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	if !databaseName.MatchString(name) {
		return fault.New(fault.Invalid, "a database name has 1–63 of a-z, 0-9 and _ and starts with a letter: %q", name)
	}
	_, err := p.SQL(ctx, "postgres", fmt.Sprintf(`
		CREATE DATABASE %[1]s OWNER %[2]s;
		REVOKE ALL ON DATABASE %[1]s FROM PUBLIC;
		GRANT CONNECT ON DATABASE %[1]s TO %[3]s;`, name, Owner, App))
	return err
}

// DropDatabase removes a database and ends the connections to it.
func (p *Postgres) DropDatabase(ctx context.Context, name string) error {
	if !databaseName.MatchString(name) {
		return fault.New(fault.Invalid, "not a database name: %q", name)
	}
	_, err := p.SQL(ctx, "postgres", fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", name))
	return err
}

// SQL runs statements as the superuser, each in a transaction of its own, and returns the rows as text: one
// a line, columns separated by "|". For set-up and faults; not meant to be fast.
func (p *Postgres) SQL(ctx context.Context, database, statements string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.psql, "-X", "-q", "-A", "-t", "-w", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=terse",
		"-h", p.Dir(), "-p", strconv.Itoa(p.port), "-U", string(Superuser), "-d", database, "-f", "-")
	cmd.Env = cleanEnv("PGPASSFILE="+p.home.path(pgpass), "PGCONNECT_TIMEOUT=10")
	cmd.Stdin = strings.NewReader(statements)
	cmd.WaitDelay = time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fault.Wrap(fault.Unavailable, err, "the private PostgreSQL: %s", oneLine(problems.Bytes()))
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

// Addr returns the TCP address, "127.0.0.1:port", with the host of its options if they named one. It stays the same for
// the server's whole life.
func (p *Postgres) Addr() string {
	return net.JoinHostPort(cmp.Or(p.options.Host, loopback), strconv.Itoa(p.port))
}

// Socket returns the path of the unix socket.
func (p *Postgres) Socket() string { return p.home.path(fmt.Sprintf(".s.PGSQL.%d", p.port)) }

// URL returns the address for clients over TCP. It contains the role's password.
func (p *Postgres) URL(role Role, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(string(role), p.passwords[role]),
		Host: p.Addr(), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// SocketURL returns the address for clients over the unix socket. It contains the role's password. Only the
// user of the server and root can enter the folder of the socket.
func (p *Postgres) SocketURL(role Role, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(string(role), p.passwords[role]), Path: "/" + database,
		RawQuery: url.Values{"host": {p.Dir()}, "port": {strconv.Itoa(p.port)}}.Encode(),
	}
	return u.String()
}

// programFolder resolves links: the program finds its libraries and siblings from where it really is.
func programFolder(program string) (string, error) {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return "", fault.Wrap(fault.MissingBinary, err, "cannot find %s", program)
	}
	return filepath.Dir(real), nil
}

// sibling finds a program that comes with the server: beside it, else in PATH.
func sibling(folder, program string) (string, error) {
	path := filepath.Join(folder, program)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	return "", fault.New(fault.MissingBinary, "PostgreSQL is in %s but its program %s is not installed", folder, program).
		WithHint("install it: %s", postgresProduct.installCommand())
}

// complaints leaves of what a program has written the lines that say what is wrong; all of it, if none does.
func complaints(text []byte) []byte {
	var wrong []byte
	for line := range bytes.Lines(text) {
		for _, word := range []string{"FATAL", "PANIC", "ERROR", "error:"} {
			if bytes.Contains(line, []byte(word)) {
				wrong = append(wrong, line...)
				break
			}
		}
	}
	if len(wrong) == 0 {
		return text
	}
	return wrong
}

func oneLine(text []byte) string {
	return strings.Join(strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' || r == '\r' }), " | ")
}
