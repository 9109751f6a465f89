package main

import (
	"bufio"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/testkit"
)

// The program goes on until it is forced: one that stops at once may end before it has said anything.
func TestATerminalIsToldHowToForce(t *testing.T) {
	person, program := testkit.Terminal(t)
	cmd := as("stubborn")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = program
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	expect(t, bufio.NewReader(out), "ready")
	interrupt := func() {
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	interrupt()
	line, err := bufio.NewReader(person).ReadString('\n')
	if !strings.Contains(line, "press Ctrl-C again to force") {
		t.Errorf("got %q, %v", line, err)
	}
	time.Sleep(2 * oneWish) // or it would be the same wish once more
	interrupt()
	if exit := exitOf(t, cmd.Wait()); exit != 130 {
		t.Errorf("exit %d", exit)
	}
}
