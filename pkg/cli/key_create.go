package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newKeyCreate(a *app) *cobra.Command {
	var k drop.APIKey
	var scopes []string
	var expires lifetime
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "create --tenant T --scope S",
		Short: "Make a key for the HTTP API and show it once",
		Long: `Make a key for the HTTP API. Its token is printed once and never again, since only its hash is kept;
-o name prints the token alone. Servers know the key within seconds.

A tenant is a shop of its own: its users are not those of another tenant, and it does not see their
reservations. Scopes: read looks at lots and reservations, reserve takes holds, settle confirms,
releases, extends and refunds, admin changes lots. None includes another.

With the first key, the API no longer answers callers without one.`,
		Example: `  dropctl key create --tenant shop --scope read,reserve,settle
  dropctl key create --tenant shop --scope read --name dashboard --expires 90d -o name > key.txt`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := readKey(&k, scopes); err != nil {
				return err
			}
			k.Created, k.CreatedBy = time.Now().UTC().Truncate(time.Second), a.cfg.Actor
			if expires > 0 {
				k.Expires = k.Created.Add(time.Duration(expires))
			}
			return a.createKey(cmd.Context(), k, dryRun)
		},
	}
	cmd.Flags().StringVar(&k.Tenant, "tenant", "", "whose key it is: a-z 0-9 -")
	cmd.Flags().StringSliceVar(&scopes, "scope", nil, "what it may do, separated by commas: read, reserve, settle, admin")
	cmd.Flags().StringVar(&k.Name, "name", "", "what it is for, for people")
	cmd.Flags().Var(&expires, "expires", "how long it is good for, such as 90d (default: until it is revoked)")
	dryRunFlag(cmd, &dryRun)
	_ = cmd.MarkFlagRequired("tenant")
	_ = cmd.MarkFlagRequired("scope")
	_ = cmd.RegisterFlagCompletionFunc("scope", completeList(wordsOf(drop.Scopes())...))
	completeNothing(cmd, "tenant", "name", "expires")
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}

// readKey checks what was asked for, each scope once and in the order of the table.
func readKey(k *drop.APIKey, scopes []string) error {
	if err := drop.CheckTenant(k.Tenant); err != nil {
		return err
	}
	if len(scopes) == 0 {
		return fault.New(fault.Usage, "--scope is empty").WithField("scope").WithHint("name some of %s", strings.Join(wordsOf(drop.Scopes()), ", "))
	}
	for _, s := range scopes {
		if _, err := drop.ParseScope(s); err != nil {
			return err
		}
	}
	for _, s := range drop.Scopes() {
		if slices.Contains(scopes, string(s)) {
			k.Scopes = append(k.Scopes, s)
		}
	}
	return drop.CheckText("name", k.Name, false)
}

// keyCreatedView is a key that was made just now. Nothing else ever shows the token.
type keyCreatedView struct {
	keyView
	Token  string `json:"token" table:"TOKEN"` // "" after a dry run
	DryRun bool   `json:"dry_run"`
}

func (a *app) createKey(ctx context.Context, k drop.APIKey, dryRun bool) error {
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	a.note("target: a key of %s on %s", k.Tenant, l.Target())
	view := keyCreatedView{keyView: keyView(k), DryRun: dryRun}
	if dryRun {
		return a.print(view)
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	view.Token, k.ID = drop.NewToken()
	_, k.Hash, _ = drop.ReadToken(view.Token)
	made, err := l.CreateKey(ctx, k)
	if err != nil {
		return tokenLost(fault.As(err), k.ID)
	}
	view.keyView = keyView(made)
	if a.cfg.Output == "name" {
		view.ID = view.Token
	}
	if err := a.out.Print(view); err != nil { // not a.print: its error, and this one too, may repeat the token
		return tokenLost(fault.New(fault.CodeOf(err), "the key %s was made, but the output failed", k.ID), k.ID)
	}
	a.note("this token is shown once; only its hash is kept")
	return nil
}

// tokenLost says what to do about a key that may be recorded while nobody has seen its token.
func tokenLost(err *fault.Error, id string) error {
	return err.With("id", id).
		WithHint("the token is lost; if dropctl key list shows %s, revoke it: dropctl key revoke %s --yes; then run it again", id, id)
}

// lifetime is the value of a flag that also takes days: 90d.
type lifetime time.Duration

const longestLifetime = 100 * 365 * 24 * time.Hour

// Set takes a duration of Go, or a number of days.
func (l *lifetime) Set(text string) error {
	d, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var n int64
		n, err = strconv.ParseInt(days, 10, 32)
		d = time.Duration(min(n, 1_000_000)) * 24 * time.Hour
	}
	if err != nil || d <= 0 || d > longestLifetime {
		return fault.New(fault.Usage, "--expires is %.40q, which is not how long a key can be good for", text).WithField("expires").
			WithHint("use a number of days, such as 90d, or a duration, such as 12h")
	}
	*l = lifetime(d)
	return nil
}

func (l *lifetime) String() string {
	if *l == 0 {
		return ""
	}
	return time.Duration(*l).String()
}

// Type is what help calls the value.
func (l *lifetime) Type() string { return "duration" }
