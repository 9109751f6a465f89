// Package stock keeps lots in Redis: the scripts' callers, the door, group commit, sweep and outbox.
// It admits; the ledger decides. It is the only importer of go-redis and of the scripts.
package stock

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// Options says which Redis and how to treat it. Zero values take the defaults named here.
type Options struct {
	URL            string        // see connect
	Password       string        // overrides the URL's
	Shards         int           // P; default 16
	Installation   string        // the ledger's id; "" adopts what Redis has, which is enough to reserve and settle
	KeyRetention   time.Duration // how long an ended reservation is remembered; default 24h
	OutboxMaxBytes int64         // of one shard; above it reserve answers backpressure; default 64 MiB
	DialTimeout    time.Duration // default 1s
	Timeout        time.Duration // of one call on the wire; default 2s
	Name           string        // client name; default dropctl
	Space          string        // keeps apart what is measured or rehearsed, see space.go; "": the shop itself
	Durability     string        // memory, disk or replicas=N; default memory
	DurabilityWait time.Duration // how long a batch may wait for disk or replicas; default 1.5s, as everysec syncs once a second
	AttestedFsync  string        // appendfsync as an operator vouches for it, believed where CONFIG is forbidden

	Breaker bool              // ping each server all the time, and refuse calls at once to one that answers badly
	Metrics *telemetry.Engine // nil: nobody looks at them; requests waiting and pool waits need Breaker
}

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	if o.Shards == 0 {
		o.Shards = 16
	}
	if o.OutboxMaxBytes == 0 {
		o.OutboxMaxBytes = 64 << 20
	}
	if o.Name == "" {
		o.Name = "dropctl"
	}
	if o.Metrics == nil {
		o.Metrics = telemetry.NewEngine(nil)
	}
	set(&o.KeyRetention, 24*time.Hour)
	set(&o.DialTimeout, time.Second)
	set(&o.Timeout, 2*time.Second)
	set(&o.DurabilityWait, 1500*time.Millisecond)
	return o
}

// Stock is the engine over one installation's Redis. It is safe for concurrent use.
type Stock struct {
	opt    Options
	level  level
	server server
	target string
	shards []*shard
	whose  atomic.Pointer[string] // the installation whose data Redis must have; "": whose it turns out to have

	lanes  sync.WaitGroup
	losses atomic.Int64 // connections lost, or not to be had, by any lane so far

	nodesMu   sync.Mutex
	nodes     []*node
	stopWatch context.CancelFunc // nil without Options.Breaker

	batchPrefix string // of the names of this engine's batches, unlike any other engine's
	batches     atomic.Uint64
}

// Open prepares the engine. It dials nothing: the first call does, or the prober with Options.Breaker.
func Open(o Options) (*Stock, error) {
	o = o.withDefaults()
	if o.Shards < 1 || o.Shards > MaxShards {
		return nil, fault.New(fault.InvalidConfig, "shards is %d", o.Shards).WithField("shards").WithHint("use 1 to %d, the number the ledger was set up with", MaxShards)
	}
	if o.Space != "" {
		if err := drop.CheckSpace(o.Space); err != nil {
			return nil, err
		}
	}
	lv, err := parseLevel(o.Durability)
	if err != nil {
		return nil, err
	}
	if lv == (level{}) {
		o.DurabilityWait = 0
	}
	redis.SetLogger(silent{})
	srv, target, err := connect(o)
	if err != nil {
		return nil, err
	}
	s := &Stock{opt: o, level: lv, server: srv, target: target, batchPrefix: rand.Text()[:8]}
	s.whose.Store(&o.Installation)
	for n := range o.Shards {
		s.shards = append(s.shards, newShard(s, n))
	}
	if o.Breaker {
		var ctx context.Context
		ctx, s.stopWatch = context.WithCancel(context.Background())
		s.lanes.Go(func() { s.watch(ctx) })
	}
	return s, nil
}

// silent drops go-redis' own log lines: every error reaches the caller anyway.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Close lets calls in flight finish, refuses new ones and closes the connections. It may be called once.
func (s *Stock) Close() error {
	for _, sh := range s.shards {
		sh.shut()
	}
	if s.stopWatch != nil {
		s.stopWatch()
	}
	s.lanes.Wait()
	for _, sh := range s.shards {
		sh.known.lane.close()
	}
	for _, n := range s.nodes {
		n.release()
	}
	return s.server.Close()
}

// Shards returns P.
func (s *Stock) Shards() int { return s.opt.Shards }

// Target names the server for people; it holds no secret.
func (s *Stock) Target() string { return s.target }

func (s *Stock) shardOf(lot drop.LotID) *shard { return s.shards[lot.Shard(s.opt.Shards)] }

// owner is what meta must say where the installation is known.
func (s *Stock) owner() string {
	whose := *s.whose.Load()
	if whose == "" {
		return ""
	}
	return whose + "/" + strconv.Itoa(s.opt.Shards)
}

// Belong names the installation once it is known, where the options named none. From then on calls to anybody else's data
// are refused, and lots can be loaded into shards that had none.
func (s *Stock) Belong(installation string) {
	s.whose.Store(&installation)
	s.nodesMu.Lock()
	defer s.nodesMu.Unlock()
	for _, n := range s.nodes {
		n.moves.Add(1) // lanes that are open show the owner that they have found
	}
}

func (s *Stock) retentionMS() string {
	return strconv.FormatInt(s.opt.KeyRetention.Milliseconds(), 10)
}
