package bench

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// HTTP is a running server as a shop. Each request in flight has a connection of its own, which is kept for the next.
type HTTP struct {
	client *client.Client // of the buyers
	admin  *client.Client // of whoever measures, so that his connections are not counted
	looks  *http.Client   // at the metrics, likewise
	key    string
	suffix string // of this run's lots, unlike any other run's: a server keeps its lots

	lots map[drop.LotID]*acknowledged // it is complete once they are on sale

	dialled, asked atomic.Int64
}

// acknowledged are the units of a lot that the server said are sold.
type acknowledged struct{ units atomic.Int64 }

// HTTPOptions say which server, and how many ask at once.
type HTTPOptions struct {
	URL, Key, UserAgent string
	Users               int
	Timeout             time.Duration // of a request
	Run                 string        // distinguishes the lots of this run
}

// NewHTTP prepares calls to a server. It dials nothing.
func NewHTTP(o HTTPOptions) (*HTTP, error) {
	h := &HTTP{key: o.Key, suffix: "-" + o.Run, lots: map[drop.LotID]*acknowledged{}}
	dialer := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err == nil {
				h.dialled.Add(1)
			}
			return conn, err
		},
		TLSHandshakeTimeout: 5 * time.Second,
		// One HTTP/2 connection would be a queue before the server, which is nobody's shop.
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConns:        o.Users,
		MaxIdleConnsPerHost: o.Users,
		MaxConnsPerHost:     o.Users, // else one more is dialled now and then for whoever is just before its return
		IdleConnTimeout:     30 * time.Second,
	}
	var err error
	// Asking again is the buyer's matter: a repetition behind his back would hide that the server was in trouble.
	h.client, err = client.New(client.Options{URL: o.URL, Key: o.Key, UserAgent: o.UserAgent, HTTPClient: &http.Client{Transport: transport}, Retries: -1, Timeout: o.Timeout})
	if err != nil {
		return nil, err
	}
	h.admin, err = client.New(client.Options{URL: o.URL, Key: o.Key, UserAgent: o.UserAgent, Timeout: o.Timeout})
	h.looks = &http.Client{Timeout: o.Timeout, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }} // which could carry the key to somebody else
	return h, err
}

// Reserve takes a hold. The user comes once, so the name is the key, too.
func (h *HTTP) Reserve(ctx context.Context, lot drop.LotID, user string, qty int64) (drop.ReservationID, error) {
	h.asked.Add(1)
	r, err := h.client.Reserve(ctx, string(lot)+h.suffix, user, client.ReserveBody{User: user, Qty: qty})
	if err != nil {
		return drop.ReservationID{}, err
	}
	return drop.ParseReservationID(r.ID)
}

// Confirm confirms a hold and waits for the ledger, which the server does for a while, too.
func (h *HTTP) Confirm(ctx context.Context, id drop.ReservationID, payment string) error {
	for {
		r, err := h.client.Confirm(ctx, id.String(), client.ConfirmBody{Payment: payment})
		if err != nil {
			return err
		}
		if r.Ledger == "recorded" {
			if lot := h.lots[id.Lot]; lot != nil {
				lot.units.Add(r.Qty)
			}
			return nil
		}
		wait := 50 * time.Millisecond
		if r.LedgerLag != nil {
			wait = max(wait, min(time.Second, client.Duration(*r.LedgerLag)))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fault.Wrap(fault.OutcomeUnknown, ctx.Err(), "the sale %s is not recorded yet", id)
		}
	}
}

// Release gives a hold back.
func (h *HTTP) Release(ctx context.Context, id drop.ReservationID) error {
	_, err := h.client.Release(ctx, id.String(), client.ReleaseBody{})
	return err
}

// atOnce is how many lots are made, closed or looked at at a time.
const atOnce = 16

// Others looks for lots on the server that are not this run's: how many no run has made, and which of other runs are on sale,
// as those of one that was killed stay.
func (h *HTTP) Others(ctx context.Context) (foreign int, selling []string, err error) {
	for lot, err := range h.admin.AllLots(ctx) {
		switch {
		case err != nil:
			return foreign, selling, err
		case !strings.HasPrefix(lot.Lot, "bench-"):
			foreign++
		case lot.Selling:
			selling = append(selling, lot.Lot)
		}
	}
	return foreign, selling, nil
}

// PutOnSale puts lots on sale, under names of this run's own. It takes a key with the scope admin.
func (h *HTTP) PutOnSale(ctx context.Context, lots []drop.Definition) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, d := range lots {
		name := string(d.Lot) + h.suffix
		h.lots[drop.LotID(name)] = &acknowledged{}
		g.Go(func() error {
			body := client.LotBody{Stock: &d.Stock, Limit: &d.Limit, Hold: new(d.Hold.Seconds()), MaxHold: new(d.MaxHold.Seconds()), Late: string(d.Late), Status: string(d.Status)}
			_, _, err := h.admin.PutLot(ctx, name, body)
			return err
		})
	}
	return g.Wait()
}

// Withdraw closes this run's lots, those too that could not all be put on sale. They stay on the server, since what was sold
// of them is recorded for good.
func (h *HTTP) Withdraw(ctx context.Context) error {
	return h.each(ctx, func(ctx context.Context, lot drop.LotID, _ *acknowledged) error {
		_, _, err := h.admin.CloseLot(ctx, string(lot), client.StatusBody{Reason: "measured"})
		if fault.ExitOf(err) == fault.ExitNotFound {
			return nil
		}
		return err
	})
}

func (h *HTTP) each(ctx context.Context, do func(context.Context, drop.LotID, *acknowledged) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for lot, sold := range h.lots {
		g.Go(func() error { return do(ctx, lot, sold) })
	}
	return g.Wait()
}

// Audit asks the server how its lots stand: every unit has to be available, held or sold, and everything sold that it said is.
func (h *HTTP) Audit(ctx context.Context) (Audit, error) {
	a := Audit{Verdict: AuditOK, Findings: []string{}}
	var mu sync.Mutex
	err := h.each(ctx, func(ctx context.Context, lot drop.LotID, sold *acknowledged) error {
		l, err := h.admin.Lot(ctx, string(lot))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		a.lot(l, sold.units.Load())
		return nil
	})
	if err != nil {
		return Audit{Verdict: AuditNone, Findings: []string{}}, err
	}
	if slices.Sort(a.Findings); len(a.Findings) > 0 {
		a.Verdict = AuditBroken
	}
	return a, nil
}

func (a *Audit) lot(l client.Lot, sold int64) {
	found := func(format string, args ...any) {
		a.Findings = append(a.Findings, l.Lot+": "+fmt.Sprintf(format, args...))
	}
	if over := l.Held + l.Sold - l.Capacity; over > 0 {
		a.Oversold += over
		found("%d held and %d sold of %d", l.Held, l.Sold, l.Capacity)
	}
	switch lost := l.Capacity - l.Available - l.Held - l.Sold; {
	case lost > 0:
		a.Leaked += lost
		found("%d of %d units are neither available, nor held, nor sold", lost, l.Capacity)
	case lost < 0 && l.Available > 0:
		found("%d units are available, %d held and %d sold: %d more than the %d that there are", l.Available, l.Held, l.Sold, -lost, l.Capacity)
	}
	if l.Sold < sold {
		found("%d units were said to be sold, and are %d", sold, l.Sold)
	}
}

// Cost says what the run took of the connections, and of the processor; nil: the server's use of it is not known.
func (h *HTTP) Cost(used *time.Duration) *ServerCost {
	c := &ServerCost{Connections: h.dialled.Load()}
	if n := h.asked.Load(); used != nil && n > 0 {
		c.CPU = new(Span(*used) / Span(n))
	}
	return c
}

// Close ends the connections.
func (h *HTTP) Close() {
	h.client.Close()
	h.admin.Close()
	h.looks.CloseIdleConnections()
}
