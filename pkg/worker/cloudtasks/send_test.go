package cloudtasks_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker/cloudtasks"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// entries returns n entries of an outbox.
func entries(n int) []drop.OutboxEntry {
	list := make([]drop.OutboxEntry, n)
	for i := range list {
		list[i] = drop.OutboxEntry{ID: fmt.Sprintf("%d-0", i+1), Entry: drop.Entry{Installation: "here", Time: time.UnixMilli(1_700_000_000_000).UTC(), Body: fmt.Sprintf("body\t%d\n", i)}}
	}
	return list
}

// newQueue returns the sender's side of a service whose tasks nobody takes.
func newQueue(t testing.TB, s *service, change func(*cloudtasks.Options)) *cloudtasks.Queue {
	t.Helper()
	o := s.options("http://127.0.0.1:1/internal/outbox")
	if change != nil {
		change(&o)
	}
	q, err := cloudtasks.New(t.Context(), "here", o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestSendingAgainIsADoubleUnlessItIsMeant(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.pause(true)
	q := newQueue(t, s, nil)
	for _, sending := range []int{1, 1} {
		if err := q.Send(t.Context(), 0, entries(3), sending); err != nil {
			t.Fatal(err)
		}
	}
	s.set(func(s *service) {
		if len(s.names) != 1 || s.log.doubles != 1 {
			t.Errorf("%d tasks, %d doubles", len(s.names), s.log.doubles)
		}
	})
	s.set(func(s *service) { s.state = "RUNNING" })
	if err := q.Send(t.Context(), 0, entries(3), 2); err != nil {
		t.Fatal(err)
	}
	s.set(func(s *service) {
		if len(s.names) != 2 {
			t.Errorf("%d tasks after sending again", len(s.names))
		}
	})
}

func TestAnAnswerThatGetsLostIsNoSecondTask(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.set(func(s *service) { s.cut, s.state = 2, "PAUSED" })
	if err := newQueue(t, s, nil).Send(t.Context(), 0, entries(3), 1); err != nil {
		t.Fatal(err)
	}
	s.set(func(s *service) {
		if len(s.log.creates) < 2 || len(s.names) != 1 {
			t.Errorf("%d calls made %d tasks", len(s.log.creates), len(s.names))
		}
	})
}

func TestTroubleThatPassesIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.set(func(s *service) { s.refuse, s.state = []int{503, 429, 503}, "PAUSED" })
	if err := newQueue(t, s, nil).Send(t.Context(), 0, entries(1), 1); err != nil {
		t.Fatal(err)
	}
	s.set(func(s *service) {
		if len(s.log.creates) != 4 {
			t.Errorf("%d calls", len(s.log.creates))
		}
	})
}

// Where the service asks one shard to leave it alone, every other shard leaves it alone too.
func TestTooManyRequestsHoldAllShardsBack(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	s := newService(t)
	s.set(func(s *service) { s.refuse, s.after, s.state = []int{429}, "2", "PAUSED" })
	q := newQueue(t, s, nil)
	sent := make(chan error, 1)
	go func() { sent <- q.Send(t.Context(), 0, entries(1), 1) }()
	held := false
	for shard := 1; ; shard++ {
		began := time.Now()
		if err := q.Send(t.Context(), shard, entries(1), 1); err != nil {
			t.Fatal(err)
		}
		held = held || time.Since(began) > time.Second
		select {
		case err := <-sent:
			if err != nil || !held {
				t.Errorf("no other shard waited (%v)", err)
			}
			return
		default:
		}
	}
}

func TestNoMoreTasksASecondThanAllowed(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	s := newService(t)
	s.pause(true)
	q := newQueue(t, s, func(o *cloudtasks.Options) { o.PerSecond = 20 })
	began := time.Now()
	var all sync.WaitGroup
	for shard := range 41 {
		all.Go(func() {
			if err := q.Send(t.Context(), shard, entries(1), 1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took < 1900*time.Millisecond {
		t.Errorf("41 tasks within %s", took)
	}
}

// Entries gather while a task that is not full waits behind the one before.
func TestTasksOfAShardKeepTheirDistance(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.pause(true)
	q := newQueue(t, s, nil)
	for i := range 10 {
		if err := q.Send(t.Context(), 0, entries(i+1), 1); err != nil {
			t.Fatal(err)
		}
	}
	s.set(func(s *service) {
		if first, last := s.log.creates[0], s.log.creates[9]; last.Sub(first) < 150*time.Millisecond {
			t.Errorf("ten tasks within %s", last.Sub(first))
		}
	})
}

func TestWhatSomebodyMustPutRightIsSaid(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]struct {
		code fault.Code
		hint string
	}{
		403: {fault.InvalidConfig, "roles/cloudtasks.enqueuer"},
		404: {fault.InvalidConfig, "gcloud tasks queues create"},
		400: {fault.Unavailable, "gcloud tasks queues describe"},
	} {
		s := newService(t)
		s.set(func(s *service) { s.refuse, s.message = []int{status}, "why\x1b[31m not" })
		err := newQueue(t, s, nil).Send(t.Context(), 0, entries(1), 1)
		if !fault.Is(err, want.code) || !strings.Contains(fault.HintOf(err), want.hint) || strings.Contains(err.Error(), "\x1b") || !strings.Contains(err.Error(), "why") {
			t.Errorf("HTTP %d: %v (%s)", status, err, fault.HintOf(err))
		}
	}
}

func TestAQueueThatStandsStillGetsNoMoreOfTheSame(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.pause(true)
	q := newQueue(t, s, nil)
	if err := q.Send(t.Context(), 0, entries(1), 1); err != nil {
		t.Fatal("a paused queue takes tasks:", err)
	}
	if err := q.Send(t.Context(), 0, entries(1), 2); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "paused") || !strings.Contains(fault.HintOf(err), "queues resume") {
		t.Errorf("sent again: %v", err)
	}
	s.set(func(s *service) {
		if len(s.names) != 1 {
			t.Errorf("%d tasks", len(s.names))
		}
	})
}

// Health tells what the service says of the queue, and what it will not say.
func TestTheQueueTellsHowItIs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	q := newQueue(t, s, nil)
	is := func(want drop.TasksHealth) {
		t.Helper()
		want.Created = cloudtasks.MostPerSecond
		if got, err := q.Health(t.Context()); err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	is(drop.TasksHealth{Exists: true, Delivered: 500})
	s.pause(true)
	is(drop.TasksHealth{Exists: true, Delivered: 500, Stands: "paused"})
	s.set(func(s *service) { s.look = http.StatusNotFound })
	is(drop.TasksHealth{})
	s.set(func(s *service) { s.look = http.StatusForbidden })
	is(drop.TasksHealth{Hidden: true})
	s.set(func(s *service) { s.look = http.StatusInternalServerError })
	if _, err := q.Health(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a service in trouble: %v", err)
	}
}

func TestWhatNoTaskCarriesGoesStraight(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.pause(true)
	var straight []drop.OutboxEntry
	q := newQueue(t, s, func(o *cloudtasks.Options) {
		o.Straight = func(_ context.Context, e []drop.OutboxEntry) error { straight = append(straight, e...); return nil }
	})
	list := entries(3)
	list[1].Body = strings.Repeat("x", 1<<20)
	if err := q.Send(t.Context(), 0, list, 1); err != nil {
		t.Fatal(err)
	}
	if len(straight) != 1 || straight[0] != list[1] {
		t.Errorf("%d entries went straight", len(straight))
	}
}

func TestSettingsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	good := cloudtasks.Options{Queue: queueName, Endpoint: "http://127.0.0.1:1", Target: "http://127.0.0.1:2/internal/outbox", ServiceAccount: account}
	if _, err := cloudtasks.New(t.Context(), "here", good); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*cloudtasks.Options){
		"tasks-queue":           func(o *cloudtasks.Options) { o.Queue = "" },
		"tasks-queue ":          func(o *cloudtasks.Options) { o.Queue = "projects/a/locations/b/queues/c/../d" },
		"tasks-target":          func(o *cloudtasks.Options) { o.Target = "" },
		"tasks-target ":         func(o *cloudtasks.Options) { o.Target = "shop.example/internal/outbox" },
		"tasks-target  ":        func(o *cloudtasks.Options) { o.Endpoint = "https://tasks.example" }, // the target is plain
		"tasks-endpoint":        func(o *cloudtasks.Options) { o.Endpoint = "ftp://x" },
		"tasks-service-account": func(o *cloudtasks.Options) { o.ServiceAccount = "" },
		"tasks-secret-file":     func(o *cloudtasks.Options) { o.Secrets = []string{"short"} },
	} {
		o := good
		change(&o)
		_, err := cloudtasks.New(t.Context(), "here", o)
		if err == nil || fault.As(err).Field != strings.TrimSpace(field) || fault.ExitOf(err) != fault.ExitUsage || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// google is the service with credentials asked for: over TLS, with a place that gives out tokens.
func google(t *testing.T, tokens http.HandlerFunc, calls http.HandlerFunc) *cloudtasks.Queue {
	t.Helper()
	giver := httptest.NewServer(tokens)
	t.Cleanup(giver.Close)
	server := httptest.NewTLSServer(calls)
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	der, err := x509.MarshalPKCS8PrivateKey(signingKey())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "account.json")
	text, err := json.Marshal(map[string]string{"type": "service_account", "client_email": account, "private_key_id": "one", "token_uri": giver.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	q, err := cloudtasks.New(t.Context(), "here", cloudtasks.Options{Queue: queueName, Endpoint: server.URL, Target: audience, ServiceAccount: account})
	if err != nil {
		t.Fatal(err)
	}
	q.Through(server.Client().Transport)
	return q
}

func TestCredentialsGoToTheServiceOnly(t *testing.T) {
	var asked []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirection was followed") }))
	t.Cleanup(elsewhere.Close)
	q := google(t, func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, http.StatusOK, map[string]any{"access_token": "let-me-in", "token_type": "Bearer", "expires_in": 3600})
	}, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Authorization")+" "+r.URL.Path)
		if len(asked) > 1 {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		answerJSON(w, http.StatusOK, map[string]string{})
	})
	if err := q.Send(t.Context(), 0, entries(1), 1); err != nil {
		t.Fatal(err)
	}
	if err := q.Send(t.Context(), 0, entries(2), 1); !fault.Is(err, fault.InvalidConfig) {
		t.Errorf("redirected: %v", err)
	}
	if want := "Bearer let-me-in /v2/" + queueName + "/tasks"; asked[0] != want {
		t.Errorf("asked %q", asked)
	}
}

func TestCredentialsThatDoNotCountAreSaid(t *testing.T) {
	q := google(t, func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant", "error_description": "secret words"})
	}, func(http.ResponseWriter, *http.Request) { t.Error("called without a token") })
	err := q.Send(t.Context(), 0, entries(1), 1)
	if !fault.Is(err, fault.InvalidConfig) || strings.Contains(err.Error(), "secret words") || !strings.Contains(fault.HintOf(err), "GOOGLE_APPLICATION_CREDENTIALS") {
		t.Errorf("%v", err)
	}
}
