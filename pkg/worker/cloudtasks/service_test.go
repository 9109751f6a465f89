package cloudtasks_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/time/rate"

	"github.com/dropctl/dropctl/pkg/worker/cloudtasks"
)

const (
	queueName = "projects/shop/locations/europe-west8/queues/dropctl"
	account   = "tasks@shop.iam.gserviceaccount.com"
	audience  = "https://shop.example/internal/outbox"
)

// signingKey is made once: it takes a while.
var signingKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// service behaves as Cloud Tasks does towards its callers: it takes tasks, knows the names of all it ever had, and delivers
// each until it is answered with success, at a bounded rate and with growing pauses. It also does what Cloud Tasks does
// seldom: delivers twice, out of order and late.
type service struct {
	url    string
	keys   string // URL of the keys that it signs with
	log    *log
	cancel context.CancelFunc
	all    sync.WaitGroup
	limit  *rate.Limiter

	mu      sync.Mutex
	names   map[string]bool
	waiting []*job
	state   string
	troubles
}

// troubles are what a test may have the service do. Guarded by its mutex.
type troubles struct {
	twice   bool          // deliver everything a second time
	late    time.Duration // deliver everything at some time in the second half of it, and so out of order
	cut     int           // so many calls get no answer, though they were carried out
	refuse  []int         // statuses for the next calls, instead of carrying them out
	after   string        // Retry-After of such
	message string        // its error
	look    int           // the status that a look at the queue gets, instead of an answer
}

// log is what the service saw. Guarded by its mutex.
type log struct {
	creates  []time.Time // calls that create tasks
	doubles  int         // of a name that there was already
	answers  map[int]int // by status
	bodies   [][]byte    // of tasks taken
	retried  int         // deliveries beyond the first of a task
	lastBody string      // of the last answer but success
}

type job struct {
	name, url string
	headers   map[string]string
	body      []byte
	oidc      *struct{ ServiceAccountEmail, Audience string }
	due       time.Time
	retries   int
}

// newService starts one that delivers at most 500 tasks a second.
func newService(t testing.TB) *service {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &service{names: map[string]bool{}, state: "RUNNING", cancel: cancel, limit: rate.NewLimiter(cloudtasks.MostPerSecond, 100), log: &log{answers: map[int]int{}}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/"+queueName+"/tasks", s.create)
	mux.HandleFunc("GET /v2/"+queueName, func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.look != 0 {
			refuse(w, s.look, "REFUSED", "no look")
			return
		}
		answerJSON(w, http.StatusOK, map[string]any{"name": queueName, "state": s.state, "rateLimits": map[string]any{"maxDispatchesPerSecond": 500, "maxBurstSize": 100}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=3600")
		answerJSON(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: signingKey().Public(), KeyID: "one", Algorithm: "RS256", Use: "sig"}}})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "NOT_FOUND", "Requested entity was not found.")
	})
	server := httptest.NewServer(mux)
	s.url, s.keys = server.URL, server.URL+"/keys"
	s.all.Go(func() { s.run(ctx) })
	t.Cleanup(func() {
		cancel()
		s.all.Wait()
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// options are those of a worker and a server that use the service.
func (s *service) options(target string) cloudtasks.Options {
	return cloudtasks.Options{Queue: queueName, Endpoint: s.url, Target: target, ServiceAccount: account, Audience: audience, KeysURL: s.keys}
}

// set changes what the service does, or reads what it saw.
func (s *service) set(change func(*service)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// count returns how often deliveries were answered with a status.
func (s *service) count(status int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.answers[status]
}

func (s *service) pause(yes bool) {
	s.set(func(s *service) {
		s.state = map[bool]string{true: "PAUSED", false: "RUNNING"}[yes]
	})
}

// purge throws away what was not delivered, and returns how much it was.
func (s *service) purge() (lost int) {
	s.set(func(s *service) { lost, s.waiting = len(s.waiting), nil })
	return lost
}

func (s *service) create(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Task struct {
			Name         string
			ScheduleTime time.Time
			HTTPRequest  struct {
				URL, HTTPMethod string
				Headers         map[string]string
				Body            []byte
				OIDCToken       *struct{ ServiceAccountEmail, Audience string }
			}
		}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 2<<20))
	if err != nil || json.Unmarshal(body, &q) != nil || len(body) > 1<<20 || q.Task.HTTPRequest.HTTPMethod != http.MethodPost {
		refuse(w, http.StatusBadRequest, "INVALID_ARGUMENT", "The request is malformed, or larger than 1 MiB.")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.creates = append(s.log.creates, time.Now())
	if len(s.troubles.refuse) > 0 {
		status := s.troubles.refuse[0]
		s.troubles.refuse = s.troubles.refuse[1:]
		w.Header().Set("Retry-After", s.after)
		refuse(w, status, map[int]string{403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 400: "FAILED_PRECONDITION", 503: "UNAVAILABLE"}[status], s.message)
		return
	}
	if s.names[q.Task.Name] {
		s.log.doubles++
		refuse(w, http.StatusConflict, "ALREADY_EXISTS", "The task cannot be created because a task with this name existed too recently.")
		return
	}
	s.names[q.Task.Name] = true
	h := q.Task.HTTPRequest
	s.log.bodies = append(s.log.bodies, h.Body)
	for range map[bool]int{false: 1, true: 2}[s.twice] {
		due := q.Task.ScheduleTime
		if s.late > 0 {
			due = time.Now().Add(s.late/2 + mathrand.N(s.late/2))
		}
		s.waiting = append(s.waiting, &job{name: q.Task.Name, url: h.URL, headers: h.Headers, body: h.Body, oidc: h.OIDCToken, due: due})
	}
	if s.cut > 0 {
		s.cut--
		panic(http.ErrAbortHandler)
	}
	answerJSON(w, http.StatusOK, map[string]string{"name": q.Task.Name})
}

// run delivers what is due.
func (s *service) run(ctx context.Context) {
	for ctx.Err() == nil {
		j := s.next()
		if j == nil {
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Millisecond):
			}
			continue
		}
		if s.limit.Wait(ctx) == nil {
			s.all.Go(func() { s.deliver(ctx, j) })
		}
	}
}

// next takes a due task out of the queue.
func (s *service) next() *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != "RUNNING" {
		return nil
	}
	for i, j := range s.waiting {
		if !time.Now().Before(j.due) {
			s.waiting = append(s.waiting[:i:i], s.waiting[i+1:]...)
			return j
		}
	}
	return nil
}

// deliver makes one delivery. One that fails comes again, after a pause that grows or for as long as the answer asks.
func (s *service) deliver(ctx context.Context, j *job) {
	status, after, text := s.post(ctx, j)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.answers[status]++
	if status/100 == 2 {
		return
	}
	s.log.retried++
	s.log.lastBody = text
	pause := min(100*time.Millisecond<<min(j.retries, 10), time.Second)
	if seconds, err := strconv.Atoi(after); err == nil {
		pause = max(pause, time.Duration(seconds)*time.Second)
	}
	j.retries++
	j.due = time.Now().Add(pause)
	s.waiting = append(s.waiting, j)
}

func (s *service) post(ctx context.Context, j *job) (status int, after, text string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, j.url, bytes.NewReader(j.body))
	if err != nil {
		return 0, "", err.Error()
	}
	for name, value := range j.headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("User-Agent", "Google-Cloud-Tasks")
	r.Header.Set("X-CloudTasks-TaskName", j.name[strings.LastIndex(j.name, "/")+1:])
	r.Header.Set("X-CloudTasks-TaskRetryCount", strconv.Itoa(j.retries))
	if j.oidc != nil {
		r.Header.Set("Authorization", "Bearer "+signed(j.oidc.ServiceAccountEmail, j.oidc.Audience, nil))
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Retry-After"), string(answer)
}

// signed returns a token as Google signs it, or as change makes it.
func signed(email, audience string, change func(claims map[string]any)) string {
	now := time.Now().Unix()
	c := map[string]any{"iss": "https://accounts.google.com", "aud": audience, "azp": "1", "sub": "1", "email": email, "email_verified": true, "iat": now, "exp": now + 3600}
	if change != nil {
		change(c)
	}
	return signedBy(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: signingKey(), KeyID: "one"}}, c)
}

func signedBy(key jose.SigningKey, claims map[string]any) string {
	signer, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		panic(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		panic(err)
	}
	return token
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// refuse answers as Google's services do.
func refuse(w http.ResponseWriter, status int, name, message string) {
	answerJSON(w, status, map[string]any{"error": map[string]any{"code": status, "status": name, "message": message}})
}
