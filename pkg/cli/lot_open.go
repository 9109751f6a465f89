package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/doctor"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newLotOpen(a *app) *cobra.Command {
	return a.statusCommand(&cobra.Command{
		Use:   "open LOT… | --group G | --all",
		Short: "Let lots sell",
		Long: `Let lots sell again that were paused or closed. A sales window still counts. Works while
PostgreSQL is down; asking again changes nothing. --all and --group leave closed lots alone: to
sell one of them again, name it.

A lot is not opened on a Redis that could lose its stock: one that may evict keys, is a replica,
cannot write to its disk, is shut or has another installation's data. What cannot be found out
within 0.3 s blocks nothing; dropctl doctor looks at everything.`,
		Example: `  dropctl lot open truffle-99
  dropctl lot open --group autumn --reason "prices are right now"`,
	}, drop.Open)
}

// Blocked says of lots why they must not be opened; what is not known within the budget blocks nothing.
func (s storeShop) Blocked(ctx context.Context, lots []drop.LotID) map[drop.LotID]error {
	ctx, cancel := context.WithTimeout(ctx, wire.OpeningLook)
	defer cancel()
	installation := make(chan ledger.Installation, 1)
	go func() { installation <- s.app.installation(ctx) }()

	var shards []int
	for _, lot := range lots {
		if shard := lot.Shard(s.stock.Shards()); !slices.Contains(shards, shard) {
			shards = append(shards, shard)
		}
	}
	nodes, err := s.stock.Preflight(ctx, shards)
	in := <-installation
	if err != nil {
		return nil
	}
	unfit := doctor.Preflight(nodes, in.ID, in.Shards)
	blocked := map[drop.LotID]error{}
	for _, lot := range lots {
		blocked[lot] = unfit[lot.Shard(s.stock.Shards())]
	}
	return blocked
}

// installation asks the ledger whose shop this is; nothing if it is not named or silent.
func (a *app) installation(ctx context.Context) ledger.Installation {
	l, err := a.openLedger(ctx)
	if err != nil {
		return ledger.Installation{}
	}
	defer l.Close()
	return l.Installation()
}
