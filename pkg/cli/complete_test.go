package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/testkit"
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
		if d := time.Since(start); d > 20*time.Second {
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

func TestListsAreCompletedPieceByPiece(t *testing.T) {
	for args, want := range map[string]string{
		"reservation list --state h":         "held\n",
		"reservation list --state held,":     "held,confirmed\nheld,released\nheld,expired\nheld,refunded\n",
		"reservation list --state=held,conf": "held,confirmed\n",
		"version --fields ver":               "version\n",
		"version --fields version,g":         "version,go\n",
	} {
		parts := strings.Split(args, " ")
		if r := run(t, nil, append([]string{"__complete"}, parts...)...); r.out != want+":6\n" {
			t.Errorf("%q: %q", args, r.out)
		}
	}
}

func TestGroupsAreCompleted(t *testing.T) {
	testkit.Long(t)
	_, env := newShop(t, 4)
	for _, lot := range []string{"autumn:a", "autumn:b", "winter:c"} {
		if r := run(t, env, "seed", lot, "--stock", "1"); r.exit != 0 {
			t.Fatal(r.err)
		}
	}
	for _, command := range []string{"lot list", "lot pause"} {
		args := append([]string{"__complete"}, strings.Fields(command)...)
		if r := run(t, env, append(args, "--group", "")...); r.out != "autumn\nwinter\n:4\n" {
			t.Errorf("%s: %q", command, r.out)
		}
	}
	if r := run(t, env, "lot", "pause", "--group", "spring"); r.exit != 3 || !strings.Contains(r.err, "group spring") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
}

// A shell may have the script and lack the functions of the package that it calls.
func TestTheScriptOfBashIsQuietWithoutItsPackage(t *testing.T) {
	script, err := completionScript(newTree(), "bash")
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.CommandContext(t.Context(), "bash", "--norc", "--noprofile", "-c", script+"\nCOMP_WORDS=(dropctl ver) COMP_CWORD=1; __start_dropctl; echo $?")
	if out, err := shell.CombinedOutput(); err != nil || string(out) != "0\n" {
		t.Errorf("%v: %q", err, out)
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
		"version --jq ":             "",
		"config --fields ":          "",
	} {
		parts := strings.Split(args, " ")
		if r := run(t, nil, append([]string{"__complete"}, parts...)...); r.out != want+":4\n" {
			t.Errorf("%q: %q", args, r.out)
		}
	}
}
