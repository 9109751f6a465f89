package cloudtasks

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Health looks at the queue and changes nothing. Errors: fault.Unavailable; fault.InvalidConfig for credentials that do not count.
func (q *Queue) Health(ctx context.Context) (drop.TasksHealth, error) {
	h := drop.TasksHealth{Created: float64(q.opt.PerSecond)}
	status, answer, _, err := q.call(ctx, http.MethodGet, q.opt.Queue, nil)
	switch {
	case err != nil:
		return drop.TasksHealth{}, err
	case status == http.StatusNotFound:
		return h, nil
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		h.Hidden = true
		return h, nil
	case status != http.StatusOK:
		return drop.TasksHealth{}, q.refusal(status, answer)
	}
	state := stateOf(answer)
	if state.State == "" {
		return drop.TasksHealth{}, fault.New(fault.Unavailable, "what answers at %s does not tell of the queue", q.opt.Endpoint).WithField("tasks-endpoint")
	}
	h.Exists, h.Stands, h.Delivered = true, state.stands(), state.RateLimits.PerSecond
	return h, nil
}

// queueState is what the service tells of a queue.
type queueState struct {
	State      string `json:"state"`
	RateLimits struct {
		PerSecond float64 `json:"maxDispatchesPerSecond"`
	} `json:"rateLimits"`
}

func stateOf(answer []byte) (s queueState) {
	if json.Unmarshal(answer, &s) != nil {
		return queueState{}
	}
	return s
}

// stands returns why the queue delivers nothing; "" if it does.
func (s queueState) stands() string {
	if s.State == "PAUSED" || s.State == "DISABLED" {
		return strings.ToLower(s.State)
	}
	return ""
}
