package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
	"github.com/dropctl/dropctl/pkg/worker"
)

// TestASlowOrStoppedLedgerHoldsNobodyUpBeforeTheCeiling: buyers do not wait for a ledger that is slow or gone. Once the outbox
// is at its ceiling holds are refused, while confirmations and releases go on; when the ledger is back, so are the holds,
// without a restart of anything.
func TestASlowOrStoppedLedgerHoldsNobodyUpBeforeTheCeiling(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	db := stores.Database(t, shards)
	s := newShopOn(t, testkit.Redis(t), db)
	link := limitOutbox(t, s, db, 20<<10)
	s.load(t, "truffle", 100_000)
	s.start(t, worker.Options{Keep: time.Millisecond})
	s.agreesWithin(t, time.Minute)

	const slow, calls = 2 * time.Second, 20
	link.Delay(slow)
	began := time.Now()
	for i := range calls {
		if _, err := s.hold(t.Context(), "truffle", fmt.Sprint("early-", i), time.Hour); err != nil {
			t.Fatalf("a slow ledger: %v", err)
		}
	}
	if took := time.Since(began); took > slow*calls/2 {
		t.Errorf("%d holds took %s: they wait for the ledger", calls, took)
	}

	link.Cut()
	var held []drop.ReservationID
	hold := func() error {
		id, err := s.hold(t.Context(), "truffle", fmt.Sprint("late-", len(held)), time.Hour)
		if err == nil {
			held = append(held, id)
		}
		return err
	}
	for len(held) < 5000 {
		if err := hold(); fault.Is(err, fault.Backpressure) {
			break
		} else if err != nil {
			t.Fatalf("a stopped ledger: %v", err)
		}
	}
	if len(held) < 20 || len(held) == 5000 {
		t.Fatalf("%d holds before backpressure", len(held))
	}
	for i, id := range held[:10] {
		action := []drop.Action{drop.ActConfirm, drop.ActRelease}[i%2]
		if _, err := s.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: action, Ref: "pay"}); err != nil {
			t.Errorf("%s at the ceiling: %v", action, err)
		}
	}
	if err := hold(); !fault.Is(err, fault.Backpressure) {
		t.Errorf("settling made room: %v", err)
	}

	link.Heal()
	testkit.Eventually(t, 2*time.Minute, func() (bool, string) {
		err := hold()
		return err == nil, "holds are still refused: " + errorText(err)
	})
	s.agreesWithin(t, 2*time.Minute)
}

// limitOutbox opens the shop's stores anew: Redis with a ceiling of its outboxes in bytes, PostgreSQL over a link that can be
// slowed down and cut.
func limitOutbox(t *testing.T, s *shop, db testkit.Database, ceiling int64) *testkit.FaultyProxy {
	t.Helper()
	in := s.ledger.Installation()
	s.close()
	var err error
	if s.stock, err = stock.Open(stock.Options{URL: s.redisURL, Installation: in.ID, Shards: in.Shards, OutboxMaxBytes: ceiling}); err != nil {
		t.Fatal(err)
	}
	link := testkit.Proxy(t, db.Server.Addr())
	s.databaseURL = link.URL(t, db.Server.URL(lab.App, db.Name))
	if s.ledger, err = ledger.Open(t.Context(), ledger.Options{URL: s.databaseURL, Application: "worker-test", MaxConns: 8}); err != nil {
		t.Fatal(err)
	}
	return link
}
