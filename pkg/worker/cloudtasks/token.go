package cloudtasks

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/dropctl/dropctl/pkg/fault"
)

// issuers are the names under which Google signs tokens.
var issuers = []string{"https://accounts.google.com", "accounts.google.com"}

const (
	leeway    = 30 * time.Second // between two clocks
	keysLimit = 5 * time.Second  // of fetching the keys
	keysGap   = 10 * time.Second // between two fetches: a stranger's key id must not make one each
	keysFresh = time.Hour        // unless the server says otherwise
	keysLeast = 5 * time.Minute  // that they are fresh, whatever the server says
	keysOld   = 24 * time.Hour   // keys that cannot be fetched anew still count for so long
	maxKeys   = 1 << 20
)

// signer checks tokens that the service signs in the name of an account. Safe for concurrent use.
type signer struct {
	account, audience string
	keys              *keySet
}

func newSigner(o Options) *signer {
	return &signer{account: o.ServiceAccount, audience: o.Audience, keys: &keySet{url: o.KeysURL, http: newClient(keysLimit)}}
}

// claims are what a token says.
type claims struct {
	jwt.Claims
	Email    string `json:"email"`
	Verified bool   `json:"email_verified"`
}

// check is an error unless a token is Google's, for this server, in the name of the account, and in force.
func (s *signer) check(ctx context.Context, token string) error {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil || len(parsed.Headers) != 1 {
		return refused("it is not a signed token")
	}
	key, err := s.keys.find(ctx, parsed.Headers[0].KeyID)
	if err != nil {
		return err
	}
	var c claims
	if key == nil || parsed.Claims(key.Key, &c) != nil {
		return refused("its signature is not Google's")
	}
	switch err := c.ValidateWithLeeway(jwt.Expected{AnyAudience: jwt.Audience{s.audience}, Time: time.Now()}, leeway); {
	case errors.Is(err, jwt.ErrInvalidAudience):
		return refused("it is for another audience than " + s.audience)
	case err != nil || c.Expiry == nil:
		return refused("it is not in force: too old, or from the future")
	case !slices.Contains(issuers, c.Issuer):
		return refused("its issuer is not Google")
	case c.Email != s.account || !c.Verified:
		return fault.New(fault.Forbidden, "the token of the delivery is that of another account").WithHint("deliveries come in the name of --tasks-service-account")
	}
	return nil
}

func refused(why string) error {
	return fault.New(fault.Unauthorized, "the token of the delivery does not count: %s", why).
		WithHint("see that worker and server have the same --tasks-service-account, --tasks-target and --tasks-audience, and the right time")
}

// keySet is the keys that a URL publishes, fetched when they are needed and no longer fresh.
type keySet struct {
	url  string
	http *http.Client

	known atomic.Pointer[keys]
	mu    sync.Mutex // held while they are fetched
	tried time.Time  // when they were fetched last, or could not be
}

// keys is what was fetched. It never changes.
type keys struct {
	byID    map[string]jose.JSONWebKey
	fetched time.Time
	until   time.Time // they are fresh
}

// find returns the key with an id; nil if there is none. Its error is unavailable if the keys cannot be had.
func (k *keySet) find(ctx context.Context, id string) (*jose.JSONWebKey, error) {
	known, now := k.known.Load(), time.Now()
	if key := known.key(id, now); key != nil && now.Before(known.until) {
		return key, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	if known == k.known.Load() && time.Since(k.tried) > keysGap { // nobody else has just done it
		var fetched *keys
		// For everybody, so that a stranger who hangs up does not break it off.
		if fetched, err = k.fetch(context.WithoutCancel(ctx)); err == nil {
			k.known.Store(fetched)
		}
		k.tried = time.Now()
	}
	known = k.known.Load()
	switch key := known.key(id, now); {
	case key != nil:
		return key, nil
	case err != nil:
		return nil, err
	case known == nil:
		return nil, fault.New(fault.Unavailable, "the keys that tokens are signed with could not be fetched a moment ago")
	}
	return nil, nil
}

// key returns a key that counts; nil if there is none.
func (k *keys) key(id string, now time.Time) *jose.JSONWebKey {
	if k == nil || now.Sub(k.fetched) > keysOld {
		return nil
	}
	if key, ok := k.byID[id]; ok {
		return &key
	}
	return nil
}

func (k *keySet) fetch(ctx context.Context) (*keys, error) {
	fail := func(err error) (*keys, error) {
		return nil, fault.Wrap(fault.Unavailable, err, "the keys that tokens are signed with cannot be fetched from %s", k.url).
			WithHint("see that this server reaches --tasks-keys-url")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, http.NoBody)
	if err != nil {
		return fail(err)
	}
	resp, err := k.http.Do(req)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeys))
	if err != nil {
		return fail(err)
	}
	if resp.StatusCode != http.StatusOK {
		return fail(errors.New("HTTP " + strconv.Itoa(resp.StatusCode)))
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(body, &set); err != nil {
		return fail(err)
	}
	now := time.Now()
	found := &keys{byID: map[string]jose.JSONWebKey{}, fetched: now, until: now.Add(freshFor(resp.Header.Get("Cache-Control")))}
	for _, key := range set.Keys {
		if key.IsPublic() && key.Valid() && (key.Use == "" || key.Use == "sig") {
			found.byID[key.KeyID] = key
		}
	}
	if len(found.byID) == 0 {
		return fail(errors.New("there are no keys"))
	}
	return found, nil
}

// freshFor is how long keys need not be fetched again, by the Cache-Control they came with.
func freshFor(control string) time.Duration {
	for part := range strings.SplitSeq(control, ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(part), "max-age="); ok {
			if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
				return min(max(time.Duration(seconds)*time.Second, keysLeast), keysOld)
			}
		}
	}
	return keysFresh
}
