package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/stock"
)

func newReservation(a *app) *cobra.Command {
	cmd := newGroup("reservation", "Look at reservations", newReservationList(a), newReservationShow(a))
	cmd.Example = `  dropctl reservation list --lot truffle-99 --state held
  dropctl reservation show truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17`
	return cmd
}

// reservationView is the contract of one reservation.
type reservationView struct {
	ID        drop.ReservationID `json:"id" table:"RESERVATION,name"`
	Lot       drop.LotID         `json:"lot" table:"LOT,wide"`
	User      string             `json:"user" table:"USER"` // "" where an ended reservation no longer carries it
	State     drop.State         `json:"state" table:"STATE"`
	Qty       int64              `json:"qty" table:"QTY"`
	Refunded  int64              `json:"refunded" table:"REFUNDED,ifset"`
	DueClosed int64              `json:"due_closed" table:"DUE CLOSED,wide,ifset"` // of a refund: units of payments that paid for nothing, closed
	Deadline  time.Time          `json:"deadline" table:"DEADLINE"`                // of the hold; null where it no longer counts
	Left      *time.Duration     `json:"remaining_seconds" table:"LEFT,wide"`      // until the deadline, by Redis' clock; null: not held, or Redis was not asked
	Payment   string             `json:"payment" table:"PAYMENT,wide"`
	Key       string             `json:"key" table:"KEY,wide"` // "" where only the ledger knows it
	Created   time.Time          `json:"created" table:"CREATED,wide"`
	Seq       int64              `json:"seq" table:"SEQ,wide"` // of its last change
	Replayed  bool               `json:"replayed" table:"REPLAYED,wide,ifset"`
	Remaining *int64             `json:"remaining" table:"USER MAY STILL TAKE,wide"` // units the user may still take; null: no limit, or not asked
	DryRun    bool               `json:"dry_run" table:"DRY RUN,wide,ifset"`
}

func viewReservation(r drop.Reservation) reservationView {
	return reservationView{ID: r.ID, Lot: r.ID.Lot, User: r.User, State: r.State, Qty: r.Qty, Refunded: r.Refunded,
		Deadline: r.Deadline, Payment: r.Ref, Created: r.Created, Seq: r.LastSeq}
}

// viewAt is the reservation as it is at a moment of Redis' clock.
func viewAt(r drop.Reservation, now time.Time) reservationView {
	v := viewReservation(r)
	if r.State == drop.Held {
		left := max(0, r.Deadline.Sub(now))
		v.Left = &left
	}
	return v
}

func viewOutcome(out drop.Outcome) reservationView {
	v := viewAt(out.Reservation, out.Now)
	v.Replayed = out.Replayed
	if out.Remaining >= 0 {
		v.Remaining = &out.Remaining
	}
	return v
}

func viewRecorded(r drop.Recorded) reservationView {
	v := viewReservation(r.Reservation)
	v.Key = r.Key
	if r.State != drop.Held {
		v.Deadline = time.Time{}
	}
	return v
}

// reservationNow returns a reservation as Redis has it, with the lot at the same moment. A hold whose deadline has
// passed is expired, swept or not.
func reservationNow(ctx context.Context, s *stock.Stock, id drop.ReservationID) (drop.Reservation, drop.LotState, error) {
	lot, err := s.Lot(ctx, id.Lot)
	if err != nil {
		return drop.Reservation{}, lot, err
	}
	r, err := s.Reservation(ctx, id)
	if r.State == drop.Held && !r.Deadline.After(lot.Now) {
		r.State = drop.Expired
	}
	return r, lot, err
}

// reservationIDs offers the ids of reservations in some states for completion.
func (a *app) reservationIDs(states ...drop.State) func(ctx context.Context, prefix string) ([]candidate, error) {
	return func(ctx context.Context, prefix string) ([]candidate, error) {
		s, err := a.openShop(ctx, false)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		return s.Offer(ctx, prefix, states)
	}
}

// isOneOf reports whether a state is among those wanted; none wanted means any.
func isOneOf(state drop.State, wanted []drop.State) bool {
	return len(wanted) == 0 || slices.Contains(wanted, state)
}

// askTwice makes a call and, if its outcome is unknown, makes it once more: whoever asks again for what already is gets
// it confirmed. If the second time tells no more, the outcome stays unknown and the hint is the command to repeat.
func askTwice[T any](ctx context.Context, command string, call func() (T, error)) (T, error) {
	out, err := call()
	if !fault.Is(err, fault.OutcomeUnknown) {
		return out, err
	}
	unknown := fault.As(err).WithHint("ask again, it is safe: %s", command)
	if ctx.Err() != nil {
		return out, unknown
	}
	out, err = call()
	if fault.ExitOf(err) == fault.ExitUnavailable { // shut, silent or gone: nothing is known of the first call
		return out, unknown
	}
	return out, err
}

// again is the command line as it was typed, with more flags, for a hint. Passwords in it are hidden.
func (a *app) again(flags ...string) string {
	args := slices.Clone(a.args)
	for i := range args {
		for _, url := range []config.Secret{a.cfg.RedisURL, a.cfg.DatabaseURL, a.cfg.ServerURL} {
			if url.HasPassword() {
				args[i] = strings.ReplaceAll(args[i], url.Reveal(), url.String())
			}
		}
	}
	end := slices.Index(args, "--") // flags end here
	if end < 0 {
		end = len(args)
	}
	return shellLine(slices.Insert(args, end, flags...))
}

// shellLine writes a call of dropctl so that a shell reads its arguments back as they are.
func shellLine(args []string) string {
	line := "dropctl"
	for _, arg := range args {
		line += " " + shellQuoted(arg)
	}
	return line
}

// shellQuoted quotes a word unless every shell takes it as it is; a ~ counts only in front.
func shellQuoted(word string) string {
	special := func(r rune) bool {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !plain && !strings.ContainsRune("-_.,:/@+~", r)
	}
	if word != "" && word[0] != '~' && !strings.ContainsFunc(word, special) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
