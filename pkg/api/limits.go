package api

import (
	"hash/maphash"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// Rate is how many requests somebody may make in a time; all of them at once, if he was quiet before. Zero: any number.
type Rate struct {
	Requests int
	Per      time.Duration
}

// LimitOptions says how many requests are let in, and whose word counts for where they come from.
type LimitOptions struct {
	Key     Rate // of each API key
	User    Rate // of each user who reserves, over all lots
	Address Rate // of each caller's address; of IPv6 a /64, which one subscriber has
	Tracked int  // how many keys, users and addresses are remembered at once, of each kind; default 100,000
	Proxies []netip.Prefix
}

// Limits lets nobody ask more often than he may. What is left is told in the headers RateLimit and RateLimit-Policy as
// draft-ietf-httpapi-ratelimit-headers-10 defines them. It is safe for concurrent use.
type Limits struct {
	key, user, address *limit
	proxies            proxies
	refused            *prometheus.CounterVec // by kind
}

// NewLimits returns limits under which everybody has asked for nothing yet.
func NewLimits(o LimitOptions) *Limits {
	if o.Tracked == 0 {
		o.Tracked = 100_000
	}
	return &Limits{key: newLimit("key", o.Key, o.Tracked), user: newLimit("user", o.User, o.Tracked),
		address: newLimit("address", o.Address, o.Tracked), proxies: o.Proxies, refused: telemetry.NewAPI(nil).RateLimited}
}

// byAddress notes the caller's address in the call, and limits requests by it. It stands before the look at keys, so that
// guessing keys is limited too.
func (l *Limits) byAddress(next http.Handler, fail failure) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r.Context())
		c.address, c.header = l.proxies.caller(r), w.Header()
		if !unguarded[r.URL.Path] && l.address != nil {
			if err := l.count(c, l.address, l.address.idOfAddress(c.address)); err != nil {
				fail(w, r, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// byKey limits requests by their API key.
func (l *Limits) byKey(next http.Handler, fail failure) http.Handler {
	if l.key == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := callOf(r.Context()); c.key.ID != "" {
			if err := l.count(c, l.key, l.key.idOf(c.key.ID)); err != nil {
				fail(w, r, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// byUser is an error if a user, named as the caller does, asks too often.
func (l *Limits) byUser(c *call, user string) error {
	if l.user == nil {
		return nil
	}
	return l.count(c, l.user, l.user.idOf(c.identity(user)))
}

// count counts a request, tells what is left, and is an error if nothing was.
func (l *Limits) count(c *call, kind *limit, id uint64) error {
	left, full, wait := kind.take(id, time.Now())
	seconds := int64(math.Ceil(full.Seconds()))
	if wait > 0 {
		seconds = int64(math.Ceil(wait.Seconds())) // the draft wants it to agree with Retry-After
	}
	if c.header != nil {
		c.header["Ratelimit-Policy"] = append(c.header["Ratelimit-Policy"], kind.policy)
		c.header["Ratelimit"] = append(c.header["Ratelimit"], kind.state(left, seconds))
	}
	if wait == 0 {
		return nil
	}
	l.refused.WithLabelValues(kind.name).Inc()
	return fault.New(fault.RateLimited, "this %s has asked %d times within %s, which is all it may", kind.name, kind.rate.Requests, within(kind.rate.Per)).
		With("limit", kind.name).With("retry_after_seconds", wait.Seconds())
}

func within(d time.Duration) string {
	switch d {
	case time.Second:
		return "a second"
	case time.Minute:
		return "a minute"
	case time.Hour:
		return "an hour"
	}
	return fault.Duration(d)
}

// limit is one rate for many who are counted each by itself. It remembers a bounded number of them.
type limit struct {
	name   string
	rate   Rate
	policy string // as the header says it
	seed   maphash.Seed
	room   int // of a shard
	shards [64]shard
}

// shard has the buckets of some of those who are counted.
type shard struct {
	mu      sync.Mutex
	at      map[uint64]int
	buckets []bucket
}

// bucket is what one of them has left. It knows him by a hash, so that long names need no memory; the hash has a seed that
// nobody knows, so nobody can make himself count as somebody else.
type bucket struct {
	id   uint64
	left *rate.Limiter
}

func newLimit(name string, r Rate, tracked int) *limit {
	if r.Requests <= 0 || r.Per <= 0 {
		return nil
	}
	l := &limit{name: name, rate: r, seed: maphash.MakeSeed()}
	l.room = max(1, tracked/len(l.shards))
	l.policy = `"` + name + `";q=` + strconv.Itoa(r.Requests) + ";w=" + strconv.FormatInt(int64(math.Ceil(r.Per.Seconds())), 10)
	for i := range l.shards {
		l.shards[i].at = map[uint64]int{}
	}
	return l
}

func (l *limit) idOf(name string) uint64 { return maphash.String(l.seed, name) }

// idOfAddress counts an IPv6 address as its network: one subscriber has 2^64 of them.
func (l *limit) idOfAddress(a netip.Addr) uint64 {
	text := a.As16()
	n := len(text)
	if a.Is6() {
		n = 8
	}
	return maphash.Bytes(l.seed, text[:n])
}

func (l *limit) perSecond() float64 { return float64(l.rate.Requests) / l.rate.Per.Seconds() }

// take counts one request at a time. It returns how many more may follow, when all of them may again, and, if this one may
// not be answered, after how long it may; else 0.
func (l *limit) take(id uint64, now time.Time) (left int, full, wait time.Duration) {
	b := l.bucket(id, now)
	allowed := b.AllowN(now, 1)
	tokens := max(0, b.TokensAt(now))
	full = l.timeFor(float64(l.rate.Requests) - tokens)
	if !allowed {
		wait = l.timeFor(1-tokens) + time.Microsecond // more than what is lost in rounding
	}
	return int(tokens), full, wait
}

func (l *limit) timeFor(tokens float64) time.Duration {
	return time.Duration(max(0, tokens) / l.perSecond() * float64(time.Second))
}

// bucket returns the bucket of somebody, a full one if he was not there.
func (l *limit) bucket(id uint64, now time.Time) *rate.Limiter {
	s := &l.shards[id%uint64(len(l.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, there := s.at[id]; there {
		return s.buckets[i].left
	}
	fresh := bucket{id, rate.NewLimiter(rate.Limit(l.perSecond()), l.rate.Requests)}
	if len(s.buckets) < l.room {
		s.at[id] = len(s.buckets)
		s.buckets = append(s.buckets, fresh)
		return fresh.left
	}
	i := s.fullest(now, float64(l.rate.Requests))
	delete(s.at, s.buckets[i].id)
	s.at[id], s.buckets[i] = i, fresh
	return fresh.left
}

// fullest picks whom to forget. Who has most left has asked least, and a full bucket says no more than none: so a flood
// of names that come once pushes itself out, and not the one who has used up what he had.
func (s *shard) fullest(now time.Time, full float64) int {
	const looks = 16 // at random; among so many there is one who is nearly full, unless all are busy
	best, most := 0, math.Inf(-1)
	for range looks {
		i := rand.IntN(len(s.buckets))
		if tokens := s.buckets[i].left.TokensAt(now); tokens > most {
			best, most = i, tokens
		}
		if most >= full {
			break
		}
	}
	return best
}

// state is the value of RateLimit.
func (l *limit) state(left int, seconds int64) string {
	b := make([]byte, 0, 48)
	b = append(b, '"')
	b = append(b, l.name...)
	b = append(b, `";r=`...)
	b = strconv.AppendInt(b, int64(left), 10)
	b = append(b, ";t="...)
	return string(strconv.AppendInt(b, seconds, 10))
}
