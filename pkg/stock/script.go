package stock

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/fault"
)

// script is a Lua script: a function of the library, or by itself as source.
type script struct{ name, function, source string }

var (
	libraryName, librarySource = lua.Library()

	scripts = func() map[string]*script {
		m := make(map[string]*script)
		for _, name := range lua.Names() {
			m[name] = &script{name, lua.Function(libraryName, name), lua.Source(name)}
		}
		return m
	}()
)

// invocation is one script call. Its first three ARGV are the door's: run id, owner and retention, set by the lane.
type invocation struct {
	shard  *shard
	script *script
	keys   []string
	args   []string // behind the door's three
}

// promises reports whether anybody relies on what the call answers. What recovery and upkeep write can only be lost with
// the run it was written on; then the door is shut, and they look again.
func (c *invocation) promises() bool {
	switch c.script.name {
	case lua.Reserve, lua.Settle, lua.Sweep, lua.Change:
		return true
	}
	return false
}

// command builds FCALL, or EVAL with the source where the server does not have the function.
func (c *invocation) command(ctx context.Context, withSource bool, door [3]string) *redis.Cmd {
	args := make([]any, 0, 3+len(c.keys)+3+len(c.args))
	if withSource {
		args = append(args, "EVAL", c.script.source)
	} else {
		args = append(args, "FCALL", c.script.function)
	}
	args = append(args, len(c.keys))
	for _, k := range c.keys {
		args = append(args, k)
	}
	for _, a := range door {
		args = append(args, a)
	}
	for _, a := range c.args {
		args = append(args, a)
	}
	cmd := redis.NewCmd(ctx, args...)
	if len(c.keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
	return cmd
}

// reply is what a script answered: a status, its detail, and the rest.
type reply struct {
	status, detail, now string
	rest                []any
}

func (r reply) text(i int) string {
	if i >= len(r.rest) {
		return ""
	}
	s, _ := r.rest[i].(string)
	return s
}

// shut reports whether the script did nothing because of what it found at the door.
func (r reply) shut() bool {
	switch fault.Code(r.status) {
	case fault.LotFrozen, fault.LotNotLoaded, fault.Foreign:
		return true
	}
	return false
}

func parseReply(cmd *redis.Cmd) (reply, error) {
	list, err := cmd.Slice()
	if err != nil {
		return reply{}, err
	}
	var r reply
	for i, p := range []*string{&r.status, &r.detail, &r.now} {
		if i < len(list) {
			*p, _ = list[i].(string)
		}
	}
	if len(list) > 3 {
		r.rest = list[3:]
	}
	return r, nil
}

// serverSaid reports whether the error is an answer of the server, so that the call was certainly not carried out.
func serverSaid(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok && !errors.Is(err, redis.Nil)
}

func isNoFunction(err error) bool {
	return err != nil && hasAnyPrefix(err.Error(), "ERR Function not found")
}

// isMoved reports whether the server says that the slot lives elsewhere, or that it is no primary any more. One that loads
// data on a connection that was open before copies another server's.
func isMoved(err error) bool {
	return serverSaid(err) && hasAnyPrefix(err.Error(), "MOVED", "ASK", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN")
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// wireFault gives an error of the client or server its code. sent says whether the request may have reached a server.
func wireFault(target string, err error, sent bool) error {
	own, ok := errors.AsType[*fault.Error](err)
	switch {
	case err == nil:
		return nil
	case ok:
		return own
	case serverSaid(err) && hasAnyPrefix(err.Error(), "OOM"):
		return fault.New(fault.OutOfMemory, "Redis at %s is out of memory", target)
	case serverSaid(err) && hasAnyPrefix(err.Error(), "NOAUTH", "WRONGPASS", "NOPERM"), strings.Contains(err.Error(), "WRONGPASS"):
		return fault.Wrap(fault.Unavailable, err, "Redis at %s refuses the credentials", target).WithHint("check --redis-password-file or the user in --redis-url; the user needs all commands on keys drop:*")
	case serverSaid(err) && hasAnyPrefix(err.Error(), "MOVED", "ASK", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "MISCONF"):
		return fault.Wrap(fault.Unavailable, err, "Redis at %s cannot take the call now", target).WithHint("try again in a moment; see dropctl status")
	case serverSaid(err):
		return fault.Wrap(fault.Failed, err, "Redis at %s refused a script; nothing was changed", target)
	case sent:
		return fault.Wrap(fault.OutcomeUnknown, err, "no answer came from Redis at %s", target)
	}
	return fault.Wrap(fault.Unavailable, err, "Redis at %s cannot be reached", target)
}

// fault gives a script's status its error; nil for ok.
func (r reply) fault(subject string) error {
	code := fault.Code(r.status)
	switch code {
	case "ok":
		return nil
	case fault.LotFrozen:
		return fault.New(code, "%s is frozen: %s", subject, r.detail).With("reason", r.detail).WithHint("what it means: dropctl explain %s; a running worker reopens what equals the ledger", r.detail)
	case fault.LotNotLoaded:
		return fault.New(code, "%s is not loaded in Redis", subject)
	case fault.Foreign:
		return fault.New(code, "Redis holds data of another installation or number of shards (%s)", r.detail)
	case "corrupt":
		return fault.New(fault.Failed, "%s is damaged in Redis", subject).WithHint("compare it with the ledger: dropctl reconcile --deep")
	case "invalid":
		return fault.New(fault.Failed, "a script refused its arguments for %s (%s)", subject, r.detail)
	}
	return fault.New(code, "%s: %s %s", subject, r.status, r.detail)
}
