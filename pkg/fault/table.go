package fault

// Exit is a process exit status. The values are a public contract (dropctl help exit-codes).
type Exit int

// The exit statuses, each with the sentence `dropctl help exit-codes` prints.
const (
	OK              Exit = 0
	ExitFailed      Exit = 1
	ExitUsage       Exit = 2
	ExitNotFound    Exit = 3
	ExitRefused     Exit = 4
	ExitUnavailable Exit = 5
	ExitFinding     Exit = 6
	ExitBusy        Exit = 7
	ExitPartial     Exit = 8
	ExitInterrupted Exit = 130
	ExitTerminated  Exit = 143
)

// ExitMeaning is one line of the exit status table.
type ExitMeaning struct {
	Exit    Exit   `json:"exit"`
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
}

// Exits lists every exit status in order.
func Exits() []ExitMeaning {
	return []ExitMeaning{
		{OK, "ok", "done, or already so"},
		{ExitFailed, "failed", "an error that dropctl does not know"},
		{ExitUsage, "usage", "bad flag, argument, config or input file; nothing was attempted and no server dialled"},
		{ExitNotFound, "not_found", "the lot, reservation or other named thing does not exist"},
		{ExitRefused, "refused", "a rule said no: sold out, closed, expired, limit, conflict"},
		{ExitUnavailable, "unavailable", "Redis, PostgreSQL or the API is unreachable, timed out or frozen, or the outcome is unknown"},
		{ExitFinding, "finding", "the check worked and its answer is bad: drift, lag, pending migrations, a missed threshold"},
		{ExitBusy, "busy", "another run holds the lock"},
		{ExitPartial, "partial", "some items are done and some are not; the output says which"},
		{ExitInterrupted, "interrupted", "stopped by Ctrl-C after a graceful stop"},
		{ExitTerminated, "terminated", "stopped by TERM or HUP after a graceful stop"},
	}
}

// Code names one kind of error, a verdict or a reason. The values are a public contract.
type Code string

// Error codes.
const (
	Failed        Code = "failed"
	Usage         Code = "usage"
	Invalid       Code = "invalid"
	InvalidConfig Code = "invalid_config"
	NotFound      Code = "not_found"

	SaleNotOpen      Code = "sale_not_open"
	SaleClosed       Code = "sale_closed"
	LotPaused        Code = "lot_paused"
	CustomerLimit    Code = "customer_limit"
	SoldOut          Code = "sold_out"
	HoldExists       Code = "hold_exists"
	HoldExpired      Code = "hold_expired"
	AlreadyConfirmed Code = "already_confirmed"
	AlreadyReleased  Code = "already_released"
	AlreadyRefunded  Code = "already_refunded"
	NotConfirmed     Code = "not_confirmed"
	LedgerRejected   Code = "ledger_rejected"
	KeyReused        Code = "key_reused"
	Conflict         Code = "conflict"
	NeedsConfirm     Code = "needs_confirmation"

	Unauthorized Code = "unauthorized"
	Forbidden    Code = "forbidden"
	RateLimited  Code = "rate_limited"

	MethodNotAllowed Code = "method_not_allowed"
	TooLarge         Code = "too_large"
	UnsupportedMedia Code = "unsupported_media_type"

	Unavailable    Code = "unavailable"
	Overloaded     Code = "overloaded"
	Backpressure   Code = "backpressure"
	LotFrozen      Code = "lot_frozen"
	LotNotLoaded   Code = "lot_not_loaded"
	OutcomeUnknown Code = "outcome_unknown"
	Foreign        Code = "foreign_installation"
	NotMigrated    Code = "not_migrated"
	OutOfMemory    Code = "redis_out_of_memory"
	UnsafeRedis    Code = "unsafe_redis"

	Finding     Code = "finding"
	Pending     Code = "pending_migrations"
	WouldChange Code = "would_change"
	Broken      Code = "broken"
	BarMissed   Code = "bar_missed"

	ThresholdMissed Code = "threshold_missed"

	Busy        Code = "busy"
	Partial     Code = "partial"
	Interrupted Code = "interrupted"
	Terminated  Code = "terminated"

	MissingBinary Code = "missing_binary"
	Unsupported   Code = "unsupported"
)

// Verdicts of reconcile, and reasons for a frozen shard, a stopped lot or a refund that is due; `explain` knows them too.
const (
	VerdictOK      Code = "ok"
	VerdictLagging Code = "lagging"
	VerdictDrift   Code = "drift"
	VerdictFrozen  Code = "frozen"
	VerdictStopped Code = "stopped"
	VerdictMissing Code = "missing"

	FreezeClosedDoor Code = "closed_door"
	FreezeClock      Code = "clock"
	FreezeOperator   Code = "operator"
	FreezeAhead      Code = "redis_ahead"
	FreezeBehind     Code = "redis_behind"
	FreezeDiffers    Code = "redis_differs"
	FreezeEmptied    Code = "emptied"
	FreezeRestoring  Code = "restoring"

	StopFork         Code = "fork"
	StopGhost        Code = "ghost"
	StopOverCapacity Code = "over_capacity"
	StopUnfoldable   Code = "unfoldable"
	StopLoadMismatch Code = "load_mismatch"

	// Why a payment is due for refund; a ghost is a reason, too.
	DuePaidLate  Code = "paid_late"
	DueRejected  Code = "rejected"
	DueDiscarded Code = "discarded"
)

// Entry is what the table says about a code.
type Entry struct {
	Code    Code   `json:"code"`
	Kind    string `json:"kind"` // error, verdict, freeze, stop or refund
	Exit    Exit   `json:"exit"`
	HTTP    int    `json:"http"`    // 0: never an HTTP answer
	Title   string `json:"title"`   // a short sentence, the RFC 9457 title
	Meaning string `json:"meaning"` // what happened
	Risk    string `json:"risk"`    // what it means for buyers
	Hint    string `json:"hint"`    // what to do next
}

// byCode is the table for looking up: a refusal must cost no search.
var byCode = func() map[Code]Entry {
	all := make(map[Code]Entry, len(table))
	for _, e := range table {
		all[e.Code] = e
	}
	return all
}()

// Lookup returns the entry of a code; for an unknown code that of Failed.
func Lookup(code Code) Entry {
	if e, ok := byCode[code]; ok {
		return e
	}
	return byCode[Failed]
}

// Known reports whether the table has the code.
func Known(code Code) bool { return code == Failed || Lookup(code).Code != Failed }

// All returns the whole table in a fixed order. The caller owns the slice.
func All() []Entry {
	all := make([]Entry, len(table))
	for i, e := range table {
		all[i] = Lookup(e.Code)
	}
	return all
}

const noRisk = "none: nothing was changed"

const giveBack = "give the money back, then say so: dropctl refund ID --due --reason WHY; all that is due: dropctl ledger show --refund-due"

var table = []Entry{
	{Failed, "error", ExitFailed, 500, "Unclassified failure", "dropctl met an error it has no name for; the text says what it was", "unknown: check the lot before trying again", "run the command again with --debug, then `dropctl status`"},
	{Usage, "error", ExitUsage, 400, "Wrong usage", "a command, flag or argument is not as the command expects it", noRisk, "run the command with --help"},
	{Invalid, "error", ExitUsage, 400, "Invalid input", "a value is outside what its field allows", noRisk, "correct the named field and try again"},
	{InvalidConfig, "error", ExitUsage, 500, "Invalid configuration", "a setting is unknown, unreadable or outside what it allows", noRisk, "see where each setting comes from: dropctl config view --origin"},
	{NotFound, "error", ExitNotFound, 404, "Not found", "the named lot or reservation does not exist", noRisk, "list what there is: dropctl lot list"},

	{SaleNotOpen, "error", ExitRefused, 403, "Sale not open yet", "the lot's sales window has not begun", noRisk, "see the window: dropctl lot show LOT"},
	{SaleClosed, "error", ExitRefused, 403, "Sale closed", "the lot was closed or its sales window has ended", noRisk, "see the window and status: dropctl lot show LOT"},
	{LotPaused, "error", ExitRefused, 403, "Lot paused", "an operator paused the lot; holds can still be settled", noRisk, "open it again: dropctl lot open LOT"},
	{CustomerLimit, "error", ExitRefused, 403, "Customer limit reached", "the user already holds or bought as many units as the lot allows", noRisk, "ask for fewer units, or release a hold first"},
	{SoldOut, "error", ExitRefused, 409, "Sold out", "fewer units are available than were asked for", noRisk, "try again when holds expire or are released: dropctl lot show LOT"},
	{HoldExists, "error", ExitRefused, 409, "Hold exists", "the user already has a live hold on this lot", noRisk, "confirm or release that hold first: dropctl reservation show ID"},
	{HoldExpired, "error", ExitRefused, 409, "Hold expired", "the hold's deadline has passed; its units may be somebody else's", "a payment that came in for it must be refunded", "reserve again with a new key; or confirm with --late reclaim"},
	{AlreadyConfirmed, "error", ExitRefused, 409, "Already confirmed", "the reservation is confirmed, with another quantity or payment reference, or the call asked for something else", noRisk, "see its state: dropctl reservation show ID; to give units back: dropctl refund ID"},
	{AlreadyReleased, "error", ExitRefused, 409, "Already released", "the hold was given back before", noRisk, "reserve again with a new key"},
	{AlreadyRefunded, "error", ExitRefused, 409, "Already refunded", "the reservation was refunded, to another total than was asked for", noRisk, "see its state: dropctl reservation show ID"},
	{NotConfirmed, "error", ExitRefused, 409, "Not confirmed", "only a confirmed reservation can be refunded", noRisk, "release the hold instead: dropctl release ID"},
	{LedgerRejected, "error", ExitRefused, 409, "Rejected by the ledger", "the ledger found no unit left for this confirmation: Redis had counted units twice", "this buyer gets no unit; the payment is due for refund", "see the lot: dropctl reconcile LOT"},
	{KeyReused, "error", ExitRefused, 422, "Key reused", "the idempotency key named another request before (other quantity or hold time)", noRisk, "use a new key for a new attempt"},
	{Conflict, "error", ExitRefused, 409, "Conflict", "the thing is not in the state the call expected", noRisk, "look at it again and repeat with what is there now"},
	{NeedsConfirm, "error", ExitUsage, 0, "Confirmation needed", "the command destroys or stops something and nobody could be asked", noRisk, "repeat it with --yes"},

	{Unauthorized, "error", ExitRefused, 401, "Not authorized", "the API key is absent, malformed, unknown, expired or revoked", "a shop that calls with this key sells nothing", "see the keys: dropctl key list; make a new one: dropctl key create --tenant TENANT --scope read,reserve,settle"},
	{Forbidden, "error", ExitRefused, 403, "Not allowed", "the API key does not have the scope that the call needs", noRisk, "use a key with the scope that is named, or make one: dropctl key create --tenant TENANT --scope SCOPE"},
	{RateLimited, "error", ExitUnavailable, 429, "Too many requests", "the key, the user or the address has used up what it may ask for in this time", "none if repeated with the same key; some buyers have to wait a little", "wait as long as Retry-After says; the limits are --limit-key, --limit-user and --limit-address of the server"},
	{MethodNotAllowed, "error", ExitUsage, 405, "Method not allowed", "the API has this path, but no call with this method", noRisk, "use a method that the answer's Allow header names"},
	{TooLarge, "error", ExitUsage, 413, "Body too large", "the body of the request is longer than 64 KiB, which no call needs", noRisk, "send the one object that the call is documented with"},
	{UnsupportedMedia, "error", ExitUsage, 415, "Not JSON", "the body of the request does not call itself JSON, or is compressed", noRisk, "send the header Content-Type: application/json, and no Content-Encoding"},

	{Unavailable, "error", ExitUnavailable, 503, "Unavailable", "a server could not be reached or did not answer in time", "buyers cannot reserve until it is back; nothing is oversold", "check the servers: dropctl status"},
	{Overloaded, "error", ExitUnavailable, 503, "Overloaded", "more calls are waiting than can be answered in time", "some buyers have to try again", "retry after a moment"},
	{Backpressure, "error", ExitUnavailable, 503, "Backpressure", "the outbox has reached its ceiling because the ledger is behind", "no new holds until the worker has caught up; holds can be settled", "see that a worker runs: dropctl status"},
	{LotFrozen, "error", ExitUnavailable, 503, "Frozen", "the shard or lot is frozen: its Redis was restarted, replaced or changed, or an operator froze it", "nobody can buy from it until it is opened again", "see the reason: dropctl status; a running worker reopens what equals the ledger"},
	{LotNotLoaded, "error", ExitUnavailable, 503, "Lot not loaded", "Redis does not have this lot", "nobody can buy from it", "if it was never seeded: dropctl seed; if Redis lost it: dropctl restore LOT"},
	{OutcomeUnknown, "error", ExitUnavailable, 503, "Outcome unknown", "the call was sent but no answer came, or Redis has it but not yet as durably as asked; it may have been carried out", "none if repeated with the same key: the same reservation is returned", "repeat the call with the same key"},
	{Foreign, "error", ExitUnavailable, 503, "Foreign installation", "the data in Redis or PostgreSQL belongs to another installation of dropctl", "nothing is sold or recorded", "check --redis-url and --database-url: dropctl config view --origin"},
	{NotMigrated, "error", ExitUnavailable, 503, "Database not migrated", "the database has no dropctl schema or an older one", "nothing is sold or recorded", "as the role that owns the schema: dropctl migrate up"},
	{OutOfMemory, "error", ExitUnavailable, 503, "Redis out of memory", "Redis reached maxmemory and takes no new holds", "no new holds; settling goes on", "raise maxmemory, or drain the outbox: dropctl worker --until-idle"},
	{UnsafeRedis, "error", ExitRefused, 409, "Redis not fit for a sale", "this Redis could lose stock or cannot be written to: it may evict keys, is a replica, cannot write to its disk, or cannot give the durability that is asked for", "none: the lot was not opened", "see everything that is wrong: dropctl doctor"},

	{Finding, "error", ExitFinding, 0, "Finding", "the check ran and its answer is bad", "see the evidence", "read the output and follow its next command"},
	{Pending, "error", ExitFinding, 0, "Migrations pending", "the database schema is older than this binary", noRisk, "as the role that owns the schema: dropctl migrate up"},
	{WouldChange, "error", ExitFinding, 0, "Would change", "the plan contains changes", noRisk, "apply them by running the command without --dry-run"},
	{Broken, "error", ExitFinding, 0, "A guarantee is broken", "units were oversold, lost or not accounted for", "buyers may have been promised units that do not exist", "pause the lots: dropctl lot pause --all --reason audit; then dropctl reconcile --deep"},
	{BarMissed, "error", ExitFinding, 0, "A bar was missed", "a measured figure is worse than required", noRisk, "run it again on a quiet machine, then look at the change"},
	{ThresholdMissed, "error", ExitFinding, 0, "A limit was missed", "a run found what --fail-if names, or could not measure it", "buyers may have to wait longer than was promised them", "see the whole run with -o json, and its course with: dropctl bench report --svg"},

	{Busy, "error", ExitBusy, 409, "Busy", "another run holds the lock", noRisk, "wait for it, or use --if-busy ok"},
	{Partial, "error", ExitPartial, 0, "Partly done", "some items are done and some are not", "see the items that failed", "correct them and run the command again; what is done stays done"},
	{Interrupted, "error", ExitInterrupted, 0, "Interrupted", "the command was stopped with Ctrl-C", "what was done before stays done", "run it again"},
	{Terminated, "error", ExitTerminated, 0, "Terminated", "the command was stopped by a signal", "what was done before stays done", "run it again"},

	{MissingBinary, "error", ExitUnavailable, 0, "Program missing", "a server program is not installed or too old", noRisk, "install it: make deps"},
	{Unsupported, "error", ExitUsage, 0, "Not supported here", "this system cannot do it", noRisk, "use Linux or macOS"},

	{VerdictOK, "verdict", OK, 0, "Equal", "Redis and the ledger agree at the same watermark", "none", "nothing to do"},
	{VerdictLagging, "verdict", OK, 0, "Lagging", "the ledger has not folded the newest events yet; with them counted both sides agree", "none; it is a finding only past --max-lag", "let a worker run: dropctl worker --until-idle"},
	{VerdictDrift, "verdict", ExitFinding, 0, "Drift", "Redis and the ledger differ although the same events are counted on both sides", "units may be sold twice or lost if selling goes on", "pause the lot, then rebuild it: dropctl lot pause LOT; dropctl restore LOT"},
	{VerdictFrozen, "verdict", ExitFinding, 0, "Frozen", "the shard or lot is frozen", "nobody can buy from it", "dropctl status names the reason; dropctl explain REASON says what to do"},
	{VerdictStopped, "verdict", ExitFinding, 0, "Stopped", "the ledger folds no more events of this lot", "holds are still taken but not recorded", "dropctl lot pause LOT; see why: dropctl outbox list --lot LOT; then give up what cannot be recorded: dropctl outbox discard ID --reason WHY; or rebuild it: dropctl restore LOT"},
	{VerdictMissing, "verdict", ExitFinding, 0, "Missing", "the ledger knows the lot but Redis does not have it", "nobody can buy from it", "dropctl restore LOT; if it was never sold from: dropctl seed"},

	{FreezeClosedDoor, "freeze", ExitUnavailable, 0, "Door closed", "the Redis server is not the one the shard was opened on: it was restarted, promoted or replaced", "nobody can buy until a worker has compared it with the ledger", "let a worker run, which opens what is equal and rebuilds what is not: dropctl worker"},
	{FreezeClock, "freeze", ExitUnavailable, 0, "Clock not right", "the Redis clock has jumped, or is more than 2 s behind the time of the last change", "deadlines could be judged wrongly", "correct the server's clock; a running worker then opens the shard, and each lot once the clock has passed its last change"},
	{FreezeOperator, "freeze", ExitUnavailable, 0, "Frozen by an operator", "somebody froze it by hand", "nobody can buy", "ask who froze it: dropctl status"},
	{FreezeAhead, "freeze", ExitUnavailable, 0, "Redis ahead of the ledger", "after draining the outbox Redis still knows of changes the ledger never had: events were lost", "holds exist that the ledger cannot prove", "look first: dropctl reconcile LOT; then give up what was lost: dropctl outbox discard --lot LOT --gap --reason WHY; then dropctl restore LOT"},
	{FreezeBehind, "freeze", ExitUnavailable, 0, "Redis behind the ledger", "Redis lost its newest changes, as after a failover or an old snapshot", "units already sold could be sold again", "let a worker run, which rebuilds it: dropctl worker; or rebuild it now: dropctl restore LOT"},
	{FreezeDiffers, "freeze", ExitUnavailable, 0, "Redis differs from the ledger", "both sides stand at the same event but their totals differ", "units may be sold twice or lost", "look first: dropctl reconcile --deep; then dropctl restore LOT"},
	{FreezeEmptied, "freeze", ExitUnavailable, 0, "Redis emptied", "Redis no longer has lots that the ledger knows; a worker that never saw them there does not make them anew, since it may be the wrong Redis", "nobody can buy", "check --redis-url, then rebuild from the ledger: dropctl restore --all"},
	{FreezeRestoring, "freeze", ExitUnavailable, 0, "Being rebuilt", "the lot is being rebuilt from the ledger, or a rebuild of it was broken off", "nobody can buy from it until the rebuild ends", "if no rebuild is under way, finish it: dropctl restore LOT"},

	{StopFork, "stop", ExitUnavailable, 0, "Fork", "two different events claim the same place in the lot's history", "one of them is not real; nothing more is recorded", "see both: dropctl outbox list --lot LOT; keep the one that is recorded: dropctl outbox discard ID --reason WHY; or rebuild the lot: dropctl restore LOT"},
	{StopGhost, "stop", ExitUnavailable, 0, "Ghost", "an event of a closed epoch arrived behind its end", "it describes something the shop no longer has", "dropctl ledger show --refund-due lists it if it was paid; then dropctl outbox discard ID --reason WHY"},
	{StopOverCapacity, "stop", ExitUnavailable, 0, "Over capacity", "Redis confirmed more units than the ledger has", "the rejected buyer must be refunded", "dropctl restore LOT"},
	{StopUnfoldable, "stop", ExitUnavailable, 0, "Unfoldable", "an event does not fit the state before it", "nothing more is recorded for this lot", "see it: dropctl outbox list --lot LOT; try it again: dropctl outbox retry ID; or give it up: dropctl outbox discard ID --reason WHY; or rebuild the lot: dropctl restore LOT"},
	{StopLoadMismatch, "stop", ExitUnavailable, 0, "Load mismatch", "a load brought other totals than the ledger had closed the epoch with", "nothing more is recorded for this lot", "dropctl restore LOT"},

	{DuePaidLate, "refund", OK, 0, "Paid too late, or twice", "a confirm that was refused named a payment: the hold had ended, or another payment had bought the units before", "the money bought nothing", giveBack},
	{DueRejected, "refund", OK, 0, "Rejected by the ledger", "the sale was confirmed beyond the lot's capacity, so that the ledger refused it", "the buyer has a confirmation and no units", giveBack},
	{DueDiscarded, "refund", OK, 0, "Given up", "the event of a confirmed sale was discarded, so that the ledger does not count it", "the buyer has a confirmation and no units", giveBack},
}
