package notify

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
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
