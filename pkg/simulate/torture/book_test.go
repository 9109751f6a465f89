package torture

import (
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// An engine that lies is found by what it says, and by what is recorded.
func TestTheBookFindsBrokenPromises(t *testing.T) {
	now := time.Now()
	lot := lots[0].Lot
	request := drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 2}
	id := drop.ReservationID{Lot: lot, Attempt: drop.AttemptOf(lot, "ann", "k"), N: 7}
	held := drop.Reservation{ID: id, State: drop.Held, Qty: 2, User: "ann", Deadline: now.Add(time.Minute)}
	sold, gone := held, held
	sold.State, sold.Ref, gone.State = drop.Confirmed, "pay", drop.Released
	confirm := drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: "pay"}
	release := drop.SettleRequest{ID: id, Action: drop.ActRelease}
	refund := drop.SettleRequest{ID: id, Action: drop.ActRefund, Total: 1}
	said := func(r drop.Reservation) drop.Outcome { return drop.Outcome{Reservation: r, Now: now} }
	late := said(sold)
	late.Now = now.Add(time.Hour)
	for name, c := range map[string]struct {
		happens  func(b *book, a *attempt)
		recorded []drop.Reservation
		want     string // "": nothing
	}{
		"held":               {nil, []drop.Reservation{held}, ""},
		"bought":             {func(b *book, a *attempt) { b.settled(a, confirm, said(sold), nil) }, []drop.Reservation{sold}, ""},
		"perhaps bought":     {func(b *book, a *attempt) { b.settled(a, confirm, drop.Outcome{}, fault.New(fault.OutcomeUnknown, "")) }, []drop.Reservation{sold}, ""},
		"bought too late":    {func(b *book, a *attempt) { b.settled(a, confirm, late, nil) }, []drop.Reservation{sold}, "after its deadline"},
		"bought, unrecorded": {func(b *book, a *attempt) { b.settled(a, confirm, said(sold), nil) }, []drop.Reservation{gone}, "which is not recorded"},
		"sold unasked":       {nil, []drop.Reservation{sold}, "nobody was told so"},
		"sold twice":         {func(b *book, a *attempt) { b.settled(a, confirm, said(sold), nil) }, []drop.Reservation{sold, {ID: drop.ReservationID{Lot: lot, Attempt: id.Attempt, N: 9}, State: drop.Confirmed, User: "ann"}}, "sold twice"},
		"given back, kept":   {func(b *book, a *attempt) { b.settled(a, release, said(gone), nil) }, []drop.Reservation{held}, "told that it was given back, and it is held"},
		"given back, bought": {func(b *book, a *attempt) {
			b.settled(a, release, said(gone), nil)
			b.settled(a, confirm, said(sold), nil)
		}, []drop.Reservation{sold}, "after it was given back"},
		"granted twice":     {func(b *book, a *attempt) { b.reserved(a, said(held), nil) }, []drop.Reservation{held}, "granted twice"},
		"expired too soon":  {func(b *book, a *attempt) { b.settled(a, confirm, drop.Outcome{}, fault.New(fault.HoldExpired, "")) }, nil, "before its deadline"},
		"refunded unbought": {func(b *book, a *attempt) { b.settled(a, refund, said(sold), nil) }, []drop.Reservation{held}, "never bought"},
		"a hold vanished":   {nil, nil, "which is not recorded"},
		"somebody else's":   {nil, []drop.Reservation{{ID: id, State: drop.Held, User: "eve"}}, "recorded of user eve"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &run{book: newBook()}
			a := &attempt{request: request}
			r.book.reserved(a, said(held), nil)
			if c.happens != nil {
				c.happens(r.book, a)
			}
			var recorded []drop.Recorded
			for _, res := range c.recorded {
				recorded = append(recorded, drop.Recorded{Reservation: res})
			}
			r.judge(id.Attempt, a, recorded)
			text := ""
			found, _ := r.book.found()
			for _, v := range found {
				text += v.What + "\n"
			}
			if (text == "") != (c.want == "") || !strings.Contains(text, c.want) {
				t.Errorf("found %q, want %q", text, c.want)
			}
		})
	}
}
