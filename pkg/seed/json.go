package seed

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
)

// readJSON reads lots from a sequence of documents, each an array of objects, an object {"lots": […]} or
// one lot. So it reads one object a line too.
func (b *reader) readJSON() {
	documents := json.NewDecoder(bytes.NewReader(b.data))
	for end := 0; !b.full(); {
		start := skip(b.data, end, " \t\r\n")
		var document json.RawMessage
		if err := documents.Decode(&document); err != nil {
			if !errors.Is(err, io.EOF) {
				b.malformedJSON(start, err)
			}
			return
		}
		end = int(documents.InputOffset())
		w := &jsonWalker{b: b, base: start, data: b.data[start:end], tokens: json.NewDecoder(bytes.NewReader(b.data[start:end]))}
		w.tokens.UseNumber()
		w.document()
	}
}

// malformedJSON finds the place of a syntax error: the decoder's own offset counts from elsewhere.
func (b *reader) malformedJSON(start int, err error) {
	var syntax *json.SyntaxError
	at := len(b.data)
	if errors.As(json.Unmarshal(b.data[start:], new(json.RawMessage)), &syntax) {
		err = syntax
		if at = start + int(syntax.Offset) - 1; strings.HasPrefix(err.Error(), "unexpected end") {
			at = len(bytes.TrimRight(b.data, " \t\r\n"))
		}
	}
	b.problem(b.at(at), fault.New(fault.Invalid, "the JSON is malformed: %s", err).WithHint(`write [{"lot": "truffle-99", "stock": 250}, …]`))
}

func skip(data []byte, offset int, chars string) int {
	for offset < len(data) && bytes.IndexByte([]byte(chars), data[offset]) >= 0 {
		offset++
	}
	return offset
}

// jsonWalker goes through one well-formed document and knows where each token stands.
type jsonWalker struct {
	b      *reader
	base   int // offset of the document in the file
	data   []byte
	tokens *json.Decoder
	failed bool // a token could not be read
}

func (w *jsonWalker) next() (json.Token, place) {
	at := w.b.at(w.base + skip(w.data, int(w.tokens.InputOffset()), " \t\r\n,:"))
	token, err := w.tokens.Token()
	if err != nil {
		w.failed = true
		w.b.problem(at, fault.Wrap(fault.Invalid, err, "the JSON is malformed"))
	}
	return token, at
}

func (w *jsonWalker) document() {
	switch token, at := w.next(); token {
	case json.Delim('['):
		w.list()
	case json.Delim('{'):
		w.object(at, true)
	default:
		w.notALot(token, at)
	}
}

// list reads the elements of an array to its end.
func (w *jsonWalker) list() {
	for w.tokens.More() && !w.failed && !w.b.full() {
		if token, at := w.next(); token == json.Delim('{') {
			w.object(at, false)
		} else {
			w.notALot(token, at)
		}
	}
	w.next()
}

func (w *jsonWalker) notALot(token json.Token, at place) {
	w.b.problem(at, fault.New(fault.Invalid, "a lot is expected here").WithHint(`write an object: {"lot": "truffle-99", "stock": 250}`))
	w.leave(token)
}

// leave reads on to the end of a value whose first token was read.
func (w *jsonWalker) leave(token json.Token) {
	if _, open := token.(json.Delim); !open {
		return
	}
	for depth := 1; depth > 0 && !w.failed; {
		token, _ = w.next()
		switch token {
		case json.Delim('['), json.Delim('{'):
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
	}
}

// object reads one lot, or at the top of a document also {"lots": […]}.
func (w *jsonWalker) object(at place, top bool) {
	keys := w.b.keys()
	wrapper := false
	for w.tokens.More() && !w.failed && !w.b.full() {
		token, keyAt := w.next()
		name, _ := token.(string)
		token, valueAt := w.next()
		if top && name == "lots" && token == json.Delim('[') && !wrapper {
			wrapper = true
			w.list()
			continue
		}
		v := jsonValue(token)
		if v.kind == nested {
			w.leave(token)
		}
		keys.add(name, keyAt, v, valueAt)
	}
	w.next()
	keys.done(at, wrapper)
}

// jsonValue returns a value as a cell would hold it; null is an empty cell.
func jsonValue(token json.Token) value {
	switch v := token.(type) {
	case nil:
		return value{kind: plain}
	case string:
		return value{v, quoted}
	case json.Number:
		return value{v.String(), plain}
	}
	return value{kind: nested}
}
