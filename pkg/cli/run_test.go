package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/fault"
)

// result is what one run of the command line left behind.
type result struct {
	exit     int
	out, err string
}

// run runs a command line in an environment of its own, without any config file of this machine.
func run(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	return runWith(t.Context(), env, nil, args...)
}

// expecting returns what runs commands that have to end with an exit status and to print a text, on either stream; "" is any.
func expecting(t *testing.T, env map[string]string) func(exit int, text string, args ...string) result {
	return func(exit int, text string, args ...string) result {
		t.Helper()
		r := run(t, env, args...)
		if r.exit != exit || !strings.Contains(r.out+r.err, text) {
			t.Fatalf("%v: exit %d, want %d and %q\n%s%s", args, r.exit, exit, text, r.out, r.err)
		}
		return r
	}
}

// runWith also takes a context and commands to add to the tree.
func runWith(ctx context.Context, env map[string]string, extra []*cobra.Command, args ...string) result {
	var out, errs bytes.Buffer
	getenv := func(name string) string {
		if value, ok := env[name]; ok || name != "DROPCTL_CONFIG" {
			return value
		}
		return "none"
	}
	a := newApp(args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: getenv})
	root := newRoot(a)
	for _, c := range extra {
		finishLeaf(a, c)
		root.AddCommand(c)
	}
	exit := a.execute(ctx, root, args)
	return result{exit, out.String(), errs.String()}
}

// errorObject reads stderr, which has to be one JSON object and nothing else.
func (r result) errorObject(t *testing.T) errorView {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(r.err))
	var v errorView
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("stderr is no JSON object: %v\n%s", err, r.err)
	}
	if _, err := dec.Token(); err != io.EOF {
		t.Fatalf("stderr holds more than one object: %s", r.err)
	}
	if r.out != "" {
		t.Errorf("stdout is not empty: %q", r.out)
	}
	if v.Code == "" || v.Message == "" || v.Hint == "" || int(v.Exit) != r.exit {
		t.Errorf("exit %d, incomplete object %s", r.exit, r.err)
	}
	return v
}

func TestErrorsOfUsage(t *testing.T) {
	cases := []struct {
		args string
		exit int
		want string // in stderr
	}{
		{"explian", 2, "did you mean dropctl explain?"},
		{"zzzz", 2, "see what there is: dropctl --help"},
		{"config viwe", 2, "did you mean dropctl config view?"},
		{"config viwe --origin", 2, "did you mean dropctl config view?"},
		{"config viwe --help", 2, "did you mean dropctl config view?"},
		{"config", 2, "dropctl config needs a command"},
		{"version --otput json", 2, "did you mean --output?"},
		{"version -o", 2, "needs an argument"},
		{"version -Z", 2, "unknown shorthand"},
		{"version extra", 2, `"extra" is one argument too many`},
		{"version -o xml", 2, "table, wide, json"},
		{"version --jq .[", 2, "no jq expression"},
		{"version --fields versio", 2, "the fields are: version, commit"},
		{"version --timeout soon", 2, "such as 10s"},
		{"completion", 2, "usage: dropctl completion SHELL"},
		{"completion fsih", 2, "did you mean dropctl completion fish?"},
		{"completion fish bash", 2, `"bash" is one argument too many`},
		{"reserve hat", 2, "--user is missing"},
		{"extend hat~mfrggzdfmztwq2lknnwg23tpoa~1", 2, "--by is missing"},
		{"reserve", 2, "LOT is missing"},
		{"worker --only=", 2, "--only has an empty place"},
		{"doctor --only=", 2, "--only has an empty place"},
		{"doctor --only redis,", 2, "--only has an empty place"},
		{"hook add https://shop.example/ --kinds=", 2, "--kinds has an empty place"},
		{"version --fields=", 2, "--fields has an empty place"},
		{"confirm", 2, "ID is missing"},
		{"reservation list truffle-99", 2, "did you mean --lot truffle-99?"},
		{"explain sold-out", 3, "did you mean dropctl explain sold_out?"},
		{"explain xxxxxxxxxxxxxxxxxxx", 3, "list them all: dropctl explain"},
		{"help exitcodes", 2, "did you mean dropctl help exit-codes?"},
		{"help config viewz", 2, "did you mean dropctl config view?"},
		{"restore hat --actor a\ab", 2, "actor contains a character"},
		{"config view --config /does/not/exist", 2, "(invalid_config)"},
	}
	for _, c := range cases {
		t.Run(c.args, func(t *testing.T) {
			args := strings.Fields(c.args)
			r := run(t, nil, args...)
			if r.exit != c.exit || r.out != "" || !strings.Contains(r.err, c.want) || !strings.Contains(r.err, "\nhint: ") && !strings.HasPrefix(r.err, "hint: ") {
				t.Errorf("exit %d, stdout %q, stderr\n%s", r.exit, r.out, r.err)
			}
			if strings.Contains(c.args, "-o") && !strings.Contains(c.args, "--o") {
				return // has a format of its own
			}
			asJSON := run(t, nil, append(args, "-o", "json")...)
			if v := asJSON.errorObject(t); asJSON.exit != c.exit || !strings.Contains(v.Message+v.Hint, strings.TrimPrefix(c.want, "(")[:5]) && c.want[0] != '(' {
				t.Errorf("exit %d, %+v", asJSON.exit, v)
			}
		})
	}
}

func TestAnErrorIsJSONHoweverItWasAskedFor(t *testing.T) {
	for _, args := range []string{"version --bad -o json", "version --bad -ojson", "version --bad -o=json", "version -o jsonl --bad", "version --output json --bad", "--output=json version --bad"} {
		run(t, nil, strings.Fields(args)...).errorObject(t)
	}
	run(t, map[string]string{"DROPCTL_OUTPUT": "json"}, "version", "--bad").errorObject(t)
}

func TestACancelledRun(t *testing.T) {
	waits := func(answer func(context.Context) error) []*cobra.Command {
		return []*cobra.Command{{Use: "wait", RunE: func(cmd *cobra.Command, _ []string) error {
			<-cmd.Context().Done()
			return answer(cmd.Context())
		}}}
	}
	cases := []struct {
		name   string
		cause  error
		answer func(context.Context) error
		exit   int
		stderr string
	}{
		{"a service that stopped as asked", fault.New(fault.Terminated, "stopped"), func(context.Context) error { return nil }, 143, ""},
		{"a call that was cut off", fault.New(fault.Interrupted, "interrupted"), func(ctx context.Context) error { return ctx.Err() }, 130, "(interrupted)"},
		{"a server error that is only the cut", fault.New(fault.Terminated, "stopped"), func(ctx context.Context) error {
			return fault.Wrap(fault.Unavailable, ctx.Err(), "Redis")
		}, 143, "(terminated)"},
		{"an outcome nobody knows stays", fault.New(fault.Interrupted, "interrupted"), func(ctx context.Context) error {
			return fault.Wrap(fault.OutcomeUnknown, ctx.Err(), "Redis")
		}, 5, "(outcome_unknown)"},
		{"an error of its own stays", fault.New(fault.Interrupted, "interrupted"), func(context.Context) error {
			return fault.New(fault.SoldOut, "no unit left")
		}, 4, "(sold_out)"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(c.cause)
			r := runWith(ctx, nil, waits(c.answer), "wait")
			if r.exit != c.exit || !strings.Contains(r.err, c.stderr) || (c.stderr == "" && r.err != "") {
				t.Errorf("exit %d, stderr %q", r.exit, r.err)
			}
		})
	}
}

func TestAPanicReachesNobody(t *testing.T) {
	bad := func() []*cobra.Command {
		return []*cobra.Command{{Use: "bad", RunE: func(*cobra.Command, []string) error { panic("boom") }}}
	}
	r := runWith(t.Context(), nil, bad(), "bad")
	if r.exit != 1 || !strings.Contains(r.err, "boom") || !strings.Contains(r.err, "dropctl version") || strings.Contains(r.err, "goroutine") {
		t.Errorf("exit %d\n%s", r.exit, r.err)
	}
	if r := runWith(t.Context(), nil, bad(), "bad", "--debug"); !strings.Contains(r.err, "goroutine") {
		t.Errorf("no stack with --debug:\n%s", r.err)
	}
	if r := runWith(t.Context(), nil, bad(), "bad", "-o", "json"); r.errorObject(t).Code != fault.Failed {
		t.Error(r.err)
	}
}

func TestAnErrorOfACommandIsNotAboutUsage(t *testing.T) {
	bad := &cobra.Command{Use: "bad", RunE: func(*cobra.Command, []string) error { return errors.New("disk full") }}
	if r := runWith(t.Context(), nil, []*cobra.Command{bad}, "bad"); r.exit != 1 || !strings.Contains(r.err, "disk full (failed)") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
}

func TestRequiredFlagsAreUsageAndMayComeFromTheEnvironment(t *testing.T) {
	want := func() []*cobra.Command {
		c := &cobra.Command{Use: "want", RunE: func(*cobra.Command, []string) error { return nil }}
		c.Flags().String("user", "", "")
		_ = c.MarkFlagRequired("user")
		return []*cobra.Command{c}
	}
	if r := runWith(t.Context(), nil, want(), "want"); r.exit != 2 || !strings.Contains(r.err, `--user is missing (usage)`) {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if r := runWith(t.Context(), map[string]string{"DROPCTL_USER": "ada"}, want(), "want"); r.exit != 0 {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
}

func TestHelpIsData(t *testing.T) {
	for _, args := range []string{"--help", "", "help", "config --help", "help config", "help config view", "config view -h"} {
		if r := run(t, nil, strings.Fields(args)...); r.exit != 0 || r.err != "" || !strings.Contains(r.out, "Usage\n") {
			t.Errorf("%q: exit %d, stderr %q, stdout\n%s", args, r.exit, r.err, r.out)
		}
	}
	for _, topic := range topics {
		r := run(t, nil, "help", topic.name, "-o", "json")
		if r.exit != 0 || !json.Valid([]byte(r.out)) {
			t.Errorf("%s: exit %d\n%s", topic.name, r.exit, r.out)
		}
		if r := run(t, nil, "help", topic.name); r.exit != 0 || len(r.out) < 200 {
			t.Errorf("%s: exit %d\n%s", topic.name, r.exit, r.out)
		}
	}
}

func TestExitCodesTopicIsTheTable(t *testing.T) {
	var list []exitView
	r := run(t, nil, "help", "exit-codes", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != len(fault.Exits()) || list[len(list)-1].Exit != fault.ExitTerminated {
		t.Errorf("got %+v", list)
	}
}

func TestCommandsThatWorkWithABrokenConfig(t *testing.T) {
	env := map[string]string{"DROPCTL_CONFIG": "/does/not/exist"}
	for _, args := range []string{"version", "explain", "help words", "completion bash", "config path", "__complete explain s"} {
		if r := run(t, env, strings.Fields(args)...); r.exit != 0 || r.out == "" {
			t.Errorf("%s: exit %d, %s", args, r.exit, r.err)
		}
	}
	if r := run(t, env, "config", "view"); r.exit != 2 {
		t.Errorf("config view: exit %d", r.exit)
	}
}

func TestConfigViewHidesPasswords(t *testing.T) {
	env := map[string]string{"DROPCTL_DATABASE_URL": "postgres://u:hunter2@h/d"}
	for _, format := range []string{"table", "wide", "json", "jsonl", "yaml", "name"} {
		r := run(t, env, "config", "view", "--origin", "--redis-url", "redis://:hunter2@h", "-o", format)
		if r.exit != 0 || strings.Contains(r.out+r.err, "hunter2") {
			t.Errorf("%s: exit %d\n%s%s", format, r.exit, r.out, r.err)
		}
		if !strings.Contains(r.err, "warning: the password in --redis-url") {
			t.Errorf("%s: no warning in %q", format, r.err)
		}
	}
	r := run(t, env, "config", "view", "--origin")
	if !strings.Contains(r.out, "database-url\tpostgres://u:[redacted]@h/d\tenv DROPCTL_DATABASE_URL\n") {
		t.Errorf("got\n%s", r.out)
	}
}
