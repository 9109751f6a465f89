//go:build !windows

package main

import (
	"bufio"
	"os/exec"
	ossignal "os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// start runs one of the programs of TestMain until it says that it is ready, with its output to read on.
func start(t *testing.T, program string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := as(program)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		watchdog.Stop()
		_ = cmd.Process.Kill()
	})
	lines := bufio.NewReader(out)
	expect(t, lines, "ready")
	return cmd, lines
}

func expect(t *testing.T, lines *bufio.Reader, want string) {
	t.Helper()
	if line, err := lines.ReadString('\n'); strings.TrimSpace(line) != want {
		t.Fatalf("got %q, %v, want %q", line, err, want)
	}
}

func TestTheFirstSignalStopsGracefully(t *testing.T) {
	for signal, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 143} {
		if ossignal.Ignored(signal) { // by who started the tests, as nohup does; then it stays so
			continue
		}
		cmd, _ := start(t, "graceful")
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if exit := exitOf(t, cmd.Wait()); exit != want {
			t.Errorf("%s: exit %d, want %d", signal, exit, want)
		}
	}
}

func TestTheSecondSignalExitsAtOnce(t *testing.T) {
	for signal, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		cmd, lines := start(t, "stubborn")
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		expect(t, lines, "asked")
		time.Sleep(2 * oneWish) // or it would be the same wish once more
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if exit := exitOf(t, cmd.Wait()); exit != want {
			t.Errorf("%s: exit %d, want %d", signal, exit, want)
		}
	}
}

// timeout(1), for one, signals a process and then its whole group. The program stands still until all have been sent.
func TestSignalsAtOnceAreOneWish(t *testing.T) {
	cmd, _ := start(t, "slow")
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGCONT} {
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	if exit := exitOf(t, cmd.Wait()); exit != 0 {
		t.Errorf("it was not left to end in peace: exit %d", exit)
	}
}
