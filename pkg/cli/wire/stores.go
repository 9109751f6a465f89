package wire

import (
	"context"
	"net/url"
	"strings"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// OpenLedger opens the PostgreSQL that the settings name.
func OpenLedger(ctx context.Context, cfg *config.Config, getenv func(string) string) (*ledger.Ledger, error) {
	o, err := LedgerOptions(cfg, getenv)
	if err != nil {
		return nil, err
	}
	return ledger.Open(ctx, o)
}

// LedgerOptions says how to reach the PostgreSQL that the settings name.
func LedgerOptions(cfg *config.Config, getenv func(string) string) (ledger.Options, error) {
	t, err := cfg.Database(getenv)
	if err != nil {
		return ledger.Options{}, err
	}
	o := ledger.Options{URL: t.URL.Reveal(), Application: "dropctl", Timeout: cfg.Timeout}
	if !t.URL.HasPassword() {
		o.Password = t.Password.Reveal()
	}
	return o, nil
}

// Service is how a process treats Redis that goes on for long: it counts what it does, and refuses calls at once while a
// server does not answer.
func Service(m *telemetry.Metrics) func(*stock.Options) {
	return func(o *stock.Options) { o.Breaker, o.Metrics = true, m.Engine }
}

// OpenStock prepares the Redis that the settings name, as part of the ledger's installation. It dials nothing.
func OpenStock(cfg *config.Config, getenv func(string) string, in ledger.Installation, as ...func(*stock.Options)) (*stock.Stock, error) {
	t, err := cfg.Redis(getenv)
	if err != nil {
		return nil, err
	}
	o := stock.Options{URL: t.URL.Reveal(), Installation: in.ID, Shards: in.Shards,
		DialTimeout: cfg.RedisDialTimeout, Timeout: cfg.RedisTimeout, KeyRetention: cfg.KeyRetention, OutboxMaxBytes: int64(cfg.OutboxMaxBytes),
		Durability: cfg.Durability, DurabilityWait: min(cfg.DurabilityWait, cfg.Timeout), AttestedFsync: cfg.Attested["redis-appendfsync"]}
	if !t.URL.HasPassword() {
		o.Password = t.Password.Reveal()
	}
	if scheme, rest, ok := strings.Cut(o.URL, "://"); ok && t.Username != "" && !strings.Contains(rest, "@") {
		o.URL = scheme + "://" + url.User(t.Username).String() + "@" + rest
	}
	for _, set := range as {
		set(&o)
	}
	return stock.Open(o)
}

// OpenStockAlone prepares Redis without a look at the ledger: for what must work while PostgreSQL is down. The
// installation is the one that Redis has, and stays it; the number of shards too, or the settings' if Redis has none yet.
func OpenStockAlone(ctx context.Context, cfg *config.Config, getenv func(string) string, as ...func(*stock.Options)) (*stock.Stock, error) {
	s, err := OpenStock(cfg, getenv, ledger.Installation{Shards: cfg.Shards}, as...)
	if err != nil {
		return nil, err
	}
	owner, shards, err := s.SetUp(ctx)
	switch {
	case err == nil && owner == "": // it has nothing yet
		return s, nil
	case err == nil && shards == s.Shards():
		s.Belong(owner)
		return s, nil
	}
	_ = s.Close()
	if err != nil {
		return nil, err
	}
	return OpenStock(cfg, getenv, ledger.Installation{ID: owner, Shards: shards}, as...)
}
