package testkit

import (
	"context"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/lab"
)

// redisAcross is a Redis on a network of its own, if there can be one.
func redisAcross(t *testing.T) (*lab.Redis, Link) {
	far := across(t)
	if far == nil {
		r := Redis(t)
		return r, Proxy(t, r.Addr())
	}
	var r *lab.Redis
	_ = far.Inside(func() error { r = Redis(t, lab.RedisOptions{Host: far.there.String()}); return nil })
	return r, far
}

func TestALinkIsCutInEachWay(t *testing.T) {
	Long(t)
	t.Parallel()
	r, link := redisAcross(t)
	c := client(t, link.URL(t, r.URL()))
	// Asks within the time; a call that fails closes its connection, and the next needs a new one.
	ask := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return c.Incr(ctx, "bottles").Err()
	}
	if err := ask(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	link.CutReplies()
	if err := ask(500 * time.Millisecond); err == nil {
		t.Error("a reply came through")
	}
	Eventually(t, 20*time.Second, func() (bool, string) {
		got := do(t, r, "GET", "bottles")
		return got == "2", "the server has counted " + got
	})
	for range 2 { // a second time after a first is no other
		link.Cut()
	}
	if err := ask(500 * time.Millisecond); err == nil {
		t.Error("a call came through")
	}
	if got := do(t, r, "GET", "bottles"); got != "2" {
		t.Errorf("behind the cut the server has counted %s", got)
	}
	for range 2 {
		link.Heal()
	}
	Eventually(t, 30*time.Second, func() (bool, string) { err := ask(5 * time.Second); return err == nil, "after healing nobody answers" })
	if got := do(t, r, "GET", "bottles"); got != "3" && got != "4" { // whether what was sent into the cut still arrives is nobody's promise
		t.Errorf("the server has counted %s", got)
	}
}
