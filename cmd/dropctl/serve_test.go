package main

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// serveCommand: serve start [FLAG…] | stop | kill
//
// It starts a server of the script's own stores at a free port and names it in API. A later start takes the same port.
func serveCommand(ts *testscript.TestScript, args []string) {
	s := serversOf(ts)
	if len(args) == 0 || s.api == nil && args[0] != "start" {
		ts.Fatalf("usage: serve start [FLAG…], then stop, kill, start")
	}
	switch args[0] {
	case "start":
		listen := "127.0.0.1:0"
		if known := ts.Getenv("API"); known != "" {
			listen = strings.TrimPrefix(known, "http://")
		}
		api, url := startAPI(s.tb, scriptEnv(ts), append([]string{"--listen", listen}, args[1:]...)...)
		s.api = api
		ts.Setenv("API", url)
	case "stop":
		ts.Check(s.api.Process.Signal(os.Interrupt))
		_ = s.api.Wait()
	case "kill":
		ts.Check(s.api.Process.Kill())
		_ = s.api.Wait()
	default:
		ts.Fatalf("serve cannot %s", args[0])
	}
}

// scriptEnv is what a server of a script is told about its stores.
func scriptEnv(ts *testscript.TestScript) []string {
	var env []string
	for _, name := range []string{"HOME", "DROPCTL_REDIS_URL", "DROPCTL_DATABASE_URL"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	return env
}

var listening = regexp.MustCompile(`listening on (http://\S+)`)

// startAPI starts dropctl serve and returns it once it listens. It ends with the test.
func startAPI(tb testing.TB, env []string, args ...string) (*exec.Cmd, string) {
	tb.Helper()
	cmd := as("dropctl", append([]string{"serve", "--log-level", "error"}, args...)...)
	cmd.Env = append(cmd.Env, env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url, said := make(chan string, 1), make(chan string, 1)
	go func() {
		var text strings.Builder
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			text.WriteString(lines.Text() + "\n")
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				url <- m[1]
			}
		}
		said <- text.String()
	}()
	select {
	case found := <-url:
		return cmd, found
	case text := <-said:
		tb.Fatalf("the server ended: %s", text)
	case <-time.After(30 * time.Second):
		tb.Fatal("the server does not listen")
	}
	return nil, ""
}
