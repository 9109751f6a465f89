package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// loopback is where every server listens.
const loopback = "127.0.0.1"

// RedisOptions says how the Redis server differs from the usual one. The zero value is fine.
type RedisOptions struct {
	Fsync      string   // when the append-only file is synced: "always", "everysec" (default) or "no"
	Directives []string // more lines of redis.conf, such as "maxmemory 64mb" or "min-replicas-to-write 1"; they win over ours
	Host       string   // an address besides 127.0.0.1 on which it listens, and where others find it; empty: none
	Announce   string   // "host:port" where replicas and Sentinels find it, such as a proxy's; empty: its own address
	Least      [2]int   // the oldest version that will do, such as {7, 2}; zero: the oldest that dropctl works with
	Under      []string // a program with arguments that executes the server, such as env with variables
	DiskSize   int64    // bytes of a disk of its own for its data (see FillDisk); 0: none

	sentinel []string // directives of a Sentinel: it is one, and only Under counts besides
}

// Redis is a private Redis server: append-only file on, no snapshots, noeviction.
type Redis struct {
	server
	host     string
	port     int
	password string // empty for a Sentinel
	announce string
	data     string // folder of the data in the home; empty: the home itself
}

// StartRedis starts a private Redis (or Valkey) server and waits until it answers. The context bounds the
// start only; the server runs until Stop. Errors: MissingBinary, Unsupported, Unavailable.
func StartRedis(ctx context.Context, o RedisOptions) (*Redis, error) {
	return startRedis(ctx, o, newPassword())
}

func startRedis(ctx context.Context, o RedisOptions, password string) (*Redis, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	product := redisProduct
	if product.min.less(o.Least) {
		product.min = o.Least
	}
	program, err := product.find(ctx)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		r, err := tryRedis(ctx, program, o, password)
		if err == nil {
			return r, nil
		}
		// Somebody may take the port between our look and the server's start.
		portTaken := r != nil && !portFree(r.port)
		if !portTaken || attempt == 3 {
			return nil, err
		}
	}
}

// tryRedis returns the (stopped) server with the error if the start itself failed.
func tryRedis(ctx context.Context, program string, o RedisOptions, password string) (*Redis, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	h, err := newHome(nil)
	if err != nil {
		return nil, err
	}
	r := &Redis{host: cmp.Or(o.Host, loopback), port: port, password: password, announce: o.Announce}
	if o.DiskSize > 0 {
		r.data = "data"
	}
	r.program = filepath.Base(program)
	r.home = h
	r.command = slices.Concat(o.Under, []string{program, h.path("redis.conf")})
	r.stopWith, r.farewell = "TERM", "KILL"
	r.ready = r.ping
	config := r.config(o)
	if o.sentinel != nil {
		r.command = append(r.command, "--sentinel")
		config = append(r.listening(), o.sentinel...)
	}
	if err := h.write("redis.conf", strings.Join(config, "\n")+"\n"); err != nil {
		h.remove()
		return nil, fault.Wrap(fault.Unavailable, err, "cannot write the configuration of %s", r.program)
	}
	if o.DiskSize > 0 {
		err = r.addDisk(ctx, o.DiskSize, r.data)
	}
	if err == nil {
		err = r.Start(ctx)
	}
	if err != nil {
		_ = r.Stop(context.WithoutCancel(ctx))
		return r, err
	}
	return r, nil
}

// listening is what the configurations of Redis and of a Sentinel begin with.
func (r *Redis) listening() []string {
	bind := "bind " + loopback
	if r.host != loopback {
		bind += " " + r.host
	}
	return []string{
		bind,
		fmt.Sprintf("port %d", r.port),
		"unixsocket " + r.Socket(),
		"unixsocketperm 700",
		"daemonize no",
		"supervised no",
		"logfile \"\"",
	}
}

func (r *Redis) config(o RedisOptions) []string {
	fsync := o.Fsync
	if fsync == "" {
		fsync = "everysec"
	}
	lines := append(r.listening(),
		"dir "+r.DataDir(),
		"protected-mode yes",
		"requirepass "+r.password,
		"masterauth "+r.password,
		"save \"\"",
		"appendonly yes",
		"appendfsync "+fsync,
		"maxmemory-policy noeviction",
		"notify-keyspace-events Ex", // the sweeper's wake-up
		"repl-diskless-sync-delay 0",
	)
	if host, port := r.announced(); o.Announce != "" || r.host != loopback {
		lines = append(lines, "replica-announce-ip "+host, "replica-announce-port "+port)
	}
	return append(lines, o.Directives...)
}

// Addr returns the TCP address, "127.0.0.1:port", with the host of its options if they named one. It stays the same for
// the server's whole life.
func (r *Redis) Addr() string { return net.JoinHostPort(r.host, strconv.Itoa(r.port)) }

// Socket returns the path of the unix socket.
func (r *Redis) Socket() string { return r.home.path("redis.sock") }

// DataDir returns the folder of the server's data; the append-only file is in its folder appendonlydir.
func (r *Redis) DataDir() string { return r.home.path(r.data) }

// URL returns the address for clients over TCP. It contains the password.
func (r *Redis) URL() string {
	u := url.URL{Scheme: "redis", User: url.UserPassword("", r.password), Host: r.Addr(), Path: "/0"}
	return u.String()
}

// SocketURL returns the address for clients over the unix socket, the faster way. It contains the password.
func (r *Redis) SocketURL() string {
	u := url.URL{Scheme: "unix", User: url.UserPassword("", r.password), Path: r.Socket()}
	return u.String()
}

// Pause stops the process where it stands (SIGSTOP): connections stay open and get no answer.
func (r *Redis) Pause() error { return r.signal("STOP") }

// Resume lets a paused process go on (SIGCONT).
func (r *Redis) Resume() error { return r.signal("CONT") }

// Do sends one command on a connection of its own and returns the reply as text: bulk strings, statuses and
// integers as they are, arrays one element a line. For set-up and faults; not meant to be fast.
func (r *Redis) Do(ctx context.Context, args ...string) (string, error) {
	reply, err := r.call(ctx, args...)
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "%s of the private Redis", args[0])
	}
	return reply, nil
}

// Info returns what the server tells of itself in sections of INFO, name by name.
func (r *Redis) Info(ctx context.Context, sections ...string) (map[string]string, error) {
	text, err := r.Do(ctx, append([]string{"INFO"}, sections...)...)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// Empty removes everything from the server, from its append-only file too.
func (r *Redis) Empty(ctx context.Context) error {
	for _, command := range []string{"FLUSHALL", "BGREWRITEAOF"} {
		if _, err := r.Do(ctx, command); err != nil {
			return err
		}
	}
	return await(ctx, "the rewriting of an append-only file", func(ctx context.Context) error {
		info, err := r.Info(ctx, "persistence")
		if err == nil && (info["aof_rewrite_in_progress"] != "0" || info["aof_rewrite_scheduled"] != "0") {
			err = errors.New("it is being rewritten")
		}
		return err
	})
}

func (r *Redis) ping(ctx context.Context) error {
	_, err := r.call(ctx, "PING") // an error while it loads its data
	return err
}

func (r *Redis) call(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", r.Socket())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	c := newRESP(conn)
	if r.password != "" {
		if _, err := c.call("AUTH", r.password); err != nil {
			return "", err
		}
	}
	return c.call(args...)
}
