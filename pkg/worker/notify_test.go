package worker_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/notify"
	"github.com/dropctl/dropctl/pkg/sign"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

const hookSecret = "a secret of the test"

// receiver is a server that hooks tell what happens.
type receiver struct {
	*httptest.Server
	t testing.TB

	mu    sync.Mutex
	down  bool
	hang  chan struct{}  // nil, or requests are answered once it is closed
	begun int            // requests
	got   []string       // kinds and lots or reservations, in the order of their arrival
	ids   map[string]int // how often each delivery was taken
}

// newReceiver starts a receiver and adds a hook for it; kinds are separated by blanks, "": all.
func (s *shop) newReceiver(t testing.TB, kinds string) *receiver {
	t.Helper()
	r := &receiver{t: t, ids: map[string]int{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	list, err := drop.ParseNoticeKinds(strings.Fields(kinds))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ledger.AddHook(t.Context(), drop.Hook{ID: drop.NewHookID(), URL: r.URL, Kinds: list, AllowPrivate: true, CreatedBy: "test"}, hookSecret); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	if err := sign.Verify(hookSecret, req.Header.Get(sign.HeaderName), body, time.Now(), sign.Tolerance); err != nil {
		r.t.Errorf("the signature: %v", err)
	}
	var n struct {
		ID, Kind, Lot, Reservation string
	}
	if err := json.Unmarshal(body, &n); err != nil || n.ID == "" || n.ID != req.Header.Get(notify.DeliveryHeader) {
		r.t.Errorf("%v: %s", err, body)
	}
	r.mu.Lock()
	r.begun++
	hang := r.hang
	r.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-req.Context().Done():
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	about := n.Reservation
	if about == "" {
		about = n.Lot
	}
	r.got = append(r.got, n.Kind+" "+about)
	r.ids[n.ID]++
}

// set changes how the receiver behaves.
func (r *receiver) set(change func(*receiver)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *receiver) arrived() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// gets waits until exactly this has arrived, in this order; nothing may have come twice.
func (r *receiver) gets(t testing.TB, want ...string) {
	t.Helper()
	testkit.Eventually(t, 40*time.Second, func() (bool, string) {
		got := r.arrived()
		return slices.Equal(got, want), fmt.Sprintf("it was told %q, not %q", got, want)
	})
	r.noneTwice(t)
}

func (r *receiver) noneTwice(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, n := range r.ids {
		if n != 1 {
			t.Errorf("%s was taken %d times", id, n)
		}
	}
}

func (s *shop) change(t testing.TB, lot drop.LotID, status drop.Status) {
	t.Helper()
	if _, _, err := s.stock.Change(t.Context(), drop.ChangeRequest{Lot: lot, Status: &status, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
}

// A farmer logs a harvest, and sells it later: the buyers' app hears of both at once, of the last truffle, and of one that
// comes back.
func TestTheBuyersAppIsTold(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	app := s.newReceiver(t, "lot_loaded lot_opened sold_out available_again lot_frozen")
	till := s.newReceiver(t, "held confirmed expired")
	s.start(t, worker.Options{})
	stores.Load(t, s.stock, s.ledger, drop.Definition{Lot: "truffle", Stock: 3, Status: drop.Paused})
	app.gets(t, "lot_loaded truffle")
	s.change(t, "truffle", drop.Open)
	app.gets(t, "lot_loaded truffle", "lot_opened truffle")

	ann := s.mustHold(t, "ann", 10*time.Minute)
	if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: ann, Action: drop.ActConfirm, Ref: "pay"}); err != nil {
		t.Fatal(err)
	}
	dan := s.mustHold(t, "dan", time.Second)
	testkit.Eventually(t, 40*time.Second, func() (bool, string) {
		got := till.arrived()
		slices.Sort(got)
		want := []string{"confirmed " + ann.String(), "expired " + dan.String(), "held " + ann.String(), "held " + dan.String()}
		slices.Sort(want)
		return slices.Equal(got, want), fmt.Sprint(got)
	})
	if got := till.arrived(); slices.Index(got, "held "+ann.String()) > slices.Index(got, "confirmed "+ann.String()) {
		t.Errorf("a confirmation was told before its hold: %v", got)
	}
	till.noneTwice(t)

	bob := s.mustHold(t, "bob", 10*time.Minute)
	s.mustHold(t, "cid", 10*time.Minute)
	app.gets(t, "lot_loaded truffle", "lot_opened truffle", "sold_out truffle")
	if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: bob, Action: drop.ActRelease}); err != nil {
		t.Fatal(err)
	}
	app.gets(t, "lot_loaded truffle", "lot_opened truffle", "sold_out truffle", "available_again truffle")
	seen, err := s.stock.ShardState(t.Context(), drop.LotID("truffle").Shard(shards))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.stock.Freeze(t.Context(), seen, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	app.gets(t, "lot_loaded truffle", "lot_opened truffle", "sold_out truffle", "available_again truffle", "lot_frozen truffle")
}

// mustHold takes a truffle.
func (s *shop) mustHold(t testing.TB, user string, d time.Duration) drop.ReservationID {
	t.Helper()
	id, err := s.hold(t.Context(), "truffle", user, d)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// takes waits until a receiver has taken n notices, each once.
func (r *receiver) takes(t testing.TB, n int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (bool, string) {
		got := len(r.arrived())
		return got >= n, fmt.Sprintf("%d of %d arrived", got, n)
	})
	r.mu.Lock()
	distinct := len(r.ids)
	r.mu.Unlock()
	if distinct != n {
		t.Errorf("%d different notices arrived, not %d", distinct, n)
	}
}

// While a receiver is away nothing is lost and no other suffers; afterwards everything arrives, once.
func TestAReceiverThatWasAwayMissesNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	away, hangs, fine := s.newReceiver(t, "held"), s.newReceiver(t, "held"), s.newReceiver(t, "held")
	away.set(func(r *receiver) { r.down = true })
	hang := make(chan struct{})
	hangs.set(func(r *receiver) { r.hang = hang })
	s.load(t, "lot", 100)
	s.start(t, worker.Options{})
	s.start(t, worker.Options{}) // they share the work
	s.sell(t, "lot", 0, 100)
	fine.takes(t, 100)
	fine.noneTwice(t)
	if got := len(away.arrived()) + len(hangs.arrived()); got > 0 {
		t.Errorf("%d notices arrived at receivers that are away", got)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		hooks, err := s.ledger.Hooks(t.Context())
		return err == nil && !hooks[0].FailingSince.IsZero() && hooks[0].Waiting == 100, fmt.Sprintf("%+v %v", hooks, err)
	})
	away.set(func(r *receiver) { r.down = false })
	close(hang)
	away.takes(t, 100)
	away.noneTwice(t)
	hangs.takes(t, 100)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		hooks, err := s.ledger.Hooks(t.Context())
		ok := err == nil
		for _, h := range hooks {
			ok = ok && h.Waiting == 0 && h.FailingSince.IsZero()
		}
		return ok, fmt.Sprintf("%+v %v", hooks, err)
	})
}

// A worker that dies while it sends leaves its notices to another, which sends them once more under the same ids.
func TestNoticesOfAKilledWorkerAreSentAgain(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	db := stores.Database(t, shards)
	s := newShopOn(t, testkit.Redis(t), db)
	r := s.newReceiver(t, "held")
	r.set(func(r *receiver) { r.hang = make(chan struct{}) })
	s.load(t, "lot", 10)
	s.startProcess(t)
	s.sell(t, "lot", 0, 10)
	testkit.Eventually(t, 40*time.Second, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.begun > 0, "nothing was sent"
	})
	if err := endProcess(s.running); err != nil {
		t.Fatal(err)
	}
	r.set(func(r *receiver) { r.hang = nil })
	s.agreesSoon(t)
	db.SQL(t, "UPDATE hook_deliveries SET due_at = now() WHERE state = 'waiting'") // the leases end
	r.takes(t, 10)
	r.noneTwice(t)
}

// agreesSoon lets another worker finish what a killed one had in hand.
func (s *shop) agreesSoon(t testing.TB) {
	t.Helper()
	s.start(t, worker.Options{Takeover: time.Second})
	testkit.Eventually(t, time.Minute, func() (bool, string) {
		lots, err := s.ledger.Lots(t.Context(), []drop.LotID{"lot"})
		return err == nil && len(lots) == 1 && lots[0].Held+lots[0].Sold == 10, fmt.Sprint(lots, err)
	})
}

// Until-idle sends what can be sent, and does not wait for a receiver that is away.
func TestUntilIdleSendsNotices(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newShop(t)
	fine, away := s.newReceiver(t, ""), s.newReceiver(t, "lot_loaded")
	away.set(func(r *receiver) { r.down = true })
	s.load(t, "lot", 1)
	if _, err := s.hold(t.Context(), "lot", "ann", time.Hour); err != nil {
		t.Fatal(err)
	}
	s.mustDrain(t)
	if got := fine.arrived(); len(got) != 4 || !slices.Contains(got, "sold_out lot") {
		t.Errorf("told %q", got)
	}
	if got := away.arrived(); len(got) > 0 {
		t.Errorf("told %q", got)
	}
}
