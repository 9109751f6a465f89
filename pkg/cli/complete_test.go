package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// complete asks the shell's question of a command whose words come from list.
func complete(t *testing.T, list func(context.Context, string) ([]candidate, error), args ...string) string {
	t.Helper()
	a := newApp(nil, Streams{Getenv: func(name string) string {
		if name == "DROPCTL_CONFIG" {
			return "none"
		}
		return ""
	}})
	root := newRoot(a)
	cmd := &cobra.Command{Use: "lotty", ValidArgsFunction: a.completeFrom(list), RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(cmd)
	var out strings.Builder
	a.stdout = &out
	root.SetOut(&out)
	root.SetErr(new(strings.Builder))
	if exit := a.execute(t.Context(), root, append([]string{"__complete", "lotty"}, args...)); exit != 0 {
		t.Fatalf("exit %d", exit)
	}
	return out.String()
}

func TestCompletionFromAServer(t *testing.T) {
	list := func(context.Context, string) ([]candidate, error) {
		return []candidate{{"truffle-1", "40 left"}, {"truffle-2", ""}, {"wine", ""}}, nil
	}
	if got := complete(t, list, "tru"); got != "truffle-1\t40 left\ntruffle-2\n:4\n" {
		t.Errorf("got %q", got)
	}
	if got := complete(t, list, "truffle-1", ""); got != "truffle-2\nwine\n:4\n" {
		t.Errorf("a word that is there is offered again: %q", got)
	}
}

func TestCompletionIsSilentAndQuick(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for name, list := range map[string]func(context.Context, string) ([]candidate, error){
		"error": func(context.Context, string) ([]candidate, error) { return nil, errors.New("no server") },
		"hang":  func(context.Context, string) ([]candidate, error) { <-release; return nil, nil },
		"panic": func(context.Context, string) ([]candidate, error) { panic("boom") },
	} {
		start := time.Now()
		if got := complete(t, list, ""); got != ":4\n" {
			t.Errorf("%s: %q", name, got)
		}
		if d := time.Since(start); d > 5*completionBudget {
			t.Errorf("%s took %s", name, d)
		}
	}
}

func TestCompletionIsCapped(t *testing.T) {
	list := func(context.Context, string) ([]candidate, error) {
		var all []candidate
		for i := range 10 * completionLimit {
			all = append(all, candidate{word: fmt.Sprint("lot-", i)})
		}
		return all, nil
	}
	if got := strings.Count(complete(t, list, ""), "lot-"); got != completionLimit {
		t.Errorf("%d words", got)
	}
}

func TestStaticCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"completion ":               "bash\nzsh\nfish\npowershell\n",
		"completion bash ":          "",
		"version -o j":              "json\njsonl\n",
		"explain sold":              "sold_out\tSold out\n",
		"help exit":                 "exit-codes\twhat each exit status means\n",
		"config view --log-format ": "text\njson\n",
	} {
		parts := strings.Split(args, " ")
		if r := run(t, nil, append([]string{"__complete"}, parts...)...); r.out != want+":4\n" {
			t.Errorf("%q: %q", args, r.out)
		}
	}
}
