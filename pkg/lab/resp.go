package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// resp speaks just enough of the Redis protocol to set a server up, so that this package needs no client.
type resp struct {
	w io.Writer
	r *bufio.Reader
}

func newRESP(conn io.ReadWriter) *resp { return &resp{w: conn, r: bufio.NewReader(conn)} }

func (c *resp) call(args ...string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c.w, b.String()); err != nil {
		return "", err
	}
	return c.reply()
}

func (c *resp) reply() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", errors.New("empty reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return "", errors.New(rest)
	}
	n, err := strconv.Atoi(rest)
	if err != nil {
		return "", fmt.Errorf("unknown reply %q", line)
	}
	if n < 0 { // nil
		return "", nil
	}
	switch kind {
	case '$':
		text := make([]byte, n+len("\r\n"))
		if _, err := io.ReadFull(c.r, text); err != nil {
			return "", err
		}
		return string(text[:n]), nil
	case '*':
		var lines []string
		for range n {
			element, err := c.reply()
			if err != nil {
				return "", err
			}
			lines = append(lines, element)
		}
		return strings.Join(lines, "\n"), nil
	}
	return "", fmt.Errorf("unknown reply %q", line)
}
