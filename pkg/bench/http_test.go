package bench

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
)

// A server that sold too much, lost a unit, or has not what it said is sold, is found out through its own API.
func TestTheAuditOfAServerFindsWhatItHides(t *testing.T) {
	const id = "bench-00000-x~aaaaaaaaaaaaaaaaaaaaaaaaaa~3"
	var asked atomic.Int64
	var lot atomic.Pointer[client.Lot]
	answer := func(w http.ResponseWriter, status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/lots/{lot}", func(w http.ResponseWriter, r *http.Request) { answer(w, 201, client.Lot{Lot: r.PathValue("lot")}) })
	mux.HandleFunc("GET /v1/lots/{lot}", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, lot.Load()) })
	mux.HandleFunc("POST /v1/lots/{lot}/reservations", func(w http.ResponseWriter, r *http.Request) {
		answer(w, 201, client.Reservation{ID: id, Lot: r.PathValue("lot"), State: "held", Qty: 2})
	})
	mux.HandleFunc("POST /v1/reservations/{id}/confirm", func(w http.ResponseWriter, r *http.Request) {
		ledger := "pending" // at first: whoever waits has to ask again
		if asked.Add(1) > 1 {
			ledger = "recorded"
		}
		answer(w, 200, client.Reservation{ID: r.PathValue("id"), Lot: "bench-00000-x", State: "confirmed", Qty: 2, Ledger: ledger})
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	h, err := NewHTTP(HTTPOptions{URL: server.URL, Users: 2, Timeout: 20 * time.Second, Run: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.PutOnSale(t.Context(), []drop.Definition{{Lot: "bench-00000", Stock: 4}}); err != nil {
		t.Fatal(err)
	}
	held, err := h.Reserve(t.Context(), "bench-00000", "ann", 2)
	if err != nil || held.Lot != "bench-00000-x" {
		t.Fatalf("%s, %v", held, err)
	}
	if err := h.Confirm(t.Context(), held, "paid"); err != nil || asked.Load() != 2 {
		t.Fatalf("confirmed after %d calls: %v", asked.Load(), err)
	}
	for _, c := range []struct {
		lot  client.Lot
		want Audit
		says string
	}{
		{client.Lot{Capacity: 4, Available: 2, Sold: 2}, Audit{Verdict: AuditOK}, ""},
		{client.Lot{Capacity: 4, Held: 3, Sold: 2}, Audit{Verdict: AuditBroken, Oversold: 1}, "3 held and 2 sold of 4"},
		{client.Lot{Capacity: 4, Available: 1, Sold: 2}, Audit{Verdict: AuditBroken, Leaked: 1}, "1 of 4 units are neither"},
		{client.Lot{Capacity: 4, Available: 4, Sold: 2}, Audit{Verdict: AuditBroken}, "2 more than the 4"},
		{client.Lot{Capacity: 4, Available: 3, Sold: 1}, Audit{Verdict: AuditBroken}, "2 units were said to be sold, and are 1"},
	} {
		c.lot.Lot = "bench-00000-x"
		lot.Store(&c.lot)
		a, err := h.Audit(t.Context())
		if all := strings.Join(a.Findings, "\n"); err != nil || a.Verdict != c.want.Verdict || a.Oversold != c.want.Oversold || a.Leaked != c.want.Leaked || !strings.Contains(all, c.says) {
			t.Errorf("%+v: %+v, %v", c.lot, a, err)
		}
	}
	if cost := h.Cost(new(3 * time.Millisecond)); cost.Connections != 1 || cost.CPU == nil || time.Duration(*cost.CPU) != 3*time.Millisecond {
		t.Errorf("one buyer's cost: %+v", cost)
	}
}
