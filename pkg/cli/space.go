package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// spaceStores opens both stores in a space of their own on the servers of the settings: what is measured or rehearsed there is
// none of the shop's business, except that it takes the servers' time. So servers with a shop's lots have to be confirmed.
// The caller owes a call of closeAll, which removes the space. What runs before it that were killed have left is removed, too.
func (a *app) spaceStores(ctx context.Context, as ...func(*stock.Options)) (l *ledger.Ledger, s *stock.Stock, closeAll func() error, err error) {
	if _, err := a.cfg.Redis(a.getenv); err != nil { // a missing setting is found before anything is dialled
		return nil, nil, nil, err
	}
	shop, err := a.lookAtShop(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	a.note("target: %s, %s", shop.Redis, shop.Ledger)
	if shop.Lots > 0 {
		question := fmt.Sprintf("put load on %s and %s, where a shop has %d lot%s? its customers will feel it", shop.Redis, shop.Ledger, shop.Lots, plural(shop.Lots))
		if err := a.confirm(ctx, question); err != nil {
			return nil, nil, nil, err
		}
	}
	swept, err := wire.SweepSpaces(ctx, a.cfg, a.getenv, shop.Redis)
	if len(swept) > 0 {
		a.note("removed what runs that were killed have left: %s", strings.Join(swept, ", "))
	}
	if err != nil {
		a.note("what an earlier run left could not be removed: %v", err)
	}
	sp, err := wire.OpenSpace(ctx, a.cfg, a.getenv, shop.Shards, as...)
	if err != nil {
		return nil, nil, nil, err
	}
	return sp.Ledger, sp.Stock, func() error { return sp.Drop(ctx) }, nil
}

func (a *app) lookAtShop(ctx context.Context) (wire.RealShop, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return wire.LookAtShop(ctx, a.cfg, a.getenv)
}
