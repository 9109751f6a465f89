package render

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/term"
)

type eventView struct {
	Kind string    `json:"kind" table:"KIND"`
	At   time.Time `json:"at" table:"AT"`
}

type base struct {
	Lot string `json:"lot" table:"LOT,name"`
}

type state string

type lotView struct {
	base
	Stock   int64             `json:"stock" table:"STOCK"`
	Share   float64           `json:"share" table:"SHARE,wide"`
	Open    bool              `json:"open" table:"OPEN"`
	State   state             `json:"state" table:"STATE"`
	Hold    time.Duration     `json:"hold_seconds" table:"HOLD"`
	Opens   time.Time         `json:"opens" table:"OPENS"`
	Limit   *int              `json:"limit" table:"LIMIT"`
	Tags    []string          `json:"tags" table:"TAGS,wide"`
	Notes   map[string]string `json:"notes"`
	Extra   any               `json:"extra,omitempty"`
	History []eventView       `json:"history" table:"HISTORY"`
	Hidden  string            `json:"-"`
}

func view() lotView {
	v := lotView{Stock: 40, Share: 0.25, Open: true, State: "open", Hold: 5 * time.Minute}
	v.Lot = "truffle-99"
	v.Opens = time.Date(2026, 12, 1, 10, 0, 0, 0, time.FixedZone("CET", 3600))
	return v
}

func print(t *testing.T, o Options, views ...any) string {
	t.Helper()
	var b bytes.Buffer
	p, err := New(context.Background(), &b, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range views {
		if err := p.Print(v); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestJSON(t *testing.T) {
	got := print(t, Options{Format: JSON}, view())
	want := `{
  "lot": "truffle-99",
  "stock": 40,
  "share": 0.25,
  "open": true,
  "state": "open",
  "hold_seconds": 300,
  "opens": "2026-12-01T09:00:00Z",
  "limit": null,
  "tags": [],
  "notes": {},
  "history": []
}
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestEmptyLists(t *testing.T) {
	for format, want := range map[Format]string{JSON: "[]\n", JSONL: "", YAML: "[]\n", Name: "", None: "", Table: "LOT\tSTOCK\tOPEN\tSTATE\tHOLD\tOPENS\tLIMIT\tHISTORY\n"} {
		if got := print(t, Options{Format: format}, []lotView(nil)); got != want {
			t.Errorf("%s: %q", format, got)
		}
	}
	if got := print(t, Options{NoHeaders: true}, []lotView{}); got != "" {
		t.Errorf("no headers: %q", got)
	}
}

func TestJSONLIsALineForEachElementAndCall(t *testing.T) {
	got := print(t, Options{Format: JSONL, Fields: []string{"lot"}}, []lotView{view(), view()}, view())
	if want := strings.Repeat(`{"lot":"truffle-99"}`+"\n", 3); got != want {
		t.Errorf("got %q", got)
	}
}

func TestYAMLSaysTheSameAsJSON(t *testing.T) {
	v := view()
	v.Tags = []string{"yes", "1", "a: b", "x\ny", "<&>"}
	v.Notes = map[string]string{"b": "2", "a": "null"}
	v.Extra = map[string]any{"n": 1, "f": 1.5, "list": []int{1, 2}, "none": nil, "big": uint64(math.MaxUint64), "inf": math.Inf(1)}
	v.History = []eventView{{Kind: "held", At: v.Opens}}
	var fromJSON, fromYAML any
	if err := json.Unmarshal([]byte(print(t, Options{Format: JSON}, v)), &fromJSON); err != nil {
		t.Fatal(err)
	}
	text := print(t, Options{Format: YAML}, v)
	if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(fromYAML)
	if err != nil {
		t.Fatal(err)
	}
	var back any
	if err := json.Unmarshal(again, &back); err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(fromJSON)
	b, _ := json.Marshal(back)
	if !bytes.Equal(a, b) {
		t.Errorf("JSON %s\nYAML %s\n%s", a, b, text)
	}
	if !strings.HasPrefix(text, "lot: truffle-99\nstock: 40\n") {
		t.Errorf("the order of fields is lost:\n%s", text)
	}
}

func TestTableOffATerminal(t *testing.T) {
	got := print(t, Options{}, []lotView{view()})
	want := "LOT\tSTOCK\tOPEN\tSTATE\tHOLD\tOPENS\tLIMIT\tHISTORY\n" +
		"truffle-99\t40\ttrue\topen\t5m\t2026-12-01T09:00:00Z\t\t\n"
	if got != want {
		t.Errorf("got %q", got)
	}
	wide := print(t, Options{Format: Wide, NoHeaders: true}, []*lotView{new(view())})
	if want := "truffle-99\t40\t0.25\ttrue\topen\t5m\t2026-12-01T09:00:00Z\t\t\t\n"; wide != want {
		t.Errorf("wide: %q", wide)
	}
}

func TestTableOnATerminal(t *testing.T) {
	rows := []struct {
		Lot   string `json:"lot" table:"LOT"`
		Stock int    `json:"stock" table:"STOCK"`
	}{{"a", 5}, {"long-name", 12345}, {"", 0}}
	got := print(t, Options{Stream: term.Stream{TTY: true, Width: 80}}, rows)
	want := "LOT        STOCK\n" +
		"a              5\n" +
		"long-name  12345\n" +
		"-              0\n"
	if got != want {
		t.Errorf("got\n%s", got)
	}
	if coloured := print(t, Options{Stream: term.Stream{TTY: true, Colour: true}}, rows); !strings.Contains(coloured, "\x1b[1m") {
		t.Errorf("no colour in %q", coloured)
	}
}

func TestARecordIsListedDownwards(t *testing.T) {
	v := view()
	v.History = []eventView{{"held", v.Opens}}
	got := print(t, Options{}, &v)
	for _, want := range []string{"LOT\ttruffle-99\n", "SHARE\t0.25\n", "\nHISTORY\nKIND\tAT\nheld\t2026-12-01T09:00:00Z\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

func TestNumbersInTablesHaveFourDigitsOrAreWhole(t *testing.T) {
	for number, want := range map[float64]string{491.44694042: "491.4", 98765.4321: "98765", 0.26934: "0.2693", 1500: "1500", 0.00001234567: "0.00001235", -1234.5: "-1234", 0: "0"} {
		type rate struct {
			Rate float64 `json:"rate" table:"RATE"`
		}
		if got := print(t, Options{}, []rate{{number}}); got != "RATE\n"+want+"\n" {
			t.Errorf("%v is %q", number, got)
		}
	}
}

func TestFields(t *testing.T) {
	o := Options{Fields: []string{"notes", "lot"}}
	if got := print(t, o, []lotView{view()}); got != "NOTES\tLOT\n\ttruffle-99\n" {
		t.Errorf("table: %q", got)
	}
	o.Format = JSONL
	if got := print(t, o, view()); got != `{"notes":{},"lot":"truffle-99"}`+"\n" {
		t.Errorf("jsonl: %q", got)
	}
	p, err := New(context.Background(), new(bytes.Buffer), Options{Format: JSON, Fields: []string{"lots"}})
	if err != nil {
		t.Fatal(err)
	}
	err = p.Print([]lotView{})
	if !fault.Is(err, fault.Usage) || !strings.Contains(fault.HintOf(err), "lot, stock, share") {
		t.Errorf("got %v, %s", err, fault.HintOf(err))
	}
}

func TestNames(t *testing.T) {
	if got := print(t, Options{Format: Name}, []lotView{view(), view()}); got != "truffle-99\ntruffle-99\n" {
		t.Errorf("got %q", got)
	}
	p, _ := New(context.Background(), new(bytes.Buffer), Options{Format: Name})
	if err := p.Print(eventView{}); !fault.Is(err, fault.Usage) {
		t.Errorf("a view without a name: %v", err)
	}
}

func TestJQ(t *testing.T) {
	v := view()
	v.Extra = map[string]any{"big": uint64(math.MaxUint64), "n": int64(1) << 53}
	cases := map[string]string{
		".[].lot":                       "truffle-99\n",
		".[0].stock + 1":                "41\n",
		".[] | {lot, open}":             `{"lot":"truffle-99","open":true}` + "\n",
		".[].tags":                      "[]\n",
		".[].extra.big, .[].extra.n":    "18446744073709551615\n9007199254740992\n",
		".[] | select(.stock > 99)":     "",
		"map(.hold_seconds) | add":      "300\n",
		`.[] | "a\tb"`:                  "a\tb\n",
		"1, halt, 2":                    "1\n",
		"[.[].opens | fromdate] | .[0]": "1796115600\n",
	}
	for expression, want := range cases {
		if got := print(t, Options{JQ: expression}, []lotView{v}); got != want {
			t.Errorf("%s: %q", expression, got)
		}
	}
	if _, err := New(context.Background(), nil, Options{JQ: ".["}); !fault.Is(err, fault.Usage) {
		t.Errorf("a broken expression: %v", err)
	}
	p, _ := New(context.Background(), new(bytes.Buffer), Options{JQ: ".lot"})
	if err := p.Print([]lotView{v}); fault.ExitOf(err) != fault.ExitFailed {
		t.Errorf("an expression that does not fit: %v", err)
	}
}

func TestHostileText(t *testing.T) {
	v := view()
	v.Lot = "a\x1b[31mb\tc\nd\u202e\xff"
	for _, tty := range []bool{true, false} {
		got := print(t, Options{Stream: term.Stream{TTY: tty}, NoHeaders: true, Fields: []string{"lot"}}, []lotView{v})
		if strings.ContainsAny(got, "\x1b\t\u202e") || strings.Count(got, "\n") != 1 {
			t.Errorf("terminal %v: %q", tty, got)
		}
	}
	var back struct{ Lot string }
	if err := json.Unmarshal([]byte(print(t, Options{Format: JSON}, v)), &back); err != nil || back.Lot != "a\x1b[31mb\tc\nd\u202e\uFFFD" {
		t.Errorf("%q, %v", back.Lot, err)
	}
}

func TestClosedPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := New(context.Background(), w, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Print(view()); err != nil {
			t.Errorf("a closed pipe is no error, but: %v", err)
		}
	}
	if !p.Closed() {
		t.Error("the printer did not notice")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestAFailedWriteIsAnError(t *testing.T) {
	p, _ := New(context.Background(), brokenWriter{}, Options{Format: JSON})
	if err := p.Print(view()); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("got %v", err)
	}
}

func TestUnknownFormat(t *testing.T) {
	_, err := New(context.Background(), nil, Options{Format: "xml"})
	if !fault.Is(err, fault.Usage) || !strings.Contains(fault.HintOf(err), "table, wide, json") {
		t.Errorf("got %v", err)
	}
}

func TestProgrammersErrors(t *testing.T) {
	type unnamed struct{ Lot string }
	type wrongDuration struct {
		Hold time.Duration `json:"hold"`
	}
	type channel struct {
		C chan int `json:"c"`
	}
	for _, v := range []any{nil, 1, []string{"a"}, unnamed{}, wrongDuration{}, channel{}} {
		p, _ := New(context.Background(), new(bytes.Buffer), Options{Format: JSON})
		if err := p.Print(v); err == nil {
			t.Errorf("%T was printed", v)
		}
	}
}

// Without a header line too, no row may be lost, whatever its place.
func TestEveryRowIsThereOnATerminal(t *testing.T) {
	type row struct {
		A string `json:"a" table:"A"`
		B string `json:"b" table:"B"`
	}
	for n := range 4 {
		var rows []row
		for i := range n {
			rows = append(rows, row{strings.Repeat("x", i+1), "last word"})
		}
		for _, bare := range []bool{true, false} {
			o := Options{NoHeaders: bare, Stream: term.Stream{TTY: true, Width: 40}}
			if got := strings.Count(print(t, o, rows), "last word\n"); got != n {
				t.Errorf("%d rows, no headers %v: %d are there", n, bare, got)
			}
		}
	}
	got := print(t, Options{Stream: term.Stream{TTY: true, Width: 40}}, row{"first", "second"})
	if got != "A  first\nB  second\n" {
		t.Errorf("downwards: %q", got)
	}
}

func TestATableKeepsToTheTerminal(t *testing.T) {
	type row struct {
		Lot     string `json:"lot" table:"LOT"`
		Lag     int    `json:"lag" table:"LAG"`
		Message string `json:"message" table:"MESSAGE"`
		Next    string `json:"next" table:"NEXT"`
	}
	long := strings.TrimSpace(strings.Repeat("evidence of something ", 9))
	rows := []row{{"hat", 0, "", ""}, {"truffle-99", 12, long, "dropctl reconcile truffle-99"}}
	for _, width := range []int{30, 45, 60, 80, 120} {
		for _, bare := range []bool{true, false} {
			got := print(t, Options{NoHeaders: bare, Stream: term.Stream{TTY: true, Width: width}}, rows)
			for line := range strings.SplitSeq(got, "\n") {
				if len(line) > width {
					t.Errorf("width %d: %d columns in %q", width, len(line), line)
				}
			}
			if words := strings.Join(strings.Fields(got), " "); strings.Count(words, "evidence of something") != 9 && width > 30 {
				t.Errorf("width %d: words are broken or lost\n%s", width, got)
			}
		}
	}
	got := print(t, Options{Stream: term.Stream{TTY: true, Width: 80}}, rows)
	if !strings.Contains(got, "\ntruffle-99   12  evidence") || !strings.HasSuffix(got, "  NEXT: dropctl reconcile truffle-99\n") {
		t.Errorf("got\n%s", got)
	}
	if got := print(t, Options{}, rows); !strings.Contains(got, "\t"+long+"\t") {
		t.Errorf("off a terminal every row is one line: %q", got)
	}
}

// limit is a number with a word for people.
type limit int

func (l limit) Cell() string { return map[bool]string{true: "none"}[l == 0] }

func TestWhatSaysNothingIsLeftOutForPeople(t *testing.T) {
	type record struct {
		Lot      string           `json:"lot" table:"LOT"`
		Limit    limit            `json:"limit" table:"LIMIT"`
		Key      string           `json:"key" table:"KEY"`
		Replayed bool             `json:"replayed" table:"REPLAYED,ifset"`
		Refused  map[string]int64 `json:"refused" table:"REFUSED"`
		Rows     []eventView      `json:"rows" table:"ROWS"`
	}
	if got := print(t, Options{}, record{Lot: "hat"}); got != "LOT\that\nLIMIT\tnone\n" {
		t.Errorf("empty: %q", got)
	}
	full := record{Lot: "hat", Replayed: true, Refused: map[string]int64{"sold_out": 7}}
	if got := print(t, Options{}, full); got != "LOT\that\nLIMIT\tnone\nREPLAYED\ttrue\n\nREFUSED\nsold_out\t7\n" {
		t.Errorf("full: %q", got)
	}
	if got := print(t, Options{Fields: []string{"key", "replayed"}}, record{}); got != "KEY\t\nREPLAYED\tfalse\n" {
		t.Errorf("asked for: %q", got)
	}
	for _, tty := range []bool{true, false} {
		if got := print(t, Options{Stream: term.Stream{TTY: tty, Width: 80}}, []struct {
			Key string `json:"key"`
		}{{"a"}}); got != "" {
			t.Errorf("a list without columns: %q", got)
		}
	}
	if got := print(t, Options{Format: JSONL}, record{}); got != `{"lot":"","limit":0,"key":"","replayed":false,"refused":{},"rows":[]}`+"\n" {
		t.Errorf("programs get every field: %q", got)
	}
	tty := Options{Stream: term.Stream{TTY: true, Width: 80}}
	if got := print(t, tty, []record{{}, {}}); strings.Contains(got, "REPLAYED") {
		t.Errorf("a column that says nothing: %q", got)
	}
	if got := print(t, tty, []record{{}, full}); !strings.Contains(got, "REPLAYED") {
		t.Errorf("a column is missing: %q", got)
	}
}

func TestCheckFindsMistakesBeforeAnythingIsDone(t *testing.T) {
	for _, o := range []Options{{Fields: []string{"nope"}}, {Format: Name}, {Format: JSON, JQ: ".", Fields: []string{"nope"}}} {
		p, err := New(context.Background(), new(bytes.Buffer), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Check([]eventView(nil)); !fault.Is(err, fault.Usage) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	p, err := New(context.Background(), new(bytes.Buffer), Options{Format: Name, JQ: ".[].kind", Fields: []string{"kind"}})
	if err != nil || p.Check([]eventView(nil)) != nil {
		t.Errorf("what can be printed is refused: %v", err)
	}
}

func TestNumbersThatAreWhole(t *testing.T) {
	type view struct {
		Hold  time.Duration `json:"hold_seconds"`
		Share float64       `json:"share"`
	}
	if got := print(t, Options{Format: YAML}, view{10 * time.Minute, 0.5}); got != "hold_seconds: 600\nshare: 0.5\n" {
		t.Errorf("got %q", got)
	}
	if got := print(t, Options{Format: JSONL}, view{1234567 * time.Microsecond, 0}); got != `{"hold_seconds":1.235,"share":0}`+"\n" {
		t.Errorf("got %q", got)
	}
}

func TestFieldNames(t *testing.T) {
	if got := strings.Join(Fields(eventView{}), " "); got != "kind at" {
		t.Errorf("got %q", got)
	}
	if Fields(1) != nil {
		t.Error("a number has no fields")
	}
}
