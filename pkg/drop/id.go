package drop

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash/fnv"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dropctl/dropctl/pkg/fault"
)

// LotID names a lot: `[group:]name`, each part 1–48 of A-Za-z0-9._- starting with a letter or digit.
type LotID string

const maxNamePart = 48

// ParseLotID checks s against the grammar of lot ids.
func ParseLotID(s string) (LotID, error) {
	group, name, grouped := strings.Cut(s, ":")
	if !grouped {
		group, name = "", s
	}
	if (grouped && !validNamePart(group)) || !validNamePart(name) {
		return "", fault.New(fault.Invalid, "lot %s is not a lot id", quote(s)).WithField("lot").
			WithHint("use [group:]name, each part 1 to %d of A-Z a-z 0-9 . _ - and starting with a letter or digit", maxNamePart)
	}
	return LotID(s), nil
}

// ParseGroup checks s against the grammar of a lot's group.
func ParseGroup(s string) (string, error) {
	if !validNamePart(s) {
		return "", fault.New(fault.Invalid, "group %s is not a group name", quote(s)).WithField("group").
			WithHint("use 1 to %d of A-Z a-z 0-9 . _ - and start with a letter or digit", maxNamePart)
	}
	return s, nil
}

func validNamePart(s string) bool {
	if len(s) == 0 || len(s) > maxNamePart {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// Group returns the part before the colon, or "" for a lot without a group.
func (l LotID) Group() string {
	group, _, grouped := strings.Cut(string(l), ":")
	if !grouped {
		return ""
	}
	return group
}

// Shard returns the lot's shard among p: lots of one group share it.
func (l LotID) Shard(p int) int {
	s := l.Group()
	if s == "" {
		s = string(l)
	}
	h := fnv.New32a()
	h.Write([]byte(s))
	return int(h.Sum32() % uint32(p))
}

// AttemptLen and MarkLen are the lengths in bytes of an attempt, and of its user's mark, with which it begins.
const (
	AttemptLen = 26
	MarkLen    = 16
)

var attemptEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// AttemptOf returns what names one attempt to reserve, in base32: 80 bits of the hash of (lot, user), which are the user's mark
// in the lot, and 50 bits of that of (lot, user, key), enough to tell one user's keys apart.
// The parts are length-prefixed, so no two different triples share their bytes.
func AttemptOf(lot LotID, user, key string) string {
	buf := make([]byte, 0, len(lot)+len(user)+len(key)+12)
	buf = appendPart(appendPart(buf, string(lot)), user)
	var out [MarkLen + MarkLen]byte
	encodeHash(out[:MarkLen], buf)
	encodeHash(out[MarkLen:], appendPart(buf, key))
	return string(out[:AttemptLen])
}

// MarkOf returns a user's mark in a lot: what all attempts of the user begin with.
func MarkOf(lot LotID, user string) string {
	var out [MarkLen]byte
	encodeHash(out[:], appendPart(appendPart(nil, string(lot)), user))
	return string(out[:])
}

// MarkIn returns the mark of an attempt's user.
func MarkIn(attempt string) string { return attempt[:MarkLen] }

// encodeHash writes the first 80 bits of a text's hash.
func encodeHash(out, text []byte) {
	hash := sha256.Sum256(text)
	attemptEncoding.Encode(out, hash[:10])
}

func appendPart(buf []byte, part string) []byte {
	return append(binary.BigEndian.AppendUint32(buf, uint32(len(part))), part...)
}

// ReservationID names a reservation for ever: `<lot>~<attempt>~<n>`, n being the seq that held it.
type ReservationID struct {
	Lot     LotID
	Attempt string
	N       int64
}

// ParseReservationID checks s against the grammar of reservation ids.
func ParseReservationID(s string) (ReservationID, error) {
	bad := fault.New(fault.Invalid, "%s is not a reservation id", quote(s)).WithField("reservation").
		WithHint("use the id that `dropctl reserve` printed: lot~attempt~number")
	lot, rest, ok := strings.Cut(s, "~")
	attempt, n, ok2 := strings.Cut(rest, "~")
	if !ok || !ok2 || len(attempt) != AttemptLen || strings.Trim(attempt, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return ReservationID{}, bad
	}
	id, err := ParseLotID(lot)
	if err != nil {
		return ReservationID{}, bad
	}
	seq, err := strconv.ParseInt(n, 10, 64)
	if err != nil || seq < 1 || seq > MaxSeq || strconv.FormatInt(seq, 10) != n {
		return ReservationID{}, bad
	}
	return ReservationID{Lot: id, Attempt: attempt, N: seq}, nil
}

// String returns the id as text.
func (r ReservationID) String() string {
	return string(r.Lot) + "~" + r.Attempt + "~" + strconv.FormatInt(r.N, 10)
}

// IsZero reports whether the id names nothing.
func (r ReservationID) IsZero() bool { return r == ReservationID{} }

// MarshalText writes the id as text, so that JSON shows a string.
func (r ReservationID) MarshalText() ([]byte, error) {
	if r.IsZero() {
		return nil, nil
	}
	return []byte(r.String()), nil
}

// Limits of text fields (users, keys, payment references, actors, reasons).
const (
	MaxTextRunes = 128
	MaxTextBytes = 255
)

// CheckText checks a user, key, reference, actor or reason: printable UTF-8 without control characters,
// at most 128 characters and 255 bytes. Empty is allowed only where required is false.
func CheckText(field, s string, required bool) error {
	bad := func(why, fix string) error {
		return fault.New(fault.Invalid, "%s %s", field, why).WithField(field).WithHint("%s", fix)
	}
	switch {
	case s == "" && required:
		return bad("is empty", "give 1 to 128 printable characters")
	case !utf8.ValidString(s):
		return bad("is not valid UTF-8", "send it as UTF-8")
	case len(s) > MaxTextBytes || utf8.RuneCountInString(s) > MaxTextRunes:
		return bad("is too long", "use at most 128 characters and 255 bytes")
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return bad("contains a character that is not printable", "use printable characters and plain spaces only")
		}
	}
	return nil
}

// TidyText makes a text for people, which somebody else has worded, fit CheckText: what is not printable becomes a space,
// and what is too long is cut off.
func TidyText(s string) string {
	var tidy strings.Builder
	runes := 0
	for _, r := range s {
		if !unicode.IsPrint(r) {
			r = ' '
		}
		if runes++; runes > MaxTextRunes || tidy.Len()+utf8.RuneLen(r) > MaxTextBytes {
			break
		}
		tidy.WriteRune(r)
	}
	return tidy.String()
}

// quote shows hostile input safely and shortly.
func quote(s string) string {
	q := strconv.QuoteToASCII(s)
	if len(q) > 80 {
		q = q[:76] + `..."`
	}
	return q
}
