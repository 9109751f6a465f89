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
	// A parameter or keyword whose name speaks of a password, up to the next separator.
	secretParameter = regexp.MustCompile(`(?i)([a-z_.-]*(?:pass|secret|token)[a-z_.-]*\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)`)
	// Where a port belongs but none is: a URL that lost its host still has its password.
	noPort = regexp.MustCompile(`:[^0-9/:,][^/,]*|:[0-9]+[^0-9/:,?][^/,]*`)
	scheme = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*://`)
)

// redactURL hides the password of user information and of parameters. It works on the text, not on a
// parsed URL, because a URL with several hosts or a badly escaped password does not parse and must not
// be shown either; in doubt it hides too much.
func redactURL(value string) string {
	if isReference(value) {
		return value
	}
	head := scheme.FindString(value)
	rest := value[len(head):]
	// Up to the last @: an unescaped password may hold @, / and ? itself.
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		if user, password, found := strings.Cut(rest[:at], ":"); found && password != "" {
			rest = user + ":" + redacted + rest[at:]
		}
	} else if head != "" && !strings.Contains(rest, "[") { // not for IPv6
		rest = noPort.ReplaceAllString(rest, ":"+redacted)
	}
	return head + secretParameter.ReplaceAllString(rest, "${1}"+redacted)
}
