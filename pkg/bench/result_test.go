package bench

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/render"
)

// sample returns a result of which every field is set.
func sample() Result {
	accepted, refused := newHistogram(), newHistogram()
	for i := range int64(1000) {
		_ = accepted.RecordValue(1000 + 10*i)
		_ = refused.RecordValue(100 + i)
	}
	return Result{
		Version: ResultVersion, Target: "engine", Mix: "accept", Loop: OpenLoop, Users: 64, Lots: 2, Stock: 5000, Qty: 3,
		Began: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC), Took: Span(2500 * time.Millisecond), Offered: 1000, Achieved: 800, Dropped: 3, Behind: true,
		Accepted: LatencyOf(accepted), Refused: LatencyOf(refused),
		Seconds: []Second{{1, 400, 1, AnswersOf(accepted), AnswersOf(refused), 2}, {2, 400, 0, AnswersOf(accepted), Answers{}, 0}},
		Errors:  map[fault.Code]int64{fault.Unavailable: 2},
		Redis:   RedisCost{new(Span(9400)), new(0.25), map[string]float64{"evalsha": 0.01, "hset": 0.24}},
		Batch:   &Batch{10, 100, 512, 12.5, false}, Audit: Audit{AuditBroken, 1, 2, 3, []string{"a unit too many"}},
		NotKnown:   map[string]string{"postgres": "gone"},
		Thresholds: []Threshold{{"accept_p99>10ms", new(0.011), "11ms", false}}, Interrupted: true,
	}
}

func text(t *testing.T, r Result) string {
	t.Helper()
	var b bytes.Buffer
	p, err := render.New(t.Context(), &b, render.Options{Format: render.JSON})
	if err == nil {
		err = p.Print(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestResultIsReadAsItWasWritten(t *testing.T) {
	want := sample()
	got, err := ReadResults("run.json", strings.NewReader(text(t, want)+"["+text(t, want)+"]"))
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	for _, r := range got {
		if a, b := text(t, r), text(t, want); a != b {
			t.Errorf("%s\n%s", a, b)
		}
		if !reflect.DeepEqual(r.Seconds, want.Seconds) || !r.Accepted.Histogram.Equals(want.Accepted.Histogram.Histogram) {
			t.Errorf("%+v", r)
		}
	}
}

// TestResultSaysMicroseconds: figures of a quick machine must not be rounded away.
func TestResultSaysMicroseconds(t *testing.T) {
	var doc struct {
		Redis struct {
			CPU float64 `json:"cpu_seconds_per_operation"`
		} `json:"redis"`
		Accepted struct {
			P50 float64 `json:"p50_seconds"`
		} `json:"accepted"`
		Postgres struct {
			CPU *float64 `json:"cpu_seconds_per_operation"`
		} `json:"postgres"`
		Refused Latency `json:"refused"`
	}
	r := sample()
	r.Refused = Latency{}
	if err := json.Unmarshal([]byte(text(t, r)), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Redis.CPU != 9.4e-6 || doc.Accepted.P50 < 0.0059 || doc.Accepted.P50 > 0.0061 || doc.Postgres.CPU != nil || doc.Refused.P50 != nil {
		t.Errorf("%+v", doc)
	}
}

func TestLatenciesMerge(t *testing.T) {
	r := sample()
	both := r.Accepted.Merge(r.Refused)
	p25, _ := both.At(25)
	p75, _ := both.At(75)
	if both.Count != 2000 || p25 > 700*time.Microsecond || p75 < 5*time.Millisecond || p75 > 7*time.Millisecond || *both.Max != *r.Accepted.Max {
		t.Errorf("%+v", both)
	}
	if r.Accepted.Count != 1000 || r.Accepted.Histogram.TotalCount() != 1000 {
		t.Error("merging changed what was merged")
	}
	if none := (Latency{}).Merge(Latency{}); none.P99 != nil || none.Count != 0 {
		t.Errorf("%+v", none)
	}
	if _, ok := (Latency{}).At(99); ok {
		t.Error("a percentile of nothing")
	}
}

// What takes longer than a histogram can tell is not lost: it counts as the longest.
func TestNoAnswerIsTooSlowToBeCounted(t *testing.T) {
	r := newRecorder()
	r.of(0).answer(time.Hour, nil)
	r.of(1).answer(-time.Millisecond, nil) // a clock that was set back
	l := LatencyOf(r.turn().accepted)
	if l.Count != 2 || time.Duration(*l.Max) < longest || time.Duration(*l.Max) > longest+longest/100 {
		t.Errorf("%+v", l)
	}
}

func TestSpanReadsWell(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 940: "940ns", 9412: "9.41µs", 94123: "94.1µs", 941234: "941µs", 9412345: "9.41ms", 94123456: "94.1ms", 941234567: "941ms", 9412345678: "9.41s",
	} {
		if got := Span(d).Cell(); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}

// TestReaderNamesFileAndField: a file that was edited, cut short or is another one altogether.
func TestReaderNamesFileAndField(t *testing.T) {
	whole := text(t, sample())
	change := func(old, new string) string {
		changed := strings.Replace(whole, old, new, 1)
		if changed == whole {
			t.Fatalf("%s is not there", old)
		}
		return changed
	}
	for what, c := range map[string]struct{ file, field, says string }{
		"empty":              {"", "", "it is empty"},
		"cut short":          {whole[:len(whole)/2], "", "no JSON"},
		"not JSON":           {"\n\nhello", "", "line 3 is no JSON"},
		"another document":   {`{"ok": true}`, "version", "no result"},
		"a number":           {"7", "version", "no result"},
		"a later version":    {change(`"version": 1`, `"version": 2`), "version", "reads version 1"},
		"no target":          {change(`"target": "engine"`, `"target": ""`), "target", "it is empty"},
		"users in words":     {change(`"users": 64`, `"users": "many"`), "users", "it is string"},
		"a negative count":   {change(`"dropped": 3`, `"dropped": -3`), "dropped", "cannot be"},
		"a count no sum has": {change(`"dropped": 3`, `"dropped": 9223372036854775807`), "dropped", "cannot be"},
		"an unknown loop":    {change(`"loop": "open"`, `"loop": "figure of eight"`), "loop", "neither"},
		"a time before all":  {change(`"took_seconds": 2.5`, `"took_seconds": -1`), "took_seconds", "out of range"},
		"a broken histogram": {change(`"histogram": "`, `"histogram": "x`), "accepted.histogram", "no HdrHistogram"},
		"another count":      {change(`"count": 1000`, `"count": 1001`), "accepted", "differ"},
		"seconds backwards":  {change(`"second": 2`, `"second": 1`), "seconds[1].second", "follow"},
		"verdict":            {change(`"verdict": "broken"`, `"verdict": "fine"`), "audit.verdict", "none of"},
	} {
		_, err := ReadResults("run.json", strings.NewReader(c.file))
		e := fault.As(err)
		if e == nil || e.Code != fault.Invalid || e.Field != c.field || !strings.Contains(e.Error(), "run.json") || !strings.Contains(e.Error(), c.says) || !strings.Contains(e.Error(), c.field) {
			t.Errorf("%s: %v (%+v)", what, err, e)
		}
	}
}

func FuzzReadResults(f *testing.F) {
	var b bytes.Buffer
	_ = json.NewEncoder(&b).Encode(sample())
	for _, seed := range []string{b.String(), "[" + b.String() + "]", "", "{}", `{"version": 1}`, `{"version": 1, "target": "x", "loop": "open", "accepted": {"count": 1}}`, "[[", "null"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		results, err := ReadResults("run.json", bytes.NewReader(file))
		if (err == nil) == (len(results) == 0) {
			t.Fatalf("%d results and the error %v", len(results), err)
		}
		if err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "run.json")) {
			t.Fatalf("an error of code %s: %v", fault.CodeOf(err), err)
		}
		for _, r := range results {
			again, err := ReadResults("run.json", strings.NewReader(text(t, r)))
			if err != nil || text(t, again[0]) != text(t, r) {
				t.Fatalf("what was read cannot be written and read again: %v\n%s", err, text(t, r))
			}
		}
	})
}
