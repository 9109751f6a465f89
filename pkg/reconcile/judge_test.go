package reconcile

import (
	"slices"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// sound is a lot both sides agree on: 10 units, 3 held, 2 sold, at epoch 1, seq 9.
func sound() sight {
	def := drop.Definition{Lot: "truffle", Stock: 10}.WithDefaults()
	at := drop.Watermark{Epoch: 1, Seq: 9}
	return sight{
		lot:    "truffle",
		ledger: &drop.LedgerLot{Definition: def, Watermark: at, Held: 3, Sold: 2, OpenEpoch: 1, Seen: true},
		redis: &drop.LotState{Definition: def, Watermark: at, Totals: drop.Totals{Capacity: 10, Available: 5, Held: 3, Sold: 2},
			Now: noon, Run: "r1", OpenRun: "r1"},
	}
}

func held(seq, qty int64) drop.Event {
	return drop.Event{Lot: "truffle", Epoch: 1, Seq: seq, Kind: drop.KindHeld, Qty: qty, Time: noon.Add(-2 * time.Second),
		Reservation: drop.ReservationID{Lot: "truffle", Attempt: drop.AttemptOf("truffle", "u", "k"), N: seq}}
}

func loaded(epoch, seq int64, closing drop.Watermark, def drop.Definition, held, sold int64) drop.Event {
	return drop.Event{Lot: "truffle", Epoch: epoch, Seq: seq, Kind: drop.KindLoaded, Time: noon, Definition: def, Held: held, Sold: sold, Closing: closing}
}

func TestVerdictOnOneLook(t *testing.T) {
	ahead := func(s *sight, events ...drop.Event) { // Redis has made these changes, the ledger has not folded them
		for _, e := range events {
			h, sold, c := e.Delta()
			s.redis.Held, s.redis.Sold, s.redis.Capacity = s.redis.Held+h, s.redis.Sold+sold, s.redis.Capacity+c
			s.redis.Available = s.redis.Capacity - s.redis.Held - s.redis.Sold
			s.redis.Seq = e.Seq
		}
		s.redis.Stock = s.redis.Capacity
		s.events = append(s.events, events...)
	}
	for name, c := range map[string]struct {
		change   func(*sight)
		verdict  fault.Code
		finding  bool
		evidence []string
		lag      int64
	}{
		"equal":                       {func(*sight) {}, fault.VerdictOK, false, nil, 0},
		"lagging":                     {func(s *sight) { ahead(s, held(10, 1), held(11, 2)) }, fault.VerdictLagging, false, nil, 2},
		"lagging too long":            {func(s *sight) { e := held(10, 1); e.Time = noon.Add(-time.Hour); ahead(s, e) }, fault.VerdictLagging, true, nil, 1},
		"events newer than the look":  {func(s *sight) { ahead(s, held(10, 1)); s.events = append(s.events, held(11, 1)) }, fault.VerdictLagging, false, nil, 1},
		"units appeared":              {func(s *sight) { s.redis.Available++ }, fault.VerdictDrift, true, []string{"invariant", "available"}, 0},
		"units vanished behind a lag": {func(s *sight) { ahead(s, held(10, 1)); s.redis.Available-- }, fault.VerdictDrift, true, []string{"invariant", "available"}, 1},
		"balanced, but other counts":  {func(s *sight) { s.redis.Held++; s.redis.Available-- }, fault.VerdictDrift, true, []string{"available", "held"}, 0},
		"other counts behind a lag":   {func(s *sight) { ahead(s, held(10, 1)); s.redis.Held--; s.redis.Available++ }, fault.VerdictDrift, true, []string{"available", "held"}, 1},
		"an event is lost":            {func(s *sight) { ahead(s, held(10, 1), held(11, 1)); s.events = s.events[1:] }, fault.VerdictDrift, true, []string{"events"}, 2},
		"a seq out of this world":     {func(s *sight) { s.redis.Seq = drop.MaxSeq }, fault.VerdictDrift, true, []string{"events"}, drop.MaxSeq - 9},
		"Redis lost its tail":         {func(s *sight) { s.redis.Seq = 7 }, fault.VerdictDrift, true, []string{"watermark"}, 0},
		"Redis is in an older epoch":  {func(s *sight) { s.ledger.Epoch, s.ledger.OpenEpoch = 2, 2 }, fault.VerdictDrift, true, []string{"epoch"}, 0},
		"a load never happened":       {func(s *sight) { s.ledger.OpenEpoch = 2 }, fault.VerdictDrift, true, []string{"epoch"}, 0},
		"an epoch without a load":     {func(s *sight) { s.redis.Epoch, s.ledger.OpenEpoch = 2, 2 }, fault.VerdictDrift, true, []string{"epoch"}, 0},
		"a rule differs":              {func(s *sight) { s.redis.Limit = 4 }, fault.VerdictDrift, true, []string{"limit"}, 0},
		"frozen":                      {func(s *sight) { s.redis.Frozen = "operator" }, fault.VerdictFrozen, true, nil, 0},
		"another server":              {func(s *sight) { s.redis.Run = "r2" }, fault.VerdictFrozen, true, nil, 0},
		"stopped":                     {func(s *sight) { s.ledger.Stopped = "fork" }, fault.VerdictStopped, true, nil, 0},
		"archived meanwhile":          {func(s *sight) { s.redis, s.ledger.Archive = nil, drop.Archived }, fault.VerdictOK, false, nil, 0},
		"archived, and back in Redis": {func(s *sight) { s.ledger.Archive = drop.Archived }, fault.VerdictDrift, true, []string{"archived"}, 0},
		"gone from Redis":             {func(s *sight) { s.redis = nil }, fault.VerdictMissing, true, []string{"lot"}, 0},
		"unknown to the ledger":       {func(s *sight) { s.ledger = nil }, fault.VerdictDrift, true, []string{"lot"}, 0},
		"more than the capacity": {func(s *sight) { ahead(s, held(10, 6)); s.redis.Available = -1 }, fault.VerdictDrift, true,
			[]string{"invariant", "fold"}, 1},
		"a restore not folded yet": {func(s *sight) {
			s.ledger.OpenEpoch, s.redis.Watermark = 2, drop.Watermark{Epoch: 2, Seq: 10}
			ghost := held(10, 1) // the old epoch went on behind the point where it was closed
			s.events = []drop.Event{ghost, loaded(2, 10, drop.Watermark{Epoch: 1, Seq: 9}, s.redis.Definition, 3, 2)}
		}, fault.VerdictLagging, false, nil, 1},
		"a load with other totals": {func(s *sight) {
			s.ledger.OpenEpoch, s.redis.Watermark = 2, drop.Watermark{Epoch: 2, Seq: 10}
			s.redis.Totals = drop.Totals{Capacity: 10, Available: 6, Held: 2, Sold: 2}
			s.events = []drop.Event{loaded(2, 10, drop.Watermark{Epoch: 1, Seq: 9}, s.redis.Definition, 2, 2)}
		}, fault.VerdictDrift, true, []string{"fold", "available", "held"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := sound()
			c.change(&s)
			row := judge(s, time.Minute)
			var checks []string
			for _, e := range row.Evidence {
				checks = append(checks, e.Check)
			}
			if row.Verdict != c.verdict || row.Finding != c.finding || row.LagEvents != c.lag || !slices.Equal(checks, c.evidence) {
				t.Errorf("verdict %s, finding %v, lag %d, evidence %v; want %s, %v, %d, %v", row.Verdict, row.Finding, row.LagEvents, row.Evidence, c.verdict, c.finding, c.lag, c.evidence)
			}
			if row.Finding && row.Next == "" {
				t.Error("a finding without a next command")
			}
		})
	}
}

func TestChainFollowsLoadsAndNamesGaps(t *testing.T) {
	def := drop.Definition{Lot: "truffle", Stock: 10}.WithDefaults()
	events := []drop.Event{
		held(10, 1), held(11, 1), held(12, 1), // 12 was written behind the point where epoch 1 was closed
		loaded(2, 12, drop.Watermark{Epoch: 1, Seq: 11}, def, 0, 0), // superseded by the next load at the same place
		loaded(3, 12, drop.Watermark{Epoch: 1, Seq: 11}, def, 0, 0),
		{Lot: "truffle", Epoch: 3, Seq: 15, Kind: drop.KindPaidLate},
	}
	run, missing := chain(drop.Watermark{Epoch: 1, Seq: 9}, drop.Watermark{Epoch: 3, Seq: 17}, events)
	var got []drop.Watermark
	for _, e := range run {
		got = append(got, e.Watermark())
	}
	want := []drop.Watermark{{Epoch: 1, Seq: 10}, {Epoch: 1, Seq: 11}, {Epoch: 3, Seq: 12}, {Epoch: 3, Seq: 15}}
	if !slices.Equal(got, want) {
		t.Errorf("chain %v, want %v", got, want)
	}
	if text := joinSpans(missing); text != "13 to 14, 16 to 17" {
		t.Errorf("missing %s", text)
	}
}

func TestRollGivesTheSameRecordsWhereverThePagesWereRead(t *testing.T) {
	id := func(n int64) drop.ReservationID {
		return drop.ReservationID{Lot: "truffle", Attempt: drop.AttemptOf("truffle", "u", string(rune('a'+n))), N: n}
	}
	event := func(seq int64, kind drop.Kind, n, qty int64, more ...func(*drop.Event)) drop.Event {
		e := drop.Event{Lot: "truffle", Epoch: 1, Seq: seq, Kind: kind, Reservation: id(n), User: "u", Qty: qty, Time: noon}
		for _, f := range more {
			f(&e)
		}
		return e
	}
	events := []drop.Event{
		event(1, drop.KindHeld, 1, 3), event(2, drop.KindHeld, 2, 2), event(3, drop.KindHeld, 3, 5),
		event(4, drop.KindConfirmed, 1, 2, func(e *drop.Event) { e.Rest, e.Ref = 1, "p" }),
		event(5, drop.KindReleased, 3, 1, func(e *drop.Event) { e.Rest = 4 }),
		event(6, drop.KindExpired, 2, 2),
		event(7, drop.KindExtended, 3, 4, func(e *drop.Event) { e.Deadline = noon.Add(time.Hour) }),
		event(8, drop.KindRefunded, 1, 1, func(e *drop.Event) { e.Total = 1 }),
		event(9, drop.KindRefunded, 1, 1, func(e *drop.Event) { e.Total = 2 }),
		event(10, drop.KindHeld, 10, 1),
	}
	at := func(seq int) records { // the records as they were at a seq
		rs := records{}
		rs.roll(events[:seq])
		return rs
	}
	want := at(10)
	if len(want) != 2 || want[id(3)].Qty != 4 || !want[id(3)].Deadline.Equal(noon.Add(time.Hour)) {
		t.Fatalf("records at the end: %v", want)
	}
	for first := 0; first <= 10; first++ {
		for second := first; second <= 10; second++ {
			// Odd reservations were read at the first seq, even ones later, as pages are.
			rs := records{}
			for id, r := range at(first) {
				if id.N%2 == 1 {
					rs.read([]drop.Reservation{r})
				}
			}
			for id, r := range at(second) {
				if id.N%2 == 0 {
					rs.read([]drop.Reservation{r})
				}
			}
			rs.roll(events[first:])
			if len(rs) != len(want) {
				t.Fatalf("read at %d and %d: %v, want %v", first, second, rs, want)
			}
			for id, r := range want {
				if rs[id] != r {
					t.Fatalf("read at %d and %d: %v, want %v", first, second, rs[id], r)
				}
			}
		}
	}
}

func TestASuspicionStandsOnlyIfEveryLookHasIt(t *testing.T) {
	ev := func(subjects ...string) (out []Evidence) {
		for _, s := range subjects {
			out = append(out, Evidence{Check: "user", Subject: s})
		}
		return out
	}
	var s suspects
	s.follow(proof{blind: true})
	if s.settled() {
		t.Fatal("settled without having seen anything")
	}
	s.follow(proof{evidence: ev("real", "race"), moving: ev("busy")})
	for range 3 {
		s.follow(proof{evidence: ev("real", "later"), moving: ev("busy")})
	}
	if s.settled() {
		t.Error("settled while one subject kept moving")
	}
	s.follow(proof{evidence: ev("real")})
	if !s.settled() {
		t.Error("not settled")
	}
	if got := s.proven(); len(got) != 1 || got[0].Subject != "real" {
		t.Errorf("proven %v, want the real one only", got)
	}
}
