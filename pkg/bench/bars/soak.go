package bars

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Bounds of the soak.
const (
	soakRate   = 1250 // requests a second of each kind
	soakGrowth = 1.10 // of memory and goroutines, from the first look on
)

// soak keeps a server under an even load for a long time, and looks now and then how much memory it holds and how many
// goroutines run. Holds last a second, so that everything that comes goes again.
func (r *run) soak(ctx context.Context) ([]Row, error) {
	ours, stop, err := r.serveDropctl(ctx, "--with-worker", "--max-events-per-second", "20000", "--key-retention", "1m")
	if err != nil {
		return nil, err
	}
	defer stop()
	ours.unavailable = &atomic.Int64{} // in so long a time a machine may stand still for a moment
	looks := max(2, int(r.Soak/time.Minute))
	span := r.Soak / time.Duration(looks)
	sides := []*side{
		{match: match{name: "soak.accept"}, site: ours, lot: fleeting, status: http.StatusCreated},
		{match: match{name: "soak.sold-out"}, site: ours, lot: emptied, status: http.StatusConflict},
	}
	r.Progress("soaking: %d requests a second for %s", 2*soakRate, r.Soak)
	var first, last gauges
	requests := 0.0
	for i := range looks {
		g, within := errgroup.WithContext(ctx)
		for _, s := range sides {
			g.Go(func() error {
				f, err := s.paced(within, effort{span: span}, soakRate)
				s.figures = append(s.figures, f)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		if last, err = ours.gauges(ctx); err != nil {
			return nil, err
		}
		requests = last["dropctl_api_requests_total"]
		if i == 0 {
			first = last
		}
		r.Progress("  %d of %d: %.0f requests, %.0f MB, %.0f goroutines, accept p99 %s", i+1, looks, requests,
			last["process_resident_memory_bytes"]/1e6, last["go_goroutines"], sides[0].figures[i].p99)
	}
	grown := func(name string) float64 { return last[name] / first[name] }
	return []Row{
		AtMost("soak.memory-growth", soakGrowth, grown("process_resident_memory_bytes"), "times"),
		AtMost("soak.goroutine-growth", soakGrowth, grown("go_goroutines"), "times"),
		info("soak.requests", requests, "requests", ""),
		info("soak.unavailable", float64(ours.unavailable.Load()), "requests", "answered 503"),
		info("soak.memory", last["process_resident_memory_bytes"]/1e6, "MB", ""),
		info("soak.accept-p99", sides[0].p99(), "ms", "median over the looks"),
	}, nil
}

// gauges are the figures that a server shows of itself, summed over their labels.
type gauges map[string]float64

func (s site) gauges(ctx context.Context) (gauges, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fault.Wrap(fault.Failed, err, "the server shows no metrics")
	}
	defer func() { _ = resp.Body.Close() }()
	out := gauges{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		name, _, _ := strings.Cut(line, "{")
		name, _, _ = strings.Cut(name, " ")
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil && name != "#" {
			out[name] += v
		}
	}
	if out["go_goroutines"] == 0 {
		return nil, fault.New(fault.Failed, "the server shows no metrics: %d", resp.StatusCode)
	}
	return out, nil
}
