package drop

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Scope is one thing that an API key may do.
type Scope string

// The scopes. None holds another: a key has those that it was given.
const (
	ScopeRead    Scope = "read"    // look at lots and reservations
	ScopeReserve Scope = "reserve" // take holds
	ScopeSettle  Scope = "settle"  // confirm, release, extend and refund
	ScopeAdmin   Scope = "admin"   // create, open, pause, close and adjust lots
)

// Scopes lists all scopes in a fixed order. The caller owns the slice.
func Scopes() []Scope { return []Scope{ScopeRead, ScopeReserve, ScopeSettle, ScopeAdmin} }

// ParseScope checks a scope.
func ParseScope(s string) (Scope, error) {
	if slices.Contains(Scopes(), Scope(s)) {
		return Scope(s), nil
	}
	return "", fault.New(fault.Invalid, "scope %s is not a scope", quote(s)).WithField("scope").WithHint("use read, reserve, settle or admin")
}

const maxTenant = 32

// CheckTenant checks the name of a tenant, which becomes part of the identity of its users.
func CheckTenant(s string) error {
	ok := s != "" && len(s) <= maxTenant && s[0] != '-'
	for i := 0; i < len(s) && ok; i++ {
		ok = s[i] >= 'a' && s[i] <= 'z' || s[i] >= '0' && s[i] <= '9' || s[i] == '-'
	}
	if !ok {
		return fault.New(fault.Invalid, "tenant %s is not a tenant name", quote(s)).WithField("tenant").
			WithHint("use 1 to %d of a-z 0-9 - and start with a letter or digit", maxTenant)
	}
	return nil
}

// APIKey is what is known of a key: everything but its secret. As JSON it is a line of `dropctl key list`, and of the
// file of keys that a server reads.
type APIKey struct {
	ID        string    `json:"id"`
	Tenant    string    `json:"tenant"`
	Name      string    `json:"name"` // for people; may be empty
	Scopes    []Scope   `json:"scopes"`
	Hash      KeyHash   `json:"hash"`
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
	Expires   time.Time `json:"expires"` // zero: never
	Revoked   time.Time `json:"revoked"` // zero: it is not
	RevokedBy string    `json:"revoked_by"`
}

// Check validates every field that counts.
func (k APIKey) Check() error {
	if err := CheckKeyID(k.ID); err != nil {
		return err
	}
	if err := CheckTenant(k.Tenant); err != nil {
		return err
	}
	if len(k.Scopes) == 0 {
		return fault.New(fault.Invalid, "the key %s has no scope", k.ID).WithField("scope").WithHint("give it one of read, reserve, settle, admin")
	}
	for _, s := range k.Scopes {
		if _, err := ParseScope(string(s)); err != nil {
			return err
		}
	}
	if k.Hash == (KeyHash{}) {
		return fault.New(fault.Invalid, "the key %s has no hash", k.ID).WithField("hash").WithHint("use what `dropctl key list -o json` prints")
	}
	for _, f := range []struct{ name, text string }{{"name", k.Name}, {"actor", k.CreatedBy}, {"actor", k.RevokedBy}} {
		if err := CheckText(f.name, f.text, false); err != nil {
			return err
		}
	}
	return nil
}

// Has reports whether the key has a scope.
func (k APIKey) Has(s Scope) bool { return slices.Contains(k.Scopes, s) }

// KeyHash is the SHA-256 of a token. A slow hash would gain nothing: it is for secrets that people think up, and nobody can
// try 2^256 of these.
type KeyHash [sha256.Size]byte

// Matches compares in constant time.
func (h KeyHash) Matches(other KeyHash) bool { return subtle.ConstantTimeCompare(h[:], other[:]) == 1 }

// String returns the hash in hex.
func (h KeyHash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText writes the hash in hex.
func (h KeyHash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText wrote. Its error does not repeat the text: it may be a token.
func (h *KeyHash) UnmarshalText(text []byte) error {
	var read KeyHash
	if n, err := hex.Decode(read[:], text[:min(len(text), 2*len(read))]); err != nil || n != len(read) || len(text) != 2*len(read) {
		return fault.New(fault.Invalid, "a hash is not the hash of a key").WithField("hash").WithHint("use what `dropctl key list -o json` prints")
	}
	*h = read
	return nil
}

// A token is drk_ID_SECRET. The id says which key it is, so that a look-up needs no secret; the secret is 256 random bits.
const (
	tokenPrefix = "drk_"
	keyIDLen    = 8
	secretBytes = 32
	secretLen   = 52 // in base32
	tokenLen    = len(tokenPrefix) + keyIDLen + 1 + secretLen
)

// NewToken makes a token of a new id. It is a secret: shown once, and nowhere logged or stored.
func NewToken() (token, id string) {
	var secret [secretBytes]byte
	var name [keyIDLen * 5 / 8]byte
	_, _ = rand.Read(secret[:]) // it never fails: without random numbers the process ends
	_, _ = rand.Read(name[:])
	id = attemptEncoding.EncodeToString(name[:])
	return tokenPrefix + id + "_" + attemptEncoding.EncodeToString(secret[:]), id
}

// ReadToken says which key a token claims to be, and the hash that key must have; false if it is no token.
func ReadToken(s string) (id string, hash KeyHash, ok bool) {
	const secretAt = tokenLen - secretLen
	if len(s) != tokenLen || s[:len(tokenPrefix)] != tokenPrefix || s[secretAt-1] != '_' {
		return "", KeyHash{}, false
	}
	id = s[len(tokenPrefix) : secretAt-1]
	if !onlyTokenLetters(id) || !onlyTokenLetters(s[secretAt:]) {
		return "", KeyHash{}, false
	}
	var text [tokenLen]byte // on the stack: this is done for every request
	copy(text[:], s)
	return id, sha256.Sum256(text[:]), true
}

func onlyTokenLetters(s string) bool {
	for i := 0; i < len(s); i++ {
		if (s[i] < 'a' || s[i] > 'z') && (s[i] < '2' || s[i] > '7') {
			return false
		}
	}
	return true
}

// CheckKeyID checks the id of a key. Somebody may have pasted a whole token: that is not repeated.
func CheckKeyID(s string) error {
	if len(s) == keyIDLen && onlyTokenLetters(s) {
		return nil
	}
	bad := fault.New(fault.Invalid, "%s is not the id of a key", quote(s))
	if strings.HasPrefix(s, tokenPrefix) || len(s) > keyIDLen {
		bad = fault.New(fault.Invalid, "that is not the id of a key")
	}
	return bad.WithField("id").WithHint("use the id that dropctl key list shows: %d of a-z 2-7", keyIDLen)
}
