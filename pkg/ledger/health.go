package ledger

import (
	"context"
	_ "embed"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// health is what is being found out.
type health struct{ drop.LedgerHealth }

// ReadHealth asks the server on one connection, set up as every connection of dropctl. It works without a schema. What
// it may not ask is part of the answer; the error says that the server cannot be used at all.
func ReadHealth(ctx context.Context, o Options) (drop.LedgerHealth, error) {
	cfg, err := o.poolConfig()
	if err != nil {
		return drop.LedgerHealth{}, err
	}
	target := targetOf(cfg.ConnConfig)
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return drop.LedgerHealth{}, failure(target, err, "connecting")
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	h := health{drop.LedgerHealth{PoolConns: int(cfg.MaxConns) + lockConns, Unknown: map[string]string{}}}
	if err := h.askServer(ctx, conn); err != nil {
		return drop.LedgerHealth{}, failure(target, err, "asking which server it is")
	}
	for _, q := range []struct {
		name string
		ask  func(context.Context, *pgx.Conn) error
	}{
		{"connections", h.askConnections}, {"migrations", h.askSteps}, {"grants", h.askGrants}, {"rights", h.askRights}, {"triggers", h.askTriggers},
		{"installation", h.askOwner}, {"lots", h.askLots}, {"pace", h.askPace}, {"dead letters", h.askDead}, {"payments", h.askPayments}, {"hooks", h.askHooks}, {"workers", h.askWorkers},
	} {
		err := q.ask(ctx, conn)
		if conn.IsClosed() {
			return drop.LedgerHealth{}, failure(target, err, "asking about "+q.name)
		}
		if err != nil {
			h.Unknown[q.name] = fault.As(failure(target, err, "asking about "+q.name)).Error()
		}
	}
	return h.LedgerHealth, nil
}

// judgedSettings are the settings of a session that are looked at.
var judgedSettings = []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
	"fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names"}

func (h *health) askServer(ctx context.Context, conn *pgx.Conn) error {
	start := time.Now()
	var clock time.Time
	if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&clock); err != nil {
		return err
	}
	h.Doubt = max(time.Since(start)/2, 1)
	h.Offset = clock.Sub(start.Add(h.Doubt))
	err := conn.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(), current_user, rolsuper
		FROM pg_roles WHERE rolname = current_user`).Scan(&h.Version, &h.Number, &h.Standby, &h.Role, &h.Superuser)
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, `SELECT name, current_setting(name) FROM unnest($1::text[]) name`, judgedSettings)
	if err != nil {
		return err
	}
	h.Settings = map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error { h.Settings[name] = value; return nil })
	return err
}

// askConnections counts all connections. Other roles' are not shown one by one, but their number is.
func (h *health) askConnections(ctx context.Context, conn *pgx.Conn) error {
	return conn.QueryRow(ctx, `SELECT (SELECT sum(numbackends)::int FROM pg_stat_database), (SELECT count(*) FROM pg_stat_replication),
		least(current_setting('max_connections')::int - CASE WHEN rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int END,
			nullif(rolconnlimit, -1), nullif(datconnlimit, -1))
		FROM pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()`).Scan(&h.Backends, &h.Replicas, &h.MaxConns)
}

func (h *health) askSteps(ctx context.Context, conn *pgx.Conn) error {
	applied, err := appliedSteps(ctx, conn)
	if err != nil {
		return err
	}
	known, err := knownSteps()
	if err != nil {
		return err
	}
	for _, step := range pendingSteps(known, applied) {
		h.Pending = append(h.Pending, step.Name)
	}
	for version := range applied {
		if version > known[len(known)-1].Version {
			h.Newer = append(h.Newer, version)
		}
	}
	return nil
}

//go:embed sql/health_lacking.sql
var lackingSQL string

// grant is a statement of grants.sql that gives rights on tables.
var grant = regexp.MustCompile(`GRANT ([A-Z, ]+?) ?(?:\(([a-z_, ]+)\))? ON ([a-z_, ]+) TO`)

// askGrants finds out which of the rights that a migration grants the role does not have.
func (h *health) askGrants(ctx context.Context, conn *pgx.Conn) error {
	var tables, columns, rights []string
	for _, g := range grant.FindAllStringSubmatch(grantsSQL, -1) {
		for _, table := range strings.Split(g[3], ", ") {
			for _, column := range strings.Split(g[2], ", ") {
				for _, right := range strings.Split(g[1], ", ") {
					tables, columns, rights = append(tables, table), append(columns, column), append(rights, right)
				}
			}
		}
	}
	rows, err := conn.Query(ctx, lackingSQL, tables, columns, rights)
	if err != nil {
		return err
	}
	h.Lacking, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

//go:embed sql/health_rights.sql
var rightsSQL string

// writtenOnce are the tables whose rows stay as they were written.
var writtenOnce = []string{"reservation_events", "order_ledger"}

func (h *health) askRights(ctx context.Context, conn *pgx.Conn) error {
	return conn.QueryRow(ctx, rightsSQL, writtenOnce).Scan(&h.Owned, &h.Changeable)
}

//go:embed sql/health_triggers.sql
var triggersSQL string

func (h *health) askTriggers(ctx context.Context, conn *pgx.Conn) error {
	return conn.QueryRow(ctx, triggersSQL, writtenOnce).Scan(&h.Unguarded)
}

func (h *health) askOwner(ctx context.Context, conn *pgx.Conn) error {
	in, err := readInstallation(ctx, conn)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	h.ID, h.Shards = in.ID, in.Shards
	return err
}

func (h *health) askLots(ctx context.Context, conn *pgx.Conn) (err error) {
	rows, err := conn.Query(ctx, `SELECT lot, seq, waiting, seen FROM lots`)
	if err != nil {
		return err
	}
	p := &h.Progress
	var lot drop.LedgerLot
	var waiting int64
	_, err = pgx.ForEachRow(rows, []any{&lot.Lot, &lot.Seq, &waiting, &lot.Seen}, func() error {
		if p.Lots = append(p.Lots, lot); lot.Seen {
			h.Seen++
		}
		p.Waiting += waiting
		return nil
	})
	if err != nil {
		return err
	}
	h.Stopped, err = readStopped(ctx, conn)
	return err
}

func (h *health) askPace(ctx context.Context, conn *pgx.Conn) (err error) {
	h.Progress.Pace, err = readPace(ctx, conn)
	return err
}

func (h *health) askDead(ctx context.Context, conn *pgx.Conn) (err error) {
	h.Dead, err = countDead(ctx, conn)
	return err
}

func (h *health) askPayments(ctx context.Context, conn *pgx.Conn) (err error) {
	h.Payments, err = readPayments(ctx, conn)
	return err
}

func (h *health) askHooks(ctx context.Context, conn *pgx.Conn) (err error) {
	h.Hooks, err = readHooks(ctx, conn)
	return err
}

func (h *health) askWorkers(ctx context.Context, conn *pgx.Conn) error {
	return conn.QueryRow(ctx, `SELECT coalesce(array_agg(version), '{}'), ARRAY(SELECT DISTINCT unnest(parts) FROM workers WHERE seen_at >= now() - $1::interval ORDER BY 1)
		FROM workers WHERE seen_at >= now() - $1::interval`, WorkerLife).Scan(&h.Versions, &h.Parts)
}
