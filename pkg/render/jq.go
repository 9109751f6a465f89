package render

import (
	"context"
	"errors"
	"math"
	"math/big"
	"strings"

	"github.com/itchyny/gojq"

	"github.com/dropctl/dropctl/pkg/fault"
)

// filter runs a jq expression over a document. Strings come out bare, as with jq -r.
type filter func(input any) gojq.Iter

func compile(ctx context.Context, expression string) (filter, error) {
	query, err := gojq.Parse(expression)
	if err == nil {
		var code *gojq.Code
		if code, err = gojq.Compile(query); err == nil {
			return func(input any) gojq.Iter { return code.RunWithContext(ctx, input) }, nil
		}
	}
	return nil, fault.Wrap(fault.Usage, err, "--jq %q is no jq expression", expression).WithField("jq").
		WithHint("see examples: dropctl help formatting")
}

func (f filter) run(doc any) (string, error) {
	var b strings.Builder
	results := f(plain(doc))
	for {
		result, more := results.Next()
		if !more {
			return b.String(), nil
		}
		if err, ok := result.(error); ok {
			if halt, ok := errors.AsType[*gojq.HaltError](err); ok && halt.Value() == nil {
				return b.String(), nil
			}
			return "", fault.Wrap(fault.Failed, err, "--jq").WithField("jq").
				WithHint("see what there is to filter: the same command with -o json")
		}
		if s, ok := result.(string); ok {
			b.WriteString(s)
		} else {
			text, err := gojq.Marshal(result)
			if err != nil {
				return "", err
			}
			b.Write(text)
		}
		b.WriteByte('\n')
	}
}

// plain turns a document into the types gojq works on.
func plain(doc any) any {
	switch x := doc.(type) {
	case object:
		m := make(map[string]any, len(x))
		for _, member := range x {
			m[member.name] = plain(member.value)
		}
		return m
	case []any:
		list := make([]any, len(x))
		for i := range x {
			list[i] = plain(x[i])
		}
		return list
	case int64:
		return int(x)
	case uint64:
		if x > math.MaxInt {
			return new(big.Int).SetUint64(x)
		}
		return int(x)
	}
	return doc
}
