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

func newHookTest(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "test ID",
		Short: "Send one notice now, and show the answer",
		Long: `Send one notice of the kind test to the hook's receiver, from this machine, and show the answer and
the beginning of its text. It is signed like any other, tried once, and says that nothing happened.
The exit status is 0 if the receiver answered 2xx, 6 if it answered something else and 5 if it did
not answer.`,
		Example:           `  dropctl hook test k3bt7q2m`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeFrom(a.hookIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := drop.CheckHookID(args[0]); err != nil {
				return err
			}
			return a.testHook(cmd.Context(), args[0], dryRun)
		},
	}
	dryRunFlag(cmd, &dryRun)
	a.settings(cmd, cmd.Flags(), config.Database)
	return cmd
}

// hookTestView is what a receiver said.
type hookTestView struct {
	ID       string           `json:"id" table:"ID,name"`
	URL      string           `json:"url" table:"URL"`
	Delivery string           `json:"delivery" table:"DELIVERY"`
	Outcome  drop.SendOutcome `json:"outcome" table:"OUTCOME"` // delivered, refused or failed; "" after a dry run
	Status   *int             `json:"status" table:"STATUS"`   // of HTTP; null: there was no answer
	Why      string           `json:"why" table:"WHY"`
	Answer   string           `json:"answer" table:"ANSWER"` // its first KiB
	Took     time.Duration    `json:"took_seconds" table:"TOOK"`
	DryRun   bool             `json:"dry_run"`
}

func (a *app) testHook(ctx context.Context, id string, dryRun bool) error {
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	within, cancel := a.bounded(ctx)
	defer cancel()
	h, secret, err := l.HookSecret(within, id)
	if err != nil {
		return err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	view := hookTestView{ID: id, URL: shownURL(h.URL), Delivery: notify.DeliveryID(id, -now.UnixMilli()), DryRun: dryRun}
	a.note("target: the receiver of %s, %s", id, view.URL)
	if dryRun {
		return a.print(view)
	}
	sender := notify.NewSender(thisVersion().Version)
	defer sender.Close()
	answer, err := sender.Send(within, h, secret, view.Delivery, drop.Notice{Kind: drop.NoticeTest, Lot: h.Lot, At: now})
	if err != nil {
		return err
	}
	view.Outcome, view.Why, view.Answer, view.Took = answer.Outcome, answer.Why, answer.Body, answer.Took.Round(time.Millisecond)
	if answer.Status != 0 {
		view.Status = &answer.Status
	}
	if err := a.print(view); err != nil {
		return err
	}
	switch {
	case answer.Outcome == drop.Delivered:
		return nil
	case answer.Status == 0:
		return fault.New(fault.Unavailable, "the receiver of the hook %s was not reached: %s", id, answer.Why).WithHint("see that it runs, and that this machine can reach it")
	}
	return fault.New(fault.Finding, "the receiver of the hook %s %s", id, answer.Why).WithHint("let it check the signature with the hook's secret, and answer 2xx")
}
