package wire

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// RealShop is what the servers of the settings are used for already.
type RealShop struct {
	Lots   int    // that are not archived, in Redis or in the ledger
	Shards int    // P
	Redis  string // targets, for people; they hold no secret
	Ledger string
}

// LookAtShop finds out whether the servers of the settings have a shop with lots. One that was never set up has none.
func LookAtShop(ctx context.Context, cfg *config.Config, getenv func(string) string) (r RealShop, err error) {
	if r.Shards = cfg.Shards; r.Shards == 0 {
		r.Shards = ledger.DefaultShards
	}
	o, err := LedgerOptions(cfg, getenv)
	if err == nil {
		r.Ledger, err = o.Target()
	}
	if err != nil {
		return r, err
	}
	lots := map[drop.LotID]bool{}
	l, err := ledger.Open(ctx, o)
	switch {
	case err == nil:
		defer l.Close()
		r.Shards = l.Installation().Shards
		known, err := l.Lots(ctx, nil)
		if err != nil {
			return r, err
		}
		for _, lot := range known {
			lots[lot.Lot] = true
		}
	case !fault.Is(err, fault.NotMigrated):
		return r, err
	}
	s, err := OpenStockAlone(ctx, cfg, getenv)
	if err != nil {
		return r, err
	}
	defer func() { _ = s.Close() }()
	r.Redis = s.Target()
	loaded, err := s.Lots(ctx)
	for _, lot := range loaded {
		lots[lot] = true
	}
	r.Lots = len(lots)
	return r, err
}

// Space is a place of its own on the servers of the settings, for what is measured or rehearsed there: keys and a schema
// that the shop does not see.
type Space struct {
	Name   string
	Ledger *ledger.Ledger
	Stock  *stock.Stock

	options ledger.Options
	release func()
}

// OpenSpace makes a space with an installation of its own. The caller owes Drop. What it cannot drop, as when the process is
// killed, SweepSpaces does later.
func OpenSpace(ctx context.Context, cfg *config.Config, getenv func(string) string, shards int, as ...func(*stock.Options)) (sp *Space, err error) {
	sp = &Space{Name: strings.ToLower(rand.Text()[:12])}
	if sp.options, err = LedgerOptions(cfg, getenv); err != nil {
		return nil, err
	}
	sp.options.Space = sp.Name
	as = append(as, func(o *stock.Options) { o.Space = sp.Name })
	if sp.Stock, err = OpenStock(cfg, getenv, ledger.Installation{Shards: shards}, as...); err != nil {
		return nil, err
	}
	if sp.release, err = ledger.MakeSpace(ctx, sp.options, sp.Stock.Target()); err != nil {
		return nil, errors.Join(err, sp.Stock.Close())
	}
	if err := sp.setUp(ctx, shards); err != nil {
		return nil, errors.Join(err, sp.Drop(ctx))
	}
	return sp, nil
}

func (sp *Space) setUp(ctx context.Context, shards int) (err error) {
	if _, err = ledger.MigrateUp(ctx, sp.options, ledger.MigrateOptions{Shards: shards}); err != nil {
		return err
	}
	if sp.Ledger, err = ledger.Open(ctx, sp.options); err != nil {
		return err
	}
	sp.Stock.Belong(sp.Ledger.Installation().ID)
	return nil
}

// dropTime is what the end of a space may take, whatever the servers do.
const dropTime = 2 * time.Minute

// Drop closes both stores and removes the space, also if ctx has ended. Nobody may use it any more. The keys go first: as
// long as there is the schema, the next sweep finds what is left.
func (sp *Space) Drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTime)
	defer cancel()
	defer sp.release()
	if sp.Ledger != nil {
		sp.Ledger.Close()
	}
	err := sp.Stock.Erase(ctx)
	err = cmp.Or(err, sp.Stock.Close())
	if err == nil {
		err = ledger.DropSpace(ctx, sp.options)
	}
	if err != nil {
		return fmt.Errorf("the space %s could not be removed, the next run will try again: %w", sp.Name, err)
	}
	return nil
}

// SweepSpaces removes the spaces on the servers of the settings that were left by processes that were killed. It returns
// those that are gone, and goes on with the next where one cannot be removed.
func SweepSpaces(ctx context.Context, cfg *config.Config, getenv func(string) string, redis string) (swept []string, err error) {
	o, err := LedgerOptions(cfg, getenv)
	if err != nil {
		return nil, err
	}
	names, done, err := ledger.AbandonedSpaces(ctx, o, redis)
	if err != nil {
		return nil, err
	}
	defer done()
	var errs []error
	for _, name := range names {
		sp := Space{Name: name, options: o, release: func() {}}
		sp.options.Space = name
		sp.Stock, err = OpenStock(cfg, getenv, ledger.Installation{Shards: 1}, func(o *stock.Options) { o.Space = name })
		if err == nil {
			err = sp.Drop(ctx)
		}
		if errs = append(errs, err); err == nil {
			swept = append(swept, name)
		}
	}
	return swept, errors.Join(errs...)
}
