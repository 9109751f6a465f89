package cli

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// onTerminal runs a command line at a terminal, where a person answers every question with answer.
// It returns the exit status and all that the person saw.
func onTerminal(ctx context.Context, t *testing.T, answer string, args ...string) (int, string) {
	t.Helper()
	person, program := testkit.Terminal(t)
	getenv := func(name string) string {
		return map[string]string{"DROPCTL_CONFIG": "none", "NO_COLOR": "1"}[name]
	}
	a := newApp(args, Streams{In: program, Out: program, Err: program, Getenv: getenv})
	root := newRoot(a)
	cmd := talker(&a, nil)
	finishLeaf(a, cmd)
	root.AddCommand(cmd)
	exited := make(chan int, 1)
	go func() { exited <- a.execute(ctx, root, args) }()

	var seen bytes.Buffer
	buffer := make([]byte, 4096)
	for exit := -1; ; {
		if err := person.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := person.Read(buffer)
		seen.Write(buffer[:n])
		if answer != "" && bytes.Contains(seen.Bytes(), []byte("[y/N]")) {
			if _, err := person.WriteString(answer); err != nil {
				t.Fatal(err)
			}
			answer = ""
		}
		if os.IsTimeout(err) && exit >= 0 {
			return exit, seen.String()
		}
		select {
		case exit = <-exited:
		case <-t.Context().Done():
			t.Fatal("the test is over")
		default:
		}
	}
}

func TestQuestionsAreAnsweredWithNoUnlessYesIsTyped(t *testing.T) {
	for answer, want := range map[string]int{"y\n": 0, "YES\n": 0, "n\n": 2, "\n": 2, "yesterday\n": 2, "\x04": 2} {
		exit, seen := onTerminal(t.Context(), t, answer, "talk")
		if exit != want || !strings.Contains(seen, "Close truffle-99? [y/N]") {
			t.Errorf("%q: exit %d\n%s", answer, exit, seen)
		}
	}
}

func TestNoInputBeatsATerminal(t *testing.T) {
	if exit, seen := onTerminal(t.Context(), t, "", "talk", "--no-input"); exit != 2 || strings.Contains(seen, "[y/N]") {
		t.Errorf("exit %d\n%s", exit, seen)
	}
}

func TestCtrlCAtAQuestion(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(fault.New(fault.Interrupted, "interrupted")) })
	if exit, seen := onTerminal(ctx, t, "", "talk"); exit != 130 {
		t.Errorf("exit %d\n%s", exit, seen)
	}
}

func TestTablesAreAlignedOnATerminal(t *testing.T) {
	exit, seen := onTerminal(t.Context(), t, "", "explain")
	if exit != 0 || strings.Contains(seen, "\t") || !strings.Contains(seen, "sold_out                error       4  Sold out") {
		t.Errorf("exit %d\n%s", exit, seen)
	}
}

func TestAnEmptyListIsToldOfOnATerminal(t *testing.T) {
	_, env := newShop(t, 4)
	exit, seen := onTerminal(t.Context(), t, "", "reservation", "list", "--database-url", env["DROPCTL_DATABASE_URL"])
	if exit != 0 || !strings.Contains(seen, "the ledger has no such reservation") {
		t.Errorf("exit %d\n%s", exit, seen)
	}
}

func TestStatusIsRedrawnOnATerminal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	exit, seen := onTerminal(ctx, t, "", "status", "--watch=1s", "--redis-url", "redis://127.0.0.1:1", "--database-url", "postgres://shop@127.0.0.1:1/shop")
	if exit != 0 || strings.Count(seen, clearScreen) < 1 || !strings.Contains(seen, "cannot be reached") {
		t.Errorf("exit %d, seen %q", exit, seen)
	}
}
