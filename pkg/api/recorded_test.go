package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// told is a ledger that says what a test wants it to.
type told struct {
	api.Ledger
	rejected bool          // every reservation is
	behind   bool          // it has none of them yet
	asked    atomic.Int64  // questions about reservations
	reading  chan struct{} // lists take until this is closed; nil: no time
}

func (l *told) ReservationsByID(ctx context.Context, ids []drop.ReservationID) (map[drop.ReservationID]drop.Recorded, error) {
	l.asked.Add(1)
	found, err := l.Ledger.ReservationsByID(ctx, ids)
	for id, r := range found {
		r.Rejected = l.rejected
		found[id] = r
	}
	if l.behind {
		return nil, err
	}
	return found, err
}

func (l *told) Reservations(ctx context.Context, f drop.ReservationFilter) ([]drop.Recorded, error) {
	if l.reading != nil {
		<-l.reading
	}
	return l.Ledger.Reservations(ctx, f)
}

// telling is the same site with what a ledger says.
func (s *site) telling(t *testing.T, l *told, lag time.Duration) *site {
	t.Helper()
	l.Ledger = s.shop
	server := httptest.NewServer(api.New(api.Options{Stock: s.stock, Ledger: l, Lots: s.shop, Access: s.access, Metrics: s.metrics,
		Lag: func() time.Duration { return lag }}).Handler())
	t.Cleanup(server.Close)
	copied := *s
	copied.url = server.URL
	return &copied
}

func (s *site) confirm(t *testing.T, r client.Reservation, body client.ConfirmBody) answer {
	t.Helper()
	return s.call(t, "POST", "/v1/reservations/"+r.ID+"/confirm", body)
}

func TestAConfirmTellsTheLedgersWord(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t)
	s.load(t, drop.Definition{Lot: "hat", Stock: 10})
	if r := into[client.Reservation](t, http.StatusOK, s.confirm(t, s.reserve(t, "hat", "ada", "k", 1), client.ConfirmBody{})); r.Ledger != "recorded" || r.LedgerLag != nil {
		t.Errorf("recorded: %+v", r)
	}

	late := s.telling(t, &told{}, 3*time.Second)
	began := time.Now()
	r := into[client.Reservation](t, http.StatusAccepted, late.confirm(t, s.reserve(t, "hat", "bob", "k", 1), client.ConfirmBody{}))
	if took := time.Since(began); r.Ledger != "pending" || r.LedgerLag == nil || *r.LedgerLag != 3 || r.State != "confirmed" || took >= 2*time.Second { // the wait
		t.Errorf("after %v: %+v", took, r)
	}

	// The lag is about what is confirmed now. What was recorded before it grew, the ledger says at once.
	early := s.reserve(t, "hat", "dan", "k", 1)
	into[client.Reservation](t, http.StatusOK, s.confirm(t, early, client.ConfirmBody{Payment: "pay"}))
	r = into[client.Reservation](t, http.StatusOK, late.confirm(t, early, client.ConfirmBody{Payment: "pay"}))
	if !r.Replayed || r.Ledger != "recorded" || r.LedgerLag != nil {
		t.Errorf("confirmed again while the ledger lags: %+v", r)
	}
	r = into[client.Reservation](t, http.StatusAccepted, s.telling(t, &told{behind: true}, 3*time.Second).confirm(t, early, client.ConfirmBody{Payment: "pay"}))
	if !r.Replayed || r.Ledger != "pending" || *r.LedgerLag != 3 {
		t.Errorf("confirmed again before it is recorded: %+v", r)
	}

	unasked := &told{}
	r = into[client.Reservation](t, http.StatusOK, s.telling(t, unasked, 0).confirm(t, s.reserve(t, "hat", "cyd", "k", 1), client.ConfirmBody{Ack: "stock"}))
	if r.Ledger != "" || unasked.asked.Load() != 0 {
		t.Errorf("with the word of Redis: %+v, and the ledger was asked %d times", r, unasked.asked.Load())
	}

	held := s.reserve(t, "hat", "eve", "k", 1)
	for range 2 { // repeated, it is rejected still
		p := refused(t, http.StatusConflict, "ledger_rejected", s.telling(t, &told{rejected: true}, 0).confirm(t, held, client.ConfirmBody{Payment: "pay"}))
		if p.Facts["reservation"] != held.ID {
			t.Errorf("the problem is about %v", p.Facts)
		}
	}
}

// Lists that PostgreSQL takes long for hold up neither each other for ever nor those who confirm.
func TestLongListsHoldNobodyUp(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	s.load(t, drop.Definition{Lot: "hat", Stock: 10})
	slow := &told{reading: make(chan struct{})}
	busy := s.telling(t, slow, 0)
	answers := make(chan answer, 8)
	for range cap(answers) {
		go func() {
			ans, _ := busy.try(t.Context(), "GET", "/v1/reservations", nil)
			answers <- ans
		}()
	}
	for range cap(answers) / 2 {
		if ans := <-answers; ans.status != http.StatusServiceUnavailable || ans.header.Get("Retry-After") == "" {
			t.Errorf("%d %s", ans.status, ans.body)
		}
	}
	if r := into[client.Reservation](t, http.StatusOK, busy.confirm(t, s.reserve(t, "hat", "ada", "k", 1), client.ConfirmBody{})); r.Ledger != "recorded" {
		t.Errorf("the confirm was answered %+v", r)
	}
	close(slow.reading)
	for range cap(answers) / 2 {
		if ans := <-answers; ans.status != http.StatusOK {
			t.Errorf("%d %s", ans.status, ans.body)
		}
	}
}

// A full outbox stops holds, and nothing else.
func TestAFullOutboxStopsHoldsOnly(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker, o.outbox = true, 4096 })
	s.load(t, drop.Definition{Lot: "hat", Stock: 1000})
	first := s.reserve(t, "hat", "first", "k", 1)
	n := 0
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		n++
		ans := s.call(t, "POST", "/v1/lots/hat/reservations", client.ReserveBody{User: fmt.Sprint("user-", n)}, headers{"Idempotency-Key": "k"})
		if ans.status == http.StatusCreated {
			return false, "holds are still taken"
		}
		refused(t, http.StatusServiceUnavailable, "backpressure", ans)
		return ans.header.Get("Retry-After") != "", "nothing says when to ask again"
	})
	if again := s.call(t, "POST", "/v1/lots/hat/reservations", client.ReserveBody{User: "first"}, headers{"Idempotency-Key": "k"}); again.status != http.StatusOK {
		t.Errorf("asked again: %d %s", again.status, again.body)
	}
	into[client.Reservation](t, http.StatusOK, s.confirm(t, first, client.ConfirmBody{Ack: "stock"}))
}
