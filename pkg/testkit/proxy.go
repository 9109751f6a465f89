package testkit

import (
	"testing"

	"github.com/dropctl/dropctl/pkg/lab"
)

// FaultyProxy is a lab.Proxy of a test.
type FaultyProxy struct{ *lab.Proxy }

// Proxy starts a proxy to a server's address ("host:port", or the path of a unix socket) that listens on
// a free loopback port. It ends with the test.
func Proxy(t testing.TB, upstream string) *FaultyProxy {
	t.Helper()
	p, err := lab.StartProxy(upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return &FaultyProxy{p}
}

// URL returns a server's TCP URL (redis:// or postgres://) led through the proxy.
func (p *FaultyProxy) URL(t testing.TB, server string) string {
	t.Helper()
	u, err := p.Proxy.URL(server)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// DropReplies loses every reply until Heal.
func (p *FaultyProxy) DropReplies() { p.LoseReplies(1) }
