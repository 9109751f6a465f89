//go:build unix

package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childVariable makes the test binary start a lab, tell what it started and wait to be killed.
const childVariable = "DROPCTL_LAB_TEST_CHILD"

// long marks a test that takes several seconds, as testkit.Long does for those who may use it.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes several seconds; make test runs it")
	}
}

type childReport struct {
	PIDs []int
	Dirs []string
}

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		startLabAndWait()
	}
	os.Exit(m.Run())
}

func startLabAndWait() {
	ctx := context.Background()
	l, err := Start(ctx, RedisOptions{}, PostgresOptions{})
	if err == nil {
		err = l.Redis.Pause() // a paused process does not see a polite signal
	}
	var crashed *Redis // its folder must go, too
	if err == nil {
		crashed, err = StartRedis(ctx, RedisOptions{})
	}
	if err == nil {
		err = crashed.Kill()
	}
	var small *Redis // its disk must go, too
	if err == nil {
		small, err = StartRedis(ctx, RedisOptions{DiskSize: 4 << 20})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(childReport{
		PIDs: []int{l.Redis.PID(), l.Postgres.PID(), small.PID(), small.disk.PID()},
		Dirs: []string{l.Redis.Dir(), l.Postgres.Dir(), crashed.Dir(), small.Dir(), small.disk.Dir()},
	})
	select {}
}

func TestNothingOutlivesAKilledParent(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), childVariable+"=1")
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var started childReport
	if err := json.Unmarshal(line, &started); err != nil {
		t.Fatal(err)
	}
	for _, pid := range started.PIDs {
		if !processExists(pid) {
			t.Fatalf("process %d does not run before the kill", pid)
		}
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	eventually(t, 20*time.Second, func() string {
		for _, pid := range started.PIDs {
			if processExists(pid) {
				return fmt.Sprintf("process %d still runs", pid)
			}
		}
		for _, dir := range started.Dirs {
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				return "still there: " + dir
			}
		}
		return ""
	})
}

func TestStartTogetherAndStop(t *testing.T) {
	t.Parallel()
	l, err := Start(t.Context(), RedisOptions{}, PostgresOptions{NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{l.Redis.Dir(), l.Postgres.Dir()} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there", dir)
		}
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, RedisOptions{}, PostgresOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want a cancelled start", err)
	}
}

func processExists(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// eventually waits until the condition has nothing to complain about any more.
func eventually(t *testing.T, limit time.Duration, complaint func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		problem := complaint()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(problem)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func mustContain(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not contain %q", text, part)
		}
	}
}
