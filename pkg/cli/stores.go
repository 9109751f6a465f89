package cli

import (
	"context"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// openStores opens both stores of one installation. The caller closes them.
func (a *app) openStores(ctx context.Context, as ...func(*stock.Options)) (*ledger.Ledger, *stock.Stock, error) {
	// A missing setting is found before anything is dialled.
	if _, err := a.cfg.Redis(a.getenv); err != nil {
		return nil, nil, err
	}
	l, err := a.openLedger(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := wire.OpenStock(a.cfg, a.getenv, l.Installation(), as...)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, s, nil
}

// openOneShop opens both stores, unless Redis has the data of another installation: that it lacks a lot says nothing about ours.
// Where a server does not answer, what follows finds that out for the lots that are concerned.
func (a *app) openOneShop(ctx context.Context) (*ledger.Ledger, *stock.Stock, error) {
	l, s, err := a.openStores(ctx)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	owner, _, _ := s.SetUp(ctx)
	if here := l.Installation().ID; owner != "" && owner != here {
		l.Close()
		_ = s.Close()
		return nil, nil, fault.New(fault.Foreign, "Redis holds data of the installation %s, the ledger is that of %s", owner, here)
	}
	return l, s, nil
}

// openLedger opens PostgreSQL alone. The caller closes it.
func (a *app) openLedger(ctx context.Context) (*ledger.Ledger, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return wire.OpenLedger(ctx, a.cfg, a.getenv)
}

// openStock opens Redis alone, for what has to work while PostgreSQL is down. The caller closes it.
func (a *app) openStock(ctx context.Context) (*stock.Stock, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return wire.OpenStockAlone(ctx, a.cfg, a.getenv)
}
