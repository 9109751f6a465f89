package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

func TestReconcileChecksItsFlagsBeforeItDials(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"reconcile --if-busy maybe", "neither fail nor ok"},
		{"reconcile --wait -1s", "is negative"},
		{"reconcile --group a:b", "is not a group name"},
		{"reconcile a --group b", "do not go together"},
		{"reconcile a:b:c", "is not a lot id"},
		{"reconcile --max-lag soon", "such as 10s"},
	} {
		if r := run(t, noServers, strings.Fields(test.args)...); r.exit != 2 || !strings.Contains(r.err, test.want) {
			t.Errorf("%s: exit %d, %s", test.args, r.exit, r.err)
		}
	}
}

// TestReconcileAsCronRunsIt goes from a clean shop over lag and a busy run to drift.
func TestReconcileAsCronRunsIt(t *testing.T) {
	testkit.Long(t)
	redis, db, env := emptyShop(t, 4)
	expect := expecting(t, env)
	expect(0, "", "seed", "truffle-99", "--stock", "40")
	l := stores.Ledger(t, db)
	s := stores.Stock(t, redis.SocketURL(), l)
	if _, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: "truffle-99", User: "ada", Key: "k", Qty: 1}); err != nil {
		t.Fatal(err)
	}
	if r := expect(0, "", "reconcile"); !strings.Contains(r.out, "lagging") || !strings.Contains(r.err, "no worker is alive") {
		t.Errorf("before a worker ran:\n%s%s", r.out, r.err)
	}
	expect(6, "", "reconcile", "--max-lag", "1ms")
	expect(0, "", "worker", "--until-idle", "-q")
	if r := expect(0, "", "reconcile", "-q", "--deep"); r.out != "" || r.err != "" {
		t.Errorf("clean and quiet, but it says %q %q", r.out, r.err)
	}
	if r := expect(0, "", "reconcile"); !strings.HasPrefix(r.out, "1 lot ok; took ") || strings.Count(r.out, "\n") != 1 {
		t.Errorf("clean, but it says\n%s", r.out)
	}
	if r := expect(0, "", "reconcile", "--deep"); !strings.Contains(r.out, " proven; took ") {
		t.Errorf("deep:\n%s", r.out)
	}
	expect(3, "", "reconcile", "truffle-98")
	expect(3, "", "reconcile", "--group", "festival")

	other, err := l.StartRun(t.Context(), "another", nil)
	if err != nil {
		t.Fatal(err)
	}
	expect(7, "", "reconcile")
	expect(0, "", "reconcile", "--if-busy", "ok", "-q")
	if err := other.Abandon(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}

	key, err := redis.Do(t.Context(), "KEYS", "drop:*:lot:truffle-99")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Plant(t, redis, key, "available", 1)
	r := expect(6, "", "reconcile", "-q")
	if !strings.Contains(r.out, "drift") || !strings.Contains(r.err, "hint: dropctl lot pause truffle-99") {
		t.Errorf("drift:\n%s%s", r.out, r.err)
	}
	r = expect(6, "", "reconcile", "-o", "json")
	var v struct {
		Verdict  string
		Findings int
		Lots     []struct {
			Lot, Verdict string
			Redis        struct{ Seq, Available int64 }
			Ledger       struct{ Seq, Available int64 }
			Evidence     []struct{ Check, Redis, Ledger string }
		}
	}
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || v.Findings != 1 || len(v.Lots) != 1 || len(v.Lots[0].Evidence) == 0 || v.Lots[0].Redis.Available != 40 || v.Lots[0].Ledger.Available != 39 || v.Lots[0].Redis.Seq != v.Lots[0].Ledger.Seq {
		t.Errorf("%+v %v in\n%s", v, err, r.out)
	}
	// Neither a look at another lot nor a run that comes to no verdict hides what is known.
	expect(0, "", "seed", "hat", "--stock", "1")
	expect(0, "", "reconcile", "hat")
	expect(3, "", "reconcile", "truffle-98")
	if r := expect(6, "", "status"); !strings.Contains(r.out, "drift when last reconciled: truffle-99") || !strings.Contains(r.out, "dropctl lot pause truffle-99") {
		t.Errorf("status:\n%s", r.out)
	}
	testkit.Plant(t, redis, key, "available", -1)
	expect(0, "", "worker", "--until-idle", "-q")
	expect(0, "", "reconcile", "truffle-99")
	if r := expect(0, "", "status"); !strings.Contains(r.out, "ago: ok") {
		t.Errorf("status:\n%s", r.out)
	}
	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	expect(5, "", "reconcile", "--timeout", "2s")
}
