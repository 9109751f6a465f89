package bars

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// generator sends reservations over keep-alive connections. It writes and reads HTTP by hand, so that it takes little of
// the processors that it shares with the server.
type generator struct {
	site   site
	status int
	idle   chan *connection
	turn   string // makes the users of this generator new ones
}

type connection struct {
	net.Conn
	in  *bufio.Reader
	out []byte
}

var turns atomic.Int64

func connectTo(ctx context.Context, to site, lot drop.LotID, status int) (*generator, error) {
	g := &generator{site: to, status: status, idle: make(chan *connection, connections), turn: strconv.FormatInt(turns.Add(1), 36) + "-"}
	for range connections {
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", to.address)
		if err != nil {
			g.close()
			return nil, fault.Wrap(fault.Failed, err, "the server under test does not answer")
		}
		g.idle <- &connection{Conn: conn, in: bufio.NewReaderSize(conn, 4096)}
	}
	return g, nil
}

func (g *generator) close() {
	for range len(g.idle) {
		_ = (<-g.idle).Close()
	}
}

// take asks for a hold and checks the status of the answer.
func (g *generator) take(_ context.Context, lot drop.LotID, user string) error {
	c := <-g.idle
	defer func() { g.idle <- c }()
	user = g.turn + user
	body := `{"user":"` + user + `","qty":1}`
	c.out = fmt.Appendf(c.out[:0], "POST %s/v1/lots/%s/reservations HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nIdempotency-Key: k-%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		g.site.prefix, lot, g.site.token, user, len(body), body)
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.Write(c.out); err != nil {
		return fault.Wrap(fault.Failed, err, "the server under test took no request")
	}
	status, text, err := c.answer()
	if err != nil {
		return fault.Wrap(fault.Failed, err, "the server under test did not answer")
	}
	if status == http.StatusServiceUnavailable && g.site.unavailable != nil {
		g.site.unavailable.Add(1)
		return nil
	}
	if status != g.status {
		return fault.New(fault.Failed, "the server under test answered %d instead of %d: %s", status, g.status, text)
	}
	return nil
}

// answer reads one answer; its body, as far as it fits into the buffer, is for errors.
func (c *connection) answer() (status int, body string, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, "", err
	}
	if len(line) < 12 {
		return 0, "", errors.New("no status line")
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, "", err
	}
	length := -1
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, "", err
		}
		if len(line) <= 2 {
			break
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	if length < 0 {
		return 0, "", errors.New("an answer without a length")
	}
	start, _ := c.in.Peek(min(length, 200))
	body = ""
	if status >= 400 {
		body = string(start)
	}
	_, err = c.in.Discard(length)
	return status, body, err
}

// pacedInFlight is more than ever wait for a connection, unless the server stands still for a second.
const pacedInFlight = 10_000

// paced offers requests at a rate, however slow the answers are, and counts each one's time from the moment at which it
// was to start.
func (s *side) paced(ctx context.Context, e effort, perSecond float64) (figure, error) {
	gen, err := connectTo(ctx, s.site, s.lot, s.status)
	if err != nil {
		return figure{}, err
	}
	defer gen.close()
	return load{callers: pacedInFlight, lots: []drop.LotID{s.lot}, rate: perSecond, warm: e.warm, span: e.span}.run(ctx, gen.take)
}
