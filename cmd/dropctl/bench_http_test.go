package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

// benchHTTP is a measurement in a process of its own, which is told about a server by env.
func benchHTTP(env []string, args ...string) (cmd *exec.Cmd, out, errs *bytes.Buffer) {
	cmd = as("dropctl", append([]string{"bench", "http", "-o", "jsonl", "--warmup", "0s"}, args...)...)
	out, errs = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Env, cmd.Stdout, cmd.Stderr = append(cmd.Env, env...), out, errs
	return cmd, out, errs
}

func resultOf(t *testing.T, out, errs *bytes.Buffer) (r bench.Result) {
	t.Helper()
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %q\n%s", err, out, errs)
	}
	return r
}

// Without a server one is started, on private stores. Every sale goes through it, its connections are kept, its processor time
// is told, and both stores are audited.
func TestBenchHTTPMeasuresAPrivateServer(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	cmd, out, errs := benchHTTP(nil, "--mix", "full", "--rate", "40", "--users", "200", "--duration", "1s")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	r := resultOf(t, out, errs)
	if r.Target != "http" || r.Accepted.Count == 0 || r.Failed() != 0 || r.Refused.Count != 0 {
		t.Errorf("%d accepted, %d refused, errors %v\n%s", r.Accepted.Count, r.Refused.Count, r.Errors, errs)
	}
	if r.Audit.Verdict != bench.AuditOK || r.Server == nil || r.Server.Connections == 0 || runtime.GOOS == "linux" && (r.Server.CPU == nil || *r.Server.CPU <= 0) {
		t.Errorf("audit %+v, server %+v", r.Audit, r.Server)
	}
	if runtime.GOOS == "linux" && r.Postgres.CPU == nil {
		t.Errorf("what PostgreSQL used is missing: %+v", r.Postgres)
	}
	if r.Batch == nil || r.Batch.Mean < 1 || r.Batch.P99 < r.Batch.P50 || !r.Batch.AtMost {
		t.Errorf("batches %+v, not known %v", r.Batch, r.NotKnown)
	}
}

// A server that runs is measured with lots made for it, which are closed afterwards, also after an interruption. One with other
// lots has to be confirmed.
func TestBenchHTTPMeasuresARunningServer(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	redis, db := testkit.Redis(t), stores.Database(t, 0)
	_, url := startAPI(t, []string{"DROPCTL_REDIS_URL=" + redis.URL(), "DROPCTL_DATABASE_URL=" + db.URL(lab.App), "DROPCTL_LIMIT_USER=0"}, "--listen", "127.0.0.1:0")
	env := []string{"DROPCTL_SERVER=" + url, "DROPCTL_TIMEOUT=30s"}
	c, err := client.New(client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// wantLots waits: the list that a server gives may be a moment old.
	wantLots := func(wantAll, wantSelling int) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() (bool, string) {
			all, selling := 0, 0
			for l, err := range c.AllLots(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if all++; l.Selling {
					selling++
				}
			}
			return all == wantAll && selling == wantSelling, fmt.Sprintf("%d lots, %d of them on sale; want %d, %d", all, selling, wantAll, wantSelling)
		})
	}

	cmd, out, errs := benchHTTP(env, "--mix", "sold-out", "--users", "4", "--duration", "500ms", "--lots", "3", "--stock", "5")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	r := resultOf(t, out, errs)
	if r.Accepted.Count != 15 || r.Refused.Count == 0 || r.Failed() != 0 || r.Audit.Verdict != bench.AuditOK {
		t.Errorf("%d accepted, %d refused, errors %v, audit %+v", r.Accepted.Count, r.Refused.Count, r.Errors, r.Audit)
	}
	if r.Server == nil || r.Server.Connections < 1 || r.Server.Connections > 4 || runtime.GOOS == "linux" && r.Server.CPU == nil {
		t.Errorf("4 users, and the server: %+v", r.Server)
	}
	if r.Batch == nil || r.Batch.Mean < 1 || r.NotKnown["redis"] == "" || r.NotKnown["postgres"] == "" || r.NotKnown["batch"] != "" {
		t.Errorf("batches %+v, not known %v", r.Batch, r.NotKnown)
	}
	wantLots(3, 0)

	ten := int64(10)
	if _, _, err := c.PutLot(t.Context(), "hat", client.LotBody{Stock: &ten}); err != nil {
		t.Fatal(err)
	}
	wantLots(4, 1)
	cmd, out, errs = benchHTTP(env, "--users", "2", "--duration", "200ms")
	if exit := exitOf(t, cmd.Run()); exit != int(fault.ExitUsage) || out.Len() > 0 || !strings.Contains(errs.String(), strings.TrimPrefix(url, "http://")) {
		t.Errorf("a server with a lot of its own: exit %d\n%s%s", exit, out, errs)
	}
	wantLots(4, 1)
	cmd, out, errs = benchHTTP(env, "--users", "2", "--duration", "1h", "--yes")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		for l, err := range c.AllLots(t.Context()) {
			if err == nil && l.Held > 0 && l.Lot != "hat" && l.Selling {
				return true, ""
			}
		}
		return false, "nobody is accepted"
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if exit := exitOf(t, cmd.Wait()); exit != int(fault.ExitInterrupted) {
		t.Errorf("interrupted: exit %d\n%s", exit, errs)
	}
	if r := resultOf(t, out, errs); !r.Interrupted || r.Accepted.Count == 0 || r.Audit.Verdict != bench.AuditOK {
		t.Errorf("interrupted %v, %d accepted, audit %+v", r.Interrupted, r.Accepted.Count, r.Audit)
	}
	wantLots(5, 1)

	// What a killed run left is told to the next.
	if _, _, err := c.PutLot(t.Context(), "bench-00000-killed", client.LotBody{Stock: &ten}); err != nil {
		t.Fatal(err)
	}
	wantLots(6, 2)
	cmd, out, errs = benchHTTP(env, "--users", "2", "--duration", "200ms")
	if exit := exitOf(t, cmd.Run()); exit != int(fault.ExitUsage) || out.Len() > 0 || !strings.Contains(errs.String(), "dropctl lot close bench-00000-killed") {
		t.Errorf("beside a lot of a killed run: exit %d\n%s%s", exit, out, errs)
	}
}
