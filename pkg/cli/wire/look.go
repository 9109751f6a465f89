package wire

import (
	"context"
	"maps"
	"slices"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/stock"
)

// StockLook is one look at all shards of Redis. What cannot be looked at is told, and keeps nothing else from being seen.
type StockLook struct {
	Outboxes []drop.OutboxState
	States   map[drop.LotID]drop.LotState
	Foreign  []int                       // shards with another installation's data: nothing of them is told
	Broken   map[int][]drop.MisplacedKey // shards with something else in a key of ours: what can be read of them is told
	Shards   int                         // how many there are
}

// Strange reports whether a lot belongs into a shard that has another installation's data.
func (l StockLook) Strange(lot drop.LotID) bool {
	return len(l.Foreign) > 0 && slices.Contains(l.Foreign, lot.Shard(l.Shards))
}

// BrokenAt reports whether a lot belongs into a shard with something else in a key of ours: no holds are taken there.
func (l StockLook) BrokenAt(lot drop.LotID) bool {
	return len(l.Broken) > 0 && l.Broken[lot.Shard(l.Shards)] != nil
}

// LookAtStock looks at some lots and at the outboxes of all shards; nil: at all lots that Redis has.
func LookAtStock(ctx context.Context, s *stock.Stock, lots []drop.LotID) (look StockLook, err error) {
	look = StockLook{States: map[drop.LotID]drop.LotState{}, Shards: s.Shards()}
	if look.Foreign, err = s.ForeignShards(ctx); err != nil {
		return look, err
	}
	if look.Broken, err = s.MisplacedKeys(ctx); err != nil {
		return look, err
	}
	for _, shard := range look.Foreign {
		delete(look.Broken, shard) // not ours to tell
	}
	for shard := range s.Shards() {
		if slices.Contains(look.Foreign, shard) {
			continue
		}
		out, err := s.OutboxState(ctx, shard)
		switch {
		case err == nil:
			look.Outboxes = append(look.Outboxes, out)
		case look.Broken[shard] == nil:
			return look, err
		}
	}
	if lots == nil {
		if lots, err = s.Lots(ctx); err != nil {
			return look, err
		}
	}
	return look, look.readLots(ctx, s, lots)
}

func (l *StockLook) readLots(ctx context.Context, s *stock.Stock, lots []drop.LotID) error {
	var sound []drop.LotID
	broken := map[int][]drop.LotID{}
	for _, lot := range lots {
		switch {
		case l.Strange(lot):
		case l.BrokenAt(lot):
			shard := lot.Shard(l.Shards)
			broken[shard] = append(broken[shard], lot)
		default:
			sound = append(sound, lot)
		}
	}
	states, err := s.LotStates(ctx, sound)
	if err != nil {
		return err
	}
	maps.Copy(l.States, states)
	for shard, lots := range broken {
		states, err := s.LotStates(ctx, lots)
		maps.Copy(l.States, states)
		if err == nil {
			continue
		}
		for _, lot := range lots { // as of a shard whose door is something else
			l.States[lot] = drop.LotState{Definition: drop.Definition{Lot: lot}, Damaged: l.Broken[shard][0].What}
		}
	}
	return nil
}
