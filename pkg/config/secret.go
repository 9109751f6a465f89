package config

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
)

// Secret is a setting that must not be shown: a password, a URL that may hold one, or a reference to
// either (env:NAME, file:/path). Printed in any way, also deep inside another value, it shows only what
// is harmless: the reference, or the URL without its password. It is immutable.
type Secret struct {
	// Behind a function, because fmt prints what any other type holds once a Secret is a field that
	// fmt may not call methods on.
	value func() string
	shown string
}

const redacted = "[redacted]"

// NewSecret wraps a value of which nothing may be shown.
func NewSecret(value string) Secret { return newSecret(value, redacted) }

// NewURL wraps a connection URL or a PostgreSQL keyword string: shown with passwords redacted.
func NewURL(value string) Secret { return newSecret(value, redactURL(value)) }

func newSecret(value, shown string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{func() string { return value }, shown}
}

// Reveal returns the value itself. Hand it to a driver, never to a message.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return s.value()
}

// IsSet reports whether there is a value.
func (s Secret) IsSet() bool { return s.value != nil }

// HasPassword reports whether the value itself holds something that had to be hidden.
func (s Secret) HasPassword() bool { return strings.Contains(s.shown, redacted) }

// String returns what may be shown.
func (s Secret) String() string { return s.shown }

// GoString, Format, MarshalText and LogValue show the same as String, whatever the verb or encoder.
func (s Secret) GoString() string { return s.shown }

// Format implements fmt.Formatter.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.shown)) }

// MarshalText implements encoding.TextMarshaler, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.shown) }

var (
	scheme = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*://`)
	// What a URL may have behind the user: hosts with ports, or a socket, and a path.
	plainHost    = `(\[[0-9a-fA-F:.]+(%25[A-Za-z0-9._-]+)?\]|[A-Za-z0-9._-]+)?(:[0-9]{1,5})?`
	plainAddress = regexp.MustCompile(`^` + plainHost + `(,` + plainHost + `)*(/[A-Za-z0-9._~/-]*)?$`)
	plainUser    = regexp.MustCompile(`^[A-Za-z0-9._~%+-]*$`)
	plainValue   = regexp.MustCompile(`^[A-Za-z0-9._~/:,+-]*$`)
	// A parameter whose name speaks of a password.
	secretName = regexp.MustCompile(`(?i)pass|pwd|secret|token|key$`)
	keyword    = regexp.MustCompile(`^\s*([A-Za-z_]+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^'\\\s]|\\.)(?:[^\\\s]|\\.)*|)(?:\s|$)`)
)

// redactURL hides everything that is, or may be, a password. It shows only what has the plain form of a host, a path,
// a user or a harmless parameter; whatever does not look like that is hidden whole, since a malformed URL has its
// password in the wrong place.
func redactURL(value string) string {
	if isReference(value) {
		return value
	}
	head := scheme.FindString(value)
	if head == "" {
		return redactKeywords(value)
	}
	rest, user := value[len(head):], ""
	// Up to the last @: an unescaped password may hold @, / and ? itself.
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		name, password, found := strings.Cut(rest[:at], ":")
		user, rest = name, rest[at+1:]
		if !plainUser.MatchString(name) {
			user = redacted
		}
		if found && password != "" {
			user += ":" + redacted
		}
		user += "@"
	}
	address, query, asked := strings.Cut(rest, "?")
	if !plainAddress.MatchString(address) {
		return head + user + redacted
	}
	if asked {
		address += "?" + redactQuery(query)
	}
	return head + user + address
}

func redactQuery(query string) string {
	parameters := strings.Split(query, "&")
	for i, p := range parameters {
		name, value, _ := strings.Cut(p, "=")
		switch {
		case !plainValue.MatchString(name):
			parameters[i] = redacted
		case secretName.MatchString(name) || !plainValue.MatchString(value):
			parameters[i] = name + "=" + redacted
		}
	}
	return strings.Join(parameters, "&")
}

// redactKeywords hides the passwords of a PostgreSQL keyword string (libpq, connection strings).
func redactKeywords(value string) string {
	var shown []string
	for rest := value; strings.TrimSpace(rest) != ""; {
		m := keyword.FindStringSubmatch(rest)
		if m == nil {
			return redacted
		}
		rest = rest[len(m[0]):]
		if secretName.MatchString(m[1]) || !plainValue.MatchString(m[2]) {
			m[2] = redacted
		}
		shown = append(shown, m[1]+"="+m[2])
	}
	return strings.Join(shown, " ")
}
