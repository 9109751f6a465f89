package wire_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/payment"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/worker"
)

// watched is a shop with its metrics, as somebody who reads them sees it.
type watched struct {
	shop
	metrics  *telemetry.Metrics
	observer *wire.Observer
}

// watch looks at the shop every 20 ms until the test ends.
func (s shop) watch(t *testing.T, lots int) watched {
	t.Helper()
	w := watched{shop: s, metrics: telemetry.New()}
	w.observer = wire.Observe(s.stock, wire.Opened(s.ledger), w.metrics.Drop, wire.ObserveOptions{Every: 20 * time.Millisecond, Lots: lots, Ceiling: 1 << 20})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.observer.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return w
}

// work runs a worker until the returned function is called.
func (w watched) work(t *testing.T, o worker.Options) (stop func()) {
	t.Helper()
	in := w.ledger.Installation()
	o.Installation, o.Shards, o.Rebuild, o.Metrics = in.ID, in.Shards, wire.RebuildLot(w.stock, w.ledger), w.metrics.Worker
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { _, err := worker.New(w.stock, wire.WorkerLedger(w.ledger), o).Run(ctx); done <- err }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil // for another stop
	}
	t.Cleanup(stop)
	return stop
}

// values reads every metric: `name`, `name{label="value"}`, and of a histogram its count.
func (w watched) values(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := w.metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf("{%s=%q}", l.GetName(), l.GetValue())
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// shows waits until each of these conditions on metrics holds, such as `dropctl_up{store="redis"} = 1` or `x > 0`.
func (w watched) shows(t *testing.T, conditions ...string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		values := w.values(t)
		for _, c := range conditions {
			var number float64
			f := strings.Fields(c)
			if _, err := fmt.Sscan(f[2], &number); err != nil {
				t.Fatal(err)
			}
			value, there := values[f[0]]
			if !there || f[1] == "=" && value != number || f[1] == ">" && value <= number || f[1] == "<" && value >= number {
				return false, fmt.Sprintf("%s does not hold: %v, there: %v", c, value, there)
			}
		}
		return true, ""
	})
}

func (w watched) reserve(t *testing.T, lot drop.LotID, user string, hold time.Duration) drop.ReservationID {
	t.Helper()
	out, err := w.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 1, Hold: hold})
	if err != nil {
		t.Fatal(err)
	}
	return out.Reservation.ID
}

// TestMetricsOfAWholeLife leads a shop through its good and bad hours, and reads them from the metrics alone. In the end
// every metric of the worker and of the installation must have moved.
func TestMetricsOfAWholeLife(t *testing.T) {
	testkit.Long(t)
	w := openShop(t).watch(t, 2)
	moved := map[string]bool{}
	note := func() {
		for name, value := range w.values(t) {
			if base, _, _ := strings.Cut(name, "{"); value != 0 {
				moved[base] = true
			}
		}
	}
	w.shows(t, `dropctl_up{store="redis"} = 1`, `dropctl_up{store="postgres"} = 1`, `dropctl_lots = 0`, `dropctl_workers_alive{part="relay"} = 0`, `dropctl_reconcile_last_timestamp_seconds = 0`)

	// Nobody works yet: what is sold waits.
	w.mustSeed(t, "lot,stock,limit,hold,status\nhat,100,10,10m,open\ncap,7,,,open\nbag,9,,,paused\n", seed.Options{})
	w.sell(t, "hat", 4)
	w.reserve(t, "hat", "ada", 10*time.Minute)
	late := w.reserve(t, "hat", "bob", time.Second)
	w.shows(t, `dropctl_lots = 3`, `dropctl_lots_left_out = 1`, `dropctl_lot_available_units{lot="hat"} = 94`, `dropctl_lot_held_units{lot="hat"} = 2`,
		`dropctl_lot_sold_units{lot="hat"} = 4`, `dropctl_lot_available_units{lot="cap"} = 7`, `dropctl_outbox_pending_entries > 8`, `dropctl_outbox_bytes > 100`,
		`dropctl_outbox_ceiling_ratio > 0.0001`, `dropctl_outbox_oldest_pending_seconds > 0.1`, `dropctl_ledger_lag_events = 10`, `dropctl_ledger_lag_seconds > 0.1`,
		`dropctl_ledger_pace_events_per_second{at="limit"} = 0`, `dropctl_ledger_drain_seconds{at="limit"} > 1e300`)
	if values := w.values(t); values[`dropctl_lot_sold_units{lot="bag"}`] != 0 || len(values) == 0 {
		t.Error("a lot beyond the bound, and not even open, has gauges")
	} else if _, there := values[`dropctl_lot_available_units{lot="bag"}`]; there {
		t.Error("a lot beyond the bound, and not even open, has gauges")
	}
	if lag := w.observer.Lag(); lag <= 0 {
		t.Errorf("the lag is estimated as %s", lag)
	}
	note()

	// The ledger has some already, by another way; one entry is rubbish.
	w.drain(t)
	if _, err := w.redis.Do(t.Context(), "XADD", "drop:{"+tagOf(t, w, "hat")+"}:outbox", "*", "what", "ever"); err != nil {
		t.Fatal(err)
	}
	w.shows(t, `dropctl_ledger_lag_events = 0`, `dropctl_allocations_pending = 4`, `dropctl_allocations_oldest_pending_seconds > 0`)
	note()
	stop := w.work(t, worker.Options{Rate: 30})
	w.shows(t, `dropctl_worker_events_total{result="duplicate"} > 12`, `dropctl_worker_events_total{result="dead"} = 1`, `dropctl_worker_events_total{result="folded"} > 0`,
		`dropctl_dead_letters{code="invalid"} = 1`, `dropctl_worker_finalised_total = 4`, `dropctl_worker_finalise_duration_seconds > 0`, `dropctl_worker_expired_total = 1`,
		`dropctl_worker_entries_total > 9`, `dropctl_worker_apply_duration_seconds > 0`, `dropctl_worker_apply_batch_events > 0`, `dropctl_outbox_pending_entries = 0`,
		`dropctl_outbox_entries > 9`, `dropctl_outbox_oldest_pending_seconds = 0`, `dropctl_allocations_pending = 0`, `dropctl_lot_held_units{lot="hat"} = 1`,
		`dropctl_workers_alive{part="relay"} = 1`, `dropctl_workers_alive{part="guardian"} = 1`,
		`dropctl_ledger_pace_events_per_second{at="limit"} = 30`, `dropctl_ledger_pace_events_per_second{at="seen"} > 0`, `dropctl_ledger_drain_seconds{at="limit"} = 0`)
	if _, err := w.stock.Settle(t.Context(), drop.SettleRequest{ID: late, Action: drop.ActConfirm, Ref: "too-late"}); !fault.Is(err, fault.HoldExpired) {
		t.Fatal(err)
	}
	if err := w.ledger.ChargeTokens(t.Context(), 60); err != nil { // so that there is something to wait for, however slow this machine is
		t.Fatal(err)
	}
	w.sell(t, "cap", 7)
	w.shows(t, `dropctl_refunds_due = 1`, `dropctl_refunds_due_units = 1`, `dropctl_worker_token_wait_seconds_total > 0`, `dropctl_lot_sold_units{lot="cap"} = 7`)
	w.shows(t, `dropctl_ledger_lag_events = 0`, `dropctl_allocations_pending = 0`)
	testkit.Eventually(t, 30*time.Second, func() (bool, string) { // that nothing lags may have been seen before the last sale
		w.wantProven(t)
		ok := w.values(t)[`dropctl_reconcile_lots{verdict="ok"}`]
		return ok == 3, fmt.Sprintf("%v lots are ok", ok)
	})
	w.shows(t, fmt.Sprintf(`dropctl_reconcile_last_timestamp_seconds > %d`, time.Now().Add(-time.Minute).Unix()))
	note()

	// Redis comes back without its data: shut, then opened again.
	if err := w.redis.Kill(); err != nil {
		t.Fatal(err)
	}
	w.shows(t, `dropctl_up{store="redis"} = 0`, `dropctl_up{store="postgres"} = 1`, `dropctl_lot_sold_units{lot="cap"} = 7`, `dropctl_worker_failures_total{part="relay"} > 0`)
	if w.observer.Redis() == nil || w.observer.Postgres() != nil {
		t.Errorf("redis %v, postgres %v", w.observer.Redis(), w.observer.Postgres())
	}
	if err := w.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.shows(t, `dropctl_up{store="redis"} = 1`, `dropctl_worker_reopened_total > 0`, `dropctl_worker_reconnects_total{part="relay"} > 0`, `dropctl_lot_sold_units{lot="cap"} = 7`)
	note()

	// What operators are called for.
	state, _ := w.lot(t, "bag")
	if err := w.stock.FreezeLot(t.Context(), state, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	w.db.SQL(t, `UPDATE lots SET stopped = 'fork', stopped_reason = 'two of them', stopped_at = now(), waiting = 2 WHERE lot = 'bag'`)
	w.db.SQL(t, `INSERT INTO lots (lot, name, capacity, user_limit, hold_ms, max_hold_ms, late, status, seen, created_by) VALUES ('gone', '', 1, 0, 1, 1, 'refuse', 'open', true, 'ci')`)
	w.shows(t, `dropctl_lots_frozen{reason="operator"} = 1`, `dropctl_lots_stopped{reason="fork"} = 1`, `dropctl_lots_not_loaded = 1`, `dropctl_ledger_waiting_events = 2`)
	note()

	// Somebody else's data in the shard of a lot, and something else under one of its keys.
	base := strings.Split(w.lotKey(t, "cap"), "lot:")[0]
	do := func(args ...string) string {
		t.Helper()
		reply, err := w.redis.Do(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(reply)
	}
	owner := do("HGET", base+"meta", "owner")
	mark := func(owner string) { t.Helper(); do("HSET", base+"meta", "owner", owner) }
	for _, part := range []string{"outbox", "meta"} {
		do("RENAME", base+part, "aside")
		do("SET", base+part, "x")
		w.shows(t, `dropctl_lots_frozen{reason="redis_differs"} > 0`, `dropctl_up{store="redis"} = 1`, `dropctl_lots_not_loaded = 1`)
		do("RENAME", "aside", base+part)
		w.shows(t, `dropctl_lots_frozen{reason="redis_differs"} = 0`)
	}
	mark("somebody-else/4")
	w.shows(t, `dropctl_lots_frozen{reason="foreign_installation"} > 0`, `dropctl_up{store="redis"} = 1`, `dropctl_lots_not_loaded = 1`)
	mark(owner)
	w.shows(t, `dropctl_lots_frozen{reason="foreign_installation"} = 0`, `dropctl_lot_sold_units{lot="cap"} = 7`)
	stop()
	w.shows(t, `dropctl_workers_alive{part="relay"} = 0`)

	// A gateway has the money now, and does what gateways do; a receiver of notices is not there.
	w.chargeAndTell(t)
	note()

	for _, m := range telemetry.Contract() {
		if (m.Group == "worker" || m.Group == "drop") && !moved[m.Name] {
			t.Errorf("%s never moved", m.Name)
		}
	}
}

// chargeAndTell sells through a payment gateway that approves, declines, needs longer or does not know, by user, and makes
// no refunds. A hook's receiver does not answer.
func (w watched) chargeAndTell(t *testing.T) {
	t.Helper()
	gateway := testkit.NewGateway(t, func(c testkit.GatewayCall) testkit.GatewayAnswer {
		switch {
		case c.Action == "refund" || strings.HasPrefix(c.User, "poor"):
			return testkit.GatewayAnswer{Status: "declined"}
		case c.User == "slow":
			return testkit.GatewayAnswer{Status: "pending"}
		case c.User == "odd":
			return testkit.GatewayAnswer{HTTP: 500, Status: "unsure"}
		}
		return testkit.GatewayAnswer{}
	})
	webhook, err := payment.NewWebhook(payment.Options{URL: gateway.URL, Secret: gateway.Secret, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(webhook.Close)
	nowhere := drop.Hook{ID: "nowhere2", URL: "http://127.0.0.1:1/", Kinds: []drop.NoticeKind{drop.NoticeConfirmed}, AllowPrivate: true, CreatedBy: "ci"}
	if _, err := w.ledger.AddHook(t.Context(), nowhere, "secret"); err != nil {
		t.Fatal(err)
	}
	w.acknowledgeInVain(t, "hat")
	w.work(t, worker.Options{Gateway: webhook, ChargePause: 20 * time.Millisecond})
	w.shows(t, `dropctl_worker_resent_events_total = 1`)
	buy := func(user string, hold time.Duration) drop.ReservationID {
		id := w.reserve(t, "hat", user, hold)
		if _, err := w.stock.Settle(t.Context(), drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: user}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	rich := buy("rich", 10*time.Minute)
	buy("poor-for-long", 10*time.Minute)
	buy("poor", 5*time.Second)
	buy("slow", 10*time.Minute)
	w.shows(t, `dropctl_worker_charges_total{outcome="approved"} = 1`, `dropctl_worker_charges_total{outcome="declined"} > 1`, `dropctl_worker_charges_total{outcome="pending"} > 0`,
		`dropctl_worker_charge_duration_seconds > 0`, `dropctl_charges_open > 0`, `dropctl_worker_given_up_total = 1`, `dropctl_charges_declined = 1`)
	if _, err := w.stock.Settle(t.Context(), drop.SettleRequest{ID: rich, Action: drop.ActRefund, Total: -1}); err != nil {
		t.Fatal(err)
	}
	w.shows(t, `dropctl_worker_charge_refunds_total{outcome="declined"} > 0`, `dropctl_charge_refunds_open = 1`, `dropctl_charge_refunds_refused = 1`)
	buy("odd", 10*time.Minute)
	w.shows(t, `dropctl_worker_charges_total{outcome="unclear"} > 0`)
	w.db.SQL(t, `UPDATE charges SET begun_at = now() - interval '1 hour' WHERE state = 'open'`)
	w.shows(t, `dropctl_payments_stuck = 1`, `dropctl_worker_notices_total{outcome="failed"} > 0`, `dropctl_notices_waiting > 3`, `dropctl_notices_oldest_waiting_seconds > 0`, `dropctl_hooks_failing = 1`)
	w.db.SQL(t, `UPDATE hook_deliveries SET state = 'parked', ended_at = now() WHERE id = (SELECT min(id) FROM hook_deliveries)`)
	w.shows(t, `dropctl_notices_parked = 1`)
}

// acknowledgeInVain lets an event be acknowledged that the ledger has not got: PostgreSQL was another server then.
func (w watched) acknowledgeInVain(t *testing.T, lot drop.LotID) {
	t.Helper()
	w.reserve(t, lot, "lost", 10*time.Minute)
	shard := lot.Shard(w.stock.Shards())
	entries, err := w.stock.ReadNew(t.Context(), shard, "gone", 100, -1)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	if err := w.stock.Ack(t.Context(), shard, []string{entries[0].ID}); err != nil {
		t.Fatal(err)
	}
	w.db.SQL(t, `UPDATE settings SET server = 'the one before'`)
}

// tagOf finds the hash tag of a lot's shard.
func tagOf(t *testing.T, w watched, lot drop.LotID) string {
	t.Helper()
	key := w.lotKey(t, lot)
	return key[strings.Index(key, "{")+1 : strings.Index(key, "}")]
}

// TestALookNeverWaitsForASilentStore stops PostgreSQL's side: Redis' gauges go on.
func TestALookNeverWaitsForASilentStore(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	w := watched{shop: s, metrics: telemetry.New()}
	away := fault.New(fault.Unavailable, "PostgreSQL has not answered yet")
	w.observer = wire.Observe(s.stock, func() (*ledger.Ledger, error) { return nil, away }, w.metrics.Drop, wire.ObserveOptions{Every: 10 * time.Millisecond, Lots: 1})
	if w.observer.Redis() == nil || w.observer.Postgres() == nil {
		t.Error("a store that nobody has looked at yet is called fine")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.observer.Run(ctx) }()
	s.mustSeed(t, "lot,stock\nhat,5\n", seed.Options{})
	w.shows(t, `dropctl_up{store="redis"} = 1`, `dropctl_up{store="postgres"} = 0`, `dropctl_lot_available_units{lot="hat"} = 5`, `dropctl_outbox_pending_entries = 1`)
	before := w.observer.Lag()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		return w.observer.Lag() > before, "the lag does not grow while PostgreSQL is away"
	})
	if _, there := w.values(t)["dropctl_looked_timestamp_seconds{store=\"postgres\"}"]; there {
		t.Error("PostgreSQL never told anything")
	}
	stop()
	<-done
}

// TestABacklogIsToldAsFarAsItIsKnown: of a ledger that is behind, silent and back again, and of an outbox at its ceiling.
func TestABacklogIsToldAsFarAsItIsKnown(t *testing.T) {
	testkit.Long(t)
	s := openShop(t)
	s.mustSeed(t, "lot,stock,limit,hold,status\nhat,100,10,10m,open\n", seed.Options{})
	s.sell(t, "hat", 20)
	there := atomic.Bool{}
	there.Store(true)
	l := func() (*ledger.Ledger, error) {
		if there.Load() {
			return s.ledger, nil
		}
		return nil, fault.New(fault.Unavailable, "silent")
	}
	if _, err := s.ledger.Heartbeat(t.Context(), ledger.Worker{Name: "w", Parts: []string{"relay"}, Rate: 4}); err != nil {
		t.Fatal(err)
	}
	o := wire.Observe(s.stock, l, telemetry.NewDrop(nil), wire.ObserveOptions{Every: 20 * time.Millisecond, Ceiling: 1 << 20})
	full := wire.Observe(s.stock, l, telemetry.NewDrop(nil), wire.ObserveOptions{Every: 20 * time.Millisecond, Ceiling: 10})
	if _, err := o.Backlog(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("before the first look: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var both sync.WaitGroup
	both.Go(func() { o.Run(ctx) })
	both.Go(func() { full.Run(ctx) })
	defer both.Wait()
	defer stop()

	tells := func(o *wire.Observer, code fault.Code, right func(wire.BacklogView) bool) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			detail, err := o.Backlog()
			text, _ := json.Marshal(detail)
			v, _ := detail.(wire.BacklogView)
			return fault.CodeOf(err) == code && right(v), fmt.Sprintf("%s, %v", text, err)
		})
	}
	tells(o, "", func(v wire.BacklogView) bool { // two for each sale, at 4 a second
		return v.Events != nil && *v.Events == 40 && v.Entries > 0 && v.Limit != nil && *v.Limit == 4 && v.AtLimit != nil && *v.AtLimit == 10 && v.AtSeen == nil
	})
	if lag := o.Lag(); lag < time.Second || lag > 11*time.Second {
		t.Errorf("what is written now is said to wait %s", lag)
	}
	tells(full, fault.Backpressure, func(v wire.BacklogView) bool { return v.Fullest > 1 })
	there.Store(false)
	tells(o, "", func(v wire.BacklogView) bool { return v.Entries > 0 && v.Events == nil && v.AtLimit == nil })
	there.Store(true)
	s.drain(t)
	tells(o, "", func(v wire.BacklogView) bool {
		return v.Events != nil && *v.Events == 0 && v.AtLimit != nil && *v.AtLimit == 0
	})
}
