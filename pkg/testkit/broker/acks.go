package broker

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
)

// lostAcks breaks connections in place of answers to produce requests, which are carried out all the same.
type lostAcks struct {
	mu   sync.Mutex
	left int
	lost int
}

func (l *lostAcks) lose(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = n
}

func (l *lostAcks) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// take reports whether this answer is to be lost.
func (l *lostAcks) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 {
		return false
	}
	l.left--
	l.lost++
	return true
}

func (l *lostAcks) listener(ln net.Listener) net.Listener { return ackListener{ln, l} }

type ackListener struct {
	net.Listener
	acks *lostAcks
}

func (l ackListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &ackConn{Conn: conn, acks: l.acks, produce: map[uint32]bool{}}, nil
}

// ackConn follows the requests of a connection: a size of 4 bytes, the kind, the version, and a number that the answer
// repeats behind its own size. Behind TLS it understands nothing, and loses nothing.
type ackConn struct {
	net.Conn
	acks *lostAcks

	head []byte // of the request that is coming in
	skip int    // bytes of it still to come

	mu      sync.Mutex
	produce map[uint32]bool // numbers of requests to produce
}

func (c *ackConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for in := b[:n]; len(in) > 0; {
		if c.skip > 0 {
			passed := min(c.skip, len(in))
			c.skip, in = c.skip-passed, in[passed:]
			continue
		}
		taken := min(headLength-len(c.head), len(in))
		c.head, in = append(c.head, in[:taken]...), in[taken:]
		if len(c.head) == headLength {
			c.follow()
		}
	}
	return n, err
}

const headLength = 12

// follow notes a request of which the head has come.
func (c *ackConn) follow() {
	c.skip = max(0, int(binary.BigEndian.Uint32(c.head))+4-headLength)
	if kind := binary.BigEndian.Uint16(c.head[4:]); kind == 0 {
		c.mu.Lock()
		c.produce[binary.BigEndian.Uint32(c.head[8:])] = true
		c.mu.Unlock()
	}
	c.head = c.head[:0]
}

func (c *ackConn) Write(b []byte) (int, error) {
	if len(b) >= 8 && c.answersProduce(binary.BigEndian.Uint32(b[4:])) && c.acks.take() {
		_ = c.Close()
		return 0, errors.New("the answer was lost")
	}
	return c.Conn.Write(b)
}

func (c *ackConn) answersProduce(number uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := c.produce[number]
	delete(c.produce, number)
	return is
}
