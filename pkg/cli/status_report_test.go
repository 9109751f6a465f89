package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// healthyFacts is a shop in which everything is as it should be: one open lot, one worker, a clean run.
func healthyFacts() statusFacts {
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	def := drop.Definition{Lot: "truffle-99", Stock: 10}.WithDefaults()
	return statusFacts{
		now: now, maxLag: time.Minute, ceiling: 1000,
		redis:    storeView{Store: "Redis", Reachable: true},
		database: storeView{Store: "PostgreSQL", Reachable: true},
		stock: wire.StockLook{Shards: 2, Outboxes: []drop.OutboxState{{Shard: 0, Length: 3}, {Shard: 1}},
			States: map[drop.LotID]drop.LotState{def.Lot: {Definition: def, Totals: drop.Totals{Capacity: 10, Available: 10}, Run: "r", OpenRun: "r"}}},
		lots:     []drop.LedgerLot{{Definition: def, Seen: true}},
		progress: &drop.Progress{Pace: drop.Pace{Limit: 2000, Highest: 2000}},
		alive:    []workerView{{Worker: "w"}},
		run:      &runView{Started: now.Add(-time.Minute), Verdict: fault.VerdictOK},
	}
}

func TestStatusPutsTheWorstFirstAndNamesTheNextCommand(t *testing.T) {
	frozen := func(f *statusFacts, reason fault.Code) {
		st := f.stock.States["truffle-99"]
		st.Frozen = string(reason)
		f.stock.States["truffle-99"] = st
	}
	tests := map[string]struct {
		change func(f *statusFacts)
		level  string
		what   string // part of the first line
		next   string // part of its command
		code   fault.Code
	}{
		"healthy": {func(*statusFacts) {}, levelOK, "1 lot is open", "dropctl lot list", ""},
		"redis down": {func(f *statusFacts) {
			f.redis = storeOf("Redis", config.NewURL("redis://shop"), fault.New(fault.OutcomeUnknown, "connection refused"))
			f.stock.States, f.stock.Outboxes = nil, nil
		}, levelBad, "connection refused", "dropctl config view", fault.Unavailable},
		"ledger down": {func(f *statusFacts) {
			f.database = storeOf("PostgreSQL", config.NewURL("postgres://shop"), fault.New(fault.NotMigrated, "no schema"))
			f.lots, f.alive, f.run = nil, nil, nil
		}, levelBad, "no schema", "dropctl migrate up", fault.NotMigrated},
		"frozen": {func(f *statusFacts) { frozen(f, fault.FreezeBehind) }, levelBad, "truffle-99", "dropctl restore truffle-99", fault.Finding},
		"door closed": {func(f *statusFacts) {
			st := f.stock.States["truffle-99"]
			st.Run = "other"
			f.stock.States["truffle-99"] = st
		}, levelBad, "truffle-99", "dropctl worker", fault.Finding},
		"stopped": {func(f *statusFacts) { f.lots[0].Stopped = fault.StopOverCapacity }, levelBad, "truffle-99", "dropctl restore truffle-99", fault.Finding},
		"damaged": {func(f *statusFacts) {
			f.stock.States["truffle-99"] = drop.LotState{Definition: drop.Definition{Lot: "truffle-99"}, Damaged: "a field of it is not a number"}
		}, levelBad, "damaged in Redis: truffle-99", "restore truffle-99", fault.Finding},
		"another key": {func(f *statusFacts) {
			shard := drop.LotID("truffle-99").Shard(2)
			f.stock.Broken = map[int][]drop.MisplacedKey{shard: {{What: "the key outbox is a string, not a stream", Fix: "put it aside"}}}
		}, levelBad, "not a stream; nothing is sold from truffle-99", "put it aside", fault.Finding},
		"lost by redis":         {func(f *statusFacts) { f.stock.States = nil }, levelBad, "truffle-99", "dropctl restore", fault.Finding},
		"never loaded":          {func(f *statusFacts) { f.stock.States, f.lots[0].Seen = nil, false }, levelWarn, "truffle-99", "dropctl seed", ""},
		"archive broken off":    {func(f *statusFacts) { f.stock.States, f.lots[0].Archive = nil, drop.ArchiveBegun }, levelWarn, "truffle-99", "dropctl lot archive truffle-99", ""},
		"charges and no worker": {func(f *statusFacts) { f.alive, f.payments.Open, f.payments.Asking = nil, 1, 1 }, levelBad, "no worker is alive", "dropctl worker --payment webhook", fault.Finding},
		"dead letters":          {func(f *statusFacts) { f.counts.DeadLetters = map[fault.Code]int64{fault.StopGhost: 2} }, levelBad, "dead letters: 2 (ghost)", "dropctl outbox list --state dead", fault.Finding},
		"the worst dead letter": {func(f *statusFacts) {
			f.counts.DeadLetters = map[fault.Code]int64{fault.StopGhost: 2, fault.Invalid: 3, fault.StopFork: 1}
		}, levelBad, "dead letters: 1 (fork)", "dropctl outbox list", fault.Finding},
		"redis full":       {func(f *statusFacts) { f.full = fault.New(fault.OutOfMemory, "no room") }, levelBad, "no room", "raise maxmemory", fault.Finding},
		"outbox full":      {func(f *statusFacts) { f.stock.Outboxes[1].Bytes = 1000 }, levelBad, "at its ceiling", "dropctl worker", fault.Finding},
		"outbox half full": {func(f *statusFacts) { f.stock.Outboxes[1].Bytes = 500 }, levelWarn, "at 50% of its ceiling", "dropctl worker", ""},
		"other limits":     {func(f *statusFacts) { f.progress.Pace.Limit = 500 }, levelWarn, "from 500 to 2000 events/s: the lowest", "dropctl status", ""},
		"refunds due":      {func(f *statusFacts) { f.counts.RefundsDue = 1 }, levelWarn, "due for refund", "dropctl ledger show --refund-due", ""},
		"payments stuck":   {func(f *statusFacts) { f.payments.Stuck = 2 }, levelBad, "gateway for five minutes: 2", "dropctl worker --payment webhook", fault.Finding},
		"refused refunds":  {func(f *statusFacts) { f.payments.Refused, f.payments.Returns = 1, 2 }, levelWarn, "will not make: 1", "dropctl status", ""},
		"no worker":        {func(f *statusFacts) { f.alive = nil }, levelWarn, "no worker", "dropctl worker", ""},
		"work undone":      {func(f *statusFacts) { f.alive, f.stock.Outboxes[0].Pending = nil, 5 }, levelBad, "no worker", "dropctl worker", fault.Finding},
		"behind": {func(f *statusFacts) {
			f.stock.Outboxes[1] = drop.OutboxState{Pending: 5, Oldest: f.now.Add(-2 * time.Minute)}
		}, levelBad, "5 outbox entries", "dropctl worker", fault.Finding},
		"slightly late": {func(f *statusFacts) {
			f.stock.Outboxes[1] = drop.OutboxState{Pending: 5, Oldest: f.now.Add(-time.Second)}
		}, levelOK, "1 lot is open", "dropctl", ""},
		"drift last run":   {func(f *statusFacts) { f.run.Findings = []foundView{{"truffle-99", fault.VerdictDrift, f.now}} }, levelBad, "drift when last reconciled: truffle-99", "dropctl lot pause truffle-99", fault.Finding},
		"missing last run": {func(f *statusFacts) { f.run.Findings = []foundView{{"truffle-99", fault.VerdictMissing, f.now}} }, levelWarn, "missing when last reconciled: truffle-99", "dropctl reconcile", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := healthyFacts()
			tt.change(&f)
			v := f.view()
			first := v.Lines[0]
			if first.Level != tt.level || v.Verdict != tt.level || !strings.Contains(first.What, tt.what) || !strings.Contains(first.Next, tt.next) {
				t.Errorf("verdict %s, first line %+v", v.Verdict, first)
			}
			if got := fault.CodeOf(v.err()); got != tt.code {
				t.Errorf("ends with %q, want %q", got, tt.code)
			}
			if !slices.IsSortedFunc(v.Lines, func(a, b statusLine) int { return slices.Index(levels, a.Level) - slices.Index(levels, b.Level) }) {
				t.Errorf("not worst first: %+v", v.Lines)
			}
			for _, line := range v.Lines {
				if line.Next == "" {
					t.Errorf("%q says nothing of what to do next", line.What)
				}
			}
		})
	}
}

func TestStatusCountsEachLotOnceWhereItIsWorst(t *testing.T) {
	f := healthyFacts()
	f.lots[0].Stopped = fault.StopFork
	st := f.stock.States["truffle-99"]
	st.Frozen, st.Status = string(fault.FreezeAhead), drop.Paused
	f.stock.States["truffle-99"] = st
	if n := f.sayLots(func(string, fault.Code, string, string, ...any) {}); n != (lotCounts{Stopped: 1}) {
		t.Errorf("%+v", n)
	}
}

func TestStatusShowsLotsOfRedisAloneWhenTheLedgerIsSilent(t *testing.T) {
	f := healthyFacts()
	f.database, f.lots = storeOf("PostgreSQL", config.NewURL("postgres://shop"), fault.New(fault.Unavailable, "gone")), nil
	v := f.view()
	if *v.Lots.Selling != 1 || v.Lots.Stopped != nil || v.Lots.NotLoaded != nil || v.Dead != nil {
		t.Errorf("lots %+v, dead letters %v", v.Lots, v.Dead)
	}
}

func TestStatusCountsNothingThatASilentRedisWouldKnow(t *testing.T) {
	f := healthyFacts()
	f.redis, f.stock.States, f.stock.Outboxes = storeOf("Redis", config.NewURL("redis://shop"), fault.New(fault.Unavailable, "gone")), nil, nil
	v := f.view()
	if v.Outbox != nil || v.Lots.Selling != nil || v.Lots.Frozen != nil || *v.Lots.Stopped != 0 || v.Lots.Unknown != 1 {
		t.Errorf("lots %+v, outbox %v", v.Lots, v.Outbox)
	}
}
