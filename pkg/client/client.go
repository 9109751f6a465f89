package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Options says which server to call, and how patiently. Only URL is needed.
type Options struct {
	URL string // of the server, such as https://drops.example:8443; a path in it is kept

	// Key is the API key. It travels in a header, is never part of an error, and goes to no other server: redirects are
	// not followed. Without one only a server lets a call in that listens on loopback and knows no keys.
	Key string

	HTTPClient *http.Client  // default: one with connections of its own; its own redirects and timeout are not used
	UserAgent  string        // default: dropctl-client
	Retries    int           // how often a call is repeated; 0: 3 times. Negative: only once, and only if the answer was lost
	Timeout    time.Duration // of each attempt; default 10 s. The context bounds the whole call
}

const (
	defaultRetries = 3
	defaultTimeout = 10 * time.Second
)

// Client calls the HTTP API of one server. It is safe for concurrent use; a program needs one for each server and key.
//
// Every call can be repeated without acting twice: a reservation has its key, and what is given back, refunded or
// adjusted says what it expects. So a call is repeated by itself when the server cannot be reached, is overloaded or
// loses the answer, after a random pause that grows and respects Retry-After. An answer that is lost for good is a
// fault.OutcomeUnknown: ask again with the same arguments, and it tells what became of it.
//
// Every error is a *fault.Error with the code, hint and facts that the server named:
//
//	r, err := c.Reserve(ctx, "truffle-99", "order-4711", client.ReserveBody{User: "ada", Qty: 2})
//	if fault.Is(err, fault.SoldOut) { … }
type Client struct {
	base    *url.URL
	key     string
	agent   string
	http    *http.Client
	retries int
	timeout time.Duration
	silence time.Duration // a stream that brings nothing for so long is broken
}

// New makes a client; it dials nothing. Its errors have code usage and say nothing of the key.
func New(o Options) (*Client, error) {
	base, err := parseBase(o.URL)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(o.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fault.New(fault.Usage, "the API key holds a character that no key has").WithField("api-key-file").
			WithHint("give the key alone, as dropctl key create printed it")
	}
	c := &Client{base: base, key: o.Key, agent: o.UserAgent, retries: o.Retries, timeout: o.Timeout, silence: streamSilence}
	if c.agent == "" {
		c.agent = "dropctl-client"
	}
	if c.retries == 0 {
		c.retries = defaultRetries
	}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}
	c.http = &http.Client{Transport: ownTransport()}
	if o.HTTPClient != nil {
		own := *o.HTTPClient
		c.http, own.Timeout = &own, 0 // it would cut a stream
	}
	// A redirect could carry the key to somebody else.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// parseBase reads the URL of a server. What is wrong with it is said without showing it: it may hold a password.
func parseBase(text string) (*url.URL, error) {
	bad := fault.New(fault.Usage, "the URL of the server is none that can be called").WithField("server").
		WithHint("use http://host:port or https://host:port, without a user, a query or a #")
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return nil, bad
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, bad
	case strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1"): // each call begins so by itself
		return nil, bad.WithHint("leave /v1 out of it")
	}
	return u, nil
}

// ownTransport is Go's, with a short dial and as many idle connections as a busy back end uses.
func ownTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        30 * time.Second, // less than the server's: it must not close one that is about to be used
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}
}

// Close ends idle connections. The client can be used again.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// URL returns the server's URL as it may be shown.
func (c *Client) URL() string { return c.base.String() }

// exchange is one call: what is asked for, and whether it changes anything.
type exchange struct {
	method  string
	path    []string // below the server's URL, every element as it is
	query   url.Values
	header  http.Header // what is not the same for all calls
	body    []byte
	changes bool  // where the answer is lost, nobody knows whether it did
	err     error // why the call cannot be made; it then is its answer
}

// get is a call that only looks.
func get(path ...string) exchange {
	return exchange{method: http.MethodGet, path: path, query: url.Values{}, header: http.Header{"Accept": {"application/json"}}}
}

// act is a call that changes something.
func act(method string, body any, path ...string) exchange {
	x := get(path...)
	x.method, x.changes = method, true
	x.header.Set("Content-Type", "application/json")
	if x.body, x.err = json.Marshal(body); x.err != nil { // a time or a number that JSON cannot say
		x.err = fault.Wrap(fault.Invalid, x.err, "the request cannot be written")
	}
	return x
}

// request makes the HTTP request of a call.
func (c *Client) request(ctx context.Context, x exchange) (*http.Request, error) {
	u := c.base.JoinPath(x.path...)
	u.RawQuery = x.query.Encode()
	req, err := http.NewRequestWithContext(ctx, x.method, u.String(), bytes.NewReader(x.body))
	if err != nil {
		return nil, fault.Wrap(fault.Usage, err, "the request cannot be made")
	}
	req.Header = x.header.Clone()
	req.Header.Set("User-Agent", c.agent)
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	return req, nil
}
