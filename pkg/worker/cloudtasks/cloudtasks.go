// Package cloudtasks carries outbox entries through a queue of Google Cloud Tasks, which delivers them to the route
// POST /internal/outbox of `dropctl serve`: a worker creates tasks, a server takes them. Other queues that deliver over
// HTTP can stand in its place.
//
// The service may deliver late, twice, in any order or, once somebody purges the queue, never; the relay sends again what
// the ledger lacks, and applying absorbs the rest.
package cloudtasks

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"golang.org/x/time/rate"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Where Google's service is, and where it publishes the keys that it signs tokens with.
const (
	DefaultEndpoint = "https://cloudtasks.googleapis.com"
	DefaultKeysURL  = "https://www.googleapis.com/oauth2/v3/certs"
)

// MostPerSecond is how many tasks a second one queue delivers at most.
const MostPerSecond = 500

// Options says how tasks are sent and who may deliver them. Field names in errors are those of the settings (tasks-…).
type Options struct {
	Queue          string   // projects/PROJECT/locations/LOCATION/queues/QUEUE
	Endpoint       string   // of the service; default Google's. Plain http is an emulator, which is shown no credentials
	Target         string   // URL of the route that tasks are delivered to
	ServiceAccount string   // e-mail address; the service signs a token in its name for each delivery
	Audience       string   // whom that token is for; default: Target
	KeysURL        string   // of the keys that tokens are signed with; default Google's
	Secrets        []string // instead of tokens: the first is sent as bearer token, any of them is taken
	PerSecond      int      // tasks created at most; default MostPerSecond

	// Straight records entries that no task can carry.
	Straight func(ctx context.Context, entries []drop.OutboxEntry) error
	Log      *slog.Logger
}

// pace is how long a task that is not full is kept back behind the one before, so that entries gather.
const pace = 20 * time.Millisecond

// Queue is a queue of the service, as a worker sees it. Safe for concurrent use.
type Queue struct {
	opt          Options
	installation string
	http         *http.Client
	limit        *rate.Limiter

	mu    sync.Mutex
	sent  map[int]time.Time // shard → when its last task was created
	quiet time.Time         // the service wants to be left alone until then
}

var queueName = regexp.MustCompile(`^projects/[A-Za-z0-9:.-]+/locations/[a-z0-9-]+/queues/[A-Za-z0-9-]{1,100}$`)

// New returns the queue that the options name, and finds credentials where the service wants some: those of
// GOOGLE_APPLICATION_CREDENTIALS, of gcloud, or of the machine it runs on. Errors: usage, invalid_config.
func New(ctx context.Context, installation string, o Options) (*Queue, error) {
	if err := o.CheckSender(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	q := &Queue{opt: o, installation: installation, http: newClient(callLimit), sent: map[int]time.Time{},
		limit: rate.NewLimiter(rate.Limit(o.PerSecond), max(1, o.PerSecond/50))}
	if isPlain(o.Endpoint) {
		return q, nil
	}
	// The client of the context is what tokens are fetched with, for as long as the queue lives.
	source, err := google.DefaultTokenSource(context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, newClient(callLimit)), "https://www.googleapis.com/auth/cloud-tasks")
	if err != nil {
		return nil, fault.Wrap(fault.InvalidConfig, err, "there are no credentials for %s", o.Endpoint).WithField("tasks-endpoint").
			WithHint("run where a service account is attached, or name a file of credentials in GOOGLE_APPLICATION_CREDENTIALS")
	}
	q.http.Transport = &oauth2.Transport{Source: source}
	return q, nil
}

func (o Options) withDefaults() Options {
	o.Endpoint = strings.TrimSuffix(cmp.Or(o.Endpoint, DefaultEndpoint), "/")
	o.KeysURL = cmp.Or(o.KeysURL, DefaultKeysURL)
	o.Audience = cmp.Or(o.Audience, o.Target)
	o.PerSecond = cmp.Or(o.PerSecond, MostPerSecond)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// CheckSender refuses options that no task can be created with, as New does, but dials nothing.
func (o Options) CheckSender() error {
	o = o.withDefaults()
	switch {
	case o.Queue == "":
		return missing("tasks-queue", "no task queue is named", "projects/PROJECT/locations/LOCATION/queues/QUEUE")
	case !queueName.MatchString(o.Queue):
		return fault.New(fault.InvalidConfig, "%q is not the name of a task queue", o.Queue).WithField("tasks-queue").WithHint("write it as projects/PROJECT/locations/LOCATION/queues/QUEUE")
	case o.Target == "":
		return missing("tasks-target", "it is not said where tasks are delivered to", "https://shop.example/internal/outbox")
	case o.ServiceAccount == "" && len(o.Secrets) == 0:
		return noProof
	}
	if err := o.checkURL("tasks-endpoint", o.Endpoint, true); err != nil {
		return err
	}
	if err := o.checkURL("tasks-target", o.Target, false); err != nil {
		return err
	}
	return checkSecrets(o.Secrets)
}

func missing(setting, what, example string) error {
	return fault.New(fault.Usage, "%s", what).WithField(setting).WithHint("name it: --%s %s", setting, example)
}

// checkURL refuses what is no URL, and what would carry a token or an address of keys in the clear; to an emulator all may
// be plain.
func (o Options) checkURL(setting, text string, plain bool) error {
	u, err := url.Parse(text)
	if err == nil {
		_, err = net.LookupPort("tcp", u.Port()) // 99999 is none
	}
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.Fragment != "" {
		return fault.New(fault.InvalidConfig, "%s is not a URL that begins with https://", setting).WithField(setting).WithHint("such as https://shop.example/internal/outbox")
	}
	if u.Scheme == "http" && !plain && !isPlain(o.Endpoint) {
		return fault.New(fault.InvalidConfig, "%s is plain http, where everybody on the way could read tokens and sign in", setting).WithField(setting).
			WithHint("use https; plain http is for an emulator, named by --tasks-endpoint http://…")
	}
	return nil
}

// newClient follows no redirection: tokens and keys come from and go to where the settings say, and nowhere else.
func newClient(limit time.Duration) *http.Client {
	return &http.Client{Timeout: limit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func isPlain(text string) bool { return strings.HasPrefix(text, "http://") }

// Send creates tasks for entries of a shard, in order; nil means that the service has all of them. What no task can carry
// is recorded without one. Errors: invalid_config where the queue, its permissions or the settings are wrong, unavailable.
func (q *Queue) Send(ctx context.Context, shard int, entries []drop.OutboxEntry, sending int) error {
	tasks, misfits, err := pack(q.installation, shard, entries, sending)
	if err != nil {
		return err
	}
	if sending > 1 {
		// What was sent before has not come through. To a queue that stands still more of the same is no help.
		if err := q.flows(ctx); err != nil {
			return err
		}
	}
	for _, t := range tasks {
		if err := q.create(ctx, shard, t); err != nil {
			return err
		}
	}
	if len(misfits) == 0 {
		return nil
	}
	q.opt.Log.Warn("entries that no task can carry are recorded without one", "shard", shard, "entries", len(misfits), "first", misfits[0].ID)
	return q.opt.Straight(ctx, misfits)
}

// Barrier says yes: tasks come in any order, so that none can tell of those before it.
func (q *Queue) Barrier(context.Context, int, string) (bool, error) { return true, nil }

// await waits until a shard's next task may be created.
func (q *Queue) await(ctx context.Context, shard int, full bool) error {
	q.mu.Lock()
	at := q.quiet
	if gathered := q.sent[shard].Add(pace); !full && gathered.After(at) {
		at = gathered
	}
	q.mu.Unlock()
	if err := retry.Sleep(ctx, time.Until(at)); err != nil {
		return err
	}
	if err := q.limit.Wait(ctx); err != nil {
		return cmp.Or(ctx.Err(), error(fault.Wrap(fault.Unavailable, err, "the task queue takes no more in time")))
	}
	q.mu.Lock()
	q.sent[shard] = time.Now()
	q.mu.Unlock()
	return nil
}

// leaveAlone keeps all shards from calling the service for a while.
func (q *Queue) leaveAlone(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if until := time.Now().Add(d); until.After(q.quiet) {
		q.quiet = until
	}
}
