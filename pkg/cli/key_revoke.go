package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

func newKeyRevoke(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "revoke ID…",
		Short: "End keys for good",
		Long: `End keys of the HTTP API for good: whoever calls with one is refused within seconds. It asks first,
or needs --yes. Revoking again changes nothing.

A server that was started with --api-keys-file while PostgreSQL is down knows only what that file
says; write the file anew: dropctl key list -o json.`,
		Example: `  dropctl key revoke k3bt7q2m --yes
  dropctl key revoke k3bt7q2m abcdefgh --dry-run`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeFrom(a.keyIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := eachOnce(args, checked(drop.CheckKeyID))
			if err != nil {
				return err
			}
			return a.revokeKeys(cmd.Context(), ids, dryRun)
		},
	}
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}

// keyRevokedView is what became of one key.
type keyRevokedView struct {
	ID      string     `json:"id" table:"ID,name"`
	Tenant  string     `json:"tenant" table:"TENANT"`
	Name    string     `json:"name" table:"NAME"`
	Result  string     `json:"result" table:"RESULT"` // revoked, unchanged, planned or failed
	Code    fault.Code `json:"code" table:"CODE"`     // of a failure
	Message string     `json:"message" table:"DETAIL"`
	Hint    string     `json:"hint"`

	err error
}

func (a *app) revokeKeys(ctx context.Context, ids []string, dryRun bool) error {
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	views, err := a.planRevoking(ctx, l, ids)
	if err != nil {
		return err
	}
	planned := 0
	for _, v := range views {
		if v.Result == "planned" {
			planned++
		}
	}
	a.note("target: %s on %s", countKeys(len(ids)), l.Target())
	if planned > 0 && !dryRun {
		if err := a.confirm(ctx, fmt.Sprintf("revoke %s for good?", countKeys(planned))); err != nil {
			return err
		}
		for i := range views {
			if views[i].Result == "planned" {
				a.revokeOne(ctx, l, &views[i])
			}
		}
	}
	if err := a.print(views); err != nil {
		return err
	}
	errs := make([]error, len(views))
	for i, v := range views {
		errs[i] = v.err
	}
	return faultsOf(errs, "keys", "revoked")
}

// planRevoking says of each key what revoking it would do.
func (a *app) planRevoking(ctx context.Context, l *ledger.Ledger, ids []string) ([]keyRevokedView, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	keys, err := l.Keys(ctx)
	if err != nil {
		return nil, err
	}
	views := make([]keyRevokedView, len(ids))
	for i, id := range ids {
		at := slices.IndexFunc(keys, func(k drop.APIKey) bool { return k.ID == id })
		if at < 0 {
			views[i] = keyRevokedView{ID: id}
			views[i].fail(fault.New(fault.NotFound, "there is no key %s", id).WithField("id").WithHint("see the keys: dropctl key list"))
			continue
		}
		views[i] = keyRevokedView{ID: id, Tenant: keys[at].Tenant, Name: keys[at].Name, Result: "planned"}
		if !keys[at].Revoked.IsZero() {
			views[i].Result = "unchanged"
		}
	}
	return views, nil
}

func (a *app) revokeOne(ctx context.Context, l *ledger.Ledger, v *keyRevokedView) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	_, changed, err := l.RevokeKey(ctx, v.ID, a.cfg.Actor)
	switch {
	case err != nil:
		v.fail(err)
	case changed:
		v.Result = "revoked"
	default: // somebody else was faster
		v.Result = "unchanged"
	}
}

func (v *keyRevokedView) fail(err error) {
	e := fault.As(err)
	v.Result, v.Code, v.Message, v.Hint, v.err = "failed", e.Code, e.Error(), fault.HintOf(e), e
}

func countKeys(n int) string {
	if n == 1 {
		return "1 key"
	}
	return fmt.Sprintf("%d keys", n)
}
