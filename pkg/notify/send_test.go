package notify

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/sign"
)

const secret = "a secret of the test"

// send posts a notice to a server on this machine, which the hook allows.
func send(t *testing.T, url string) Answer {
	t.Helper()
	s := NewSender("test")
	defer s.Close()
	a, err := s.Send(t.Context(), drop.Hook{URL: url, AllowPrivate: true}, secret, "hook-1", drop.Notice{Kind: drop.NoticeSoldOut, Lot: "lot", At: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

func TestANoticeArrivesSigned(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := sign.Verify(secret, r.Header.Get(sign.HeaderName), body, time.Now(), sign.Tolerance); err != nil {
			t.Errorf("the signature: %v", err)
		}
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil || got["id"] != "hook-1" || got["kind"] != "sold_out" || got["lot"] != "lot" || got["at"] != "1970-01-01T00:00:00Z" || len(got) != 4 {
			t.Errorf("%v: %s", err, body)
		}
		if r.Method != "POST" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get(DeliveryHeader) != "hook-1" || r.Header.Get("User-Agent") != "dropctl/test" {
			t.Errorf("%s %v", r.Method, r.Header)
		}
		_, _ = io.WriteString(w, "thanks")
	})
	if a := send(t, url+"/path?token=x"); a.Outcome != drop.Delivered || a.Status != 200 || a.Body != "thanks" || a.Why != "" || a.Took <= 0 {
		t.Errorf("%+v", a)
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	for status, want := range map[int]drop.SendOutcome{
		200: drop.Delivered, 204: drop.Delivered, 299: drop.Delivered, 301: drop.Refused, 307: drop.Refused, 400: drop.Refused, 401: drop.Refused, 404: drop.Refused, 410: drop.Refused,
		408: drop.Failed, 425: drop.Failed, 429: drop.Failed, 500: drop.Failed, 503: drop.Failed, 599: drop.Failed,
	} {
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", elsewhere)
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
		})
		a := send(t, url)
		if a.Outcome != want || a.Status != status || (a.Why == "") != (want == drop.Delivered) || a.After != 7*time.Second || strings.Contains(a.Why, "http") {
			t.Errorf("%d: %+v", status, a)
		}
	}
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "999999999") })
	if a := send(t, url); a.After != retryMost {
		t.Errorf("it is left alone for %s", a.After)
	}
	url = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", time.Now().Add(30*time.Minute).UTC().Format(http.TimeFormat))
	})
	if a := send(t, url); a.After < 28*time.Minute || a.After > 30*time.Minute {
		t.Errorf("until a date it is left alone for %s", a.After)
	}
}

// A receiver may be as hostile as it likes: what it sends is bounded, and it cannot make us wait.
func TestAnAnswerIsBounded(t *testing.T) {
	var sent atomic.Int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for r.Context().Err() == nil {
			n, err := w.Write([]byte(strings.Repeat("\xff", 1<<16)))
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	a := send(t, url)
	if a.Outcome != drop.Delivered || len(a.Body) > 3*answerKept || strings.Contains(a.Body, "\xff") {
		t.Errorf("%s, %d bytes are kept", a.Outcome, len(a.Body))
	}
	if n := sent.Load(); n > 64<<20 {
		t.Errorf("%d bytes were taken", n)
	}
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server see that the client has gone
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s := NewSender("test")
	defer s.Close()
	a, err := s.Send(ctx, drop.Hook{URL: hang, AllowPrivate: true}, secret, "hook-1", drop.Notice{})
	if err != nil || a.Outcome != drop.Failed || a.Why != "no answer in time" {
		t.Errorf("%+v, %v", a, err)
	}
	big := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 1000 {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 100))
		}
	})
	if a := send(t, big); a.Outcome != drop.Failed {
		t.Errorf("100 KB of headers: %+v", a)
	}
}

func TestATroubleIsSaidInAFewWords(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	if a := send(t, gone.URL+"/secret-path"); a.Why != "the connection was refused" {
		t.Errorf("%+v", a)
	}
	if a := send(t, "https://no-such-host.invalid/secret-path"); a.Outcome != drop.Failed || !strings.Contains(a.Why, "name of its host") {
		t.Errorf("%+v", a)
	}
	unknown := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("its certificate was taken") }))
	defer unknown.Close()
	if a := send(t, unknown.URL+"/secret-path"); a.Why != "its certificate or TLS is not accepted" {
		t.Errorf("%+v", a)
	}
}

// What counts is the address that is dialled: a name that stood for a public one when the hook was added may stand for
// another by now.
func TestANameThatTurnsPrivateIsNotDialled(t *testing.T) {
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was reached") }))
	defer inside.Close()
	var dialled atomic.Int64
	inside.Config.ConnState = func(net.Conn, http.ConnState) { dialled.Add(1) }
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	for _, address := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "10.0.0.1", "64:ff9b::7f00:1"} {
		dns := fakeDNS(t, net.ParseIP(address))
		s := newSender("test", dns)
		url := "https://rebound.example:" + port + "/"
		if err := CheckURL(url, false); err != nil {
			t.Fatal(err)
		}
		a, err := s.Send(t.Context(), drop.Hook{URL: url}, secret, "hook-1", drop.Notice{})
		if err != nil || a.Outcome != drop.Failed || a.Why != errPrivate.Error() {
			t.Errorf("%s: %+v, %v", address, a, err)
		}
		s.Close()
	}
	if dialled.Load() > 0 {
		t.Error("a connection was made")
	}
	s := NewSender("test")
	defer s.Close()
	if _, err := s.Send(t.Context(), drop.Hook{URL: inside.URL}, secret, "hook-1", drop.Notice{}); !fault.Is(err, fault.Forbidden) {
		t.Errorf("an address in the URL: %v", err)
	}
}

// fakeDNS is a resolver that knows one address for every name.
func fakeDNS(t *testing.T, ip net.IP) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		query := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			if answer := dnsAnswer(query[:n], ip); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// dnsAnswer answers a question (RFC 1035): with the address if it is of the kind that was asked for, else with none.
func dnsAnswer(query []byte, ip net.IP) []byte {
	end := 12
	for end < len(query) && query[end] != 0 {
		end += int(query[end]) + 1
	}
	if end+5 > len(query) {
		return nil
	}
	question := query[12 : end+5]
	kind, data := uint16(28), []byte(ip.To16())
	if v4 := ip.To4(); v4 != nil {
		kind, data = 1, v4
	}
	answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
	if binary.BigEndian.Uint16(question[len(question)-4:]) == kind {
		answer[7] = 1
		answer = append(answer, 0xc0, 12)
		answer = binary.BigEndian.AppendUint16(answer, kind)
		answer = append(answer, 0, 1, 0, 0, 0, 1)
		answer = binary.BigEndian.AppendUint16(answer, uint16(len(data)))
		answer = append(answer, data...)
	}
	return answer
}

// The status says whether a notice has arrived. Others wait for the round to end.
func TestABodyThatDripsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	})
	if a := send(t, url); a.Outcome != drop.Delivered || a.Status != 200 || !strings.HasPrefix(a.Body, "x") || a.Took > sendLimit*9/10 {
		t.Errorf("%+v", a)
	}
}
