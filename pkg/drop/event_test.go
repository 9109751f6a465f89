package drop

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func genText() *rapid.Generator[string] {
	return rapid.StringMatching(`[a-zA-Z0-9 äöü€_./:@-]{0,20}`)
}

func genTime() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMilli(rapid.Int64Range(946_684_800_001, 4_000_000_000_000).Draw(t, "ms")).UTC()
	})
}

func genLot() *rapid.Generator[LotID] {
	return rapid.Custom(func(t *rapid.T) LotID {
		return LotID(rapid.StringMatching(`([A-Za-z0-9][A-Za-z0-9._-]{0,47}:)?[A-Za-z0-9][A-Za-z0-9._-]{0,47}`).Draw(t, "lot"))
	})
}

// genEvent draws an event as a script could write it: only the fields of its kind are set.
func genEvent(lot LotID, at time.Time) *rapid.Generator[Event] {
	return rapid.Custom(func(t *rapid.T) Event {
		units := rapid.Int64Range(1, MaxUnits)
		e := Event{Installation: "inst", Lot: lot, Epoch: rapid.Int64Range(1, 9).Draw(t, "epoch"), Seq: rapid.Int64Range(1, MaxSeq).Draw(t, "seq"), Time: at,
			Kind:  rapid.SampledFrom([]Kind{KindHeld, KindConfirmed, KindReleased, KindExpired, KindExtended, KindRefunded, KindPaidLate, KindAdjusted, KindChanged, KindLoaded, KindVoid}).Draw(t, "kind"),
			Actor: genText().Draw(t, "actor")}
		if e.IsLotEvent() {
			e.Reason = genText().Draw(t, "reason")
			if e.Kind == KindVoid {
				return e
			}
			e.Held, e.Sold = rapid.Int64Range(0, 99).Draw(t, "held"), rapid.Int64Range(0, 99).Draw(t, "sold")
			e.Definition = Definition{Lot: lot, Stock: units.Draw(t, "stock"), Name: genText().Draw(t, "name")}.WithDefaults()
			if rapid.Bool().Draw(t, "window") {
				e.Definition.Opens = genTime().Draw(t, "opens")
			}
			if e.Kind == KindLoaded {
				e.Closing = Watermark{rapid.Int64Range(0, 9).Draw(t, "ce"), rapid.Int64Range(0, MaxSeq).Draw(t, "cs")}
			}
			return e
		}
		e.Reservation = ReservationID{Lot: lot, Attempt: AttemptOf(lot, "u", genText().Draw(t, "key")), N: rapid.Int64Range(1, e.Seq).Draw(t, "n")}
		e.User, e.Qty = genText().Draw(t, "user"), units.Draw(t, "qty")
		switch e.Kind {
		case KindHeld:
			e.Reservation.N, e.Deadline, e.Key, e.Asked, e.From = e.Seq, genTime().Draw(t, "deadline"), genText().Draw(t, "key"), "1/0", rapid.Int64Range(0, 5).Draw(t, "from")
			return e
		case KindConfirmed:
			e.Rest, e.Ref = rapid.Int64Range(0, 9).Draw(t, "rest"), genText().Draw(t, "ref")
		case KindReleased:
			e.Rest = rapid.Int64Range(0, 9).Draw(t, "rest")
		case KindExtended:
			e.Deadline = genTime().Draw(t, "deadline")
		case KindRefunded:
			e.Total, e.Restock = rapid.Int64Range(0, 9).Draw(t, "total"), rapid.Bool().Draw(t, "restock")
		case KindPaidLate:
			e.Ref = genText().Draw(t, "ref")
		}
		e.Reason = genText().Draw(t, "reason")
		return e
	})
}

// encodeEntry writes events, which all share installation and time, as one script call does.
func encodeEntry(events []Event) Entry {
	var en Entry
	var b strings.Builder
	var lot LotID
	var epoch int64
	for _, e := range events {
		en.Installation, en.Time = e.Installation, e.Time
		if e.Lot != lot || e.Epoch != epoch {
			lot, epoch = e.Lot, e.Epoch
			b.WriteString("@\t" + string(lot) + "\t" + itoa(epoch) + "\n")
		}
		b.WriteString(e.Line())
		b.WriteByte('\n')
	}
	en.Body = b.String()
	return en
}

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := genTime().Draw(t, "at")
		var want []Event
		for range rapid.IntRange(1, 5).Draw(t, "events") {
			want = append(want, genEvent(genLot().Draw(t, "lot"), at).Draw(t, "event"))
		}
		got, poison := encodeEntry(want).Decode()
		if len(poison) != 0 || len(got) != len(want) {
			t.Fatalf("decoded %d of %d events, poison %+v", len(got), len(want), poison)
		}
		for i := range want {
			if got[i].Digest() != want[i].Digest() || got[i].Line() != want[i].Line() {
				t.Fatalf("event %d changed:\n%+v\n%+v", i, want[i], got[i])
			}
		}
	})
}

const (
	batchHeader = "+\t3\t7\t2\t2/0\t1700000300000\t1700000000000\t" // and the skipped places
	batchLines  = "abcdefghijklmnopqrstuvwxya\tann\tk1\tshop\nabcdefghijklmnopqrstuvwxyb\tbob\tk2\tshop\nabcdefghijklmnopqrstuvwxyc\tcy\tk3\tshop\n"
)

func TestABatchIsReadAsItsHolds(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000).UTC()
	line := func(attempt, user, key string, n string) string {
		return attempt + "\th\t" + user + "\t2/0\t2\t" + n + "\t1700000300000\t1700000000000\t" + key + "\tshop\t0"
	}
	a, b, c := "abcdefghijklmnopqrstuvwxya", "abcdefghijklmnopqrstuvwxyb", "abcdefghijklmnopqrstuvwxyc"
	after := "*\tv\t11\tactor\treason\n"
	for name, batch := range map[string]struct {
		body   string
		lines  []string
		poison int
	}{
		"whole":              {batchHeader + "\n" + batchLines + after, []string{line(a, "ann", "k1", "8"), line(b, "bob", "k2", "9"), line(c, "cy", "k3", "10"), "*\tv\t11\tactor\treason"}, 0},
		"with a skipped one": {batchHeader + "2\n" + batchLines, []string{line(a, "ann", "k1", "8"), line(c, "cy", "k3", "9")}, 0},
		"one damaged":        {batchHeader + "\n" + strings.Replace(batchLines, "\tbob", "", 1), []string{line(a, "ann", "k1", "8"), line(c, "cy", "k3", "10")}, 1},
		"cut short":          {batchHeader + "\n" + strings.SplitAfter(batchLines, "\n")[0], []string{line(a, "ann", "k1", "8")}, 1},
		"skipped backwards":  {batchHeader + "2,1\n" + batchLines, nil, 4},
		"of another time":    {strings.Replace(batchHeader, "0\t1700000000000", "0\t1700000000001", 1) + "\n" + batchLines, nil, 3},
		"seq beyond all":     {strings.Replace(batchHeader, "\t7\t", "\t9007199254740990\t", 1) + "\n" + batchLines, nil, 4},
	} {
		events, poison := Entry{Installation: "i", Time: at, Body: "@\tlot\t1\n" + batch.body}.Decode()
		var lines []string
		for _, e := range events {
			lines = append(lines, e.Line())
		}
		if !slices.Equal(lines, batch.lines) || len(poison) != batch.poison {
			t.Errorf("%s: %q, %+v", name, lines, poison)
		}
	}
}

const (
	groupHeader = "-\t3\t2\t2/0\t1700000000000\t"
	groupLines  = "hat\tabcdefghijklmnopqrstuvwxya\tann\tk1\tshop\ncap\tabcdefghijklmnopqrstuvwxyb\tbob\tk2\tshop\ntie\tabcdefghijklmnopqrstuvwxyc\tcy\tk3\tshop\n"
)

func TestAGroupIsReadAsItsHolds(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000).UTC()
	hold := func(lot, epoch, attempt, user, n, deadline, key string) string {
		return lot + "/" + epoch + " abcdefghijklmnopqrstuvwxy" + attempt + "\th\t" + user + "\t2/0\t2\t" + n + "\t" + deadline + "\t1700000000000\t" + key + "\tshop\t0"
	}
	ann, bob, cy := hold("hat", "4", "a", "ann", "8", "1700000300000", "k1"), hold("cap", "4", "b", "bob", "17", "1700000300000", "k2"), hold("tie", "5", "c", "cy", "9", "1700000400000", "k3")
	const numbers = "8/4/1700000300000,17,9/5/1700000400000\n"
	for name, group := range map[string]struct {
		body   string
		holds  []string
		poison string // the lots of what is not a hold
	}{
		"whole":               {groupHeader + numbers + groupLines, []string{ann, bob, cy}, ""},
		"before a lot":        {groupHeader + numbers + groupLines + "@\tlot\t1\n*\tv\t11\tactor\treason\n", []string{ann, bob, cy, "lot/1 *\tv\t11\tactor\treason"}, ""},
		"one damaged":         {groupHeader + numbers + strings.Replace(groupLines, "wxyb", "wxy!", 1), []string{ann, cy}, "cap"},
		"one without a user":  {groupHeader + numbers + strings.Replace(groupLines, "\tbob", "", 1), []string{ann, cy}, "-"},
		"one without its end": {groupHeader + "8/4/1700000300000,17/5/1700000400000,9\n" + strings.Replace(groupLines, "\tbob", "", 1), []string{ann, cy}, "-"},
		"one of no lot":       {groupHeader + numbers + strings.Replace(groupLines, "cap", "c p", 1), []string{ann, cy}, "-"},
		"no number":           {groupHeader + "8/4/1700000300000,,9/5/1700000400000\n" + groupLines, []string{ann, cy}, "cap"},
		"half a number":       {groupHeader + "8/4/1700000300000,17/4,9/5/1700000400000\n" + groupLines, []string{ann, cy}, "cap"},
		"no first deadline":   {groupHeader + "8,17,9/5/1700000400000\n" + groupLines, []string{cy}, "hat cap"},
		"another seq 0":       {groupHeader + "0/4/1700000300000,17,9/5/1700000400000\n" + groupLines, []string{bob, cy}, "hat"},
		"no deadline":         {groupHeader + "8/4/1700000300000,17/4/,9\n" + groupLines, []string{ann}, "cap tie"},
		"a damaged epoch":     {groupHeader + "8/4/1700000300000,17/x/1700000300000,9\n" + groupLines, []string{ann}, "cap tie"},
		"damaged all over":    {groupHeader + "8/4/1700000300000,0/x/1700000300000,9\n" + groupLines, []string{ann}, "cap tie"},
		"a damaged deadline":  {groupHeader + "8/4/1700000300000,17/5/x,9\n" + groupLines, []string{ann}, "cap tie"},
		"seq 0":               {groupHeader + "8/4/1700000300000,0,9/5/1700000400000\n" + groupLines, []string{ann, cy}, "cap"},
		"too few lines":       {groupHeader + numbers + strings.SplitAfter(groupLines, "\n")[0], []string{ann}, "-"},
		"too few numbers":     {groupHeader + "8/4/1700000300000,17\n" + groupLines, nil, "- - - -"},
		"of another time":     {strings.Replace(groupHeader, "0000\t", "0001\t", 1) + numbers + groupLines, nil, "hat cap tie"},
	} {
		events, poison := Entry{Installation: "i", Time: at, Body: group.body}.Decode()
		var holds, lots []string
		for _, e := range events {
			holds = append(holds, fmt.Sprintf("%s/%d %s", e.Lot, e.Epoch, e.Line()))
		}
		for _, p := range poison {
			lots = append(lots, cmp.Or(string(p.Lot), "-"))
		}
		if !slices.Equal(holds, group.holds) || strings.Join(lots, " ") != group.poison {
			t.Errorf("%s: %q, %+v", name, holds, poison)
		}
	}
}

// TestALineOfAGroupIsKeptWhole: with all that the hold needs, which its own number may leave to the one before.
func TestALineOfAGroupIsKeptWhole(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000).UTC()
	body := groupHeader + "8/4/1700000300000,17,9\n" + strings.Replace(groupLines, "wxyb", "wxy!", 1)
	_, poison := Entry{Installation: "i", Time: at, Body: body}.Decode()
	if len(poison) != 1 {
		t.Fatalf("%+v", poison)
	}
	events, again := Entry{Installation: "i", Time: at, Body: strings.Replace(poison[0].Raw, "wxy!", "wxyb", 1)}.Decode()
	if len(again) > 0 || len(events) != 1 || events[0].Watermark() != (Watermark{4, 17}) || events[0].Deadline.UnixMilli() != 1_700_000_300_000 {
		t.Errorf("%q is read as %+v, %+v", poison[0].Raw, events, again)
	}
}

// FuzzEntryDecode feeds hostile entries: no panic, nothing dropped silently, and what is accepted is canonical.
func FuzzEntryDecode(f *testing.F) {
	f.Add("@\tlot\t1\n" + "*\tv\t1\tactor\treason\n")
	f.Add("@\tlot\t1\nabcdefghijklmnopqrstuvwxyz\tx\t2\t1\tuser\t1\t\t\n")
	f.Add("@\tlot\t1\n*\tl\t1\ta\t\t5\t0\t0\topen\t0\t300000\t1800000\t\t\trefuse\tname\t0\t0\n")
	f.Add("\x00\t\n@\t\t\n")
	f.Add("@\tlot\t1\n" + batchHeader + "2\n" + batchLines)
	f.Add(batchHeader + "\n" + batchLines) // of no lot
	f.Add(groupHeader + "8/4/1700000300000,17,9/5/1700000400000\n" + groupLines)
	f.Fuzz(func(t *testing.T, body string) {
		at := time.UnixMilli(1_700_000_000_000).UTC()
		events, _ := Entry{Installation: "i", Time: at, Body: body}.Decode()
		for _, e := range events {
			again, poison := encodeEntry([]Event{e}).Decode()
			if len(poison) != 0 || len(again) != 1 || again[0].Digest() != e.Digest() {
				t.Fatalf("%q decodes to an event that does not survive: %+v", body, e)
			}
		}
	})
}
