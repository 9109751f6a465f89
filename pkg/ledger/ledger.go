// Package ledger is the PostgreSQL side: it decides for good. It issues epochs, applies events exactly once
// and in order, finalises sales, and answers what was recorded. It alone imports pgx and the migrations.
//
// Every method is safe for concurrent use, by many goroutines and many processes. Every method may return
// fault.Unavailable when the server does not answer; repeating the call is then always right.
package ledger

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Options say how to reach PostgreSQL.
type Options struct {
	URL         string        // postgres://user@host/database or key=value pairs; PGPASSFILE is honoured
	Password    string        // overrides one in the URL; "" keeps it
	Application string        // what pg_stat_activity shows
	MaxConns    int           // 0: 8
	Timeout     time.Duration // of one statement; a call takes at most twice as long; 0: 15 s
	Space       string        // keeps apart what is measured or rehearsed, see space.go; "": the shop itself
}

// DefaultTimeout bounds a statement where Options say nothing.
const DefaultTimeout = 15 * time.Second

// Ledger is a pool of connections to one migrated database. Its methods may be called by many goroutines at once. A call
// takes twice Options.Timeout at the most; what reads in pages, for each page. It returns fault.Unavailable where the server
// does not answer, and what it names itself.
type Ledger struct {
	pool         *pgxpool.Pool
	locks        *pgxpool.Pool // for advisory locks, which are held while calls need connections too
	timeout      time.Duration
	target       string
	class        int32 // first key of the advisory locks
	installation Installation
	opened       atomic.Bool // the installation is known
}

// Installation tells one dropctl from another. Events of another one are refused.
type Installation struct {
	ID     string
	Shards int // P
}

// Open connects and checks the schema: fault.NotMigrated if it is absent or older than this program.
func Open(ctx context.Context, o Options) (*Ledger, error) {
	cfg, err := o.poolConfig()
	if err != nil {
		return nil, err
	}
	l := &Ledger{timeout: o.timeout(), target: targetOf(cfg.ConnConfig), class: o.lockClass()}
	cfg.AfterConnect = l.stillOurs
	if l.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, l.fail(err, "connecting")
	}
	cfg = cfg.Copy()
	cfg.MaxConns = lockConns
	if l.locks, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		l.pool.Close()
		return nil, l.fail(err, "connecting")
	}
	if err := l.checkSchema(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// closeLimit is how long the end of the connections may take: whoever stops does not wait for a server that hangs.
const closeLimit = 2 * time.Second

// Close ends all connections. It waits for calls under way, for locks to be given back and for the server's farewell, two
// seconds in all; whatever hangs longer ends with the process.
func (l *Ledger) Close() {
	var pools sync.WaitGroup
	closed := make(chan struct{})
	pools.Go(l.pool.Close)
	pools.Go(l.locks.Close)
	go func() { pools.Wait(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(closeLimit):
	}
}

// Target names the server and database for people; it holds no secret.
func (l *Ledger) Target() string { return l.target }

// Installation returns whose ledger this is, as it was when it was opened.
func (l *Ledger) Installation() Installation { return l.installation }

// Server names the server with its timeline and the start of its process, and the one that the database itself
// remembers. They differ when a standby was promoted, or the server was started again, perhaps with files put back
// or moved, since SetServer was called: what was acknowledged before may be missing here. Any process can tell, also
// one that was not running at the time. unsent are the shards of which even the remembered one may lack something.
func (l *Ledger) Server(ctx context.Context) (now, remembered string, unsent []int, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	err = l.pool.QueryRow(ctx, `SELECT c.system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' || extract(epoch FROM pg_postmaster_start_time()), s.server, s.unsent
		FROM pg_control_system() c, settings s`).Scan(&now, &remembered, &unsent)
	return now, remembered, unsent, l.fail(err, "asking which server it is")
}

// SetServer remembers a server, as Server named it, as one that has everything that was ever acknowledged, but for some shards.
func (l *Ledger) SetServer(ctx context.Context, server string, unsent []int) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.pool.Exec(ctx, `UPDATE settings SET server = $1, unsent = coalesce($2::integer[], '{}')`, server, unsent)
	return l.fail(err, "remembering the server")
}

func (l *Ledger) checkSchema(ctx context.Context) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	applied, err := appliedSteps(ctx, l.pool)
	if err != nil {
		return l.fail(err, "reading the schema version")
	}
	known, err := knownSteps()
	if err != nil {
		return l.fail(err, "reading the migrations")
	}
	if missing := pendingSteps(known, applied); len(missing) > 0 {
		return fault.New(fault.NotMigrated, "the database %s lacks migration %s", l.target, missing[0].Name)
	}
	l.installation, err = readInstallation(ctx, l.pool)
	if errors.Is(err, pgx.ErrNoRows) {
		return fault.New(fault.NotMigrated, "the database %s has no installation id", l.target)
	}
	l.opened.Store(err == nil)
	return l.fail(err, "reading the installation")
}

// stillOurs refuses a connection to another installation's database: the same address may lead to one after a failover. What
// is recorded there would be acknowledged here, and lost.
func (l *Ledger) stillOurs(ctx context.Context, conn *pgx.Conn) error {
	if !l.opened.Load() {
		return nil
	}
	there, err := readInstallation(ctx, conn)
	if err == nil && there != l.installation {
		err = fault.New(fault.Foreign, "the database %s belongs to the installation %s, and was that of %s when this began", l.target, there.ID, l.installation.ID)
	}
	return err
}

// within bounds a whole call, so that a server that went silent cannot hold it for ever.
func (l *Ledger) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 2*l.timeout)
}

// Target names the server and database for people, as Ledger.Target does. It dials nothing.
func (o Options) Target() (string, error) {
	cfg, err := o.poolConfig()
	if err != nil {
		return "", err
	}
	return targetOf(cfg.ConnConfig), nil
}

func (o Options) timeout() time.Duration {
	if o.Timeout <= 0 {
		return DefaultTimeout
	}
	return o.Timeout
}

// poolConfig reads the URL. The error never repeats it: it may hold a password.
func (o Options) poolConfig() (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, fault.New(fault.InvalidConfig, "the database URL cannot be read").WithField("database-url").
			WithHint("use postgres://USER@HOST:PORT/DATABASE, or key=value pairs")
	}
	if o.Password != "" {
		cfg.ConnConfig.Password = o.Password
	}
	cfg.MaxConns = 8
	if o.MaxConns > 0 {
		cfg.MaxConns = int32(min(o.MaxConns, 1000))
	}
	cfg.ConnConfig.ConnectTimeout = min(o.timeout(), 10*time.Second)
	limit := millisText(o.timeout())
	set := cfg.ConnConfig.RuntimeParams
	if o.Application != "" {
		set["application_name"] = o.Application
	}
	if o.Space != "" {
		set["search_path"] = pgx.Identifier{schemaOf(o.Space)}.Sanitize()
		set["application_name"] = schemaOf(o.Space) // which says that the space is in use
	}
	set["statement_timeout"] = limit
	set["lock_timeout"] = millisText(o.timeout() / 3)
	set["idle_in_transaction_session_timeout"] = limit
	set["timezone"] = "UTC"
	// Our tables grow from nothing to millions of rows within one connection's life: a plan kept from the
	// beginning would be wrong later.
	set["plan_cache_mode"] = "force_custom_plan"
	// Compiling a statement takes longer than any of ours runs, and the planner's guesses about small tables provoke it.
	set["jit"] = "off"
	return cfg, nil
}

func millisText(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func targetOf(cfg *pgx.ConnConfig) string {
	if strings.HasPrefix(cfg.Host, "/") {
		return cfg.Host + "/" + cfg.Database
	}
	return net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))) + "/" + cfg.Database
}
