package cli

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// The groups of commands in the root's help, in order.
const (
	groupDrop    = "Drop"
	groupRun     = "Run"
	groupInspect = "Inspect"
	groupMeasure = "Measure"
	groupSetUp   = "Set up"
)

var groups = []string{groupDrop, groupRun, groupInspect, groupMeasure, groupSetUp}

// newRoot builds the whole command tree. Building it reads and dials nothing.
func newRoot(a *app) *cobra.Command {
	root := newGroup("dropctl", "Run drops that never oversell")
	root.Long = "dropctl runs drops: moments when thousands of people want a few things at once. It hands out\n" +
		"exactly what exists, and can prove afterwards that it did."
	root.Example = `  dropctl help words
  dropctl explain sold_out`
	for _, name := range groups {
		root.AddGroup(&cobra.Group{ID: name, Title: name})
	}
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	// Each command is one line here and one file of this package.
	add(groupDrop, newSeed(a), newLot(a), newReserve(a), newConfirm(a), newRelease(a), newExtend(a), newRefund(a), newReservation(a))
	add(groupRun, newServe(a), newWorker(a), newReconcile(a), newRestore(a))
	add(groupInspect, newStatus(a), newDoctor(a), newExplain(a), newOutbox(a), newLedger(a), newMetrics(a))
	add(groupMeasure, newDemo(a), newSimulate(a), newBench(a), newBareHTTP(a), newLab(a))
	add(groupSetUp, newMigrate(a), newConfig(a), newKey(a), newHook(a), newCompletion(a), newVersion(a))
	root.SetHelpCommand(newHelp(a))
	root.InitDefaultHelpCmd() // now, so that help is finished like any other command
	a.globalFlags(root)
	version := root.Flags().Bool("version", false, "the same as dropctl version")
	root.RunE = func(*cobra.Command, []string) error {
		if *version {
			return a.print(thisVersion())
		}
		return a.printHelp(root)
	}
	finish(a, root)
	eachCommand(root, (*cobra.Command).InitDefaultHelpFlag) // now, or -h in front of a command would take its name for a value
	return root
}

func (a *app) globalFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.SortFlags = false
	a.settings(root, flags, config.Global)
	flags.StringSliceVar(&a.fields, "fields", nil, "print only these fields, separated by commas")
	flags.StringVar(&a.jq, "jq", "", "print what this jq expression makes of the JSON output")
	flags.BoolVar(&a.noHeaders, "no-headers", false, "print tables without their header line")
	_ = root.RegisterFlagCompletionFunc("fields", completeFields)
	_ = root.RegisterFlagCompletionFunc("jq", cobra.NoFileCompletions)
	flags.StringVar(&a.configFile, "config", "", "config file, or none (default: see dropctl help files)")
}

// settings registers the settings of the groups as flags of a command:
//
//	a.settings(cmd, cmd.Flags(), config.Redis, config.Database)
func (a *app) settings(cmd *cobra.Command, flags *pflag.FlagSet, groups ...config.Group) {
	config.AddFlags(flags, groups...)
	for _, s := range config.Settings() {
		if words := s.Words(); words != nil && flags.Lookup(s.Name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(s.Name, completeWords(words...))
		}
	}
}

// Flags with one meaning everywhere. A command that takes one registers it here.

func dryRunFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVarP(to, "dry-run", "n", false, "show what would be done, change nothing")
}

func fileFlag(cmd *cobra.Command, to *string, usage string) {
	cmd.Flags().StringVarP(to, "file", "f", "", usage)
}

// watchEveryFlag is set if the user asked to watch: --watch alone means every two seconds.
func watchEveryFlag(cmd *cobra.Command, to *time.Duration) {
	cmd.Flags().DurationVarP(to, "watch", "w", 2*time.Second, "show it again and again until Ctrl-C, at this interval")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2s"
}

// newGroup makes a command that only holds others. Called by itself it shows its help, with status 2
// because nothing was done; called with an unknown word it names the nearest known one.
func newGroup(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{
		Use:   use,
		Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
	}
	group.AddCommand(subcommands...)
	return group
}

func unknownCommand(parent *cobra.Command, word string) error {
	err := fault.New(fault.Usage, "%q is no command of %s", word, parent.CommandPath())
	var names []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := fault.Nearest(word, names); near != "" {
		return err.WithHint("did you mean %s %s?", parent.CommandPath(), near)
	}
	return err.WithHint("see what there is: %s --help", parent.CommandPath())
}

// finish gives every command of the tree the shared behaviour, so that no command can forget it.
func finish(a *app, root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetIn(a.in)
	root.SetOut(a.stdout)
	root.SetErr(a.err)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) }
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { a.helpErr = a.helpFlag(cmd) })
	eachCommand(root, func(cmd *cobra.Command) {
		cmd.Flags().SortFlags = false
		if cmd.HasSubCommands() {
			finishGroup(a, cmd)
			return
		}
		finishLeaf(a, cmd)
	})
}

func finishGroup(a *app, cmd *cobra.Command) {
	cmd.Annotations = needsNoConfig
	if cmd.RunE != nil { // the root
		return
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !a.jsonErrors() {
			a.say("%s", helpOf(cmd, a.errTerm))
		}
		return fault.New(fault.Usage, "%s needs a command", cmd.CommandPath()).
			WithHint("see what there is: %s --help", cmd.CommandPath())
	}
}

func finishLeaf(a *app, cmd *cobra.Command) {
	check, run := cmd.Args, cmd.RunE
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return argumentError(cmd, args, err)
		}
		return nil
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return errors.Join(missingFlag(cmd), emptyList(cmd)) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.started = true
		dryRun := cmd.Flags().Lookup("dry-run")
		a.acts = dryRun != nil && dryRun.Value.String() != "true"
		return run(cmd, args)
	}
}

// argumentError says which argument is missing, or which is one too many. The names are those of the usage line.
func argumentError(cmd *cobra.Command, args []string, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	names := argumentNames(cmd)
	if len(args) < len(names) {
		return fault.New(fault.Usage, "%s is missing", names[len(args)]).
			WithHint("usage: %s; see %s --help", cmd.UseLine(), cmd.CommandPath())
	}
	extra := args[len(names)]
	f := fault.New(fault.Usage, "%.60q is one argument too many for %s", extra, cmd.CommandPath())
	if _, err := drop.ParseLotID(extra); err == nil && cmd.Flags().Lookup("lot") != nil {
		return f.WithHint("did you mean --lot %s?", extra)
	}
	if _, err := drop.ParseReservationID(extra); err == nil && cmd.Flags().Lookup("reservation") != nil {
		return f.WithHint("did you mean --reservation %s?", extra)
	}
	return f.WithHint("usage: %s; see %s --help", cmd.UseLine(), cmd.CommandPath())
}

// argumentNames returns the names of the arguments in a usage line such as "reserve LOT --user U".
func argumentNames(cmd *cobra.Command) []string {
	words := strings.Fields(cmd.Use)[1:]
	if end := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") || w == "|" }); end >= 0 {
		words = words[:end]
	}
	var names []string
	for _, word := range words {
		names = append(names, strings.Trim(word, "[]…"))
	}
	return names
}

// missingFlag names a flag that a command cannot do without. It runs after the environment was read.
func missingFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if required := f.Annotations[cobra.BashCompOneRequiredFlag]; err == nil && !f.Changed && slices.Equal(required, []string{"true"}) {
			err = fault.New(fault.Usage, "--%s is missing", f.Name).WithField(f.Name).
				WithHint("usage: %s; see %s --help", cmd.UseLine(), cmd.CommandPath())
		}
	})
	return err
}

// emptyList names a flag whose list names nothing, which must not mean everything: an empty variable of a script would.
func emptyList(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		list, ok := f.Value.(pflag.SliceValue)
		if !ok || !f.Changed || err != nil {
			return
		}
		if words := list.GetSlice(); len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return strings.TrimSpace(w) == "" }) {
			err = fault.New(fault.Usage, "--%s has an empty place in its list", f.Name).WithField(f.Name).
				WithHint("name something there, or leave --%s out; see %s --help", f.Name, cmd.CommandPath())
		}
	})
	return err
}

// flagError answers a flag that does not parse. An unknown flag behind an unknown word is about the word.
func flagError(cmd *cobra.Command, err error) error {
	if rest := cmd.Flags().Args(); cmd.HasSubCommands() && len(rest) > 0 {
		return unknownCommand(cmd, rest[0])
	}
	if own, ok := errors.AsType[*fault.Error](err); ok { // the flag's own check says it better
		return own
	}
	f := fault.Wrap(fault.Usage, err, "")
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f = f.WithField(bad.GetFlag().Name)
		if bad.GetFlag().Value.Type() == "duration" {
			return f.WithHint("give a number with its unit, such as 90s, 15m or 24h")
		}
	}
	if unknown, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		if unknown == "server" || unknown == "api-key-file" {
			return f.WithField(unknown).WithHint("%s needs the stores; see which commands go through a server: dropctl help server", cmd.CommandPath())
		}
		var names []string
		cmd.Flags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
		if near := fault.Nearest(unknown, names); near != "" {
			return f.WithField(unknown).WithHint("did you mean --%s?", near)
		}
	}
	return f.WithHint("see the flags: %s --help", cmd.CommandPath())
}

// eachCommand visits a command and all below it.
func eachCommand(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, c := range cmd.Commands() {
		eachCommand(c, visit)
	}
}
