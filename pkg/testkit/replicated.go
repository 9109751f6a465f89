package testkit

import (
	"context"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/lab"
)

// Replicated starts a Redis primary with n replicas of the test's own, all with the same options, and stops them
// when the test ends.
func Replicated(t testing.TB, n int, options ...lab.RedisOptions) (primary *lab.Redis, replicas []*lab.Redis) {
	t.Helper()
	primary = Redis(t, options...)
	for range n {
		replicas = append(replicas, replicaOf(t, primary, first(options)))
	}
	return primary, replicas
}

// Standby starts a PostgreSQL standby of the test's own that streams from the primary, and stops it when the test
// ends. Synchronous: the primary's commits wait for it.
func Standby(t testing.TB, primary *lab.Postgres, synchronous bool) *lab.Postgres {
	t.Helper()
	standby, err := primary.StartStandby(t.Context(), synchronous)
	if err != nil {
		t.Fatalf("starting a standby: %v", err)
	}
	stopAtEnd(t, standby.Stop)
	return standby
}

func replicaOf(t testing.TB, primary *lab.Redis, o lab.RedisOptions) *lab.Redis {
	t.Helper()
	replica, err := primary.StartReplica(t.Context(), o)
	if err != nil {
		t.Fatalf("starting a replica: %v", err)
	}
	stopAtEnd(t, replica.Stop)
	return replica
}

// WatchedRedis is a Redis primary with replicas, watched by three Sentinels. Servers, Sentinels, and the clients that ask the
// Sentinels, reach servers by links that can be cut.
type WatchedRedis struct {
	Servers   []*lab.Redis // the first starts as the primary
	Sentinels *lab.Sentinels
	links     map[*lab.Redis]Link
}

// Watched starts a Redis primary with n replicas, all with the same options, and three Sentinels of the test's own,
// and stops them when the test ends. Each server's link is a proxy: a cut closes connections.
func Watched(t testing.TB, n int, options ...lab.RedisOptions) *WatchedRedis {
	t.Helper()
	w := &WatchedRedis{links: map[*lab.Redis]Link{}}
	for range 1 + n {
		p := Proxy(t, "")
		o := first(options)
		o.Announce = p.Addr()
		server := w.start(t, o)
		p.Lead(server.Addr()) // known only now
		w.links[server] = p
	}
	w.watch(t)
	return w
}

// WatchedAcross is Watched with the first primary on a network of its own, whose link alone can be cut: packets are lost, and
// nobody is told. Where the test has no right to make networks, it is Watched, and the test's log says so.
func WatchedAcross(t testing.TB, n int, options ...lab.RedisOptions) *WatchedRedis {
	t.Helper()
	far := across(t)
	if far == nil {
		return Watched(t, n, options...)
	}
	w := &WatchedRedis{links: map[*lab.Redis]Link{}}
	o := first(options)
	o.Host = far.there.String()
	_ = far.Inside(func() error { w.links[w.start(t, o)] = far; return nil })
	o.Host = far.here.String()
	for range n {
		w.start(t, o)
	}
	w.watch(t)
	return w
}

// start starts the first server as the primary, the others as its replicas.
func (w *WatchedRedis) start(t testing.TB, o lab.RedisOptions) *lab.Redis {
	t.Helper()
	var server *lab.Redis
	if len(w.Servers) == 0 {
		server = Redis(t, o)
	} else {
		server = replicaOf(t, w.Servers[0], o)
	}
	w.Servers = append(w.Servers, server)
	return server
}

func (w *WatchedRedis) watch(t testing.TB) {
	t.Helper()
	var err error
	w.Sentinels, err = lab.StartSentinels(t.Context(), 3, w.Servers[0], len(w.Servers)-1)
	if err != nil {
		t.Fatalf("starting Sentinels: %v", err)
	}
	stopAtEnd(t, w.Sentinels.Stop)
}

// URL returns the address for clients that ask the Sentinels. It contains the password.
func (w *WatchedRedis) URL() string { return w.Sentinels.URL() }

// Isolate cuts a primary off: the Sentinels, the replicas and the clients that asked the Sentinels cannot reach it any
// more, and it knows nothing of it. Clients at its unix socket are on its side of the cut. It lasts until Rejoin.
func (w *WatchedRedis) Isolate(primary *lab.Redis) { w.links[primary].Cut() }

// Rejoin ends what Isolate began. The Sentinels then make the server a replica of the primary they chose meanwhile.
func (w *WatchedRedis) Rejoin(primary *lab.Redis) { w.links[primary].Heal() }

// AwaitFailover waits until the Sentinels have replaced the primary, and returns the new one.
func (w *WatchedRedis) AwaitFailover(t testing.TB, old *lab.Redis) *lab.Redis {
	t.Helper()
	var chosen *lab.Redis
	Eventually(t, 60*time.Second, func() (bool, string) {
		address, err := w.Sentinels.Primary(t.Context())
		if err != nil {
			return false, err.Error()
		}
		for _, server := range w.Servers {
			if server.Announced() == address {
				chosen = server
			}
		}
		return chosen != nil && chosen != old && takesWrites(t.Context(), chosen), "the Sentinels keep the primary at " + address
	})
	return chosen
}

func takesWrites(ctx context.Context, r *lab.Redis) bool {
	is, err := r.IsPrimary(ctx)
	return err == nil && is
}
