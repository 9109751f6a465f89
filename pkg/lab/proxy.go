package lab

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Proxy stands between a client and a server and breaks what it is told to. The faults apply to
// open connections and to new ones alike. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener

	mu           sync.Mutex
	upstream     string
	cut          bool
	requestsHeld bool
	repliesHeld  bool
	healed       *sync.Cond // of mu: something may no longer be held
	lost         float64    // the share of replies to be swallowed
	dropped      int
	delay        time.Duration
	open         map[net.Conn]struct{}
	closed       bool
	wait         sync.WaitGroup
}

// StartProxy starts a proxy to a server's address ("host:port", or the path of a unix socket) that listens on
// a free loopback port until Stop.
func StartProxy(upstream string) (*Proxy, error) {
	l, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "cannot start a proxy to a private server")
	}
	p := &Proxy{listener: l, upstream: upstream, open: make(map[net.Conn]struct{})}
	p.healed = sync.NewCond(&p.mu)
	p.wait.Add(1)
	go p.serve()
	return p, nil
}

// Addr returns the proxy's own address, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL returns a server's TCP URL (redis:// or postgres://) led through the proxy.
func (p *Proxy) URL(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return "", fault.New(fault.Invalid, "not a URL with a host") // without the URL: it has a password
	}
	u.Host = p.Addr()
	return u.String(), nil
}

// Lead makes the proxy lead to another server from now on, as an address does that moves with the primary.
// It closes every open connection.
func (p *Proxy) Lead(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
	p.closeAll()
}

// HoldRequests cuts one way of the link: what clients send does not reach the server, while connections stay open
// and replies come through. As in a network that loses packets, Heal delivers what was held.
func (p *Proxy) HoldRequests() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requestsHeld = true
}

// CutReplies cuts the other way: requests reach the server and are carried out, replies wait for Heal.
func (p *Proxy) CutReplies() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repliesHeld = true
}

// Release ends HoldRequests and CutReplies, and nothing else.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requestsHeld, p.repliesHeld = false, false
	p.healed.Broadcast()
}

// LoseReplies makes requests reach the server while a share of the replies, between 0 and 1, is swallowed and the
// connection closed: the client cannot know whether its request was carried out. It lasts until Heal or LoseReplies(0).
func (p *Proxy) LoseReplies(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = share
}

// Dropped returns how many replies were swallowed so far.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Delay holds everything the server sends back for d. It lasts until Heal or Delay(0).
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Cut closes every connection and refuses new ones until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	p.closeAll()
}

// Heal ends all faults.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.lost, p.delay = false, 0, 0
	p.requestsHeld, p.repliesHeld = false, false
	p.healed.Broadcast()
}

// Stop closes every connection and ends the proxy.
func (p *Proxy) Stop() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	p.closeAll()
	p.healed.Broadcast()
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *Proxy) closeAll() {
	for c := range p.open {
		_ = c.Close()
	}
}

func (p *Proxy) serve() {
	defer p.wait.Done()
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // there are too many open files for a moment: with the proxy the whole rehearsal would end
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.mu.Lock()
		upstream := p.upstream
		p.mu.Unlock()
		network := "tcp"
		if strings.HasPrefix(upstream, "/") {
			network = "unix"
		}
		server, err := net.DialTimeout(network, upstream, 10*time.Second)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.admit(client, server, upstream) {
			_ = client.Close()
			_ = server.Close()
			continue
		}
		go p.carry(client, server)
	}
}

// admit registers the pair unless the proxy is cut, closed or led elsewhere, in one step with the look at it.
func (p *Proxy) admit(client, server net.Conn, upstream string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut || p.closed || p.upstream != upstream {
		return false
	}
	p.open[client], p.open[server] = struct{}{}, struct{}{}
	p.wait.Add(1)
	return true
}

func (p *Proxy) carry(client, server net.Conn) {
	defer p.wait.Done()
	var requests sync.WaitGroup
	requests.Go(func() {
		pass(server, client, func() bool { return p.await(&p.requestsHeld) })
		_ = server.Close() // the client has gone, or we closed it
	})
	pass(client, server, func() bool { return !p.swallow() && p.await(&p.repliesHeld) })
	_ = client.Close()
	requests.Wait()
	p.mu.Lock()
	delete(p.open, client)
	delete(p.open, server)
	p.mu.Unlock()
}

// pass copies what comes from one side to the other until a side ends or may refuses.
func pass(to, from net.Conn, may func() bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !may() {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// await waits until the direction is no longer held. It is false when the proxy ends.
func (p *Proxy) await(held *bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for *held && !p.closed {
		p.healed.Wait()
	}
	return !p.closed
}

// swallow waits out the delay and tells whether the reply is to be lost.
func (p *Proxy) swallow() bool {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	time.Sleep(delay)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == 0 || rand.Float64() >= p.lost {
		return false
	}
	p.dropped++
	return true
}
