package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/notify"
)

// hookFlags are what the command line says of a hook.
type hookFlags struct {
	lot, group, secret string
	kinds              []string
	allowPrivate       bool
	dryRun             bool
}

func newHookAdd(a *app) *cobra.Command {
	var f hookFlags
	cmd := &cobra.Command{
		Use:   "add URL",
		Short: "Tell a receiver from now on, and show its secret once",
		Long: `Tell a receiver what happens from now on: each notice is a POST of one JSON object, signed with the
hook's secret, which is printed once and never again. A notice is sent until the receiver answers
2xx, for three days; its id in the header Dropctl-Delivery stays the same, for it may come twice.

Kinds: lot_loaded and lot_opened (a lot can be bought), held, confirmed and expired (reservations),
sold_out and available_again (told when it has been so for a second), lot_frozen (it sells nothing
until somebody acts) and refund_due (a payment for units that nobody got).

Addresses within private networks are refused, also later, when a name begins to stand for one,
unless --allow-private says that the receiver is within your own network; http without TLS as well.`,
		Example: `  dropctl hook add https://shop.example/drops
  dropctl hook add https://app.example/hooks --group autumn --secret file:/etc/dropctl/hook.secret
  dropctl hook add http://10.0.0.7:9000/ --lot truffle-99 --allow-private`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, key, err := a.typedHook(cmd, args[0], f)
			if err != nil {
				return err
			}
			return a.addHook(cmd.Context(), h, key, f.secret == "", f.dryRun)
		},
	}
	cmd.Flags().StringVar(&f.lot, "lot", "", "only this lot")
	_ = cmd.RegisterFlagCompletionFunc("lot", a.completeFrom(a.lotIDs))
	a.groupFlag(cmd, &f.group)
	cmd.Flags().StringSliceVar(&f.kinds, "kinds", nil, "what to tell, separated by commas (default: everything)")
	_ = cmd.RegisterFlagCompletionFunc("kinds", completeList(wordsOf(drop.NoticeKinds())...))
	cmd.Flags().BoolVar(&f.allowPrivate, "allow-private", false, "the receiver is within a private network; http is fine")
	cmd.Flags().StringVar(&f.secret, "secret", "", "where the secret is: env:NAME or file:/path (default: one is made)")
	completeNothing(cmd, "secret")
	dryRunFlag(cmd, &f.dryRun)
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}

// typedHook reads what was typed, and its secret; it asks nobody.
func (a *app) typedHook(cmd *cobra.Command, url string, f hookFlags) (h drop.Hook, key string, err error) {
	if err := notEmpty(cmd, "lot", "group", "kinds", "secret"); err != nil {
		return h, "", err
	}
	h = drop.Hook{URL: url, Lot: drop.LotID(f.lot), Group: f.group, AllowPrivate: f.allowPrivate, CreatedBy: a.cfg.Actor}
	if h.Kinds, err = drop.ParseNoticeKinds(f.kinds); err != nil {
		return h, "", err
	}
	if err := checkHook(h); err != nil {
		return h, "", err
	}
	key = drop.NewHookSecret()
	if f.secret != "" {
		given, err := config.ReadReference("secret", f.secret, a.getenv)
		if err != nil {
			return h, "", err
		}
		key = given.Reveal()
	}
	return h, key, drop.CheckHookSecret(key)
}

// notEmpty refuses flags that are there and say nothing: a variable of a script that is not set must not mean everything.
func notEmpty(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Changed && (f.Value.String() == "" || f.Value.String() == "[]") {
			return fault.New(fault.Usage, "--%s is empty", name).WithField(name).WithHint("give it a value, or leave it out")
		}
	}
	return nil
}

// checkHook checks what was typed; it asks nobody.
func checkHook(h drop.Hook) error {
	if h.Lot != "" && h.Group != "" {
		return fault.New(fault.Usage, "--lot and --group do not go together").WithHint("add one hook for the lot and one for the group")
	}
	if h.Lot != "" {
		if _, err := drop.ParseLotID(string(h.Lot)); err != nil {
			return err
		}
	}
	if err := checkGroup(h.Group); err != nil {
		return err
	}
	return notify.CheckURL(h.URL, h.AllowPrivate)
}

// hookAddedView is a hook that was added just now. Nothing else ever shows the secret.
type hookAddedView struct {
	ID           string            `json:"id" table:"ID,name"` // "" after a dry run
	URL          string            `json:"url" table:"URL"`
	Lot          drop.LotID        `json:"lot" table:"LOT"`
	Group        string            `json:"group" table:"GROUP"`
	Kinds        []drop.NoticeKind `json:"kinds" table:"KINDS"`
	AllowPrivate bool              `json:"allow_private" table:"PRIVATE,wide"`
	Created      time.Time         `json:"created" table:"CREATED,wide"`
	CreatedBy    string            `json:"created_by" table:"CREATED BY,wide"`
	Secret       string            `json:"secret" table:"SECRET"` // "" after a dry run, and of one that was given
	DryRun       bool              `json:"dry_run"`
}

func viewAdded(h drop.Hook) hookAddedView {
	return hookAddedView{ID: h.ID, URL: shownURL(h.URL), Lot: h.Lot, Group: h.Group, Kinds: h.Kinds, AllowPrivate: h.AllowPrivate, Created: h.Created, CreatedBy: h.CreatedBy}
}

// addHook adds a hook; made says that its secret was made here, and has to be shown.
func (a *app) addHook(ctx context.Context, h drop.Hook, secret string, made, dryRun bool) error {
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	a.note("target: a hook on %s", l.Target())
	within, cancel := a.bounded(ctx)
	defer cancel()
	if !h.AllowPrivate {
		known, err := notify.CheckHost(within, h.URL)
		if err != nil {
			return err
		}
		if !known {
			a.note("warning: the name of the receiver's host cannot be looked up from here")
		}
	}
	view := viewAdded(h)
	if dryRun {
		view.DryRun = true
		return a.print(view)
	}
	h.ID = drop.NewHookID()
	added, err := l.AddHook(within, h, secret)
	if fault.Is(err, fault.Conflict) {
		return err
	}
	if err != nil {
		return hookSecretLost(fault.As(err), h.ID)
	}
	view = viewAdded(added)
	if made {
		view.Secret = secret
	}
	if err := a.out.Print(view); err != nil { // not a.print: its error, and this one too, may repeat the secret
		return hookSecretLost(fault.New(fault.CodeOf(err), "the hook %s was added, but the output failed", h.ID), h.ID)
	}
	if made {
		a.note("this secret is shown once; give it to the receiver, then try: dropctl hook test %s", h.ID)
	}
	return nil
}

// hookSecretLost says what to do about a hook that may be there while nobody has seen its secret.
func hookSecretLost(err *fault.Error, id string) error {
	return err.With("id", id).WithHint("if dropctl hook list shows %s, its secret may be lost; remove it: dropctl hook remove %s --yes; then run it again", id, id)
}
