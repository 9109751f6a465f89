package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Health knows the dependencies of a process and tells each apart. It is safe for concurrent use.
type Health struct {
	mu     sync.Mutex
	names  []string
	checks map[string]check
}

type check struct {
	ask    func() (detail any, err error)
	needed bool
}

// Need adds a dependency without which the process is not ready. ask is called at every question: it reads what is
// known, and dials nothing.
func (h *Health) Need(name string, ask func() error) { h.add(name, check{plain(ask), true}) }

// Watch adds a dependency that is told, and without which the process still does its work.
func (h *Health) Watch(name string, ask func() error) { h.add(name, check{plain(ask), false}) }

// Show adds one that is needed or not and has more to tell, in numbers: anybody may read them.
func (h *Health) Show(name string, needed bool, ask func() (detail any, err error)) {
	h.add(name, check{ask, needed})
}

func plain(ask func() error) func() (any, error) {
	return func() (any, error) { return nil, ask() }
}

func (h *Health) add(name string, c check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.checks == nil {
		h.checks = map[string]check{}
	}
	if _, there := h.checks[name]; !there {
		h.names = append(h.names, name)
	}
	h.checks[name] = c
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready  bool               `json:"ready"`
	Checks map[string]Checked `json:"checks"`
}

// Checked is how one dependency is. It says no more than a code and numbers, since anybody may ask: no address, no text of
// a server.
type Checked struct {
	OK     bool       `json:"ok"`
	Needed bool       `json:"needed"`
	Code   fault.Code `json:"code,omitempty"`
	Detail any        `json:"detail,omitempty"`
}

// Readiness asks every check.
func (h *Health) Readiness() Readiness {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := Readiness{Ready: true, Checks: map[string]Checked{}}
	for _, name := range h.names {
		c := h.checks[name]
		detail, err := c.ask()
		r.Checks[name] = Checked{OK: err == nil, Needed: c.needed, Code: fault.CodeOf(err), Detail: detail}
		r.Ready = r.Ready && (err == nil || !c.needed)
	}
	return r
}

// Livez answers that the process runs.
func Livez(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]bool{"alive": true})
}

// Readyz answers 200 if everything needed is there, else 503, and how each dependency is.
func (h *Health) Readyz(w http.ResponseWriter, _ *http.Request) {
	r := h.Readiness()
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, r)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that went away needs no answer
}

// Handler serves /metrics, /livez and /readyz and nothing else.
func Handler(m *Metrics, h *Health) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	mux.HandleFunc("GET /livez", Livez)
	mux.HandleFunc("GET /readyz", h.Readyz)
	return mux
}

// Listen opens a TCP address given as host:port. Its error says what is in the way: fault.Usage for an address that is
// none, fault.Unavailable for one that cannot be had.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, noAddress(address)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.New(fault.Unavailable, "%s is in use by another process", address).WithField("listen").WithHint("end that process, or choose another address")
	case noPort(err):
		return nil, noAddress(address)
	case err != nil:
		return nil, fault.Wrap(fault.Unavailable, err, "cannot listen").WithField("listen").WithHint("choose another address")
	}
	return l, nil
}

func noAddress(address string) error {
	return fault.New(fault.Usage, "%q is no address to listen on", address).WithField("listen").WithHint("use host:port, such as 127.0.0.1:9464")
}

// noPort reports whether an address has a port that is none: a number beyond 65535, or a word that no service is called.
func noPort(err error) bool {
	_, number := errors.AsType[*net.AddrError](err)
	word, unknown := errors.AsType[*net.DNSError](err)
	return number || unknown && word.Err == "unknown port"
}

// Serve answers on the listener until the context ends, then gives requests in hand two seconds more. Slow clients are
// cut off.
func Serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 2 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if server.Shutdown(limit) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if stop() { // nobody asked it to end
		return fault.Wrap(fault.Failed, err, "serving metrics on %s", l.Addr())
	}
	<-drained
	return nil
}
