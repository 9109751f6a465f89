package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// instant is a stock that answers at once, so that only the API's own work is measured.
type instant struct {
	Stock
	err error
}

func (s instant) Reserve(_ context.Context, q drop.ReserveRequest) (drop.Outcome, error) {
	id := drop.ReservationID{Lot: q.Lot, Attempt: "mfrggzdfmztwq2lknnwg23tpoa", N: 17}
	return drop.Outcome{Reservation: drop.Reservation{ID: id, User: q.User, State: drop.Held, Qty: q.Qty, Deadline: exampleTime.Add(time.Minute), Created: exampleTime, LastSeq: 17},
		Remaining: 2, Now: exampleTime}, s.err
}

func (s instant) Lot(context.Context, drop.LotID) (drop.LotState, error) {
	return drop.LotState{}, fault.New(fault.Unavailable, "not asked here")
}

// sink is an answer that nobody reads.
type sink struct{ header http.Header }

func (s sink) Header() http.Header         { return s.header }
func (s sink) Write(b []byte) (int, error) { return len(b), nil }
func (s sink) WriteHeader(int)             {}

func BenchmarkReserve(b *testing.B) {
	token, id := drop.NewToken()
	_, hash, _ := drop.ReadToken(token)
	access := NewAccess(AccessOptions{})
	access.publish()
	key := drop.APIKey{ID: id, Tenant: "red", Scopes: drop.Scopes(), Hash: hash}
	access.ring.Store(&keyring{keys: map[string]drop.APIKey{id: key}, whole: true})
	log := slog.New(slog.NewJSONHandler(io.Discard, nil))
	handler := func(s Stock) http.Handler {
		return New(Options{Stock: s, Access: access, Log: log, Limits: NewLimits(LimitOptions{User: Rate{1e9, time.Second}})}).Handler()
	}
	soldOut := fault.New(fault.SoldOut, "lot truffle has 0 of 1 units left").With("available", int64(0)).With("remaining", int64(2))
	for name, h := range map[string]http.Handler{"accept": handler(instant{}), "refuse": handler(instant{err: soldOut}), "bare": http.HandlerFunc(bare)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			body := strings.NewReader("")
			req, _ := http.NewRequest(http.MethodPost, "http://localhost/v1/lots/truffle/reservations", body)
			req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"order-4711"}, "Authorization": {"Bearer " + token}}
			req.RemoteAddr = "127.0.0.1:1234"
			w := sink{http.Header{}}
			for b.Loop() {
				body.Reset(`{"user":"ada","qty":1}`)
				req.ContentLength, req.Body = 22, io.NopCloser(body)
				clear(w.header)
				h.ServeHTTP(w, req)
			}
		})
	}
}

// bare only decodes and encodes.
func bare(w http.ResponseWriter, r *http.Request) {
	var body client.ReserveBody
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var out bytes.Buffer
	_ = json.NewEncoder(&out).Encode(exampleReservation(nil))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(out.Bytes())
}
