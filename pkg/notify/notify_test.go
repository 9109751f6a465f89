package notify

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// endless is a queue with one hook that always has another notice, and which then breaks.
type endless struct {
	url    string
	broken error
	sent   atomic.Int64
}

func (q *endless) RaiseNotices(context.Context) (int, error) { return 0, nil }

func (q *endless) DueHooks(context.Context) ([]string, error) {
	if q.sent.Load() > 0 {
		return nil, q.broken
	}
	return []string{"k3bt7q2m"}, nil
}

func (q *endless) ClaimDeliveries(_ context.Context, worker, hook string, lease time.Duration, _ int) (drop.HookClaim, error) {
	return drop.HookClaim{Hook: drop.Hook{ID: hook, URL: q.url, AllowPrivate: true}, Worker: worker, Until: time.Now().Add(lease), Deliveries: make([]drop.Delivery, 1)}, nil
}

func (q *endless) FinishDeliveries(_ context.Context, _ drop.HookClaim, sent []drop.Sent, _ time.Duration) error {
	q.sent.Add(int64(len(sent)))
	return nil
}

func (q *endless) PruneDeliveries(context.Context) (int64, error) { return 0, nil }

// A hook that always has something to send does not keep a notifier in trouble from beginning anew, for all the others.
func TestATroubleEndsAllRounds(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(receiver.Close)
	q := &endless{url: receiver.URL, broken: errors.New("the queue is broken")}
	sender := NewSender("test")
	t.Cleanup(sender.Close)
	n := Notifier{Queue: q, Sender: sender, Worker: "test", Log: slog.New(slog.DiscardHandler), Fine: func() {}, Count: func(drop.SendOutcome) {}, Parked: func(int64) {}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx, nil) }()
	select {
	case err := <-ended:
		if !errors.Is(err, q.broken) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		cancel()
		t.Errorf("it goes on sending, and looks at nothing else; then it ended with %v", <-ended)
	}
}

// A receiver that refuses all, or some, of what it is sent makes a line a minute, not one a notice.
func TestATroubleIsToldOnceAMinute(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	n := Notifier{Log: slog.New(slog.NewTextHandler(&log, nil)), told: map[string]trouble{}}
	said := func() int { defer log.Reset(); return bytes.Count(log.Bytes(), []byte("\n")) }
	round := func(hook string, outcome1, outcome2 drop.SendOutcome) {
		claim := drop.HookClaim{Hook: drop.Hook{ID: hook}}
		n.say(claim, []outcome{{Answer: Answer{Outcome: outcome1}}, {Answer: Answer{Outcome: outcome2}}}, outcome1 != drop.Failed || outcome2 != drop.Failed)
	}
	aMinutePasses := func() {
		for id, t := range n.told {
			t.last = t.last.Add(-tellEvery)
			n.told[id] = t
		}
	}
	for range 100 {
		round("refuses", drop.Refused, drop.Refused)
		round("some", drop.Refused, drop.Delivered)
		round("fails", drop.Failed, drop.Failed)
	}
	if lines := said(); lines != 3 {
		t.Errorf("%d lines of three receivers that begin to fail", lines)
	}
	aMinutePasses()
	for range 100 {
		round("refuses", drop.Refused, drop.Refused)
	}
	if text := log.String(); said() != 1 || !strings.Contains(text, "notices=200") {
		t.Errorf("a minute later: %s", text)
	}
	for range 100 {
		round("refuses", drop.Delivered, drop.Delivered)
		round("refuses", drop.Refused, drop.Refused)
	}
	if lines := said(); lines != 1 {
		t.Errorf("%d lines of one that takes notices again, and again not", lines)
	}
	aMinutePasses()
	round("refuses", drop.Refused, drop.Delivered)
	round("refuses", drop.Delivered, drop.Delivered)
	if lines := said(); lines != 2 {
		t.Errorf("%d lines of the next trouble and its end", lines)
	}
	aMinutePasses()
	round("refuses", drop.Delivered, drop.Delivered)
	if _, known := n.told["refuses"]; known || said() > 0 {
		t.Error("one that is fine again is not forgotten")
	}
}
