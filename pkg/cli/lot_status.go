package cli

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// statusChange is a change of the status of many lots: what open, pause and close have in common.
type statusChange struct {
	status drop.Status
	lots   []drop.LotID // named one by one (picked is false), or
	group  string       // a whole group, or
	all    bool
	picked bool // by group, or all
	reason string
	dryRun bool

	blocked map[drop.LotID]error // lots that must stay as they are
}

// statusCommand finishes the command that gives lots a status.
func (a *app) statusCommand(cmd *cobra.Command, status drop.Status) *cobra.Command {
	c := statusChange{status: status}
	cmd.Args = cobra.ArbitraryArgs
	cmd.ValidArgsFunction = a.completeFrom(a.lotIDs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.read(args); err != nil {
			return err
		}
		return a.changeStatus(cmd.Context(), c)
	}
	a.groupFlag(cmd, &c.group)
	cmd.Flags().BoolVar(&c.all, "all", false, "all lots")
	reasonFlag(cmd, &c.reason)
	dryRunFlag(cmd, &c.dryRun)
	a.settings(cmd, cmd.Flags(), config.Redis, config.API, config.Durable)
	return cmd
}

// read takes the lots from the arguments and checks everything.
func (c *statusChange) read(args []string) (err error) {
	if c.lots, err = readLots(args, c.group, c.all); err != nil {
		return err
	}
	return drop.CheckText("reason", c.reason, false)
}

// readLots reads lots that are named one by one, each once, and checks that they come in one way only: so, by a group, or
// all of them.
func readLots(args []string, group string, all bool) ([]drop.LotID, error) {
	ways := 0
	for _, way := range []bool{len(args) > 0, group != "", all} {
		if way {
			ways++
		}
	}
	const hint = "name lots, or use --group G, or --all; one of the three"
	switch {
	case ways == 0:
		return nil, fault.New(fault.Usage, "LOT is missing").WithHint(hint)
	case ways > 1:
		return nil, fault.New(fault.Usage, "lots, --group and --all do not go together").WithHint(hint)
	}
	lots, err := eachOnce(args, drop.ParseLotID)
	if err != nil {
		return nil, err
	}
	return lots, checkGroup(group)
}

// eachOnce reads ids that were named one by one, each once.
func eachOnce[T comparable](args []string, parse func(string) (T, error)) (ids []T, err error) {
	for _, arg := range args {
		id, err := parse(arg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// checked makes a parser of a check, for ids that stay texts.
func checked(check func(string) error) func(string) (string, error) {
	return func(id string) (string, error) { return id, check(id) }
}

// statusChangeView is what became of one lot.
type statusChangeView struct {
	Lot     drop.LotID  `json:"lot" table:"LOT,name"`
	Status  drop.Status `json:"status" table:"STATUS"` // as it is now, or with a dry run would be; "" after a failure
	Result  string      `json:"result" table:"RESULT"` // changed, unchanged, planned or failed
	Code    fault.Code  `json:"code" table:"CODE"`     // of a failure
	Message string      `json:"message" table:"DETAIL"`
	Hint    string      `json:"hint"`

	err error
}

func (a *app) changeStatus(ctx context.Context, c statusChange) error {
	s, err := a.openShop(ctx, false)
	if err != nil {
		return err
	}
	defer s.Close()
	if c.picked = len(c.lots) == 0; c.picked {
		if c.lots, err = a.lotsToChange(ctx, s, c.group); err != nil {
			return err
		}
	}
	a.note("target: %s on %s", countLots(c.lots), s.Target())
	if c.status == drop.Open {
		c.blocked = s.Blocked(ctx, c.lots)
	}
	views := a.changeEach(ctx, s, c)
	if err := a.print(views); err != nil {
		return err
	}
	return bulkError(views)
}

func (a *app) lotsToChange(ctx context.Context, s shop, group string) ([]drop.LotID, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	lots, err := s.LotIDs(ctx, group)
	if err == nil && len(lots) == 0 {
		err = fault.New(fault.NotFound, "Redis has no lots")
		if group != "" {
			err = fault.New(fault.NotFound, "Redis has no lot of the group %s", group).WithHint("see the lots that it has: dropctl lot list")
		}
	}
	return lots, err
}

// changeEach changes lots side by side: in an emergency a thousand of them must not wait for each other.
func (a *app) changeEach(ctx context.Context, s shop, c statusChange) []statusChangeView {
	views := make([]statusChangeView, len(c.lots))
	places := make(chan struct{}, 32)
	var wg sync.WaitGroup
	for i, lot := range c.lots {
		places <- struct{}{}
		wg.Go(func() {
			views[i] = a.changeOne(ctx, s, c, lot)
			<-places
		})
	}
	wg.Wait()
	return views
}

// statusRequest gives one lot a status.
type statusRequest struct {
	lot    drop.LotID
	status drop.Status
	reason string
	dryRun bool
}

func (a *app) changeOne(ctx context.Context, s shop, c statusChange, lot drop.LotID) statusChangeView {
	if err := c.blocked[lot]; err != nil {
		return notChanged(lot, err)
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	if c.picked && isOver(ctx, s, lot) {
		return statusChangeView{Lot: lot, Status: drop.Closed, Result: "unchanged", Message: "its sale is over; only a command that names the lot changes that"}
	}
	q := statusRequest{lot, c.status, c.reason, c.dryRun}
	same, err := askTwice(ctx, a.again(), func() (bool, error) { return s.SetStatus(ctx, q) })
	v := statusChangeView{Lot: lot, Status: c.status, Result: "changed"}
	switch {
	case err != nil:
		return notChanged(lot, err)
	case same:
		v.Result = "unchanged"
	case c.dryRun:
		v.Result = "planned"
	}
	return v
}

// isOver reports whether a lot is closed. To pause everything and to open it again must not bring back a sale that is over;
// where it is not known, nothing is held up by that.
func isOver(ctx context.Context, s shop, lot drop.LotID) bool {
	v, err := s.Lot(ctx, lot)
	return err == nil && v.Status == drop.Closed
}

func notChanged(lot drop.LotID, err error) statusChangeView {
	f := fault.As(err)
	return statusChangeView{Lot: lot, Result: "failed", Code: f.Code, Message: f.Error(), Hint: fault.HintOf(f), err: f}
}

// bulkError says in one error how it went; nil if no lot failed.
func bulkError(views []statusChangeView) error {
	errs := make([]error, len(views))
	for i, v := range views {
		errs[i] = v.err
	}
	return manyFaults(errs, "changed")
}

// manyFaults says in one error how a command went with many lots, an error or nil for each; nil if none failed.
func manyFaults(errs []error, done string) error { return faultsOf(errs, "lots", done) }

// faultsOf is manyFaults for things of another kind.
func faultsOf(errs []error, things, done string) error {
	var first error
	failed := 0
	for _, err := range errs {
		if err != nil {
			if failed++; first == nil {
				first = err
			}
		}
	}
	switch {
	case failed == 0 || len(errs) == 1:
		return first
	case failed < len(errs):
		return fault.New(fault.Partial, "%d of %d %s failed; the first: %s", failed, len(errs), things, first).WithHint("%s", fault.HintOf(first))
	}
	return fault.New(fault.CodeOf(first), "none of %d %s could be %s; the first: %s", len(errs), things, done, first).WithHint("%s", fault.HintOf(first))
}

func countLots(lots []drop.LotID) string {
	if len(lots) == 1 {
		return "lot " + string(lots[0])
	}
	return strconv.Itoa(len(lots)) + " lots"
}
