package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"pgregory.net/rapid"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func parsed[B any](t testing.TB, parse func(*object) B, text string) (B, *fault.Error) {
	t.Helper()
	o := &object{data: []byte(text)}
	b := parse(o)
	if o.err == nil {
		return b, nil
	}
	return b, fault.As(o.err)
}

func TestABodyIsReadOneWayOnly(t *testing.T) {
	deep := strings.Repeat(`{"user":`, 30_000)
	for _, c := range []struct{ body, field string }{
		{``, "body"}, {` `, "body"}, {`null`, "body"}, {`[]`, "body"}, {`"user"`, "body"}, {`{`, "body"}, {`{"user"`, "body"}, {`{"user":`, "user"}, {`{"user":"a"`, "body"},
		{`{"user":"a",}`, "body"}, {`{,"user":"a"}`, "body"}, {`{"user":"a" "qty":1}`, "body"}, {`{user:"a"}`, "body"}, {`{'user':'a'}`, "body"},
		{`{"user":"a"} x`, "body"}, {`{"user":"a"}{}`, "body"}, {"\ufeff{\"user\":\"a\"}", "body"}, {"{\"user\":\"a\"}\x00", "body"},
		{`{}`, "user"}, {`{"user":""}`, "user"}, {`{"user":null}`, "user"}, {`{"user":1}`, "user"}, {`{"user":{}}`, "user"}, {`{"user":["a"]}`, "user"}, {deep, "user"},
		{`{"user":"a","user":"b"}`, "user"}, {`{"user":"a","\u0075ser":"b"}`, "user"}, {`{"User":"a"}`, "User"}, {`{"user":"a","x":1}`, "x"},
		{"{\"user\":\"\xff\"}", "user"}, {"{\"user\":\"\xed\xa0\x80\"}", "user"}, {`{"user":"\ud800"}`, "user"}, {`{"user":"\ud800\u0041"}`, "user"}, {`{"user":"\udc00"}`, "user"},
		{"{\"user\":\"a\nb\"}", "user"}, {`{"user":"\x41"}`, "user"}, {`{"user":"\u00g0"}`, "user"}, {`{"user":"a\"}`, "user"}, {"{\"us\xff\":1}", "body"},
		{`{"user":"a","qty":"3"}`, "qty"}, {`{"user":"a","qty":1.0}`, "qty"}, {`{"user":"a","qty":1.5}`, "qty"}, {`{"user":"a","qty":1e3}`, "qty"}, {`{"user":"a","qty":1E0}`, "qty"},
		{`{"user":"a","qty":0}`, "qty"}, {`{"user":"a","qty":-5}`, "qty"}, {`{"user":"a","qty":2147483648}`, "qty"}, {`{"user":"a","qty":9223372036854775808}`, "qty"},
		{`{"user":"a","qty":1e308}`, "qty"}, {`{"user":"a","qty":1000000001}`, "qty"}, {`{"user":"a","qty":01}`, "qty"}, {`{"user":"a","qty":+1}`, "qty"}, {`{"user":"a","qty":0x1}`, "qty"}, {`{"user":"a","qty":1x}`, "body"},
		{`{"user":"a","qty":null}`, "qty"}, {`{"user":"a","qty":true}`, "qty"}, {`{"user":"a","qty":-}`, "qty"}, {`{"user":"a","qty":}`, "qty"}, {`{"user":"a","qty":1 1}`, "body"},
		{`{"user":"a","hold_seconds":0}`, "hold_seconds"}, {`{"user":"a","hold_seconds":-1}`, "hold_seconds"}, {`{"user":"a","hold_seconds":1e308}`, "hold_seconds"},
		{`{"user":"a","hold_seconds":1e999}`, "hold_seconds"}, {`{"user":"a","hold_seconds":1.00005}`, "hold_seconds"}, {`{"user":"a","hold_seconds":"5m"}`, "hold_seconds"},
		{`{"user":"a","hold_seconds":NaN}`, "hold_seconds"}, {`{"user":"a","hold_seconds":1.}`, "hold_seconds"}, {`{"user":"a","hold_seconds":.5}`, "hold_seconds"},
		{`{"user":"a","replace":1}`, "replace"}, {`{"user":"a","replace":"true"}`, "replace"}, {`{"user":"a","replace":True}`, "replace"}, {`{"user":"a","replace":truex}`, "body"},
	} {
		_, err := parsed(t, parseReserve, c.body)
		if err == nil || err.Code != fault.Invalid || err.Field != c.field || err.Hint == "" {
			t.Errorf("%.60q: %+v, not a fault of %s", c.body, err, c.field)
		}
	}
	for body, want := range map[string]client.ReserveBody{
		`{"user":"ada"}`: {User: "ada", Qty: 1},
		" {\t\"qty\" : 1000000000 ,\r\n\"user\":\"a\",\"hold_seconds\":1.5e1,\"replace\":false } ": {User: "a", Qty: 1e9, Hold: 15},
		`{"user":"\ud83d\ude00\u00e4\"\\\/\u0041","replace":true}`:                                 {User: "😀ä\"\\/A", Qty: 1, Replace: true},
		`{"\u0071ty":3,"user":"日本"}`:                                                               {User: "日本", Qty: 3},
	} {
		if got, err := parsed(t, parseReserve, body); err != nil || got != want {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
}

func TestBodiesOfOtherCallsAreReadAsStrictly(t *testing.T) {
	refused := func(name string, err *fault.Error, field string) {
		t.Helper()
		if err == nil || err.Code != fault.Invalid || err.Field != field {
			t.Errorf("%s: %+v, not a fault of %s", name, err, field)
		}
	}
	for body, field := range map[string]string{`{"qty":0}`: "qty", `{"late":""}`: "late", `{"ack":"redis"}`: "ack", `{"payment":"a\tb"}`: "payment", `{"reason":1}`: "reason", `{"x":1}`: "x"} {
		_, err := parsed(t, parseConfirm, body)
		refused(body, err, field)
	}
	for body, field := range map[string]string{`{}`: "expect", `{"expect":5}`: "by", `{"by":1}`: "expect", `{"by":1,"to":2,"expect":5}`: "to", `{"by":0,"expect":5}`: "by",
		`{"by":1.0,"expect":5}`: "by", `{"to":-1,"expect":5}`: "to"} {
		_, err := parsed(t, parseAdjust, body)
		refused(body, err, field)
	}
	for body, field := range map[string]string{`{"stock":null}`: "stock", `{"opens":"tomorrow"}`: "opens", `{"opens":5}`: "opens", `{"closes":"0001-01-01T00:00:00Z"}`: "closes", `{"status":"Open"}`: "status", `{"name":"a\u0000"}`: "name", `{"hold_seconds":0.5}`: "hold_seconds"} {
		_, err := parsed(t, parseLot, body)
		refused(body, err, field)
	}
	_, err := parsed(t, parseExtend, `{}`)
	refused("extend by nothing", err, "by_seconds")
	_, err = parsed(t, parseRefund, `{"total":0}`)
	refused("refund of nothing", err, "total")
	lot, err := parsed(t, parseLot, `{"opens":null,"closes":"2026-12-01T10:00:00+02:00"}`)
	if err != nil || lot.Opens == nil || !lot.Opens.IsZero() || !lot.Closes.Equal(time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)) {
		t.Errorf("no bound and a bound: %+v, %v", lot, err)
	}
}

// What the hand reads, encoding/json must read the same; and what encoding/json writes, the hand must read.
func FuzzReserveBody(f *testing.F) {
	for _, body := range []string{`{"user":"ada","qty":2,"hold_seconds":300,"replace":true}`, `{"user":"\ud83d\ude00","qty":1e3}`, `{"user":"a","user":"b"}`, `{"user":"a"}x`, `{"user":"\u0000","qty":-0}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o := &object{data: body}
		got := parseReserve(o)
		oracle := json.NewDecoder(bytes.NewReader(body))
		oracle.DisallowUnknownFields()
		want := client.ReserveBody{Qty: 1}
		theirs := oracle.Decode(&want)
		if theirs == nil {
			if _, more := oracle.Token(); !errors.Is(more, io.EOF) {
				theirs = errors.New("it goes on")
			}
		}
		if o.err == nil && (theirs != nil || got != want || !utf8.ValidString(got.User)) {
			t.Fatalf("%q: read %+v, encoding/json %+v, %v", body, got, want, theirs)
		}
		if theirs != nil || want.User == "" || want.Qty < 1 || want.Qty > 1e9 || want.Hold != 0 {
			return
		}
		plain, _ := json.Marshal(want)
		if again, err := parsed(t, parseReserve, string(plain)); err != nil || again != want {
			t.Fatalf("%s: read %+v, %v", plain, again, err)
		}
	})
}

// huma reads the same operation by its document on a second API. Both must accept the same bodies, as the same request,
// and refuse the others; only where one text could be read in two ways is the hand stricter.
func TestTheHandReadsWhatTheDocumentSays(t *testing.T) {
	type input struct{ Body client.ReserveBody }
	type output struct{ Body client.ReserveBody }
	mux := http.NewServeMux()
	second := humago.New(mux, huma.DefaultConfig("second", "1"))
	huma.Register(second, huma.Operation{Method: http.MethodPost, Path: "/reserve", OperationID: "reserve"}, func(_ context.Context, in *input) (*output, error) {
		return &output{in.Body}, nil
	})
	values := map[string][]string{
		"user":         {`"ada"`, `"ä"`, `""`, `5`, `null`, `{}`, `[]`, `"` + strings.Repeat("x", 129) + `"`, `true`},
		"qty":          {`1`, `2`, `0`, `-1`, `"3"`, `1.5`, `1000000001`, `9223372036854775808`, `true`, `[1]`},
		"hold_seconds": {`300`, `1.5`, `0`, `-1`, `"5m"`, `2592001`, `1e300`, `{}`},
		"replace":      {`true`, `false`, `"true"`, `1`},
		"x":            {`1`},
	}
	rapid.Check(t, func(rt *rapid.T) {
		var members []string
		for _, name := range []string{"user", "qty", "hold_seconds", "replace", "x"} {
			rare := name != "user"
			if rapid.IntRange(0, 9).Draw(rt, name+" is there") < map[bool]int{true: 4, false: 9}[rare] && (name != "x" || rapid.IntRange(0, 4).Draw(rt, "stranger") == 0) {
				members = append(members, `"`+name+`":`+rapid.SampledFrom(values[name]).Draw(rt, name))
			}
		}
		body := "{" + strings.Join(members, ",") + "}"
		req := httptest.NewRequest(http.MethodPost, "/reserve", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, req)
		got, err := parsed(t, parseReserve, body)
		if err == nil {
			err = fault.As(drop.CheckText("user", got.User, true))
		}
		if (rec.Code == http.StatusOK) != (err == nil) {
			rt.Fatalf("%s: huma answers %d %s, the hand %v", body, rec.Code, rec.Body, err)
		}
		var theirs client.ReserveBody
		if err == nil && (json.Unmarshal(rec.Body.Bytes(), &theirs) != nil || theirs != got) {
			rt.Fatalf("%s: huma reads %s, the hand %+v", body, rec.Body, got)
		}
	})
}

func genTime(rt *rapid.T, name string) *time.Time {
	if rapid.Bool().Draw(rt, "no "+name) {
		return nil
	}
	return moment(time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(rt, name)))
}

func TestAnswersByHandAreWhatJSONWouldBe(t *testing.T) {
	same := func(rt *rapid.T, hand []byte, value any) {
		rt.Helper()
		plain, err := json.Marshal(value)
		if err != nil {
			rt.Fatal(err)
		}
		var got, want any
		if err := json.Unmarshal(hand, &got); err != nil {
			rt.Fatalf("%v: %s", err, hand)
		}
		_ = json.Unmarshal(plain, &want)
		if !reflect.DeepEqual(got, want) {
			rt.Fatalf("by hand\n%s\nby encoding/json\n%s", hand, plain)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		text := func(name string) string { return rapid.String().Draw(rt, name) }
		v := client.Reservation{ID: text("id"), Lot: text("lot"), User: text("user"), State: text("state"), Qty: rapid.Int64().Draw(rt, "qty"), Refunded: rapid.Int64().Draw(rt, "refunded"),
			Deadline: genTime(rt, "deadline"), Payment: text("payment"), Key: text("key"), Created: genTime(rt, "created"), Seq: rapid.Int64().Draw(rt, "seq"), Replayed: rapid.Bool().Draw(rt, "replayed")}
		if rapid.Bool().Draw(rt, "left") {
			v.Left, v.Remaining = new(float64(rapid.IntRange(0, 1e9).Draw(rt, "ms"))/1000), new(rapid.Int64().Draw(rt, "remaining"))
		}
		same(rt, appendReservation(nil, v), v)
		p := client.Problem{Type: text("type"), Title: text("title"), Status: rapid.IntRange(400, 599).Draw(rt, "status"), Detail: text("detail"), Instance: text("instance"), Code: text("code"),
			Hint: text("hint"), Field: text("field"), Facts: map[string]any{text("fact"): text("value"), "n": int64(5), "f": 1.5, "at": exampleTime, "no": nil, "yes": true}}
		if rapid.Bool().Draw(rt, "may take") {
			p.Remaining = v.Remaining
		}
		same(rt, appendProblem(nil, p), p)
	})
	bad := "\xff\xfe\x80<&>\u2028\x7f\x1b"
	same2 := appendText(nil, bad)
	var back string
	if err := json.Unmarshal(same2, &back); err != nil || back != strings.ToValidUTF8(strings.ReplaceAll(bad, "\xff\xfe\x80", "\ufffd\ufffd\ufffd"), "\ufffd") {
		t.Errorf("invalid text becomes %q, %v", back, err)
	}
}

func TestCallersAreToldNoHostAndNoSecret(t *testing.T) {
	inner := errors.New("dial tcp 10.1.2.3:6379: password hunter2")
	for _, code := range slicesOfCodes() {
		p := problemOf(fault.Wrap(code, inner, "redis at 10.1.2.3:6379").WithHint("look at 10.1.2.3"), fault.Lookup(code))
		text := string(appendProblem(nil, p))
		if strings.Contains(text, "hunter2") || p.Status >= 500 && opaque[code] && strings.Contains(text, "10.1.2.3") {
			t.Errorf("%s tells %s", code, text)
		}
	}
	for _, code := range []fault.Code{fault.Unavailable, fault.OutcomeUnknown, fault.Foreign, fault.NotMigrated, fault.OutOfMemory, fault.Failed, fault.InvalidConfig} {
		if !opaque[code] {
			t.Errorf("%s shows its own text", code)
		}
	}
}

func slicesOfCodes() (codes []fault.Code) {
	all := map[fault.Code]bool{}
	for _, e := range fault.All() {
		if e.HTTP != 0 {
			all[e.Code] = true
		}
	}
	for code := range maps.Keys(all) {
		codes = append(codes, code)
	}
	return codes
}

func TestRetryAfterIsSpreadAndWhole(t *testing.T) {
	seen := map[int64]bool{}
	for range 200 {
		after := retryAfter(fault.New(fault.Overloaded, "full"))
		if after < 1 || after > 3 {
			t.Fatalf("ask again after %d s", after)
		}
		seen[after] = true
	}
	if len(seen) < 2 {
		t.Error("all come back at once")
	}
	if after := retryAfter(fault.New(fault.RateLimited, "slow down").With("retry_after_seconds", 6.2)); after != 7 {
		t.Errorf("a rate limit of 6.2 s says %d", after)
	}
	if after := retryAfter(fault.New(fault.Unavailable, "gone").With("retry_after_seconds", 1e12)); after > 3600 {
		t.Errorf("ask again after %d s", after)
	}
}

// What passes as a gateway's call can be recorded, and says the same to any other reader.
func FuzzPaymentBody(f *testing.F) {
	const id = "hat~aaaaaaaaaaaaaaaaaaaaaaaaaa~1"
	for _, body := range []string{`{"reservation":"` + id + `","attempt":1,"status":"approved","reference":"ch_1"}`, `{"reservation":"` + id + `","attempt":2,"status":"declined","reason":"\ud800"}`,
		`{"reservation":"` + id + `","attempt":1e0,"status":"pending"}`, `{"reservation":"` + id + `","attempt":1,"attempt":2,"status":"pending"}`, `null`,
		`{"reservation":"` + id + `","attempt":1,"status":"pending","fee":{"parts":[1,{}]},"net":null}`, `{"reservation":"` + id + `","attempt":1,"status":"pending","\u017ftatus":"approved"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		body, read, p, err := readPayment(data)
		if err != nil {
			return
		}
		var theirs client.PaymentBody
		if e := json.Unmarshal(data, &theirs); e != nil || theirs != body {
			t.Errorf("%q: we read %+v, others %+v, %v", data, body, theirs, e)
		}
		if p.Check() != nil || read.String() != body.Reservation || body.Attempt < 1 {
			t.Errorf("%q passed as %+v", data, body)
		}
	})
}

// Who is refused for a body that is too large, or waits to be asked for it, is told at once: net/http sees to that, as long as the body
// that the request has in the end is its own. With any other it first waits for what may never come, as long as a body may take.
func TestTheServersOwnBodyStaysWithTheRequest(t *testing.T) {
	req := httptest.NewRequest(http.MethodPost, "/v1/lots/truffle/reservations", strings.NewReader("{}"))
	own := req.Body
	New(Options{}).observed(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), req)
	if req.Body != own {
		t.Errorf("its body is a %T now", req.Body)
	}
}
