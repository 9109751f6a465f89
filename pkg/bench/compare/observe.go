package compare

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
)

// seen is what a server showed of itself during a round.
type seen struct {
	cpu         time.Duration
	lockWait    time.Duration
	connections int
}

// observer looks at a model's server while it sells.
type observer struct {
	redis  *lab.Redis // nil: PostgreSQL
	server interface{ PID() int }
	before time.Duration
	known  bool // what the server uses
	locks  *lockSampler
}

func (a *arena) observe(ctx context.Context, m Model) (*observer, error) {
	w := &observer{redis: a.redisOf(m), server: a.postgres}
	if w.redis != nil {
		w.server = w.redis
	} else {
		var err error
		if w.locks, err = sampleLocks(ctx, a.postgres.SocketURL(lab.Superuser, lab.Database)); err != nil {
			return nil, err
		}
	}
	w.before, w.known = cpuOf(w.server)
	return w, nil
}

// end returns what was seen.
func (w *observer) end(ctx context.Context) (s seen, err error) {
	if after, ok := cpuOf(w.server); ok && w.known {
		s.cpu = after - w.before
	}
	if w.locks != nil {
		s.lockWait, s.connections, err = w.locks.end()
		return s, err
	}
	text, err := w.redis.Do(ctx, "INFO", "clients")
	if err != nil {
		return s, err
	}
	_, after, _ := strings.Cut(text, "connected_clients:")
	n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]))
	if err != nil {
		return s, fault.Wrap(fault.Failed, err, "the private Redis does not tell its connections")
	}
	s.connections = n - 1 // less the one that asks
	return s, nil
}

// lockSampler looks again and again how many of the shop's transactions wait for a heavyweight lock: a row's, a
// transaction's, an advisory one. Their number times the time between two looks is how long they waited in all. It is
// an estimate, but it costs next to nothing and sees every wait, which log_lock_waits (only those beyond a deadline) and
// pg_locks (not how long) do not.
type lockSampler struct {
	conn        *pgx.Conn
	stop        chan struct{}
	done        chan struct{}
	waited      time.Duration
	connections int
	err         error
}

const sampleEvery = 20 * time.Millisecond

func sampleLocks(ctx context.Context, url string) (*lockSampler, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "the private PostgreSQL cannot be observed") // without the error: it may quote the address
	}
	w := &lockSampler{conn: conn, stop: make(chan struct{}), done: make(chan struct{})}
	go w.watch(ctx)
	return w, nil
}

func (w *lockSampler) watch(ctx context.Context) {
	defer close(w.done)
	defer func() { _ = w.conn.Close(context.WithoutCancel(ctx)) }()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-w.stop:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var waiting, connections int
		err := w.conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*) FROM pg_stat_activity WHERE application_name = $1`,
			applicationName).Scan(&waiting, &connections)
		if err != nil {
			w.err = fault.Wrap(fault.Unavailable, err, "looking who waits for locks")
			return
		}
		now := time.Now()
		w.waited += time.Duration(waiting) * now.Sub(last)
		w.connections = max(w.connections, connections)
		last = now
	}
}

func (w *lockSampler) end() (waited time.Duration, connections int, err error) {
	close(w.stop)
	<-w.done
	return w.waited, w.connections, w.err
}
