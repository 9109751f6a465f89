package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	streamSilence = 45 * time.Second // three heartbeats of the server
	streamTries   = 10               // in a row that bring nothing, then the stream ends
	maxLine       = 64 << 10
)

// Watch tells of a lot's availability: at once, and whenever it changes, many changes within a moment in one. It ends
// with ctx, in silence, or with an error. A stream that breaks is taken up again where it was, after a random pause that
// grows and spreads over what the server asks for; ten attempts in a row that bring nothing end it.
//
//	for a, err := range c.Watch(ctx, "truffle-99") { … }
func (c *Client) Watch(ctx context.Context, lot string) iter.Seq2[Availability, error] {
	return func(yield func(Availability, error) bool) {
		if err := checkLot(lot); err != nil {
			yield(Availability{}, err)
			return
		}
		s := stream{client: c, lot: lot, yield: yield}
		for n := 0; ; n++ {
			fail := s.follow(ctx)
			if s.done || ctx.Err() != nil {
				return
			}
			if s.heard {
				n = 0
			}
			if fail.again && n < streamTries && pause(ctx, n, fail.after) {
				continue
			}
			if ctx.Err() == nil {
				yield(Availability{}, fail.err)
			}
			return
		}
	}
}

// stream is one lot's stream over all its connections.
type stream struct {
	client *Client
	lot    string
	yield  func(Availability, error) bool
	last   string        // id of the last event
	retry  time.Duration // how long the server wants a broken stream to stay away, at most
	heard  bool          // the present connection brought something
	done   bool          // the caller wants no more
}

var errSilent = errors.New("it fell silent")

// follow opens a connection and reads it to its end, which always is a failure.
func (s *stream) follow(outer context.Context) *failure {
	s.heard = false
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	hush := time.AfterFunc(s.client.timeout, func() { cancel(errSilent) }) // until the answer begins, then between its lines
	defer hush.Stop()
	x := get("v1", "lots", s.lot, "events")
	x.header.Set("Accept", "text/event-stream")
	if s.last != "" {
		x.header.Set("Last-Event-ID", s.last)
	}
	resp, fail := s.client.send(outer, ctx, x)
	if fail != nil {
		return fail
	}
	defer func() { _ = resp.Body.Close() }()
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		return s.client.judge(resp, body, noAnswer{})
	}
	err := s.read(resp.Body, func() { hush.Reset(s.client.silence) })
	if err == nil {
		err = errors.New("the stream ended")
	}
	return &failure{err: fault.Wrap(fault.Unavailable, err, "lot %s at %s", s.lot, s.client.URL()), again: true, after: rand.N(s.retry + 1)}
}

// noAnswer is what no answer is: where a stream was asked for, anything else can only say why there is none.
type noAnswer struct{}

func (noAnswer) complete() bool { return false }

// read hands on the events of a connection until it ends or the caller wants no more.
func (s *stream) read(body io.Reader, alive func()) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	var id, kind, data string
	for alive(); lines.Scan(); alive() {
		s.heard = true
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			data += value
		case "retry":
			if ms, err := strconv.ParseUint(value, 10, 31); err == nil {
				s.retry = min(time.Duration(ms)*time.Millisecond, maxAfter)
			}
		}
		if lines.Text() != "" || data == "" {
			continue
		}
		if kind == "availability" {
			var a Availability
			if err := json.Unmarshal([]byte(data), &a); err != nil {
				return err
			}
			if s.done = !s.yield(a, nil); s.done {
				return nil
			}
			s.last = id
		}
		kind, data = "", ""
	}
	return lines.Err()
}
