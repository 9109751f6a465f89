package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/term"
)

func newHelp(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "help [COMMAND | TOPIC]",
		Short: "Explain a command or a topic",
		Long:  "Explain a command, or one of the topics:\n" + strings.Join(topicNames(), ", ") + ".",
		Example: `  dropctl help reconcile
  dropctl help exit-codes
  dropctl help exit-codes -o json`,
		Args:              cobra.ArbitraryArgs,
		Annotations:       needsNoConfig,
		ValidArgsFunction: completeHelp,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.runHelp(cmd.Root(), args) }
	return cmd
}

func completeHelp(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	parent, _, err := cmd.Root().Find(args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var list []candidate
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			list = append(list, candidate{c.Name(), c.Short})
		}
	}
	if len(args) == 0 {
		for _, t := range topics {
			list = append(list, candidate{t.name, t.short})
		}
	}
	return offer(list, args, prefix), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) runHelp(root *cobra.Command, args []string) error {
	for _, t := range topics {
		switch {
		case len(args) == 0 || t.name != args[0]:
		case len(args) > 1:
			return fault.New(fault.Usage, "%.60q is one argument too many", args[1]).WithHint("one topic at a time: dropctl help %s", t.name)
		default:
			return t.show(a)
		}
	}
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		return a.printHelp(cmd)
	}
	if cmd == root {
		return unknownTopic(root, rest[0])
	}
	return unknownCommand(cmd, rest[0])
}

func unknownTopic(root *cobra.Command, word string) error {
	err := fault.New(fault.Usage, "%q is neither a command nor a topic", word)
	names := topicNames()
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	if near := fault.Nearest(word, names); near != "" {
		return err.WithHint("did you mean dropctl help %s?", near)
	}
	return err.WithHint("the topics are: %s", strings.Join(topicNames(), ", "))
}

// helpFlag answers --help. Asked behind an unknown word, it is that word that needs an answer.
func (a *app) helpFlag(cmd *cobra.Command) error {
	if rest := cmd.Flags().Args(); cmd.HasSubCommands() && len(rest) > 0 {
		return unknownCommand(cmd, rest[0])
	}
	_, err := io.WriteString(a.stdout, helpOf(cmd, a.outTerm))
	if err != nil && !render.IsClosedPipe(err) {
		return fault.Wrap(fault.Failed, err, "the help could not be written")
	}
	return nil
}

// printHelp prints a command's help as data, so that programs get it in their format.
func (a *app) printHelp(cmd *cobra.Command) error {
	text := helpOf(cmd, a.outTerm)
	return a.out.Text(text, topicView{cmd.CommandPath(), text})
}

func helpOf(cmd *cobra.Command, s term.Stream) string {
	h := &helpText{stream: s}
	h.intro(cmd)
	h.commands(cmd)
	h.examples(cmd)
	h.flags(cmd)
	h.outro(cmd)
	return h.String()
}

// helpText is the help of one command while it is being written.
type helpText struct {
	strings.Builder
	stream term.Stream
}

func (h *helpText) add(format string, args ...any) { _, _ = fmt.Fprintf(h, format, args...) }

func (h *helpText) title(text string) { h.add("\n%s\n", h.stream.Paint(term.Strong, text)) }

func (h *helpText) intro(cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	h.WriteString(strings.TrimSpace(text) + "\n")
	h.title("Usage")
	if cmd.HasSubCommands() {
		h.add("  %s COMMAND\n", cmd.CommandPath())
		return
	}
	h.add("  %s\n", cmd.UseLine())
}

func (h *helpText) commands(cmd *cobra.Command) {
	if len(cmd.Groups()) == 0 && cmd.HasAvailableSubCommands() {
		h.title("Commands")
		h.commandList(cmd, "")
	}
	for _, g := range cmd.Groups() {
		if groupInUse(cmd, g.ID) {
			h.title(g.Title)
			h.commandList(cmd, g.ID)
		}
	}
}

func groupInUse(cmd *cobra.Command, id string) bool {
	for _, c := range cmd.Commands() {
		if c.GroupID == id && c.IsAvailableCommand() {
			return true
		}
	}
	return false
}

func (h *helpText) commandList(cmd *cobra.Command, group string) {
	var rows [][2]string
	for _, c := range cmd.Commands() {
		if c.GroupID == group && c.IsAvailableCommand() {
			rows = append(rows, [2]string{c.Name(), c.Short})
		}
	}
	h.rows(rows)
}

func (h *helpText) examples(cmd *cobra.Command) {
	if cmd.Example != "" {
		h.title("Examples")
		h.WriteString(strings.TrimRight(cmd.Example, "\n") + "\n")
	}
}

func (h *helpText) flags(cmd *cobra.Command) {
	own := cmd.LocalFlags()
	if own.HasAvailableFlags() {
		h.title("Flags")
		h.rows(flagRows(own))
	}
	if inherited := cmd.InheritedFlags(); inherited.HasAvailableFlags() {
		h.title("Flags of every command")
		var names []string
		inherited.VisitAll(func(f *pflag.Flag) {
			names = append(names, flagNames(f, false))
		})
		h.WriteString(wrap(strings.Join(names, ", "), h.stream.Width, "  ") + "\n")
	}
}

// flagRows begins with what is the command's own: servers and other settings are the same in most commands.
func flagRows(flags *pflag.FlagSet) [][2]string {
	var own, settings, help [][2]string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		text := f.Usage
		if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
			text += " (default " + shownDefault(f) + ")"
		}
		if config.HasEnv(f) {
			text += " [" + config.EnvName(f.Name) + "]"
		}
		to := &own
		switch {
		case f.Name == "help":
			to = &help
		case config.IsSetting(f):
			to = &settings
		}
		*to = append(*to, [2]string{flagNames(f, true), text})
	})
	return slices.Concat(own, settings, help)
}

// shownDefault writes durations as everything else does: 10m, and not 10m0s.
func shownDefault(f *pflag.Flag) string {
	if d, err := time.ParseDuration(f.DefValue); err == nil {
		return fault.Duration(d)
	}
	return f.DefValue
}

// valueWord is what --help writes for the value of a flag.
func valueWord(f *pflag.Flag) string {
	switch kind := f.Value.Type(); kind {
	case "int64", "uint64":
		return "INT"
	case "float64":
		return "NUMBER"
	case "stringArray", "stringSlice":
		return "STRING"
	default:
		return strings.ToUpper(kind)
	}
}

// flagNames writes -o, --output WORD; short flags are aligned in a column of their own when padded.
func flagNames(f *pflag.Flag, padded bool) string {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	} else if padded {
		name = "    " + name
	}
	if padded && f.Value.Type() != "bool" {
		name += " " + valueWord(f)
	}
	if !padded {
		name = strings.Replace(name, ", ", "/", 1)
	}
	return name
}

func (h *helpText) outro(cmd *cobra.Command) {
	if !cmd.HasParent() {
		h.title("Topics")
		var rows [][2]string
		for _, t := range topics {
			rows = append(rows, [2]string{t.name, t.short})
		}
		h.rows(rows)
		h.WriteString("\nMore: dropctl COMMAND --help, dropctl help TOPIC, dropctl explain CODE\n")
		return
	}
	h.WriteString("\nMore: dropctl --help, dropctl help environment, dropctl help exit-codes\n")
}

// rows writes two columns; the second is wrapped to the width of the stream.
func (h *helpText) rows(rows [][2]string) {
	left := 0
	for _, r := range rows {
		left = max(left, len(r[0]))
	}
	left = min(left, 34)
	for _, r := range rows {
		indent := strings.Repeat(" ", left+4)
		text := strings.TrimPrefix(wrap(r[1], h.stream.Width, indent), indent)
		if len(r[0]) > left {
			h.add("  %s\n%s%s\n", r[0], indent, text)
			continue
		}
		h.add("  %-*s  %s\n", left, r[0], text)
	}
}

// wrap breaks text into lines of at most width columns, each after indent. A long word stays whole.
func wrap(text string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == 0:
			b.WriteString(indent + word)
			column = len(indent) + len(word)
		case column+1+len(word) > max(width, len(indent)+20):
			b.WriteString("\n" + indent + word)
			column = len(indent) + len(word)
		default:
			b.WriteString(" " + word)
			column += 1 + len(word)
		}
	}
	return b.String()
}
