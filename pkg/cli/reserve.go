package cli

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/stock"
)

func newReserve(a *app) *cobra.Command {
	var q drop.ReserveRequest
	var qty *number
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "reserve LOT --user U",
		Short: "Hold units of a lot for a user",
		Long: `Hold units of a lot for a user until a deadline. Confirm the reservation before it.

The key names this attempt: with the same lot, user and key the same reservation is returned,
however often it is asked for, and no unit is taken twice. Without --key a random one is used and
printed. PostgreSQL is not needed. With --dry-run the answer is what Redis would say now, and
nothing is held.`,
		Example: `  dropctl reserve truffle-99 --user ada
  dropctl reserve truffle-99 --user ada --qty 2 --hold 10m --key order-4711
  dropctl reserve truffle-99 --user ada --qty 1 --replace
  dropctl reserve truffle-99 --user ada -o name`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Lot, q.Qty, q.Actor = drop.LotID(args[0]), qty.or(1), a.cfg.Actor
			again := a.again()
			if !cmd.Flags().Changed("key") {
				q.Key = rand.Text()
				again = a.again("--key", q.Key)
			}
			if err := checkHoldFlag(cmd, "hold", q.Hold); err != nil {
				return err
			}
			if err := q.Check(); err != nil {
				return err
			}
			return a.reserve(cmd.Context(), q, again, dryRun)
		},
	}
	cmd.ValidArgsFunction = firstOnly(a.completeFrom(a.lotIDs))
	cmd.Flags().StringVar(&q.User, "user", "", "who holds")
	_ = cmd.MarkFlagRequired("user")
	qty = numberFlag(cmd, "qty", 1, "units to hold (default 1)")
	cmd.Flags().DurationVar(&q.Hold, "hold", 0, "how long (default: as the lot says)")
	cmd.Flags().BoolVar(&q.Replace, "replace", false, "give back the user's live hold of the lot, if there is one, and take this one: both or neither")
	cmd.Flags().StringVar(&q.Key, "key", "", "name of this attempt (default: a random one)")
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Redis, config.API, config.Stock, config.Durable)
	completeNothing(cmd, "user", "qty", "hold", "key")
	return cmd
}

// checkHoldFlag refuses a duration of 0 or less that was typed; one that was not typed means the default.
func checkHoldFlag(cmd *cobra.Command, flag string, d time.Duration) error {
	if d == 0 && !cmd.Flags().Changed(flag) {
		return nil
	}
	return drop.CheckHold(flag, d)
}

// completeNothing keeps the shell from offering files where only the user knows the value.
func completeNothing(cmd *cobra.Command, flags ...string) {
	for _, f := range flags {
		_ = cmd.RegisterFlagCompletionFunc(f, cobra.NoFileCompletions)
	}
}

// reserve takes the hold; again is the command that asks for the same one.
func (a *app) reserve(ctx context.Context, q drop.ReserveRequest, again string, dryRun bool) error {
	s, err := a.openShop(ctx, false)
	if err != nil {
		return err
	}
	defer s.Close()
	a.note("target: lot %s on %s", q.Lot, s.Target())
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	if dryRun {
		v, err := s.PlanReserve(ctx, q)
		if err != nil {
			return err
		}
		return a.print(v)
	}
	v, err := askTwice(ctx, again, func() (reservationView, error) { return s.Reserve(ctx, q) })
	if err != nil {
		return fault.As(err).With("key", q.Key)
	}
	v.Key = q.Key
	return a.print(v)
}

// planReserve answers as Redis would, in the same order of rules, from what it has now.
func planReserve(ctx context.Context, s *stock.Stock, q drop.ReserveRequest) (reservationView, error) {
	lot, err := s.Lot(ctx, q.Lot)
	if err != nil {
		return reservationView{}, err
	}
	users, err := s.UsersOf(ctx, q.Lot, []string{q.User})
	if err != nil {
		return reservationView{}, err
	}
	user := users[q.User]
	attempt := drop.AttemptOf(q.Lot, q.User, q.Key)
	known, err := s.RecordsOf(ctx, q.Lot, slices.DeleteFunc([]string{attempt, user.Live}, func(a string) bool { return a == "" }))
	if err != nil {
		return reservationView{}, err
	}
	live := known[user.Live]
	if live.State == drop.Held && !live.Deadline.After(lot.Now) { // due: its units count as free
		user.Held, live = user.Held-live.Qty, drop.Reservation{}
	}
	if was, ok := known[attempt]; ok && lot.Sells() {
		if was.State == drop.Held && !was.Deadline.After(lot.Now) {
			was.State = drop.Expired
		}
		v := viewAt(was, lot.Now)
		v.User, v.Key, v.Replayed, v.DryRun = q.User, q.Key, true, true
		return v, nil
	}
	var back int64 // units of the hold that this one replaces
	if live.State == drop.Held && q.Replace {
		back, live = live.Qty, drop.Reservation{}
	}
	if err := refusal(lot, user, live, back, q); err != nil {
		return reservationView{}, err
	}
	hold := q.Hold
	if hold == 0 {
		hold = lot.Hold
	}
	v := viewAt(drop.Reservation{ID: drop.ReservationID{Lot: q.Lot, Attempt: attempt, N: lot.Seq + 1}, User: q.User, State: drop.Held, Qty: q.Qty,
		Deadline: lot.Now.Add(hold), Created: lot.Now, LastSeq: lot.Seq + 1}, lot.Now)
	v.Key, v.DryRun = q.Key, true
	if lot.Limit > 0 {
		left := lot.Limit - user.Held - user.Bought - q.Qty + back
		v.Remaining = &left
	}
	return v, nil
}

// refusal says which rule stands against a new hold, or nil. The user's live hold is zero if there is none, or if the new
// one replaces it and its units come back.
func refusal(lot drop.LotState, user drop.UserCount, live drop.Reservation, back int64, q drop.ReserveRequest) error {
	switch {
	case !lot.Sells():
		return fault.New(fault.LotFrozen, "lot %s is frozen: %s", q.Lot, lot.FreezeReason()).WithHint("what it means: dropctl explain %s", lot.FreezeReason())
	case lot.Status == drop.Paused:
		return fault.New(fault.LotPaused, "lot %s takes no holds now", q.Lot)
	case lot.Status != drop.Open, !lot.Closes.IsZero() && !lot.Now.Before(lot.Closes):
		return fault.New(fault.SaleClosed, "lot %s takes no holds any more", q.Lot)
	case lot.Now.Before(lot.Opens):
		return fault.New(fault.SaleNotOpen, "lot %s sells from %s on", q.Lot, lot.Opens.Format(time.RFC3339))
	case live.State == drop.Held:
		return fault.New(fault.HoldExists, "the user already holds %d of lot %s", live.Qty, q.Lot).WithHint("confirm or release it first: dropctl reservation show %s", live.ID)
	case lot.Limit > 0 && q.Qty > lot.Limit-user.Held-user.Bought+back:
		return fault.New(fault.CustomerLimit, "the user may take %d more of lot %s", max(0, lot.Limit-user.Held-user.Bought), q.Lot)
	case q.Hold > lot.MaxHold:
		return fault.New(fault.Invalid, "hold is longer than lot %s allows", q.Lot).WithField("hold").WithHint("ask for at most %s", lot.MaxHold)
	case q.Qty > lot.Available+lot.Due+back:
		return fault.New(fault.SoldOut, "lot %s has %d of %d units left", q.Lot, lot.Available+lot.Due, q.Qty)
	}
	return nil
}
