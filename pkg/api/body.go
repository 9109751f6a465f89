package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// buffers hold bodies of requests while they are read, and of answers while they are written.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// readBody reads the body of a request into a buffer, which the caller gives back with putBack.
func readBody(r *http.Request) (*bytes.Buffer, error) {
	if err := checkJSON(r); err != nil {
		return nil, err
	}
	if r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	buf := buffers.Get().(*bytes.Buffer)
	if _, err := buf.ReadFrom(io.LimitReader(r.Body, maxBody+1)); err != nil {
		putBack(buf)
		return nil, unread(err)
	}
	if buf.Len() > maxBody {
		putBack(buf)
		return nil, tooLarge()
	}
	return buf, nil
}

func putBack(buf *bytes.Buffer) {
	buf.Reset()
	buffers.Put(buf)
}

// checkJSON refuses a body that calls itself anything but JSON. Without a body the header means nothing.
func checkJSON(r *http.Request) error {
	kind := r.Header.Get("Content-Type")
	if r.Header.Get("Content-Encoding") != "" {
		return fault.New(fault.UnsupportedMedia, "the body is compressed")
	}
	if kind == "application/json" || r.ContentLength == 0 {
		return nil
	}
	kind, parameters, _ := strings.Cut(kind, ";")
	name, charset, ok := strings.Cut(strings.TrimSpace(parameters), "=")
	plain := parameters == "" || ok && strings.EqualFold(name, "charset") && strings.EqualFold(strings.Trim(charset, `"`), "utf-8")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/json") || !plain {
		return fault.New(fault.UnsupportedMedia, "the body is not called JSON in UTF-8")
	}
	return nil
}

func tooLarge() error {
	return fault.New(fault.TooLarge, "the body is longer than %d bytes", maxBody)
}

// unread says why a body did not arrive whole.
func unread(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge()
	}
	if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
		return fault.New(fault.Invalid, "the body did not arrive in time").WithField("body").WithHint("send it at once, whole")
	}
	return fault.New(fault.Invalid, "the body did not arrive whole").WithField("body").WithHint("send as many bytes as the Content-Length says")
}

// object reads one JSON object field by field, without reflection, and accepts nothing that two readers could understand
// differently: no field twice, no unknown field, no other type, no invalid text, nothing behind it. It is used as
//
//	for o.next() {
//		switch o.name {
//		case "qty": qty = o.units(1)
//		default: o.unknown()
//		}
//	}
//
// and o.err says what was wrong. No call takes nested objects or lists, so they are refused where they begin; only a payment
// gateway may send fields that are not known, of any kind (skip).
type object struct {
	data []byte
	at   int
	name string
	err  error

	begun bool
	room  [12]string
	seen  []string
}

// next goes to the next field; false at the end and after an error.
func (o *object) next() bool {
	if o.err != nil {
		return false
	}
	c := o.token()
	switch {
	case !o.begun && c != '{':
		o.broken("is not a JSON object")
	case c == '{' || c == ',':
		first := !o.begun
		o.begun = true
		o.at++
		if c = o.token(); first && c == '}' {
			o.at++
			return o.end()
		}
		return o.field(c)
	case c == '}':
		o.at++
		return o.end()
	default:
		o.broken("is not valid JSON")
	}
	return false
}

// end accepts nothing behind the object.
func (o *object) end() bool {
	if o.token() != 0 || o.at < len(o.data) {
		o.broken("goes on behind its JSON object")
	}
	return false
}

// field reads the name of a field and the colon behind it.
func (o *object) field(c byte) bool {
	if c != '"' {
		o.broken("is not valid JSON")
		return false
	}
	name, ok := o.text()
	if !ok {
		o.broken("is not valid JSON in UTF-8")
		return false
	}
	if o.token() != ':' {
		o.broken("is not valid JSON")
		return false
	}
	o.at++
	o.name = name
	if slices.Contains(o.seen, name) {
		o.refuse("comes twice", "name every field once")
		return false
	}
	if o.seen == nil {
		o.seen = o.room[:0]
	}
	o.seen = append(o.seen, name)
	return true
}

// token skips white space and returns the byte behind it; 0 at the end.
func (o *object) token() byte {
	for ; o.at < len(o.data); o.at++ {
		switch c := o.data[o.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// broken says what is wrong with the body as a whole.
func (o *object) broken(why string) {
	if o.err == nil {
		o.err = fault.New(fault.Invalid, "the body %s", why).WithField("body").WithHint("send one JSON object in UTF-8")
	}
}

// refuse says what is wrong with the present field.
func (o *object) refuse(why, fix string) {
	if o.err == nil {
		o.err = fault.New(fault.Invalid, "%.60s %s", quoted(o.name), why).WithField(printable(o.name)).WithHint("%s", fix)
	}
}

// reject takes over what the domain says of the present field's value.
func (o *object) reject(err error) {
	if o.err == nil && err != nil {
		o.err = fault.As(err).WithField(o.name)
	}
}

// missing says that a field is not there that the call needs.
func (o *object) missing(name string) {
	o.name = name
	o.refuse("is missing", "see the fields: /openapi.json")
}

func (o *object) unknown() { o.refuse("is not a field of this call", "see the fields: /openapi.json") }

// skip passes over a field that this call does not know, whatever its value is. One that some readers would take for a field
// that is known, since they do not tell capitals from others, is refused.
func (o *object) skip(known ...string) {
	if slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(name, o.name) }) {
		o.unknown()
		return
	}
	var value json.RawMessage
	d := json.NewDecoder(bytes.NewReader(o.data[o.at:]))
	if err := d.Decode(&value); err != nil || !utf8.Valid(value) {
		o.refuse("is not valid JSON in UTF-8", "send one JSON object in UTF-8")
		return
	}
	o.at += int(d.InputOffset())
}

// string reads a text value.
func (o *object) string() string {
	if o.token() != '"' {
		o.refuse("is not a text", `write it in quotes`)
		return ""
	}
	text, ok := o.text()
	if !ok {
		o.refuse("is not a valid text in UTF-8", "send it as JSON in UTF-8")
	}
	return text
}

// line reads a text for the journal, which may be empty.
func (o *object) line() string {
	text := o.string()
	o.reject(drop.CheckText(o.name, text, false))
	return text
}

// oneOf reads a text that is one of few words.
func (o *object) oneOf(words ...string) string {
	text := o.string()
	if o.err == nil && !slices.Contains(words, text) {
		o.refuse("is none of "+strings.Join(words, ", "), "use one of them, or leave it out")
	}
	return text
}

// bool reads true or false.
func (o *object) bool() bool {
	switch {
	case o.literal("true"):
		return true
	case !o.literal("false"):
		o.refuse("is neither true nor false", "use true or false, without quotes")
	}
	return false
}

// units reads a whole number written as one: neither "3" nor 3.0 nor 3e0.
func (o *object) units(least int64) int64 {
	text, whole := o.number()
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case o.err != nil:
	case text == "" || !whole:
		o.refuse("is not a whole number", "use digits without a fraction, exponent or quotes")
	case err != nil || n < least || n > drop.MaxUnits:
		o.refuse("is out of range", "use a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.Itoa(drop.MaxUnits))
	}
	return n
}

// seconds reads the length of a hold.
func (o *object) seconds() float64 {
	text, _ := o.number()
	if text == "" {
		o.refuse("is not a number", "use seconds, without quotes")
		return 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if ms := f * 1000; err != nil || f < drop.MinHold.Seconds() || f > drop.MaxHold.Seconds() || math.Abs(ms-math.Round(ms)) > 1e-3 {
		o.refuse("is out of range", "use 1 to 2592000 seconds, in whole milliseconds")
	}
	return f
}

// time reads a moment by RFC 3339; null is the zero time.
func (o *object) time() *time.Time {
	var t time.Time
	if o.literal("null") {
		return &t
	}
	text := o.string()
	t, err := time.Parse(time.RFC3339, text)
	if (err != nil || t.IsZero()) && o.err == nil { // the zero time would say that there is no bound
		o.refuse("is not a time", "write it by RFC 3339, such as 2026-12-01T10:00:00Z, or null for no bound")
	}
	return &t
}

// literal reads a word of JSON, if that is what stands here.
func (o *object) literal(word string) bool {
	o.token()
	if rest := o.data[o.at:]; len(rest) < len(word) || string(rest[:len(word)]) != word {
		return false
	}
	o.at += len(word)
	return true
}

// number reads a number; "" if none stands here. whole: it has neither fraction nor exponent.
func (o *object) number() (text string, whole bool) {
	o.token()
	start := o.at
	if o.at < len(o.data) && o.data[o.at] == '-' {
		o.at++
	}
	first := o.at
	if o.digits() == 0 || o.data[first] == '0' && o.at > first+1 {
		return "", false
	}
	whole = true
	if o.at < len(o.data) && o.data[o.at] == '.' {
		o.at++
		if whole = false; o.digits() == 0 {
			return "", false
		}
	}
	if o.at < len(o.data) && o.data[o.at]|' ' == 'e' {
		o.at++
		if o.at < len(o.data) && (o.data[o.at] == '+' || o.data[o.at] == '-') {
			o.at++
		}
		if whole = false; o.digits() == 0 {
			return "", false
		}
	}
	return string(o.data[start:o.at]), whole
}

func (o *object) digits() (n int) {
	for ; o.at < len(o.data) && o.data[o.at] >= '0' && o.data[o.at] <= '9'; o.at++ {
		n++
	}
	return n
}

// text reads a text, whose opening quote stands here; false if it is not valid JSON or not valid UTF-8.
func (o *object) text() (string, bool) {
	o.at++
	start := o.at
	for ; o.at < len(o.data); o.at++ {
		switch c := o.data[o.at]; {
		case c == '"':
			raw := o.data[start:o.at]
			o.at++
			return string(raw), utf8.Valid(raw)
		case c == '\\':
			return o.escaped(start)
		case c < ' ':
			return "", false
		}
	}
	return "", false
}

// escaped reads a text with escapes from its start; the first of them stands here.
func (o *object) escaped(start int) (string, bool) {
	text := append([]byte(nil), o.data[start:o.at]...)
	for o.at < len(o.data) {
		c := o.data[o.at]
		o.at++
		switch {
		case c == '"':
			return string(text), utf8.Valid(text)
		case c < ' ':
			return "", false
		case c != '\\':
			text = append(text, c)
		default:
			r, ok := o.escape()
			if !ok {
				return "", false
			}
			text = utf8.AppendRune(text, r)
		}
	}
	return "", false
}

var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads what stands behind a backslash. Half of a surrogate pair is no character.
func (o *object) escape() (rune, bool) {
	if o.at >= len(o.data) {
		return 0, false
	}
	c := o.data[o.at]
	o.at++
	if c != 'u' {
		r, ok := escapes[c]
		return r, ok
	}
	r, ok := o.hex()
	if !ok || !utf16.IsSurrogate(r) {
		return r, ok
	}
	if !bytes.HasPrefix(o.data[o.at:], []byte(`\u`)) {
		return 0, false
	}
	o.at += 2
	low, ok := o.hex()
	r = utf16.DecodeRune(r, low)
	return r, ok && r != utf8.RuneError
}

func (o *object) hex() (rune, bool) {
	if o.at+4 > len(o.data) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(o.data[o.at:o.at+4]), 16, 16)
	o.at += 4
	return rune(n), err == nil
}

// quoted shows a name that a caller made up, safely and shortly.
func quoted(name string) string {
	q := strconv.QuoteToASCII(name)
	return q[1 : len(q)-1]
}

func printable(name string) string {
	if q := quoted(name); len(q) <= 60 {
		return q
	}
	return "body"
}
