package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/fault"
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
	server := httptest.NewServer(mux) // which knows no lot that one asks for, and has no metrics
	defer server.Close()
	r := run(t, nil, "bench", "http", "--server", server.URL, "--users", "2", "--lots", "3", "--warmup", "0s", "--duration", "200ms", "-o", "json")
	if r.exit == 0 || r.out == "" {
		t.Fatalf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
	got := readResult(t, r.out)
	if got.Accepted.Count == 0 || got.Audit.Verdict != bench.AuditNone || got.Lots != 3 || got.Qty != 1 {
		t.Errorf("%+v\n%s", got, r.err)
	}
	if why := got.NotKnown; got.Batch != nil || !strings.Contains(why["batch"], "404") || why["server.cpu_seconds_per_operation"] == "" || why["redis"] == "" || why["postgres"] == "" {
		t.Errorf("batches %+v, not known %v", got.Batch, why)
	}
}

// Of a private server as of any other it is said why a figure is null.
func TestWhatAServerDoesNotTellHasAReason(t *testing.T) {
	for why, did := range map[string]bench.Doing{
		"it does not tell":                {Batch: &bench.Batch{}, Why: "it does not tell"},
		"not a single operation was sent": {Batch: &bench.Batch{}, CPU: new(time.Second)},
	} {
		var r bench.Result
		serverDid(&r, &bench.HTTP{}, did)
		if got := r.NotKnown["server.cpu_seconds_per_operation"]; r.Server.CPU != nil || got != why || r.NotKnown["batch"] != "" {
			t.Errorf("%+v: %v", r.Server, r.NotKnown)
		}
	}
}

// A server that answers nobody has not been measured: the command says what it answered, and fails as any call would.
func TestAServerThatAnswersNobodyIsNoMeasurement(t *testing.T) {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, status int, kind, body string) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
	const lot = `{"lot":"bench-00000-x","capacity":5,"available":5}`
	mux.HandleFunc("GET /v1/lots", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, "application/json", `{"items":[]}`) })
	mux.HandleFunc("GET /v1/lots/{lot}", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, "application/json", lot) })
	mux.HandleFunc("PUT /v1/lots/{lot}", func(w http.ResponseWriter, _ *http.Request) { answer(w, 201, "application/json", lot) })
	mux.HandleFunc("POST /v1/lots/{lot}/close", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, "application/json", lot) })
	mux.HandleFunc("POST /v1/lots/{lot}/reservations", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 503, "application/problem+json", `{"status":503,"code":"lot_frozen","detail":"the lot is frozen"}`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	r := run(t, nil, "bench", "http", "--server", server.URL, "--users", "2", "--warmup", "0s", "--duration", "200ms")
	if r.exit != int(fault.ExitUnavailable) || !strings.Contains(r.err, "not a single operation was answered") || !strings.Contains(r.err, "lot_frozen") || !strings.Contains(r.out, "lot_frozen") {
		t.Errorf("exit %d\n%s%s", r.exit, r.out, r.err)
	}
}
