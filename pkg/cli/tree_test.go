package cli

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// newTree builds the tree as Main does, for looking at.
func newTree() *cobra.Command {
	return newRoot(newApp(nil, Streams{Getenv: func(string) string { return "" }}))
}

// leaves lists the commands that do something.
func leaves(root *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	eachCommand(root, func(c *cobra.Command) {
		if !c.HasSubCommands() && !c.Hidden {
			list = append(list, c)
		}
	})
	return list
}

// words returns the arguments that name a command.
func commandWords(c *cobra.Command) []string { return strings.Fields(c.CommandPath())[1:] }

func TestEveryCommandIsDescribed(t *testing.T) {
	eachCommand(newTree(), func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") || len(c.Short) > 60 {
			t.Errorf("%s: short text %q", c.CommandPath(), c.Short)
		}
		if c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		if c.HasParent() && !c.Parent().HasParent() && c.Name() != "help" && !slices.Contains(groups, c.GroupID) {
			t.Errorf("%s is in no group of the first screen", c.CommandPath())
		}
		for line := range strings.SplitSeq(c.Long, "\n") {
			if len(line) > 100 {
				t.Errorf("%s: a line of its text is longer than 100 columns: %s", c.CommandPath(), line)
			}
		}
	})
}

func TestEveryExampleParses(t *testing.T) {
	count := 0
	eachCommand(newTree(), func(c *cobra.Command) {
		for line := range strings.SplitSeq(c.Example, "\n") {
			for _, args := range commandLines(line) {
				count++
				if err := parses(args); err != nil {
					t.Errorf("%s: example %q: %v", c.CommandPath(), strings.TrimSpace(line), err)
				}
			}
		}
	})
	if count < 10 {
		t.Errorf("only %d examples were found", count)
	}
}

// parses runs arguments through the parser as a run would, up to the command's own code.
func parses(args []string) error {
	cmd, rest, err := newTree().Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	return cmd.ValidateFlagGroups()
}

func TestTheExampleParserFindsMistakes(t *testing.T) {
	for _, line := range []string{"dropctl nope", "dropctl config nope", "dropctl version --nope", "dropctl completion", "dropctl explain a b"} {
		for _, args := range commandLines(line) {
			if parses(args) == nil {
				t.Errorf("%s passed", line)
			}
		}
	}
	got := commandLines(`  A=1 dropctl a 'b c' "d|e" | jq . > f && dropctl g # dropctl h`)
	if len(got) != 2 || strings.Join(got[0], "|") != "a|b c|d|e" || strings.Join(got[1], "|") != "g" {
		t.Errorf("got %q", got)
	}
}

// commandLines returns the arguments of each dropctl call in a line of shell.
func commandLines(line string) [][]string {
	var calls [][]string
	var call []string
	end := func() {
		for len(call) > 0 && strings.Contains(call[0], "=") { // variables before a command
			call = call[1:]
		}
		if len(call) > 0 && call[0] == "dropctl" {
			calls = append(calls, call[1:])
		}
		call = nil
	}
	for _, word := range shellWords(line) {
		switch word {
		case "|", ";", "&&", "||", "&":
			end()
		case "#":
			end()
			return calls
		default:
			call = append(call, word)
		}
	}
	end()
	for i, c := range calls { // a redirection and what follows is the shell's
		if at := slices.IndexFunc(c, func(w string) bool { return w == ">" || w == ">>" || w == "<" }); at >= 0 {
			calls[i] = c[:at]
		}
	}
	return calls
}

func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, inWord := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, inWord = r, true
		case quote == 0 && r == ' ':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

func TestAShortFlagHasOneMeaning(t *testing.T) {
	meaning := map[string]string{
		"o": "output", "f": "file", "n": "dry-run", "q": "quiet", "v": "verbose", "y": "yes", "w": "watch", "h": "help",
	}
	eachCommand(newTree(), func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Shorthand == "" {
				return
			}
			if known := meaning[f.Shorthand]; known != "" && known != f.Name {
				t.Errorf("%s: -%s means --%s, elsewhere --%s", c.CommandPath(), f.Shorthand, f.Name, known)
			}
			meaning[f.Shorthand] = f.Name
		})
	})
}

func TestEveryFlagHasAVariable(t *testing.T) {
	for _, c := range leaves(newTree()) {
		c.LocalFlags() // merges the flags of the parents
		fresh, _, err := newTree().Find(commandWords(c))
		if err != nil {
			t.Fatal(err)
		}
		fresh.LocalFlags()
		help := strings.Join(strings.Fields(run(t, nil, append(commandWords(c), "--help")...).out), " ")
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !config.HasEnv(f) {
				return
			}
			name := config.EnvName(f.Name)
			set, err := config.ApplyEnv(fresh.Flags(), func(v string) string {
				if v == name {
					return sampleOf(f.Value.Type())
				}
				return ""
			})
			if err != nil || !set[f.Name] || !fresh.Flags().Lookup(f.Name).Changed {
				t.Errorf("%s: %s does not reach --%s: %v", c.CommandPath(), name, f.Name, err)
			}
			if c.LocalFlags().Lookup(f.Name) != nil && c.InheritedFlags().Lookup(f.Name) == nil && !f.Hidden && !strings.Contains(help, "["+name+"]") {
				t.Errorf("%s: the help of --%s does not name %s", c.CommandPath(), f.Name, name)
			}
		})
	}
}

func sampleOf(kind string) string {
	switch kind {
	case "bool":
		return "true"
	case "duration":
		return "7s"
	case "int", "int64", "uint", "uint64", "float64", "count":
		return "7"
	}
	return "seven"
}

func TestEveryCommandTakesAFormat(t *testing.T) {
	for _, c := range leaves(newTree()) {
		c.LocalFlags()
		if f := c.Flag("output"); f == nil || f.Shorthand != "o" {
			t.Errorf("%s has no -o", c.CommandPath())
		}
	}
}

func TestEveryCommandSaysWhatItPrints(t *testing.T) {
	known := map[string]bool{}
	for _, c := range leaves(newTree()) {
		name := strings.Join(commandWords(c), " ")
		known[name] = true
		if _, ok := printedBy(c); !ok && name != "help" {
			t.Errorf("%s is not in the table of what commands print", name)
		}
	}
	for name := range printed {
		if !known[name] {
			t.Errorf("the table of what commands print has %q, which is no command", name)
		}
	}
}

// Nothing can be dialled here: whoever gets to that answers with something else.
func TestOutputThatCannotBeIsRefusedBeforeAnythingIsDone(t *testing.T) {
	env := map[string]string{"DROPCTL_REDIS_URL": "redis://127.0.0.1:1", "DROPCTL_DATABASE_URL": "postgres://shop@127.0.0.1:1/shop"}
	for _, c := range leaves(newTree()) {
		view, ok := printedBy(c)
		if !ok {
			continue
		}
		line, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
		args := commandLines(line)[0]
		if r := run(t, env, append(args, "--fields", "no_such_field")...); r.exit != 2 || r.out != "" || !strings.Contains(r.err, "the fields are: "+render.Fields(view)[0]) {
			t.Errorf("%s: --fields: exit %d, %s", c.CommandPath(), r.exit, r.err)
		}
		if r := run(t, env, append(args, "--jq", ".[")...); r.exit != 2 || r.out != "" || !strings.Contains(r.err, "no jq expression") {
			t.Errorf("%s: --jq: exit %d, %s", c.CommandPath(), r.exit, r.err)
		}
	}
	for _, line := range []string{"worker --until-idle", "status", "reconcile", "demo", "bench bars", "lab"} {
		if r := run(t, env, append(strings.Fields(line), "-o", "name")...); r.exit != 2 || r.out != "" || !strings.Contains(r.err, "no names") {
			t.Errorf("%s: -o name: exit %d, %s", line, r.exit, r.err)
		}
	}
}

func TestFormatsAreTheSameEverywhere(t *testing.T) {
	for _, s := range config.Settings() {
		if s.Name != "output" {
			continue
		}
		var formats []string
		for _, f := range render.Formats() {
			formats = append(formats, string(f))
		}
		if !slices.Equal(s.Choices, formats) {
			t.Errorf("config knows %v, render %v", s.Choices, formats)
		}
	}
}

func TestFailureIsOneObjectOnStderrForEveryCommand(t *testing.T) {
	eachCommand(newTree(), func(c *cobra.Command) {
		args := append(commandWords(c), "--no-such-flag", "-o", "json")
		r := run(t, nil, args...)
		if v := r.errorObject(t); v.Code != fault.Usage {
			t.Errorf("%s: %+v", c.CommandPath(), v)
		}
	})
}

func TestMistypedCommandsAtEveryLevel(t *testing.T) {
	eachCommand(newTree(), func(c *cobra.Command) {
		if !c.HasSubCommands() {
			return
		}
		for _, sub := range c.Commands() {
			if !sub.IsAvailableCommand() {
				continue
			}
			typo := sub.Name()[:len(sub.Name())-1] + "zz"
			r := run(t, nil, append(commandWords(c), typo)...)
			if r.exit != 2 || r.out != "" || !strings.Contains(r.err, "did you mean "+c.CommandPath()) {
				t.Errorf("%s %s: exit %d\n%s%s", c.CommandPath(), typo, r.exit, r.out, r.err)
			}
		}
	})
}

// Commands that change something have to be able to say what they would do.
func TestMutationsHaveADryRun(t *testing.T) {
	mutations := []string{
		"seed", "lot open", "lot pause", "lot close", "lot adjust", "lot archive", "reserve", "confirm", "release",
		"extend", "refund", "restore", "outbox retry", "outbox discard", "migrate up", "migrate down", "key create", "key revoke",
		"hook add", "hook test", "hook retry", "hook remove",
	}
	for _, c := range leaves(newTree()) {
		if slices.Contains(mutations, strings.Join(commandWords(c), " ")) && c.Flag("dry-run") == nil {
			t.Errorf("%s has no --dry-run", c.CommandPath())
		}
	}
}

func TestSuccessIsJSONOnly(t *testing.T) {
	for _, line := range []string{
		"version", "explain", "explain drift", "config view", "config view --origin", "config path", "completion bash",
		"help", "help config", "help exit-codes", "help environment", "help words", "help recovery",
	} {
		r := run(t, nil, append(strings.Fields(line), "-o", "json", "-q")...)
		if r.exit != 0 || r.err != "" || !json.Valid([]byte(r.out)) {
			t.Errorf("%s: exit %d, stderr %q, stdout\n%s", line, r.exit, r.err, r.out)
		}
	}
}

// The contract with programs: no field comes or goes unnoticed.
func TestFieldsOfViews(t *testing.T) {
	for want, view := range map[string]any{
		"version commit date dirty go os arch":        versionView{},
		"code kind exit http title meaning risk hint": explainView{},
		"setting value origin":                        settingView{},
		"path exists used":                            configPathView{},
		"name type labels group help":                 telemetry.Metric{},
		"file text":                                   fileView{},
		"exit name meaning":                           exitView{},
		"word meaning":                                wordView{},
		"setting flag env default choices usage":      settingHelpView{},
		"code message hint exit field details notes":  errorView{},
		"shell script":                                completionView{},
		"topic text":                                  topicView{},
		"id lot user state qty refunded due_closed deadline remaining_seconds payment key created seq replayed remaining dry_run":                 reservationView{},
		"id lot user state qty refunded due_closed deadline remaining_seconds payment key created seq replayed remaining dry_run source recorded": reservationShowView{},
		"state qty refunded rejected seq changed": recordedView{},
		"lot name status selling capacity available held sold due limit hold_seconds max_hold_seconds opens closes late epoch seq frozen":        lotView{},
		"lot name status selling capacity available held sold due limit hold_seconds max_hold_seconds opens closes late epoch seq frozen result": adjustView{},
		"lot status result code message hint": statusChangeView{},
		"lot result sold code message hint":   archiveView{},
		"lot action result records capacity available held sold epoch seq redis_seq took_seconds code message hint":      restoreView{},
		"version name state applied_at duration_seconds":                                                                 migrationView{},
		"id tenant name scopes hash created created_by expires revoked revoked_by":                                       keyView{},
		"id tenant name scopes hash created created_by expires revoked revoked_by token dry_run":                         keyCreatedView{},
		"id tenant name result code message hint":                                                                        keyRevokedView{},
		"id url lot group kinds allow_private created created_by waiting oldest_waiting parked failing_since last_error": hookView{},
		"id url lot group kinds allow_private created created_by secret dry_run":                                         hookAddedView{},
		"id url delivery outcome status why answer took_seconds dry_run":                                                 hookTestView{},
		"id url result notices":                            hookChangedView{},
		"redis_url database_url owner_database_url server": labView{},
	} {
		if got := strings.Join(render.Fields(view), " "); got != want {
			t.Errorf("%T: %s", view, got)
		}
	}
}

func TestEveryCodeIsExplained(t *testing.T) {
	seen := map[fault.Code]bool{}
	for _, e := range fault.All() {
		if seen[e.Code] {
			t.Errorf("%s is in the table twice", e.Code)
		}
		seen[e.Code] = true
		if e.Title == "" || e.Meaning == "" || e.Risk == "" || e.Hint == "" {
			t.Errorf("%s is not fully explained: %+v", e.Code, e)
		}
		if r := run(t, nil, "explain", string(e.Code)); r.exit != 0 || !strings.Contains(r.out, e.Meaning) {
			t.Errorf("explain %s: exit %d\n%s", e.Code, r.exit, r.out)
		}
	}
}

func TestCompletionFilesAreFresh(t *testing.T) {
	for shell, file := range map[string]string{"bash": "dropctl.bash", "zsh": "_dropctl", "fish": "dropctl.fish"} {
		want, err := completionScript(newTree(), shell)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile("../../completions/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("completions/%s is stale; run: make completions", file)
		}
	}
}

var mention = regexp.MustCompile(`\bdropctl ([a-z]+)(?: ([a-z]+))?`)

func TestTextsNameRealCommands(t *testing.T) {
	texts := map[string]string{"formatting": formattingText, "files": filesText, "server": serverText, "recovery": recoveryText}
	for _, e := range fault.All() {
		texts["the hint of "+string(e.Code)] = e.Hint
	}
	root := newTree()
	for where, text := range texts {
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			cmd, rest, err := root.Find(strings.Fields(m[1] + " " + m[2]))
			exists := err == nil && cmd != root && (len(rest) == 0 || !cmd.HasSubCommands())
			if !exists {
				t.Errorf("%s names %q, which is no command", where, m[0])
			}
		}
	}
}
