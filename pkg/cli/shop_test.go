package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

const servedID = "hat~mfrggzdfmztwq2lknnwg23tpoa~17"

// served starts a server that answers each path in its own way, and returns how commands reach it. It counts requests.
func served(t *testing.T, answers map[string]http.HandlerFunc) (env map[string]string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked.Add(1)
		answer := answers[r.Method+" "+r.URL.Path]
		if answer == nil {
			t.Errorf("nobody expected %s %s", r.Method, r.URL)
			answer = http.NotFound
		}
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return map[string]string{"DROPCTL_SERVER": s.URL, "DROPCTL_API_KEY": "drk_x_do-not-show-me"}, asked
}

func answers(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if status >= 400 {
			w.Header().Set("Content-Type", "application/problem+json")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func aReservation(state, more string) string {
	return fmt.Sprintf(`{"id":%q,"lot":"hat","user":"ada","state":%q,"qty":2,"seq":17%s}`, servedID, state, more)
}

func TestAServerOrTheStoresButNotBoth(t *testing.T) {
	env, asked := served(t, nil)
	for _, line := range []string{"reserve hat --user ada", "confirm " + servedID, "reservation show " + servedID, "reservation list", "lot list", "lot show hat", "lot pause hat", "lot adjust hat --by 1 --expect 1"} {
		flag := "--redis-url"
		if strings.HasPrefix(line, "reservation list") {
			flag = "--database-url"
		}
		r := run(t, env, append(strings.Fields(line), "--server", env["DROPCTL_SERVER"], flag, "redis://127.0.0.1:1")...)
		if r.exit != 2 || !strings.Contains(r.err, flag+" does not go with a server") {
			t.Errorf("%s: exit %d, %s", line, r.exit, r.err)
		}
	}
	// Typed stores beat a server of the environment: the port of nobody is dialled.
	if r := run(t, env, "lot", "list", "--redis-url", "redis://127.0.0.1:1"); r.exit != 5 || !strings.Contains(r.err, "127.0.0.1:1") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests", n)
	}
}

func TestADryRunThatAServerCannotAnswer(t *testing.T) {
	env, asked := served(t, nil)
	for _, line := range []string{"reserve hat --user ada", "confirm " + servedID, "release " + servedID, "extend " + servedID + " --by 1m", "refund " + servedID, "lot adjust hat --by 1 --expect 1"} {
		if r := run(t, env, append(strings.Fields(line), "--dry-run")...); r.exit != 2 || r.out != "" || !strings.Contains(r.err, "needs the stores") {
			t.Errorf("%s: exit %d, %s%s", line, r.exit, r.out, r.err)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests", n)
	}
}

func TestACommandThroughAServer(t *testing.T) {
	env, _ := served(t, map[string]http.HandlerFunc{
		"POST /v1/lots/hat/reservations":                answers(201, aReservation("held", `,"remaining":1,"remaining_seconds":299.5,"deadline":"2026-12-01T10:00:00Z"`)),
		"POST /v1/reservations/" + servedID + "/extend": answers(200, aReservation("held", `,"remaining_seconds":60`)),
		"GET /v1/reservations/" + servedID:              answers(200, aReservation("confirmed", `,"source":"ledger","remaining":1,"recorded":{"state":"confirmed","qty":2,"seq":18,"changed":"2026-12-01T10:00:00Z"}`)),
	})
	r := run(t, env, "reserve", "hat", "--user", "ada", "--key", "k", "--jq", "[.id, .key, .remaining, .remaining_seconds, .deadline] | tojson")
	if want := `["` + servedID + `","k",1,299.5,"2026-12-01T10:00:00Z"]` + "\n"; r.exit != 0 || r.out != want {
		t.Errorf("exit %d, %s%s", r.exit, r.out, r.err)
	}
	if !strings.Contains(r.err, "target: lot hat on "+env["DROPCTL_SERVER"]) || strings.Contains(r.err+r.out, "do-not-show-me") {
		t.Errorf("stderr %s", r.err)
	}
	if r := run(t, env, "extend", servedID, "--by", "5m"); r.exit != 0 || !strings.Contains(r.err, "the hold lasts 1m from now, not 5m") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if r := run(t, env, "reservation", "show", servedID, "--jq", "[.source, .recorded.seq, .remaining] | tojson"); r.exit != 0 || r.out != "[\"ledger\",18,null]\n" {
		t.Errorf("exit %d, %s%s", r.exit, r.out, r.err)
	}
	if r := run(t, env, "reserve", "hat", "--user", "ada", "--actor", "me"); !strings.Contains(r.err, "--actor is not used") {
		t.Errorf("stderr %s", r.err)
	}
}

func TestARefusalOfAServerIsTheCommandsOwn(t *testing.T) {
	env, _ := served(t, map[string]http.HandlerFunc{
		"POST /v1/lots/hat/reservations":                answers(409, `{"code":"sold_out","detail":"lot hat has 0 of 1 units left","hint":"try again: dropctl lot show LOT","remaining":2,"status":409}`),
		"POST /v1/reservations/" + servedID + "/refund": answers(409, `{"code":"not_confirmed","detail":"the reservation is held","hint":"release the hold instead: dropctl release ID"}`),
		"POST /v1/lots/hat/pause":                       answers(403, `{"code":"forbidden","detail":"the key lacks the scope admin"}`),
	})
	r := run(t, env, "reserve", "hat", "--user", "ada", "--key", "k", "-o", "json")
	if v := r.errorObject(t); r.exit != 4 || v.Code != fault.SoldOut || v.Hint != "try again: dropctl lot show hat" || v.Details["key"] != "k" || v.Details["remaining"] != 2.0 {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if r := run(t, env, "refund", servedID, "--yes"); r.exit != 4 || !strings.Contains(r.err, "dropctl release "+servedID) {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if r := run(t, env, "lot", "pause", "hat"); r.exit != 4 || !strings.Contains(r.out, "failed\tforbidden") {
		t.Errorf("exit %d, %s%s", r.exit, r.out, r.err)
	}
}

func TestAFieldOfTheAPIIsNamedAsTheFlagIs(t *testing.T) {
	for field, want := range map[string]string{"Idempotency-Key": "key", "hold_seconds": "hold", "user": "user"} {
		env, _ := served(t, map[string]http.HandlerFunc{"POST /v1/lots/hat/reservations": answers(400, `{"code":"invalid","detail":"no","field":"`+field+`"}`)})
		if v := run(t, env, "reserve", "hat", "--user", "ada", "-o", "json").errorObject(t); v.Field != want || v.Exit != 2 {
			t.Errorf("%s: %+v", field, v)
		}
	}
}

func TestTheLedgersWordThroughAServer(t *testing.T) {
	var asked atomic.Int64
	never := answers(202, aReservation("confirmed", `,"ledger":"pending","ledger_lag_seconds":0.01`))
	confirm := "POST /v1/reservations/" + servedID + "/confirm"
	env, _ := served(t, map[string]http.HandlerFunc{confirm: func(w http.ResponseWriter, r *http.Request) {
		switch asked.Add(1) {
		case 1: // the confirmation itself, on the word of Redis
			answers(200, aReservation("confirmed", `,"ledger":""`))(w, r)
		case 2, 3:
			never(w, r)
		default:
			answers(200, aReservation("confirmed", `,"ledger":"recorded","replayed":true`))(w, r)
		}
	}})
	if r := run(t, env, "confirm", servedID, "--ack", "ledger", "--jq", "[.state, .replayed] | tojson"); r.exit != 0 || r.out != "[\"confirmed\",false]\n" || asked.Load() != 4 {
		t.Errorf("exit %d, %d requests, %s%s", r.exit, asked.Load(), r.out, r.err)
	}

	env, _ = served(t, map[string]http.HandlerFunc{confirm: never})
	r := run(t, env, "confirm", servedID, "--ack", "ledger", "--timeout", "300ms")
	if want := "then wait again: dropctl confirm " + servedID + " --ack ledger --timeout 300ms"; r.exit != 5 || !strings.Contains(r.err, "(outcome_unknown)") || !strings.Contains(r.err, want) {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
}

func TestALostAnswerOfAServer(t *testing.T) {
	lose := func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
	env, _ := served(t, map[string]http.HandlerFunc{"POST /v1/lots/hat/reservations": lose})
	r := run(t, env, "reserve", "hat", "--user", "ada")
	if r.exit != 5 || !strings.Contains(r.err, "(outcome_unknown)") || !strings.Contains(r.err, "ask again, it is safe: dropctl reserve hat --user ada --key ") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
}

func TestAServerThatCannotBeCalled(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	blank := filepath.Join(t.TempDir(), "blank")
	for file, text := range map[string]string{empty: "", blank: " \n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		env  map[string]string
		exit int
		want string
	}{
		"nobody there": {map[string]string{"DROPCTL_SERVER": "http://127.0.0.1:1"}, 5, "no answer from http://127.0.0.1:1"},
		"no URL":       {map[string]string{"DROPCTL_SERVER": "nonsense"}, 2, "the URL of the server"},
		"no such file": {map[string]string{"DROPCTL_SERVER": "http://127.0.0.1:1", "DROPCTL_API_KEY_FILE": "/does/not/exist"}, 2, "(invalid_config)"},
		"a blank one":  {map[string]string{"DROPCTL_SERVER": "http://127.0.0.1:1", "DROPCTL_API_KEY_FILE": blank}, 2, "api-key-file: " + blank + " is empty"},
		"an empty one": {map[string]string{"DROPCTL_SERVER": "http://127.0.0.1:1", "DROPCTL_API_KEY_FILE": empty}, 2, "is empty"},
		"no reference": {map[string]string{"DROPCTL_SERVER": "http://127.0.0.1:1", "DROPCTL_API_KEY": "env:NOT_SET"}, 2, "NOT_SET"},
	} {
		if r := run(t, c.env, "lot", "list"); r.exit != c.exit || r.out != "" || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: exit %d, %s", name, r.exit, r.err)
		}
	}
}

func TestWhoCanOverhearAKey(t *testing.T) {
	for server, want := range map[string]bool{
		"http://127.0.0.1:8080": false, "http://[::1]:8080": false, "http://localhost": false, "https://drops.example": false,
		"http://drops.example": true, "http://10.0.0.1:8080": true,
	} {
		if canBeOverheard(server) != want {
			t.Errorf("%s: %v", server, !want)
		}
	}
}

func TestCompletionThroughAServer(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	lots := answers(200, `{"items":[{"lot":"hat","status":"open","available":3,"capacity":5},{"lot":"shop:hose","status":"paused"}],"next":""}`)
	env, _ := served(t, map[string]http.HandlerFunc{
		"GET /v1/lots":         lots,
		"GET /v1/reservations": answers(200, `{"items":[`+aReservation("held", "")+`],"next":""}`),
	})
	for line, want := range map[string]string{
		"lot show ha":       "hat\topen, 3 of 5 left\n",
		"confirm hat~":      servedID + "\theld ada\n",
		"confirm ha":        servedID + "\theld ada\n",
		"lot list --group ": "shop\n",
	} {
		args := strings.Split(line, " ")
		if r := run(t, env, append([]string{"__complete"}, args...)...); !strings.HasPrefix(r.out, want) {
			t.Errorf("%s: %q %s", line, r.out, r.err)
		}
	}
	env, _ = served(t, map[string]http.HandlerFunc{"GET /v1/lots": hang})
	began := time.Now()
	if r := run(t, env, "__complete", "lot", "show", ""); !strings.HasPrefix(r.out, ":4") || time.Since(began) > 20*time.Second {
		t.Errorf("%q after %s", r.out, time.Since(began))
	}
}
