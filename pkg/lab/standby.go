package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
)

// StartStandby starts a PostgreSQL that streams from p, with p's options and passwords, and waits until it has what
// p has committed so far. Synchronous: from then on p answers a commit only when the standby has it on disk, too.
// The context bounds the start only. Errors are those of StartPostgres.
func (p *Postgres) StartStandby(ctx context.Context, synchronous bool) (*Postgres, error) {
	o := p.options
	o.WALDiskSize = 0
	standby, err := newPostgres(ctx, o, p.passwords)
	if err != nil {
		return nil, err
	}
	name := "standby_" + strings.ToLower(rand.Text()[:10])
	err = standby.copyFrom(ctx, p, name)
	if err == nil && synchronous {
		err = p.commitWith(ctx, name)
	}
	if err != nil {
		_ = standby.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return standby, nil
}

// copyFrom fills the data folder from the primary and starts streaming under that name. A replication slot keeps
// what the standby has not got yet.
func (p *Postgres) copyFrom(ctx context.Context, primary *Postgres, name string) error {
	err := p.tool(ctx, "pg_basebackup", "-h", primary.Dir(), "-p", strconv.Itoa(primary.port), "-U", string(Superuser), "-w",
		"-D", p.home.path("data"), "--wal-method", "stream", "--checkpoint", "fast", "--no-sync", "--create-slot", "--slot", name)
	if err != nil {
		return err
	}
	p.upstream = fmt.Sprintf("host=127.0.0.1 port=%d user=%s passfile=%s application_name=%s sslmode=disable",
		primary.port, Superuser, quote(p.home.path(pgpass)), name)
	// In this file, not on the command line, so that CutReplication can change it.
	settings := "primary_conninfo = " + quote(p.upstream) + "\nprimary_slot_name = " + quote(name) + "\n"
	err = p.home.write("data/postgresql.auto.conf", settings)
	if err == nil {
		err = p.home.write("data/standby.signal", "")
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "cannot prepare the standby's folder")
	}
	if err := p.startOnFreePort(ctx); err != nil {
		return err
	}
	return p.AwaitCopy(ctx, primary)
}

// commitWith makes p wait with each commit for the standby of that name.
func (p *Postgres) commitWith(ctx context.Context, name string) error {
	_, err := p.SQL(ctx, "postgres", "ALTER SYSTEM SET synchronous_standby_names = "+quote(name)+"; SELECT pg_reload_conf()")
	if err != nil {
		return err
	}
	return p.awaitSQL(ctx, "the synchronous replication", "sync",
		"SELECT sync_state FROM pg_stat_replication WHERE application_name = "+quote(name))
}

// AwaitCopy waits until the standby p shows all that the primary had committed when the call began.
// It gives up with Unavailable after 60 s.
func (p *Postgres) AwaitCopy(ctx context.Context, primary *Postgres) error {
	target, err := primary.SQL(ctx, "postgres", "SELECT pg_current_wal_flush_lsn()")
	if err != nil {
		return err
	}
	return p.awaitSQL(ctx, "the copy of the primary", "t",
		fmt.Sprintf("SELECT pg_last_wal_replay_lsn() >= %s AND EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')", quote(target)))
}

// CutReplication lets the standby p have all that its primary had committed when the call began and nothing that is
// committed after it has returned, until HealReplication. Both servers go on and can be reached. The commits of a
// primary with a synchronous standby wait from then on.
func (p *Postgres) CutReplication(ctx context.Context, primary *Postgres) error {
	if err := p.AwaitCopy(ctx, primary); err != nil {
		return err
	}
	if _, err := p.SQL(ctx, "postgres", "ALTER SYSTEM RESET primary_conninfo; SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return p.awaitSQL(ctx, "the end of the replication", "0", "SELECT count(*) FROM pg_stat_wal_receiver")
}

// HealReplication ends what CutReplication began. The standby catches up on its own; see AwaitCopy.
func (p *Postgres) HealReplication(ctx context.Context) error {
	_, err := p.SQL(ctx, "postgres", "ALTER SYSTEM SET primary_conninfo = "+quote(p.upstream)+"; SELECT pg_reload_conf()")
	return err
}

// Promote makes the standby a primary with what it has, on a new timeline, and waits until it accepts writes.
// The former primary is not told.
func (p *Postgres) Promote(ctx context.Context) error {
	if _, err := p.SQL(ctx, "postgres", "SELECT pg_promote(wait => false)"); err != nil {
		return err
	}
	return p.awaitSQL(ctx, "the promotion of the standby", "f", "SELECT pg_is_in_recovery()")
}

func (p *Postgres) awaitSQL(ctx context.Context, what, want, query string) error {
	return await(ctx, what, func(ctx context.Context) error {
		got, err := p.SQL(ctx, "postgres", query)
		if err == nil && got != want {
			err = errors.New("not yet")
		}
		return err
	})
}

// quote makes a literal of SQL or of postgresql.conf, or the value of a connection string if it has no quotes itself.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
