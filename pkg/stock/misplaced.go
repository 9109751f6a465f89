package stock

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/fault"
)

// A key of ours that holds another type of value was written by somebody else. Redis says so without naming the key, so
// that whoever meets one would not know where to look.

// wrongType reports whether the server says that a key holds another type of value than the command is for.
func wrongType(err error) bool { return serverSaid(err) && hasAnyPrefix(err.Error(), "WRONGTYPE") }

// commandFault gives the error of a command on one key its code.
func (s *Stock) commandFault(key string, err error) error {
	if wrongType(err) {
		return s.misplacedFault(misplaced{key: key})
	}
	return wireFault(s.target, err, false)
}

// callFault does so for a script's call. Which of its keys is meant has to be asked.
func (s *Stock) callFault(ctx context.Context, node redis.Cmdable, keys []string, err error) error {
	if !wrongType(err) {
		return wireFault(s.target, err, true)
	}
	pipe := node.Pipeline()
	types := lookAtTypes(ctx, pipe, keys)
	if _, askErr := pipe.Exec(ctx); askErr == nil {
		for _, m := range types.misplaced() {
			return s.misplacedFault(m)
		}
	}
	return wireFault(s.target, err, true)
}

func (s *Stock) misplacedFault(m misplaced) error {
	return fault.New(fault.Failed, "in Redis at %s %s", s.target, m).With("key", m.key).WithHint("%s", m.fix())
}

// misplaced is a key of ours that something else is in.
type misplaced struct {
	key, is string // is: the type it has, "" if nobody asked
}

func (m misplaced) String() string {
	if m.is == "" {
		return "the key " + m.key + " is of another type than " + typeName(wantedType(m.key))
	}
	return "the key " + m.key + " is " + typeName(m.is) + ", not " + typeName(wantedType(m.key))
}

// fix is what puts it right. What is there may be of use to somebody, so that it is put aside and not deleted.
func (m misplaced) fix() string {
	then := "dropctl reconcile --deep --repair"
	switch part := partOf(m.key); {
	case part == "meta":
		then = "dropctl restore --all"
	case part == "outbox":
		then = "dropctl reconcile --deep"
	case strings.HasPrefix(part, "lot:"):
		then = "dropctl restore " + strings.TrimPrefix(part, "lot:")
	case strings.HasPrefix(part, "stage"):
		_, lot, _ := strings.Cut(part, ":")
		then = "dropctl restore " + lot
	}
	return "find out who wrote it and put it aside: redis-cli RENAME " + m.key + " aside:" + m.key + "; then: " + then
}

// typeLook asks for the types of keys.
type typeLook struct {
	keys  []string
	types []*redis.StatusCmd
}

func lookAtTypes(ctx context.Context, pipe redis.Pipeliner, keys []string) typeLook {
	l := typeLook{keys: keys}
	for _, key := range keys {
		l.types = append(l.types, pipe.Type(ctx, key))
	}
	return l
}

// misplaced returns those of the keys that something else is in, once the pipeline is answered.
func (l typeLook) misplaced() (found []misplaced) {
	for i, key := range l.keys {
		if is := l.types[i].Val(); is != "" && is != "none" && is != wantedType(key) && wantedType(key) != "" {
			found = append(found, misplaced{key, is})
		}
	}
	return found
}

// partOf is what a key is to its shard: meta, outbox, …, lot:<lot>.
func partOf(key string) string {
	_, part, _ := strings.Cut(key, "}:")
	return part
}

// wantedType is the type that a key of ours has; "" for one that is overwritten whatever it is.
func wantedType(key string) string {
	switch name, _, _ := strings.Cut(partOf(key), ":"); name {
	case "meta", "lot", "stage":
		return "hash"
	case "outbox":
		return "stream"
	case "next", "due", "stage-due":
		return "zset"
	case "unfiled":
		return "list"
	}
	return ""
}

func typeName(t string) string {
	if t == "zset" {
		return "a sorted set"
	}
	return "a " + t
}
