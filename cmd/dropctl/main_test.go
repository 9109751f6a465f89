package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dropctl/dropctl/pkg/fault"
)

// TestMain makes this test binary act as dropctl when it is called by that name, so that scripts and
// tests run the real main in a process of its own, race detector and all.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"dropctl":  main,
		"graceful": graceful,
		"stubborn": stubborn,
		"slow":     slow,
	})
}

// quickExit keeps the race detector from sleeping for a second at every exit.
var quickExit = [2]string{"GORACE", "atexit_sleep_ms=0"}

// TestScripts runs the end-to-end tests in testdata/script.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/script",
		Cmds: scriptCommands,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("USER", "tester")
			e.Setenv(quickExit[0], quickExit[1])
			withServers(e)
			return nil
		},
	})
}

// graceful is a program that stops when it is asked to.
func graceful() {
	ctx, stop := untilSignal(context.Background())
	defer stop()
	fmt.Println("ready")
	<-ctx.Done()
	os.Exit(int(fault.ExitOf(context.Cause(ctx))))
}

// stubborn is a program that says it was asked to stop, and goes on.
func stubborn() {
	ctx, _ := untilSignal(context.Background())
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println("asked")
	select {}
}

// slow is a program that ends well, but needs a moment after it was asked to stop.
func slow() {
	ctx, _ := untilSignal(context.Background())
	fmt.Println("ready")
	<-ctx.Done()
	time.Sleep(2 * oneWish)
}

// as returns this binary acting as one of the programs above.
func as(program string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(self)
	cmd.Args = append([]string{program}, args...)
	cmd.Env = append(os.Environ(), "DROPCTL_CONFIG=none", quickExit[0]+"="+quickExit[1])
	return cmd
}

func exitOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

func TestAClosedPipeIsNoError(t *testing.T) {
	for _, args := range [][]string{{"explain", "-o", "json"}, {"explain"}, {"--help"}, {"explain", "--jq", "."}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		cmd := as("dropctl", args...)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = w, &stderr
		err = cmd.Run()
		_ = w.Close()
		if exit := exitOf(t, err); exit != 0 || stderr.Len() > 0 {
			t.Errorf("%v: exit %d, %v, %s", args, exit, err, &stderr)
		}
	}
}

func TestAFullDiskIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		full, err = os.Open(os.DevNull) // where there is no /dev/full, a stream that cannot be written to
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	cmd := as("dropctl", "explain")
	cmd.Stdout = full
	if exit := exitOf(t, cmd.Run()); exit != 1 {
		t.Errorf("exit %d", exit)
	}
}
