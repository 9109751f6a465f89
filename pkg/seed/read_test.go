package seed

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func read(t *testing.T, format Format, text string, maps ...string) ([]Row, error) {
	t.Helper()
	m, err := ParseMap(maps)
	if err != nil {
		t.Fatal(err)
	}
	return Read(strings.NewReader(text), Input{Name: "lots." + string(format), Format: format, Map: m})
}

// TestProblems gives every kind of bad input and the exact places that must be named.
func TestProblems(t *testing.T) {
	const head = "lot,stock\n"
	long := strings.Repeat("9", 30)
	tests := []struct {
		name   string
		format Format
		text   string
		want   []string // "line:column: part of the message"
	}{
		{"empty", CSV, "", []string{"1:1: no lot"}},
		{"blank", CSV, "\n\n", []string{"1:1: no lot"}},
		{"header only", CSV, head, []string{"1:1: no lot"}},
		{"not UTF-8", CSV, head + "a,1\nb\xffc,2\n", []string{"3:2: not UTF-8"}},
		{"UTF-16", CSV, "\xff\xfel\x00o\x00t\x00", []string{"1:1: not UTF-8"}},
		{"fraction", CSV, head + "a,1.5\n", []string{`2:3: stock "1.5" is not a whole number`}},
		{"exponent", CSV, head + "a,1e3\n", []string{"2:3: not a whole number"}},
		{"plus", CSV, head + "a,+5\n", []string{"2:3: not a whole number"}},
		{"minus", CSV, head + "a,-5\n", []string{"2:3: not a whole number"}},
		{"space", CSV, head + "a,3 \n", []string{"2:3: not a whole number"}},
		{"NaN", CSV, head + "a,NaN\n", []string{"2:3: not a whole number"}},
		{"thousands", CSV, head + "a,\"1,000\"\n", []string{"2:3: not a whole number"}},
		{"leading zero", CSV, head + "a,010\n", []string{"2:3: not a whole number"}},
		{"other digits", CSV, head + "a,٣\n", []string{"2:3: not a whole number"}},
		{"2^63", CSV, head + "a,9223372036854775808\n", []string{"2:3: out of range"}},
		{"huge", CSV, head + "a," + long + "\n", []string{"2:3: out of range"}},
		{"past the bound", CSV, head + "a,1000000001\n", []string{"2:3: out of range"}},
		{"empty stock", CSV, head + "a,\n", []string{"2:3: stock is empty"}},
		{"empty lot", CSV, head + ",1\n", []string{"2:1: lot is empty"}},
		{"bad ids", CSV, head + "a b,1\n-c,2\nä,3\na:b:c,4\n", []string{"2:1: not a lot id", "3:1: not a lot id", "4:1: not a lot id", "5:1: not a lot id"}},
		{"columns count characters", CSV, "name,lot,stock\nTöpfe,ä,x\n", []string{"2:7: not a lot id", "2:9: not a whole number"}},
		{"twice", CSV, head + "a,1\nb,2\n\na,3\n", []string{"5:1: lot a stands in lines 2 and 5"}},
		{"ragged long", CSV, head + "a,1,2\n", []string{"2:5: the line has 3 cells, the header has 2"}},
		{"ragged short", CSV, "lot,stock,limit\na,1\n", []string{"2:3: the line has 2 cells, the header has 3"}},
		{"unknown column", CSV, "lot,stock,opening\na,1,2\n", []string{"1:11: unknown column"}},
		{"two headers wrong", CSV, "Lot,stok\na,1\n", []string{"1:1: unknown column", "1:5: unknown column"}},
		{"column twice", CSV, "lot,stock,lot\na,1,b\n", []string{"1:11: the column for lot stands twice"}},
		{"column missing", CSV, "lot,limit\na,1\n", []string{`1:1: no column "stock"`}},
		{"nameless column", CSV, "lot,stock,\na,1,\n", []string{"1:11: unknown column"}},
		{"open quote", CSV, head + "a,1\n\"b,2\n", []string{"4:1: malformed"}},
		{"quote within", CSV, head + "a\"b,2\n", []string{"2:2: malformed"}},
		{"problems before a syntax error", CSV, head + "a,x\nb\"c,2\n", []string{"2:3: not a whole number", "3:2: malformed"}},
		{"plain duration", CSV, "lot,stock,hold\na,1,300\n", []string{`2:5: hold "300" is not a duration`}},
		{"odd duration", CSV, "lot,stock,hold\na,1,5 m\n", []string{"2:5: not a duration"}},
		{"negative duration", CSV, "lot,stock,hold\na,1,-5m\n", []string{"2:5: out of range"}},
		{"cap below hold", CSV, "lot,stock,max_hold,hold\na,1,1m,2m\n", []string{"2:5: shorter than hold"}},
		{"window", CSV, "lot,stock,opens,closes\na,1,2026-12-01T10:00:00Z,2026-12-01T10:00:00Z\n", []string{"2:26: closes is not after opens"}},
		{"status", CSV, "lot,stock,status\na,1,opened\n", []string{"2:5: not a status"}},
		{"late", CSV, "lot,stock,late\na,1,never\n", []string{"2:5: not a policy"}},
		{"name", CSV, "lot,stock,name\na,1,\"x\ny\"\nb,x,ok\n", []string{"2:5: not printable", "4:3: not a whole number"}},

		{"JSON empty", JSON, " ", []string{"1:1: no lot"}},
		{"JSON empty list", JSON, "[]", []string{"1:1: no lot"}},
		{"JSON syntax", JSON, "[\n  {\"lot\": \"a\",, }\n]", []string{"2:15: malformed"}},
		{"JSON cut", JSON, "[{\"lot\": \"a\"\n", []string{"1:13: malformed"}},
		{"JSON trailing comma", JSON, "[{\"lot\":\"a\",\"stock\":1},]", []string{"1:24: malformed"}},
		{"JSON second value", JSON, "[{\"lot\":\"a\",\"stock\":1}]\n]", []string{"2:1: malformed"}},
		{"JSON numbers", JSON, "[{\"lot\":\"a\",\"stock\":1.0},\n{\"lot\":\"b\",\"stock\":1e3},\n{\"lot\":\"c\",\"stock\": -1},{\"lot\":\"d\",\"stock\":9223372036854775808}]",
			[]string{"1:21: not a whole number", "2:20: not a whole number", "3:21: not a whole number", "3:44: out of range"}},
		{"JSON key twice", JSON, "[{\"lot\":\"a\",\"stock\":1,\n\"stock\":2}]", []string{"2:1: \"stock\" stands twice in one lot, first in line 1"}},
		{"JSON unknown key", JSON, "[{\"lot\":\"a\",\"stock\":1,\"limits\":2}]", []string{"1:23: unknown field"}},
		{"JSON unknown key and more", JSON, "[{\"lot\":\"a b\",\"stock\":1,\"limits\":2,\"hold\":\"5\"},\n{\"lot\":\"c\",\"stok\":3}]",
			[]string{"1:9: not a lot id", "1:25: unknown field", "1:43: not a duration", "2:1: stock is missing", "2:12: unknown field"}},
		{"JSON number as text", JSON, "[{\"lot\":\"a\",\"stock\":\"5\",\"limit\":\"\"}]", []string{"1:21: text, not a number"}},
		{"JSON twice in a line", JSON, "[{\"lot\":\"a\",\"stock\":1},{\"stock\":1,\"lot\":\"a\"}]", []string{"1:41: lot a stands twice in line 1, in columns 9 and 41"}},
		{"JSON nested", JSON, "[{\"lot\":{\"a\":[1,{}]},\"stock\":[2],\"limit\":true}]", []string{"1:9: neither text nor a number", "1:30: neither text nor a number", "1:42: neither text nor a number"}},
		{"JSON not lots", JSON, "[1, [{}], null]", []string{"1:2: a lot is expected", "1:5: a lot is expected", "1:11: a lot is expected"}},
		{"JSON text", JSON, "\"a\"", []string{"1:1: a lot is expected"}},
		{"JSON missing", JSON, "{\"lots\":[{\"lot\":\"a\"}]}", []string{"1:10: stock is missing"}},
		{"JSON null", JSON, "[{\"lot\":\"a\",\"stock\":null}]", []string{"1:21: stock is empty"}},
		{"JSON plain duration", JSON, "[{\"lot\":\"a\",\"stock\":1,\"hold\":300}]", []string{"1:30: not a duration"}},
		{"JSON wrapper with more", JSON, "{\"lots\":[],\"stock\":3}", []string{"1:1: other members"}},
		{"JSON lines twice", JSON, "{\"lot\":\"a\",\"stock\":1}\n{\"lot\":\"a\",\"stock\":2}\n", []string{"2:8: lot a stands in lines 1 and 2"}},

		{"YAML empty", YAML, "# nothing\n", []string{"1:1: no lot"}},
		{"YAML null", YAML, "---\n...\n", []string{"1:1: no lot"}},
		{"YAML syntax", YAML, "- lot: a\n  stock: 1\n - lot: b\n", []string{"2:3: malformed"}},
		{"YAML tab", YAML, "- lot: a\n\tstock: 1\n", []string{"2:2: malformed"}},
		{"YAML numbers", YAML, "- {lot: a, stock: 1.5}\n- {lot: b, stock: 0x10}\n- {lot: c, stock: 1_000}\n- {lot: d, stock: .nan}\n",
			[]string{"1:19: not a whole number", "2:19: not a whole number", "3:19: not a whole number", "4:19: not a whole number"}},
		{"YAML key twice", YAML, "- lot: a\n  stock: 1\n  stock: 2\n", []string{"3:3: \"stock\" stands twice"}},
		{"YAML alias", YAML, "- &x {lot: a, stock: 1}\n- *x\n- lot: b\n  stock: &n 3\n- lot: c\n  stock: *n\n", []string{"2:3: a lot is expected", "6:10: neither text nor a number"}},
		{"YAML merge", YAML, "- lot: a\n  stock: 1\n  <<: {limit: 3}\n", []string{"3:3: unknown field"}},
		{"YAML number as text", YAML, "- {lot: a, stock: \"5\", hold: \"5m\"}\n- {lot: b, stock: !!str 5}\n- {lot: a, stok: 1}\n",
			[]string{"1:19: text, not a number", "3:3: stock is missing", "3:9: lot a stands in lines 1 and 3", "3:12: unknown field"}},
		{"YAML missing", YAML, "lots:\n  - stock: 1\n", []string{"2:5: lot is missing"}},
		{"YAML twice", YAML, "- {lot: a, stock: 1}\n- {lot: a, stock: 1}\n", []string{"2:9: lot a stands in lines 1 and 2"}},
		{"YAML time", YAML, "- {lot: a, stock: 1, opens: 2026-12-01}\n", []string{"1:29: not a time"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rows, err := read(t, test.format, test.text)
			if rows != nil || !fault.Is(err, fault.Invalid) {
				t.Fatalf("read %v, %v; want no rows and code invalid", rows, err)
			}
			problems := fault.ProblemsOf(err)
			if len(problems) != len(test.want) {
				t.Fatalf("problems %+v, want %d", problems, len(test.want))
			}
			for i, want := range test.want {
				where, part, _ := strings.Cut(want, ": ")
				p := problems[i]
				if got := fmt.Sprintf("%d:%d", p.Line, p.Column); got != where || !strings.Contains(p.Message, part) {
					t.Errorf("problem %d is %s: %s; want %s", i+1, got, p.Message, want)
				}
				if p.Hint == "" {
					t.Errorf("%s has no hint", p.Message)
				}
			}
			if !strings.HasPrefix(err.Error(), "lots."+string(test.format)+":"+strings.SplitN(test.want[0], ": ", 2)[0]+": ") {
				t.Errorf("the error %q does not start with the first place", err)
			}
		})
	}
}

func TestProblemsAreCapped(t *testing.T) {
	text := "lot,stock\n" + strings.Repeat("a b,x\n", 100)
	_, err := read(t, CSV, text)
	if n := len(fault.ProblemsOf(err)); n != fault.MostProblems {
		t.Errorf("%d problems, want %d", n, fault.MostProblems)
	}
}

func TestSizeLimits(t *testing.T) {
	if _, err := Read(strings.NewReader(strings.Repeat(" ", MaxBytes+1)), Input{Name: "x", Format: CSV}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a file that is too large gives %v", err)
	}
	var b strings.Builder
	b.WriteString("lot,stock\n")
	for i := range MaxLots + 1 {
		fmt.Fprintf(&b, "l%d,1\n", i)
	}
	_, err := read(t, CSV, b.String())
	if problems := fault.ProblemsOf(err); len(problems) != 1 || problems[0].Line != MaxLots+2 {
		t.Errorf("a lot too many gives %v", err)
	}
}

// TestOneLongLine reads a file whose lots all stand in one line: finding places in it must not cost the
// more the longer it is, or this test would take minutes.
func TestOneLongLine(t *testing.T) {
	var b strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&b, `{"lot":"l%d","stock":1,"opens":"2026-12-01 10:00 Europe/Rome"} `, i)
	}
	if rows, err := read(t, JSON, b.String()); err != nil || len(rows) != 20_000 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

var allFields = drop.Definition{Lot: "g:a", Stock: 250, Limit: 2, Hold: 90 * time.Second, MaxHold: time.Hour, Late: drop.Reclaim, Status: drop.Paused, Name: "Trüffel, \"weiß\"",
	Opens: time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC), Closes: time.Date(2026, 12, 1, 17, 30, 0, 0, time.UTC)}

// TestFormatsAgree reads the same two lots in every notation.
func TestFormatsAgree(t *testing.T) {
	texts := map[string]struct {
		format Format
		text   string
	}{
		"CSV with BOM and CRLF": {CSV, "\ufefflot,stock,limit,hold,max_hold,opens,closes,late,status,name\r\n" +
			"g:a,250,2,90s,1h,2026-12-01 10:00 Europe/Rome,2026-12-01T18:30:00+01:00,reclaim,paused,\"Trüffel, \"\"weiß\"\"\"\r\n007,0,,,,,,,,\r\n"},
		"JSON list": {JSON, `[{"lot":"g:a","stock":250,"limit":2,"hold":"90s","max_hold":"1h","opens":"2026-12-01 10:00:00 Europe/Rome","closes":"2026-12-01T17:30:00Z",
			"late":"reclaim","status":"paused","name":"Tr\u00fcffel, \"weiß\""},{"lot":"007","stock":0,"limit":null,"hold":"","max_hold":null,"opens":"","closes":null,"late":"","status":null,"name":""}]`},
		"JSON lots": {JSON, `{"lots":[{"lot":"g:a","stock":250,"limit":2,"hold":"90s","max_hold":"1h","opens":"2026-12-01T10:00 Europe/Rome","closes":"2026-12-01T17:30:00Z",
			"late":"reclaim","status":"paused","name":"Trüffel, \"weiß\""}]} {"lot":"007","stock":0,"limit":null,"hold":"","max_hold":null,"opens":"","closes":null,"late":"","status":null,"name":""}`},
		"YAML": {YAML, "lots:\n- lot: g:a\n  stock: 250\n  limit: 2\n  hold: 90s\n  max_hold: 1h\n  opens: 2026-12-01 10:00 Europe/Rome\n  closes: 2026-12-01T18:30:00+01:00\n" +
			"  late: reclaim\n  status: paused\n  name: 'Trüffel, \"weiß\"'\n- {lot: 007, stock: 0, limit: , hold: '', max_hold: ~, opens: null, closes: , late: , status: , name: }\n"},
	}
	for name, in := range texts {
		rows, err := read(t, in.format, in.text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(rows) != 2 || !rows[0].Definition.Equal(allFields) || !rows[1].Definition.Equal(drop.Definition{Lot: "007"}) {
			t.Errorf("%s reads as %+v", name, rows)
		}
		for _, r := range rows {
			for f, given := range r.given {
				if !given {
					t.Errorf("%s: %s counts as not named", name, field(f))
				}
			}
		}
	}
}

func TestMapping(t *testing.T) {
	rows, err := read(t, CSV, "SKU,Available,status,colour,name\nA1,5,ACTIVE,red,Hat\n", "lot=SKU", "stock=Available", "status=")
	if err != nil || len(rows) != 1 || rows[0].Definition.Lot != "A1" || rows[0].Definition.Stock != 5 || rows[0].Definition.Name != "Hat" || rows[0].given[fieldStatus] {
		t.Errorf("mapped columns read as %+v, %v", rows, err)
	}
	rows, err = read(t, JSON, `[{"SKU":"A1","stock":5,"tags":["x",{"y":1}]}]`, "lot=SKU")
	if err != nil || len(rows) != 1 || rows[0].Definition.Lot != "A1" {
		t.Errorf("mapped keys read as %+v, %v", rows, err)
	}
	if _, err := read(t, CSV, "SKU,stock,x\nA1,5,3\n", "lot=SKU", "limit=Max"); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "Max") {
		t.Errorf("a mapped column that is not there gives %v", err)
	}
	for _, bad := range [][]string{{"lot"}, {"sku=lot"}, {"lot=A", "lot=B"}, {"lot=A", "stock=A"}, {"lot="}} {
		if _, err := ParseMap(bad); !fault.Is(err, fault.Usage) {
			t.Errorf("ParseMap(%q) = %v, want code usage", bad, err)
		}
	}
}

func TestNearestNameIsSuggested(t *testing.T) {
	_, err := read(t, CSV, "lot,stok\na,1\n")
	if hint := fault.HintOf(err); !strings.Contains(hint, "stock") {
		t.Errorf("the hint is %q", hint)
	}
	_, err = read(t, CSV, "lot;stock\na;1\n")
	if hint := fault.HintOf(err); !strings.Contains(hint, "comma") {
		t.Errorf("the hint is %q", hint)
	}
}

func TestTimes(t *testing.T) {
	for text, want := range map[string]string{
		"2026-12-01T10:00:00Z":                   "2026-12-01T10:00:00Z",
		"2026-12-01T10:00:00.25+01:00":           "2026-12-01T09:00:00.25Z",
		"2026-12-01 10:00 Europe/Rome":           "2026-12-01T09:00:00Z",
		"2026-07-01 10:00:30 Europe/Rome":        "2026-07-01T08:00:30Z",
		"2026-07-01T10:00 America/New_York":      "2026-07-01T14:00:00Z",
		"2026-07-01 10:00 UTC":                   "2026-07-01T10:00:00Z",
		"2026-03-29 01:59 Europe/Rome":           "2026-03-29T00:59:00Z",
		"2026-03-29 03:00 Europe/Rome":           "2026-03-29T01:00:00Z",
		"2026-10-25 01:59 Europe/Rome":           "2026-10-24T23:59:00Z",
		"2026-10-25 03:00 Europe/Rome":           "2026-10-25T02:00:00Z",
		"2026-03-29 02:00 Europe/Rome":           "put forward",
		"2026-03-29 02:59:59 Europe/Rome":        "put forward",
		"2026-10-25 02:00 Europe/Rome":           "twice",
		"2026-10-25 02:59:59 Europe/Rome":        "twice",
		"2026-04-05 01:45 Australia/Lord_Howe":   "twice", // half an hour
		"2026-10-04 02:15 Australia/Lord_Howe":   "put forward",
		"2011-12-30 12:00 Pacific/Apia":          "put forward", // a whole day
		"2026-12-01 10:00":                       "no time zone",
		"2026-12-01T10:00:00":                    "not a time",
		"2026-12-01":                             "not a time",
		"2026-12-01 Europe/Rome":                 "not a time",
		"2026-12-01 9:00 Europe/Rome":            "not a time",
		"2026-02-30 10:00 Europe/Rome":           "not a time",
		"2026-12-01 25:00 Europe/Rome":           "not a time",
		"2026-12-01T24:00:00Z":                   "not a time",
		"2026-12-01 10:00 Mars/Olympus":          "unknown time zone",
		"2026-12-01 10:00 Local":                 "unknown time zone",
		"2026-12-01 10:00 ":                      "unknown time zone",
		"2026-12-01 10:00 ../../../etc/hostname": "unknown time zone",
		"2026-12-01T10:00:00.0001Z":              "finer than a millisecond",
		"tomorrow":                               "not a time",
		"0001-01-01T00:00:00Z":                   "year 1",
		"0001-01-01T01:00:00+01:00":              "year 1",
		"0001-01-01 00:00 UTC":                   "year 1",
	} {
		got, err := (&zones{}).bound("opens", text)
		switch {
		case err == nil && got.Format(time.RFC3339Nano) != want:
			t.Errorf("%q is %s, want %s", text, got.Format(time.RFC3339Nano), want)
		case err != nil && !strings.Contains(err.Error(), want):
			t.Errorf("%q gives %q, want %s", text, err, want)
		}
	}
	_, err := (&zones{}).parse("opens", "2026-10-25 02:30 Europe/Rome")
	if hint := fault.HintOf(err); hint != "write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00" {
		t.Errorf("the hint of a time that happens twice is %q", hint)
	}
}

func TestFlags(t *testing.T) {
	row, err := Flags(map[string]string{"lot": "a", "stock": "5", "limit": ""})
	if err != nil || row.Definition.Stock != 5 || !row.given[fieldLimit] || row.given[fieldHold] {
		t.Errorf("flags read as %+v, %v", row, err)
	}
	_, err = Flags(map[string]string{"lot": "a", "stock": "x", "hold": "5"})
	if n := len(fault.ProblemsOf(err)); n != 2 || !strings.HasPrefix(err.Error(), "stock") && !strings.HasPrefix(err.Error(), "hold") {
		t.Errorf("bad flags give %v with %d problems", err, n)
	}
	if _, err := Flags(map[string]string{"lot": "a"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("flags without a stock give %v", err)
	}
}

func TestFormatOf(t *testing.T) {
	for in, want := range map[[2]string]Format{{"a.csv", ""}: CSV, {"a.JSON", ""}: JSON, {"a.jsonl", ""}: JSON, {"a.yml", ""}: YAML, {"-", "csv"}: CSV, {"a.csv", "json"}: JSON,
		{"-", ""}: "", {"a.txt", ""}: "", {"a.csv", "xml"}: ""} {
		if got, err := FormatOf(in[0], in[1]); got != want || (err == nil) != (want != "") {
			t.Errorf("FormatOf(%q) = %q, %v", in, got, err)
		}
	}
}

func FuzzCSV(f *testing.F) {
	f.Add("lot,stock\na,1\n")
	f.Add("\ufefflot,stock,name,opens\r\na,1,\"x\"\"\",2026-12-01 10:00 Europe/Rome\r\n")
	f.Add("lot,stock\n\"a\n,1")
	f.Fuzz(func(t *testing.T, text string) { fuzz(t, CSV, text) })
}

func FuzzJSON(f *testing.F) {
	f.Add(`[{"lot":"a","stock":1}]`)
	f.Add(`{"lots":[{"lot":"a","stock":1,"hold":"5m"}]} {"lot":"b","stock":2,"x":[{}]}`)
	f.Add(`[{"lot":{"a":[null]},"stock":1e9}`)
	f.Fuzz(func(t *testing.T, text string) { fuzz(t, JSON, text) })
}

func FuzzYAML(f *testing.F) {
	f.Add("- {lot: a, stock: 1}\n")
	f.Add("lots:\n- lot: a\n  stock: &x 1\n  name: !!str true\n---\nlot: b\nstock: *x\n")
	f.Add("? [a]\n: {b: |\n  c}\n")
	f.Fuzz(func(t *testing.T, text string) { fuzz(t, YAML, text) })
}

// fuzz checks that no input panics, that a refusal names places within the file, and that what is
// accepted is a valid lot which reads the same when written in any format.
func fuzz(t *testing.T, format Format, text string) {
	rows, err := Read(strings.NewReader(text), Input{Name: "x", Format: format})
	if err != nil {
		// YAML has more line breaks than one, and may name the end of the file.
		lines := 2 + strings.Count(text, "\n")
		if format == YAML {
			lines += strings.Count(text, "\r") + strings.Count(text, "\u0085") + strings.Count(text, "\u2028") + strings.Count(text, "\u2029")
		}
		for _, p := range fault.ProblemsOf(err) {
			if p.Line < 1 || p.Line > lines || p.Column < 1 {
				t.Fatalf("%q: the place %d:%d of %q is not in the file", text, p.Line, p.Column, p.Message)
			}
		}
		return
	}
	for i := range rows {
		if err := rows[i].Definition.WithDefaults().Check(); err != nil {
			t.Fatalf("%q is accepted as %+v: %v", text, rows[i], err)
		}
	}
	for _, write := range []struct {
		format Format
		text   string
	}{{CSV, writeCSV(rows)}, {JSON, writeJSON(rows)}, {YAML, writeJSON(rows)}} {
		again, err := Read(strings.NewReader(write.text), Input{Name: "y", Format: write.format})
		if err != nil || len(again) != len(rows) {
			t.Fatalf("%q reads as %+v, written as %q reads as %+v, %v", text, rows, write.text, again, err)
		}
		for i := range rows {
			if !reflect.DeepEqual(again[i].Definition, rows[i].Definition.WithDefaults()) {
				t.Fatalf("%+v comes back as %+v", rows[i].Definition.WithDefaults(), again[i].Definition)
			}
		}
	}
}
