package seed

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func run(t *testing.T, s *shop, text string, o Options) ([]Item, error) {
	t.Helper()
	rows, err := read(t, CSV, text)
	if err != nil {
		t.Fatal(err)
	}
	o.Actor, o.Installation = "ci", installation
	items, err := Run(t.Context(), rows, fakeStock{s}, fakeLedger{s}, o)
	if len(s.locked) > 0 {
		t.Errorf("locks are left: %v", s.locked)
	}
	return items, err
}

func mustRun(t *testing.T, s *shop, text string, o Options) []Item {
	t.Helper()
	items, err := run(t, s, text, o)
	if err != nil {
		t.Fatalf("seeding %q: %v", text, err)
	}
	return items
}

func TestCreateThenUnchanged(t *testing.T) {
	s := newShop()
	text := "lot,stock,limit,name\na,5,2,Hat\nb,0,,\n"
	items := mustRun(t, s, text, Options{})
	if items[0].Result != ResultCreated || items[1].Result != ResultCreated || items[0].Stock != 5 {
		t.Errorf("the first seed gives %+v", items)
	}
	if st := s.redis["a"]; st.Available != 5 || st.Limit != 2 || st.Hold != drop.DefaultHold || st.Status != drop.Open || st.Name != "Hat" {
		t.Errorf("Redis has %+v", st)
	}
	events := len(s.outbox)
	items = mustRun(t, s, text, Options{})
	if items[0].Result != ResultUnchanged || items[1].Result != ResultUnchanged || len(s.outbox) != events {
		t.Errorf("the second seed gives %+v", items)
	}
}

func TestChangeNamesOnlyWhatDiffers(t *testing.T) {
	s := newShop()
	mustRun(t, s, "lot,stock,limit,hold,name\na,5,2,2m,Hat\n", Options{})
	s.sell("a", 4)
	items := mustRun(t, s, "lot,stock,hold,limit,opens\na,8,2m,,2026-12-01T10:00:00Z\n", Options{})
	it := items[0]
	want := []FieldChange{{"stock", int64(5), int64(8)}, {"limit", int64(2), int64(0)}, {"opens", "", "2026-12-01T10:00:00Z"}}
	if it.Result != ResultChanged || fmt.Sprint(it.Changes) != fmt.Sprint(want) || it.Stock != 8 || it.Held != 2 || it.Sold != 2 {
		t.Errorf("the item is %+v", it)
	}
	// A column that the file does not have leaves the value as it is.
	if st := s.redis["a"]; st.Capacity != 8 || st.Available != 4 || st.Limit != 0 || st.Name != "Hat" || st.Hold != 2*time.Minute {
		t.Errorf("Redis has %+v", st)
	}
	for _, e := range s.outbox {
		if e.Actor != "ci" || e.Reason != Reason {
			t.Errorf("event %s carries actor %q, reason %q", e.Kind, e.Actor, e.Reason)
		}
	}
}

func TestStockIsLoweredBeforeAndRaisedAfterOtherChanges(t *testing.T) {
	for stock, want := range map[string]string{"3": "adjusted changed", "9": "changed adjusted"} {
		s := newShop()
		mustRun(t, s, "lot,stock\na,5\n", Options{})
		mustRun(t, s, "lot,stock,limit\na,"+stock+",1\n", Options{})
		if got := fmt.Sprintf("%s %s", s.outbox[1].Kind, s.outbox[2].Kind); got != want {
			t.Errorf("stock 5 to %s: %s, want %s", stock, got, want)
		}
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	s := newShop()
	mustRun(t, s, "lot,stock\na,5\n", Options{})
	for _, test := range []struct {
		text string
		o    Options
		code fault.Code
	}{
		{"lot,stock\na,5\n", Options{DryRun: true, ExitCode: true}, ""},
		{"lot,stock\na,6\nb,1\n", Options{DryRun: true}, ""},
		{"lot,stock\na,6\nb,1\n", Options{DryRun: true, ExitCode: true}, fault.WouldChange},
	} {
		events, known := len(s.outbox), len(s.ledger)
		items, err := run(t, s, test.text, test.o)
		if fault.CodeOf(err) != test.code || len(s.outbox) != events || len(s.ledger) != known {
			t.Errorf("dry run of %q: %+v, %v", test.text, items, err)
		}
	}
	items, _ := run(t, s, "lot,stock\na,6\nb,1\n", Options{DryRun: true})
	if items[0].Action != Change || items[0].Result != ResultPlanned || items[0].Stock != 6 || items[1].Action != Create || items[1].Result != ResultPlanned {
		t.Errorf("the plan is %+v", items)
	}
}

// TestLostStockIsNeverMadeAnew empties Redis after sales, whether a worker ever ran or not.
func TestLostStockIsNeverMadeAnew(t *testing.T) {
	for _, worker := range []bool{true, false} {
		s := newShop()
		mustRun(t, s, "lot,stock\na,20\n", Options{})
		s.sell("a", 10)
		if worker {
			s.drain()
		}
		s.flush()
		items, err := run(t, s, "lot,stock\na,20\n", Options{})
		if !fault.Is(err, fault.Conflict) || fault.ExitOf(err) != fault.ExitRefused || !strings.Contains(fault.HintOf(err), "dropctl restore a") {
			t.Errorf("worker %v: seeding again gives %v", worker, err)
		}
		if items[0].Action != Lost || items[0].Result != ResultFailed || len(s.redis) != 0 {
			t.Errorf("worker %v: %+v, Redis has %v", worker, items[0], s.redis)
		}
	}
}

func TestAdjustmentsAreKept(t *testing.T) {
	for name, test := range map[string]struct {
		adjust  func(s *shop)
		refused bool
	}{
		"by hand, recorded":         {func(s *shop) { s.operator("a", 8); s.drain() }, true},
		"by hand, not recorded":     {func(s *shop) { s.drain(); s.operator("a", 8) }, true},
		"by hand, never recorded":   {func(s *shop) { s.operator("a", 8) }, true},
		"by hand, then by a seed":   {func(s *shop) { s.operator("a", 8); s.drain(); seedOver(s, 7) }, false},
		"by a seed, then by hand":   {func(s *shop) { seedOver(s, 7); s.operator("a", 8) }, true},
		"by a seed":                 {func(s *shop) { seedOver(s, 7) }, false},
		"by a seed, recorded":       {func(s *shop) { seedOver(s, 7); s.drain() }, false},
		"by nobody":                 {func(s *shop) {}, false},
		"ledger far back, a seed's": {func(s *shop) { seedOver(s, 7); s.outbox = nil }, false},
		"ledger far back, by hand":  {func(s *shop) { s.operator("a", 8); s.outbox = nil }, true},
		"by hand, a seed agreed":    {func(s *shop) { s.operator("a", 8); seedOver(s, 8) }, false},
		"agreed, then by hand":      {func(s *shop) { s.operator("a", 8); seedOver(s, 8); s.operator("a", 9) }, true},
		"there and back by hand":    {func(s *shop) { s.operator("a", 8); s.operator("a", 5) }, false},
		"by a refund": {func(s *shop) {
			st := s.redis["a"]
			st.Capacity--
			st.Seq++
			s.outbox = append(s.outbox, drop.Event{Installation: installation, Lot: "a", Epoch: 1, Seq: st.Seq, Kind: drop.KindRefunded, Qty: 1, Actor: "bob"})
		}, true},
	} {
		s := newShop()
		mustRun(t, s, "lot,stock\na,5\n", Options{})
		test.adjust(s)
		items, err := run(t, s, "lot,stock\na,12\n", Options{DryRun: true})
		if refused := fault.Is(err, fault.Conflict); refused != test.refused || (refused && (items[0].Action != Refused || len(items[0].Changes) != 1)) {
			t.Errorf("%s: %+v, %v", name, items[0], err)
		}
		if test.refused && !strings.Contains(fault.HintOf(err), "--overwrite-adjustments") {
			t.Errorf("%s: the hint is %q", name, fault.HintOf(err))
		}
		mustRun(t, s, "lot,stock\na,12\n", Options{Overwrite: true})
		if s.redis["a"].Capacity != 12 {
			t.Errorf("%s: the capacity is %d", name, s.redis["a"].Capacity)
		}
	}
	// A dry run agrees to nothing.
	s := newShop()
	mustRun(t, s, "lot,stock\na,5\n", Options{})
	s.operator("a", 8)
	mustRun(t, s, "lot,stock\na,8\n", Options{DryRun: true})
	if items, err := run(t, s, "lot,stock\na,9\n", Options{}); !fault.Is(err, fault.Conflict) || !strings.Contains(fault.HintOf(err), "set the stock of a to 8 in line 2 of the file") {
		t.Errorf("%+v, %v, hint %q", items, err, fault.HintOf(err))
	}
	// What an operator made it is not overwritten by saying the same, nor by changing something else.
	s = newShop()
	mustRun(t, s, "lot,stock\na,5\n", Options{})
	s.operator("a", 8)
	if it := mustRun(t, s, "lot,stock,limit\na,8,3\n", Options{})[0]; it.Result != ResultChanged {
		t.Errorf("%+v", it)
	}
}

func seedOver(s *shop, stock int64) {
	rows := []Row{{Definition: drop.Definition{Lot: "a", Stock: stock}, given: [len(fieldNames)]bool{fieldLot: true, fieldStock: true}}}
	if _, err := Run(context.Background(), rows, fakeStock{s}, fakeLedger{s}, Options{Actor: "ci", Installation: installation, Overwrite: true}); err != nil {
		panic(err)
	}
}

func TestRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(s *shop)
		text   string
		action Action
		code   fault.Code
	}{
		"less than held and sold": {func(s *shop) { s.sell("a", 4) }, "lot,stock\na,3\n", Refused, fault.Conflict},
		"rules do not fit":        {func(*shop) {}, "lot,stock,hold\na,5,1h\n", Refused, fault.Invalid},
		"frozen":                  {func(s *shop) { s.redis["a"].Frozen = "redis_behind" }, "lot,stock\na,6\n", Blocked, fault.LotFrozen},
		"restarted":               {func(s *shop) { s.redis["a"].Run = "r2" }, "lot,stock\na,6\n", Blocked, fault.LotFrozen},
		"new lot, frozen shard":   {func(s *shop) { s.door.Frozen = "clock" }, "lot,stock\nb,6\n", Blocked, fault.LotFrozen},
		"new lot, closed door":    {func(s *shop) { s.door.Run = "r2" }, "lot,stock\nb,6\n", Blocked, fault.LotFrozen},
		"stopped":                 {func(s *shop) { s.ledger["a"].Stopped = "fork" }, "lot,stock\na,6\n", Blocked, fault.Conflict},
		"a restore broke off":     {func(s *shop) { s.ledger["a"].OpenEpoch++ }, "lot,stock\na,5\n", Blocked, fault.Conflict},
		"not the ledger's":        {func(s *shop) { delete(s.ledger, "a") }, "lot,stock\na,5\n", Blocked, fault.Foreign},
	} {
		s := newShop()
		mustRun(t, s, "lot,stock\na,5\n", Options{})
		test.spoil(s)
		events := len(s.outbox)
		items, err := run(t, s, test.text, Options{Overwrite: true})
		if items[0].Action != test.action || items[0].Code != test.code || fault.CodeOf(err) != test.code || items[0].Hint == "" {
			t.Errorf("%s: %+v, %v", name, items[0], err)
		}
		if len(s.outbox) != events || len(s.redis) != 1 {
			t.Errorf("%s: something was changed", name)
		}
	}
	// Due holds do not count: the adjustment takes them back.
	s := newShop()
	mustRun(t, s, "lot,stock\na,5\n", Options{})
	s.sell("a", 4)
	s.redis["a"].Due = 2
	if items, err := run(t, s, "lot,stock\na,3\n", Options{DryRun: true}); err != nil {
		t.Errorf("lowering to what is due is planned as %+v, %v", items, err)
	}
	// A frozen lot that is as the file says is no problem.
	s.redis["a"].Frozen = "clock"
	mustRun(t, s, "lot,stock\na,5\n", Options{})
}

func TestSomeFail(t *testing.T) {
	s := newShop()
	mustRun(t, s, "lot,stock\na,5\nb,5\n", Options{})
	s.sell("a", 4)
	items, err := run(t, s, "lot,stock\na,1\nb,6\nc,7\n", Options{})
	if !fault.Is(err, fault.Partial) || items[0].Result != ResultFailed || items[1].Result != ResultChanged || items[2].Result != ResultCreated {
		t.Errorf("%+v, %v", items, err)
	}
	if items, err = run(t, s, "lot,stock\na,1\n", Options{}); !fault.Is(err, fault.Conflict) {
		t.Errorf("%+v, %v", items, err)
	}
}

// TestEveryCrashHeals breaks a seed off at each of its calls, before the call acts and after, for good or
// once, and seeds again. The end is always the same, and no stock is ever put on sale twice.
func TestEveryCrashHeals(t *testing.T) {
	const before, text = "lot,stock\na,5\nb,5\n", "lot,stock,limit,status\na,9,3,open\nb,2,,paused\nc,4,1,\nd,0,,closed\n"
	for _, late := range []bool{false, true} {
		for _, fromOn := range []bool{false, true} {
			for at := 1; ; at++ {
				name := fmt.Sprintf("call %d, late %v, from on %v", at, late, fromOn)
				s := newShop()
				mustRun(t, s, before, Options{})
				s.sell("b", 2)
				s.calls, s.failAt, s.late, s.fromOn = 0, at, late, fromOn
				_, err := run(t, s, text, Options{})
				if s.calls < at {
					if err != nil || at < 10 {
						t.Fatalf("%s: %v", name, err)
					}
					break
				}
				if err == nil {
					t.Errorf("%s: the failure was not told", name)
				}
				s.failAt = 0
				mustRun(t, s, text, Options{})
				checkHealed(t, name, s)
			}
		}
	}
}

func checkHealed(t *testing.T, name string, s *shop) {
	t.Helper()
	for id, want := range map[drop.LotID]drop.Definition{
		"a": {Stock: 9, Limit: 3, Status: drop.Open}, "b": {Stock: 2, Status: drop.Paused}, "c": {Stock: 4, Limit: 1, Status: drop.Open}, "d": {Status: drop.Closed},
	} {
		want.Lot = id
		st, known := s.redis[id], s.ledger[id]
		if st == nil || !st.Definition.Equal(want.WithDefaults()) || !st.Balanced() || st.Capacity != want.Stock {
			t.Errorf("%s: Redis has %s as %+v", name, id, st)
		}
		if s.loads[id] != 1 {
			t.Errorf("%s: %s was loaded %d times", name, id, s.loads[id])
		}
		if known == nil || !known.Seen {
			t.Errorf("%s: the ledger has seen nothing of %s: %+v", name, id, known)
		}
	}
	s.drain()
	for id, known := range s.ledger {
		if known.Seq != s.redis[id].Seq || known.Epoch != s.redis[id].Epoch || known.Stock != s.redis[id].Capacity {
			t.Errorf("%s: the ledger ends with %s as %+v, Redis as %+v", name, id, known, s.redis[id])
		}
	}
}

func TestInterruptedRunSaysSo(t *testing.T) {
	s := newShop()
	var b strings.Builder
	b.WriteString("lot,stock\n")
	for i := range 2*chunkSize + 10 {
		fmt.Fprintf(&b, "l%d,1\n", i)
	}
	rows, err := read(t, CSV, b.String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.failAt, s.late, s.atFails = chunkSize*3+100, true, cancel
	items, err := Run(ctx, rows, fakeStock{s}, fakeLedger{s}, Options{Actor: "ci", Installation: installation})
	if !fault.Is(err, fault.Interrupted) || len(items) != len(rows) || items[len(items)-1].Action != Skipped || items[0].Result != ResultCreated {
		t.Errorf("an interrupted run ends with %d items, %v", len(items), err)
	}
	s.failAt = 0
	if items, err = Run(t.Context(), rows, fakeStock{s}, fakeLedger{s}, Options{Actor: "ci", Installation: installation}); err != nil || len(s.redis) != len(rows) {
		t.Errorf("the run after it ends with %d items, %v", len(items), err)
	}
	counts := map[int]int{}
	for n := range maps.Values(s.loads) {
		counts[n]++
	}
	if len(counts) != 1 || counts[1] != len(rows) {
		t.Errorf("lots by number of loads: %v", counts)
	}
}

func TestAnotherInstallationsRedisIsRefused(t *testing.T) {
	s := newShop()
	s.door = drop.ShardState{Exists: true, Installation: "elsewhere", Run: "r1", OpenRun: "r1"}
	items, err := run(t, s, "lot,stock\na,5\n", Options{})
	if items != nil || !fault.Is(err, fault.Foreign) || len(s.ledger) != 0 {
		t.Errorf("%+v, %v; the ledger has %v", items, err, s.ledger)
	}
}

func TestStoresDownBeforeTheFirstLot(t *testing.T) {
	s := newShop()
	s.failAt, s.fromOn = 1, true
	items, err := run(t, s, "lot,stock\na,5\n", Options{})
	if items != nil || !fault.Is(err, fault.Unavailable) {
		t.Errorf("%+v, %v", items, err)
	}
}
