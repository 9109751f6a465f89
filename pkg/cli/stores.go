package cli

import (
	"context"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// openStores opens both stores of one installation. The caller closes them.
func (a *app) openStores(ctx context.Context) (*ledger.Ledger, *stock.Stock, error) {
	// A missing setting is found before anything is dialled.
	if _, err := a.cfg.Redis(a.getenv); err != nil {
		return nil, nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, err := wire.OpenLedger(ctx, a.cfg, a.getenv)
	if err != nil {
		return nil, nil, err
	}
	s, err := wire.OpenStock(a.cfg, a.getenv, l.Installation())
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, s, nil
}

// openStock opens Redis alone, for what has to work while PostgreSQL is down. The caller closes it.
func (a *app) openStock(ctx context.Context) (*stock.Stock, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return wire.OpenStockAlone(ctx, a.cfg, a.getenv)
}
