package cli

import (
	"bytes"
	"encoding/json"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

// emptyShop starts private servers with nothing on sale, and returns how commands reach them.
func emptyShop(t *testing.T, shards int) (*lab.Redis, testkit.Database, map[string]string) {
	t.Helper()
	redis, db := testkit.Redis(t), stores.Database(t, shards)
	return redis, db, map[string]string{"DROPCTL_REDIS_URL": redis.SocketURL(), "DROPCTL_DATABASE_URL": db.URL(lab.App)}
}

// newShop starts private servers with one lot, hat, of 10 units, and returns how commands reach them.
func newShop(t *testing.T, shards int) (*lab.Redis, map[string]string) {
	t.Helper()
	redis, _, env := emptyShop(t, shards)
	env["DROPCTL_REDIS_URL"], env["DROPCTL_ACTOR"] = redis.URL(), "tester"
	if r := run(t, env, "seed", "hat", "--stock", "10"); r.exit != 0 {
		t.Fatal(r.err)
	}
	return redis, env
}

// mustJSON runs a command that has to succeed and reads what it printed.
func mustJSON[T any](t *testing.T, env map[string]string, args ...string) T {
	t.Helper()
	r := run(t, env, append(args, "-o", "json")...)
	var v T
	if err := json.Unmarshal([]byte(r.out), &v); r.exit != 0 || err != nil {
		t.Fatalf("%v: exit %d, %v\n%s%s", args, r.exit, err, r.out, r.err)
	}
	return v
}

// reservationJSON is what programs read of a reservation.
type reservationJSON struct {
	ID, State, Key string
	Replayed       bool
}

// scriptReplies is a proxy that swallows replies to script calls, and nothing else: the call was carried out and its
// caller cannot know.
type scriptReplies struct{ drop atomic.Int64 }

func (p *scriptReplies) listen(t *testing.T, upstream string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.carry(client, upstream)
		}
	}()
	return l.Addr().String()
}

func (p *scriptReplies) carry(client net.Conn, upstream string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	question, answer := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := client.Read(question)
		if err != nil {
			return
		}
		if _, err := server.Write(question[:n]); err != nil {
			return
		}
		m, err := server.Read(answer) // one reply for each request: the client waits for it
		if err != nil || bytes.Contains(question[:n], []byte("FCALL")) && p.drop.Add(-1) >= 0 {
			return
		}
		if _, err := client.Write(answer[:m]); err != nil {
			return
		}
	}
}

func TestAReserveWhoseReplyIsLost(t *testing.T) {
	redis, env := newShop(t, 4)
	// The first calls bring their scripts: what is lost below is the answer of a call that was carried out.
	first := mustJSON[reservationJSON](t, env, "reserve", "hat", "--user", "first")
	mustJSON[reservationJSON](t, env, "extend", first.ID, "--by", "10m")
	proxy := &scriptReplies{}
	env["DROPCTL_REDIS_URL"] = strings.Replace(redis.URL(), redis.Addr(), proxy.listen(t, redis.Addr()), 1)
	held := func() int64 {
		return mustJSON[lotJSON](t, env, "lot", "show", "hat").Held
	}

	proxy.drop.Store(1)
	if got := mustJSON[reservationJSON](t, env, "reserve", "hat", "--user", "lucky"); !got.Replayed || got.State != "held" {
		t.Errorf("asked twice by itself: %+v", got)
	}
	if n := held(); n != 2 {
		t.Errorf("%d units are held, not 2", n)
	}

	proxy.drop.Store(2)
	r := run(t, env, "reserve", "hat", "--user", "o'hara jr", "--hold", "10m", "-o", "json")
	v := r.errorObject(t)
	command := regexp.MustCompile(`dropctl reserve .*$`).FindString(v.Hint)
	if v.Code != fault.OutcomeUnknown || r.exit != 5 || !strings.Contains(command, ` --key `) {
		t.Fatalf("exit %d, %+v", r.exit, v)
	}
	if proxy.drop.Load() != 0 {
		t.Fatalf("%d replies were to be lost yet", proxy.drop.Load())
	}
	args := sh(t, command)
	again := mustJSON[reservationJSON](t, env, args...) // -o json twice is the same as once
	if !again.Replayed || again.Key != v.Details["key"] || !slices.Contains(args, "o'hara jr") || !slices.Contains(args, "10m") {
		t.Errorf("%q: %+v", args, again)
	}
	if n := held(); n != 3 {
		t.Errorf("%d units are held, not 3", n)
	}

	proxy.drop.Store(1)
	if got := mustJSON[reservationJSON](t, env, "confirm", again.ID, "--payment", "p"); !got.Replayed || got.State != "confirmed" {
		t.Errorf("a confirm asks twice as well: %+v", got)
	}
}

// lotJSON is what programs read of a lot.
type lotJSON struct{ Held int64 }

// sh reads a command line as a POSIX shell does and returns the arguments of dropctl.
func sh(t *testing.T, command string) []string {
	t.Helper()
	var args []string
	var word strings.Builder
	in, quoted := false, false
	for i := 0; i < len(command); i++ {
		switch c := command[i]; {
		case c == '\'':
			quoted, in = !quoted, true
		case quoted:
			word.WriteByte(c)
		case c == '\\':
			i++
			word.WriteByte(command[i])
			in = true
		case c == ' ':
			if in {
				args = append(args, word.String())
			}
			word.Reset()
			in = false
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if in {
		args = append(args, word.String())
	}
	if quoted || len(args) == 0 || args[0] != "dropctl" {
		t.Fatalf("no command: %s", command)
	}
	return args[1:]
}

func TestAReserveIsOneScriptCall(t *testing.T) {
	redis, env := newShop(t, 4)
	if r := run(t, env, "reserve", "hat", "--user", "first"); r.exit != 0 {
		t.Fatal(r.err)
	}
	if _, err := redis.Do(t.Context(), "CONFIG", "RESETSTAT"); err != nil {
		t.Fatal(err)
	}
	if r := run(t, env, "reserve", "hat", "--user", "second"); r.exit != 0 {
		t.Fatal(r.err)
	}
	stats, err := redis.Do(t.Context(), "INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stats, "cmdstat_fcall:calls=1,") || strings.Contains(stats, "cmdstat_eval:") {
		t.Errorf("Redis counts\n%s", stats)
	}
}

// The settings say 16 shards where nothing else is said; an installation with another number works all the same.
func TestTheNumberOfShardsIsFoundInRedis(t *testing.T) {
	testkit.Long(t)
	for _, shards := range []int{1, 64} {
		_, env := newShop(t, shards)
		for _, lot := range []string{"a", "b", "c", "d"} {
			if r := run(t, env, "seed", lot, "--stock", "1"); r.exit != 0 {
				t.Fatal(r.err)
			}
		}
		env["DROPCTL_DATABASE_URL"] = "postgres://x@127.0.0.1:1/x"
		if lots := mustJSON[[]lotJSON](t, env, "lot", "list"); len(lots) != 5 {
			t.Errorf("%d shards: %d lots are listed", shards, len(lots))
		}
		for _, lot := range []string{"a", "b", "c", "d", "hat"} {
			if r := run(t, env, "reserve", lot, "--user", "ada"); r.exit != 0 {
				t.Errorf("%d shards, lot %s: %s", shards, lot, r.err)
			}
		}
	}
}

func TestCommandsAreQuotedForTheShell(t *testing.T) {
	for _, word := range []string{"plain", "", "a b", "o'hara", "~x", "x~y~1", `a"b`, "$HOME", "a\\b", "é", "*", "-f", "a=b", "'"} {
		if got := sh(t, shellLine([]string{"x", "--w", word, "end"})); !slices.Equal(got, []string{"x", "--w", word, "end"}) {
			t.Errorf("%q came back as %q", word, got)
		}
	}
}

func TestAHintHidesPasswords(t *testing.T) {
	testkit.Long(t)
	redis, _ := newShop(t, 4)
	proxy := &scriptReplies{}
	proxy.drop.Store(2)
	url := strings.Replace(redis.URL(), redis.Addr(), proxy.listen(t, redis.Addr()), 1)
	r := run(t, nil, "reserve", "hat", "--user", "ada", "--redis-url", url, "--")
	if r.exit != 5 || !strings.Contains(r.err, " --key ") || !strings.HasSuffix(strings.TrimSpace(r.err), " --") || !strings.Contains(r.err, "[redacted]") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if strings.Contains(r.err, strings.TrimPrefix(strings.Split(url, "@")[0], "redis://:")) {
		t.Error("the password is shown") // without the text, which holds it
	}
}
