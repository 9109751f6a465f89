package cli

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newLot(a *app) *cobra.Command {
	cmd := newGroup("lot", "Look at lots, open, pause and close them, adjust stock",
		newLotList(a), newLotShow(a), newLotOpen(a), newLotPause(a), newLotClose(a), newLotAdjust(a), newLotArchive(a))
	cmd.Example = `  dropctl lot list
  dropctl lot pause truffle-99 --reason "wrong price"
  dropctl lot open --group autumn`
	return cmd
}

// lotView is the contract of one lot, as Redis has it.
type lotView struct {
	Lot       drop.LotID    `json:"lot" table:"LOT,name"`
	Name      string        `json:"name" table:"NAME,wide"`
	Status    drop.Status   `json:"status" table:"STATUS"`
	Selling   bool          `json:"selling" table:"SELLING"` // open, within its window and not frozen; it may be sold out
	Capacity  int64         `json:"capacity" table:"CAPACITY"`
	Available int64         `json:"available" table:"AVAILABLE"`
	Held      int64         `json:"held" table:"HELD"`
	Sold      int64         `json:"sold" table:"SOLD"`
	Due       int64         `json:"due" table:"DUE,wide"`     // units within held whose deadline has passed: anybody can take them
	Limit     unitLimit     `json:"limit" table:"LIMIT,wide"` // units for one user; 0: no limit
	Hold      time.Duration `json:"hold_seconds" table:"HOLD,wide"`
	MaxHold   time.Duration `json:"max_hold_seconds" table:"MAX HOLD,wide"`
	Opens     time.Time     `json:"opens" table:"OPENS,wide"`
	Closes    time.Time     `json:"closes" table:"CLOSES,wide"`
	Late      drop.Late     `json:"late" table:"LATE,wide"`
	Epoch     int64         `json:"epoch" table:"EPOCH,wide"`
	Seq       int64         `json:"seq" table:"SEQ,wide"`
	Frozen    fault.Code    `json:"frozen" table:"FROZEN"` // why nothing can be done with it; "" normally
}

// unitLimit is how many units one user may take; 0 means as many as there are.
type unitLimit int64

// Cell is the limit as a person reads it.
func (l unitLimit) Cell() string {
	if l == 0 {
		return "none"
	}
	return strconv.FormatInt(int64(l), 10)
}

func viewLot(s drop.LotState) lotView {
	inWindow := !s.Now.Before(s.Opens) && (s.Closes.IsZero() || s.Now.Before(s.Closes))
	return lotView{Lot: s.Lot, Name: s.Name, Status: s.Status, Selling: s.Status == drop.Open && inWindow && s.Sells(),
		Capacity: s.Capacity, Available: s.Available, Held: s.Held, Sold: s.Sold, Due: s.Due, Limit: unitLimit(s.Limit),
		Hold: s.Hold, MaxHold: s.MaxHold, Opens: s.Opens, Closes: s.Closes, Late: s.Late,
		Epoch: s.Epoch, Seq: s.Seq, Frozen: s.FreezeReason()}
}

// lotIDs offers the lots that the shop has for completion.
func (a *app) lotIDs(ctx context.Context, _ string) ([]candidate, error) {
	s, err := a.openShop(ctx, false)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	lots, err := s.Lots(ctx, "")
	if err != nil {
		return nil, err
	}
	var list []candidate
	for _, l := range lots {
		list = append(list, candidate{string(l.Lot), fmt.Sprintf("%s, %d of %d left", l.Status, l.Available, l.Capacity)})
	}
	return list, nil
}

// aboutLot says more about an error that concerns a lot: its hint names the lot, and of a lot that Redis has not got the
// ledger may know that it is archived, or was never made. Where the ledger cannot be asked, Redis' word stays.
func (a *app) aboutLot(ctx context.Context, lot drop.LotID, err error) error {
	err = named(err, "LOT", string(lot))
	if !fault.Is(err, fault.LotNotLoaded) {
		return err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, ledgerErr := a.openLedger(ctx)
	if ledgerErr != nil {
		return err
	}
	defer l.Close()
	if why, ledgerErr := l.WhyAbsent(ctx, lot); ledgerErr == nil && why != nil {
		return why
	}
	return err
}

// named puts a name into an error's hint, where it can only say LOT or ID. A hint that repeats a command stays as typed.
func named(err error, word, name string) error {
	if fault.Is(err, fault.OutcomeUnknown) {
		return err
	}
	hint := regexp.MustCompile(" "+word+"(;|,| [(]|$)").ReplaceAllString(fault.HintOf(err), " "+name+"${1}") // no id holds a $
	return fault.As(err).WithHint("%s", hint)
}
