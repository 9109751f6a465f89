package drop

import (
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// NoticeKind is the kind of a notice.
type NoticeKind string

// The kinds of notices.
const (
	NoticeLotLoaded      NoticeKind = "lot_loaded"      // on sale for the first time; a rebuild is none
	NoticeLotOpened      NoticeKind = "lot_opened"      // open, and its window has begun
	NoticeHeld           NoticeKind = "held"            // of a reservation, as the two below
	NoticeConfirmed      NoticeKind = "confirmed"       //
	NoticeExpired        NoticeKind = "expired"         //
	NoticeSoldOut        NoticeKind = "sold_out"        // nothing is available any more
	NoticeAvailableAgain NoticeKind = "available_again" // after it was sold out
	NoticeLotFrozen      NoticeKind = "lot_frozen"      // it sells nothing until somebody acts
	NoticeRefundDue      NoticeKind = "refund_due"      // a payment for units that nobody got
	NoticeTest           NoticeKind = "test"            // nothing has happened; no hook asks for it
)

// NoticeKinds lists the kinds that a hook can ask for. The caller owns the slice.
func NoticeKinds() []NoticeKind {
	return []NoticeKind{NoticeLotLoaded, NoticeLotOpened, NoticeHeld, NoticeConfirmed, NoticeExpired, NoticeSoldOut, NoticeAvailableAgain, NoticeLotFrozen, NoticeRefundDue}
}

// ParseNoticeKinds checks names of kinds, and returns each once in the order of NoticeKinds; none means all.
func ParseNoticeKinds(names []string) ([]NoticeKind, error) {
	if len(names) == 0 {
		return NoticeKinds(), nil
	}
	for _, name := range names {
		if !slices.Contains(NoticeKinds(), NoticeKind(name)) {
			var all []string
			for _, k := range NoticeKinds() {
				all = append(all, string(k))
			}
			return nil, fault.New(fault.Invalid, "%s is not a kind of notice", quote(name)).WithField("kinds").WithHint("use some of %s", strings.Join(all, ", "))
		}
	}
	return slices.DeleteFunc(NoticeKinds(), func(k NoticeKind) bool { return !slices.Contains(names, string(k)) }), nil
}

// Notice is what a hook's receiver is told. Its JSON is the body that is sent, without the id of the delivery.
type Notice struct {
	Kind  NoticeKind `json:"kind"`
	Lot   LotID      `json:"lot"`
	At    time.Time  `json:"at"`              // when it happened: Redis time, or when the ledger saw it
	Epoch int64      `json:"epoch,omitempty"` // with Seq the lot's place in its history: a receiver can put notices of a lot in order
	Seq   int64      `json:"seq,omitempty"`

	// Of reservations and refunds.
	Reservation string     `json:"reservation,omitempty"`
	User        string     `json:"user,omitempty"`
	Qty         int64      `json:"qty,omitempty"`
	Deadline    *time.Time `json:"deadline,omitempty"`
	Payment     string     `json:"payment,omitempty"`

	Reason string     `json:"reason,omitempty"` // of a freeze or a refund
	State  *NoticeLot `json:"state,omitempty"`  // of the lot, in notices about it
}

// NoticeLot is a lot as the ledger had it when a notice was made.
type NoticeLot struct {
	Name      string     `json:"name,omitempty"`
	Status    Status     `json:"status"`
	Capacity  int64      `json:"capacity"`
	Available int64      `json:"available"`
	Held      int64      `json:"held"`
	Sold      int64      `json:"sold"`
	Opens     *time.Time `json:"opens,omitempty"`
	Closes    *time.Time `json:"closes,omitempty"`
}

// Hook is a receiver of notices: of one lot, of a group's lots, or of all. Its secret is kept apart.
type Hook struct {
	ID           string
	URL          string
	Lot          LotID  // "": any
	Group        string // "": any
	Kinds        []NoticeKind
	AllowPrivate bool // plain http and addresses within private networks are fine
	Created      time.Time
	CreatedBy    string
}

// HookState is a hook and how its receiver is doing.
type HookState struct {
	Hook
	Waiting      int64     // notices to be sent
	Oldest       time.Time // of these; zero: none
	Parked       int64     // notices given up
	FailingSince time.Time // zero: it is not
	LastError    string    // of the newest attempt that failed, while it fails
}

// Delivery is one notice for one hook.
type Delivery struct {
	ID       int64
	Notice   Notice
	Attempts int // this one included
}

// HookClaim are deliveries that one worker sends, each on its own.
type HookClaim struct {
	Hook
	Secret     string
	Worker     string // who has claimed them
	Failures   int    // of the receiver in a row when they were claimed
	Until      time.Time
	Deliveries []Delivery
}

// SendOutcome is how an attempt to deliver ended.
type SendOutcome string

// The outcomes.
const (
	Delivered SendOutcome = "delivered"
	Refused   SendOutcome = "refused" // the receiver does not want this one
	Failed    SendOutcome = "failed"  // it did not answer, or said that it cannot now
)

// Sent is how one attempt ended.
type Sent struct {
	ID      int64
	Outcome SendOutcome
	Why     string        // in a few words, without anything that the receiver wrote
	Retry   time.Duration // how long this notice waits before it is tried again
}

const hookIDBytes = keyIDLen * 5 / 8

// NewHookID makes an id for a hook.
func NewHookID() string {
	var name [hookIDBytes]byte
	_, _ = rand.Read(name[:])
	return attemptEncoding.EncodeToString(name[:])
}

// CheckHookID checks the id of a hook.
func CheckHookID(s string) error {
	if len(s) == keyIDLen && onlyTokenLetters(s) {
		return nil
	}
	return fault.New(fault.Invalid, "%s is not the id of a hook", quote(s)).WithField("id").WithHint("use the id that dropctl hook list shows")
}

const (
	hookSecretPrefix = "drh_"
	minHookSecret    = 16
)

// NewHookSecret makes a secret of 256 random bits.
func NewHookSecret() string {
	var secret [secretBytes]byte
	_, _ = rand.Read(secret[:])
	return hookSecretPrefix + attemptEncoding.EncodeToString(secret[:])
}

// CheckHookSecret checks a secret that somebody brought along. Its error does not repeat it.
func CheckHookSecret(s string) error {
	if len(s) < minHookSecret {
		return fault.New(fault.Invalid, "the secret is too short").WithField("secret").WithHint("use at least %d random characters, or let dropctl make one", minHookSecret)
	}
	if err := CheckText("secret", s, true); err != nil {
		return fault.New(fault.Invalid, "the secret is no line of at most 128 printable characters").WithField("secret").WithHint("let dropctl make one: leave --secret out")
	}
	return nil
}
