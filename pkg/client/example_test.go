package client_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/fault"
)

// shop stands for a server; a real one is started with dropctl serve.
func shop() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "order-4711" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":"truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17","lot":"truffle-99","state":"held","qty":2}`)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"code":"sold_out","detail":"lot truffle-99 has 0 of 1 units left","remaining":2}`)
	}))
}

// A shop holds units for a buyer, and is told when there are none.
func Example() {
	server := shop()
	defer server.Close()
	c, err := client.New(client.Options{URL: server.URL, Key: "drk_k3ym4kes_ofdropctlkeycreate"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()

	// The key is the shop's own name for this attempt: repeated, it brings the same reservation.
	r, err := c.Reserve(ctx, "truffle-99", "order-4711", client.ReserveBody{User: "ada", Qty: 2})
	fmt.Println(r.ID, r.State, err)

	_, err = c.Reserve(ctx, "truffle-99", "order-4712", client.ReserveBody{User: "bob"})
	if fault.Is(err, fault.SoldOut) {
		fmt.Println("sold out:", err)
	}
	// Output:
	// truffle-99~mfrggzdfmztwq2lknnwg23tpoa~17 held <nil>
	// sold out: lot truffle-99 has 0 of 1 units left
}
