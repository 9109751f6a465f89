package cloudtasks

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Inbox applies entries to the ledger if the budget allows it now; else it says when to offer them again.
type Inbox interface {
	Offer(ctx context.Context, entries []drop.OutboxEntry) (wait time.Duration, err error)
}

// Ledger opens the inbox of a ledger and names its installation. Its error is unavailable until the ledger is there.
type Ledger func() (installation string, inbox Inbox, err error)

// Receiver takes what a queue delivers to a server. Safe for concurrent use.
type Receiver struct {
	ledger  Ledger
	secrets [][sha256.Size]byte
	signer  *signer       // nil: only secrets count
	places  chan struct{} // of those that are being recorded
}

const (
	// atOnce is how many deliveries are recorded side by side. More would wait for each other's lots, and hold the
	// connections to PostgreSQL that the API needs.
	atOnce   = 3
	mostWait = 5 * time.Second // for a place

	shortestSecret = 16 // bytes; it must not be guessed
	mostSecrets    = 8  // more than one while it is being changed
)

// NewReceiver returns a receiver that takes what comes with a token of the options' service account, or with one of their
// secrets. Errors: usage, invalid_config.
func NewReceiver(o Options, ledger Ledger) (*Receiver, error) {
	if err := o.CheckReceiver(); err != nil {
		return nil, err
	}
	r := &Receiver{ledger: ledger, places: make(chan struct{}, atOnce)}
	for _, s := range o.Secrets {
		r.secrets = append(r.secrets, sha256.Sum256([]byte(s)))
	}
	if o.ServiceAccount != "" {
		r.signer = newSigner(o.withDefaults())
	}
	return r, nil
}

// CheckReceiver refuses options under which nothing can be taken, or could come from anybody.
func (o Options) CheckReceiver() error {
	o = o.withDefaults()
	switch {
	case o.ServiceAccount == "" && len(o.Secrets) == 0:
		return noProof
	case o.ServiceAccount != "" && o.Audience == "":
		return missing("tasks-target", "it is not said for whom the tokens of deliveries are", "https://shop.example/internal/outbox, or --tasks-audience AUDIENCE")
	}
	if err := o.checkURL("tasks-keys-url", o.KeysURL, false); err != nil {
		return err
	}
	return checkSecrets(o.Secrets)
}

var noProof = missing("tasks-service-account", "it is not said how a delivery is told from a forgery", "tasks@PROJECT.iam.gserviceaccount.com, or --tasks-secret-file FILE")

func checkSecrets(secrets []string) error {
	if len(secrets) > mostSecrets {
		return fault.New(fault.InvalidConfig, "there are %d secrets, more than %d", len(secrets), mostSecrets).WithField("tasks-secret-file").WithHint("one a line, and more than one only while it is being changed")
	}
	for _, s := range secrets {
		if len(s) < shortestSecret {
			return fault.New(fault.InvalidConfig, "tasks-secret-file: a secret is shorter than %d characters", shortestSecret).WithField("tasks-secret-file").
				WithHint("write a random one: openssl rand -hex 32")
		}
	}
	return nil
}

// Trusts checks the bearer token of a delivery. Errors: unauthorized, forbidden for the token of somebody else, unavailable
// while the keys that tokens are signed with cannot be had. None repeats the token.
func (r *Receiver) Trusts(ctx context.Context, token string) error {
	given, fits := sha256.Sum256([]byte(token)), 0
	for _, s := range r.secrets {
		fits |= subtle.ConstantTimeCompare(given[:], s[:])
	}
	switch {
	case fits == 1:
		return nil
	case r.signer == nil:
		return fault.New(fault.Unauthorized, "the secret of the delivery is wrong or missing").WithHint("send it as Authorization: Bearer SECRET; it is the one in --tasks-secret-file")
	}
	return r.signer.check(ctx, token)
}

// Take records what a delivery brings. wait above zero: not all of it was, because the budget is used up; deliver it again
// then. Errors: invalid for what no repetition makes better; all others may pass.
func (r *Receiver) Take(ctx context.Context, body []byte) (wait time.Duration, err error) {
	t, err := decode(body)
	if err != nil {
		return 0, err
	}
	here, inbox, err := r.ledger()
	if err != nil {
		return 0, err
	}
	if t.Installation != here {
		// Whoever corrects where tasks go to cures it, so it is not thrown away.
		return 0, fault.New(fault.Foreign, "the task is of the installation %s, the ledger is that of %s", firstOf(t.Installation, 64), here).
			WithHint("see that --tasks-target of the worker leads to a server of its own installation")
	}
	within, cancel := context.WithTimeout(ctx, mostWait)
	defer cancel()
	select {
	case r.places <- struct{}{}:
		defer func() { <-r.places }()
	case <-within.Done():
		return 0, fault.New(fault.Overloaded, "more is delivered than the ledger takes").WithHint("nothing to do: the queue slows down, and delivers it again")
	}
	return inbox.Offer(ctx, t.outbox())
}
