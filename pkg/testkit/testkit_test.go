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
	Eventually(t, 10*time.Second, func() (bool, string) {
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
