package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
)

func newReservationList(a *app) *cobra.Command {
	var lot, user, after string
	var states []string
	var limit *number
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List reservations that the ledger has",
		Long: `List reservations by lot and age, as the ledger has them: what happened within the last moments
may be missing, and a hold whose deadline has just passed may still be listed as held. If there
are more than --limit, stderr says how to go on.`,
		Example: `  dropctl reservation list --lot truffle-99
  dropctl reservation list --user ada --state held,confirmed
  dropctl reservation list --limit 1000 --after truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 -o jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := readFilter(lot, user, after, states)
			if err != nil {
				return err
			}
			f.Limit = int(limit.or(100))
			return a.listReservations(cmd.Context(), f)
		},
	}
	cmd.Flags().StringVar(&lot, "lot", "", "only of this lot")
	cmd.Flags().StringVar(&user, "user", "", "only of this user")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only in these states: held, confirmed, released, expired, refunded")
	cmd.Flags().Lookup("state").DefValue = ""
	limit = numberFlag(cmd, "limit", 1, "list at most this many (default 100)")
	cmd.Flags().StringVar(&after, "after", "", "go on behind this reservation")
	a.settings(cmd, cmd.Flags(), config.Database, config.API)
	_ = cmd.RegisterFlagCompletionFunc("lot", a.completeFrom(a.lotIDs))
	_ = cmd.RegisterFlagCompletionFunc("state", completeList("held", "confirmed", "released", "expired", "refunded"))
	completeNothing(cmd, "user", "limit", "after")
	return cmd
}

func readFilter(lot, user, after string, states []string) (f drop.ReservationFilter, err error) {
	if lot != "" {
		if f.Lot, err = drop.ParseLotID(lot); err != nil {
			return f, err
		}
	}
	if after != "" {
		if f.After, err = drop.ParseReservationID(after); err != nil {
			return f, err
		}
	}
	for _, text := range states {
		state, err := drop.ParseState(text)
		if err != nil {
			return f, err
		}
		f.States = append(f.States, state)
	}
	f.User = user
	return f, drop.CheckText("user", user, false)
}

func (a *app) listReservations(ctx context.Context, f drop.ReservationFilter) error {
	served, err := a.cfg.UsesServer("database-url")
	if err != nil {
		return err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	list := a.listRecorded
	if served {
		list = a.listServed
	}
	limit := f.Limit
	f.Limit++ // one more, to know whether there are more
	views, err := list(ctx, f)
	if err != nil {
		return err
	}
	more := len(views) > limit
	views = views[:min(limit, len(views))]
	if err := a.print(views); err != nil {
		return err
	}
	if len(views) == 0 && a.errTerm.TTY {
		a.note("the ledger has no such reservation; how far it is behind: dropctl status")
	}
	if !more {
		return nil
	}
	a.note("there are more: add --limit %s --after %s", strconv.Itoa(limit), shellQuoted(views[limit-1].ID.String()))
	return nil
}

// listRecorded reads reservations from the ledger.
func (a *app) listRecorded(ctx context.Context, f drop.ReservationFilter) ([]reservationView, error) {
	l, err := a.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	page, err := l.Reservations(ctx, f)
	if err != nil {
		return nil, err
	}
	views := []reservationView{}
	for _, r := range page {
		views = append(views, viewRecorded(r))
	}
	return views, nil
}

// listServed reads them page by page from a server. Its cursor is the last reservation of the page before.
func (a *app) listServed(ctx context.Context, f drop.ReservationFilter) ([]reservationView, error) {
	s, err := a.newServerShop()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	asked := client.Filter{Lot: string(f.Lot), User: f.User, States: texts(f.States), Limit: min(f.Limit, maxPage)}
	if !f.After.IsZero() {
		asked.Cursor = f.After.String()
	}
	views := []reservationView{}
	for r, err := range s.client.AllReservations(ctx, asked) {
		if err != nil {
			return nil, err
		}
		v, err := s.view(r)
		if err != nil {
			return nil, err
		}
		if views = append(views, v); len(views) == f.Limit {
			break
		}
	}
	return views, nil
}

// maxPage is how many reservations a server gives at once.
const maxPage = 1000
