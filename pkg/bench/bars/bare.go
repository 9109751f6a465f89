package bars

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
)

// Bare is what an HTTP API cannot be faster than: net/http and encoding/json, and nothing between them. It decodes a
// reservation's body and encodes an answer like that of dropctl; below /sold-out/ a refusal.
func Bare() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/lots/{lot}/reservations", bareAccept)
	mux.HandleFunc("POST /sold-out/v1/lots/{lot}/reservations", bareRefuse)
	return mux
}

func bareAccept(w http.ResponseWriter, r *http.Request) {
	body, ok := bareBody(w, r)
	if !ok {
		return
	}
	now := time.Now().UTC()
	left, remaining := 300.0, int64(1)
	bareAnswer(w, http.StatusCreated, "application/json", client.Reservation{ID: r.PathValue("lot") + "~mfrggzdfmztwq2lknnwg23tpoa~17", Lot: r.PathValue("lot"),
		User: body.User, State: "held", Qty: body.Qty, Deadline: &now, Left: &left, Key: r.Header.Get("Idempotency-Key"), Created: &now, Seq: 17, Remaining: &remaining})
}

func bareRefuse(w http.ResponseWriter, r *http.Request) {
	if _, ok := bareBody(w, r); !ok {
		return
	}
	remaining := int64(1)
	bareAnswer(w, http.StatusConflict, "application/problem+json", client.Problem{Type: "urn:dropctl:error:sold_out", Title: "Sold out", Status: http.StatusConflict,
		Detail: "lot " + r.PathValue("lot") + " has 0 of 1 units left", Instance: "mfrggzdfmztwq2lknnwg23tpoa", Code: "sold_out",
		Hint: "try again when holds expire or are released: dropctl lot show LOT", Remaining: &remaining})
}

func bareBody(w http.ResponseWriter, r *http.Request) (client.ReserveBody, bool) {
	var body client.ReserveBody
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, "malformed", http.StatusBadRequest)
		return body, false
	}
	return body, true
}

func bareAnswer(w http.ResponseWriter, status int, kind string, body any) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that went away needs no answer
}
