package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newHook(a *app) *cobra.Command {
	cmd := newGroup("hook", "Tell receivers on the web what happens in the shop", newHookAdd(a), newHookList(a), newHookTest(a), newHookRetry(a), newHookRemove(a))
	cmd.Example = `  dropctl hook add https://shop.example/drops --kinds lot_loaded,lot_opened,sold_out,available_again
  dropctl hook list
  dropctl hook test k3bt7q2m`
	return cmd
}

// hookView is the contract of one hook. Its secret is never among it.
type hookView struct {
	ID           string            `json:"id" table:"ID,name"`
	URL          string            `json:"url" table:"URL"` // without its query, which may hold a secret
	Lot          drop.LotID        `json:"lot" table:"LOT"`
	Group        string            `json:"group" table:"GROUP"`
	Kinds        []drop.NoticeKind `json:"kinds" table:"KINDS"`
	AllowPrivate bool              `json:"allow_private" table:"PRIVATE,wide"`
	Created      time.Time         `json:"created" table:"CREATED,wide"`
	CreatedBy    string            `json:"created_by" table:"CREATED BY,wide"`
	Waiting      int64             `json:"waiting" table:"WAITING"`
	Oldest       time.Time         `json:"oldest_waiting" table:"OLDEST,wide"`
	Parked       int64             `json:"parked" table:"PARKED"`
	Failing      time.Time         `json:"failing_since" table:"FAILING SINCE"`
	LastError    string            `json:"last_error" table:"LAST ERROR"`
}

func viewHook(h drop.HookState) hookView {
	return hookView{ID: h.ID, URL: shownURL(h.URL), Lot: h.Lot, Group: h.Group, Kinds: h.Kinds, AllowPrivate: h.AllowPrivate, Created: h.Created, CreatedBy: h.CreatedBy,
		Waiting: h.Waiting, Oldest: h.Oldest, Parked: h.Parked, Failing: h.FailingSince, LastError: h.LastError}
}

// shownURL leaves out the query of a URL.
func shownURL(text string) string {
	plain, _, asked := strings.Cut(text, "?")
	if asked {
		return plain + "?…"
	}
	return plain
}

// hookChangedView is what became of one hook.
type hookChangedView struct {
	ID     string `json:"id" table:"ID,name"`
	URL    string `json:"url" table:"URL"`
	Result string `json:"result" table:"RESULT"`   // removed, retried, unchanged, planned or failed
	Count  int64  `json:"notices" table:"NOTICES"` // that were, or would be, dropped or taken up again
}

// hookChange is what remove and retry do to a hook.
type hookChange struct {
	ask    string // before it is done; "": nobody is asked
	result string
	count  func(drop.HookState) int64 // notices concerned
	do     func(ctx context.Context, l *ledger.Ledger, id string) (changed bool, err error)
}

// changeHooks changes hooks one after the other. Those that are not in force are not asked about: nothing happens to them.
func (a *app) changeHooks(ctx context.Context, ids []string, dryRun bool, change hookChange) error {
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	within, cancel := a.bounded(ctx)
	defer cancel()
	all, err := l.Hooks(within)
	if err != nil {
		return err
	}
	inForce := map[string]drop.HookState{}
	for _, h := range all {
		inForce[h.ID] = h
	}
	views, errs, planned := make([]hookChangedView, len(ids)), make([]error, len(ids)), 0
	for i, id := range ids {
		h, known := inForce[id]
		views[i] = hookChangedView{ID: id, URL: shownURL(h.URL), Result: "unchanged", Count: change.count(h)}
		if known {
			views[i].Result = "planned"
			planned++
		}
	}
	a.note("target: %s on %s", countHooks(len(ids)), l.Target())
	if planned > 0 && !dryRun && change.ask != "" {
		if err := a.confirm(ctx, fmt.Sprintf(change.ask, countHooks(planned))); err != nil {
			return err
		}
	}
	for i, id := range ids {
		if v := &views[i]; v.Result == "unchanged" || !dryRun {
			errs[i] = a.changeHook(ctx, l, v, id, change)
		}
	}
	if err := a.print(views); err != nil {
		return err
	}
	return faultsOf(errs, "hooks", change.result)
}

func (a *app) changeHook(ctx context.Context, l *ledger.Ledger, v *hookChangedView, id string, change hookChange) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	changed, err := change.do(ctx, l, id)
	switch {
	case err != nil:
		v.Result = "failed"
	case changed:
		v.Result = change.result
	default: // somebody else was faster
		v.Result = "unchanged"
	}
	return err
}

func countHooks(n int) string {
	if n == 1 {
		return "1 hook"
	}
	return fmt.Sprintf("%d hooks", n)
}

// hookIDs offers the hooks for completion.
func (a *app) hookIDs(ctx context.Context, _ string) ([]candidate, error) {
	l, err := a.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	hooks, err := l.Hooks(ctx)
	var list []candidate
	for _, h := range hooks {
		list = append(list, candidate{h.ID, shownURL(h.URL)})
	}
	return list, err
}
