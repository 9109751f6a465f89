package stock

import (
	"context"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// FreezeLot shuts one lot for a reason, if its epoch and the server its shard is open on still are as they were seen, else
// it returns Conflict; its seq may have moved on. A lot that is frozen already keeps its reason. The shard may be frozen
// too.
func (s *Stock) FreezeLot(ctx context.Context, seen drop.LotState, reason fault.Code) error {
	return s.moveLot(ctx, seen, "freeze", reason)
}

// ThawLot lets a lot sell again that was frozen for this reason, if it still is as it was seen in every respect, else it
// returns Conflict. One that is not frozen, or for another reason, stays as it is. Its shard's door is another matter.
func (s *Stock) ThawLot(ctx context.Context, seen drop.LotState, reason fault.Code) error {
	return s.moveLot(ctx, seen, "thaw", reason)
}

func (s *Stock) moveLot(ctx context.Context, seen drop.LotState, action string, reason fault.Code) error {
	sh := s.shardOf(seen.Lot)
	r, err := s.script(ctx, sh, "freeze", sh.keys.gated(seen.Lot), []string{string(seen.Lot), action, string(reason), PlanOf(seen).text()})
	if err != nil {
		return err
	}
	if fault.Code(r.status) == fault.Conflict {
		return fault.New(fault.Conflict, "lot %s in Redis is no longer as it was seen", seen.Lot)
	}
	return r.fault("lot " + string(seen.Lot))
}
