package bars

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
)

// connections is how many keep-alive connections the generator has to a server.
const connections = 128

// The lots of the HTTP benchmark.
const (
	plentiful = drop.LotID("plentiful") // never ends
	emptied   = drop.LotID("emptied")   // has nothing
	fleeting  = drop.LotID("fleeting")  // its holds last a second
)

// site is a running server under test.
type site struct {
	address string
	prefix  string // of its paths
	token   string

	unavailable *atomic.Int64 // counts answers that it cannot sell now; nil: such an answer ends the measurement
}

// http: a real server process, with keys, access log and metrics, against a bare handler in another process. Both get
// the same requests over the same number of connections from the same generator.
func (r *run) http(ctx context.Context) (_ []Row, err error) {
	ours, stop, err := r.serveDropctl(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	bare, stopBare, err := r.serveBare(ctx)
	if err != nil {
		return nil, err
	}
	defer stopBare()
	refusing := bare
	refusing.prefix = "/sold-out"
	sides := []*side{
		{match: match{name: "http.accept.dropctl"}, site: ours, lot: plentiful, status: http.StatusCreated},
		{match: match{name: "http.accept.bare"}, site: bare, lot: plentiful, status: http.StatusCreated},
		{match: match{name: "http.sold-out.dropctl"}, site: ours, lot: emptied, status: http.StatusConflict},
		{match: match{name: "http.sold-out.bare"}, site: refusing, lot: emptied, status: http.StatusConflict},
	}
	r.Progress("measuring: HTTP, connections %d", connections)
	for round := range r.Rounds {
		for i := range sides {
			s := sides[i]
			if round%2 == 1 {
				s = sides[len(sides)-1-i]
			}
			if err := s.play(ctx, r.effort); err != nil {
				return nil, err
			}
			f := s.figures[len(s.figures)-1]
			r.Progress("  round %d of %d, %s: %.0f requests/s, p50 %s, p99 %s", round+1, r.Rounds, s.name, f.perSecond, f.p50, f.p99)
		}
	}
	accept, accepting := sides[0].perSecond(), sides[1].perSecond()
	refuse, refused := sides[2].perSecond(), sides[3].perSecond()
	half, err := r.paced(ctx, sides[0], accept/2)
	if err != nil {
		return nil, err
	}
	rows := []Row{
		AtLeast("http.accept-over-bare", 0.5, accept/accepting, "times"),
		Aim("http.accept-over-bare.aim", 0.7, accept/accepting, "times"),
		AtLeast("http.sold-out-over-bare", 0.65, refuse/refused, "times"),
		Aim("http.sold-out-over-bare.aim", 0.85, refuse/refused, "times"),
		AtMost("http.accept-p99-at-half-load", 10, half.p99(), "ms"),
		info("http.half-load.offered", accept/2, "requests/s", "open loop, latency from the intended start"),
		info("http.half-load.achieved", half.perSecond(), "requests/s", "open loop"),
	}
	for _, s := range sides {
		rows = append(rows, info(s.name+".throughput", s.perSecond(), "requests/s", ""), info(s.name+".p99", s.p99(), "ms", ""),
			info(s.name+".generator-cpu", s.generator(), "cpus", "the generator's share"))
	}
	return rows, nil
}

// paced offers a side so many requests a second, round by round.
func (r *run) paced(ctx context.Context, s *side, perSecond float64) (*match, error) {
	m := &match{name: s.name + ".paced"}
	for round := range r.Rounds {
		f, err := s.paced(ctx, r.effort, perSecond)
		if err != nil {
			return nil, err
		}
		r.Progress("  round %d of %d, %s: %.0f of %.0f requests/s, p99 %s", round+1, r.Rounds, m.name, f.perSecond, perSecond, f.p99)
		m.figures = append(m.figures, f)
	}
	return m, nil
}

// side is a site under one kind of request, and what it did in the rounds so far.
type side struct {
	match
	site   site
	lot    drop.LotID
	status int
	shares []float64 // of a processor, used by the generator
}

func (s *side) generator() float64 { return Median(s.shares) }

// play puts the closed load on a site once.
func (s *side) play(ctx context.Context, e effort) (err error) {
	gen, err := connectTo(ctx, s.site, s.lot, s.status)
	if err != nil {
		return err
	}
	defer gen.close()
	before, begun := ownCPU(), time.Now()
	f, err := load{callers: connections, lots: []drop.LotID{s.lot}, warm: e.warm, span: e.span}.run(ctx, gen.take)
	if err != nil {
		return err
	}
	s.shares = append(s.shares, (ownCPU()-before).Seconds()/time.Since(begun).Seconds())
	s.figures = append(s.figures, f)
	return nil
}

// serveDropctl runs a real server on private stores, with a key, and its access log in a file.
func (r *run) serveDropctl(ctx context.Context, flags ...string) (_ site, stop func(), err error) {
	var undo []func()
	stop = func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	redis, err := lab.StartRedis(ctx, lab.RedisOptions{Directives: []string{"auto-aof-rewrite-percentage 0"}})
	if err != nil {
		return site{}, nil, err
	}
	undo = append(undo, func() { _ = redis.Stop(context.WithoutCancel(ctx)) })
	postgres, err := lab.StartPostgres(ctx, lab.PostgresOptions{})
	if err != nil {
		return site{}, nil, err
	}
	undo = append(undo, func() { _ = postgres.Stop(context.WithoutCancel(ctx)) })
	if _, err := ledger.MigrateUp(ctx, ledger.Options{URL: postgres.URL(lab.Owner, lab.Database)}, ledger.MigrateOptions{AppRole: string(lab.App)}); err != nil {
		return site{}, nil, err
	}
	token, err := newKey(ctx, postgres.URL(lab.App, lab.Database))
	if err != nil {
		return site{}, nil, err
	}
	env := []string{"DROPCTL_REDIS_URL=" + redis.URL(), "DROPCTL_DATABASE_URL=" + postgres.URL(lab.App, lab.Database),
		"DROPCTL_LIMIT_USER=0", "DROPCTL_OUTBOX_MAX_BYTES=1GiB", "DROPCTL_LOG_FORMAT=json"}
	s, end, err := r.serve(ctx, env, append([]string{"serve"}, flags...)...)
	if err != nil {
		return site{}, nil, err
	}
	undo = append(undo, end)
	s.token = token
	for _, d := range []drop.Definition{
		{Lot: plentiful, Stock: drop.MaxUnits, Hold: time.Hour}, {Lot: emptied, Hold: time.Hour}, {Lot: fleeting, Stock: drop.MaxUnits, Hold: time.Second},
	} {
		if err := s.put(ctx, d); err != nil {
			return site{}, nil, err
		}
	}
	return s, stop, nil
}

// serveBare runs the bare handler.
func (r *run) serveBare(ctx context.Context) (site, func(), error) {
	return r.serve(ctx, nil, "bare-http")
}

// newKey makes an API key for the generator.
func newKey(ctx context.Context, url string) (token string, err error) {
	l, err := ledger.Open(ctx, ledger.Options{URL: url})
	if err != nil {
		return "", err
	}
	defer l.Close()
	token, id := drop.NewToken()
	_, hash, _ := drop.ReadToken(token)
	_, err = l.CreateKey(ctx, drop.APIKey{ID: id, Tenant: "bench", Scopes: drop.Scopes(), Hash: hash, CreatedBy: "bench"})
	return token, err
}

// put creates a lot through the API.
func (s site) put(ctx context.Context, d drop.Definition) error {
	body, err := json.Marshal(map[string]any{"stock": d.Stock, "hold_seconds": d.Hold.Seconds(), "max_hold_seconds": 3600, "limit": 2})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+s.address+"/v1/lots/"+string(d.Lot), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fault.Wrap(fault.Failed, err, "the lot %s cannot be created", d.Lot)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fault.New(fault.Failed, "the lot %s cannot be created: %d %s", d.Lot, resp.StatusCode, text)
	}
	return nil
}
