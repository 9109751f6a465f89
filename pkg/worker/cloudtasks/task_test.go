package cloudtasks

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func entriesOf(bodies ...string) []drop.OutboxEntry {
	entries := make([]drop.OutboxEntry, len(bodies))
	for i, body := range bodies {
		entries[i] = drop.OutboxEntry{ID: time.UnixMilli(int64(1_700_000_000_000+i)).Format("20060102150405.000") + "-0",
			Entry: drop.Entry{Installation: "here", Time: time.UnixMilli(int64(1_700_000_000_000 + i)).UTC(), Body: body}}
	}
	return entries
}

func packedOf(t testing.TB, entries []drop.OutboxEntry, sending int) ([]packed, []drop.OutboxEntry) {
	t.Helper()
	tasks, misfits, err := pack("here", 3, entries, sending)
	if err != nil {
		t.Fatal(err)
	}
	return tasks, misfits
}

func TestWhatIsPackedComesOutAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		bodies := rapid.SliceOfN(rapid.StringN(1, 400, 100_000), 1, 60).Draw(rt, "bodies")
		for i := range bodies {
			bodies[i] = strings.Repeat(bodies[i], rapid.SampledFrom([]int{1, 3, 50, 1000}).Draw(rt, "times"))
		}
		entries := entriesOf(bodies...)
		tasks, misfits := packedOf(t, entries, 1)
		if len(misfits) > 0 && len(misfits[0].Body) < largestTask/6 { // a character takes six at most
			rt.Fatalf("%d bytes did not fit", len(misfits[0].Body))
		}
		var out []drop.OutboxEntry
		for _, p := range tasks {
			got, err := decode(p.body)
			if err != nil {
				rt.Fatal(err)
			}
			if len(p.body) > fullTask+1024 && len(got.Entries) > 1 {
				rt.Fatalf("%d entries in %d bytes", len(got.Entries), len(p.body))
			}
			out = append(out, got.outbox()...)
		}
		out = append(out, misfits...)
		if len(misfits) == 0 && !equal(entries, out) || len(out) != len(entries) {
			rt.Fatalf("%d entries went in, others came out: %d", len(entries), len(out))
		}
	})
}

func equal(a, b []drop.OutboxEntry) bool {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestTasksAreNamedByTheirContentAndSending(t *testing.T) {
	t.Parallel()
	name := func(shard, sending int, bodies ...string) string {
		tasks, _, err := pack("here", shard, entriesOf(bodies...), sending)
		if err != nil || len(tasks) != 1 {
			t.Fatal(tasks, err)
		}
		return tasks[0].name
	}
	first := name(1, 1, "a", "b")
	if name(1, 1, "a", "b") != first {
		t.Error("the same content has two names")
	}
	for what, other := range map[string]string{"another shard": name(2, 1, "a", "b"), "another sending": name(1, 2, "a", "b"), "less": name(1, 1, "a"), "other entries": name(1, 1, "a", "c")} {
		if other == first {
			t.Errorf("%s has the same name", what)
		}
	}
	if len(first) != 64 || strings.Trim(first, "0123456789abcdef") != "" {
		t.Errorf("%s is no name of a task", first)
	}
}

func TestATaskIsClosedAt256KiB(t *testing.T) {
	t.Parallel()
	tasks, misfits := packedOf(t, entriesOf(strings.Repeat("a", 100<<10), strings.Repeat("b", 100<<10), strings.Repeat("c", 100<<10), strings.Repeat("d", 500<<10), "e"), 1)
	if len(misfits) != 0 || len(tasks) != 4 {
		t.Fatalf("%d tasks, %d misfits", len(tasks), len(misfits))
	}
	for i, full := range []bool{true, true, true, false} { // a task is as full as it gets if the next entry does not fit in
		if tasks[i].full != full {
			t.Errorf("task %d: full %v", i, tasks[i].full)
		}
	}
}

func TestWhatNoTaskCanCarryIsSetApart(t *testing.T) {
	t.Parallel()
	entries := entriesOf("fine", strings.Repeat("x", largestTask), "not \xff text", "", "other", "no time", "fine too")
	entries[4].Installation = "elsewhere"
	entries[5].Time = time.Time{}
	tasks, misfits := packedOf(t, entries, 1)
	if len(tasks) != 1 || len(misfits) != 5 || !equal(misfits, entries[1:6]) {
		t.Errorf("%d tasks, set apart: %d", len(tasks), len(misfits))
	}
}

// The largest entry that a script writes: a batch of holds whose users and keys are as long as they may be, and of
// characters that JSON writes as two.
func TestTheLargestEntryOfAScriptFits(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("a", drop.AttemptLen) + "\t" + strings.Repeat(`"`, 128) + "\t" + strings.Repeat(`\`, 255) + "\t" + strings.Repeat(`"`, 128) + "\n"
	tasks, misfits := packedOf(t, entriesOf("@\tlot\t1\n+\t512\n"+strings.Repeat(line, 512)), 1)
	if len(tasks) != 1 || len(misfits) != 0 || len(tasks[0].body) > largestTask {
		t.Errorf("%d tasks, %d misfits", len(tasks), len(misfits))
	}
}

func TestOnlyTasksAreRead(t *testing.T) {
	t.Parallel()
	tasks, _ := packedOf(t, entriesOf("a\tb"), 1)
	good := string(tasks[0].body)
	if _, err := decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for what, body := range map[string]string{
		"nothing": "", "no object": "[]", "null": "null", "half": good[:len(good)/2], "two": good + good, "something behind": good + " x",
		"an unknown field":  strings.Replace(good, `{"inst`, `{"more":1,"inst`, 1),
		"no installation":   strings.Replace(good, `"here"`, `""`, 1),
		"an old schema":     strings.Replace(good, `"schema":"1"`, `"schema":"0"`, 1),
		"a wrong shard":     strings.Replace(good, `"shard":3`, `"shard":-3`, 1),
		"no sending":        strings.Replace(good, `"sending":1`, `"sending":0`, 1),
		"another type":      strings.Replace(good, `"sending":1`, `"sending":"1"`, 1),
		"no entries":        good[:strings.Index(good, `[`)] + `[]}`,
		"an empty entry":    good[:strings.Index(good, `[`)] + `[{}]}`,
		"no text":           strings.Replace(good, "a", "\xff", 1),
		"half a character":  strings.Replace(good, `a\tb`, "a\xc3", 1),
		"a time too late":   strings.Replace(good, `"time":1`, `"time":900000`, 1),
		"a time before all": strings.Replace(good, `"time":1`, `"time":-1`, 1),
	} {
		if _, err := decode([]byte(body)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	later := strings.Replace(strings.Replace(good, `"schema":"1"`, `"schema":"2"`, 1), `{"inst`, `{"more":1,"inst`, 1)
	if _, err := decode([]byte(later)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("of a newer version: %v", err)
	}
}

// Whatever is read comes from an outbox: packed again it is read as the same, and nothing but errors of two codes arises.
func FuzzDecode(f *testing.F) {
	tasks, _ := packedOf(f, entriesOf("@\tlot\t1\nx\th\t\"<&>\u2028", "b"), 2)
	f.Add(tasks[0].body)
	f.Add(bytes.Replace(tasks[0].body, []byte("here"), []byte("h\\u0065re"), 1))
	f.Add([]byte(`{"schema":"2","installation":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := decode(body)
		if err != nil {
			if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Unavailable) {
				t.Fatal(err)
			}
			return
		}
		again, misfits, err := pack(got.Installation, got.Shard, got.outbox(), got.Sending)
		if err != nil {
			t.Fatal(err)
		}
		var out []drop.OutboxEntry
		for _, p := range again {
			back, err := decode(p.body)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, back.outbox()...)
		}
		if len(misfits) == 0 && !equal(out, got.outbox()) {
			t.Fatal("packed again it is another")
		}
	})
}
