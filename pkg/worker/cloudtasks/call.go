package cloudtasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

const (
	callLimit   = 5 * time.Second // of one call to the service
	patience    = 8 * time.Second // with one task; then the relay hears of the trouble
	firstPause  = 100 * time.Millisecond
	maxPause    = 5 * time.Second
	longestWait = time.Minute // that the service may ask for
	maxAnswer   = 64 << 10
	deadline    = "30s" // that the service gives a delivery; applying a task takes well under a second
)

// create creates a task, and tries again what may pass. That it exists already is success: its name is its content.
func (q *Queue) create(ctx context.Context, shard int, t packed) error {
	body, err := q.request(t)
	if err != nil {
		return err
	}
	var began time.Time
	for failures := 1; ; failures++ {
		if err := q.await(ctx, shard, t.full); err != nil {
			return err
		}
		if failures == 1 {
			began = time.Now() // waiting for one's turn is no trouble
		}
		status, answer, after, err := q.call(ctx, http.MethodPost, q.opt.Queue+"/tasks", body)
		switch {
		case err == nil && (status == http.StatusOK || status == http.StatusConflict):
			return nil
		case err == nil:
			err = q.refusal(status, answer)
		}
		wait := after + retry.Pause(failures, firstPause, maxPause)
		if status == http.StatusTooManyRequests {
			q.leaveAlone(wait)
		}
		passing := status == 0 || status == http.StatusTooManyRequests || status >= 500
		if !passing || !fault.Is(err, fault.Unavailable) || time.Since(began)+wait > patience {
			return err
		}
		if err := retry.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// request is the call that creates a task.
func (q *Queue) request(t packed) ([]byte, error) {
	delivery := map[string]any{"url": q.opt.Target, "httpMethod": http.MethodPost, "body": t.body} // JSON writes bytes in base64
	headers := map[string]string{"Content-Type": "application/json"}
	if q.opt.ServiceAccount != "" {
		delivery["oidcToken"] = map[string]string{"serviceAccountEmail": q.opt.ServiceAccount, "audience": q.opt.Audience}
	} else {
		headers["Authorization"] = "Bearer " + q.opt.Secrets[0]
	}
	delivery["headers"] = headers
	return encode(map[string]any{"task": map[string]any{"name": q.opt.Queue + "/tasks/" + t.name, "httpRequest": delivery, "dispatchDeadline": deadline}})
}

// flows is an error if the service says that the queue delivers nothing at present. If it does not say, it may.
func (q *Queue) flows(ctx context.Context) error {
	status, answer, _, err := q.call(ctx, http.MethodGet, q.opt.Queue, nil)
	if err != nil || status != http.StatusOK {
		return nil //nolint:nilerr // looking at a queue takes a permission that creating tasks does not
	}
	if why := stateOf(answer).stands(); why != "" {
		return fault.New(fault.Unavailable, "the task queue is %s: what it has stays there", why).WithField("tasks-queue").
			WithHint("let it go on: gcloud tasks queues resume; nothing is lost, the outbox keeps it")
	}
	return nil
}

// call makes one call to the service. after is how long it wants to be left alone.
func (q *Queue) call(ctx context.Context, method, path string, body []byte) (status int, answer []byte, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, method, q.opt.Endpoint+"/v2/"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, 0, fault.Wrap(fault.InvalidConfig, err, "the service of task queues cannot be called").WithField("tasks-endpoint")
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := q.http.Do(req)
	if err != nil {
		return 0, nil, 0, q.broken(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return 0, nil, 0, q.broken(ctx, err)
	}
	return resp.StatusCode, answer, min(retry.After(resp.Header), longestWait), nil
}

// broken words a call without an answer. What fetching a token has brought along stays out of it.
func (q *Queue) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.Response != nil && refused.Response.StatusCode/100 == 4 {
		return fault.New(fault.InvalidConfig, "Google gives out no token for the credentials of this process: HTTP %d", refused.Response.StatusCode).
			WithHint("check the service account and its key (GOOGLE_APPLICATION_CREDENTIALS)")
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the URL is said in fewer words below
	}
	return fault.Wrap(fault.Unavailable, err, "no answer from %s", q.opt.Endpoint)
}

// refusal words an answer that is neither the task nor a double.
func (q *Queue) refusal(status int, answer []byte) error {
	var said struct {
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(answer, &said) // an answer of something else says nothing
	what := strings.TrimSpace(said.Error.Status + " " + firstOf(said.Error.Message, 300))
	fail := func(code fault.Code, why string) *fault.Error {
		return fault.New(code, "%s: HTTP %d %s", why, status, what).With("status", status).WithField("tasks-queue")
	}
	switch {
	case status == http.StatusTooManyRequests:
		return fail(fault.Unavailable, "the service of task queues is asked too often").WithHint("it goes on by itself; see the quota of Cloud Tasks, or lower --tasks-per-second")
	case status >= 500:
		return fail(fault.Unavailable, "the service of task queues has trouble").WithHint("it goes on by itself once the service answers")
	case status == http.StatusNotFound:
		return fail(fault.InvalidConfig, "there is no task queue "+q.opt.Queue).WithHint("make it: gcloud tasks queues create; or correct --tasks-queue")
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fail(fault.InvalidConfig, "this process may not create tasks").
			WithHint("its account needs the role roles/cloudtasks.enqueuer on the queue, and roles/iam.serviceAccountUser on --tasks-service-account")
	case said.Error.Status == "FAILED_PRECONDITION":
		return fail(fault.Unavailable, "the task queue takes nothing at present").WithHint("see whether it is disabled: gcloud tasks queues describe")
	}
	return fail(fault.InvalidConfig, "the service of task queues does not take the task").WithHint("check the tasks- settings: dropctl config view --origin; and that --tasks-endpoint is one of Cloud Tasks")
}

// firstOf cuts what somebody else wrote to a length, and to one line of plain text.
func firstOf(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
