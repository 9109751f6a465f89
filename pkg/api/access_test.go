package api_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// often is how often the tests' servers read the keys.
const often = 50 * time.Millisecond

// key records a key and returns its token.
func (s *site) key(t testing.TB, change func(*drop.APIKey)) (token, id string) {
	t.Helper()
	token, id = drop.NewToken()
	_, hash, _ := drop.ReadToken(token)
	k := drop.APIKey{ID: id, Tenant: "shop", Scopes: drop.Scopes(), Hash: hash, CreatedBy: "test"}
	if change != nil {
		change(&k)
	}
	if _, err := s.ledger.CreateKey(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	return token, id
}

func bearer(token string) headers { return headers{"Authorization": "Bearer " + token} }

func TestWhoMayCall(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.keyed, o.noWorker, o.access.Every = true, true, time.Hour })
	s.load(t, drop.Definition{Lot: "hat", Stock: 10})
	good, id := s.key(t, nil)
	expired, expiredID := s.key(t, func(k *drop.APIKey) { k.Expires = time.Now().Add(-time.Second) })
	revoked, revokedID := s.key(t, nil)
	reader, readerID := s.key(t, func(k *drop.APIKey) { k.Scopes = []drop.Scope{drop.ScopeRead} })
	if _, _, err := s.ledger.RevokeKey(t.Context(), revokedID, "test"); err != nil {
		t.Fatal(err)
	}
	if err := s.access.Load(t.Context()); err != nil || s.access.Keys() != 4 {
		t.Fatalf("%v, %d keys", err, s.access.Keys())
	}
	unknown, _ := drop.NewToken()
	wrong := good[:len(good)-1] + string('a'+(good[len(good)-1]-'a'+1)%26)
	const path = "/v1/lots/hat"
	for name, c := range map[string]struct {
		with   headers
		detail string
	}{
		"none":            {nil, "an API key is needed"},
		"unknown":         {bearer(unknown), "not known"},
		"a wrong secret":  {bearer(wrong), "not known"},
		"no token":        {bearer("x"), "malformed"},
		"an empty token":  {headers{"Authorization": "Bearer "}, "malformed"},
		"no scheme":       {headers{"Authorization": good}, "not of the form"},
		"another scheme":  {headers{"Authorization": "Basic " + good}, "not of the form"},
		"a tail":          {bearer(good + " x"), "malformed"},
		"upper case":      {bearer(strings.ToUpper(good)), "malformed"},
		"a long one":      {bearer(strings.Repeat(good, 100)), "malformed"},
		"expired":         {bearer(expired), expiredID + " has expired"},
		"revoked":         {bearer(revoked), revokedID + " is revoked"},
		"two that differ": {headers{"Authorization": "Bearer " + good, "X-Api-Key": reader}, "two different"},
		"an empty header": {headers{"X-Api-Key": ""}, "malformed"},
	} {
		ans := s.call(t, "GET", path, nil, c.with)
		p := refused(t, 401, "unauthorized", ans)
		if challenge := ans.header.Get("Www-Authenticate"); !strings.Contains(p.Detail, c.detail) || !strings.HasPrefix(challenge, `Bearer realm="dropctl"`) || strings.Contains(challenge, "invalid_token") != (name != "none") {
			t.Errorf("%s: %s; %s", name, ans.body, challenge)
		}
	}
	for name, with := range map[string]headers{
		"Authorization": bearer(good), "a scheme in small letters": {"Authorization": "bearer " + good}, "X-API-Key": {"X-Api-Key": good},
		"twice the same": {"Authorization": "Bearer " + good, "X-Api-Key": good},
	} {
		if ans := s.call(t, "GET", path, nil, with); ans.status != 200 {
			t.Errorf("%s: %s", name, ans.body)
		}
	}
	for _, c := range []struct {
		method, path string
		body         any
		scope        string
	}{
		{"POST", path + "/reservations", client.ReserveBody{User: "ada"}, "reserve"},
		{"POST", path + "/pause", client.StatusBody{}, "admin"},
		{"POST", "/v1/reservations/hat~aaaaaaaaaaaaaaaaaaaaaaaaaa~1/confirm", client.ConfirmBody{}, "settle"},
	} {
		p := refused(t, 403, "forbidden", s.call(t, c.method, c.path, c.body, bearer(reader), headers{"Idempotency-Key": "k"}))
		if !strings.Contains(p.Detail, "scope "+c.scope) || !strings.Contains(p.Detail, readerID) || p.Facts["scope"] != c.scope {
			t.Errorf("%s: %+v", c.path, p)
		}
	}
	for _, open := range []string{"/livez", "/readyz", "/openapi.json"} {
		if ans := s.call(t, "GET", open, nil); ans.status != 200 {
			t.Errorf("%s: %d %s", open, ans.status, ans.body)
		}
	}
	log := s.log.String()
	for _, token := range []string{good, expired, revoked, reader, unknown} {
		if strings.Contains(log, token[13:]) {
			t.Error("a token is in the log")
		}
	}
	if !strings.Contains(log, `"key":"`+id+`"`) {
		t.Errorf("the log does not name the key: %s", log)
	}
}

// Two tenants may have users of one name, and do not learn of each other.
func TestTenantsDoNotSeeEachOther(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.keyed, o.noWorker, o.access.Every = true, true, time.Hour })
	s.load(t, drop.Definition{Lot: "hat", Stock: 10, Limit: 1})
	one, _ := s.key(t, nil)
	other, _ := s.key(t, func(k *drop.APIKey) { k.Tenant = "bar" })
	if err := s.access.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	reserve := func(token string) answer {
		return s.call(t, "POST", "/v1/lots/hat/reservations", client.ReserveBody{User: "ada"}, bearer(token), headers{"Idempotency-Key": "k"})
	}
	first, second := into[client.Reservation](t, 201, reserve(one)), into[client.Reservation](t, 201, reserve(other))
	if first.ID == second.ID || first.User != "ada" || second.User != "ada" {
		t.Errorf("%+v, %+v", first, second)
	}
	path := "/v1/reservations/" + first.ID
	missing := refused(t, 404, "not_found", s.call(t, "GET", "/v1/reservations/"+strings.Replace(first.ID, first.ID[4:10], "aaaaaa", 1), nil, bearer(other)))
	for _, call := range []string{"", "/release", "/confirm", "/refund", "/extend"} {
		method, body := "POST", any(map[string]any{})
		switch call {
		case "":
			method, body = "GET", nil
		case "/extend":
			body = client.ExtendBody{By: 60}
		}
		p := refused(t, 404, "not_found", s.call(t, method, path+call, body, bearer(other)))
		if call == "" && strings.ReplaceAll(p.Detail, first.ID, "") == p.Detail && p.Detail != missing.Detail {
			t.Errorf("another's: %s; nobody's: %s", p.Detail, missing.Detail)
		}
	}
	if got := into[client.Reservation](t, 200, s.call(t, "GET", path, nil, bearer(one))); got.State != "held" {
		t.Errorf("%+v", got)
	}
}

// second serves the same shop with another Access, whose keys are read through a proxy; nothing is loaded yet.
type second struct {
	*site
	access *api.Access
	log    *lines
	proxy  *testkit.FaultyProxy
}

// source is a ledger that is opened as soon as it answers, as a server opens it.
type source struct {
	url string

	mu     sync.Mutex
	ledger *ledger.Ledger
}

func (s *source) Keys(ctx context.Context) ([]drop.APIKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger == nil {
		l, err := ledger.Open(ctx, ledger.Options{URL: s.url, Timeout: time.Second})
		if err != nil {
			return nil, err
		}
		s.ledger = l
	}
	return s.ledger.Keys(ctx)
}

func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger != nil {
		s.ledger.Close()
	}
}

func (s *site) again(t *testing.T, o api.AccessOptions) second {
	t.Helper()
	proxy := testkit.Proxy(t, s.db.Server.Addr())
	from := &source{url: proxy.URL(t, s.db.Server.URL(lab.App, s.db.Name))}
	t.Cleanup(from.close)
	log := &lines{}
	o.Source, o.Every, o.Log = from, often, slog.New(slog.NewTextHandler(log, nil))
	access := api.NewAccess(o)
	face := api.New(api.Options{Stock: s.stock, Ledger: s.shop, Lots: s.shop, Access: access, Metrics: s.metrics})
	server := httptest.NewServer(face.Handler())
	t.Cleanup(server.Close)
	copied := *s
	copied.url = server.URL
	return second{&copied, access, log, proxy}
}

// run reads the keys again and again, as a server does.
func (s second) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.access.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// becomes waits until a look at the lot is answered with a status.
func (s second) becomes(t *testing.T, status int, token string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		ans, err := s.try(t.Context(), "GET", "/v1/lots/hat", nil, bearer(token))
		return err == nil && ans.status == status, "it is not " + http.StatusText(status)
	})
}

func TestKeysOutliveTheDatabase(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.access.Every = true, time.Hour })
	s.load(t, drop.Definition{Lot: "hat", Stock: 10})
	old, oldID := s.key(t, nil)
	keys, err := s.ledger.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(keys)
	file := filepath.Join(t.TempDir(), "keys.json")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	look := func(s second, token string) int {
		t.Helper()
		ans, err := s.try(t.Context(), "GET", "/v1/lots/hat", nil, bearer(token))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(s.log.String()+string(ans.body), token[13:]) {
			t.Error("the token is told")
		}
		return ans.status
	}
	load := func(s second) {
		t.Helper()
		if err := s.access.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("while serving", func(t *testing.T) {
		s := s.again(t, api.AccessOptions{})
		load(s)
		s.run(t)
		young, youngID := s.key(t, nil)
		s.becomes(t, 200, young)
		s.proxy.Cut()
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			return strings.Contains(s.log.String(), "cannot be read"), "nobody has noticed"
		})
		if look(s, old) != 200 || look(s, young) != 200 {
			t.Error("a key was forgotten")
		}
		if _, _, err := s.ledger.RevokeKey(t.Context(), youngID, "test"); err != nil {
			t.Fatal(err)
		}
		s.proxy.Heal()
		s.becomes(t, 401, young)
		if n := strings.Count(s.log.String(), "cannot be read"); n != 1 || look(s, old) != 200 || strings.Count(s.log.String(), "are read again") != 1 {
			t.Errorf("the log has it %d times: %s", n, s.log)
		}
	})
	t.Run("at the start", func(t *testing.T) {
		s := s.again(t, api.AccessOptions{Loopback: true})
		s.proxy.Cut()
		load(s)
		// Nobody can know yet whether it is good; and nobody may do all, as if there were no keys.
		refused(t, 503, "unavailable", s.call(t, "GET", "/v1/lots/hat", nil, bearer(old)))
		refused(t, 503, "unavailable", s.call(t, "GET", "/v1/lots/hat", nil))
		if s.access.Ready() == nil {
			t.Error("it is ready")
		}
		s.run(t)
		s.proxy.Heal()
		s.becomes(t, 200, old)
		refused(t, 401, "unauthorized", s.call(t, "GET", "/v1/lots/hat", nil))
		if err := s.access.Ready(); err != nil {
			t.Error(err)
		}
	})
	t.Run("at the start, with a file", func(t *testing.T) {
		s := s.again(t, api.AccessOptions{File: file})
		s.proxy.Cut()
		load(s)
		unknown, _ := drop.NewToken()
		if look(s, old) != 200 || look(s, unknown) != 503 {
			t.Errorf("of the file %d, unknown %d", look(s, old), look(s, unknown))
		}
		refused(t, 401, "unauthorized", s.call(t, "GET", "/v1/lots/hat", nil))
		s.run(t)
		if _, _, err := s.ledger.RevokeKey(t.Context(), oldID, "test"); err != nil {
			t.Fatal(err)
		}
		s.proxy.Heal()
		s.becomes(t, 401, old) // though the file says otherwise
		if look(s, unknown) != 401 {
			t.Errorf("unknown: %d", look(s, unknown))
		}
	})
}

func TestAFileOfKeysIsTakenUpWhenItChanges(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.access.Every = true, time.Hour })
	s.load(t, drop.Definition{Lot: "hat", Stock: 10})
	token, id := drop.NewToken()
	_, hash, _ := drop.ReadToken(token)
	key := drop.APIKey{ID: id, Tenant: "shop", Scopes: []drop.Scope{drop.ScopeRead}, Hash: hash}
	file := filepath.Join(t.TempDir(), "keys.json")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	list := func(keys ...drop.APIKey) []byte {
		text, err := json.Marshal(keys)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	two := s.again(t, api.AccessOptions{File: file, Loopback: true})
	if err := two.access.Load(t.Context()); err == nil {
		t.Error("a file that is not there was loaded")
	}
	write([]byte("[]"))
	if err := two.access.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ans := two.call(t, "GET", "/v1/lots/hat", nil); ans.status != 200 {
		t.Errorf("without any key: %s", ans.body)
	}
	two.run(t)
	write(list(key))
	two.becomes(t, 200, token)
	refused(t, 401, "unauthorized", two.call(t, "GET", "/v1/lots/hat", nil))
	write([]byte("[{"))
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		return strings.Contains(two.log.String(), "cannot be read"), "nobody has noticed"
	})
	two.becomes(t, 200, token)
	key.Revoked = time.Now()
	write(list(key))
	two.becomes(t, 401, token)
	// Of a key that PostgreSQL has too, the end that comes first counts.
	both, bothID := s.key(t, nil)
	two.becomes(t, 200, both)
	_, hash, _ = drop.ReadToken(both)
	write(list(drop.APIKey{ID: bothID, Tenant: "shop", Scopes: drop.Scopes(), Hash: hash, Revoked: time.Now()}))
	two.becomes(t, 401, both)
	// Without any key again, callers without one stay out: somebody has wanted keys here.
	write([]byte("[]"))
	s.db.SQL(t, "DELETE FROM api_keys")
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { return two.access.Keys() == 0, "a key is still there" })
	refused(t, 401, "unauthorized", two.call(t, "GET", "/v1/lots/hat", nil))
}

// A key that is revoked while thousands call with it is refused within seconds, and until then answered.
func TestARevokedKeyIsRefusedWithinSeconds(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.keyed, o.noWorker = true, true }) // at the pace of a real server
	s.load(t, drop.Definition{Lot: "hat", Stock: 10})
	token, id := s.key(t, nil)
	if err := s.access.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.token = token
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for gone := false; ; {
				last := false
				select {
				case <-stop:
					last = true
				default:
				}
				ans, err := s.try(t.Context(), "GET", "/v1/lots/hat", nil)
				if err != nil || ans.status != 401 && (ans.status != 200 || gone || last) {
					t.Errorf("%v, %d, refused before: %v", err, ans.status, gone)
				}
				if gone = ans.status == 401; last || err != nil {
					return
				}
			}
		})
	}
	if _, _, err := s.ledger.RevokeKey(t.Context(), id, "test"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		ans, err := s.try(t.Context(), "GET", "/v1/lots/hat", nil)
		return err == nil && ans.status == 401, "it is still good"
	})
	close(stop)
	callers.Wait()
}

// Who is let in without a key must have asked for this machine: not through a proxy that opens it to the world, nor as a
// page in a browser whose own name was made to point here.
func TestNoKeyIsForThisMachineOnly(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.access.Every = true, time.Hour })
	s.load(t, drop.Definition{Lot: "hat", Stock: 10})
	look := func(host string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/lots/hat", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for host, want := range map[string]int{"localhost": 200, "LOCALHOST:8080": 200, "127.0.0.1": 200, "127.9.9.9:1": 200, "[::1]:8080": 200, "[::1]": 200,
		"shop.example": 401, "shop.example:8080": 401, "192.0.2.1": 401, "localhost.example": 401, "127.0.0.1.example": 401} {
		if got := look(host); got != want {
			t.Errorf("Host %s: %d", host, got)
		}
	}
}

func TestAUserWhoAsksTooOften(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.limits.User = true, api.Rate{Requests: 3, Per: time.Minute} })
	s.load(t, drop.Definition{Lot: "hat", Stock: 10})
	s.load(t, drop.Definition{Lot: "cap", Stock: 10})
	ask := func(lot, user string) answer {
		return s.call(t, "POST", "/v1/lots/"+lot+"/reservations", client.ReserveBody{User: user}, headers{"Idempotency-Key": "k"})
	}
	for i, lot := range []string{"hat", "hat", "cap"} {
		if ans := ask(lot, "ada"); ans.status >= 300 || !strings.HasPrefix(ans.header.Get("RateLimit"), `"user";r=`+string('2'-rune(i))) || ans.header.Get("RateLimit-Policy") != `"user";q=3;w=60` {
			t.Errorf("request %d: %d %v", i, ans.status, ans.header)
		}
	}
	ans := ask("cap", "ada")
	p := refused(t, 429, "rate_limited", ans)
	after, err := strconv.Atoi(ans.header.Get("Retry-After"))
	if err != nil || after < 15 || after > 20 || ans.header.Get("RateLimit") != `"user";r=0;t=`+ans.header.Get("Retry-After") || p.Facts["limit"] != "user" {
		t.Errorf("%v\n%s", ans.header, ans.body)
	}
	if ans := ask("cap", "bob"); ans.status != 201 {
		t.Errorf("another user: %s", ans.body)
	}
	if scraped := s.call(t, "GET", "/metrics", nil); !strings.Contains(string(scraped.body), `dropctl_api_rate_limited_total{kind="user"} 1`) {
		t.Error("it is not counted")
	}
}
