package compare

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"

	"github.com/dropctl/dropctl/pkg/fault"
)

// link is the only way from one client process to its server. It breaks after so many messages of the client, for ever:
// from then on the client is as good as dead, since nothing that it does reaches anybody.
type link struct {
	listener net.Listener
	upstream string
	broken   func() // called once

	mu      sync.Mutex
	left    int  // messages until it breaks; negative: it holds
	deliver bool // whether the server gets the last one, whose answer the client does not
	dead    bool
	conns   []net.Conn
	pumps   sync.WaitGroup
}

func newLink(ctx context.Context, upstream string, broken func()) (*link, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fault.Wrap(fault.Failed, err, "no port of this machine is free")
	}
	k := &link{listener: l, upstream: upstream, broken: broken, left: -1}
	k.pumps.Go(k.accept)
	return k, nil
}

// url leads an address through the link.
func (k *link) url(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", fault.New(fault.Failed, "the private server's address cannot be read") // without it: it has a password
	}
	u.Host = k.listener.Addr().String()
	return u.String(), nil
}

// breakAfter lets n more messages of the client pass, of which the last one reaches the server only if deliver is true.
func (k *link) breakAfter(n int, deliver bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left, k.deliver = n, deliver
}

// close breaks the link, if it holds, and waits until the server has seen the end of what it was sent.
func (k *link) close() {
	k.kill()
	k.pumps.Wait()
}

func (k *link) accept() {
	for {
		conn, err := k.listener.Accept()
		if err != nil {
			return
		}
		if !k.keep(conn) {
			continue
		}
		server, err := net.Dial("tcp", k.upstream)
		if err != nil {
			_ = conn.Close()
			continue
		}
		k.pumps.Go(func() { k.requests(conn, server.(*net.TCPConn)) })
		k.pumps.Go(func() { replies(conn, server) })
	}
}

// keep notes a client's connection; false if the client is dead.
func (k *link) keep(conn net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		_ = conn.Close()
		return false
	}
	k.conns = append(k.conns, conn)
	return true
}

// requests passes on what the client sends. When the client is gone the server reads the end of it, and works off what
// came before: it does not know that nobody listens.
func (k *link) requests(conn net.Conn, server *net.TCPConn) {
	defer func() { _ = server.CloseWrite() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		pass, last := k.next()
		if pass {
			if _, err := server.Write(buffer[:n]); err != nil {
				return
			}
		}
		if last {
			k.kill()
			return
		}
	}
}

// replies passes on what the server answers, to nobody once the client is dead, until the server hangs up.
func replies(conn net.Conn, server net.Conn) {
	_, _ = io.Copy(conn, server)
	_ = conn.Close()
	_, _ = io.Copy(io.Discard, server)
	_ = server.Close()
}

// next counts a message.
func (k *link) next() (pass, last bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left > 0 {
		k.left--
	}
	last = k.left == 0
	return !k.dead && (!last || k.deliver), last
}

func (k *link) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return
	}
	k.dead = true
	_ = k.listener.Close()
	for _, conn := range k.conns {
		_ = conn.Close()
	}
	k.broken()
}
