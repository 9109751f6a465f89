package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newOutbox(a *app) *cobra.Command {
	cmd := newGroup("outbox", "Look at unrecorded events, retry or discard them",
		newOutboxList(a), newOutboxRetry(a), newOutboxDiscard(a))
	cmd.Example = `  dropctl outbox list --state dead
  dropctl outbox retry --lot truffle-99
  dropctl outbox discard 17 --reason "counted by hand"`
	return cmd
}

// readLetter reads the number of a dead letter.
func readLetter(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, fault.New(fault.Invalid, "%.80q is no number of a dead letter", text).WithHint("see what there is: dropctl outbox list --state dead")
	}
	return id, nil
}

// deadLetters offers the dead letters for completion.
func (a *app) deadLetters(ctx context.Context, _ string) ([]candidate, error) {
	l, err := a.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	letters, err := l.DeadLetters(ctx, "", 0, completionLimit)
	list := make([]candidate, len(letters))
	for i, d := range letters {
		list[i] = candidate{strconv.FormatInt(d.ID, 10), fmt.Sprintf("%s, %s", d.Lot, d.Code)}
	}
	return list, err
}

// settledView is what became of a dead letter, or of a place or places that follow each other.
type settledView struct {
	ID      string     `json:"id" table:"ID,name"` // the dead letter's number, or lot/epoch/seq
	Lot     drop.LotID `json:"lot" table:"LOT"`
	Epoch   int64      `json:"epoch" table:"EPOCH,wide"`
	Seq     int64      `json:"seq" table:"SEQ,wide"`       // 0 where it is not known
	LastSeq int64      `json:"last_seq" table:"LAST,wide"` // of places that follow each other
	Result  string     `json:"result" table:"RESULT"`      // applied, waiting, dead, discarded, unchanged or failed
	Planned bool       `json:"dry_run" table:"DRY RUN,ifset"`
	Code    fault.Code `json:"code" table:"CODE"` // of what stays dead, or of a failure
	Message string     `json:"message" table:"DETAIL"`
	Hint    string     `json:"hint"`
}

func viewSettled(lot drop.LotID, s ledger.Settled, dryRun bool) settledView {
	v := settledView{ID: strconv.FormatInt(s.ID, 10), Lot: lot, Epoch: s.Epoch, Seq: s.From, LastSeq: s.To, Result: s.Result, Planned: dryRun, Code: s.Code, Message: s.Reason}
	if s.ID == 0 {
		v.ID = placeText(lot, drop.Watermark{Epoch: s.Epoch, Seq: s.From})
		if s.To > s.From {
			v.ID += "-" + strconv.FormatInt(s.To, 10)
		}
	}
	if s.Result == ledger.SettledDead && s.Code != "" {
		v.Hint = "dropctl explain " + string(s.Code)
	}
	return v
}

// sayLot says where a lot stands behind what was settled.
func (a *app) sayLot(lot drop.LotID, done ledger.SettledLot, dryRun bool) {
	if lot == "" {
		return
	}
	parts := []string{fmt.Sprintf("%d event%s folded", done.Folded, plural(done.Folded)), fmt.Sprintf("recorded up to %d/%d", done.Mark.Epoch, done.Mark.Seq)}
	if done.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d still wait", done.Waiting))
	}
	if done.Due > 0 {
		parts = append(parts, fmt.Sprintf("%d payment%s due for refund", done.Due, plural(done.Due)))
	}
	if done.Stopped != "" {
		parts = append(parts, "stopped: "+string(done.Stopped))
	}
	would := ""
	if dryRun {
		would = "would be: "
	}
	a.note("lot %s %s%s", lot, would, strings.Join(parts, ", "))
}
