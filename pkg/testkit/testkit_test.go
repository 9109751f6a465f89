package testkit

import (
	"bufio"
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/lab"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestEachTestHasItsOwnDatabase(t *testing.T) {
	t.Parallel()
	a, b := Postgres(t), Postgres(t)
	if a.Server != b.Server || a.Name == b.Name {
		t.Fatalf("databases %s and %s", a.Name, b.Name)
	}
	conn, err := pgx.Connect(t.Context(), a.URL(lab.Owner))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), "CREATE TABLE sales (n int)"); err != nil {
		t.Fatal(err)
	}
	const count = "SELECT count(*) FROM pg_tables WHERE tablename = 'sales'"
	if a.SQL(t, count) != "1" || b.SQL(t, count) != "0" {
		t.Error("the table is not in the first database alone")
	}
}

// client connects to Redis without retries, so that a test sees every fault.
func client(t *testing.T, address string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries = -1
	o.DialerRetries = 1
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// do sends a command and returns the answer.
func do(t *testing.T, r *lab.Redis, args ...string) string {
	t.Helper()
	reply, err := r.Do(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// refused sends a command that has to fail in this way.
func refused(t *testing.T, r *lab.Redis, with string, args ...string) {
	t.Helper()
	if reply, err := r.Do(t.Context(), args...); err == nil || !strings.Contains(err.Error(), with) {
		t.Fatalf("%v gives %q, %v; want %s", args[0], reply, err, with)
	}
}

func TestDroppedRepliesWereCarriedOut(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	for _, upstream := range []string{r.Addr(), r.Socket()} {
		p := Proxy(t, upstream)
		c := client(t, p.URL(t, r.URL()))
		if err := c.Set(t.Context(), "bottles", 7, 0).Err(); err != nil {
			t.Fatal(err)
		}
		p.DropReplies()
		if err := c.Incr(t.Context(), "bottles").Err(); err == nil {
			t.Fatal("the reply came through")
		}
		p.Heal()
		if got, err := c.Get(t.Context(), "bottles").Int(); err != nil || got != 8 {
			t.Errorf("got %d, %v; want the lost call carried out", got, err)
		}
		if p.Dropped() != 1 {
			t.Errorf("%d replies dropped", p.Dropped())
		}
	}
}

func TestCutAndHeal(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	p := Proxy(t, r.Addr())
	c := client(t, p.URL(t, r.URL()))
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a cut connection answers")
	}
	p.Heal()
	Eventually(t, 30*time.Second, func() (bool, string) {
		err := c.Ping(t.Context()).Err()
		return err == nil, "no answer after healing"
	})
}

func TestDelayHoldsReplies(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	p := Proxy(t, r.Addr())
	c := client(t, p.URL(t, r.URL()))
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	const delay = 100 * time.Millisecond
	p.Delay(delay)
	begin := time.Now()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < delay {
		t.Errorf("the reply took %v", took)
	}
}

func TestProxyWithoutServerClosesTheConnection(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	p := Proxy(t, r.Addr())
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := bufio.NewReader(conn).ReadByte(); err == nil {
		t.Error("a byte came from nowhere")
	}
	if !strings.HasPrefix(p.Addr(), "127.0.0.1:") {
		t.Errorf("it listens on %s", p.Addr())
	}
}

// queryInt runs one statement on a connection of its own.
func queryInt(t *testing.T, address, statement string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.QueryRow(t.Context(), statement).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestHeldRequestsArriveAfterHealing(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	p := Proxy(t, r.Addr())
	c := client(t, p.URL(t, r.URL()))
	for _, way := range []struct {
		name    string
		hold    func()
		arrived string // at the server before the link is healed
	}{
		{"requests", p.HoldRequests, "0"},
		{"replies", p.CutReplies, "1"},
	} {
		do(t, r, "DEL", "bottles")
		if err := c.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		way.hold()
		answer := make(chan error, 1)
		go func() { answer <- c.Incr(t.Context(), "bottles").Err() }()
		if way.arrived == "1" {
			Eventually(t, 30*time.Second, func() (bool, string) { return do(t, r, "EXISTS", "bottles") == "1", "nothing arrives" })
		}
		select {
		case err := <-answer:
			t.Errorf("held %s: the client has an answer: %v", way.name, err)
		case <-time.After(100 * time.Millisecond):
		}
		if got := do(t, r, "EXISTS", "bottles"); got != way.arrived {
			t.Errorf("held %s: at the server arrived %s", way.name, got)
		}
		p.Heal()
		if err := <-answer; err != nil {
			t.Errorf("held %s: after healing %v", way.name, err)
		}
		if got := do(t, r, "GET", "bottles"); got != "1" {
			t.Errorf("held %s: carried out %s times", way.name, got)
		}
	}
}

func TestAProxyLeadsElsewhere(t *testing.T) {
	t.Parallel()
	primary, replicas := Replicated(t, 1)
	p := Proxy(t, primary.Addr())
	c := client(t, p.URL(t, primary.URL()))
	if err := c.Set(t.Context(), "bottles", 7, 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.Lead(replicas[0].Addr())
	Eventually(t, 30*time.Second, func() (bool, string) {
		err := c.Set(t.Context(), "bottles", 8, 0).Err()
		return err != nil && strings.Contains(err.Error(), "READONLY"), "it does not lead to the replica"
	})
}
