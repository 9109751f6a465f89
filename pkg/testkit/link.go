package testkit

import (
	"testing"

	"github.com/dropctl/dropctl/pkg/lab"
)

// Link is the way to a server, which can be cut. What a cut holds up arrives after Heal if somebody still waits for it.
type Link interface {
	Cut()        // nothing gets through, in neither direction
	CutReplies() // requests get through and are carried out, replies do not
	Heal()
	URL(t testing.TB, server string) string // of the server at the other end, for clients at this one
}

// across makes a network of its own for servers of the test. Where it may not, it says so in the test's log and returns nil:
// then a proxy has to stand for the link.
func across(t testing.TB) *island {
	t.Helper()
	far, err := newIsland(t)
	if err != nil {
		t.Logf("no network of its own (%v): a proxy stands for the link", err)
		return nil
	}
	return far
}

// PostgresAcross is PostgresServer on a network of its own, whose link can be cut: packets are lost, and nobody is told. Where
// the test has no right to make networks, a proxy stands for the link, and the test's log says so.
func PostgresAcross(t testing.TB, o lab.PostgresOptions) (*lab.Postgres, Link) {
	t.Helper()
	far := across(t)
	if far == nil {
		p := PostgresServer(t, o)
		return p, Proxy(t, p.Addr())
	}
	o.Host = far.there.String()
	var p *lab.Postgres
	_ = far.Inside(func() error { p = PostgresServer(t, o); return nil })
	return p, far
}
