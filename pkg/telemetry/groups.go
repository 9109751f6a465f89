package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Engine are the metrics of the engine's traffic with Redis.
type Engine struct {
	BatchSize       Observers                // script
	CallSeconds     *prometheus.HistogramVec // script
	Waiting         prometheus.Gauge
	InFlight        prometheus.Gauge
	ConnectionsLost prometheus.Counter
	Breaker         *prometheus.GaugeVec // node; see BreakerClosed
	ScriptReloads   prometheus.Counter
	PoolWaits       prometheus.Counter
	Unproven        prometheus.Counter
}

// Observers take what is observed under some labels. A histogram does; a measurement puts in its place what keeps every value.
type Observers interface {
	WithLabelValues(labels ...string) prometheus.Observer
}

// The values of Engine.Breaker.
const (
	BreakerClosed   = 0
	BreakerHalfOpen = 1
	BreakerOpen     = 2
)

// NewEngine returns the metrics in a registry; with nil they count unseen.
func NewEngine(reg prometheus.Registerer) *Engine { return newEngine(maker{group: "engine", reg: reg}) }

func newEngine(m maker) *Engine {
	return &Engine{
		BatchSize:       m.histograms("dropctl_engine_batch_requests", "Requests that travelled together in one script call.", sizes, "script"),
		CallSeconds:     m.histograms("dropctl_engine_call_duration_seconds", "Time from sending a script call to its answer, waiting for disk or replicas included.", durations, "script"),
		Waiting:         m.gauge("dropctl_engine_waiting_requests", "Requests that wait for a free connection to their shard."),
		InFlight:        m.gauge("dropctl_engine_in_flight_calls", "Script calls sent and not answered yet."),
		ConnectionsLost: m.counter("dropctl_engine_connections_lost_total", "Connections to Redis that were lost, or could not be had."),
		Breaker:         m.gauges("dropctl_engine_breaker_state", "Circuit breaker of a Redis node: 0 closed, 1 half open, 2 open.", "node"),
		ScriptReloads:   m.counter("dropctl_engine_script_reloads_total", "Scripts sent with their source because Redis did not know them."),
		PoolWaits:       m.counter("dropctl_engine_pool_waits_total", "Times a connection had to be waited for because all of the pool were in use."),
		Unproven:        m.counter("dropctl_engine_unproven_calls_total", "Script calls answered with outcome_unknown because disk or replicas did not have their changes in time."),
	}
}

// API are the metrics of the HTTP API.
type API struct {
	Requests      *prometheus.CounterVec   // route (a pattern, never a path), code (ok or one of pkg/fault)
	Seconds       *prometheus.HistogramVec // route, result: accept, refuse or error
	InFlight      prometheus.Gauge
	Queue         prometheus.Gauge
	FromMemory    prometheus.Counter
	RateLimited   *prometheus.CounterVec // kind: key, user or address
	Streams       prometheus.Gauge
	Confirms      *prometheus.CounterVec // ledger: recorded, pending or rejected
	ConfirmWaited prometheus.Histogram
}

// NewAPI returns the metrics in a registry; with nil they count unseen.
func NewAPI(reg prometheus.Registerer) *API { return newAPI(maker{group: "api", reg: reg}) }

func newAPI(m maker) *API {
	return &API{
		Requests: m.counters("dropctl_api_requests_total", "Requests answered, by route and outcome: ok, or the code of the refusal.", []string{"route", "code"}),
		Seconds: m.histograms("dropctl_api_request_duration_seconds",
			"Time from a request to its answer. The result is accept, refuse (a rule said no) or error (the shop could not answer).", durations, "route", "result"),
		InFlight:      m.gauge("dropctl_api_in_flight_requests", "Requests being worked on, streams not counted."),
		Queue:         m.gauge("dropctl_api_queued_requests", "Requests admitted and waiting for the engine."),
		FromMemory:    m.counter("dropctl_api_refused_from_memory_total", "Reservations refused as sold out without asking the reserve script."),
		RateLimited:   m.counters("dropctl_api_rate_limited_total", "Requests refused by a rate limit: of the key, the user or the address.", []string{"kind"}, "key", "user", "address"),
		Streams:       m.gauge("dropctl_api_streams", "Streams of availability that are open."),
		Confirms:      m.counters("dropctl_api_confirms_total", "Confirmations that asked for the ledger, by what it had said when they were answered.", []string{"ledger"}, "recorded", "pending", "rejected"),
		ConfirmWaited: m.histogram("dropctl_api_confirm_wait_seconds", "Time that confirmations waited for the ledger.", durations),
	}
}

// Worker are the metrics of what works behind the sale.
type Worker struct {
	Entries         prometheus.Counter
	Relayed         *prometheus.CounterVec // transport; step: sent, resent or acknowledged
	ResentEvents    prometheus.Counter
	Events          *prometheus.CounterVec // result: folded, duplicate or dead
	ApplySeconds    prometheus.Histogram
	ApplyEvents     prometheus.Histogram
	TokensWaited    prometheus.Counter // seconds
	Finalised       prometheus.Counter
	FinaliseSeconds prometheus.Histogram
	Charges         *prometheus.CounterVec // outcome: approved, declined, pending or unclear
	ChargeSeconds   prometheus.Histogram
	ChargeRefunds   *prometheus.CounterVec // outcome, as above
	GivenUp         prometheus.Counter
	Expired         prometheus.Counter
	Reopened        prometheus.Counter
	Notices         *prometheus.CounterVec // outcome: delivered, refused, failed or parked
	Failures        *prometheus.CounterVec // part
	Reconnects      *prometheus.CounterVec // part
}

// WorkerParts are the values of a worker's part label: what it does, and what it does besides.
func WorkerParts() []string {
	return []string{"relay", "apply", "finalise", "sweep", "guardian", "notify", "heartbeat", "upkeep", "wakes"}
}

// NewWorker returns the metrics in a registry; with nil they count unseen.
func NewWorker(reg prometheus.Registerer) *Worker { return newWorker(maker{group: "worker", reg: reg}) }

func newWorker(m maker) *Worker {
	return &Worker{
		Entries: m.counter("dropctl_worker_entries_total", "Outbox entries acknowledged because the ledger has all of their events."),
		Relayed: m.counters("dropctl_worker_relayed_entries_total", "Outbox entries by transport: sent for the first time, sent again because they did not arrive (resent), and acknowledged.",
			[]string{"transport", "step"}),
		ResentEvents: m.counter("dropctl_worker_resent_events_total", "Events that Redis has kept and that were applied again, to close a gap or for another PostgreSQL server."),
		Events: m.counters("dropctl_worker_events_total", "Events brought to the ledger: folded, had already (duplicate), or kept as dead letters (dead).",
			[]string{"result"}, "folded", "duplicate", "dead"),
		ApplySeconds:    m.histogram("dropctl_worker_apply_duration_seconds", "Time of one transaction that brings events to the ledger.", durations),
		ApplyEvents:     m.histogram("dropctl_worker_apply_batch_events", "Events of one such transaction.", sizes),
		TokensWaited:    m.counter("dropctl_worker_token_wait_seconds_total", "Time spent waiting because the workers together may not write faster."),
		Finalised:       m.counter("dropctl_worker_finalised_total", "Confirmed reservations finalised as sales."),
		FinaliseSeconds: m.histogram("dropctl_worker_finalise_duration_seconds", "Time to finalise a batch of sales.", durations),
		Charges: m.counters("dropctl_worker_charges_total", "Answers of the payment gateway to charges: approved, declined, pending, or unclear, which is asked again.",
			[]string{"outcome"}, "approved", "declined", "pending", "unclear"),
		ChargeSeconds: m.histogram("dropctl_worker_charge_duration_seconds", "Time that the payment gateway took to answer about a charge.", durations),
		ChargeRefunds: m.counters("dropctl_worker_charge_refunds_total", "Answers of the payment gateway to refunds: approved, declined, pending, or unclear; all but approved are asked again.",
			[]string{"outcome"}, "approved", "declined", "pending", "unclear"),
		GivenUp:  m.counter("dropctl_worker_given_up_total", "Confirmed reservations that were refunded because nobody paid for them within their time."),
		Expired:  m.counter("dropctl_worker_expired_total", "Holds taken back because their time was up."),
		Reopened: m.counter("dropctl_worker_reopened_total", "Shards that the guardian opened again."),
		Notices: m.counters("dropctl_worker_notices_total", "Attempts to tell a hook's receiver something: delivered, refused by it, failed because it did not answer; and notices given up (parked).",
			[]string{"outcome"}, "delivered", "refused", "failed", "parked"),
		Failures: m.counters("dropctl_worker_failures_total", "Attempts of a part that failed; it tries again until it works.",
			[]string{"part"}, WorkerParts()...),
		Reconnects: m.counters("dropctl_worker_reconnects_total", "Times a part worked again after it had failed.",
			[]string{"part"}, WorkerParts()...),
	}
}

// Drop are gauges of the whole installation, the same whoever looks: every process that exports them reads them from the
// stores now and then. What a store that is down would say stays as it was; Up tells.
type Drop struct {
	Up     *prometheus.GaugeVec // store: redis or postgres
	Looked *prometheus.GaugeVec // store; seconds since 1970

	OutboxEntries      prometheus.Gauge
	OutboxPending      prometheus.Gauge
	OutboxBytes        prometheus.Gauge
	OutboxCeiling      prometheus.Gauge     // 0 to 1
	OutboxOldest       prometheus.Gauge     // seconds
	ShardOutboxBytes   *prometheus.GaugeVec // shard
	ShardOutboxOldest  *prometheus.GaugeVec // shard
	LagEvents          prometheus.Gauge
	LagSeconds         prometheus.Gauge
	DrainSeconds       *prometheus.GaugeVec // at: limit or seen
	Pace               *prometheus.GaugeVec // at; events a second
	EventsWaiting      prometheus.Gauge
	DeadLetters        *prometheus.GaugeVec // code
	RefundsDue         prometheus.Gauge
	RefundsDueUnits    prometheus.Gauge
	AllocationsPending prometheus.Gauge
	AllocationsOldest  prometheus.Gauge // seconds
	ChargesOpen        prometheus.Gauge
	ChargesDeclined    prometheus.Gauge
	ReturnsOpen        prometheus.Gauge
	ReturnsRefused     prometheus.Gauge
	PaymentsStuck      prometheus.Gauge
	NoticesWaiting     prometheus.Gauge
	NoticesOldest      prometheus.Gauge // seconds
	NoticesParked      prometheus.Gauge
	HooksFailing       prometheus.Gauge
	WorkersAlive       *prometheus.GaugeVec // part
	ReconcileLast      prometheus.Gauge     // seconds since 1970
	ReconcileLots      *prometheus.GaugeVec // verdict
	Lots               prometheus.Gauge
	LotsFrozen         *prometheus.GaugeVec // reason
	LotsStopped        *prometheus.GaugeVec // reason
	LotsNotLoaded      prometheus.Gauge
	LotsLeftOut        prometheus.Gauge
	LotAvailable       *prometheus.GaugeVec // lot; the same below
	LotHeld            *prometheus.GaugeVec
	LotSold            *prometheus.GaugeVec
}

// NewDrop returns the gauges in a registry; with nil nobody sees them.
func NewDrop(reg prometheus.Registerer) *Drop { return newDrop(maker{group: "drop", reg: reg}) }

func newDrop(m maker) *Drop {
	return &Drop{
		Up:     m.gauges("dropctl_up", "1 if the store (redis, postgres) answered when it was looked at last, else 0; what it said before then stays.", "store"),
		Looked: m.gauges("dropctl_looked_timestamp_seconds", "When the store last told what is shown here.", "store"),

		OutboxEntries:     m.gauge("dropctl_outbox_entries", "Entries in the outboxes of all shards, recorded ones that are still kept included."),
		OutboxPending:     m.gauge("dropctl_outbox_pending_entries", "Entries that the ledger has not acknowledged."),
		OutboxBytes:       m.gauge("dropctl_outbox_bytes", "Bytes in the outboxes of all shards."),
		OutboxCeiling:     m.gauge("dropctl_outbox_ceiling_ratio", "How full the fullest outbox is: at 1 its shard answers backpressure."),
		OutboxOldest:      m.gauge("dropctl_outbox_oldest_pending_seconds", "Age of the oldest event that the ledger has not got."),
		ShardOutboxBytes:  m.gauges("dropctl_outbox_shard_bytes", "Bytes in the outbox of a shard.", "shard"),
		ShardOutboxOldest: m.gauges("dropctl_outbox_shard_oldest_pending_seconds", "Age of the oldest event of a shard that the ledger has not got.", "shard"),

		LagEvents:          m.gauge("dropctl_ledger_lag_events", "Events written in Redis and not folded by the ledger, over all lots."),
		LagSeconds:         m.gauge("dropctl_ledger_lag_seconds", "Age of the oldest event that is not folded: still in an outbox, or behind a gap."),
		DrainSeconds:       m.gauges("dropctl_ledger_drain_seconds", "Time the ledger needs for the events it has not got if nothing is added: as fast as the workers may (limit) or did of late (seen). +Inf: nothing is recorded.", "at"),
		Pace:               m.gauges("dropctl_ledger_pace_events_per_second", "Events a second that all workers together may write (limit; 0: none is alive), and wrote of late (seen).", "at"),
		EventsWaiting:      m.gauge("dropctl_ledger_waiting_events", "Events the ledger has and cannot fold: behind a gap, or of a stopped lot."),
		DeadLetters:        m.gauges("dropctl_dead_letters", "Events kept as dead letters, by the reason.", "code"),
		RefundsDue:         m.gauge("dropctl_refunds_due", "Payments for units that nobody got, to be given back."),
		RefundsDueUnits:    m.gauge("dropctl_refunds_due_units", "Units of those payments."),
		AllocationsPending: m.gauge("dropctl_allocations_pending", "Confirmed reservations that are not finalised as sales, without those that a payment gateway was asked about."),
		AllocationsOldest:  m.gauge("dropctl_allocations_oldest_pending_seconds", "Age of the oldest of them."),
		ChargesOpen:        m.gauge("dropctl_charges_open", "Charges that the payment gateway has not decided about."),
		ChargesDeclined:    m.gauge("dropctl_charges_declined", "Confirmed reservations whose payment was declined and is tried again until their deadline."),
		ReturnsOpen:        m.gauge("dropctl_charge_refunds_open", "Refunds of charges that the payment gateway has not made yet."),
		ReturnsRefused:     m.gauge("dropctl_charge_refunds_refused", "Refunds of charges that the payment gateway will not make."),
		PaymentsStuck:      m.gauge("dropctl_payments_stuck", "Charges and refunds that had no clear answer of the payment gateway for five minutes."),
		NoticesWaiting:     m.gauge("dropctl_notices_waiting", "Notices that hooks' receivers have not got."),
		NoticesOldest:      m.gauge("dropctl_notices_oldest_waiting_seconds", "Age of the oldest of them."),
		NoticesParked:      m.gauge("dropctl_notices_parked", "Notices that were given up."),
		HooksFailing:       m.gauge("dropctl_hooks_failing", "Hooks whose receiver does not answer."),
		WorkersAlive:       m.gauges("dropctl_workers_alive", "Workers that do this part and were heard of within 30 seconds.", "part"),
		ReconcileLast:      m.gauge("dropctl_reconcile_last_timestamp_seconds", "When a reconcile run last came to a verdict; 0 if none did."),
		ReconcileLots:      m.gauges("dropctl_reconcile_lots", "Lots by the verdict of the newest run that looked at them.", "verdict"),

		Lots:          m.gauge("dropctl_lots", "Lots that Redis has."),
		LotsFrozen:    m.gauges("dropctl_lots_frozen", "Lots that sell nothing until somebody acts or the guardian has compared them, by the reason.", "reason"),
		LotsStopped:   m.gauges("dropctl_lots_stopped", "Lots of which the ledger folds nothing more, by the reason.", "reason"),
		LotsNotLoaded: m.gauge("dropctl_lots_not_loaded", "Lots the ledger has events of and Redis does not have."),
		LotsLeftOut:   m.gauge("dropctl_lots_left_out", "Lots without gauges of their own: beyond --metrics-lots, or damaged."),
		LotAvailable:  m.gauges("dropctl_lot_available_units", "Units of a lot that can be had.", "lot"),
		LotHeld:       m.gauges("dropctl_lot_held_units", "Units of a lot that are held.", "lot"),
		LotSold:       m.gauges("dropctl_lot_sold_units", "Units of a lot that are sold.", "lot"),
	}
}
