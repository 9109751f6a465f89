package notify

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Queue is the ledger's queue of notices. All of it may be called by any number of workers at once.
type Queue interface {
	// RaiseNotices queues what was only noted so far and whose time has come, and returns how much that was.
	RaiseNotices(ctx context.Context) (int, error)
	// DueHooks returns the hooks that have something to be sent now.
	DueHooks(ctx context.Context) ([]string, error)
	// ClaimDeliveries gives a worker up to limit notices of a hook to send within the lease.
	ClaimDeliveries(ctx context.Context, worker, hook string, lease time.Duration, limit int) (drop.HookClaim, error)
	// FinishDeliveries records how they ended. away says that the receiver answered none, and for how long it is left alone.
	FinishDeliveries(ctx context.Context, claim drop.HookClaim, sent []drop.Sent, away time.Duration) error
	// PruneDeliveries gives up what was tried for too long, returns how many that were, and deletes what is long over.
	PruneDeliveries(ctx context.Context) (parked int64, err error)
}

const (
	atOnce     = 16 // notices of one hook sent at the same time by one worker
	lease      = 30 * time.Second
	lookEvery  = 250 * time.Millisecond
	lookIdle   = 500 * time.Millisecond // where there was nothing to send
	pruneEvery = time.Minute
	tellEvery  = time.Minute     // how often the log says that a receiver does not take what it is sent
	stopLimit  = 2 * time.Second // for what is being sent when the worker stops

	firstPause   = time.Second
	longestPause = time.Hour   // of one notice that its receiver refuses
	longestAway  = time.Minute // of a receiver that does not answer: one notice is sent now and then to find out
)

// Notifier sends what is in the queue. Its fields are set before Run, which is called once.
type Notifier struct {
	Queue  Queue
	Sender *Sender
	Worker string // a name that no other process has
	Log    *slog.Logger
	Fine   func()                 // called after each look at the queue that went well
	Count  func(drop.SendOutcome) // called for each attempt that ended
	Parked func(notices int64)    // called for notices that were given up

	rounds sync.WaitGroup
	failed chan error // the first error of a round
	mu     sync.Mutex
	busy   map[string]bool    // hooks that are being served; behind mu
	told   map[string]trouble // what the log says of hooks that have not taken all they were sent; behind mu
}

// trouble is what the log says of a hook.
type trouble struct {
	last time.Time // when it was told that notices are not taken
	more int       // notices that were not taken since then
	over bool      // it took them again
}

// Run sends until the context ends, and returns an error of the queue. What wakes it is a hint that something is new.
func (n *Notifier) Run(ctx context.Context, wake <-chan struct{}) error {
	n.busy, n.told, n.failed = map[string]bool{}, map[string]trouble{}, make(chan error, 1)
	ctx, stop := context.WithCancel(ctx)
	defer n.rounds.Wait()
	defer stop()
	var pruned time.Time
	for {
		pause, err := n.look(ctx)
		if err != nil {
			return err
		}
		if time.Since(pruned) > pruneEvery {
			if err := n.prune(ctx); err != nil {
				return err
			}
			pruned = time.Now()
		}
		n.Fine()
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case err := <-n.failed:
			timer.Stop()
			return err
		case <-wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// look begins to serve each hook that has something to be sent, on its own, so that none waits for the receiver of another.
func (n *Notifier) look(ctx context.Context) (pause time.Duration, err error) {
	raised, err := n.Queue.RaiseNotices(ctx)
	if err != nil {
		return 0, err
	}
	hooks, err := n.Queue.DueHooks(ctx)
	for _, hook := range hooks {
		if n.begin(hook) {
			n.rounds.Go(func() { n.serve(ctx, hook) })
		}
	}
	if raised+len(hooks) > 0 {
		return lookEvery, err
	}
	return lookIdle, err
}

func (n *Notifier) begin(hook string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy[hook] {
		return false
	}
	n.busy[hook] = true
	return true
}

func (n *Notifier) end(hook string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.busy, hook)
}

func (n *Notifier) prune(ctx context.Context) error {
	parked, err := n.Queue.PruneDeliveries(ctx)
	if err == nil && parked > 0 {
		n.Parked(parked)
		n.Log.Error("notices were given up after three days", "count", parked, "next", "dropctl hook list")
	}
	return err
}

// serve sends what a hook has, round by round, until nothing is left that may be sent now.
func (n *Notifier) serve(ctx context.Context, hook string) {
	defer n.end(hook)
	for ctx.Err() == nil {
		claim, err := n.Queue.ClaimDeliveries(context.WithoutCancel(ctx), n.Worker, hook, lease, atOnce)
		if err == nil && len(claim.Deliveries) == 0 {
			return
		}
		if err == nil {
			err = n.finish(ctx, claim, n.sendAll(ctx, claim))
		}
		if err != nil {
			select {
			case n.failed <- err:
			default:
			}
			return
		}
	}
}

// sendAll sends a claim, all of it at once. When the worker stops, what is on its way gets a moment; what is broken off then
// is left out of the outcome, and comes back when its lease ends.
func (n *Notifier) sendAll(ctx context.Context, claim drop.HookClaim) []outcome {
	within, breakOff := context.WithCancel(context.WithoutCancel(ctx))
	defer breakOff()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(stopLimit, breakOff) })()
	all := make([]outcome, len(claim.Deliveries))
	var sending sync.WaitGroup
	for i, d := range claim.Deliveries {
		sending.Go(func() {
			answer, err := n.Sender.Send(within, claim.Hook, claim.Secret, DeliveryID(claim.ID, d.ID), d.Notice)
			if err != nil {
				answer = Answer{Outcome: drop.Refused, Why: err.Error()}
			}
			all[i] = outcome{d, answer}
		})
	}
	sending.Wait()
	return slices.DeleteFunc(all, func(o outcome) bool { return within.Err() != nil && o.Outcome == drop.Failed })
}

// outcome is a notice and what became of the attempt to deliver it.
type outcome struct {
	drop.Delivery
	Answer
}

// DeliveryID is the id that a receiver sees: the same at each attempt, and another for each hook.
func DeliveryID(hook string, id int64) string { return fmt.Sprintf("%s-%d", hook, id) }

// finish records how a round ended, and tries to for as long as its lease lasts: what is not recorded is sent again. A
// receiver that answered nothing is left alone for a while; one that refuses a notice is only spared that one.
func (n *Notifier) finish(ctx context.Context, claim drop.HookClaim, outcomes []outcome) error {
	if len(outcomes) == 0 {
		return nil
	}
	var sent []drop.Sent
	away := max(retry.Pause(claim.Failures+1, firstPause, longestAway), time.Millisecond)
	answers := false
	for _, o := range outcomes {
		n.Count(o.Outcome)
		answers = answers || o.Outcome != drop.Failed
		away = max(away, o.After)
		sent = append(sent, drop.Sent{ID: o.ID, Outcome: o.Outcome, Why: o.Why, Retry: max(retry.Pause(o.Attempts, firstPause, longestPause), o.After)})
	}
	if answers {
		away = 0
	}
	n.say(claim, outcomes, answers)
	for failures := 1; ; failures++ {
		err := n.Queue.FinishDeliveries(context.WithoutCancel(ctx), claim, sent, away)
		if err == nil || time.Now().After(claim.Until) || ctx.Err() != nil {
			return err
		}
		_ = retry.Sleep(ctx, retry.Pause(failures, firstPause/10, firstPause)) // cut short by a stop, which leaves one more attempt
	}
}

// say logs that a receiver does not take what it is sent: when that begins, then once a minute with the number of notices, and
// when it is over. One that takes some and refuses others makes no more lines than that.
func (n *Notifier) say(claim drop.HookClaim, outcomes []outcome, answers bool) {
	bad := slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return o.Outcome == drop.Delivered })
	n.mu.Lock()
	defer n.mu.Unlock()
	t, known := n.told[claim.ID]
	switch {
	case len(bad) == 0 && (known && !t.over || !known && claim.Failures > 0):
		n.Log.Info("a receiver takes notices again", "hook", claim.ID, "not_taken", t.more)
		t.over, t.more = true, 0
	case len(bad) == 0 && time.Since(t.last) >= tellEvery:
		delete(n.told, claim.ID)
		return
	case len(bad) > 0 && time.Since(t.last) >= tellEvery:
		what := "a receiver refuses notices; trying each again less and less often"
		if !answers {
			what = "a receiver of notices fails; trying again until it answers"
		}
		n.Log.Warn(what, "hook", claim.ID, "notices", t.more+len(bad), "kind", bad[0].Notice.Kind, "lot", bad[0].Notice.Lot, "why", bad[0].Why, "next", "dropctl hook test "+claim.ID)
		t = trouble{last: time.Now()}
	default:
		t.more += len(bad)
	}
	n.told[claim.ID] = t
}
