package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// benchServers are servers on which a measurement may make its space, and what is left on them.
func benchServers(t *testing.T) (redis *lab.Redis, env map[string]string, left func() string) {
	t.Helper()
	redis, db := testkit.Redis(t), testkit.Postgres(t)
	db.SQL(t, `GRANT CREATE ON DATABASE "`+db.Name+`" TO "`+string(lab.App)+`"`)
	env = map[string]string{"DROPCTL_REDIS_URL": redis.URL(), "DROPCTL_DATABASE_URL": db.URL(lab.App), "DROPCTL_TIMEOUT": "30s"}
	return redis, env, func() string {
		return fmt.Sprint(keysOf(t, redis)) + db.SQL(t, `SELECT coalesce(string_agg(nspname, ' '), '') FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%'`)
	}
}

func readResult(t *testing.T, text string) bench.Result {
	t.Helper()
	var r bench.Result
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return r
}

func TestBenchEngineMeasuresWhatIsAskedAndLeavesNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	_, env, left := benchServers(t)
	before := left()
	for _, c := range []struct {
		line              string
		accepted, refused bool
	}{
		{"--mix accept --rate 300", true, false},
		{"--mix sold-out --users 8 --lots 3", false, true},
		{"--mix churn --users 8 --stock 40", true, true}, // half of them wait a second for their units to come back
		{"--mix full --rate 50", true, false},
	} {
		args := append([]string{"bench", "engine", "-o", "json", "--warmup", "0s", "--duration", "1s", "--fail-if", "oversold>0"}, strings.Fields(c.line)...)
		r := run(t, env, args...)
		if r.out == "" {
			t.Fatalf("%s: exit %d\n%s", c.line, r.exit, r.err)
		}
		got := readResult(t, r.out)
		if got.Target != "engine" || len(got.Seconds) != 1 || len(got.Errors) != 0 || got.Batch == nil || got.Audit.Verdict != bench.AuditOK || got.Redis.Commands == nil {
			t.Errorf("%s: %+v\n%s", c.line, got, r.err)
		}
		if (got.Accepted.Count > 0) != c.accepted || (got.Refused.Count > 0) != c.refused {
			t.Errorf("%s: %d accepted, %d refused\n%s", c.line, got.Accepted.Count, got.Refused.Count, r.err)
		}
	}
	if after := left(); after != before {
		t.Errorf("it leaves %s, where was %s", after, before)
	}
}

// On private servers it is known what PostgreSQL used, too.
func TestBenchEngineOnPrivateServers(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	r := run(t, nil, "bench", "engine", "--lab", "-o", "json", "--rate", "100", "--duration", "200ms", "--warmup", "0s", "--fail-if", "accept_p50>1ns")
	if r.exit != int(fault.ExitFinding) || r.out == "" || !strings.Contains(r.err, "accept_p50>1ns") {
		t.Fatalf("a missed limit: exit %d\n%s", r.exit, r.err)
	}
	got := readResult(t, r.out)
	if got.Audit.Verdict != bench.AuditOK || runtime.GOOS == "linux" && got.Postgres.CPU == nil {
		t.Errorf("%+v", got)
	}
	if b := got.Batch; b == nil || b.P50 < 1 || b.P99 < b.P50 || b.Max < b.P99 || b.Max > got.Accepted.Count {
		t.Errorf("batches: %+v", b)
	}
}

func TestAnInterruptedBenchPrintsWhatItHasAndCleansUp(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	redis, env, left := benchServers(t)
	before := left()
	ctx, cancel := context.WithCancelCause(t.Context())
	var out bytes.Buffer
	watched := make(chan struct{})
	errs := &trigger{on: "measuring accept", do: func() {
		go func() {
			defer close(watched)
			testkit.Eventually(t, 20*time.Second, func() (bool, string) {
				keys, err := redis.Do(ctx, "KEYS", "*")
				return strings.Contains(keys, "}:wake"), fmt.Sprintf("nobody was accepted: %s, %v", keys, err)
			})
			cancel(fault.New(fault.Interrupted, "interrupted"))
		}()
	}}
	args := []string{"bench", "engine", "--rate", "500", "--warmup", "0s", "--duration", "1m", "-o", "yaml", "--fail-if", "accepted<1000000"}
	getenv := func(name string) string {
		if name == "DROPCTL_CONFIG" {
			return "none"
		}
		return env[name]
	}
	a := newApp(args, Streams{In: strings.NewReader(""), Out: &out, Err: errs, Getenv: getenv})
	exit := a.execute(ctx, newRoot(a), args)
	if exit != int(fault.ExitInterrupted) {
		t.Fatalf("exit %d\n%s", exit, errs.text.String())
	}
	<-watched
	text := out.String()
	for _, want := range []string{"interrupted: true", "errors: {}", "verdict: none"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not print %q: %s", want, text)
		}
	}
	if strings.Contains(text, "achieved_per_second: 0\n") {
		t.Errorf("nothing was measured: %s", text)
	}
	if after := left(); after != before {
		t.Errorf("it leaves %s, where was %s", after, before)
	}
}
