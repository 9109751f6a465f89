package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// served is a real server on private stores, and what belongs to it.
type served struct {
	url    string
	server *exec.Cmd
	env    []string
}

func serve(t *testing.T) *served {
	t.Helper()
	redis, db := testkit.Redis(t), testkit.Postgres(t)
	s := &served{env: []string{"DROPCTL_REDIS_URL=" + redis.URL(), "DROPCTL_DATABASE_URL=" + db.URL(lab.Owner)}}
	s.run(t, "migrate", "up", "--shards", "4")
	s.server, s.url = startAPI(t, s.env, "--listen", "127.0.0.1:0", "--ledger-wait", "100ms")
	return s
}

// run runs a command on the server's stores.
func (s *served) run(t *testing.T, args ...string) {
	t.Helper()
	cmd := as("dropctl", args...)
	cmd.Env = append(cmd.Env, s.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// restart ends the server, gracefully, and starts it again at the same address.
func (s *served) restart(t *testing.T) {
	t.Helper()
	if err := s.server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = s.server.Wait()
	s.server, _ = startAPI(t, s.env, "--listen", strings.TrimPrefix(s.url, "http://"))
}

// client calls the server at an address; patiently, where its answers are going to be lost.
func (s *served) client(t *testing.T, url string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: url, Retries: 50})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func lotOf(t *testing.T, c *client.Client, lot string, stock int64) {
	t.Helper()
	if l, created, err := c.PutLot(t.Context(), lot, client.LotBody{Stock: &stock}); err != nil || !created || l.Capacity != stock {
		t.Fatalf("%+v, %v, %v", l, created, err)
	}
}

// TestTheClientAgainstARealServer: every call, its answer, its refusal and its repetition.
func TestTheClientAgainstARealServer(t *testing.T) {
	testkit.Long(t)
	s := serve(t)
	c, ctx := s.client(t, s.url), t.Context()
	lotOf(t, c, "hat", 10)
	ten := int64(10)
	if _, created, err := c.PutLot(ctx, "hat", client.LotBody{Stock: &ten}); err != nil || created {
		t.Errorf("the same lot once more: %v, %v", created, err)
	}

	var fresh, replayed atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			r, err := c.Reserve(ctx, "hat", "order 1 größe 🎩", client.ReserveBody{User: "ada", Qty: 4})
			switch {
			case err != nil || r.Qty != 4:
				t.Errorf("%+v, %v", r, err)
			case r.Replayed:
				replayed.Add(1)
			default:
				fresh.Add(1)
			}
		})
	}
	all.Wait()
	if fresh.Load() != 1 || replayed.Load() != 49 {
		t.Errorf("%d holds, %d replays of one key", fresh.Load(), replayed.Load())
	}

	if _, err := c.Reserve(ctx, "hat", "k", client.ReserveBody{User: "bob", Qty: 7}); !fault.Is(err, fault.SoldOut) {
		t.Errorf("%v", err)
	}
	_, err := c.Reserve(ctx, "hat", "k", client.ReserveBody{User: "ada"})
	if f := fault.As(err); !fault.Is(err, fault.HoldExists) || !strings.HasPrefix(fmt.Sprint(f.Details["reservation"]), "hat~") || f.Details["remaining_seconds"] == nil {
		t.Errorf("%v, %v", err, f.Details)
	}
	if r, err := c.Reserve(ctx, "hat", "k2", client.ReserveBody{User: "ada", Qty: 2, Replace: true}); err != nil || r.Qty != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, err := range []error{
		second(c.Reserve(ctx, "nosuch", "k", client.ReserveBody{User: "ada"})),
		second(c.Lot(ctx, "nosuch")),
		second(c.Reservation(ctx, "hat~mfrggzdfmztwq2lknnwg23tpoa~9")),
	} {
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("%v", err)
		}
	}
	if _, err := c.Reserve(ctx, "hat", "k", client.ReserveBody{User: "a\x00b"}); !fault.Is(err, fault.Invalid) || fault.As(err).Field != "user" {
		t.Errorf("%v, field %s", err, fault.As(err).Field)
	}
	if l, changed, err := c.PauseLot(ctx, "hat", client.StatusBody{Reason: "because"}); err != nil || !changed || l.Status != "paused" {
		t.Errorf("%+v, %v, %v", l, changed, err)
	}
	if _, changed, err := c.PauseLot(ctx, "hat", client.StatusBody{}); err != nil || changed {
		t.Errorf("%v, %v", changed, err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestWhatIsRepeatedAfterALostAnswerActsOnce: the server does what it is asked, and nobody hears of it. The client asks
// again by itself, and everything has been done once.
func TestWhatIsRepeatedAfterALostAnswerActsOnce(t *testing.T) {
	s := serve(t)
	proxy := testkit.Proxy(t, strings.TrimPrefix(s.url, "http://"))
	direct, lossy, ctx := s.client(t, s.url), s.client(t, "http://"+proxy.Addr()), t.Context()
	lotOf(t, direct, "hat", 10)

	// lost makes a call of which at least the first answer is lost.
	lost := func(what string, call func() error) {
		t.Helper()
		before := proxy.Dropped()
		proxy.DropReplies()
		healed := make(chan struct{})
		go func() {
			defer close(healed)
			for deadline := time.Now().Add(10 * time.Second); proxy.Dropped() == before && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			proxy.Heal()
		}()
		if err := call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		<-healed
		if proxy.Dropped() == before {
			t.Errorf("%s: no answer was lost", what)
		}
	}
	var r client.Reservation
	lost("reserve", func() (err error) {
		r, err = lossy.Reserve(ctx, "hat", "k", client.ReserveBody{User: "ada", Qty: 5})
		return err
	})
	lost("extend", func() error { return second(lossy.Extend(ctx, r.ID, client.ExtendBody{By: 600})) })
	lost("release", func() error { return second(lossy.Release(ctx, r.ID, client.ReleaseBody{Keep: 3})) })
	lost("confirm", func() error {
		return second(lossy.Confirm(ctx, r.ID, client.ConfirmBody{Payment: "pay-1", Ack: "stock"}))
	})
	one, five := int64(1), int64(5)
	lost("refund", func() error { return second(lossy.Refund(ctx, r.ID, client.RefundBody{Total: &one})) })
	lost("adjust", func() error {
		_, changed, err := lossy.AdjustLot(ctx, "hat", client.AdjustBody{By: &five, Expect: 10})
		if changed {
			t.Error("an adjustment whose first answer was lost says that it has just been made")
		}
		return err
	})
	l, err := direct.Lot(ctx, "hat")
	if err != nil || l.Capacity != 15 || l.Sold != 2 || l.Held != 0 || l.Available != 13 {
		t.Errorf("%+v, %v", l, err)
	}
	r, err = direct.Reservation(ctx, r.ID)
	if err != nil || r.State != "confirmed" || r.Qty != 2 || r.Refunded != 1 || r.Payment != "pay-1" {
		t.Errorf("%+v, %v", r, err)
	}

	proxy.Cut()
	hasty, err := client.New(client.Options{URL: "http://" + proxy.Addr(), Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hasty.Lot(ctx, "hat"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

// TestAListAndTheLedgersWord: what was sold is listed page by page once the ledger has it.
func TestAListAndTheLedgersWord(t *testing.T) {
	testkit.Long(t)
	s := serve(t)
	c, ctx := s.client(t, s.url), t.Context()
	for i := range 3 {
		lotOf(t, c, fmt.Sprint("lot-", i), 10)
	}
	var sold client.Reservation
	for i := range 5 {
		var err error
		if sold, err = c.Reserve(ctx, "lot-1", "k", client.ReserveBody{User: fmt.Sprint("u", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := c.Confirm(ctx, sold.ID, client.ConfirmBody{}); err != nil || r.Ledger != "pending" || r.State != "confirmed" || r.LedgerLag == nil {
		t.Errorf("without a worker: %+v, %v", r, err)
	}
	s.run(t, "worker", "--until-idle")
	if r, err := c.Confirm(ctx, sold.ID, client.ConfirmBody{}); err != nil || r.Ledger != "recorded" || !r.Replayed {
		t.Errorf("after the worker: %+v, %v", r, err)
	}
	var users []string
	for r, err := range c.AllReservations(ctx, client.Filter{Lot: "lot-1", Limit: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		users = append(users, r.User)
	}
	if !slices.Equal(users, []string{"u0", "u1", "u2", "u3", "u4"}) {
		t.Errorf("listed %v", users)
	}
	page, err := c.Reservations(ctx, client.Filter{User: "u4", States: []string{"confirmed", "held"}})
	if err != nil || len(page.Items) != 1 || page.Items[0].State != "confirmed" || page.Next != "" {
		t.Errorf("%+v, %v", page, err)
	}
	var lots []string
	for at := ""; ; {
		page, err := c.Lots(ctx, at, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page.Items {
			lots = append(lots, l.Lot)
		}
		if at = page.Next; at == "" {
			break
		}
	}
	if !slices.Equal(lots, []string{"lot-0", "lot-1", "lot-2"}) {
		t.Errorf("listed %v", lots)
	}
}

// TestAStreamOutlivesItsServer: whoever watches a lot hears of each change, also of one that is made after the server
// was started again.
func TestAStreamOutlivesItsServer(t *testing.T) {
	testkit.Long(t)
	s := serve(t)
	c := s.client(t, s.url)
	lotOf(t, c, "hat", 10)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var available []int64
	reserve := func(user string) {
		if _, err := c.Reserve(ctx, "hat", "k", client.ReserveBody{User: user}); err != nil {
			t.Error(err)
		}
	}
	for a, err := range c.Watch(ctx, "hat") {
		if err != nil {
			t.Fatal(err)
		}
		switch available = append(available, a.Available); a.Available {
		case 10:
			reserve("ada")
		case 9:
			s.restart(t)
			reserve("bob")
		}
		if a.Available == 8 {
			break
		}
	}
	if !slices.Equal(available, []int64{10, 9, 8}) {
		t.Errorf("heard of %v", available)
	}
}
