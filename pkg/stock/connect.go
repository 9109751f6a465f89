package stock

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/dropctl/dropctl/pkg/fault"
)

// server is where a shard lives: one server, a Sentinel-watched one, or the node of a Cluster that owns the slot.
type server interface {
	node(ctx context.Context, key string) (*redis.Client, error)
	eachNode(ctx context.Context, fn func(*redis.Client) error) error
	moved(ctx context.Context) // the slots may have moved: look again
	Pipeline() redis.Pipeliner // for plain commands, on any keys
	Close() error
}

type single struct{ *redis.Client }

func (s single) node(context.Context, string) (*redis.Client, error) { return s.Client, nil }
func (s single) eachNode(_ context.Context, fn func(*redis.Client) error) error {
	return fn(s.Client)
}
func (s single) moved(context.Context) {}

type clustered struct{ *redis.ClusterClient }

func (c clustered) node(ctx context.Context, key string) (*redis.Client, error) {
	return c.MasterForKey(ctx, key)
}

func (c clustered) eachNode(ctx context.Context, fn func(*redis.Client) error) error {
	return c.ForEachMaster(ctx, func(_ context.Context, n *redis.Client) error { return fn(n) })
}
func (c clustered) moved(ctx context.Context) { c.ReloadState(ctx) }

// lookAgain makes the client ask anew who serves which slots when a node cannot be reached, or says that it serves a slot no
// more. Left to itself it would go on with what it knows for a minute.
type lookAgain struct{ cluster *redis.ClusterClient }

func (h lookAgain) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			h.cluster.ReloadState(ctx)
		}
		return conn, err
	}
}

func (h lookAgain) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if isMoved(err) {
			h.cluster.ReloadState(ctx)
		}
		return err
	}
}

func (h lookAgain) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if isMoved(err) {
			h.cluster.ReloadState(ctx)
		}
		return err
	}
}

// connect returns the client for a URL and what to call it. Nothing is dialled yet.
//
//	redis://[user[:password]@]host[:port][/db]    rediss:// with TLS    unix:///path?db=0
//	redis-sentinel://[user[:password]@]host[:port][,host…]/master[?db=0]
//	redis-cluster://[user[:password]@]host[:port][,host…]
func connect(o Options) (server, string, error) {
	bad := func(err error) error {
		return fault.New(fault.InvalidConfig, "redis-url cannot be read: %s", urlError(err)).WithField("redis-url").
			WithHint("use redis://host:6379, rediss://, unix:///path, redis-sentinel://host1,host2/master or redis-cluster://host1,host2")
	}
	scheme, rest, ok := strings.Cut(o.URL, "://")
	if !ok {
		return nil, "", bad(notThat("it has no scheme"))
	}
	switch scheme {
	case "redis", "rediss", "unix":
		opt, err := redis.ParseURL(o.URL)
		if err != nil {
			return nil, "", bad(err)
		}
		o.tune(opt)
		return single{redis.NewClient(opt)}, opt.Addr, nil
	case "redis-sentinel":
		u, hosts, err := splitHosts("redis", rest)
		if err != nil {
			return nil, "", bad(err)
		}
		master := strings.Trim(u.Path, "/")
		if master == "" {
			return nil, "", bad(notThat("the master's name is missing behind the hosts"))
		}
		u.Path = ""
		opt, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, "", bad(err)
		}
		o.tune(opt)
		f := &redis.FailoverOptions{MasterName: master, SentinelAddrs: hosts, Username: opt.Username, Password: opt.Password, DB: opt.DB, TLSConfig: opt.TLSConfig,
			ClientName: opt.ClientName, MaxRetries: -1, DialTimeout: opt.DialTimeout, ReadTimeout: opt.ReadTimeout, WriteTimeout: opt.WriteTimeout,
			ContextTimeoutEnabled: true, PoolSize: opt.PoolSize, DisableIdentity: true}
		return single{redis.NewFailoverClient(f)}, master + "@" + strings.Join(hosts, ","), nil
	case "redis-cluster":
		u, hosts, err := splitHosts("redis", rest)
		if err != nil {
			return nil, "", bad(err)
		}
		opt, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, "", bad(err)
		}
		o.tune(opt)
		c := &redis.ClusterOptions{Addrs: hosts, Username: opt.Username, Password: opt.Password, TLSConfig: opt.TLSConfig, ClientName: opt.ClientName,
			MaxRedirects: 1, MaxRetries: -1, DialTimeout: opt.DialTimeout, ReadTimeout: opt.ReadTimeout, WriteTimeout: opt.WriteTimeout,
			ContextTimeoutEnabled: true, PoolSize: opt.PoolSize, DisableIdentity: true, MaintNotificationsConfig: opt.MaintNotificationsConfig}
		cluster := redis.NewClusterClient(c)
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(lookAgain{cluster}) })
		return clustered{cluster}, strings.Join(hosts, ","), nil
	}
	return nil, "", bad(notThat("its scheme is unknown"))
}

// tune sets what the engine relies on: no retries behind its back (a repeated script would act twice), deadlines that
// hold, no extra commands at connection set-up, and a pool large enough for every lane and outbox reader.
func (o Options) tune(opt *redis.Options) {
	opt.MaxRetries = -1
	opt.ContextTimeoutEnabled = true
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout = o.DialTimeout, o.Timeout+o.DurabilityWait, o.Timeout
	opt.DialerRetries = 1
	opt.PoolSize = 4*o.Shards + 16
	opt.PoolTimeout = o.DialTimeout + o.Timeout
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	opt.ClientName = o.Name
	if o.Password != "" {
		opt.Password = o.Password
	}
	if opt.TLSConfig != nil {
		opt.Dialer = dialTLS(opt.TLSConfig, opt.DialTimeout)
	}
}

// dialTLS dials as the client does by itself, but says so when a server takes the connection and speaks no TLS on it. Redis
// waits in silence for more of what it takes for a command, so that nobody would see more than a deadline.
func dialTLS(config *tls.Config, limit time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		dialer := net.Dialer{KeepAlive: 5 * time.Minute}
		plain, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(plain, config)
		err = conn.HandshakeContext(ctx)
		if err == nil {
			return conn, nil
		}
		_ = plain.Close()
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return nil, err
		}
		return nil, fault.Wrap(fault.Unavailable, err, "Redis at %s takes the connection, but TLS does not come about", addr).
			WithHint("it likely speaks no TLS at this port: say redis:// instead of rediss://, or name its tls-port")
	}
}

// splitHosts reads host1,host2/path?query: the first host stays in the URL, all of them are returned with ports.
func splitHosts(scheme, rest string) (*url.URL, []string, error) {
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	if strings.Contains(tail, "@") {
		return nil, nil, notThat("a / or ? in the user or password must be written as %2F or %3F")
	}
	userinfo := ""
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		userinfo, authority = authority[:at+1], authority[at+1:]
	}
	hosts := strings.Split(authority, ",")
	port := "6379"
	if strings.Trim(tail, "/") != "" && !strings.HasPrefix(tail, "?") {
		port = "26379"
	}
	for i, h := range hosts {
		if h == "" {
			return nil, nil, notThat("a host is empty")
		}
		if !strings.Contains(h, ":") {
			hosts[i] = h + ":" + port
		}
	}
	u, err := url.Parse(scheme + "://" + userinfo + hosts[0] + tail)
	return u, hosts, err
}

// notThat is a reason of our own, which quotes nothing of the URL.
type notThat string

func (n notThat) Error() string { return string(n) }

// urlError returns the reason if it is ours. Those of the parsers quote the part they stumbled over, which may be the
// password: of redis://:secret it is the port.
func urlError(err error) string {
	if own, ok := errors.AsType[notThat](err); ok {
		return string(own)
	}
	return "it does not have the form of one"
}
