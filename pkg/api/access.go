package api

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// KeySource is where keys are recorded: all of them, those that no longer count too.
type KeySource interface {
	Keys(ctx context.Context) ([]drop.APIKey, error)
}

// AccessOptions says where the keys are.
type AccessOptions struct {
	Source   KeySource     // PostgreSQL; nil: the file alone
	File     string        // what `dropctl key list -o json` printed; "": PostgreSQL alone
	Loopback bool          // only this machine can reach the listener
	Every    time.Duration // how often the keys are read; default 2s
	Log      *slog.Logger
}

// Access knows who may call. Requests look keys up in a copy in memory, which Run renews: what is revoked is refused within
// seconds, and while PostgreSQL is down everybody who could call goes on. It is safe for concurrent use.
type Access struct {
	opt  AccessOptions
	ring atomic.Pointer[keyring]

	mu       sync.Mutex // held while keys are read
	recorded known
	filed    known
	needed   bool // a key was known once: nobody calls without one any more, even if all are gone
}

// keyring is what requests look at. It never changes.
type keyring struct {
	keys  map[string]drop.APIKey
	whole bool // every source has been read
	free  bool // callers without a key are let in
}

// known is what was last read from one source.
type known struct {
	read    bool // at least once
	keys    []drop.APIKey
	trouble bool // the last try failed, and the log says so
}

const (
	keysEvery = 2 * time.Second
	keysLimit = 5 * time.Second // of reading them from PostgreSQL, so that a silent one does not keep a new file waiting
)

// NewAccess returns an Access that has read nothing yet: Load it before serving.
func NewAccess(o AccessOptions) *Access {
	if o.Every == 0 {
		o.Every = keysEvery
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a := &Access{opt: o}
	a.publish()
	return a
}

// Load reads the keys for the first time. Only a file that cannot be used is an error, of code invalid_config; PostgreSQL
// is asked again by Run.
func (a *Access) Load(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.readFile()
	a.readSource(ctx)
	a.publish()
	return err
}

// Run reads the keys again and again until ctx ends.
func (a *Access) Run(ctx context.Context) {
	tick := time.NewTicker(a.opt.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = a.Load(ctx) // the log has it
		}
	}
}

// Ready is an error as long as some keys are not known.
func (a *Access) Ready() error {
	if ring := a.ring.Load(); !ring.whole {
		return keysUnknown
	}
	return nil
}

// Keys counts the keys that are known, those that no longer count too.
func (a *Access) Keys() int { return len(a.ring.Load().keys) }

func (a *Access) readFile() error {
	if a.opt.File == "" {
		return nil
	}
	keys, err := readKeyFile(a.opt.File)
	a.filed.take(keys, err, a.opt.Log, "the file of API keys")
	return err
}

func (a *Access) readSource(ctx context.Context) {
	if a.opt.Source == nil {
		return
	}
	within, cancel := context.WithTimeout(ctx, keysLimit)
	defer cancel()
	keys, err := a.opt.Source.Keys(within)
	if ctx.Err() != nil { // the server stops
		return
	}
	a.recorded.take(keys, err, a.opt.Log, "PostgreSQL")
}

// take keeps what was read, or what was there before. Trouble is logged when it begins and when it ends.
func (k *known) take(keys []drop.APIKey, err error, log *slog.Logger, source string) {
	switch {
	case err != nil && !k.trouble:
		log.Warn("the API keys cannot be read; those that are known go on", "source", source, "error", err)
	case err == nil && k.trouble:
		log.Info("the API keys are read again", "source", source)
	}
	k.trouble = err != nil
	if err == nil {
		k.read, k.keys = true, keys
	}
}

func (a *Access) publish() {
	ring := &keyring{keys: make(map[string]drop.APIKey, len(a.recorded.keys)+len(a.filed.keys))}
	for _, k := range a.filed.keys {
		ring.keys[k.ID] = k
	}
	for _, k := range a.recorded.keys {
		if copied, twice := ring.keys[k.ID]; twice {
			k.Revoked, k.Expires = earlier(k.Revoked, copied.Revoked), earlier(k.Expires, copied.Expires)
		}
		ring.keys[k.ID] = k
	}
	a.needed = a.needed || len(ring.keys) > 0
	ring.whole = (a.opt.Source == nil || a.recorded.read) && (a.opt.File == "" || a.filed.read)
	ring.free = ring.whole && a.opt.Loopback && !a.needed
	a.ring.Store(ring)
}

// earlier returns the earlier of two ends, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

var keysUnknown = fault.New(fault.Unavailable, "the API keys are not known yet, because PostgreSQL has not answered").
	WithHint("check PostgreSQL: dropctl status; with --api-keys-file a server can start without it")

// unguarded are the paths that need no key: whoever asks whether the server lives, or how to call it, has none yet.
var unguarded = map[string]bool{"/livez": true, "/readyz": true, "/openapi.json": true}

// failure answers a request with an error.
type failure func(w http.ResponseWriter, r *http.Request, err error)

// What a 401 asks for, by RFC 6750.
var (
	askForKey   = []string{`Bearer realm="dropctl"`}
	askForOther = []string{`Bearer realm="dropctl", error="invalid_token"`}
)

// admit lets requests pass whose key counts, and notes the key in their call.
func (a *Access) admit(next http.Handler, fail failure) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if unguarded[r.URL.Path] || r.URL.Path == paymentPath { // a gateway signs instead
			next.ServeHTTP(w, r)
			return
		}
		token, given, err := credential(r.Header)
		if err == nil {
			callOf(r.Context()).key, err = a.who(token, given, r.Host)
		}
		if err != nil {
			if fault.Is(err, fault.Unauthorized) {
				w.Header()["Www-Authenticate"] = askForOther
				if !given {
					w.Header()["Www-Authenticate"] = askForKey
				}
			}
			fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// need is an error unless the call's key has a scope.
func (a *Access) need(c *call, scope drop.Scope) error {
	if c.key.Has(scope) {
		return nil
	}
	who := "the key " + c.key.ID
	if c.key.ID == "" {
		who = "a caller without a key"
	}
	return fault.New(fault.Forbidden, "the call needs the scope %s, which %s does not have", scope, who).With("scope", string(scope))
}

// who returns whose token it is. Its errors say nothing of the token. An id that nobody has costs as much as one that
// somebody has.
func (a *Access) who(token string, given bool, host string) (drop.APIKey, error) {
	ring := a.ring.Load()
	if !given {
		return ring.nobody(host)
	}
	id, hash, wellFormed := drop.ReadToken(token)
	if !wellFormed {
		return drop.APIKey{}, fault.New(fault.Unauthorized, "the API key is malformed")
	}
	key, exists := ring.keys[id]
	if !key.Hash.Matches(hash) {
		if !exists && !ring.whole {
			return drop.APIKey{}, keysUnknown
		}
		return drop.APIKey{}, fault.New(fault.Unauthorized, "the API key is not known").
			WithHint("a key that was just made is known within seconds; see the keys: dropctl key list; make a new one: dropctl key create --tenant TENANT --scope read,reserve,settle")
	}
	if err := ended(key); err != nil {
		return drop.APIKey{}, err
	}
	return key, nil
}

// ended is an error if a key counts no more.
func ended(key drop.APIKey) error {
	switch {
	case !key.Revoked.IsZero():
		return fault.New(fault.Unauthorized, "the API key %s is revoked", key.ID)
	case !key.Expires.IsZero() && !time.Now().Before(key.Expires):
		return fault.New(fault.Unauthorized, "the API key %s has expired", key.ID)
	}
	return nil
}

// counts reports whether the key that let a call in, or the lack of one, still would: a call may last for hours.
func (a *Access) counts(key drop.APIKey) bool {
	ring := a.ring.Load()
	if key.ID == "" {
		return ring.free
	}
	now := ring.keys[key.ID]
	return now.Hash.Matches(key.Hash) && ended(now) == nil
}

// nobody answers callers without a key. Where they are let in, they have every scope, and must have asked for this machine
// by its own name: otherwise it is a proxy that opens it to the world, or a page in a browser that had its own name point
// here.
func (r *keyring) nobody(host string) (drop.APIKey, error) {
	switch {
	case r.free && isThisMachine(host):
		return drop.APIKey{Scopes: drop.Scopes()}, nil
	case len(r.keys) == 0 && !r.whole:
		return drop.APIKey{}, keysUnknown
	}
	return drop.APIKey{}, fault.New(fault.Unauthorized, "an API key is needed").
		WithHint("send it as Authorization: Bearer KEY (dropctl: --api-key-file FILE, or DROPCTL_API_KEY); make one: dropctl key create --tenant TENANT --scope read,reserve,settle")
}

// isThisMachine reports whether the Host of a request names the machine by a name of its own; HTTP/1.0 may name none.
func isThisMachine(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	if name == "" || strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.IsLoopback()
}

// credential returns the token of a request. Two that differ are an error: a proxy may have looked at the other one.
func credential(h http.Header) (token string, given bool, err error) {
	take := func(t string) {
		if given && t != token {
			err = fault.New(fault.Unauthorized, "the request has two different API keys").WithHint("send one, as Authorization: Bearer KEY")
		}
		token, given = t, true
	}
	for _, value := range h["Authorization"] {
		scheme, rest, _ := strings.Cut(value, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", true, fault.New(fault.Unauthorized, "the Authorization header is not of the form Bearer KEY")
		}
		take(strings.Trim(rest, " "))
	}
	for _, value := range h["X-Api-Key"] {
		take(value)
	}
	return token, given, err
}
