package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// BenchmarkRestore measures `dropctl restore --all` after Redis was emptied, of one lot with a million records and of 10,000
// lots with 20 records each:
//
//	go test -run '^$' -bench Restore -benchtime 1x -timeout 30m ./cmd/dropctl
//
// With -short there are fewer.
func BenchmarkRestore(b *testing.B) {
	lots, many, few := 10_000, 1_000_000, 20
	if testing.Short() {
		lots, many = 200, 20_000
	}
	b.Run(fmt.Sprintf("records=%d", many), func(b *testing.B) { benchmarkRestore(b, 1, many) })
	b.Run(fmt.Sprintf("lots=%d", lots), func(b *testing.B) { benchmarkRestore(b, lots, few) })
}

func benchmarkRestore(b *testing.B, lots, each int) {
	redis, db := testkit.Redis(b), testkit.Postgres(b)
	var cpu time.Duration // of the last command
	run := func(args ...string) {
		b.Helper()
		cmd := as("dropctl", args...)
		cmd.Env = append(cmd.Env, "DROPCTL_REDIS_URL="+redis.URL(), "DROPCTL_DATABASE_URL="+db.URL(lab.Owner), "DROPCTL_OUTPUT=json", "DROPCTL_YES=1")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Run(); err != nil {
			b.Fatalf("%v: %v\n%s", args, err, &errs)
		}
		cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	run("migrate", "up")
	run("seed", "--file", lotFile(b, lots, each))
	sellAll(b, redis, lots, each)
	run("worker", "--until-idle", "--max-events-per-second", "1000000", "--timeout", "2m")
	for b.Loop() {
		b.StopTimer()
		if _, err := redis.Do(b.Context(), "FLUSHALL"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		run("restore", "--all", "--timeout", "1m")
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/run")
	b.ReportMetric(cpu.Seconds(), "cpu-s") // says more where others use the machine too
	run("worker", "--until-idle", "--max-events-per-second", "1000000", "--timeout", "2m")
	run("reconcile")
}

func lotFile(b *testing.B, lots, each int) string {
	b.Helper()
	var csv strings.Builder
	csv.WriteString("lot,stock,hold\n")
	for i := range lots {
		_, _ = fmt.Fprintf(&csv, "lot-%d,%d,1h\n", i, each)
	}
	path := filepath.Join(b.TempDir(), "lots.csv")
	if err := os.WriteFile(path, []byte(csv.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// sellAll has every unit held by another user; every fourth is then confirmed, and every fourth released.
func sellAll(b *testing.B, redis *lab.Redis, lots, each int) {
	b.Helper()
	s, err := stock.Open(stock.Options{URL: redis.SocketURL(), OutboxMaxBytes: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	const callers = 256
	sell := func(ctx context.Context, i int) error {
		user := fmt.Sprint("user-", i)
		out, err := s.Reserve(ctx, drop.ReserveRequest{Lot: drop.LotID(fmt.Sprint("lot-", i%lots)), User: user, Key: user, Qty: 1, Hold: time.Hour})
		if err != nil || i/lots%4 < 2 {
			return err
		}
		_, err = s.Settle(ctx, drop.SettleRequest{ID: out.Reservation.ID, Action: []drop.Action{drop.ActConfirm, drop.ActRelease}[i/lots%2], Ref: "pay"})
		return err
	}
	var crowd sync.WaitGroup
	for caller := range callers {
		crowd.Go(func() {
			for i := caller; i < lots*each; i += callers {
				if err := sell(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	crowd.Wait()
}
