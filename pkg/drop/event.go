package drop

import (
	"crypto/sha256"
	"strconv"
	"strings"
	"time"
)

// Kind is the kind of an event.
type Kind string

// The kinds of events. Void is written by the ledger alone, in place of a discarded event.
const (
	KindHeld      Kind = "held"
	KindConfirmed Kind = "confirmed"
	KindReleased  Kind = "released"
	KindExpired   Kind = "expired"
	KindExtended  Kind = "extended"
	KindRefunded  Kind = "refunded"
	KindPaidLate  Kind = "paid_late"
	KindAdjusted  Kind = "adjusted"
	KindChanged   Kind = "changed"
	KindLoaded    Kind = "loaded"
	KindVoid      Kind = "void"
)

// kindLetters are the kinds as the scripts write them, one letter each.
var kindLetters = map[string]Kind{
	"h": KindHeld, "c": KindConfirmed, "r": KindReleased, "x": KindExpired, "e": KindExtended, "f": KindRefunded,
	"p": KindPaidLate, "a": KindAdjusted, "g": KindChanged, "l": KindLoaded, "v": KindVoid,
}

var lettersOfKind = func() map[Kind]string {
	m := make(map[Kind]string, len(kindLetters))
	for letter, kind := range kindLetters {
		m[kind] = letter
	}
	return m
}()

// Event is one change of a lot. Its identity is (Lot, Epoch, Seq). The scripts write it together with the change.
type Event struct {
	Installation string
	Lot          LotID
	Epoch        int64
	Seq          int64
	Kind         Kind
	Time         time.Time // Redis time of the change

	// Of reservation events.
	Reservation ReservationID
	User        string
	Key         string    // held; empty on a hold taken anew by a late confirm
	Asked       string    // held: what the request asked for, "qty/hold in ms"; the key's fingerprint
	Qty         int64     // units the event is about: taken, confirmed, given back, held (extended), refunded now
	Rest        int64     // confirmed: units given back; released: units that stay held
	Total       int64     // refunded: units refunded in all so far
	Restock     bool      // refunded: the units are available again; else they left the capacity
	Deadline    time.Time // held, extended
	From        int64     // held: n of the expired hold that a late confirm took anew
	Ref         string    // confirmed, paid_late: payment reference

	Actor  string
	Reason string

	// Of lot events (adjusted, changed, loaded): the lot as it stands after the event.
	Definition Definition
	Held       int64
	Sold       int64
	Closing    Watermark // loaded: the watermark at which the ledger closed the epoch before
}

// IsLotEvent reports whether the event is about the lot itself, not about a reservation.
func (e Event) IsLotEvent() bool {
	return e.Kind == KindAdjusted || e.Kind == KindChanged || e.Kind == KindLoaded || e.Kind == KindVoid
}

// Watermark returns the event's place in the lot's history.
func (e Event) Watermark() Watermark { return Watermark{e.Epoch, e.Seq} }

// Delta returns by how much the event changes the lot's held and sold units and its capacity.
// Lot events overwrite the capacity instead.
func (e Event) Delta() (held, sold, capacity int64) {
	switch e.Kind {
	case KindHeld:
		return e.Qty, 0, 0
	case KindConfirmed:
		return -e.Qty - e.Rest, e.Qty, 0
	case KindReleased, KindExpired:
		return -e.Qty, 0, 0
	case KindRefunded:
		if e.Restock {
			return 0, -e.Qty, 0
		}
		return 0, -e.Qty, -e.Qty
	}
	return 0, 0, 0
}

// Digest returns the hash of the event's whole content. Two events of one identity with different digests are a fork.
func (e Event) Digest() [sha256.Size]byte { return e.DigestOf(e.Line()) }

// DigestOf is Digest for a caller that has the event's line at hand, which is costly to write.
func (e Event) DigestOf(line string) [sha256.Size]byte {
	content := strings.Join([]string{e.Installation, string(e.Lot), itoa(e.Epoch), msText(e.Time), line}, "\t")
	return sha256.Sum256([]byte(content))
}

// Chain returns the journal hash that follows prev: the hash of prev and the event's digest.
func Chain(prev []byte, digest [sha256.Size]byte) []byte {
	h := sha256.New()
	h.Write(prev)
	h.Write(digest[:])
	return h.Sum(nil)
}

// Line returns the event as the scripts write it: fields separated by tabs, which no field can contain.
// Lot, epoch, installation and time stand before it, see Entry.
func (e Event) Line() string {
	letter := lettersOfKind[e.Kind]
	if e.IsLotEvent() {
		f := []string{"*", letter, itoa(e.Seq), e.Actor, e.Reason}
		if e.Kind == KindVoid {
			return strings.Join(f, "\t")
		}
		d := e.Definition
		f = append(f, itoa(d.Stock), itoa(e.Held), itoa(e.Sold), string(d.Status), itoa(d.Limit), itoa(d.Hold.Milliseconds()), itoa(d.MaxHold.Milliseconds()),
			msText(d.Opens), msText(d.Closes), string(d.Late), d.Name)
		if e.Kind == KindLoaded {
			f = append(f, itoa(e.Closing.Epoch), itoa(e.Closing.Seq))
		}
		return strings.Join(f, "\t")
	}
	r := e.Reservation
	if e.Kind == KindHeld {
		return strings.Join([]string{r.Attempt, letter, e.User, e.Asked, itoa(e.Qty), itoa(e.Seq), msText(e.Deadline), msText(e.Time), e.Key, e.Actor, itoa(e.From)}, "\t")
	}
	f := []string{r.Attempt, letter, itoa(e.Seq), itoa(r.N), e.User, itoa(e.Qty), e.Actor, e.Reason}
	switch e.Kind {
	case KindConfirmed:
		f = append(f, itoa(e.Rest), e.Ref)
	case KindReleased:
		f = append(f, itoa(e.Rest))
	case KindExtended:
		f = append(f, msText(e.Deadline))
	case KindRefunded:
		f = append(f, itoa(e.Total), flag(e.Restock))
	case KindPaidLate:
		f = append(f, e.Ref)
	}
	return strings.Join(f, "\t")
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func msText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return itoa(t.UnixMilli())
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
