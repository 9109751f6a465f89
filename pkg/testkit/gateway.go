package testkit

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/sign"
)

// GatewayCall is what a payment gateway is asked.
type GatewayCall struct {
	Key         string `json:"-"`
	Times       int    `json:"-"` // how often it was asked under the key, this time included
	Action      string `json:"action"`
	Reservation string `json:"reservation"`
	Attempt     int    `json:"attempt"`
	User        string `json:"user"`
	Units       int64  `json:"units"`
	Charge      string `json:"charge"`
}

// GatewayAnswer is how the gateway answers a call. Zero approves.
type GatewayAnswer struct {
	Status string // "": approved
	HTTP   int    // 0: 200
	Raw    string // instead of a proper body
	Break  bool   // the connection breaks off instead of an answer
	Wait   func() // called when all is booked, before anything is answered
}

// Gateway is a payment gateway that a test scripts: a real HTTP server, with a book of what it has moved. What it has
// approved under a key it approves for ever, and moves once.
type Gateway struct {
	URL    string
	Secret string

	t       testing.TB
	mu      sync.Mutex
	script  func(GatewayCall) GatewayAnswer
	asked   map[string]int
	charged map[string]GatewayCall // by key
	back    map[string]GatewayCall
}

// NewGateway starts a gateway that answers as the script says, until the test ends.
func NewGateway(t testing.TB, script func(GatewayCall) GatewayAnswer) *Gateway {
	g := &Gateway{Secret: "secret of the gateway", t: t, script: script, asked: map[string]int{}, charged: map[string]GatewayCall{}, back: map[string]GatewayCall{}}
	server := httptest.NewServer(http.HandlerFunc(g.serve))
	t.Cleanup(server.Close)
	g.URL = server.URL + "/pay"
	return g
}

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	call := GatewayCall{Key: r.Header.Get("Idempotency-Key")}
	if err == nil {
		err = json.Unmarshal(body, &call)
	}
	if err == nil {
		err = sign.Verify(g.Secret, r.Header.Get(sign.HeaderName), body, time.Now(), sign.Tolerance)
	}
	if want := fmt.Sprintf("%s.%d", call.Reservation, call.Attempt); err == nil && call.Key != want && !strings.HasPrefix(call.Key, want+".refund.") {
		err = fmt.Errorf("the key %q is not of %s", call.Key, want)
	}
	if err != nil {
		g.t.Errorf("the gateway was asked what it cannot understand: %v: %s", err, body)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	answer := g.decide(&call)
	if answer.Wait != nil {
		answer.Wait()
	}
	switch {
	case answer.Break:
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	case answer.HTTP != 0:
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(answer.HTTP)
	case answer.Raw != "":
		_, _ = io.WriteString(w, answer.Raw)
	case answer.Status == "approved":
		_, _ = fmt.Fprintf(w, `{"status":"approved","reference":"g:%s"}`, call.Key[len(call.Key)-20:])
	default:
		_, _ = fmt.Fprintf(w, `{"status":%q,"reason":"the test says so"}`, answer.Status)
	}
}

// decide asks the script, and books what is approved before anybody hears of it.
func (g *Gateway) decide(call *GatewayCall) GatewayAnswer {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked[call.Key]++
	call.Times = g.asked[call.Key]
	answer := g.script(*call)
	book := g.charged
	if call.Action == "refund" {
		book = g.back
	}
	before, known := book[call.Key]
	switch {
	case known && before.Units != call.Units:
		g.t.Errorf("%s asks for %d units, before it was %d", call.Key, call.Units, before.Units)
	case known || answer.Status == "":
		answer.Status = "approved"
	}
	if answer.Status == "approved" {
		book[call.Key] = *call
	}
	return answer
}

// Approve books a charge of which the gateway decides later than it was asked.
func (g *Gateway) Approve(call GatewayCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.charged[call.Key] = call
}

// Asked returns how often the gateway was asked under a key.
func (g *Gateway) Asked(key string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked[key]
}

// Charges returns how many charges of a reservation were approved.
func (g *Gateway) Charges(reservation string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.charged {
		if c.Reservation == reservation {
			n++
		}
	}
	return n
}

// Kept returns the units whose money the gateway has taken and not given back, by reservation; those of none are left out.
func (g *Gateway) Kept() map[string]int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := map[string]int64{}
	for _, c := range g.charged {
		kept[c.Reservation] += c.Units
	}
	for _, c := range g.back {
		kept[c.Reservation] -= c.Units
	}
	for id, units := range kept {
		if units == 0 {
			delete(kept, id)
		}
	}
	return kept
}
