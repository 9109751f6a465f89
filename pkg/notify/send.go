package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
	"github.com/dropctl/dropctl/pkg/sign"
)

// DeliveryHeader carries the id of a delivery, the same at each attempt: a receiver that has seen it has nothing to do.
const DeliveryHeader = "Dropctl-Delivery"

const (
	// sendLimit is how long a receiver may take for an answer.
	sendLimit  = 10 * time.Second
	dialLimit  = 5 * time.Second
	answerKept = 1 << 10     // bytes of an answer that are shown
	answerRead = 64 << 10    // bytes that are read, so that the connection can be used again
	readLimit  = time.Second // for the body of an answer, whose status says it all: others wait for it to end
	retryMost  = time.Hour
)

// Sender posts notices. It is safe for concurrent use.
type Sender struct {
	open    *http.Client // to any address
	guarded *http.Client // to public addresses only
	agent   string
}

// NewSender returns a sender; version is told to receivers.
func NewSender(version string) *Sender {
	return newSender(version, &net.Resolver{})
}

func newSender(version string, resolver *net.Resolver) *Sender {
	return &Sender{open: client(resolver, nil), guarded: client(resolver, onlyPublic), agent: "dropctl/" + version}
}

// Close ends connections that are kept for the next notice.
func (s *Sender) Close() {
	s.open.CloseIdleConnections()
	s.guarded.CloseIdleConnections()
}

// client follows no redirect, which would lead past the checks, and uses no proxy, which would dial what it likes.
func client(resolver *net.Resolver, control func(network, address string, c syscall.RawConn) error) *http.Client {
	dialer := &net.Dialer{Timeout: dialLimit, KeepAlive: 30 * time.Second, Resolver: resolver, Control: control}
	return &http.Client{
		Timeout:       sendLimit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: dialLimit, ForceAttemptHTTP2: true, DisableCompression: true,
			MaxIdleConnsPerHost: atOnce, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 16 << 10},
	}
}

// errPrivate is what a dial to a private address ends in.
var errPrivate = errors.New("the address is within a private or reserved network")

// onlyPublic looks at the address that is about to be dialled: whatever the name stood for when the hook was added, this is
// what it stands for now.
func onlyPublic(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !Public(at.Addr()) {
		return errPrivate
	}
	return nil
}

// Answer is what became of one attempt.
type Answer struct {
	Outcome drop.SendOutcome
	Why     string // in a few words; "" if it was delivered
	Status  int    // of HTTP; 0: there was no answer
	Body    string // its first KiB
	Took    time.Duration
	After   time.Duration // how long the receiver wants to be left alone; 0: it does not say
}

// body is what is sent.
type body struct {
	ID string `json:"id"`
	drop.Notice
}

// Send posts one notice and waits for the answer, ten seconds at most. Anything but 2xx means that the receiver has not got
// it. An error is none of the receiver's: the notice could not be sent at all.
func (s *Sender) Send(ctx context.Context, h drop.Hook, secret, id string, n drop.Notice) (Answer, error) {
	if err := CheckURL(h.URL, h.AllowPrivate); err != nil {
		return Answer{}, err
	}
	text, err := json.Marshal(body{id, n})
	if err != nil {
		return Answer{}, fault.Wrap(fault.Failed, err, "writing a notice")
	}
	ctx, breakOff := context.WithCancel(ctx)
	defer breakOff()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(text))
	if err != nil {
		return Answer{}, fault.New(fault.Invalid, "that is no URL").WithField("url")
	}
	start := time.Now()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", s.agent)
	req.Header.Set(DeliveryHeader, id)
	req.Header.Set(sign.HeaderName, sign.Header(secret, start, text))
	by := s.guarded
	if h.AllowPrivate {
		by = s.open
	}
	resp, err := by.Do(req)
	if err != nil {
		return Answer{Outcome: drop.Failed, Why: reason(err), Took: time.Since(start)}, nil
	}
	defer func() { _ = resp.Body.Close() }()
	defer time.AfterFunc(readLimit, breakOff).Stop()
	kept, _ := io.ReadAll(io.LimitReader(resp.Body, answerKept))
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, answerRead-answerKept))
	a := judge(resp)
	a.Body, a.Took = strings.ToValidUTF8(string(kept), "\uFFFD"), time.Since(start)
	return a, nil
}

// judge says what an answer means. One that the receiver will never want differently, as far as it says so, holds up no other.
func judge(resp *http.Response) Answer {
	a := Answer{Status: resp.StatusCode, Outcome: drop.Failed, Why: "answered " + strconv.Itoa(resp.StatusCode)}
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		a.Outcome, a.Why = drop.Delivered, ""
	case code >= 300 && code < 400:
		a.Outcome, a.Why = drop.Refused, a.Why+": redirects are not followed"
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests:
	case code >= 400 && code < 500:
		a.Outcome = drop.Refused
	}
	a.After = min(retry.After(resp.Header), retryMost)
	return a
}

// reason says in a few words why there was no answer. The URL, which may hold a secret, is not among them.
func reason(err error) string {
	dns, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, errPrivate):
		return errPrivate.Error()
	case isDNS && dns.IsNotFound:
		return "the name of its host is unknown"
	case isDNS:
		return "the name of its host cannot be looked up"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "the attempt was broken off"
	case strings.Contains(err.Error(), "tls: ") || strings.Contains(err.Error(), "x509: "):
		return "its certificate or TLS is not accepted"
	}
	return "the connection failed"
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}
