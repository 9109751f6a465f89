package stock

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Reserve takes a hold. The same (lot, user, key) always names the same reservation: repeat the call with the same key
// after outcome_unknown. Refusals are *fault.Error, their Details say how many more units the user may take.
func (s *Stock) Reserve(ctx context.Context, q drop.ReserveRequest) (drop.Outcome, error) {
	if err := q.Check(); err != nil {
		return drop.Outcome{}, err
	}
	attempt := drop.AttemptOf(q.Lot, q.User, q.Key)
	r := newRequest(reserveKind, q.Lot)
	r.rival, r.attempt, r.reserve = drop.MarkIn(attempt), attempt, q
	res, err := s.do(ctx, s.shardOf(q.Lot), r)
	if err != nil {
		return drop.Outcome{}, err
	}
	out := drop.Outcome{Now: unixMilli(res.reply.now)}
	mark, rest, _ := strings.Cut(res.line, "\t")
	switch mark {
	case "+": // left n deadline created
		left, held, _ := strings.Cut(rest, "\t")
		n, until, _ := strings.Cut(held, "\t")
		err = fillHeld(&out, q, attempt, left, n, until)
	case "=": // left record
		left, record, _ := strings.Cut(rest, "\t")
		out.Replayed = true
		if out.Remaining, err = parseLeft(left); err == nil {
			out.Reservation, err = parseRecord(q.Lot, attempt, record)
			out.Reservation.User = q.User
		}
	case "!":
		err = refusal(q.Lot, res.line, q.Qty)
	default: // n; the lot's head has: left deadline created, and of a batch base
		left, until, _ := strings.Cut(res.head, "\t")
		err = fillHeld(&out, q, attempt, left, res.line, until)
	}
	return out, err
}

func unreadable(text string) error {
	return fault.New(fault.Failed, "a script's answer cannot be read: %q", text)
}

func parseLeft(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, unreadable(text)
	}
	return n, nil
}

// fillHeld fills in a fresh hold; until is "deadline created".
func fillHeld(out *drop.Outcome, q drop.ReserveRequest, attempt, left, n, until string) error {
	deadline, created, _ := strings.Cut(until, "\t")
	created, _, _ = strings.Cut(created, "\t")
	seq, err := strconv.ParseInt(n, 10, 64)
	if err != nil || unixMilli(deadline).IsZero() || unixMilli(created).IsZero() {
		return unreadable(n + " " + until)
	}
	out.Reservation = drop.Reservation{ID: drop.ReservationID{Lot: q.Lot, Attempt: attempt, N: seq}, User: q.User, State: drop.Held, Qty: q.Qty,
		Deadline: unixMilli(deadline), Created: unixMilli(created), LastSeq: seq}
	out.Remaining, err = parseLeft(left)
	return err
}

// refusal turns "! code …" into an error with its facts.
func refusal(lot drop.LotID, line string, qty int64) error {
	f := strings.Split(line, "\t")
	if f[0] != "!" || len(f) < 2 {
		return unreadable(line)
	}
	arg := func(i int) string {
		if i+2 < len(f) {
			return f[i+2]
		}
		return ""
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(arg(i), 10, 64); return n }
	code := fault.Code(f[1])
	var e *fault.Error
	switch code {
	case fault.SoldOut:
		e = fault.New(code, "lot %s has %d of %d units left", lot, number(1), qty).With("available", number(1))
	case fault.CustomerLimit:
		e = fault.New(code, "the user may take %d more of lot %s", number(0), lot)
	case fault.HoldExists:
		return holdExists(lot, number(0), arg(1), strings.Join(f[min(4, len(f)):], "\t"))
	case fault.Invalid:
		most := time.Duration(number(1)) * time.Millisecond
		e = fault.New(code, "hold is longer than lot %s allows", lot).WithField("hold").WithHint("ask for at most %s", most)
	case fault.KeyReused:
		e = fault.New(code, "the key named another request for lot %s before", lot).WithField("key")
	case fault.NotFound:
		e = fault.New(code, "the reservation is not known").WithHint("it may have ended longer ago than keys are kept: dropctl reservation show ID")
	case fault.SaleNotOpen, fault.SaleClosed, fault.LotPaused:
		e = fault.New(code, "lot %s takes no holds now", lot)
	case fault.Backpressure:
		e = fault.New(code, "the outbox of lot %s is full: the ledger is behind", lot)
	default:
		e = fault.New(code, "the reservation is in another state than the call expects")
		if record := strings.Join(f[min(3, len(f)):], "\t"); record != "" {
			if r, err := parseRecord(lot, "", record); err == nil {
				e = fault.New(code, "the reservation is %s (%s)", r.State, drop.CountUnits(r.Qty)).With("state", string(r.State)).With("qty", r.Qty)
			}
		}
	}
	if fault.Lookup(code).Code != code {
		return unreadable(line)
	}
	if arg(0) == "" { // nothing is known of the user
		return e
	}
	return e.With("remaining", remaining(number(0)))
}

// remaining is how many more units the user may take; null where the lot has no limit.
func remaining(left int64) any {
	if left < 0 {
		return nil
	}
	return left
}

func holdExists(lot drop.LotID, left int64, attempt, record string) error {
	r, err := parseRecord(lot, attempt, record)
	if err != nil {
		return err
	}
	return fault.New(fault.HoldExists, "the user already holds %d of lot %s until %s", r.Qty, lot, r.Deadline.Format(time.RFC3339)).
		WithHint("confirm or release it first: dropctl reservation show %s", r.ID).
		With("reservation", r.ID.String()).With("deadline", r.Deadline).With("remaining", remaining(left))
}
