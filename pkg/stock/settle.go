package stock

import (
	"context"
	"strconv"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Settle confirms, releases, extends or refunds a reservation. Asking again for what already is succeeds with Replayed
// set, so a call whose outcome is unknown may be repeated as it is.
func (s *Stock) Settle(ctx context.Context, q drop.SettleRequest) (drop.Outcome, error) {
	if err := q.Check(); err != nil {
		return drop.Outcome{}, err
	}
	letter, number, ref := actionColumns(q)
	r := newRequest(settleKind, q.ID.Lot)
	r.rival = q.ID.Attempt
	r.row = [7]string{q.ID.Attempt, strconv.FormatInt(q.ID.N, 10), letter, strconv.FormatInt(number, 10), ref, string(q.Late), q.Actor + "\t" + q.Reason}
	res, err := s.do(ctx, s.shardOf(q.ID.Lot), r)
	if err != nil {
		return drop.Outcome{}, err
	}
	out := drop.Outcome{Now: unixMilli(res.reply.now)}
	mark, rest, _ := strings.Cut(res.line, "\t")
	if mark != "+" && mark != "=" {
		err := refusal(q.ID.Lot, res.line, q.Qty)
		if fault.Is(err, fault.Conflict) {
			err = conflictOf(q, err)
		}
		if paidLate(q, fault.CodeOf(err), res.line) {
			err = fault.As(err).With("paid_late", true).WithHint("the payment was written down as due for refund: dropctl ledger show --refund-due; %s", fault.HintOf(err))
		}
		return out, fault.As(err).With("reservation", q.ID.String())
	}
	left, record, _ := strings.Cut(rest, "\t")
	out.Replayed = mark == "="
	if out.Remaining, err = parseLeft(left); err != nil {
		return out, err
	}
	out.Reservation, err = parseRecord(q.ID.Lot, q.ID.Attempt, record)
	return out, err
}

// actionColumns returns the action's letter, its number and its text as settle.lua reads them.
func actionColumns(q drop.SettleRequest) (letter string, number int64, ref string) {
	switch q.Action {
	case drop.ActConfirm:
		return "c", q.Qty, q.Ref
	case drop.ActRelease:
		return "r", q.Keep, ""
	case drop.ActExtend:
		return "e", q.By.Milliseconds(), ""
	}
	if q.NoRestock {
		return "f", q.Total, "0"
	}
	return "f", q.Total, "1"
}

// paidLate reports whether a refused confirmation brought money that is now due for refund: it got no units, and the
// payment is not the one the reservation was confirmed with. Of a refunded one only the script can tell.
func paidLate(q drop.SettleRequest, code fault.Code, line string) bool {
	if q.Action != drop.ActConfirm || q.Ref == "" {
		return false
	}
	switch code {
	case fault.HoldExpired, fault.AlreadyReleased, fault.SoldOut, fault.CustomerLimit, fault.HoldExists:
		return true
	case fault.AlreadyConfirmed:
		columns := strings.SplitN(line, "\t", 4) // mark, code, units left, record
		r, err := parseRecord(q.ID.Lot, q.ID.Attempt, columns[len(columns)-1])
		return err == nil && r.Ref != q.Ref
	}
	return false
}

// conflictOf names the field that asked for more than the reservation has.
func conflictOf(q drop.SettleRequest, err error) error {
	field := map[drop.Action]string{drop.ActConfirm: "qty", drop.ActRelease: "keep", drop.ActRefund: "total"}[q.Action]
	e := *fault.As(err)
	e.Message = field + " is more than the reservation has: " + e.Message
	return e.WithField(field).WithHint("see its units: dropctl reservation show %s", q.ID)
}
