package bars

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/fault"
)

// cli: what the program itself costs, seen from outside.
func (r *run) cli(ctx context.Context) ([]Row, error) {
	calls, err := r.scriptCalls(ctx)
	if err != nil {
		return nil, err
	}
	r.Progress("starting dropctl version %d times", r.starts)
	var took []float64
	for i := range r.starts + 1 {
		begun := time.Now()
		if err := r.program(ctx, "", "version"); err != nil {
			return nil, err
		}
		if i > 0 { // the first one reads the program from disk
			took = append(took, float64(time.Since(begun))/float64(time.Millisecond))
		}
	}
	return []Row{
		AtMost("cli.script-calls-of-a-reserve", 1, calls, "calls"),
		AtMost("cli.version", 50, Median(took), "ms"),
	}, nil
}

// scriptCalls counts the script calls of one dropctl reserve on an idle server. An earlier one has brought the script.
func (r *run) scriptCalls(ctx context.Context) (float64, error) {
	a, done, err := r.openArena(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	lots := lotNames(1)
	s, err := openEngine(ctx, a.server, lots)
	if err != nil {
		return 0, err
	}
	if err := s.Close(); err != nil {
		return 0, err
	}
	r.Progress("counting the script calls of one dropctl reserve")
	var cost bench.RedisCost
	for n := range 2 {
		metering := bench.MeterRedis(a.server).Begin(ctx)
		if err := r.program(ctx, a.server.URL(), "reserve", string(lots[0]), "--user", userName(int64(n))); err != nil {
			return 0, err
		}
		cost, _ = metering.End(ctx, 1)
	}
	var calls float64
	for _, command := range []string{"eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"} {
		calls += cost.ByCommand[command]
	}
	return calls, nil
}

// program runs the built dropctl without the settings of whoever started the benchmark.
func (r *run) program(ctx context.Context, redisURL string, args ...string) error {
	cmd := exec.CommandContext(ctx, r.Program, append(args, "--config", "none", "-o", "json", "-q")...)
	cmd.Env = []string{"DROPCTL_REDIS_URL=" + redisURL}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		cmd.Env = append(cmd.Env, name+"="+os.Getenv(name))
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fault.Wrap(fault.Failed, err, "dropctl %s: %s", args[0], strings.TrimSpace(stderr.String()))
	}
	return nil
}
