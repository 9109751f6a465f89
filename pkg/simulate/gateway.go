package simulate

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/sign"
)

// Gateway is how a payment gateway answers. Shares are between 0 and 1.
type Gateway struct {
	Answers       Choices[Range[time.Duration]] // how long an answer takes
	Timeout       time.Duration                 // how long it is waited for; 0: as the settings say
	Declined      float64                       // of the charges; each is tried again until the hold's deadline
	Silent        float64                       // of the questions: no answer comes, though the money may have moved
	Undecided     float64                       // of the charges: it is pending at first
	Decides       Range[time.Duration]          // after that
	RefundRefused float64                       // of the questions for a refund, which is then asked for again
}

// Settling is how long at most it may take, after the last user, until payments for so many units are settled.
func (s Scenario) Settling(units int64) time.Duration {
	if s.Gateway == nil {
		return 0
	}
	const (
		atOnce = 32              // as many questions as a worker has open
		retry  = 2 * time.Minute // between two questions about the same
	)
	longest, hold := s.Gateway.Timeout, time.Duration(0)
	for _, a := range s.Gateway.Answers {
		longest = max(longest, a.Value.To)
	}
	for _, l := range s.Lots { // until then a declined charge is tried again
		hold = max(hold, l.MaxHold)
	}
	return time.Duration(units/atOnce)*longest + hold + s.Gateway.Decides.To + retry
}

// Bank is a payment gateway that answers as a scenario says, over real HTTP on a loopback port. It keeps its own book of the
// money it has moved. What it decides about a charge depends on the scenario's seed and on who buys what under which key,
// never on when it is asked. It is safe for concurrent use.
type Bank struct {
	gateway Gateway
	seed    uint64
	secret  string
	url     string
	server  *http.Server

	mu     sync.Mutex
	asked  map[string]*matter // by idempotency key
	kept   map[drop.ReservationID]int64
	count  Payments
	broken []string
}

// Payments are what a gateway was asked and what came of it.
type Payments struct {
	Questions  int64 `json:"questions" table:"QUESTIONS"`
	Approved   int64 `json:"charges_approved" table:"APPROVED"`
	Declined   int64 `json:"charges_declined" table:"DECLINED"`
	Undecided  int64 `json:"charges_undecided_at_first" table:"UNDECIDED AT FIRST"`
	Unanswered int64 `json:"questions_unanswered" table:"UNANSWERED"`
	Refunds    int64 `json:"refunds_made" table:"REFUNDS MADE"`
	PaidUnits  int64 `json:"paid_units" table:"PAID UNITS"` // whose money was taken and not given back
}

// Cell is what happened as a person reads it.
func (p Payments) Cell() string {
	return fmt.Sprintf("%d questions: charges approved %d, declined %d, undecided at first %d, unanswered %d; refunds made %d; %d units stay paid",
		p.Questions, p.Approved, p.Declined, p.Undecided, p.Unanswered, p.Refunds, p.PaidUnits)
}

// matter is a charge or a refund that the gateway was asked for.
type matter struct {
	id        drop.ReservationID
	refund    bool
	units     int64
	times     uint64
	declined  bool
	undecided time.Time // until then
	moved     bool      // the money
}

// OpenBank starts the gateway of a scenario that has one.
func OpenBank(s Scenario) (*Bank, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "cannot start a payment gateway")
	}
	b := &Bank{gateway: *s.Gateway, seed: s.Seed, secret: rand.Text(), url: "http://" + l.Addr().String() + "/pay",
		asked: map[string]*matter{}, kept: map[drop.ReservationID]int64{}}
	b.server = &http.Server{Handler: http.HandlerFunc(b.serve), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = b.server.Serve(l) }()
	return b, nil
}

// URL is where the gateway is asked.
func (b *Bank) URL() string { return b.url }

// Secret is what both sides sign with.
func (b *Bank) Secret() string { return b.secret }

// Timeout is how long an answer is waited for; 0: as the settings say.
func (b *Bank) Timeout() time.Duration { return b.gateway.Timeout }

// Close ends the gateway and breaks off its answers.
func (b *Bank) Close() error { return b.server.Close() }

// question is what the gateway is asked.
type question struct {
	Action      string `json:"action"`
	Reservation string `json:"reservation"`
	Attempt     int    `json:"attempt"`
	Units       int64  `json:"units"`
}

// reply is how it answers, after a while or not at all.
type reply struct {
	status string
	ref    string
	after  time.Duration
	silent bool
}

func (b *Bank) serve(w http.ResponseWriter, r *http.Request) {
	const longest = 64 << 10
	body, err := io.ReadAll(io.LimitReader(r.Body, longest))
	var q question
	if err == nil {
		err = sign.Verify(b.secret, r.Header.Get(sign.HeaderName), body, time.Now(), sign.Tolerance)
	}
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	var a reply
	if err == nil {
		a, err = b.answer(r.Header.Get("Idempotency-Key"), q, time.Now())
	}
	if err != nil { // also of a stranger that knocks at the port
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if a.silent {
		<-r.Context().Done() // whoever asked has hung up
		return
	}
	select {
	case <-r.Context().Done():
	case <-time.After(a.after):
		_ = json.NewEncoder(w).Encode(map[string]string{"status": a.status, "reference": a.ref})
	}
}

// answer decides, and moves the money before anybody hears of it.
func (b *Bank) answer(key string, q question, now time.Time) (reply, error) {
	id, err := drop.ParseReservationID(q.Reservation)
	if err != nil {
		return reply{}, err
	}
	about, mine := strings.CutPrefix(key, q.Reservation+".")
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count.Questions++
	m, known := b.asked[key]
	if !known {
		m = b.newMatter(id, about, q, now)
		b.asked[key] = m
	}
	if !mine || q.Units < 1 || m.id != id || m.units != q.Units || m.refund != (q.Action == "refund") {
		b.broken = append(b.broken, fmt.Sprintf("the gateway was asked for a %s of %d units of %s under the key %s, before it was %d of %s", q.Action, q.Units, id, key, m.units, m.id))
		return reply{}, fault.New(fault.Conflict, "another question under the same key")
	}
	m.times++
	rng := b.draw(id, about, m.times)
	a := reply{after: between(rng, b.gateway.Answers.pick(rng)), silent: chance(rng, b.gateway.Silent), ref: fmt.Sprintf("%s.%d", about, id.N)}
	a.status = b.decide(m, chance(rng, b.gateway.RefundRefused), now)
	if a.silent {
		b.count.Unanswered++
	}
	return a, nil
}

func (b *Bank) newMatter(id drop.ReservationID, about string, q question, now time.Time) *matter {
	rng := b.draw(id, about, 0)
	m := &matter{id: id, units: q.Units, refund: q.Action == "refund"}
	if m.refund {
		return m
	}
	if m.declined = chance(rng, b.gateway.Declined); m.declined {
		b.count.Declined++
	}
	if chance(rng, b.gateway.Undecided) {
		m.undecided = now.Add(between(rng, b.gateway.Decides))
		b.count.Undecided++
	}
	return m
}

// decide says what is true of a matter now.
func (b *Bank) decide(m *matter, refuses bool, now time.Time) string {
	switch {
	case m.moved:
		return string(drop.PaymentApproved)
	case now.Before(m.undecided):
		return string(drop.PaymentPending)
	case m.declined, m.refund && refuses:
		return string(drop.PaymentDeclined)
	}
	m.moved = true
	if m.refund {
		b.count.Refunds++
		b.kept[m.id] -= m.units
	} else {
		b.count.Approved++
		b.kept[m.id] += m.units
	}
	return string(drop.PaymentApproved)
}

// draw is what an answer is drawn from: of the question asked for the n-th time, or 0 for what is decided once. The number of
// a reservation is left out of it, since it depends on who came first.
func (b *Bank) draw(id drop.ReservationID, about string, times uint64) *mrand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, id.Attempt+"."+about)
	return mrand.New(mrand.NewPCG(b.seed^times<<32, h.Sum64()))
}

// Payments returns what happened so far.
func (b *Bank) Payments() Payments {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.count
	for _, units := range b.kept {
		p.PaidUnits += units
	}
	return p
}

// refused reports whether a charge of the reservation was declined and none was approved: nobody sold it then. Without a
// gateway nothing is.
func (b *Bank) refused(id drop.ReservationID) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for number := 1; ; number++ {
		m, asked := b.asked[fmt.Sprintf("%s.%d", id, number)]
		if !asked {
			return number > 1
		}
		if m.moved {
			return false
		}
	}
}

// misunderstood returns what the gateway was asked that contradicts an earlier question.
func (b *Bank) misunderstood() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.broken)
}

// compare holds the money against the sales of a lot, by reservation number: whoever has paid has the units, and no one else.
func (b *Bank) compare(lot drop.LotID, sold map[int64]int64) (wrong []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	paid := map[int64]bool{}
	for id, units := range b.kept {
		if id.Lot != lot {
			continue
		}
		paid[id.N] = true
		if units != sold[id.N] {
			wrong = append(wrong, fmt.Sprintf("%s: the gateway keeps the money for %d units, recorded are %d as sold", id, units, sold[id.N]))
		}
	}
	for n, units := range sold {
		if units != 0 && !paid[n] {
			wrong = append(wrong, fmt.Sprintf("%s: %d units of reservation number %d are recorded as sold, and nobody paid", lot, units, n))
		}
	}
	return wrong
}
