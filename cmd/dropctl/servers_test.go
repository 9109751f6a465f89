package main

import (
	"context"
	"errors"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
	"github.com/dropctl/dropctl/pkg/testkit/stores"
)

// scriptCommands are what scripts can do besides testscript's own commands.
var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"redis":    positive(redisCommand),
	"database": positive(databaseCommand),
	"exits":    positive(exitsCommand),
	"await":    positive(awaitCommand),
	"keep":     positive(keepCommand),
	"serve":    positive(serveCommand),
}

// positive refuses a ! in front of a command that means nothing with it.
func positive(run func(ts *testscript.TestScript, args []string)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg {
			ts.Fatalf("this command takes no !")
		}
		run(ts, args)
	}
}

// servers are the private servers of one script.
type servers struct {
	tb    testing.TB
	redis *lab.Redis
	db    testkit.Database
	api   *exec.Cmd
}

type serversKey struct{}

// withServers lets a script start servers of its own, which end with it.
func withServers(e *testscript.Env) {
	e.Values[serversKey{}] = &servers{tb: e.T().(testing.TB)} // documented to be one
}

func serversOf(ts *testscript.TestScript) *servers { return ts.Value(serversKey{}).(*servers) }

// redisCommand: redis start | kill | pause | resume | do COMMAND ARG…
//
// The first start names the server in DROPCTL_REDIS_URL; later ones start it again on the same data.
func redisCommand(ts *testscript.TestScript, args []string) {
	s := serversOf(ts)
	if len(args) == 0 || s.redis == nil && args[0] != "start" {
		ts.Fatalf("usage: redis start, then kill, pause, resume, start, do")
	}
	ctx := context.Background()
	switch args[0] {
	case "start":
		if s.redis != nil {
			ts.Check(s.redis.Start(ctx))
			return
		}
		s.redis = testkit.Redis(s.tb)
		ts.Setenv("DROPCTL_REDIS_URL", s.redis.URL())
	case "kill":
		ts.Check(s.redis.Kill())
	case "pause":
		ts.Check(s.redis.Pause())
	case "resume":
		ts.Check(s.redis.Resume())
	case "do":
		_, err := s.redis.Do(ctx, args[1:]...)
		ts.Check(err)
	default:
		ts.Fatalf("redis cannot %s", args[0])
	}
}

// databaseCommand: database [empty] | do STATEMENTS
//
// It makes a database, migrated unless it is to be empty, and names it in DROPCTL_DATABASE_URL as the runtime role and in
// OWNER_URL as the owner. With do it changes that one as somebody who may do anything.
func databaseCommand(ts *testscript.TestScript, args []string) {
	s := serversOf(ts)
	if len(args) == 2 && args[0] == "do" {
		s.db.SQL(s.tb, args[1])
		return
	}
	if len(args) == 0 {
		s.db = stores.Database(s.tb, 0)
	} else {
		s.db = testkit.Postgres(s.tb)
	}
	ts.Setenv("DROPCTL_DATABASE_URL", s.db.URL(lab.App))
	ts.Setenv("OWNER_URL", s.db.URL(lab.Owner))
}

// exitsCommand: exits STATUS PROGRAM ARG…
func exitsCommand(ts *testscript.TestScript, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits STATUS PROGRAM ARG…")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("the exit status is %d, not %s", got, args[0])
	}
}

// awaitCommand: await REGEXP PROGRAM ARG…
//
// It runs the program again and again until its stdout matches.
func awaitCommand(ts *testscript.TestScript, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: await REGEXP PROGRAM ARG…")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := ts.Exec(args[1], args[2:]...)
		if want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("still no %s (%v)", args[0], err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// keepCommand: keep NAME sets a variable to what the last program printed.
func keepCommand(ts *testscript.TestScript, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: keep NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}
