package api

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// call is what is known of a request while it is answered. It belongs to the request's goroutine.
type call struct {
	id          string // of the request: the caller's X-Request-Id if it is one, else a random one
	traceparent string // W3C trace context as it came; "" without one
	address     netip.Addr
	key         drop.APIKey     // zero for somebody without a key, who is let in on loopback only
	lot         drop.LotID      // for the log; "" where the call names none
	header      http.Header     // of the answer, for what the limits say; nil outside of a request
	gone        <-chan struct{} // closed when the caller has closed his side
	outcome     fault.Code      // "" unless it was refused or failed
	replayed    bool
}

// requestTime is how long a request may take before it is answered that its outcome is unknown.
const requestTime = 15 * time.Second

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// within returns the context of a request that is worked on. It goes on when the caller closes his side: he may only
// have said all he had to say, and what was asked of the engine is done in any case. Who streams looks at gone.
func (c *call) within(r *http.Request) (context.Context, context.CancelFunc) {
	c.gone = r.Context().Done()
	return context.WithTimeout(withCall(context.WithoutCancel(r.Context()), c), requestTime)
}

// callOf returns the call of a request's context; an empty one outside of requests.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// identity is the user as the stores know it: two tenants' users of one name are two.
func (c *call) identity(user string) string {
	if c.key.Tenant == "" {
		return user
	}
	return c.key.Tenant + ":" + user
}

// mine returns the caller's own name of an identity; false if it is another tenant's.
func (c *call) mine(identity string) (user string, ok bool) {
	if c.key.Tenant == "" {
		return identity, true
	}
	return strings.CutPrefix(identity, c.key.Tenant+":")
}

// actor is who acts, for the journal.
func (c *call) actor() string {
	if c.key.ID == "" {
		return "api"
	}
	return "api:" + c.key.ID
}
