package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/client"
)

// What was measured is printed even if nobody can look afterwards how things stand: the run may have taken an hour.
func TestAMeasurementIsPrintedThoughItCouldNotBeAudited(t *testing.T) {
	answer := func(w http.ResponseWriter, status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/lots", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, map[string]any{"items": []any{}}) })
	mux.HandleFunc("PUT /v1/lots/{lot}", func(w http.ResponseWriter, r *http.Request) { answer(w, 201, client.Lot{Lot: r.PathValue("lot")}) })
	mux.HandleFunc("POST /v1/lots/{lot}/close", func(w http.ResponseWriter, r *http.Request) { answer(w, 200, client.Lot{Lot: r.PathValue("lot")}) })
	mux.HandleFunc("POST /v1/lots/{lot}/reservations", func(w http.ResponseWriter, r *http.Request) {
		answer(w, 201, client.Reservation{ID: r.PathValue("lot") + "~aaaaaaaaaaaaaaaaaaaaaaaaaa~3", Lot: r.PathValue("lot"), State: "held", Qty: 1})
	})
	server := httptest.NewServer(mux) // which knows no lot that one asks for
	defer server.Close()
	r := run(t, nil, "bench", "http", "--server", server.URL, "--users", "2", "--lots", "3", "--warmup", "0s", "--duration", "200ms", "-o", "json")
	if r.exit == 0 || r.out == "" {
		t.Fatalf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
	got := readResult(t, r.out)
	if got.Accepted.Count == 0 || got.Audit.Verdict != bench.AuditNone || got.Lots != 3 || got.Qty != 1 {
		t.Errorf("%+v\n%s", got, r.err)
	}
}
