package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newLedger(a *app) *cobra.Command {
	cmd := newGroup("ledger", "Look at what is recorded, and prove it", newLedgerShow(a), newLedgerVerify(a))
	cmd.Example = `  dropctl ledger show --lot truffle-99
  dropctl ledger verify --all`
	return cmd
}

// place is an event's identity as the command line writes it: lot/epoch/seq.
type place struct {
	lot drop.LotID
	at  drop.Watermark
}

func placeText(lot drop.LotID, at drop.Watermark) string {
	return fmt.Sprintf("%s/%d/%d", lot, at.Epoch, at.Seq)
}

// readPlace reads lot/epoch/seq; what follows behind another slash, as of a row of the order ledger, does not count.
func readPlace(text string) (place, error) {
	bad := fault.New(fault.Invalid, "%.80q is no place in a lot's history", text).WithHint("write it as lot/epoch/seq, like truffle-99/1/42")
	parts := strings.Split(text, "/")
	if len(parts) < 3 || len(parts) > 4 {
		return place{}, bad
	}
	lot, err := drop.ParseLotID(parts[0])
	if err != nil {
		return place{}, err
	}
	epoch, err1 := strconv.ParseInt(parts[1], 10, 64)
	seq, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err1 != nil || err2 != nil || epoch < 1 || seq < 1 || epoch > drop.MaxSeq || seq > drop.MaxSeq {
		return place{}, bad
	}
	return place{lot, drop.Watermark{Epoch: epoch, Seq: seq}}, nil
}
