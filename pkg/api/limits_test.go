package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// Whoever waits as long as he is told is answered then, and not before.
func TestTheWaitIsExact(t *testing.T) {
	for _, r := range []Rate{{20, time.Second}, {1, time.Second}, {7, time.Minute}, {999, time.Hour}, {1, time.Hour}} {
		l := newLimit("user", r, 1000)
		id, now := l.idOf("ada"), noon
		for i := range r.Requests {
			left, _, wait := l.take(id, now)
			if wait != 0 || left != r.Requests-1-i {
				t.Fatalf("%v: request %d: %d left, wait %s", r, i, left, wait)
			}
		}
		for range 20 {
			_, full, wait := l.take(id, now)
			if wait <= 0 || wait > r.Per/time.Duration(r.Requests)+time.Millisecond || (full-r.Per).Abs() > r.Per/time.Duration(r.Requests)+time.Millisecond {
				t.Fatalf("%v: wait %s, full after %s", r, wait, full)
			}
			if _, _, early := l.take(id, now.Add(wait-wait/10-time.Microsecond)); early == 0 {
				t.Fatalf("%v: answered before its time", r)
			}
			now = now.Add(wait)
			if _, _, again := l.take(id, now); again != 0 {
				t.Fatalf("%v: told to wait %s, then %s more", r, wait, again)
			}
		}
		now = now.Add(2 * r.Per)
		if left, _, wait := l.take(id, now); wait != 0 || left != r.Requests-1 {
			t.Errorf("%v: after a rest %d left, wait %s", r, left, wait)
		}
	}
}

func TestEachIsCountedByHimself(t *testing.T) {
	l := newLimit("address", Rate{1, time.Minute}, 1000)
	seen := map[uint64]string{}
	for _, group := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::1 2001:db8::2 2001:db8::ffff:1:2:3", "2001:db8:0:1::1", "::1"} {
		var id uint64
		for i, text := range strings.Fields(group) {
			got := l.idOfAddress(netip.MustParseAddr(text))
			if i > 0 && got != id {
				t.Errorf("%s counts by itself", text)
			}
			id = got
		}
		if other, taken := seen[id]; taken {
			t.Errorf("%s counts as %s", group, other)
		}
		seen[id] = group
		if _, _, wait := l.take(id, noon); wait != 0 {
			t.Errorf("%s: the first request was refused", group)
		}
	}
}

// A flood of names that come once needs no more memory, and makes nobody forget who has used up what he had.
func TestAFloodOfNamesFreesNobody(t *testing.T) {
	const tracked = 1280
	l := newLimit("address", Rate{10, time.Second}, tracked)
	now := noon
	busy := make([]uint64, 20)
	for i := range busy {
		busy[i] = l.idOf(fmt.Sprint("busy ", i))
	}
	answered := 0
	for i := range 20 * tracked {
		if i%(tracked/10) == 0 { // each asks all the time, while 128 others come
			now = now.Add(10 * time.Millisecond)
			for _, id := range busy {
				for range 20 {
					if _, _, wait := l.take(id, now); wait == 0 {
						answered++
					}
				}
			}
		}
		l.take(l.idOf(fmt.Sprint("once ", i)), now)
	}
	// In 2 s each may ask 10 times and 20 more.
	if most := len(busy) * 31; answered > most {
		t.Errorf("%d were answered, %d may be", answered, most)
	}
	total := 0
	for i := range l.shards {
		if len(l.shards[i].at) != len(l.shards[i].buckets) {
			t.Errorf("%d names for %d buckets", len(l.shards[i].at), len(l.shards[i].buckets))
		}
		total += len(l.shards[i].buckets)
	}
	if total > tracked {
		t.Errorf("%d are remembered", total)
	}
}

func TestManyAtOnceGetWhatOneMay(t *testing.T) {
	l := newLimit("key", Rate{100, time.Hour}, 1000)
	id := l.idOf("k")
	var answered atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 50 {
				if _, _, wait := l.take(id, noon); wait == 0 {
					answered.Add(1)
				}
				l.take(l.idOf(strconv.FormatInt(answered.Load(), 10)), noon)
			}
		})
	}
	all.Wait()
	if answered.Load() != 100 {
		t.Errorf("%d were answered", answered.Load())
	}
}

func TestRatesThatAreOff(t *testing.T) {
	l := NewLimits(LimitOptions{})
	c := &call{header: http.Header{}}
	for range 1000 {
		if err := l.byUser(c, "ada"); err != nil || len(c.header) > 0 {
			t.Fatalf("%v, %v", err, c.header)
		}
	}
}

// behind serves requests through the limits alone, and says what they are told.
func behind(t *testing.T, o LimitOptions, key drop.APIKey) (l *Limits, ask func(path string, header ...string) (status int, told http.Header)) {
	t.Helper()
	l = NewLimits(o)
	fail := func(w http.ResponseWriter, _ *http.Request, err error) {
		w.WriteHeader(fault.Lookup(fault.CodeOf(err)).HTTP)
		_, _ = w.Write([]byte(err.Error()))
	}
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := l.byUser(callOf(r.Context()), r.Header.Get("User")); err != nil {
			fail(w, r, err)
			return
		}
		_, _ = w.Write([]byte(callOf(r.Context()).address.String()))
	})
	chain := l.byAddress(l.byKey(inner, fail), fail)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chain.ServeHTTP(w, r.WithContext(withCall(r.Context(), &call{key: key})))
	}))
	t.Cleanup(server.Close)
	return l, func(path string, header ...string) (int, http.Header) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode, resp.Header
	}
}

func TestTheHeadersSayWhatIsLeft(t *testing.T) {
	o := LimitOptions{Key: Rate{5, time.Hour}, User: Rate{2, time.Minute}, Address: Rate{100, time.Hour}}
	l, ask := behind(t, o, drop.APIKey{ID: "aaaaaaaa", Tenant: "shop"})
	_, told := ask("/", "User", "ada")
	policies, states := told.Values("RateLimit-Policy"), told.Values("RateLimit")
	if got := strings.Join(policies, ", "); got != `"address";q=100;w=3600, "key";q=5;w=3600, "user";q=2;w=60` {
		t.Errorf("RateLimit-Policy: %s", got)
	}
	if got := strings.Join(states, ", "); got != `"address";r=99;t=36, "key";r=4;t=720, "user";r=1;t=30` {
		t.Errorf("RateLimit: %s", got)
	}
	ask("/", "User", "ada")
	if status, told := ask("/", "User", "ada"); status != 429 || told.Values("RateLimit")[2] != `"user";r=0;t=30` {
		t.Errorf("%d %v", status, told)
	}
	for range 2 {
		if status, _ := ask("/", "User", "bob"); status != 200 {
			t.Errorf("another user: %d", status)
		}
	}
	if status, told := ask("/", "User", "eve"); status != 429 || len(told.Values("RateLimit")) != 2 {
		t.Errorf("the key: %d %v", status, told)
	}
	if _, told := ask("/livez"); told.Get("RateLimit") != `"key";r=0;t=720` {
		t.Errorf("whoever asks whether the server lives is counted by address: %v", told)
	}
	for kind, want := range map[string]float64{"user": 1, "key": 2, "address": 0} {
		var m dto.Metric
		if err := l.refused.WithLabelValues(kind).Write(&m); err != nil || m.Counter.GetValue() != want {
			t.Errorf("refused by %s: %v, %v", kind, m.Counter.GetValue(), err)
		}
	}
}

// Nobody makes himself count as others by what he writes into headers; behind a proxy of ours each caller counts.
func TestAddressesThatCannotBeForged(t *testing.T) {
	_, ask := behind(t, LimitOptions{Address: Rate{3, time.Hour}}, drop.APIKey{})
	for i := range 5 {
		if status, _ := ask("/", "X-Forwarded-For", fmt.Sprint("203.0.113.", i), "Forwarded", fmt.Sprint("for=203.0.113.", i)); (status == 200) != (i < 3) {
			t.Errorf("request %d: %d", i, status)
		}
	}
	_, ask = behind(t, LimitOptions{Address: Rate{3, time.Hour}, Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, drop.APIKey{})
	for i := range 12 {
		forged := fmt.Sprintf("198.51.100.%d, 203.0.113.%d", i, i%3)
		if status, _ := ask("/", "X-Forwarded-For", forged); (status == 200) != (i < 9) {
			t.Errorf("request %d: %d", i, status)
		}
	}
}

func BenchmarkLimit(b *testing.B) {
	l := newLimit("user", Rate{20, time.Second}, 100_000)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			l.take(uint64(i)*0x9e3779b97f4a7c15, time.Now())
		}
	})
}

// A look-up costs the same whoever asks, and nobody waits for anybody.
func BenchmarkAccess(b *testing.B) {
	a := NewAccess(AccessOptions{})
	var tokens []string
	for range 100 {
		token, id := drop.NewToken()
		_, hash, _ := drop.ReadToken(token)
		a.recorded.keys = append(a.recorded.keys, drop.APIKey{ID: id, Tenant: "shop", Scopes: drop.Scopes(), Hash: hash})
		tokens = append(tokens, token)
	}
	a.publish()
	unknown, _ := drop.NewToken()
	for name, token := range map[string]string{"known": tokens[7], "unknown": unknown} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := a.who(token, true, ""); (err == nil) != (name == "known") {
						b.Error(err)
					}
				}
			})
		})
	}
}
