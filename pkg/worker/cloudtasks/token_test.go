package cloudtasks_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/worker/cloudtasks"
)

func noLedger() (string, cloudtasks.Inbox, error) {
	return "", nil, fault.New(fault.Unavailable, "not there")
}

func newReceiver(t testing.TB, o cloudtasks.Options) *cloudtasks.Receiver {
	t.Helper()
	r, err := cloudtasks.NewReceiver(o, noLedger)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOnlyTokensOfTheAccountCount(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, newService(t).options(audience))
	if err := r.Trusts(t.Context(), signed(account, audience, nil)); err != nil {
		t.Fatal(err)
	}
	with := func(name string, value any) func(map[string]any) {
		return func(c map[string]any) {
			c[name] = value
			if value == nil {
				delete(c, name)
			}
		}
	}
	soon, past := time.Now().Add(10*time.Second).Unix(), time.Now().Add(-10*time.Second).Unix()
	for what, token := range map[string]string{ // clocks may differ a little
		"from soon":        signed(account, audience, with("nbf", soon)),
		"just ended":       signed(account, audience, with("exp", past)),
		"many audiences":   signed(account, audience, with("aud", []string{"x", audience})),
		"the other issuer": signed(account, audience, with("iss", "accounts.google.com")),
	} {
		if err := r.Trusts(t.Context(), token); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(signingKey().Public())
	if err != nil {
		t.Fatal(err)
	}
	good := map[string]any{"iss": "https://accounts.google.com", "aud": audience, "email": account, "email_verified": true, "exp": time.Now().Add(time.Hour).Unix()}
	half := signed(account, audience, nil)
	unsigned := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"one"}`)) + "." + strings.Split(half, ".")[1] + "."
	for what, token := range map[string]string{
		"nothing": "", "no token": "letmein", "unsigned": unsigned, "cut": half[:len(half)-20],
		"expired":            signed(account, audience, with("exp", time.Now().Add(-time.Minute).Unix())),
		"without an end":     signed(account, audience, with("exp", nil)),
		"from the future":    signed(account, audience, with("nbf", time.Now().Add(time.Hour).Unix())),
		"another audience":   signed(account, "https://elsewhere.example", nil),
		"no audience":        signed(account, audience, with("aud", nil)),
		"another issuer":     signed(account, audience, with("iss", "https://evil.example")),
		"another signer":     signedBy(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: stranger, KeyID: "one"}}, good),
		"an unknown key":     signedBy(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: stranger, KeyID: "two"}}, good),
		"signed by a secret": signedBy(jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: public, KeyID: "one"}}, good),
	} {
		if err := r.Trusts(t.Context(), token); !fault.Is(err, fault.Unauthorized) || len(token) > 20 && strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, token := range map[string]string{
		"another account": signed("other@shop.iam.gserviceaccount.com", audience, nil),
		"no account":      signed("", audience, nil),
		"not verified":    signed(account, audience, with("email_verified", false)),
	} {
		if err := r.Trusts(t.Context(), token); !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestSecretsCountOneAndAll(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, cloudtasks.Options{Secrets: []string{"the-new-secret-of-the-shop", "the-old-secret-of-the-shop"}})
	for _, s := range []string{"the-new-secret-of-the-shop", "the-old-secret-of-the-shop"} {
		if err := r.Trusts(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", "the-new-secret", "the-new-secret-of-the-shopx", signed(account, audience, nil)} {
		if err := r.Trusts(t.Context(), s); !fault.Is(err, fault.Unauthorized) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestAReceiverThatTrustsNobodyOrEverybodyIsRefused(t *testing.T) {
	t.Parallel()
	for field, o := range map[string]cloudtasks.Options{
		"tasks-service-account": {},
		"tasks-target":          {ServiceAccount: account},
		"tasks-secret-file":     {Secrets: []string{"x"}},
		"tasks-keys-url":        {ServiceAccount: account, Audience: audience, KeysURL: "http://keys.example"},
	} {
		if _, err := cloudtasks.NewReceiver(o, noLedger); err == nil || fault.As(err).Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The keys are fetched seldom, whatever strangers send, and go on counting while they cannot be fetched.
func TestKeysAreKept(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var fetches atomic.Int64
	var down atomic.Bool
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetches.Add(1)
		if down.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		http.Redirect(w, r, s.keys, http.StatusFound)
	}))
	t.Cleanup(keys.Close)
	o := s.options(audience)
	o.KeysURL = keys.URL
	r := newReceiver(t, o)
	if err := r.Trusts(t.Context(), signed(account, audience, nil)); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("keys from where a redirection leads to: %v", err)
	}
	if err := r.Trusts(t.Context(), signed(account, audience, nil)); !fault.Is(err, fault.Unavailable) || fetches.Load() != 1 {
		t.Fatalf("asked again at once (%d times): %v", fetches.Load(), err)
	}

	direct := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetches.Add(1)
		if down.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		answerJSON(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: signingKey().Public(), KeyID: "one", Algorithm: "RS256", Use: "sig"}}})
	}))
	t.Cleanup(direct.Close)
	o.KeysURL = direct.URL
	r = newReceiver(t, o)
	fetches.Store(0)
	unknown := signedBy(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: signingKey(), KeyID: "two"}}, map[string]any{"iss": "x"})
	hungUp, hangUp := context.WithCancel(t.Context())
	hangUp()
	if err := r.Trusts(hungUp, unknown); !fault.Is(err, fault.Unauthorized) {
		t.Errorf("a stranger who hangs up: %v", err)
	}
	for range 20 {
		if err := r.Trusts(t.Context(), signed(account, audience, nil)); err != nil {
			t.Fatal(err)
		}
		if err := r.Trusts(t.Context(), unknown); !fault.Is(err, fault.Unauthorized) {
			t.Fatal(err)
		}
	}
	if n := fetches.Load(); n > 5 { // one, on a machine that is not terribly slow
		t.Errorf("%d fetches", n)
	}
	down.Store(true)
	r.AgeKeys(2 * time.Hour)
	if err := r.Trusts(t.Context(), signed(account, audience, nil)); err != nil {
		t.Errorf("with keys that are no longer fresh: %v", err)
	}
	if err := r.Trusts(t.Context(), unknown); fault.CodeOf(err) != fault.Unavailable && fault.CodeOf(err) != fault.Unauthorized {
		t.Error(err)
	}
	r.AgeKeys(24 * time.Hour)
	if err := r.Trusts(t.Context(), signed(account, audience, nil)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("with keys of the day before: %v", err)
	}
	down.Store(false)
	r.AgeKeys(time.Minute)
	if err := r.Trusts(t.Context(), signed(account, audience, nil)); err != nil {
		t.Errorf("once they can be fetched again: %v", err)
	}
}
