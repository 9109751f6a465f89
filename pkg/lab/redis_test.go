//go:build unix

package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/fault"
)

func startTestRedis(t *testing.T, o RedisOptions) *Redis {
	t.Helper()
	r, err := StartRedis(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func redisDo(t *testing.T, r *Redis, want string, args ...string) {
	t.Helper()
	got, err := r.Do(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("%v answers %q, want %q", args, got, want)
	}
}

func TestAnEmptiedRedisStaysEmpty(t *testing.T) {
	t.Parallel()
	r := startTestRedis(t, RedisOptions{})
	redisDo(t, r, "OK", "SET", "stock", "5")
	if err := r.Empty(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	redisDo(t, r, "0", "DBSIZE")
	info, err := r.Info(t.Context(), "server", "clients")
	if err != nil || info["tcp_port"] == "" || info["connected_clients"] != "1" {
		t.Errorf("%v, %v", info, err)
	}
}

func TestRedisAnswersOnBothAddresses(t *testing.T) {
	t.Parallel()
	r := startTestRedis(t, RedisOptions{Directives: []string{"maxmemory 64mb"}})
	for _, address := range []string{r.URL(), r.SocketURL()} {
		o, err := redis.ParseURL(address)
		if err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(o)
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Errorf("with the password: %v", err)
		}
		_ = client.Close()

		o.Password = ""
		client = redis.NewClient(o)
		if err := client.Ping(t.Context()).Err(); err == nil {
			t.Error("it answers without the password")
		}
		_ = client.Close()
	}
	redisDo(t, r, "maxmemory-policy\nnoeviction", "CONFIG", "GET", "maxmemory-policy")
	redisDo(t, r, "appendonly\nyes", "CONFIG", "GET", "appendonly")
	redisDo(t, r, "maxmemory\n67108864", "CONFIG", "GET", "maxmemory")
}

func TestRedisKeepsDataAndAddress(t *testing.T) {
	t.Parallel()
	r := startTestRedis(t, RedisOptions{Fsync: "always"})
	address, first := r.URL(), r.PID()
	redisDo(t, r, "OK", "SET", "bottles", "7")

	if err := r.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	redisDo(t, r, "7", "GET", "bottles")

	redisDo(t, r, "8", "INCR", "bottles")
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	if r.PID() != 0 || processExists(first) {
		t.Fatal("it still runs")
	}
	if _, err := r.Do(t.Context(), "PING"); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("a killed server gives %v", err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	redisDo(t, r, "8", "GET", "bottles")
	if r.URL() != address {
		t.Error("the address changed")
	}
}

func TestRedisPauses(t *testing.T) {
	t.Parallel()
	r := startTestRedis(t, RedisOptions{})
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if reply, err := r.Do(ctx, "PING"); err == nil {
		t.Fatalf("a paused server answers %q", reply)
	}
	if err := r.Resume(); err != nil {
		t.Fatal(err)
	}
	redisDo(t, r, "PONG", "PING")
}

func TestRedisComesBackAfterACrash(t *testing.T) {
	t.Parallel()
	r := startTestRedis(t, RedisOptions{Fsync: "always"})
	redisDo(t, r, "OK", "SET", "bottles", "7")
	if err := syscall.Kill(r.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() string {
		if pid := r.PID(); pid != 0 {
			return fmt.Sprintf("the crash goes unnoticed: process %d", pid)
		}
		return ""
	})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	redisDo(t, r, "7", "GET", "bottles")
}

func TestRedisIsKilledWhenStoppingTakesTooLong(t *testing.T) {
	t.Parallel()
	r := startTestRedis(t, RedisOptions{})
	pid := r.PID()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Stop(ctx); err != nil && !fault.Is(err, fault.Unavailable) { // it may be quicker than that
		t.Error(err)
	}
	if _, err := os.Stat(r.Dir()); !os.IsNotExist(err) || processExists(pid) {
		t.Errorf("something is left behind: %v", err)
	}
}

func TestRedisStopIsFinal(t *testing.T) {
	t.Parallel()
	r := startTestRedis(t, RedisOptions{})
	if err := r.Pause(); err != nil { // stopping must work even then
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(r.Dir()); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	if err := r.Start(t.Context()); err == nil {
		t.Error("it starts without its folder")
	}
	if err := r.Pause(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("pausing gives %v", err)
	}
}

func TestRedisStartFailureQuotesTheLog(t *testing.T) {
	t.Parallel()
	_, err := StartRedis(t.Context(), RedisOptions{Directives: []string{"no-such-directive 1"}})
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("got %v", err)
	}
	mustContain(t, err.Error(), "did not start: exit status 1", "no-such-directive")
}

func TestRedisPasswordIsNotInTheProcessList(t *testing.T) {
	t.Parallel()
	r := startTestRedis(t, RedisOptions{})
	for _, arg := range append(r.command, r.dog.shell.Args...) {
		if strings.Contains(arg, r.password) {
			t.Errorf("argument %q has the password", arg)
		}
	}
	info, err := os.Stat(r.home.path("redis.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("redis.conf has mode %v", info.Mode())
	}
}

func TestClusterServesAllSlots(t *testing.T) {
	long(t)
	t.Parallel()
	c, err := StartCluster(t.Context(), 3, 0, RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	o, err := redis.ParseClusterURL(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClusterClient(o)
	defer func() { _ = client.Close() }()
	for _, tag := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		if err := client.Set(t.Context(), "{"+tag+"}:x", tag, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes[1].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitOK(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestRESPReplies(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ reply, want, wantErr string }{
		{"+OK\r\n", "OK", ""},
		{":42\r\n", "42", ""},
		{"$3\r\na\nb\r\n", "a\nb", ""},
		{"$-1\r\n", "", ""},
		{"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "a\n1", ""},
		{"-ERR no\r\n", "", "ERR no"},
		{"?\r\n", "", "unknown reply"},
		{"\r\n", "", "empty reply"},
		{"$9\r\nabc", "", "unexpected EOF"},
		{"", "", "EOF"},
	} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Read(make([]byte, 64))
			_, _ = theirs.Write([]byte(tc.reply))
			_ = theirs.Close()
		}()
		got, err := newRESP(ours).call("PING")
		_ = ours.Close()
		if got != tc.want {
			t.Errorf("%q reads as %q, want %q", tc.reply, got, tc.want)
		}
		if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
			t.Errorf("%q gives error %v, want %q", tc.reply, err, tc.wantErr)
		}
	}
}
