package ledger

import (
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestMissingIsWhatTheLedgerHasNotGotWithThatContent(t *testing.T) {
	testkit.Long(t)
	l, _ := newLedger(t)
	r := seeded(t, l, "lot", 10)
	r.hold("ann", 1)
	r.hold("bob", 1)
	r.hold("cid", 1)
	r.hold("dan", 1)
	ev := r.take()
	entry := func(id string, events ...drop.Event) drop.OutboxEntry {
		var body strings.Builder
		body.WriteString("@\tlot\t1\n")
		for _, e := range events {
			body.WriteString(e.Line() + "\n")
		}
		return drop.OutboxEntry{ID: id, Entry: drop.Entry{Installation: l.Installation().ID, Time: events[0].Time, Body: body.String()}}
	}
	forked := ev[1]
	forked.User = "eve"
	garbage := drop.OutboxEntry{ID: "garbage", Entry: drop.Entry{Installation: l.Installation().ID, Body: "nonsense"}}
	strange := ev[1]
	strange.Lot = "never-heard-of"
	nowhere := entry("nowhere", strange)
	nowhere.Body = strings.Replace(nowhere.Body, "lot", "never-heard-of", 1)
	entries := []drop.OutboxEntry{entry("folded", ev[0]), entry("waits", ev[3]), entry("gap", ev[2]), entry("half", ev[3], ev[4]), entry("fork", forked), garbage, nowhere}
	wantMissing := func(want string) {
		t.Helper()
		missing, err := l.Missing(t.Context(), entries)
		var ids []string
		for _, e := range missing {
			ids = append(ids, e.ID)
		}
		if got := strings.Join(ids, " "); err != nil || got != want {
			t.Errorf("missing are %q, want %q: %v", got, want, err)
		}
	}
	wantMissing("folded waits gap half fork garbage nowhere")
	if at, err := l.Standings(t.Context(), []drop.LotID{"lot", "never-heard-of"}); err != nil || len(at) != 1 || at["lot"].Odd || at["lot"].Seq != 0 {
		t.Errorf("standings %+v: %v", at, err)
	}
	apply(t, l, ev[0], ev[1], ev[3])
	wantMissing("gap half fork garbage nowhere")
	if at, err := l.Standings(t.Context(), []drop.LotID{"lot"}); err != nil || at["lot"].Seq != ev[1].Seq || !at["lot"].Odd {
		t.Errorf("standings with a gap %+v: %v", at, err)
	}
	for _, e := range entries[2:] {
		events, poison := e.Decode()
		if _, err := l.Apply(t.Context(), events, poison); err != nil {
			t.Fatal(err)
		}
	}
	wantMissing("")
}
