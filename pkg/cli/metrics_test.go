package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/packaging"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

func TestMetricsNeedNoServer(t *testing.T) {
	var list []telemetry.Metric
	r := run(t, noServers, "metrics", "list", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || r.exit != 0 || len(list) != len(telemetry.Contract()) {
		t.Errorf("exit %d, %v, %d metrics\n%s", r.exit, err, len(list), r.err)
	}
	for _, format := range []string{"table", "wide", "jsonl", "yaml", "name", "none"} {
		if r := run(t, noServers, "metrics", "list", "-o", format); r.exit != 0 || strings.Contains(r.out, "dropctl_up") == (format == "none") {
			t.Errorf("-o %s: exit %d\n%s", format, r.exit, r.out)
		}
	}
	if r := run(t, noServers, "metrics", "rules"); r.exit != 0 || r.out != packaging.Rules || yaml.Unmarshal([]byte(r.out), &struct{}{}) != nil {
		t.Errorf("rules: exit %d", r.exit)
	}
	if r := run(t, noServers, "metrics", "dashboard"); r.exit != 0 || !json.Valid([]byte(r.out)) {
		t.Errorf("dashboard: exit %d", r.exit)
	}
	var file fileView
	if r := run(t, noServers, "metrics", "dashboard", "-o", "json"); json.Unmarshal([]byte(r.out), &file) != nil || file.Text != packaging.Dashboard {
		t.Errorf("dashboard -o json: %.200s", r.out)
	}
}

// TestTheRulesNameRealCommands reads the commands in the alerts' texts.
func TestTheRulesNameRealCommands(t *testing.T) {
	commands := regexp.MustCompile(`(?:Next: |then |with |start )(dropctl [a-z]+[^,;"]*)`).FindAllStringSubmatch(strings.ReplaceAll(packaging.Rules, "{{ $labels.reason }}", "fork"), -1)
	found := 0
	for _, command := range commands {
		found++
		for _, args := range commandLines(command[1]) {
			if err := parses(args); err != nil {
				t.Errorf("%s: %v", command[1], err)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d commands were found in the alerts", found)
	}
}

// TestTheUnitsStartRealCommands reads what systemd would start.
func TestTheUnitsStartRealCommands(t *testing.T) {
	files, err := filepath.Glob("../packaging/systemd/*.service")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, command, _ := strings.Cut(string(text), "\nExecStart=/usr/bin/")
		command, _, _ = strings.Cut(command, "\n")
		args := strings.Fields(command)[1:]
		if err := parses(args); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// sharedBuffer is a buffer for a command that still writes while the test reads.
type sharedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *sharedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *sharedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

var metricsAt = regexp.MustCompile(`metrics: (http://[0-9.:]+)/metrics`)

func TestAWorkerShowsItsMetricsAndHealth(t *testing.T) {
	testkit.Long(t)
	redis, db := testkit.Redis(t), stores.Database(t, 2)
	env := map[string]string{"DROPCTL_REDIS_URL": redis.SocketURL(), "DROPCTL_DATABASE_URL": db.URL(lab.App), "DROPCTL_CONFIG": "none", "DROPCTL_LISTEN": "serve's own"}
	if r := run(t, env, "worker", "--until-idle", "-q"); r.exit != 0 || strings.Contains(r.err, "serve's own") {
		t.Errorf("a worker listens where the API does: exit %d\n%s", r.exit, r.err)
	}
	if r := run(t, env, "seed", "hat", "--stock", "7"); r.exit != 0 {
		t.Fatal(r.err)
	}
	var errs sharedBuffer
	ctx, stop := context.WithCancelCause(t.Context())
	exit := make(chan int, 1)
	go func() {
		exit <- Main(ctx, []string{"worker", "--listen", "127.0.0.1:0"}, Streams{In: strings.NewReader(""), Out: io.Discard, Err: &errs, Getenv: func(name string) string { return env[name] }})
	}()
	defer func() {
		stop(fault.New(fault.Terminated, "stopped"))
		if got := <-exit; got != 143 {
			t.Errorf("exit %d\n%s", got, errs.String())
		}
	}()
	var base string
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		if m := metricsAt.FindStringSubmatch(errs.String()); m != nil {
			base = m[1]
		}
		return base != "", errs.String()
	})
	if r := run(t, env, "worker", "--listen", strings.TrimPrefix(base, "http://")); r.exit != 5 || !strings.Contains(r.err, "in use by another process") {
		t.Errorf("a second worker at the same address: exit %d\n%s", r.exit, r.err)
	}
	if r := run(t, env, "worker", "--listen", "9464"); r.exit != 2 {
		t.Errorf("no address: exit %d\n%s", r.exit, r.err)
	}
	awaitReady(t, base, true, "")
	if status, body := fetch(t, base+"/livez"); status != 200 {
		t.Errorf("livez: %d %s", status, body)
	}
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		_, body := fetch(t, base+"/metrics")
		for _, line := range []string{`dropctl_up{store="redis"} 1`, `dropctl_lot_available_units{lot="hat"} 7`, `dropctl_worker_entries_total 1`, `dropctl_engine_breaker_state{node="` + redis.Socket() + `"} 0`} {
			if !strings.Contains(body, "\n"+line+"\n") {
				return false, line + " is not in\n" + body
			}
		}
		return true, ""
	})
	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, base, false, "redis")
}

// awaitReady waits until /readyz says so and, where it is not ready, that it is because of this dependency.
func awaitReady(t *testing.T, base string, ready bool, because string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		status, body := fetch(t, base+"/readyz")
		var r telemetry.Readiness
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		for _, check := range []string{"redis", "postgres", "relay", "finalise", "sweep", "guardian"} {
			if _, there := r.Checks[check]; !there {
				t.Fatalf("nothing is said of %s: %s", check, body)
			}
		}
		return r.Ready == ready && (status == 200) == ready && (ready || !r.Checks[because].OK && r.Checks["postgres"].OK), body
	})
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
