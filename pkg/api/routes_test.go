package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dropctl/dropctl/pkg/api"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestTheDocumentIsWhole(t *testing.T) {
	text, err := api.New(api.Options{}).Document()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI    string `json:"openapi"`
		Paths      map[string]map[string]json.RawMessage
		Components struct{ Schemas map[string]json.RawMessage }
	}
	if err := json.Unmarshal(text, &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("version %q, %v", doc.OpenAPI, err)
	}
	for _, ref := range regexp.MustCompile(`"\$ref":"([^"]*)"`).FindAllStringSubmatch(string(text), -1) {
		if doc.Components.Schemas[strings.TrimPrefix(ref[1], "#/components/schemas/")] == nil {
			t.Errorf("%s leads nowhere", ref[1])
		}
	}
	ids := map[string]bool{}
	for path, item := range api.Describe().Paths {
		for method, op := range map[string]*huma.Operation{"GET": item.Get, "POST": item.Post, "PUT": item.Put} {
			if op == nil {
				continue
			}
			if ids[op.OperationID] || op.OperationID == "" || op.Summary == "" || len(op.Responses) < 2 {
				t.Errorf("%s %s: the operation %q is not whole", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
			for _, name := range regexp.MustCompile(`\{([a-z]+)\}`).FindAllStringSubmatch(path, -1) {
				if !slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.In == "path" && p.Name == name[1] && p.Required }) {
					t.Errorf("%s %s does not describe %s", method, path, name[1])
				}
			}
			if op.RequestBody != nil {
				checkExamples(t, method+" "+path, op.RequestBody.Content)
			}
			for status, resp := range op.Responses {
				if resp.Description == "" {
					t.Errorf("%s %s does not say what %s means", method, path, status)
				}
				checkExamples(t, method+" "+path+" "+status, resp.Content)
			}
		}
	}
}

func checkExamples(t *testing.T, where string, content map[string]*huma.MediaType) {
	t.Helper()
	for kind, media := range content {
		examples := map[string]any{"example": media.Example}
		if media.Example == nil {
			delete(examples, "example")
		}
		for name, e := range media.Examples {
			examples[name] = e.Value
		}
		if len(examples) == 0 {
			t.Errorf("%s has no example of %s", where, kind)
		}
		for name, example := range examples {
			text, err := json.Marshal(example)
			var v any
			if err != nil || json.Unmarshal(text, &v) != nil {
				t.Errorf("%s, %s: %v", where, name, err)
			}
			if bad := violations(media.Schema, v); bad != "" {
				t.Errorf("%s, %s is not as its schema: %s", where, name, bad)
			}
		}
	}
}

// A quantity that is none must not reach the stock, however it is written.
func TestQuantitiesThatAreNoneChangeNothing(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 5})
	before := s.lot(t, "truffle")
	for _, qty := range []string{`-5`, `0`, `1.5`, `1.0`, `"3"`, `2147483648`, `9223372036854775808`, `1e308`, `1e0`, `null`, `true`, `[1]`, `{"a":1}`, `-1,"qty":1`} {
		ans := s.call(t, "POST", "/v1/lots/truffle/reservations", `{"user":"ada","qty":`+qty+`}`, headers{"Idempotency-Key": "k"})
		if p := refused(t, http.StatusBadRequest, "invalid", ans); p.Field != "qty" {
			t.Errorf("qty %s is a fault of %q", qty, p.Field)
		}
	}
	r := s.reserve(t, "truffle", "ada", "k", 2)
	for _, c := range []struct{ call, body, field string }{{"confirm", `{"qty":-1}`, "qty"}, {"release", `{"keep":1.0}`, "keep"}, {"refund", `{"total":"1"}`, "total"},
		{"extend", `{"by_seconds":-5}`, "by_seconds"}, {"extend", `{}`, "by_seconds"}} {
		ans := s.call(t, "POST", "/v1/reservations/"+r.ID+"/"+c.call, c.body)
		if p := refused(t, http.StatusBadRequest, "invalid", ans); p.Field != c.field {
			t.Errorf("%s %s is a fault of %q", c.call, c.body, p.Field)
		}
	}
	if now := s.lot(t, "truffle"); now.Available != before.Available-2 || now.Capacity != before.Capacity {
		t.Errorf("the lot has %+v", now.Totals)
	}
}

// The same key is another attempt for another tenant, and none at all for another call; a body that was corrected after a
// refusal is a fresh attempt, and after a success another request.
func TestAKeyNamesOneAttemptOfOneTenant(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 10, Limit: 2})
	red, blue := s.tenant(t, "red"), s.tenant(t, "blue")
	path := "/v1/lots/truffle/reservations"
	key := headers{"Idempotency-Key": "order-1"}
	first := s.call(t, "POST", path, `{"user":"ada","qty":3}`, key, red)
	if p := refused(t, http.StatusForbidden, "customer_limit", first); p.Remaining == nil || *p.Remaining != 2 {
		t.Errorf("the refusal says %s", first.body)
	}
	mine := into[client.Reservation](t, http.StatusCreated, s.call(t, "POST", path, `{"user":"ada","qty":2}`, key, red))
	if p := refused(t, http.StatusUnprocessableEntity, "key_reused", s.call(t, "POST", path, `{"user":"ada","qty":1}`, key, red)); p.Field != "Idempotency-Key" {
		t.Errorf("a fault of %q", p.Field)
	}
	theirs := into[client.Reservation](t, http.StatusCreated, s.call(t, "POST", path, `{"user":"ada","qty":1}`, key, blue))
	if mine.ID == theirs.ID || mine.User != "ada" || theirs.User != "ada" {
		t.Fatalf("%+v and %+v", mine, theirs)
	}
	released := into[client.Reservation](t, http.StatusOK, s.call(t, "POST", "/v1/reservations/"+mine.ID+"/release", `{"keep":1}`, key, red))
	if released.ID != mine.ID || released.Qty != 1 {
		t.Fatalf("released %+v", released)
	}
}

func TestATenantSeesItsOwnReservationsOnly(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t)
	s.load(t, drop.Definition{Lot: "truffle", Stock: 10})
	red, blue := s.tenant(t, "red"), s.tenant(t, "blue")
	make1 := func(user string, h headers) client.Reservation {
		return into[client.Reservation](t, http.StatusCreated, s.call(t, "POST", "/v1/lots/truffle/reservations", client.ReserveBody{User: user}, headers{"Idempotency-Key": "k"}, h))
	}
	mine, other := make1("ada", red), make1("bob", blue)
	gone := strings.Replace(other.ID, "~", "~aa", 1)
	gone = gone[:len("truffle~")+26] + gone[len("truffle~")+28:]
	var texts []string
	for _, id := range []string{other.ID, gone} {
		for _, c := range []struct{ method, call, body string }{{"GET", "", ""}, {"POST", "/confirm", "{}"}, {"POST", "/release", "{}"}, {"POST", "/extend", `{"by_seconds":60}`}, {"POST", "/refund", "{}"}} {
			ans := s.call(t, c.method, "/v1/reservations/"+id+c.call, c.body, red)
			p := refused(t, http.StatusNotFound, "not_found", ans)
			texts = append(texts, strings.ReplaceAll(p.Detail+p.Hint+fmt.Sprint(p.Facts, p.Remaining), id, "ID"))
		}
	}
	if len(slices.Compact(slices.Sorted(slices.Values(texts)))) != 1 {
		t.Errorf("another tenant's reservation can be told from none: %q", texts)
	}
	// Ended, it no longer names its user in Redis; the ledger knows.
	into[client.Reservation](t, http.StatusOK, s.call(t, "POST", "/v1/reservations/"+other.ID+"/release", nil, blue))
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		ans := s.call(t, "GET", "/v1/reservations?user=bob&state=released", nil, blue)
		page := into[client.Page[client.Reservation]](t, http.StatusOK, ans)
		return len(page.Items) == 1 && page.Items[0].User == "bob", string(ans.body)
	})
	refused(t, http.StatusNotFound, "not_found", s.call(t, "POST", "/v1/reservations/"+other.ID+"/release", nil, red))
	again := into[client.Reservation](t, http.StatusOK, s.call(t, "POST", "/v1/reservations/"+other.ID+"/release", nil, blue))
	if !again.Replayed {
		t.Error("released twice")
	}
	page := into[client.Page[client.Reservation]](t, http.StatusOK, s.call(t, "GET", "/v1/reservations", nil, red))
	if len(page.Items) != 1 || page.Items[0].ID != mine.ID || page.Items[0].User != "ada" {
		t.Errorf("red sees %+v", page.Items)
	}
}

func TestListsComeInPages(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t)
	for i := range 7 {
		s.load(t, drop.Definition{Lot: drop.LotID(fmt.Sprintf("lot-%d", i)), Stock: 10})
	}
	for i := range 5 {
		s.reserve(t, "lot-1", fmt.Sprintf("user-%d", i), "k", 1)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		page := into[client.Page[client.Reservation]](t, http.StatusOK, s.call(t, "GET", "/v1/reservations?lot=lot-1", nil))
		return len(page.Items) == 5 && page.Next == "", fmt.Sprint(page)
	})
	lots := pages(t, s, "/v1/lots?limit=3", func(l client.Lot) string { return l.Lot })
	if want := []string{"lot-0", "lot-1", "lot-2", "lot-3", "lot-4", "lot-5", "lot-6"}; !slices.Equal(lots, want) {
		t.Errorf("the lots are %q", lots)
	}
	users := pages(t, s, "/v1/reservations?lot=lot-1&state=held,confirmed&limit=2", func(r client.Reservation) string { return r.User })
	slices.Sort(users)
	if want := []string{"user-0", "user-1", "user-2", "user-3", "user-4"}; !slices.Equal(users, want) {
		t.Errorf("the users are %q", users)
	}
	for query, field := range map[string]string{"limit=0": "limit", "limit=1001": "limit", "limit=x": "limit", "cursor=x": "cursor", "state=open": "state", "lot=..": "lot", "user=%00": "user", "x=1": "x",
		"lot=a&lot=b": "lot", "user=%zz": "query"} {
		if p := refused(t, http.StatusBadRequest, "invalid", s.call(t, "GET", "/v1/reservations?"+query, nil)); p.Field != field {
			t.Errorf("%s is a fault of %q", query, p.Field)
		}
	}
}

func pages[T any](t *testing.T, s *site, path string, name func(T) string) (names []string) {
	for cursor := ""; ; {
		page := into[client.Page[T]](t, http.StatusOK, s.call(t, "GET", path+"&cursor="+url.QueryEscape(cursor), nil))
		for _, item := range page.Items {
			names = append(names, name(item))
		}
		if cursor = page.Next; cursor == "" || len(names) > 100 {
			return names
		}
	}
}

// Whoever lost the answer asks again; the call has acted once.
func TestRepeatedCallsActOnce(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 20, Hold: 5 * time.Minute, MaxHold: time.Hour})
	r := s.reserve(t, "truffle", "ada", "k", 5)
	path := "/v1/reservations/" + r.ID
	var deadline time.Time
	for _, c := range []struct {
		call string
		body any
		want func(drop.LotState) bool
	}{
		{"/extend", client.ExtendBody{By: 1800}, func(s drop.LotState) bool { return s.Held == 5 }},
		{"/release", client.ReleaseBody{Keep: 3}, func(s drop.LotState) bool { return s.Held == 3 && s.Available == 17 }},
		{"/confirm", client.ConfirmBody{Payment: "pay", Ack: "stock"}, func(s drop.LotState) bool { return s.Sold == 3 && s.Held == 0 }},
		{"/refund", client.RefundBody{Total: new(int64(2))}, func(s drop.LotState) bool { return s.Sold == 1 && s.Available == 19 }},
	} {
		for try := range 3 {
			got := into[client.Reservation](t, http.StatusOK, s.call(t, "POST", path+c.call, c.body))
			if got.Replayed != (try > 0) && c.call != "/extend" { // time goes on between two extensions
				t.Errorf("%s, try %d: replayed %t", c.call, try, got.Replayed)
			}
			if c.call == "/extend" {
				if try > 0 && got.Deadline.Sub(deadline) > 10*time.Second {
					t.Errorf("extended twice: %v after %v", got.Deadline, deadline)
				}
				deadline = *got.Deadline
			}
		}
		if st := s.lot(t, "truffle"); !c.want(st) {
			t.Errorf("after %s the lot has %+v", c.call, st.Totals)
		}
	}
	for try := range 3 {
		ans := s.call(t, "POST", "/v1/lots/truffle/adjust", client.AdjustBody{By: new(int64(5)), Expect: 20})
		if l := into[client.Lot](t, http.StatusOK, ans); l.Capacity != 25 || (ans.header.Get("Idempotency-Replayed") == "true") != (try > 0) {
			t.Errorf("try %d: %s", try, ans.body)
		}
	}
	if p := refused(t, http.StatusConflict, "conflict", s.call(t, "POST", "/v1/lots/truffle/adjust", client.AdjustBody{By: new(int64(7)), Expect: 20})); p.Field != "expect" {
		t.Errorf("a fault of %q", p.Field)
	}
}

func TestLotsAreCreatedAndChanged(t *testing.T) {
	t.Parallel()
	s := newAPI(t)
	opens := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	body := client.LotBody{Stock: new(int64(10)), Limit: new(int64(2)), Opens: &opens, Name: new("White truffle")}
	made := s.call(t, "PUT", "/v1/lots/alba:truffle", body)
	if l := into[client.Lot](t, http.StatusCreated, made); l.Capacity != 10 || l.Limit != 2 || l.Name != "White truffle" || !l.Opens.Equal(opens) || made.header.Get("Location") != "/v1/lots/alba:truffle" {
		t.Fatalf("made %s", made.body)
	}
	body.Stock = new(int64(12))
	if l := into[client.Lot](t, http.StatusOK, s.call(t, "PUT", "/v1/lots/alba:truffle", body)); l.Capacity != 12 {
		t.Errorf("changed to %+v", l)
	}
	if ans := s.call(t, "PUT", "/v1/lots/alba:truffle", body); ans.status != http.StatusOK || ans.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("put as it is: %d, replayed %q", ans.status, ans.header.Get("Idempotency-Replayed"))
	}
	changed := s.call(t, "PUT", "/v1/lots/alba:truffle", `{"limit":3,"opens":null}`)
	if l := into[client.Lot](t, http.StatusOK, changed); l.Capacity != 12 || l.Limit != 3 || l.Opens != nil || l.Name != "White truffle" || changed.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("changed in part: %s", changed.body)
	}
	if ans := s.call(t, "PUT", "/v1/lots/alba:truffle", `{}`); ans.status != http.StatusOK || ans.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("a change of nothing: %d %s", ans.status, ans.body)
	}
	into[client.Lot](t, http.StatusOK, s.call(t, "PUT", "/v1/lots/alba:truffle", `{"hold_seconds":61.5,"max_hold_seconds":90,"late":"reclaim","closes":"2099-01-01T00:00:00Z"}`))
	if l := s.lot(t, "alba:truffle"); l.Hold != 61500*time.Millisecond || l.MaxHold != 90*time.Second || l.Late != drop.Reclaim || l.Closes.Year() != 2099 {
		t.Errorf("changed to %+v", l)
	}
	if p := refused(t, http.StatusBadRequest, "invalid", s.call(t, "PUT", "/v1/lots/alba:truffle", `{"max_hold_seconds":30}`)); p.Field != "max_hold_seconds" && p.Field != "hold_seconds" {
		t.Errorf("a hold longer than the longest is a fault of %q", p.Field)
	}
	if p := refused(t, http.StatusBadRequest, "invalid", s.call(t, "PUT", "/v1/lots/new", `{"limit":3}`)); p.Field != "stock" {
		t.Errorf("a lot without stock is a fault of %q", p.Field)
	}
	if p := refused(t, http.StatusBadRequest, "invalid", s.call(t, "PUT", "/v1/lots/new", `{"stock":3,"hold_seconds":60,"max_hold_seconds":30}`)); p.Field != "max_hold_seconds" {
		t.Errorf("a hold longer than the longest is a fault of %q", p.Field)
	}
	for _, c := range []struct{ call, status string }{{"pause", "paused"}, {"pause", "paused"}, {"open", "open"}, {"close", "closed"}, {"open", "open"}} {
		if l := into[client.Lot](t, http.StatusOK, s.call(t, "POST", "/v1/lots/alba:truffle/"+c.call, client.StatusBody{Reason: "test"})); l.Status != c.status {
			t.Errorf("after %s it is %s", c.call, l.Status)
		}
	}
	if ans := s.call(t, "POST", "/v1/lots/alba:truffle/open", nil); ans.header.Get("Idempotency-Replayed") != "true" {
		t.Error("opened twice")
	}
	into[client.Lot](t, http.StatusOK, s.call(t, "GET", "/v1/lots/alba:truffle", nil))
	for _, c := range []struct{ method, path, body string }{{"GET", "", ""}, {"GET", "/events", ""}, {"POST", "/pause", "{}"}, {"POST", "/open", "{}"}, {"POST", "/adjust", `{"to":1,"expect":2}`}, {"POST", "/reservations", `{"user":"a"}`}} {
		refused(t, http.StatusNotFound, "not_found", s.call(t, c.method, "/v1/lots/nowhere"+c.path, c.body, headers{"Idempotency-Key": "k"}))
	}
}

func TestWhatIsNoCallIsAnsweredCleanly(t *testing.T) {
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 5})
	key := headers{"Idempotency-Key": "k"}
	path := "/v1/lots/truffle/reservations"
	refused(t, http.StatusBadRequest, "invalid", s.call(t, "POST", path, `{"user":"ada"}`))
	refused(t, http.StatusUnsupportedMediaType, "unsupported_media_type", s.call(t, "POST", path, `user=ada`, key, headers{"Content-Type": "application/x-www-form-urlencoded"}))
	refused(t, http.StatusUnsupportedMediaType, "unsupported_media_type", s.call(t, "POST", path, `{"user":"ada"}`, key, headers{"-Content-Type": ""}))
	refused(t, http.StatusUnsupportedMediaType, "unsupported_media_type", s.call(t, "POST", path, `{"user":"ada"}`, key, headers{"Content-Type": "application/json; charset=utf-16"}))
	refused(t, http.StatusUnsupportedMediaType, "unsupported_media_type", s.call(t, "POST", path, `{"user":"ada"}`, key, headers{"Content-Encoding": "gzip"}))
	refused(t, http.StatusRequestEntityTooLarge, "too_large", s.call(t, "POST", path, `{"user":"`+strings.Repeat("a", 70_000)+`"}`, key))
	refused(t, http.StatusBadRequest, "invalid", s.call(t, "POST", path, `{"user":"ada`, key))
	for _, c := range []struct{ method, path, body string }{{"POST", path + "?qty=2", `{"user":"ada"}`}, {"PUT", "/v1/lots/truffle?stock=9", "{}"}, {"GET", "/v1/lots/truffle?user=ada", ""},
		{"GET", "/v1/lots/truffle/events?from=1", ""}, {"GET", "/v1/lots?state=open", ""}, {"GET", "/v1/lots?limit=1&limit=2", ""}, {"GET", "/v1/lots?a;b", ""}} {
		refused(t, http.StatusBadRequest, "invalid", s.call(t, c.method, c.path, c.body, key))
	}
	for _, lot := range []string{"..%2f..", "a%2Fb", "%2e%2e", "tr%C3%BCffel", "a%00b", strings.Repeat("x", 200), "-a", "a:b:c", "%20", "a%0a"} {
		ans := s.call(t, "POST", "/v1/lots/"+lot+"/reservations", `{"user":"ada"}`, key)
		if ans.status != http.StatusBadRequest && ans.status != http.StatusNotFound {
			t.Errorf("lot %s: %d", lot, ans.status)
		}
	}
	for _, c := range []struct{ method, path, allow string }{{"DELETE", path, "POST"}, {"GET", path, "POST"}, {"OPTIONS", "/v1/lots/truffle", "GET, PUT, HEAD"}, {"PATCH", "/v1/lots", "GET, HEAD"}, {"POST", "/readyz", "GET, HEAD"}} {
		ans := s.call(t, c.method, c.path, nil)
		refused(t, http.StatusMethodNotAllowed, "method_not_allowed", ans)
		if got := ans.header.Get("Allow"); got != c.allow {
			t.Errorf("%s %s allows %q", c.method, c.path, got)
		}
	}
	for _, p := range []string{"/", "/v1", "/v1/lots/", "/v2/lots", "/v1//lots", "/v1/lots/../lots", "/v1/./lots", "/admin", "/v1/lots/truffle/"} {
		ans := s.call(t, "GET", p, nil)
		refused(t, http.StatusNotFound, "not_found", ans)
	}
	if ans := s.call(t, "HEAD", "/v1/lots/truffle/events", nil); ans.status != http.StatusOK {
		t.Errorf("HEAD of a stream: %d", ans.status)
	}
	if ans := s.call(t, "HEAD", "/v1/lots/truffle", nil); ans.status != http.StatusOK || len(ans.body) != 0 {
		t.Errorf("HEAD: %d %q", ans.status, ans.body)
	}
	if st := s.lot(t, "truffle"); st.Held != 0 || st.Seq != 1 {
		t.Errorf("the lot changed: %+v", st)
	}
}

func TestOddConnectionsLeaveTheServerWell(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := newAPI(t, func(o *setup) { o.noWorker = true })
	s.load(t, drop.Definition{Lot: "truffle", Stock: 5})
	body := `{"user":"ada"}`
	head := "POST /v1/lots/truffle/reservations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	whole := fmt.Sprintf("%sIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n%s", head, len(body), body)
	old := fmt.Sprintf("POST /v1/lots/truffle/reservations HTTP/1.0\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	for _, c := range []struct {
		name, sent string
		want       []int
	}{
		{"pipelined", whole + whole + whole, []int{201, 200, 200}},
		{"10 MB", head + "Idempotency-Key: k\r\nContent-Length: 10485760\r\n\r\n" + strings.Repeat(" ", 10<<20), []int{413}},
		{"10 MB in a chunk", head + "Idempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\nA00000\r\n" + strings.Repeat(" ", 10<<20) + "\r\n0\r\n\r\n", []int{413}},
		{"HTTP/1.0", old, []int{200}},
		{"header bomb", head + "X-Bomb: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", []int{431}},
		{"many headers", head + strings.Repeat("X-Many: y\r\n", 5000) + "\r\n", []int{431}},
		{"half a body", head + "Idempotency-Key: k\r\nContent-Length: 100\r\n\r\n{", []int{400}},
		{"two lengths", head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", []int{400}},
		{"length and chunks", head + "Idempotency-Key: k2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", []int{400}},
		{"two keys", head + "Idempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 2\r\n\r\n{}", []int{400}},
		{"no method", "\r\n\r\n\r\n", nil},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{200}},
		{"absolute", "GET http://localhost/v1/lots/truffle HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{200}},
		{"connect", "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{404}},
	} {
		if got := s.raw(t, c.sent, len(c.want)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
	if st := s.lot(t, "truffle"); st.Held != 1 {
		t.Errorf("%d units held", st.Held)
	}
	if log := s.log.String(); strings.Contains(log, "panic") {
		t.Errorf("the log has a panic: %s", log)
	}
}

// raw sends bytes, closes its half of the connection and returns the statuses that come back.
func (s *site) raw(t *testing.T, text string, want int) (statuses []int) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(conn, text) // a server that has seen enough hangs up
	if want == 1 {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	in := bufio.NewReader(conn)
	for range want {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return append(statuses, -1)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		statuses = append(statuses, resp.StatusCode)
	}
	return statuses
}
