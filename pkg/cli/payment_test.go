package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/testkit"
)

// The whole way by hand: a worker that charges, what status and ledger say of it, and a refund through the gateway that it
// does not want to make at first.
func TestAWorkerChargesThroughAGateway(t *testing.T) {
	testkit.Long(t)
	_, env := newShop(t, 4)
	g := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		switch {
		case c.Action == "refund" && c.Times == 1:
			return testkit.GatewayAnswer{Status: "declined"}
		case c.User == "bob":
			return testkit.GatewayAnswer{Status: "pending"}
		}
		return testkit.GatewayAnswer{}
	})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(g.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env["DROPCTL_PAYMENT_SECRET"] = "file:" + secret
	worker := func() {
		t.Helper()
		if r := run(t, env, "worker", "--until-idle", "--payment", "webhook", "--payment-url", g.URL, "-q"); r.exit != 0 || strings.Contains(r.err, g.Secret) {
			t.Fatalf("exit %d, %s", r.exit, r.err)
		}
	}
	buy := func(user string) string {
		id := mustJSON[settledJSON](t, env, "reserve", "hat", "--user", user, "--qty", "2").ID
		mustJSON[settledJSON](t, env, "confirm", id, "--payment", "card-"+user)
		return id
	}
	ann, bob := buy("ann"), buy("bob")
	worker()
	if kept := g.Kept(); len(kept) != 1 || kept[ann] != 2 || g.Asked(bob+".1") != 1 {
		t.Errorf("the gateway keeps %v", kept)
	}
	status := func() statusJSON { return mustJSON[statusJSON](t, env, "status") }
	if v := status(); v.Payments.Open != 1 || v.Payments.Pending != 1 || !v.says("has not decided: 1") {
		t.Errorf("status %+v", v)
	}
	mustJSON[settledJSON](t, env, "refund", ann, "-y")
	worker()
	if v := status(); v.Payments.Refused != 1 || len(v.Refused) != 1 || v.Refused[0].Reservation != ann || !v.says("will not make: 1") {
		t.Errorf("status %+v", v)
	}
	orders := mustJSON[[]struct{ Record, Kind, Charge string }](t, env, "ledger", "show", "--reservation", ann)
	if !slices.ContainsFunc(orders, func(o struct{ Record, Kind, Charge string }) bool {
		return o.Kind == "sale" && strings.HasPrefix(o.Charge, "g:")
	}) {
		t.Errorf("orders %+v", orders)
	}
	// Nobody else books what the gateway was asked about.
	if r := run(t, env, "worker", "--until-idle", "-q"); r.exit != 0 {
		t.Fatal(r.err)
	}
	if v := status(); v.Payments.Pending != 1 {
		t.Errorf("status %+v", v)
	}
}

type statusJSON struct {
	Lines    []struct{ What string }
	Payments struct {
		Open    int `json:"charges_open"`
		Pending int `json:"charges_pending"`
		Refused int `json:"refunds_refused"`
	}
	Refused []struct{ Reservation string } `json:"refused_refunds"`
}

func (v statusJSON) says(what string) bool {
	return slices.ContainsFunc(v.Lines, func(l struct{ What string }) bool { return strings.Contains(l.What, what) })
}

// Mistakes in the settings are found before any server is dialled.
func TestAGatewayHasToBeNamed(t *testing.T) {
	env := map[string]string{"DROPCTL_REDIS_URL": "redis://127.0.0.1:1", "DROPCTL_DATABASE_URL": "postgres://127.0.0.1:1/x"}
	const secret = "long enough to sign with"
	for _, c := range []struct{ flags, secret, field string }{
		{"--payment cash", secret, "payment"}, {"--payment webhook", secret, "payment-url"}, {"--payment webhook --payment-url https://pay.example", "", "payment-secret"},
		{"--payment webhook --payment-url https://pay.example", "env:NOT_THERE", "payment-secret"}, {"--payment webhook --payment-url ftp://pay.example", secret, "payment-url"},
		{"--payment webhook --payment-url https://pay.example", "guessable", "payment-secret"},
		{"--payment webhook --payment-url https://pay.example --payment-timeout 0s", secret, "payment-timeout"},
	} {
		env["DROPCTL_PAYMENT_SECRET"] = c.secret
		for _, command := range []string{"worker", "serve --listen 127.0.0.1:0"} {
			r := run(t, env, strings.Fields(command+" -o json "+c.flags)...)
			if e := r.errorObject(t); r.exit != 2 || e.Field != c.field {
				t.Errorf("%s %s: exit %d, %s", command, c.flags, r.exit, r.err)
			}
		}
	}
}
