package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// streams sends the text of a stream, then ends it, or leaves it open.
func streams(text string, open bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		if open {
			<-r.Context().Done()
		}
	}
}

func event(seq int) string {
	return fmt.Sprintf("id: 1-%d\nevent: availability\ndata: {\"lot\":\"hat\",\"available\":%d,\"seq\":%d,\"epoch\":1}\n\n", seq, 100-seq, seq)
}

// watch reads n events and breaks off.
func watch(ctx context.Context, c *Client, n int) (seqs []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for a, err := range c.Watch(ctx, "hat") {
		if err != nil {
			return seqs, err
		}
		if seqs = append(seqs, a.Seq); len(seqs) == n {
			break
		}
	}
	return seqs, nil
}

func TestAStreamIsTakenUpWhereItBroke(t *testing.T) {
	s := script(t,
		streams(": hello\n\n"+event(1)+event(2), false),
		streams(strings.ReplaceAll(event(3), "\n", "\r\n")+"id: 1-9\nevent: availability\ndata: {\"seq\"", false), // the last one is not whole
		refuses(503, fault.Overloaded),
		streams("event: news\ndata: {}\n\nevent: availability\nid: 1-4\ndata: {\"lot\":\"hat\",\ndata: \"seq\":4}\n\n", true))
	seqs, err := watch(t.Context(), s.client(t, Options{}), 4)
	if err != nil || fmt.Sprint(seqs) != "[1 2 3 4]" {
		t.Errorf("%v, %v", seqs, err)
	}
	var last []string
	for _, r := range s.requests() {
		last = append(last, r.header.Get("Last-Event-Id"))
		if r.path != "/v1/lots/hat/events" || r.header.Get("Accept") != "text/event-stream" || r.header.Get("Authorization") == "" {
			t.Errorf("%+v", r)
		}
	}
	if fmt.Sprint(last) != "[ 1-2 1-3 1-3]" {
		t.Errorf("asked for what follows %v", last)
	}
}

// When a server stops, all of its streams break at once: they must not all come back at once.
func TestBrokenStreamsComeBackSpreadOverTheTimeThatTheServerAsksFor(t *testing.T) {
	s := script(t, streams("retry: 400\n\n"+event(1), false))
	var longest, last time.Duration
	began := time.Now()
	for _, err := range s.client(t, Options{}).Watch(t.Context(), "hat") { // each connection brings one event
		if err != nil {
			t.Fatal(err)
		}
		now := time.Since(began)
		longest, last = max(longest, now-last), now
		if len(s.requests()) == 8 {
			break
		}
	}
	if longest < 60*time.Millisecond || last > 5*time.Second {
		t.Errorf("8 connections within %s, the longest pause was %s", last, longest)
	}
}

func TestAStreamEndsWithItsContext(t *testing.T) {
	s := script(t, streams(event(1), true))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for a, err := range s.client(t, Options{}).Watch(ctx, "hat") {
		if n++; err != nil || a.Seq != 1 {
			t.Fatalf("%+v, %v", a, err)
		}
		cancel()
	}
	if n != 1 || len(s.requests()) != 1 {
		t.Errorf("%d events, %d requests", n, len(s.requests()))
	}
}

func TestASilentStreamIsOpenedAnew(t *testing.T) {
	s := script(t, streams(event(1), true), hangs, streams(event(2), true))
	c := s.client(t, Options{Timeout: 100 * time.Millisecond})
	c.silence = 100 * time.Millisecond
	if seqs, err := watch(t.Context(), c, 2); err != nil || fmt.Sprint(seqs) != "[1 2]" {
		t.Errorf("%v, %v", seqs, err)
	}
}

func TestHeartbeatsKeepAStreamAlive(t *testing.T) {
	s := script(t, func(w http.ResponseWriter, r *http.Request) {
		streams("", false)(w, r)
		for range 8 {
			time.Sleep(150 * time.Millisecond)
			_, _ = io.WriteString(w, ": still here\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		streams(event(1), true)(w, r)
	})
	c := s.client(t, Options{Timeout: 600 * time.Millisecond}) // which bounds how long the answer may take to begin
	c.silence = time.Second
	if seqs, err := watch(t.Context(), c, 1); err != nil || len(seqs) != 1 || len(s.requests()) != 1 {
		t.Errorf("%v, %v, %d requests", seqs, err, len(s.requests()))
	}
}

func TestAStreamThatCannotBeEndsWithAnError(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   fault.Code
	}{
		"no such lot": {refuses(404, fault.NotFound), fault.NotFound},
		"no scope":    {refuses(403, fault.Forbidden), fault.Forbidden},
		"a page":      {says(200, "text/html", "<html>"), fault.Unavailable},
		"a lot":       {ok(`{"lot":"hat","items":[]}`), fault.Unavailable},
	} {
		s := script(t, c.answer)
		_, err := watch(t.Context(), s.client(t, Options{}), 1)
		mustBe(t, err, c.want)
		if n := len(s.requests()); n != 1 {
			t.Errorf("%s: %d requests", name, n)
		}
	}
}

func TestAStreamThatBringsNothingIsGivenUp(t *testing.T) {
	s := script(t, refuses(503, fault.Overloaded, "Retry-After", "3600"))
	_, err := watch(t.Context(), s.client(t, Options{}), 1)
	mustBe(t, err, fault.Overloaded)
	s = script(t, streams("event: availability\ndata: "+strings.Repeat("x", 2*maxLine)+"\n\n", true), refuses(404, fault.NotFound))
	_, err = watch(t.Context(), s.client(t, Options{}), 1)
	mustBe(t, err, fault.NotFound)
}
