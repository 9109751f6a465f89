package bars

import (
	"context"

	"github.com/dropctl/dropctl/pkg/bench"
)

// serve runs a server process of the program until stop is called, and waits until it answers.
func (r *run) serve(ctx context.Context, env []string, args ...string) (_ site, stop func(), err error) {
	s, err := bench.StartServer(ctx, r.Program, env, args...)
	if err != nil {
		return site{}, nil, err
	}
	return site{address: s.Address}, s.Stop, nil
}
